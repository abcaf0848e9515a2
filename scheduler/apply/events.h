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
#include "scheduler/state/message_size.h"

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
/// The worker's process dies, or has died, of a fault: it may have written anywhere in its pool.
/// Told before the ProcessGone of that death, or the Register of a next process, where it can be.
struct PoolFaulted {
  LinkId link = kNoLink;
};
/// A message to the peer could not be queued: for a worker this ends its term.
struct SendFailed {
  LinkId link = kNoLink;
};
/// A message to the peer is larger than one may be, which says nothing of the link: it ends the
/// request that takes most of it, and of a worker the term, whose next step is not the one that is
/// awaited.
struct MessageTooLarge {
  LinkId link = kNoLink;
  std::size_t bytes = 0;
  std::uint64_t request = 0;  // slab id; 0: nobody's
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

using Event = std::variant<FromFrontend, FromWorker, ProcessGone, PoolFaulted, SendFailed,
                           MessageTooLarge, Tick, SetDraining, SetRole, AdminCancel>;

/// What the shell must send and log. `events[i]` collects the tokens of one turn for front end i:
/// one message per front end and step, or several where it would be too large; those that are full
/// go first, in their order. Buffers are reused from turn to turn.
struct Outbox {
  enum class Level : std::uint8_t { info, warning };
  /// Full messages of one turn, of all front ends. Beyond, nothing is added that its front end asks
  /// for again when it misses it.
  static constexpr std::size_t kMostFull = 4;
  static constexpr std::size_t kTokensReckoned = 64;
  std::vector<std::pair<LinkId, ToWorker>> to_workers;
  std::vector<std::pair<LinkId, ToFrontend>> to_frontends;
  std::vector<std::pair<FrontendIndex, Events>> full;
  std::vector<Events> events;
  std::size_t message_bytes = kMaxMessageBytes;  // Settings::message_bytes
  std::vector<std::pair<Level, std::string>> log;

  Events& events_for(FrontendIndex frontend) {
    if (events.size() <= frontend) events.resize(frontend + 1);
    return events[frontend];
  }
  /// The same, for one more row or terminal, which takes no more than half of a message.
  Events& begin_in(FrontendIndex frontend) {
    Events& current = events_for(frontend);
    if (bytes_of(current) >= message_bytes / 2) close(frontend);
    return current;
  }
  /// The same, for a row of one token alone: reckoned once for some of them.
  Events& begin_token_in(FrontendIndex frontend) {
    Events& current = events_for(frontend);
    if (current.counters.size() % kTokensReckoned != 0) [[likely]]
      return current;
    return begin_in(frontend);
  }
  /// What was to be told to the front end is dropped.
  void drop_events(FrontendIndex frontend) {
    if (frontend < events.size()) events[frontend] = Events{};
    std::erase_if(full, [&](const auto& entry) { return entry.first == frontend; });
  }
  void close(FrontendIndex frontend) {
    full.emplace_back(frontend, std::exchange(events[frontend], Events{}));
  }
  bool has_room() const { return full.size() < kMostFull; }
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
