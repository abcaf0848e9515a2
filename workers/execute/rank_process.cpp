#include "workers/execute/rank_process.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "ipc/shm_region.h"
#include "ipc/spoiled.h"
#include "workers/execute/cpu_weights.h"
#include "workers/execute/rank_step.h"
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
  RankProcess(const Config& config, const CpuExecutor::Options& options)
      : config_(config), options_(options), name_(config.self.process_name()) {}

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
    auto joined = RankGroup::join(options_.group_options(config_.self.rank), [this](int) {
      // Rank 0 has ended: nothing of this process is of use to anybody.
      if (RankGroup* group = group_; group != nullptr && group->leaving()) end(kExitOk);
      spdlog::warn("rank 0 is no more: this rank ends, too");
      end(kExitRankLost);
    });
    if (!joined.ok()) refuse(kExitFault, joined.status().message());
    group_holder_ = std::move(joined).value();
    group_ = group_holder_.get();
    // A fault of this process may have written anywhere in the pool, which rank 0 leases.
    mark_pool_on_fault(config_.run_dir, config_.self.name, group_holder_->pid_of(0));
    spdlog::info("rank {} of {}: with rank 0, pid {}", config_.self.rank, options_.ranks,
                 group_holder_->pid_of(0));
    try {
      load();
      map_pool();
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
    mark_pool_spoiled(config_.run_dir, config_.self.name, group_holder_->pid_of(0));
  }

  void load() {
    const ModelFiles files(options_.model_folder, options_.weights);
    const WeightPlan plan = plan_weights(files.config, files.checkpoint, options_.weights);
    CpuModelAsk ask = options_.model_ask(config_.self.rank, &group_holder_->collective());
    ask.process = name_;
    model_ = load_cpu_model(ask, files, ask_for_weights(ask, files, plan), percent_);
    spdlog::info("weights: {} MiB ({} MiB read)", model_.model->weight_bytes() >> 20U,
                 model_.model->bytes_read() >> 20U);
    group_holder_->tell(RankState::loaded);
  }

  void map_pool() {
    const auto offer = group_holder_->wait_for_pool(kPoolPatience);
    if (!offer) throw std::runtime_error("rank 0 has offered no pool");
    view_.geometry = model_.model->kv_geometry(offer->blocks, options_.tokens_per_block);
    auto region =
        ShmRegion::open_writable(offer->handle, kv_pool_bytes(view_.geometry).value_or(0));
    if (!region.ok()) throw std::runtime_error("the pool: " + region.status().message());
    pool_ = std::move(region).value();
    view_.base = pool_.writable_data();
    group_holder_->tell(RankState::mapped);
    mark_up(config_.run_dir, name_);
  }

  [[noreturn]] void serve() {
    std::string bytes;
    RankStep step;
    serving_ = true;
    for (;;) {
      group_holder_->collective().broadcast(bytes, kMostStepBytes);
      step_since_ = now_ns();
      Status status = step.decode(bytes);
      if (status.ok()) status = model_.model->check(step.rows(), view_);
      if (!status.ok()) throw std::logic_error(status.message());
      model_.model->forward(step.rows(), view_);
      step_since_ = 0;
    }
  }

  const Config& config_;
  const CpuExecutor::Options& options_;
  const std::string name_;
  std::unique_ptr<RankGroup> group_holder_;
  std::atomic<RankGroup*> group_{nullptr};  // looked at by the watchdog's thread, too
  std::atomic<int> percent_{0};
  std::atomic<TimeNs> step_since_{0};  // 0: no step runs
  bool serving_ = false;               // steps may have written to the pool
  CpuModel model_;
  ShmRegion pool_;
  KvPoolView view_;
};

}  // namespace

int run_rank_process(const Config& config, const CpuExecutor::Options& options, SignalFd& signals) {
  return RankProcess(config, options).run(signals);
}

}  // namespace baton
