// A scheduler's core with workers and front ends that a test plays by hand. Every call checks the
// books.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "ipc/codec.h"
#include "scheduler/apply/apply_event.h"
#include "scheduler/apply/membership.h"
#include "scheduler/plan/admission.h"
#include "scheduler/plan/plan_step.h"
#include "scheduler/state/audit.h"

namespace baton::test {

constexpr Token kWord = 9;  // what every worker samples unless told otherwise
constexpr Token kStop = 2;

class Cluster {
 public:
  /// Without a prefix cache, unless it is what is tested: blocks of ended requests are free.
  explicit Cluster(const Settings& settings = {}, bool prefix_cache = false) {
    state.epoch = 1000;
    state.build = "test";
    state.settings = settings;
    state.settings.prefix_cache = prefix_cache;
    frontend = join_frontend("frontend0", 1);
  }

  // ---- peers
  LinkId join_frontend(const std::string& name, Incarnation incarnation) {
    FrontendHello hello;
    hello.build = "test";
    hello.name = name;
    hello.incarnation = incarnation;
    const LinkId link = next_link++;
    from_frontend(link, hello);
    return link;
  }

  LinkId register_worker(const std::string& name, Role role, Incarnation incarnation = 1) {
    Register m;
    m.build = "test";
    m.name = name;
    m.role = m.home = role;
    m.incarnation = incarnation;
    const LinkId link = next_link++;
    from_worker(link, m);
    return link;
  }

  static Hello hello_of(const std::string& name, std::uint32_t blocks, Incarnation incarnation = 1,
                        std::uint32_t host_blocks = 0) {
    Hello m;
    m.name = name;
    m.incarnation = incarnation;
    m.hello_id = 1;
    m.allocation = 100 * incarnation + static_cast<AllocationId>(name.back());
    m.model_fingerprint = 7;
    m.tokens_per_block = 4;
    m.blocks = blocks;
    m.host_blocks = host_blocks;
    m.max_context = 1024;
    m.vocab_size = 100;
    return m;
  }

  /// Registers, says hello, is in term. Blocks of 4 tokens.
  LinkId ready_worker(const std::string& name, Role role, std::uint32_t blocks = 100,
                      Incarnation incarnation = 1, std::uint32_t host_blocks = 0) {
    const LinkId link = register_worker(name, role, incarnation);
    from_worker(link, hello_of(name, blocks, incarnation, host_blocks));
    return link;
  }

  Worker& worker(const std::string& name) {
    for (Worker& w : state.workers) {
      if (w.name() == name) return w;
    }
    ADD_FAILURE() << "no worker " << name;
    return state.workers.front();
  }

  // ---- events
  void event(Event e) {
    apply(state, std::move(e), now, out);
    collect();
  }
  void from_worker(LinkId link, WorkerMessage m) { event(FromWorker{link, std::move(m)}); }
  void from_frontend(LinkId link, FrontendMessage m) { event(FromFrontend{link, std::move(m)}); }
  void gone(LinkId link) { event(ProcessGone{link}); }
  void tick(TimeNs later = 0, TimeNs gap = 0) {
    now += later;
    event(Tick{gap});
  }
  /// Time passes and everybody is heard of.
  void wait(TimeNs how_long) {
    for (TimeNs end = now + how_long; now < end;) {
      now += 100 * kMillisecond;
      for (const Worker& w : state.workers) {
        if (w.peer.state != WorkerState::gone) heartbeat(w.peer.link);
      }
      for (Frontend& f : state.frontends) f.heard = now;
      event(Tick{});
    }
  }
  void heartbeat(LinkId link, bool draining = false) {
    const Worker& w = state.workers[state.worker_links.at(link)];
    WorkerHeartbeat m;
    m.term = w.ready() ? w.peer.term : 0;
    m.incarnation = w.peer.identity.incarnation;
    m.plans_received = w.compute.sent;
    m.steps_done = w.compute.done;
    m.pulls_received = w.peer.work.sent(Work::pull);
    m.pulls_done = w.compute.pulls_answered;
    m.draining = draining;
    m.leased = w.store.offer.leased;
    from_worker(link, m);
  }

  Submit request(std::uint64_t counter, std::uint32_t prompt, std::uint32_t max_tokens) {
    Submit m;
    m.epoch = state.epoch;
    m.request = {1, counter};
    m.arrival = now + static_cast<TimeNs>(counter);
    m.deadline = now + 1000 * kSecond;
    m.prompt.assign(prompt, 5);
    m.sampling.max_tokens = max_tokens;
    m.sampling.stop_ids = {kStop};
    return m;
  }
  void submit(std::uint64_t counter, std::uint32_t prompt = 4, std::uint32_t max_tokens = 8) {
    from_frontend(frontend, request(counter, prompt, max_tokens));
  }

