// The other ranks as rank 0's executor has them: how they come together, how a loss is told, and
// how they end with it. The same on every kind of device.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "workers/collective/rank_group.h"
#include "workers/execute/executor.h"

namespace baton {

/// The longest that a step of several ranks takes on devices.
constexpr TimeNs kMostStepTime = 30 * kSecond;

class LedRanks {
 public:
  void on_lost(Executor::OnLost tell) { on_lost_ = std::move(tell); }
  /// Waits for all of them. Throws ModelError where one says that the model cannot be served,
  /// std::runtime_error where they do not come. Once.
  RankGroup& lead(const RankGroupOptions& options);
  /// For all to have loaded their parts; throws likewise.
  void wait_loaded(TimeNs patience);
  /// From now on a thread of its own looks whether they get on. Where steps are on devices, one
  /// that stands still amid launching its step keeps everybody's kernels waiting, and perhaps this
  /// process's calls of the driver, while rank 0 has nothing to exchange by which it would show. A
  /// stopped process is given the group's patience, any other one kMostStepTime more.
  void watch();
  /// On any thread: nothing can be computed any more.
  void tell_lost(const std::string& why) const;
  /// The same, by a thread beside that of the steps, which must not wait for that rank either.
  void lose(const RankLost& lost) const;
  /// As Executor::leaving(), from any thread.
  void leaving(bool in_order);

 private:
  Executor::OnLost on_lost_;
  std::atomic<RankGroup*> led_{nullptr};  // for threads other than the one that leads
  std::unique_ptr<RankGroup> group_;      // its thread uses what is above
  std::jthread watcher_;                  // uses the group
};

}  // namespace baton
