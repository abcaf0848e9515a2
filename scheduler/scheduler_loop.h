// The scheduler's thin shell: receive, apply, plan, send. One thread; no rules live here.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/config.h"
#include "ipc/channel.h"
#include "ipc/process.h"
#include "scheduler/admin/admin_server.h"
#include "scheduler/admin/event_trace.h"
#include "scheduler/admin/kv_publisher.h"
#include "scheduler/admin/pull_watch.h"
#include "scheduler/admin/scheduler_trace.h"
#include "scheduler/admin/traffic.h"
#include "scheduler/apply/events.h"
#include "scheduler/link_table.h"

namespace baton {

class SchedulerLoop : public AdminBackend {
 public:
  /// Both channels must outlive the loop.
  SchedulerLoop(const Config& config, ServerChannel& frontends, ServerChannel& workers);

  /// Until SIGTERM or SIGINT. Open streams survive: front ends submit again to the next scheduler.
  void run(SignalFd& signals);
  /// Opens the admin socket.
  Status listen_admin(const std::string& path) { return admin_.listen(path); }

  /// What the pools hold is published there from now on.
  void publish_caches(KvPublisher publisher) { kv_publisher_ = std::move(publisher); }

  // AdminBackend
  const State& state() const override { return state_; }
  AdminStats stats() const override;
  const PullWatch* watch_pulls(TimeNs now) override {
    pull_watch_.look(now);
    return &pull_watch_;
  }
  void inject(Event event) override { injected_.push_back(std::move(event)); }
  void request_tables() override;
  const std::vector<std::pair<WorkerIndex, Tables>>& tables() const override { return tables_; }

 private:
  /// The process at the other end of a link.
  struct Watched {
    static constexpr Poller::Index kNotPolled = ~Poller::Index{0};
    UniqueFd pidfd;
    Poller::Index polled = kNotPolled;  // in this round
  };
  using Link = LinkTable<Watched>::Link;

  void turn();
  bool receive_workers(TimeNs now);
  bool receive_frontends(TimeNs now);
  void watch_processes(TimeNs now);
  void look_for_faults(TimeNs now);
  void tick(TimeNs now);
  void flush();
  void send_to_worker(LinkId link, ToWorker& message);
  void send_to_frontend(LinkId link, ToFrontend& message);
  void send_events(FrontendIndex index, Events& events);
  /// encoded_, to a front end.
  void deliver(LinkId link);
  void log_lines();
  void watch_pid(LinkId link, std::int32_t pid, std::uint64_t start);
  const std::string& worker_name(LinkId link) const;
  std::string name_of(LinkId link) const;
  void apply_now(Event&& event, TimeNs now);

  ServerChannel& frontends_;
  ServerChannel& workers_;
  State state_;
  Outbox out_;
  AdminServer admin_;
  PullWatch pull_watch_;
  EventTrace trace_;
  SchedulerTrace timeline_;
  std::optional<KvPublisher> kv_publisher_;
  Traffic traffic_;
  AliveFile alive_;
  const std::string run_dir_;
  Poller poller_;
  LinkTable<Watched> links_;
  std::vector<Event> injected_;
  std::vector<Event> failed_sends_;
  std::vector<std::pair<WorkerIndex, Tables>> tables_;
  std::deque<std::string> recent_errors_;
  std::string routing_id_;
  std::string bytes_;
  std::string encoded_;
  TimeNs started_ = 0;
  TimeNs last_turn_ = 0;
  TimeNs next_tick_ = 0;
  TimeNs next_forgetting_ = 0;
  std::uint64_t undecodable_ = 0;
};

}  // namespace baton