  void turn() {
    plan(state, now, out);
    collect();
  }

  // ---- what workers do
  /// The oldest unanswered step has ended; every sequence that samples says `token`.
  void answer(LinkId link, Token token = kWord) {
    Worker& w = state.workers[state.worker_links.at(link)];
    ASSERT_FALSE(w.compute.steps.empty()) << w.name() << " has no step";
    from_worker(link, result_of(w, token));
  }
  StepResult result_of(const Worker& w, Token token = kWord) const {
    const InFlightStep& step = w.compute.steps.front();
    StepResult m;
    m.term = w.peer.term;
    m.step = step.step;
    for (const auto& [id, n] : step.rows) {
      const Sequence* s = state.sequences.find(id);
      if (s != nullptr && s->computed + n == s->prefill_length) m.sequences.push_back(id);
    }
    m.sequences.insert(m.sequences.end(), step.decode.begin(), step.decode.end());
    m.tokens.assign(m.sequences.size(), token);
    return m;
  }
  /// Plans and answers until nothing is left to do, pulls included.
  void run(int turns = 1000) {
    for (int i = 0; i < turns; ++i) {
      turn();
      bool idle = true;
      for (std::size_t w = 0; w < state.workers.size(); ++w) {
        if (!state.workers[w].ready()) continue;
        const LinkId link = state.workers[w].peer.link;
        while (!pulls[link].empty()) done_pull(link), idle = false;
        if (!state.workers[w].compute.steps.empty()) answer(link), idle = false;
      }
      if (idle) return;
    }
  }
  /// The oldest pull has ended.
  void done_pull(LinkId link) {
    ASSERT_FALSE(pulls[link].empty());
    const Pull pull = pulls[link].front();
    pulls[link].pop_front();
    from_worker(link, PullDone{pull.term, pull.pull_id, 1});
  }
  void fail_pull(LinkId link) {
    ASSERT_FALSE(pulls[link].empty());
    const Pull pull = pulls[link].front();
    pulls[link].pop_front();
    from_worker(link, PullFailed{pull.term, pull.pull_id, "test", {}});
  }

  // ---- what is known of requests
  Request* find(std::uint64_t counter, Incarnation incarnation = 1) {
    const auto it = state.by_name.find({incarnation, counter});
    return it == state.by_name.end() ? nullptr : state.requests.find(it->second);
  }
  /// As if workers had died under it: the next death ends it.
  void make_suspect(std::uint64_t counter, Stage stage = Stage::prefill) {
    Deaths& deaths = find(counter)->deaths;
    deaths.in[static_cast<std::size_t>(stage)] = deaths.total = state.settings.max_deaths - 1;
  }
  /// Of the stage with most of them.
  /// The step computes prompt tokens of that request, or decodes one of its tokens.
  bool runs(std::uint64_t counter, const InFlightStep& step) {
    const auto its = [&](SequenceId id) {
      const Sequence* sequence = state.sequences.find(id);
      return sequence != nullptr && state.request_of(*sequence)->name.counter == counter;
    };
    return std::any_of(step.decode.begin(), step.decode.end(), its) ||
           std::any_of(step.rows.begin(), step.rows.end(),
                       [&](const auto& row) { return its(row.first); });
  }
  std::uint32_t deaths(std::uint64_t counter) {
    const auto& in = find(counter)->deaths.in;
    return *std::max_element(in.begin(), in.end());
  }
  Phase phase(std::uint64_t counter) {
    const Request* r = find(counter);
    if (r == nullptr) ADD_FAILURE() << "request " << counter << " is not known";
    return r == nullptr ? Phase::ended : r->phase;
  }
  Sequence& source(std::uint64_t counter) { return *state.sequences.find(find(counter)->source); }
  Sequence& target(std::uint64_t counter) { return *state.sequences.find(find(counter)->target); }
  const Terminal* terminal(std::uint64_t counter) const {
    for (const Terminal& t : terminals) {
      if (t.counter == counter) return &t;
    }
    return nullptr;
  }
  ErrorCode code(std::uint64_t counter) const {
    const Terminal* t = terminal(counter);
    if (t == nullptr) ADD_FAILURE() << "request " << counter << " has not ended";
    return t == nullptr ? ErrorCode::ok : t->code;
  }
  std::size_t tokens_of(std::uint64_t counter) { return tokens[counter].size(); }

