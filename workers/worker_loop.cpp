#include "workers/worker_loop.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <type_traits>
#include <utility>

#include "ipc/codec.h"
#include "ipc/shm_region.h"
#include "ipc/spin.h"
#include "ipc/spoiled.h"

namespace baton {

namespace {

/// Messages taken in one round, so that a flood cannot keep heartbeats and results from leaving.
constexpr int kMessagesARound = 64;
/// What the last messages need to leave before the process ends (the channel has linger 0).
constexpr auto kFarewell = std::chrono::milliseconds(50);

WorkerIdentity identity_of(const WorkerConfig& self, Incarnation incarnation, std::int32_t pid) {
  WorkerIdentity id;
  id.build = build_version();
  id.name = self.name;
  id.incarnation = incarnation;
  id.role = self.role;
  id.pid = pid;
  id.pid_start = pid_start_time(pid);
  id.device = self.device;
  return id;
}

WorkerCoreOptions core_options(const Config& config, const Executor& executor) {
  WorkerCoreOptions options;
  options.steps_at_once = static_cast<std::size_t>(executor.steps_at_once());
  options.drain = seconds_to_ns(config.self.drain_s);
  options.max_plans = config.scheduler.steps_in_flight + 2;
  options.tells_sums = config.self.check_pulls;
  return options;
}

StepThread::Options step_options(const Config& config) {
  const WorkerConfig& self = config.self;
  StepThread::Options options;
  options.max_context = config.max_context;
  options.fault_token = self.fault_token;
  options.step_delay_ms = self.step_delay_ms;
  options.sample_log = self.sample_log;
  options.step_log = self.step_log;
  return options;
}

/// Heartbeats come again anyway; losing anything else must be known.
template <typename M>
constexpr bool kMustArrive = !std::is_same_v<M, WorkerHeartbeat>;

}  // namespace

WorkerLoop::WorkerLoop(const Config& config, std::unique_ptr<ClientChannel> channel,
                       SignalFd& signals, Executor& executor, Incarnation incarnation)
    : config_(config),
      channel_(std::move(channel)),
      signals_(signals),
      executor_(listening(executor)),
      incarnation_(incarnation),
      alive_(config.run_dir, config.self.process_name()),
      trace_(config.run_dir, config.self.name),
      core_(identity_of(config.self, incarnation, getpid()), core_options(config, executor)),
      steps_(executor, waker_, step_options(config)) {}

int WorkerLoop::run() {
  if (!alive_.status().ok()) spdlog::warn("{}", alive_.status().message());
  fill_poller();
  now_ = now_ns();
  trace_.look(now_);
  input([&](WorkerActions& out) { core_.start(now_, out); });
  while (!exit_) {
    wait();
    trace_.look(now_);
    if (poller_.ready(waker_index_)) {
      waker_.clear();
      take_loss();
      take_step_events();
      take_handoff_events();
      take_grammar_states();
    }
    take_messages();
    look_after_lease();
    if (signals_.requested() && !core_.draining()) {
      spdlog::info("asked to stop: draining for at most {} s", config_.self.drain_s);
      input([&](WorkerActions& out) { core_.terminate(now_, out); });
    }
    if (core_.step_running() || core_.pulls().open() > 0) work_goes_on(now_);
    core_.loading(steps_.loading_percent());
    input([&](WorkerActions& out) { core_.tick(now_, out); });
    touch_alive();
    if (!up_ && core_.term() != 0) {
      up_ = true;
      mark_up(config_.run_dir, config_.self.process_name());
    }
  }
  executor_.leaving(exit_->code == kExitOk || exit_->code == kExitSuperseded);
  std::this_thread::sleep_for(kFarewell);
  if (exit_->code == kExitFault) mark_pool_spoiled(config_.run_dir, config_.self.name);
  if (!progress_handle_.empty()) unlink_region(progress_handle_);
  // A leased pool is the memory process's. Of any other, importers keep what they have mapped, and
  // a younger life of this name removes it by itself.
  if (exit_->code != kExitSuperseded && !lease_) {
    for (const std::string& handle : handles_) unlink_region(handle);
  }
  return exit_->code;
}

void WorkerLoop::fill_poller() {
  poller_.clear();
  channel_index_ = poller_.add(*channel_);
  waker_index_ = poller_.add_fd(waker_.fd());
  poller_.add_fd(signals_.fd());
  if (lease_) lease_index_ = poller_.add_fd(lease_.get());
}

/// The memory process says nothing more on the link of the lease: it hangs up when it dies.
void WorkerLoop::look_after_lease() {
  if (!lease_ || !poller_.ready(lease_index_)) return;
  spdlog::warn("the memory process has died: the KV pool ends with this process");
  lease_.reset();
  core_.lease_lost();
  fill_poller();
}

void WorkerLoop::wait() {
  constexpr TimeNs kAtMost = 500 * kMillisecond;  // NAME.alive is touched meanwhile
  poller_.wait(std::min(core_.next_tick() - now_ns(), kAtMost));
  now_ = now_ns();
}

/// One input of the core, then what it says. A step is started before messages are encoded: the
/// device shall not wait for them. What it lacks is told before it runs, since it tells its layers
/// as if it lacked nothing. A message that must arrive and cannot leave is one more input.
template <typename F>
void WorkerLoop::input(F&& f) {
  actions_.clear();
  f(actions_);
  while (!actions_.empty()) {
    running_actions_.swap(actions_);
    actions_.clear();
    tell_term();
    for (WorkerAction& action : running_actions_) {
      if (auto* start = std::get_if<worker_action::StartStep>(&action)) carry_out(*start);
      if (auto* lacks = std::get_if<worker_action::LackRows>(&action)) carry_out(*lacks);
    }
    for (WorkerAction& action : running_actions_) {
      const bool done = std::holds_alternative<worker_action::StartStep>(action) ||
                        std::holds_alternative<worker_action::LackRows>(action);
      if (!done) std::visit([this](auto& a) { carry_out(a); }, action);
    }
    running_actions_.clear();
    if (std::exchange(send_failed_, false)) core_.send_failed(now_, actions_);
  }
}

/// Before the first step of the term is started. Whoever waits for one of the last term hears at
/// once that it is over.
void WorkerLoop::tell_term() {
  if (!handoff_ || core_.term() == term_told_) return;
  term_told_ = core_.term();
  executor_.begin_term(term_told_);
}

void WorkerLoop::take_messages() {
  for (int i = 0; i < kMessagesARound && !exit_ && channel_->receive(bytes_); ++i) {
    auto message = decode_to_worker(bytes_);
    if (message.ok()) {
      input([&](WorkerActions& out) { core_.message(std::move(message).value(), now_, out); });
    } else if (message.status().code() == ErrorCode::unavailable) {
      exit_ = worker_action::Exit{kExitRefused, message.status().message()};
      spdlog::error("{}", exit_->reason);
    } else {
      input([&](WorkerActions& out) { core_.message_lost(message.status().message(), now_, out); });
    }
  }
}

void WorkerLoop::take_step_events() {
  steps_.take(step_events_);
  for (StepEvent& event : step_events_) {
    if (auto* done = std::get_if<step_event::StepFinished>(&event)) {
      step_since_ = --steps_out_ > 0 ? now_ : 0;
      if (trace_.on()) trace_.step(core_.term(), *done->step, done->began, done->ended);
      input([&](WorkerActions& out) { core_.step_finished(*done->output, now_, out); });
    } else if (auto* failed = std::get_if<step_event::StepFailed>(&event)) {
      take_loss();  // of a rank, which was told before this: then the pool has no fault
      if (!exit_) input([&](WorkerActions& out) { core_.step_failed(failed->reason, out); });
    } else if (auto* no_pool = std::get_if<step_event::PoolFailed>(&event)) {
      take_loss();
      if (exit_) continue;
      input([&](WorkerActions& out) { core_.pool_failed(no_pool->reason, no_pool->final, out); });
    } else if (auto* pool = std::get_if<step_event::PoolReady>(&event)) {
      const Hello& h = pool->hello;
      spdlog::info("KV pool: {} blocks of {} tokens, {} MiB", h.blocks, h.tokens_per_block,
                   h.block_bytes * h.blocks >> 20U);
      if (h.host_blocks > 0) {
        spdlog::info("its host part: {} blocks, {} MiB, {:.1f} us a block", h.host_blocks,
                     h.block_bytes * h.host_blocks >> 20U, h.host_block_us);
        handles_.push_back(h.host_handle);
      }
      handles_.push_back(h.ranks.at(0).handle);
      progress_handle_ = h.progress_handle;
      trace_.pool(h.allocation, h.blocks, now_);
      if (pool->lease) {
        spdlog::info("the memory process keeps it");
        lease_ = std::move(pool->lease);
        fill_poller();
      }
      KvHandoff::Options options;
      options.pull_delay_ms = config_.self.pull_delay_ms;
      options.unmappable = config_.self.fault_unmappable;
      options.wrong_every = config_.self.fault_wrong_block;
      handoff_ = std::make_unique<KvHandoff>(executor_.block_reader(), waker_, options);
      input([&](WorkerActions& out) { core_.pool_ready(std::move(pool->hello), now_, out); });
    }
  }
}

void WorkerLoop::take_handoff_events() {
  if (!handoff_) return;
  handoff_->take(handoff_events_);
  for (HandoffEvent& event : handoff_events_) {
    if (auto* done = std::get_if<handoff_event::PullFinished>(&event)) {
      if (trace_.on()) trace_.pull(done->pull_id, done->began, done->ended, done->failure);
      input([&](WorkerActions& out) {
        core_.pull_finished(done->pull_id, done->failure, done->duration_us, now_, out,
                            std::move(done->damaged));
      });
    } else if (auto* closed = std::get_if<handoff_event::MappingClosed>(&event)) {
      input([&](WorkerActions& out) { core_.mapping_closed(closed->allocation, now_, out); });
    } else if (auto* gone = std::get_if<handoff_event::ExporterGone>(&event)) {
      input([&](WorkerActions& out) { core_.exporter_gone(gone->allocation, now_, out); });
    }
  }
}

/// Before the step thread loads; it tells nothing before prepare_grammar(), when everything else is
/// there.
Executor& WorkerLoop::listening(Executor& executor) {
  executor.on_grammar([this](std::uint64_t key, bool ready) {
    {
      const std::lock_guard lock(told_mutex_);
      grammars_.emplace_back(key, ready);
    }
    waker_.wake();
  });
  executor.on_lost([this](const std::string& why) {
    {
      const std::lock_guard lock(told_mutex_);
      if (lost_.empty()) lost_ = why;
    }
    waker_.wake();
  });
  return executor;
}

void WorkerLoop::take_grammar_states() {
  std::vector<std::pair<std::uint64_t, bool>> states;
  {
    const std::lock_guard lock(told_mutex_);
    states.swap(grammars_);
  }
  for (const auto& [key, ready] : states) {
    input([&](WorkerActions& out) { core_.grammar_state(key, ready, out); });
  }
}

/// Looked at before the steps' events: a step that failed for this reason is no fault of the pool.
void WorkerLoop::take_loss() {
  std::string why;
  {
    const std::lock_guard lock(told_mutex_);
    why = lost_;
  }
  if (why.empty() || exit_) return;
  input([&](WorkerActions& out) { core_.rank_lost(why, out); });
}

void WorkerLoop::touch_alive() {
  if (step_since_ == 0 || now_ - step_since_ < kStuckStep) alive_.touch(now_);
}

// ---------------------------------------------------------------- actions

void WorkerLoop::carry_out(worker_action::Send& a) {
  std::visit(
      [this](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        encode(m, bytes_);
        if (channel_->send(bytes_) != SendResult::ok && kMustArrive<M>) send_failed_ = true;
      },
      a.message);
}

void WorkerLoop::carry_out(worker_action::AllocatePool& /*a*/) {
  PoolRequest request;
  request.run_dir = config_.run_dir;
  request.worker = config_.self.name;
  request.pid = getpid();
  request.pid_start = pid_start_time(request.pid);
  request.allocation = make_allocation_id(config_.self.name, incarnation_);
  request.incarnation = incarnation_;
  request.memory_socket = config_.memory_socket();
  request.pool_blocks = config_.self.pool_blocks;
  request.pool_mib = config_.self.pool_mib;
  request.host_pool_blocks = config_.self.host_pool_blocks;
  request.host_pool_mib = config_.self.host_pool_mib;
  request.tells_layers = config_.scheduler.elastic == Elastic::automatic;
  steps_.allocate(std::move(request));
}

void WorkerLoop::carry_out(worker_action::StartStep& a) {
  if (steps_out_++ == 0) step_since_ = now_;
  if (trace_.on()) trace_.step_given(core_.term(), *a.step);
  steps_.run(a.step);
}

void WorkerLoop::carry_out(worker_action::LackRows& a) { executor_.lacks_rows(a.term, a.step); }

void WorkerLoop::carry_out(worker_action::StartPull& a) {
  if (trace_.on()) trace_.pull_given(a.pull);
  handoff_->pull(std::move(a.pull));
}

void WorkerLoop::carry_out(worker_action::CloseMapping& a) { handoff_->close(a.allocation); }

void WorkerLoop::carry_out(worker_action::PrepareGrammar& a) {
  if (executor_.prepare_grammar(a.key, a.kind, a.text, a.awaited)) return;
  core_.grammar_state(a.key, /*ready=*/true, actions_);
}

void WorkerLoop::carry_out(worker_action::Exit& a) {
  spdlog::log(a.code == kExitOk ? spdlog::level::info : spdlog::level::err, "leaving ({}): {}",
              a.code, a.reason);
  if (a.code != kExitOk) leave_reason(config_.run_dir, config_.self.process_name(), a.reason);
  exit_ = std::move(a);
}

void WorkerLoop::carry_out(worker_action::Log& a) {
  using Level = worker_action::Log::Level;
  const auto level = a.level == Level::info      ? spdlog::level::info
                     : a.level == Level::warning ? spdlog::level::warn
                                                 : spdlog::level::err;
  spdlog::log(level, "{}", a.text);
}

}  // namespace baton
