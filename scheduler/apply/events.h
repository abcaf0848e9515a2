// What happens to the scheduler, and what it says in return. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/messages.h"
#include "scheduler/state/cluster_state.h"

namespace baton {

struct FromFrontend {
  LinkId link = kNoLink;
  FrontendMessage message;
};
struct FromWorker {
  LinkId link = kNoLink;
  WorkerMessage message;
};
/// The peer's process has ended (seen by its pidfd).
struct ProcessGone {
  LinkId link = kNoLink;
};
/// A message to the peer could not be queued: for a worker this ends its term.
struct SendFailed {
  LinkId link = kNoLink;
};
/// Time passes. `gap`: time in which the scheduler itself did not run; nobody is blamed for it.
struct Tick {
  TimeNs gap = 0;
};
struct SetDraining {
  std::string worker;
  bool draining = false;
};
/// By an operator: the worker keeps `role`. Without one, `roles: auto` has it again.
struct SetRole {
  std::string worker;
  std::optional<Role> role;
};
struct AdminCancel {
  RequestId request;
};

using Event = std::variant<FromFrontend, FromWorker, ProcessGone, SendFailed, Tick, SetDraining,
                           SetRole, AdminCancel>;

/// What the shell must send and log. `events[i]` collects the tokens of one turn for front end i:
/// one message per front end and step. Buffers are reused from turn to turn.
struct Outbox {
  enum class Level : std::uint8_t { info, warning };
  std::vector<std::pair<LinkId, ToWorker>> to_workers;
  std::vector<std::pair<LinkId, ToFrontend>> to_frontends;
  std::vector<Events> events;
  std::vector<std::pair<Level, std::string>> log;

  Events& events_for(FrontendIndex frontend) {
    if (events.size() <= frontend) events.resize(frontend + 1);
    return events[frontend];
  }
  /// Empties what has been sent; its room stays for the next step.
  static void empty(Events& sent) {
    sent.counters.clear();
    sent.attempts.clear();
    sent.first_index.clear();
    sent.counts.clear();
    sent.tokens.clear();
    sent.terminals.clear();
    sent.logprobs.clear();
    sent.prompt_logprobs.clear();
    sent.begun_counters.clear();
    sent.begun_cached.clear();
    sent.begun_at.clear();
    sent.timings.clear();
    sent.progress_counters.clear();
    sent.progress_attempts.clear();
    sent.progress_done.clear();
    sent.progress_cached.clear();
    sent.progress_took.clear();
  }
  static bool is_empty(const Events& events) {
    return events.counters.empty() && events.terminals.empty() && events.progress_counters.empty();
  }
  void info(std::string line) { log.emplace_back(Level::info, std::move(line)); }
  void warn(std::string line) { log.emplace_back(Level::warning, std::move(line)); }
};

}  // namespace baton
