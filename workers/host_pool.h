// The part of an Executor that every CPU model shares: the pool in shared memory, and copies out of
// the pools of others.
#pragma once

#include <memory>
#include <optional>

#include "workers/executor.h"
#include "workers/kv_pool.h"

namespace baton {

/// Derived classes give load() and run_rows().
class HostExecutor : public Executor {
 public:
  Result<PoolExport> allocate(const PoolRequest& request) override;
  std::unique_ptr<BlockReader> block_reader() override;
  /// A CPU has nothing to run beside the host: the work is done in collect().
  void launch(const RunStep& step) final { step_ = &step; }
  bool finished() final { return true; }
  void collect(StepOutput& output) final;

 protected:
  /// Shape of the loaded model; set it in load().
  void set_shape(const KvGeometry& geometry) { shape_ = geometry; }
  /// Size of a pool whose configuration names none.
  void set_planned_pool(std::uint64_t mib) { planned_mib_ = mib; }
  KvPool& pool() { return *pool_; }
  /// output.tokens[i] = what row i sampled; rows without logits keep kNoToken.
  virtual void run_rows(const RunStep& step, StepOutput& output) = 0;

 private:
  KvGeometry shape_;
  std::uint64_t planned_mib_ = 256;
  std::optional<KvPool> pool_;
  const RunStep* step_ = nullptr;
};

/// Copies by memcpy out of shared memory that is mapped read-only.
class HostBlockReader final : public BlockReader {
 public:
  explicit HostBlockReader(KvPool& pool) : pool_(pool) {}
  Result<std::unique_ptr<MappedPool>> map(const Pull& pull) override;
  Status copy(const MappedPool& source, const Pull& pull) override;

 private:
  KvPool& pool_;
};

}  // namespace baton
