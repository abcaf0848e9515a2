// The part of an Executor that every CPU model shares: the pool and its host part in shared memory,
// copies between the two, and copies out of the pools of others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "workers/execute/executor.h"
#include "workers/pool/kv_pool.h"
#include "workers/pool/layer_progress.h"
#include "workers/pool/pool_window.h"
#include "workers/pool/resolved_tables.h"

namespace baton {

/// Both parts of a pool on CPUs, under one range of block ids.
class HostPool {
 public:
  /// `host_part`: not created (KvPool()) where there is none.
  HostPool(KvPool device_part, KvPool host_part);
  KvPool& device_part() { return parts_[0]; }
  const KvPool& host_part() const { return parts_[1]; }
  /// `block` < blocks of both parts.
  std::byte* block(BlockId block);
  /// One block onto another; a copy onto itself does nothing.
  void copy(const CopyOp& op);
  /// Hello::host_block_us: the best of some rounds of copies there and back, between blocks as many
  /// as both parts have, which are not those of the pool: it may hold something. 0: there is no
  /// host part.
  float measure_copy_us() const;

 private:
  KvPool parts_[2];
};

/// Derived classes give load() and run_rows().
class HostExecutor : public Executor {
 public:
  Result<PoolExport> allocate(const PoolRequest& request) override;
  std::unique_ptr<BlockReader> block_reader() override;
  /// A CPU has nothing to run beside the host: the work is done in collect().
  void launch(const RunStep& step) final { step_ = &step; }
  bool finished() final { return true; }
  void collect(StepOutput& output) final;
  void begin_term(Term term) final { progress_.begin_term(term); }
  void lacks_rows(Term term, StepId step) final { progress_.lacks_rows(term, step); }
  bool reads_in_place() const final { return true; }

 protected:
  /// Shape of the loaded model, and what Hello calls its weights; set it in load().
  void set_shape(const KvGeometry& geometry, std::string weights) {
    shape_ = geometry;
    weights_ = std::move(weights);
  }
  /// Size of a pool whose configuration names none.
  void set_planned_pool(std::uint64_t mib) { planned_mib_ = mib; }
  KvPool& pool() { return pool_->device_part(); }
  /// Of the step at hand: where block 0 lies, how many ids there are behind it, and each row's
  /// table. With tables that begin in other pools that is all another (pool_window.h).
  std::byte* base() { return in_place_ ? window_->base() : pool().data(); }
  std::uint32_t ids() { return in_place_ ? window_->ids() : pool().geometry().blocks; }
  std::span<const BlockId> table(const RunStep& step, std::size_t row) const {
    return in_place_ ? std::span<const BlockId>(tables_[row]) : step.rows[row].blocks;
  }
  /// output.tokens[i] = what row i sampled; rows without logits keep kNoToken.
  virtual void run_rows(const RunStep& step, StepOutput& output) = 0;
  /// Some row of the step at hand waits for another worker.
  bool awaits() const { return !step_->waits.empty(); }
  /// Until the other workers that the rows of the step at hand wait for have written layers 0 ..
  /// layers-1.
  void await_layers(std::uint32_t layers);
  /// Called every few milliseconds meanwhile.
  void while_waiting(std::function<void()> tell) { progress_.while_waiting(std::move(tell)); }
  /// Its rows' keys and values of layers 0 .. layers-1 are written. Says so to whoever waits for
  /// it. After await_layers() of as many: so a step that has told a layer has seen all before it,
  /// and who waits for the last one waits for all.
  void layers_written(std::uint32_t layers);

 private:
  Result<HostPool> make_pool(const PoolRequest& request, const KvGeometry& geometry,
                             const KvGeometry& host_geometry) const;
  Result<HostPool> leased_pool(const PoolRequest& request, KvGeometry geometry,
                               KvGeometry host_geometry, UniqueFd& link) const;

  KvGeometry shape_;
  std::string weights_;
  std::uint64_t planned_mib_ = 256;
  std::optional<HostPool> pool_;
  const RunStep* step_ = nullptr;
  std::shared_ptr<PoolWindow> window_;
  LayerProgress progress_;
  Awaited awaited_;                           // of the step at hand
  bool in_place_ = false;                     // the step at hand reads other pools
  std::vector<std::vector<BlockId>> tables_;  // then: its rows', as the window has them
};

/// Copies by memcpy out of shared memory that is mapped read-only.
class HostBlockReader final : public BlockReader {
 public:
  /// `window`: null if no row reads in place.
  explicit HostBlockReader(KvPool& pool, std::shared_ptr<PoolWindow> window = nullptr)
      : pool_(pool), window_(std::move(window)) {}
  Result<std::unique_ptr<MappedPool>> map(const Pull& pull) override;
  Status copy(MappedPool& exported, const Pull& pull) override;
  Status place(MappedPool& exported, const Pull& pull) override;
  Result<std::vector<std::uint64_t>> sums(const std::vector<BlockId>& blocks) override;

 private:
  KvPool& pool_;
  std::shared_ptr<PoolWindow> window_;
};

}  // namespace baton