  /// Messages of one type that went to a worker, oldest first.
  template <typename M>
  std::vector<M> sent(LinkId link) const {
    std::vector<M> found;
    for (const auto& [to, message] : to_workers) {
      if (to == link && std::holds_alternative<M>(message)) found.push_back(std::get<M>(message));
    }
    return found;
  }
  template <typename M>
  std::vector<M> told(LinkId link) const {
    std::vector<M> found;
    for (const auto& [to, message] : to_frontends) {
      if (to == link && std::holds_alternative<M>(message)) found.push_back(std::get<M>(message));
    }
    return found;
  }
  /// The newest plan of a worker; an empty one if there is none.
  StepPlan last_plan(LinkId link) const {
    const std::vector<StepPlan> plans = sent<StepPlan>(link);
    return plans.empty() ? StepPlan{} : plans.back();
  }
  PoolAudit pool(const std::string& name, bool host = false) const {
    for (const PoolAudit& audit : audit_pools(state)) {
      if (audit.worker == name && audit.host == host) return audit;
    }
    return {};
  }
  bool logged(const std::string& text) const {
    for (const std::string& line : log) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }

  State state;
  Outbox out;
  TimeNs now = 10 * kSecond;
  LinkId next_link = 1;
  LinkId frontend = kNoLink;
  std::vector<std::pair<LinkId, ToWorker>> to_workers;
  std::vector<std::pair<LinkId, ToFrontend>> to_frontends;
  std::map<LinkId, std::deque<Pull>> pulls;            // not answered
  std::map<std::uint64_t, std::vector<Token>> tokens;  // by request counter, as sent
  std::map<std::uint64_t, std::uint32_t> cached;       // of their prompts, as told
  std::map<std::uint64_t, TimeNs> begun;  // when their first chunks were planned, as told
  std::map<std::uint64_t, std::vector<RequestTiming>> timings;  // likewise, in their order
  struct Progress {
    std::uint32_t done = 0, cached = 0, attempt = 0;
    TimeNs took = 0;
  };
  std::map<std::uint64_t, std::vector<Progress>> progress;  // likewise
  std::vector<Terminal> terminals;
  std::size_t events_sent = 0;  // messages
  std::vector<std::string> log;
  std::vector<std::pair<LinkId, Pull>> probes;  // not answered; only while ...
  bool answer_probes = true;                    // ... this is off: else every pool can be read

 private:
  /// No message is larger than the settings say. Where they say nothing, none of a test can be.
  template <typename Message>
  void check_size(const Message& message) const {
    if (state.settings.message_bytes == kMaxMessageBytes) return;
    std::visit(
        [&](const auto& m) {
          EXPECT_LE(encode(m).size(), state.settings.message_bytes)
              << MessageTag<std::decay_t<decltype(m)>>::name;
        },
        message);
  }

  void collect() {
    take_outbox();
    while (answer_probes && !probes.empty()) {
      const auto [link, pull] = probes.back();
      probes.pop_back();
      apply(state, FromWorker{link, PullDone{pull.term, pull.pull_id, 1}}, now, out);
      take_outbox();
    }
  }
  void take_outbox() {
    for (auto& [link, message] : out.to_workers) {
      check_size(message);
      if (const auto* pull = std::get_if<Pull>(&message)) {
        if (pull->from.empty()) {
          probes.emplace_back(link, *pull);
          continue;
        }
        pulls[link].push_back(*pull);
      }
      to_workers.emplace_back(link, std::move(message));
    }
    out.to_workers.clear();
    for (const auto& item : out.to_frontends) check_size(item.second);
    for (auto& item : out.to_frontends) to_frontends.push_back(std::move(item));
    out.to_frontends.clear();
    std::vector<Events> told;
    for (auto& entry : out.full) told.push_back(std::move(entry.second));
    out.full.clear();
    for (Events& events : out.events) told.push_back(std::exchange(events, Events{}));
    for (Events& events : told) {
      if (!Outbox::is_empty(events)) check_size(ToFrontend(events));
      if (!Outbox::is_empty(events)) ++events_sent;
      std::size_t at = 0;
      for (std::size_t i = 0; i < events.counters.size(); ++i) {
        for (std::uint32_t n = 0; n < events.counts[i]; ++n) {
          tokens[events.counters[i]].push_back(events.tokens[at++]);
        }
      }
      for (std::size_t i = 0; i < events.begun_counters.size(); ++i) {
        if (events.begun_cached[i] != 0) cached[events.begun_counters[i]] = events.begun_cached[i];
        begun[events.begun_counters[i]] = events.begun_at[i];
      }
      for (std::size_t i = 0; i < events.progress_counters.size(); ++i) {
        progress[events.progress_counters[i]].push_back(
            {events.progress_done[i], events.progress_cached[i], events.progress_attempts[i],
             events.progress_took[i]});
      }
      for (const RequestTiming& timing : events.timings) timings[timing.counter].push_back(timing);
      terminals.insert(terminals.end(), events.terminals.begin(), events.terminals.end());
    }
    for (auto& line : out.log) log.push_back(std::move(line.second));
    out.log.clear();
    const std::vector<std::string> faults = audit_state(state);
    EXPECT_TRUE(faults.empty()) << faults.front();
  }
};

}  // namespace baton::test
