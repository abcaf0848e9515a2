#include "scheduler/scheduler_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>

#include "ipc/codec.h"
#include "ipc/spin.h"
#include "ipc/spoiled.h"
#include "scheduler/apply/apply_event.h"
#include "scheduler/apply/membership.h"
#include "scheduler/plan/plan_step.h"

namespace baton {

namespace {

constexpr TimeNs kTickEvery = 20 * kMillisecond;
constexpr TimeNs kForgetEvery = 10 * kSecond;
/// Longer than any turn should take: the scheduler itself was stopped, and blames nobody for it.
constexpr TimeNs kGap = 500 * kMillisecond;
/// Messages taken from one channel before the other one, and planning, get their turn.
constexpr int kBurst = 1024;
constexpr std::size_t kRecentErrors = 200;

/// Whose part of the message is the largest.
std::uint64_t largest_request(const State& state, const ToWorker& message) {
  SequenceId largest = 0;
  if (const auto* plan = std::get_if<StepPlan>(&message)) {
    std::size_t most = 0;
    for (const AddSequence& add : plan->add) {
      if (bytes_of(add) <= most) continue;
      most = bytes_of(add);
      largest = add.sequence;
    }
  } else if (const auto* pull = std::get_if<Pull>(&message)) {
    const OpenPull* open = state.pulls.find(pull->pull_id);
    return open != nullptr ? open->request : 0;
  }
  const Sequence* sequence = state.sequences.find(largest);
  return sequence != nullptr ? sequence->request : 0;
}

}  // namespace

SchedulerLoop::SchedulerLoop(const Config& config, ServerChannel& frontends, ServerChannel& workers)
    : frontends_(frontends),
      workers_(workers),
      admin_(*this),
      trace_(config.scheduler.event_log),
      timeline_(config.run_dir, config.scheduler_name(), state_),
      alive_(config.run_dir, config.scheduler_name()),
      run_dir_(config.run_dir),
      started_(now_ns()) {
  state_.epoch = new_incarnation(config.run_dir);
  state_.started = started_;
  state_.build = build_version();
  state_.settings = make_settings(config.scheduler);
  std::random_device random;
  for (std::uint8_t& byte : state_.grammar_secret) byte = static_cast<std::uint8_t>(random());
  last_turn_ = started_;
}

void SchedulerLoop::run(SignalFd& signals) {
  while (!signals.requested()) {
    poller_.clear();
    poller_.add(workers_);
    poller_.add(frontends_);
    poller_.add_fd(signals.fd());
    links_.each([this](LinkId /*id*/, Link& link) {
      Watched& process = link.extra;
      process.polled = process.pidfd ? poller_.add_fd(process.pidfd.get()) : Watched::kNotPolled;
    });
    admin_.add_to(poller_);
    const bool unfinished = !injected_.empty() || !failed_sends_.empty();
    poller_.wait(unfinished ? 0 : next_tick_ - now_ns());
    turn();
  }
  spdlog::info("stopping; front ends keep their streams open for the next scheduler");
}

void SchedulerLoop::turn() {
  const TimeNs now = now_ns();
  alive_.touch(now);
  timeline_.begin_turn(now);
  // Everything that waits in the sockets is heard before anybody is judged by the clock.
  const bool more_workers = receive_workers(now);
  const bool more_frontends = receive_frontends(now);
  watch_processes(now);
  if (!failed_sends_.empty()) look_for_faults(now);
  for (Event& event : std::exchange(failed_sends_, {})) apply_now(std::move(event), now);
  admin_.serve(now);
  for (Event& event : std::exchange(injected_, {})) apply_now(std::move(event), now);
  const bool heard_all = !more_workers && !more_frontends;
  if (now >= next_tick_ && (heard_all || now - next_tick_ > kSecond)) tick(now);
  plan(state_, now, out_);
  for (const Worker& w : state_.workers) {
    if (w.peer.work.any()) work_goes_on(now);
  }
  flush();
  if (kv_publisher_) kv_publisher_->publish(state_, wall_ns());
  log_lines();
  timeline_.end_turn(now);
}

void SchedulerLoop::tick(TimeNs now) {
  look_for_faults(now);  // before a silent worker's term ends and its pool counts as kept
  const TimeNs late = now - last_turn_;
  apply_now(Tick{late > kGap ? late : 0}, now);
  last_turn_ = now;
  next_tick_ = now + kTickEvery;
  if (now < next_forgetting_) return;
  next_forgetting_ = now + kForgetEvery;
  links_.forget_silent(now, [this](LinkId link) { return forget_link(state_, link); });
}

void SchedulerLoop::apply_now(Event&& event, TimeNs now) {
  apply(state_, std::move(event), now, out_);
}

bool SchedulerLoop::receive_workers(TimeNs now) {
  for (int i = 0; i < kBurst; ++i) {
    if (!workers_.receive(routing_id_, bytes_)) return false;
    Result<WorkerMessage> decoded = decode_worker_message(bytes_);
    if (!decoded.ok()) {
      ++undecodable_;
      out_.warn("message of a worker dropped: " + decoded.status().message());
      continue;
    }
    WorkerMessage& message = decoded.value();
    const LinkId link = links_.heard(routing_id_, now);
    std::visit([&](const auto& m) { traffic_.count(m, bytes_.size()); }, message);
    timeline_.heard();
    if (const auto* hello = std::get_if<Register>(&message)) {
      look_for_faults(now);  // of the process before, whose death nothing may have told
      watch_pid(link, hello->pid, hello->pid_start);
    } else if (const auto* tables = std::get_if<Tables>(&message)) {
      const auto it = state_.worker_links.find(link);
      if (it != state_.worker_links.end()) tables_.emplace_back(it->second, *tables);
    } else if (const auto* pulled = std::get_if<PullDone>(&message)) {
      pull_watch_.ended(state_, pulled->pull_id, now);
    }
    if (trace_.on()) {
      if (const auto* result = std::get_if<StepResult>(&message)) {
        trace_.result(worker_name(link), *result);
      } else if (const auto* done = std::get_if<PullDone>(&message)) {
        trace_.pull_done(worker_name(link), *done);
      } else if (const auto* failed = std::get_if<PullFailed>(&message)) {
        trace_.pull_failed(worker_name(link), *failed);
      }
    }
    apply_now(FromWorker{link, std::move(message)}, now);
  }
  return true;
}

bool SchedulerLoop::receive_frontends(TimeNs now) {
  for (int i = 0; i < kBurst; ++i) {
    if (!frontends_.receive(routing_id_, bytes_)) return false;
    Result<FrontendMessage> decoded = decode_frontend_message(bytes_);
    if (!decoded.ok()) {
      ++undecodable_;
      out_.warn("message of a front end dropped: " + decoded.status().message());
      continue;
    }
    FrontendMessage& message = decoded.value();
    const LinkId link = links_.heard(routing_id_, now);
    std::visit([&](const auto& m) { traffic_.count(m, bytes_.size()); }, message);
    timeline_.heard();
    if (const auto* hello = std::get_if<FrontendHello>(&message)) {
      watch_pid(link, hello->pid, hello->pid_start);
    }
    apply_now(FromFrontend{link, std::move(message)}, now);
  }
  return true;
}

void SchedulerLoop::watch_pid(LinkId link, std::int32_t pid, std::uint64_t start) {
  Link* entry = links_.find(link);
  // A pid of another namespace cannot be watched: then silence and the next Register must do.
  if (entry == nullptr || entry->extra.pidfd || pid_start_time(pid) != start) return;
  entry->extra.pidfd = UniqueFd(open_pidfd(pid));
  if (!process_alive(pid, start)) entry->extra.pidfd.reset();
}

void SchedulerLoop::watch_processes(TimeNs now) {
  links_.each([&](LinkId link, Link& entry) {
    Watched& process = entry.extra;
    if (!process.pidfd || process.polled == Watched::kNotPolled || !poller_.ready(process.polled))
      return;
    process.pidfd.reset();
    look_for_faults(now);
    if (timeline_.on()) timeline_.lost(name_of(link), now);
    apply_now(ProcessGone{link}, now);
  });
}

/// A mark is there before its process has ended, so before anything else shows the death.
void SchedulerLoop::look_for_faults(TimeNs now) {
  for (const Worker& w : state_.workers) {
    const Register& identity = w.peer.identity;
    if (!w.store.offer.leased || w.store.faulted || identity.pid == 0) continue;
    if (!has_spoiled_mark(run_dir_, identity.name, identity.pid, identity.pid_start)) continue;
    apply_now(PoolFaulted{w.peer.link}, now);
  }
}

const std::string& SchedulerLoop::worker_name(LinkId link) const {
  static const std::string kUnknown = "?";
  const auto it = state_.worker_links.find(link);
  return it == state_.worker_links.end() ? kUnknown : state_.workers[it->second].name();
}

std::string SchedulerLoop::name_of(LinkId link) const {
  const auto it = state_.frontend_links.find(link);
  return it == state_.frontend_links.end() ? worker_name(link)
                                           : state_.frontends[it->second].identity.name;
}

void SchedulerLoop::send_to_worker(LinkId link, ToWorker& message) {
  std::visit(
      [&](const auto& m) {
        encode(m, encoded_);
        traffic_.count(m, encoded_.size());
      },
      message);
  const TimeNs sent = trace_.on() || timeline_.on() ? now_ns() : 0;
  const Link* to = links_.find(link);
  if (to == nullptr) return;
  switch (workers_.send(to->routing_id, encoded_)) {
    case SendResult::ok:
      break;
    case SendResult::again:
    case SendResult::unreachable:
      failed_sends_.emplace_back(SendFailed{link});
      break;
    case SendResult::too_large:
      failed_sends_.emplace_back(
          MessageTooLarge{link, encoded_.size(), largest_request(state_, message)});
      break;
  }
  if (timeline_.on() && sent != 0) {
    if (const auto* plan = std::get_if<StepPlan>(&message)) {
      timeline_.plan(worker_name(link), *plan, sent);
    } else if (const auto* pull = std::get_if<Pull>(&message)) {
      timeline_.pull(worker_name(link), *pull, sent);
    }
  }
  if (!trace_.on()) return;
  if (const auto* plan = std::get_if<StepPlan>(&message)) {
    trace_.plan(state_, worker_name(link), *plan, sent);
  } else if (const auto* pull = std::get_if<Pull>(&message)) {
    trace_.pull(state_, worker_name(link), *pull, sent);
  }
}

void SchedulerLoop::send_to_frontend(LinkId link, ToFrontend& message) {
  std::visit(
      [&](const auto& m) {
        encode(m, encoded_);
        traffic_.count(m, encoded_.size());
      },
      message);
  deliver(link);
}

/// A message that does not fit its queue is not kept: the front end's heartbeat asks again.
void SchedulerLoop::deliver(LinkId link) {
  const Link* to = links_.find(link);
  if (to == nullptr || frontends_.send(to->routing_id, encoded_) != SendResult::too_large) return;
  out_.warn(name_of(link) + ": a message of " + std::to_string(encoded_.size()) +
            " bytes was not sent; at most " + std::to_string(kMaxMessageBytes));
}

void SchedulerLoop::send_events(FrontendIndex index, Events& events) {
  if (index >= state_.frontends.size() || !state_.frontends[index].reachable()) return;
  events.epoch = state_.epoch;
  encode(events, encoded_);
  traffic_.count(events, encoded_.size());
  if (trace_.on()) trace_.tokens(events);
  deliver(state_.frontends[index].link);
}

void SchedulerLoop::flush() {
  for (auto& [link, message] : out_.to_workers) send_to_worker(link, message);
  out_.to_workers.clear();
  for (auto& [index, events] : out_.full) send_events(index, events);
  out_.full.clear();
  for (FrontendIndex i = 0; i < out_.events.size(); ++i) {
    Events& events = out_.events[i];
    if (Outbox::is_empty(events)) continue;
    send_events(i, events);
    Outbox::empty(events);
  }
  for (auto& [link, message] : out_.to_frontends) send_to_frontend(link, message);
  out_.to_frontends.clear();
}

void SchedulerLoop::log_lines() {
  for (const auto& [level, line] : out_.log) {
    if (level == Outbox::Level::info) {
      spdlog::info("{}", line);
      continue;
    }
    spdlog::warn("{}", line);
    recent_errors_.push_back(std::to_string(wall_ns() / kSecond) + " " + line);
    if (recent_errors_.size() > kRecentErrors) recent_errors_.pop_front();
  }
  out_.log.clear();
}

AdminStats SchedulerLoop::stats() const {
  AdminStats stats;
  stats.uptime = now_ns() - started_;
  stats.traffic = traffic_.by_type();
  stats.errors.assign(recent_errors_.begin(), recent_errors_.end());
  stats.undecodable = undecodable_;
  return stats;
}

void SchedulerLoop::request_tables() {
  tables_.clear();
  for (const Worker& w : state_.workers) {
    if (w.ready()) out_.to_workers.emplace_back(w.peer.link, AuditTables{w.peer.term});
  }
}

}  // namespace baton
