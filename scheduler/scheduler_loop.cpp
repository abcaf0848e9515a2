#include "scheduler/scheduler_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "ipc/codec.h"
#include "ipc/spin.h"
#include "scheduler/apply/apply_event.h"
#include "scheduler/plan/plan_step.h"

namespace baton {

namespace {

constexpr TimeNs kTickEvery = 20 * kMillisecond;
/// Longer than any turn should take: the scheduler itself was stopped, and blames nobody for it.
constexpr TimeNs kGap = 500 * kMillisecond;
/// Messages taken from one channel before the other one, and planning, get their turn.
constexpr int kBurst = 1024;
constexpr std::size_t kRecentErrors = 200;

}  // namespace

SchedulerLoop::SchedulerLoop(const Config& config, ServerChannel& frontends, ServerChannel& workers)
    : frontends_(frontends),
      workers_(workers),
      admin_(*this),
      trace_(config.scheduler.event_log),
      timeline_(config.run_dir, config.scheduler_name(), state_),
      alive_(config.run_dir, config.scheduler_name()),
      started_(now_ns()) {
  state_.epoch = new_incarnation();
  state_.started = started_;
  state_.build = build_version();
  state_.settings = make_settings(config.scheduler);
  last_turn_ = started_;
}

void SchedulerLoop::run(SignalFd& signals) {
  while (!signals.requested()) {
    poller_.clear();
    poller_.add(workers_);
    poller_.add(frontends_);
    poller_.add_fd(signals.fd());
    for (Link& link : links_) {
      if (link.pidfd) link.polled = poller_.add_fd(link.pidfd.get());
    }
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
  for (const LinkId link : std::exchange(failed_sends_, {})) apply_now(SendFailed{link}, now);
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
  const TimeNs late = now - last_turn_;
  apply_now(Tick{late > kGap ? late : 0}, now);
  last_turn_ = now;
  next_tick_ = now + kTickEvery;
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
    const LinkId link = link_of(routing_id_, Kind::worker);
    std::visit([&](const auto& m) { traffic_.count(m, bytes_.size()); }, message);
    timeline_.heard();
    if (const auto* hello = std::get_if<Register>(&message)) {
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
    const LinkId link = link_of(routing_id_, Kind::frontend);
    std::visit([&](const auto& m) { traffic_.count(m, bytes_.size()); }, message);
    timeline_.heard();
    if (const auto* hello = std::get_if<FrontendHello>(&message)) {
      watch_pid(link, hello->pid, hello->pid_start);
    }
    apply_now(FromFrontend{link, std::move(message)}, now);
  }
  return true;
}

LinkId SchedulerLoop::link_of(const std::string& routing_id, Kind kind) {
  const auto [it, fresh] = link_ids_.try_emplace(routing_id, 0);
  if (fresh) {
    it->second = static_cast<LinkId>(links_.size());
    links_.push_back(Link{routing_id, kind, UniqueFd(), kNotPolled});
  }
  return it->second;
}

void SchedulerLoop::watch_pid(LinkId link, std::int32_t pid, std::uint64_t start) {
  // A pid of another namespace cannot be watched: then silence and the next Register must do.
  if (links_[link].pidfd || pid_start_time(pid) != start) return;
  links_[link].pidfd = UniqueFd(open_pidfd(pid));
  if (!process_alive(pid, start)) links_[link].pidfd.reset();
}

void SchedulerLoop::watch_processes(TimeNs now) {
  for (LinkId link = 1; link < links_.size(); ++link) {
    Link& entry = links_[link];
    if (!entry.pidfd || entry.polled == kNotPolled || !poller_.ready(entry.polled)) continue;
    entry.pidfd.reset();
    if (timeline_.on()) timeline_.lost(name_of(link), now);
    apply_now(ProcessGone{link}, now);
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
  if (workers_.send(links_[link].routing_id, encoded_) != SendResult::ok)
    failed_sends_.push_back(link);
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
  // A message that does not fit its queue is not kept: the front end's heartbeat asks again.
  (void)frontends_.send(links_[link].routing_id, encoded_);
}

void SchedulerLoop::flush() {
  for (auto& [link, message] : out_.to_workers) send_to_worker(link, message);
  out_.to_workers.clear();
  for (FrontendIndex i = 0; i < out_.events.size(); ++i) {
    Events& events = out_.events[i];
    if (Outbox::is_empty(events)) continue;
    if (i < state_.frontends.size() && state_.frontends[i].reachable()) {
      events.epoch = state_.epoch;
      encode(events, encoded_);
      traffic_.count(events, encoded_.size());
      if (trace_.on()) trace_.tokens(events);
      (void)frontends_.send(links_[state_.frontends[i].link].routing_id, encoded_);
    }
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
