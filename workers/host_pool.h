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
  void run(const RunStep& step, StepOutput& output) final;

 protected:
  /// Shape of the loaded model; set it in load().
  void set_shape(const KvGeometry& geometry) { shape_ = geometry; }
  KvPool& pool() { return *pool_; }
  /// output.tokens[i] = what row i sampled; rows without logits keep kNoToken.
  virtual void run_rows(const RunStep& step, StepOutput& output) = 0;

 private:
  KvGeometry shape_;
  std::optional<KvPool> pool_;
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
