// The scheduler's shell in virtual time: hears everything that waits, plans, sends; see
// scheduler/scheduler_loop.cpp for the real one.
#include <algorithm>
#include <utility>

#include "scheduler/state/audit.h"
#include "tests/sim/describe.h"
#include "tests/sim/world.h"

namespace baton::sim {

namespace {
/// Longer than any turn takes: the scheduler itself was stopped.
constexpr TimeNs kGap = 500 * kMillisecond;

/// Whose result or answer this is, if it is of an ended term: it may change nothing.
const Worker* stale_sender(const State& state, const Event& event) {
  const auto* from = std::get_if<FromWorker>(&event);
  if (from == nullptr) return nullptr;
  Term term = 0;
  if (const auto* result = std::get_if<StepResult>(&from->message)) term = result->term;
  if (const auto* done = std::get_if<PullDone>(&from->message)) term = done->term;
  if (const auto* failed = std::get_if<PullFailed>(&from->message)) term = failed->term;
  const auto it = state.worker_links.find(from->link);
  if (term == 0 || it == state.worker_links.end()) return nullptr;
  const Worker& w = state.workers[it->second];
  return w.ready() && w.peer.term == term ? nullptr : &w;
}
}  // namespace

SimScheduler::SimScheduler(World& world) : Process(world, "scheduler"), shares_(world.scenario()) {
  state.epoch = static_cast<Epoch>(world.now());
  state.started = world.now();
  state.build = "sim";
  state.settings = world.scenario().settings;
  state.settings.kv_events = true;
  last_tick_ = world.now();
  next_tick_ = world.now();
}

void SimScheduler::receive(LinkId link, ToScheduler message) {
  if (auto* m = std::get_if<WorkerMessage>(&message)) {
    from_workers_.push_back(FromWorker{link, std::move(*m)});
  } else {
    from_frontends_.push_back(FromFrontend{link, std::move(std::get<FrontendMessage>(message))});
  }
  want_turn();
}

void SimScheduler::inject(Event event) {
  injected_.push_back(std::move(event));
  want_turn();
}

/// Messages that arrive shortly after one another are heard in one turn.
void SimScheduler::want_turn() {
  if (turn_wanted_) return;
  turn_wanted_ = true;
  const TimeNs pause = world_.random().permille(300) ? 2 * kMillisecond : 20'000;
  world_.after(pause, What::scheduler_turn, id);
}

void SimScheduler::happen(What what, std::uint64_t arg) {
  switch (what) {
    case What::scheduler_turn:
      turn_wanted_ = false;
      turn();
      break;
    case What::scheduler_tick:
      turn();
      break;
    case What::process_gone:
      injected_.emplace_back(ProcessGone{static_cast<LinkId>(arg)});
      want_turn();
      break;
    default:
      world_.fail("scheduler: unexpected event");
  }
}

void SimScheduler::turn() {
  for (Event& event : std::exchange(from_workers_, {})) apply_now(std::move(event));
  for (Event& event : std::exchange(from_frontends_, {})) {
    if (strikes_by_submit(event)) return;
    apply_now(std::move(event));
  }
  if (!failed_sends_.empty() || !injected_.empty()) look_for_faults();
  for (const LinkId link : std::exchange(failed_sends_, {})) apply_now(SendFailed{link});
  for (Event& event : std::exchange(injected_, {})) apply_now(std::move(event));
  if (world_.now() >= next_tick_) {
    look_for_faults();
    const TimeNs late = world_.now() - last_tick_;
    apply_now(Tick{late > kGap ? late : 0});
    last_tick_ = world_.now();
    next_tick_ = world_.now() + world_.scenario().tick;
    world_.at(next_tick_, What::scheduler_tick, id);
  }
  const std::size_t told = out_.to_workers.size();
  plan(state, world_.now(), out_);
  check_faulted(told);
  flush();
  if (!alive) return;
  check_audit("plan");
  check_calm();
  std::string shares = shares_.check(state);
  if (shares.empty()) shares = shares_.check_returns(state);
  if (!shares.empty()) world_.fail(shares);
}

/// Some requests kill the scheduler that takes them.
bool SimScheduler::strikes_by_submit(const Event& event) {
  if (world_.scenario().load.strike != Strike::scheduler) return false;
  const auto* from = std::get_if<FromFrontend>(&event);
  const auto* submit = from == nullptr ? nullptr : std::get_if<Submit>(&from->message);
  if (submit == nullptr || submit->epoch != state.epoch) return false;
  RequestSpec& spec = world_.spec_of(submit->sampling.seed);
  if (spec.strike != Strike::scheduler || spec.strike_every != 1) return false;
  world_.strike(spec, *this);
  return true;
}

/// ... and others the one that has told of a token of theirs.
bool SimScheduler::strikes_by_tokens(FrontendIndex frontend, const Events& events) {
  if (world_.scenario().load.strike != Strike::scheduler) return false;
  for (const auto& process : world_.frontends()) {
    if (process->alive != state.frontends[frontend].alive ||
        process->incarnation() != state.frontends[frontend].identity.incarnation)
      continue;
    for (std::size_t i = 0; i < events.counters.size(); ++i) {
      const auto client = process->clients.find(events.counters[i]);
      if (client == process->clients.end() || events.counts[i] == 0) continue;
      RequestSpec& spec = world_.spec_of(kFirstSeed + client->second);
      if (spec.strike != Strike::scheduler || spec.strike_every == 1) continue;
      world_.strike(spec, *this);
      return true;
    }
  }
  return false;
}

/// What an event of a front end may change, and what there was before it.
struct SimScheduler::Before {
  enum class Kind : std::uint8_t {
    other,
    replaced,  // of a process that has been replaced: nothing
    gone,      // of one that may have a successor: nothing is lost by it
    hello,     // of a successor
  };
  Kind kind = Kind::other;
  const SimFrontend* sender = nullptr;
  std::size_t requests = 0;
  std::uint64_t changes = 0;
  bool taken_over = false;
  TimeNs away = 0;
};

namespace {

std::uint64_t changes(const State& state) {
  const Counters& c = state.counters;
  return c.accepted + c.refused + c.finished + c.errors + c.cancelled;
}

const Frontend* entry_of(const State& state, const SimFrontend& process) {
  for (const Frontend& entry : state.frontends) {
    if (entry.alive && entry.identity.incarnation == process.incarnation()) return &entry;
  }
  return nullptr;
}

}  // namespace

SimScheduler::Before SimScheduler::look(const Event& event) {
  Before before;
  if (!world_.scenario().successors) return before;
  const auto* from = std::get_if<FromFrontend>(&event);
  const auto* gone = std::get_if<ProcessGone>(&event);
  if (from == nullptr && gone == nullptr) return before;
  const LinkId link = from != nullptr ? from->link : gone->link;
  before.sender = dynamic_cast<const SimFrontend*>(&world_.process(world_.network().peer_of(link)));
  if (before.sender == nullptr) return before;
  const SimFrontend& sender = *before.sender;
  const Frontend* entry = entry_of(state, sender);
  before.requests = state.requests.size();
  before.changes = changes(state);
  if (entry != nullptr && entry->identity.generation > sender.generation()) {
    before.kind = Before::Kind::replaced;
    before.away = entry->away;
  } else if (gone != nullptr) {
    const bool waits = state.settings.successor_wait != 0 && entry != nullptr;
    if (waits) before.kind = Before::Kind::gone;
  } else if (std::holds_alternative<FrontendHello>(from->message) && sender.generation() != 0) {
    before.kind = Before::Kind::hello;
    before.taken_over = entry != nullptr && entry->identity.generation == sender.generation();
  }
  return before;
}

void SimScheduler::check_succession(const Before& before, const Event& event) {
  const bool same = before.requests == state.requests.size() && before.changes == changes(state);
  const auto expect = [&](bool right, const std::string& what) {
    if (!right) world_.fail(what + " (" + before.sender->label + ")");
  };
  switch (before.kind) {
    case Before::Kind::other:
      return;
    case Before::Kind::replaced: {
      const Frontend* entry = entry_of(state, *before.sender);
      expect(same && entry != nullptr && entry->away == before.away &&
                 entry->identity.generation > before.sender->generation(),
             "a front end that was replaced is still listened to");
      return;
    }
    case Before::Kind::gone:
      expect(same, "requests end with their front end, though a successor may come");
      return;
    case Before::Kind::hello: {
      const auto& message = std::get<FromFrontend>(event).message;
      const std::vector<std::uint64_t>& named = std::get<FrontendHello>(message).inherited;
      if (before.taken_over) return;
      state.requests.each([&](const Request& request) {
        if (request.name.frontend != before.sender->incarnation()) return;
        expect(std::binary_search(named.begin(), named.end(), request.name.counter),
               "an orphan of a predecessor stays, #" + std::to_string(request.name.counter));
      });
    }
  }
}

void SimScheduler::apply_now(Event&& event) {
  const bool tick = std::holds_alternative<Tick>(event);
  if (!tick) {
    ++world_.report().events;
    if (world_.tracing()) world_.trace("scheduler hears " + describe(event));
  }
  if (const auto* from = std::get_if<FromWorker>(&event)) {
    if (const auto* m = std::get_if<Register>(&from->message)) {
      look_for_faults();
      watch(from->link, world_.process(static_cast<std::uint32_t>(m->pid)));
    }
  } else if (const auto* other = std::get_if<FromFrontend>(&event)) {
    if (const auto* m = std::get_if<FrontendHello>(&other->message)) {
      watch(other->link, world_.process(static_cast<std::uint32_t>(m->pid)));
    }
    const auto* submit = std::get_if<Submit>(&other->message);
    if (submit != nullptr && submit->epoch == state.epoch &&
        !state.by_name.contains(submit->request))
      shares_.submitted(world_.spec_of(submit->sampling.seed), *submit);
    if (submit != nullptr) seeds_[submit->request] = submit->sampling.seed;
  }
  const auto* drains = std::get_if<SetDraining>(&event);
  const auto* turns = std::get_if<SetRole>(&event);
  const bool takes_away = (drains != nullptr && drains->draining) ||
                          (turns != nullptr && turns->role && *turns->role != Role::mixed);
  const Before before = look(event);
  const std::size_t told = out_.to_workers.size();
  const Event heard = before.kind == Before::Kind::other ? Event(Tick{}) : event;
  const Worker* stale = stale_sender(state, event);
  const StepId done = stale != nullptr ? stale->compute.done : 0;
  const std::size_t open = state.pulls.size();
  const std::size_t terms = state.counters.terms_ended;
  world_.role_checks().before(state, event);
  apply(state, std::move(event), world_.now(), out_);
  note_shared_pools(takes_away);
  check_faulted(told);
  const std::string roles = world_.role_checks().after(state, tick, world_.now());
  if (!roles.empty()) world_.fail(roles);
  const std::string returns = shares_.check_returns(state);
  if (!returns.empty()) world_.fail(returns);
  if (stale != nullptr && (stale->compute.done != done || state.pulls.size() != open ||
                           state.counters.terms_ended != terms)) {
    world_.fail("the scheduler believes a message of an ended term of " + stale->name());
  }
  check_succession(before, heard);
  check_audit("apply");
}

void SimScheduler::watch(LinkId link, const Process& peer) {
  if (!peer.alive) return;
  auto& process = const_cast<Process&>(peer);
  if (process.watched == kNoLink) process.watched_since = world_.now();
  process.watched = link;
}

void SimScheduler::check_audit(const char* after) {
  const std::vector<std::string> faults = audit_state(state);
  if (!faults.empty()) world_.fail("audit after " + std::string(after) + ": " + faults.front());
  if (++audits_ % 16 != 0) return;
  check_caches();
  check_prefix_nodes();
}

void SimScheduler::flush() {
  for (auto& [link, message] : out_.to_workers) {
    std::string what;
    if (const auto* p = std::get_if<StepPlan>(&message)) {
      what = checks_.plan(state, link, *p);
      shares_.plan(*p);
    }
    if (const auto* p = std::get_if<Pull>(&message)) {
      what = checks_.pull(state, link, *p);
      note_pull(*p);
    }
    if (!what.empty()) world_.fail(what);
    if (!world_.network().send_down(link, std::move(message))) failed_sends_.push_back(link);
  }
  out_.to_workers.clear();
  std::vector<std::pair<FrontendIndex, Events>> told = std::exchange(out_.full, {});
  for (FrontendIndex i = 0; i < out_.events.size(); ++i)
    told.emplace_back(i, std::exchange(out_.events[i], {}));
  for (auto& [i, events] : told) {
    if (Outbox::is_empty(events)) continue;
    shares_.events(state, i, events);
    check_refusals(i, events);
    if (i >= state.frontends.size() || !state.frontends[i].reachable()) continue;
    events.epoch = state.epoch;
    const Events sent = events;
    world_.network().send_down(state.frontends[i].link, ToFrontend(std::move(events)));
    if (strikes_by_tokens(i, sent)) return;
  }
  for (auto& [link, message] : out_.to_frontends) {
    world_.network().send_down(link, std::move(message));
  }
  out_.to_frontends.clear();
  if (world_.tracing()) {
    for (const auto& [level, line] : out_.log) world_.trace("scheduler says: " + line);
  }
  out_.log.clear();
  if (!failed_sends_.empty()) want_turn();
}

}  // namespace baton::sim
