#include "workers/execute/led_ranks.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "ipc/process.h"
#include "workers/model/error.h"

namespace baton {

namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(20);

void throw_unless_ok(const Status& status) {
  if (status.code() == ErrorCode::invalid_argument) throw ModelError(status.message());
  if (!status.ok()) throw std::runtime_error(status.message());
}

}  // namespace

RankGroup& LedRanks::lead(const RankGroupOptions& options) {
  auto group = RankGroup::lead(options, [this](int rank) {
    // Before the group is complete there is nothing that says more.
    const RankGroup* led = led_;
    tell_lost(led != nullptr ? led->words_of_loss(rank) : RankLost(rank, false).what());
  });
  throw_unless_ok(group.status());
  group_ = std::move(group).value();
  led_ = group_.get();
  return *group_;
}

void LedRanks::wait_loaded(TimeNs patience) {
  throw_unless_ok(group_->wait_for(RankState::loaded, patience));
}

void LedRanks::watch() {
  watcher_ = std::jthread([this](const std::stop_token& stop) {
    try {
      // One that is not stopped may wait in the driver for a kernel that another rank, or another
      // worker, keeps waiting.
      const TimeNs patience = group_->collective().patience();
      const auto patience_of = [&](int rank, TimeNs late) {
        const bool stopped = late >= patience && process_stopped(group_->pid_of(rank));
        return stopped ? patience : patience + kMostStepTime;
      };
      while (!stop.stop_requested()) {
        group_->collective().look_for_late(patience_of);
        std::this_thread::sleep_for(kBetweenLooks);
      }
    } catch (const RankLost& lost) {
      tell_lost(lost.what());
    }
  });
}

void LedRanks::tell_lost(const std::string& why) const {
  if (on_lost_) on_lost_(why);
}

void LedRanks::lose(const RankLost& lost) const {
  Collective::abort(group_->memory(), lost.rank(), lost.silent());
  tell_lost(lost.what());
}

void LedRanks::leaving(bool in_order) {
  RankGroup* group = led_;
  if (group == nullptr) return;
  if (in_order) {
    group->leave();
  } else {
    group->end_others();  // one of them may be frozen
  }
}

}  // namespace baton
