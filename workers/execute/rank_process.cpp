#include "workers/execute/rank_process.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "ipc/spoiled.h"
#include "workers/model/error.h"
#include "workers/protocol/worker_core.h"

namespace baton {

namespace {

constexpr int kLookMs = 250;
/// Rank 0 drains; then this process ends by itself.
constexpr TimeNs kBehindDrain = 2 * kSecond;
constexpr auto kRankZeroSays = std::chrono::seconds(10);
/// For the pool, which rank 0 makes when all have loaded and the scheduler has answered.
constexpr TimeNs kPoolPatience = 24 * 3600 * kSecond;

class RankProcess {
 public:
  RankProcess(const Config& config, const RankGroupOptions& options, std::unique_ptr<RankWork> work)
      : config_(config),
        options_(options),
        work_(std::move(work)),
        name_(config.self.process_name()) {}

  /// The main thread shows that this process lives, and hears signals; the rank's work has another.
  int run(SignalFd& signals) {
    AliveFile alive(config_.run_dir, name_);
    std::thread work([this] { end(work_on()); });
    work.detach();  // the process ends by _exit(), whatever runs
    TimeNs leave_at = 0;
    for (;;) {
      pollfd entry{signals.fd(), POLLIN, 0};
      ::poll(&entry, leave_at == 0 ? 1 : 0, kLookMs);
      const TimeNs now = now_ns();
      const TimeNs since = step_since_.load();
      if (since == 0 || now - since < kStuckStep) alive.touch(now);
      if (leave_at == 0 && signals.requested()) {
        ask_leader();
        leave_at = now + seconds_to_ns(config_.self.drain_s) + kBehindDrain;
      }
      if (leave_at != 0 && now >= leave_at) end(kExitOk);
    }
  }

 private:
  [[noreturn]] void end(int code) {
    spdlog::default_logger()->flush();
    ::_exit(code);
  }

  /// Nobody but rank 0 can drain, and one that is asked to stop alone ends its whole group in the
  /// end: so this rank asks for it.
  void ask_leader() {
    RankGroup* group = group_;
    if (group == nullptr) {
      spdlog::info("asked to stop: there is no group yet");
      end(kExitOk);
    }
    spdlog::info("asked to stop: rank 0 is asked, too, and drains first");
    group->stop_leader();
  }

  [[noreturn]] void refuse(int code, const std::string& why) {
    spdlog::error("{}", why);
    leave_reason(config_.run_dir, name_, why);
    end(code);
  }

  int work_on() {
    auto joined = RankGroup::join(options_, [this](int) {
      // Rank 0 has ended: nothing of this process is of use to anybody.
      if (RankGroup* group = group_; group != nullptr && group->leaving()) end(kExitOk);
      spdlog::warn("rank 0 is no more: this rank ends, too");
      end(kExitRankLost);
    });
    if (!joined.ok()) refuse(kExitFault, joined.status().message());
    group_holder_ = std::move(joined).value();
    group_ = group_holder_.get();
    // A fault of this process may have written anywhere in the pool.
    mark_pool_on_fault(config_.run_dir, pool_name(), pool_holder());
    // To the scheduler the pools of all ranks are one, and rank 0's.
    if (work_->has_own_pool())
      mark_pool_on_fault(config_.run_dir, config_.self.name, group_holder_->pid_of(0));
    spdlog::info("rank {} of {}: with rank 0, pid {}", config_.self.rank, options_.ranks,
                 group_holder_->pid_of(0));
    try {
      work_->load(*group_holder_, percent_);
      group_holder_->tell(RankState::loaded);
      const auto offer = group_holder_->wait_for_pool(kPoolPatience);
      if (!offer) throw std::runtime_error("rank 0 has offered no pool");
      work_->take_pool(*offer);
      group_holder_->tell(RankState::mapped);
      mark_up(config_.run_dir, name_);
      serve();
    } catch (const ModelError& e) {
      group_holder_->fail(e.what());
      refuse(kExitUsage, e.what());
    } catch (const RankLost& e) {
      // Whoever is silent and not rank 0 is seen by rank 0, too, which ends it.
      if (e.silent() && e.rank() == 0) group_holder_->end_others();
      refuse(kExitRankLost, e.what());
    } catch (const RanksDiffer& e) {
      // Rank 0 finds the same, gives the pool up, and ends this process. If this one ended first,
      // it would look like a death that leaves the pool as it was.
      spdlog::error("{}", e.what());
      give_pool_up();
      std::this_thread::sleep_for(kRankZeroSays);
      refuse(kExitRankLost, e.what());
    } catch (const std::exception& e) {
      give_pool_up();
      group_holder_->fail(e.what());
      refuse(kExitFault, e.what());
    }
  }

  /// A step that failed here may have written anywhere: rank 0 sees no more than a death, so that
  /// the mark has to be there before this process ends. Before the first step nothing is written.
  void give_pool_up() {
    if (!serving_) return;
    mark_pool_spoiled(config_.run_dir, pool_name(), pool_holder());
    if (work_->has_own_pool())
      mark_pool_spoiled(config_.run_dir, config_.self.name, group_holder_->pid_of(0));
  }

  /// Under which name the pool that this process writes to is leased, and who leases it.
  std::string pool_name() const { return work_->has_own_pool() ? name_ : config_.self.name; }
  std::int32_t pool_holder() const {
    return work_->has_own_pool() ? ::getpid() : group_holder_->pid_of(0);
  }

  [[noreturn]] void serve() {
    std::string bytes;
    serving_ = true;
    for (;;) {
      group_holder_->collective().broadcast(bytes, kMostStepBytes);
      step_since_ = now_ns();
      work_->run_step(bytes);
      step_since_ = 0;
    }
  }

  const Config& config_;
  const RankGroupOptions options_;
  const std::unique_ptr<RankWork> work_;
  const std::string name_;
  std::unique_ptr<RankGroup> group_holder_;
  std::atomic<RankGroup*> group_{nullptr};  // looked at by the watchdog's thread, too
  std::atomic<int> percent_{0};
  std::atomic<TimeNs> step_since_{0};  // 0: no step runs
  bool serving_ = false;               // steps may have written to the pool
};

}  // namespace

int run_rank_process(const Config& config, const RankGroupOptions& options,
                     std::unique_ptr<RankWork> work, SignalFd& signals) {
  return RankProcess(config, options, std::move(work)).run(signals);
}

}  // namespace baton
