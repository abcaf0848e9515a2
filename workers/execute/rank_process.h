// The process of a rank other than 0: it loads its part of the model, takes its part of the
// worker's pool, and runs the steps that rank 0 gives it. It knows no scheduler and no sequence.
// Which device it does that on is a RankWork.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "configs/config.h"
#include "ipc/process.h"
#include "workers/collective/rank_group.h"

namespace baton {

/// Of what rank 0 gives the others for a step: more than the largest step of the largest context.
constexpr std::size_t kMostStepBytes = 256U << 20U;

/// Used by one thread, in this order. Everything may throw: ModelError where the model cannot be
/// served, RankLost, or what else went wrong; then the process ends.
class RankWork {
 public:
  virtual ~RankWork() = default;
  /// This rank's part of the model. `group` outlives this.
  virtual void load(RankGroup& group, std::atomic<int>& percent) = 0;
  virtual void take_pool(const PoolOffer& offer) = 0;
  /// One step, as rank 0 has encoded it. Returns when the next one may come.
  virtual void run_step(const std::string& bytes) = 0;
  /// Whether the pool is this process's own lease; else it is all ranks', which rank 0 leases.
  virtual bool has_own_pool() const = 0;
};

/// `options`: those that rank 0 has, with this rank's number. Returns the exit status.
int run_rank_process(const Config& config, const RankGroupOptions& options,
                     std::unique_ptr<RankWork> work, SignalFd& signals);

}  // namespace baton
