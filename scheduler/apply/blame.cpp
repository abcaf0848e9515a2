#include "scheduler/apply/blame.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ipc/fault_points.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/requests.h"

namespace baton {

namespace {

/// Deaths in all that end a request: those of two stages.
std::uint32_t most_in_all(const Settings& settings) { return 2 * settings.max_deaths; }

/// Most entries of State::grammar_deaths; the oldest one makes room.
constexpr std::size_t kMostGrammars = 1024;

/// `request` may be 0: somebody who is not known any more, or a probe. It is blamed for nothing,
/// but nobody was alone beside it.
void add(Suspicions& found, std::uint64_t request, Stage stage, std::uint64_t grammar = 0) {
  const bool known = std::any_of(found.begin(), found.end(), [&](const Suspicion& s) {
    return s.request == request && s.stage == stage && s.grammar == grammar;
  });
  if (!known) found.push_back({request, stage, grammar});
}

void add_rows(const State& state, const InFlightStep& step, Suspicions& found) {
  const auto row = [&](SequenceId id, Stage stage) {
    const Sequence* sequence = state.sequences.find(id);
    add(found, sequence != nullptr ? sequence->request : 0, stage);
  };
  for (const SequenceId id : step.decode) row(id, Stage::decode);
  for (const SequenceId id : step.beams) row(id, Stage::decode);
  for (const auto& [id, n] : step.rows) row(id, Stage::prefill);
}

/// Those who have that grammar, and their requests have not ended.
std::vector<std::uint64_t> owners_of_grammar(const State& state, std::uint64_t key) {
  std::vector<std::uint64_t> owners;
  state.requests.each([&](const Request& request) {
    if (request.grammar == key && request.phase != Phase::ended) owners.push_back(request.id);
  });
  return owners;
}

/// It is the grammar that kills, whoever has it. Perhaps nobody has it any more.
void add_grammar(const State& state, std::uint64_t key, Suspicions& found) {
  const std::vector<std::uint64_t> owners = owners_of_grammar(state, key);
  for (const std::uint64_t owner : owners) add(found, owner, Stage::compile, key);
  if (owners.empty()) add(found, 0, Stage::compile, key);
}

/// Something else may be the cause of the deaths before as well as this request, or its grammar
/// where that is not 0: they were there together.
bool others_suspected(const State& state, std::uint64_t request, std::uint64_t grammar,
                      Stage stage) {
  bool found = false;
  state.requests.each([&](const Request& other) {
    const bool same = other.id == request || (grammar != 0 && other.grammar == grammar);
    found = found || (!same && other.phase != Phase::ended && is_suspect(state, other, stage));
  });
  return found;
}

/// Of a death, as the cause met it.
struct Circumstances {
  bool alone = false;  // nothing else was at work
  bool first_alone = false;
  bool others_suspected = false;
};

/// How far short of the end a death leaves the counts. Beside others: one. Alone: none, unless
/// others are suspected with it and it is the first that the cause was alone with: an outsider may
/// have killed the worker, and whoever has its turn then would end for that.
std::uint32_t spared(const State& state, const Circumstances& death) {
  if (state.settings.max_deaths <= 1) return 0;  // the first death is the end
  if (!death.alone) return 1;
  return death.first_alone && death.others_suspected ? 1 : 0;
}

void end_for(State& state, Request& request, std::uint32_t count, Stage stage, Outbox& out) {
  const bool stage_over = count >= state.settings.max_deaths;
  end_request(
      state, request, FinishReason::error, ErrorCode::worker_crashes,
      stage_over
          ? std::to_string(count) + " workers in a row died in its " + to_string(stage)
          : std::to_string(request.deaths.total) + " workers died while they ran this request",
      out);
}

GrammarDeaths& deaths_of_grammar(State& state, std::uint64_t key) {
  auto& all = state.grammar_deaths;
  if (all.size() >= kMostGrammars && !all.contains(key)) {
    all.erase(std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.second.last < b.second.last;
    }));
  }
  return all[key];
}

/// All who have the grammar end with it. What is left of its count makes one who comes with it
/// later a suspect.
void blame_grammar(State& state, std::uint64_t key, bool alone, Outbox& out) {
  const std::uint32_t in_stage = state.settings.max_deaths;
  const std::uint32_t in_all = most_in_all(state.settings);
  GrammarDeaths& deaths = deaths_of_grammar(state, key);
  if (alone) ++deaths.alone;
  const std::uint32_t spare =
      spared(state, {alone, deaths.alone <= 1, others_suspected(state, 0, key, Stage::compile)});
  deaths.count = std::max(deaths.count, std::min(deaths.count + 1, in_stage - spare));
  deaths.last = state.now;
  const std::uint32_t count = deaths.count;
  if (count >= in_stage) deaths.count = in_stage - 1;
  for (const std::uint64_t id : owners_of_grammar(state, key)) {
    Request& request = *state.requests.find(id);
    if (request.phase == Phase::ended) continue;
    if (alone) ++request.deaths.alone;
    request.deaths.add(Stage::compile, in_stage - spare, in_all - spare);
    if (count >= in_stage || request.deaths.total >= in_all)
      end_for(state, request, count, Stage::compile, out);
  }
}

void blame_request(State& state, Request& request, Stage stage, bool alone, Outbox& out) {
  const std::uint32_t in_stage = state.settings.max_deaths;
  const std::uint32_t in_all = most_in_all(state.settings);
  if (alone) ++request.deaths.alone;
  const std::uint32_t spare = spared(
      state,
      {alone, request.deaths.alone <= 1, alone && others_suspected(state, request.id, 0, stage)});
  request.deaths.add(stage, in_stage - spare, in_all - spare);
  const std::uint32_t count = request.deaths.of(stage);
  if (count >= in_stage || request.deaths.total >= in_all)
    end_for(state, request, count, stage, out);
}

}  // namespace

Suspicions running_on(const State& state, WorkerIndex worker, TimeNs latest) {
  Suspicions found;
  const Worker& w = state.workers[worker];
  for (const InFlightStep& step : w.compute.steps) {
    if (step.sent <= latest) add_rows(state, step, found);
  }
  // A worker takes one after another, but what it answered last has died with it: it may have been
  // at any of them.
  for (const auto& [number, record] : w.peer.work.of(Work::pull)) {
    if (record.sent > latest || fault(Fault::pulls_blame_nobody)) break;
    add(found, record.request, Stage::pull);
  }
  for (const auto& [number, record] : w.peer.work.of(Work::compile)) {
    if (record.sent > latest || fault(Fault::compiles_blame_nobody)) break;
    add_grammar(state, record.key, found);
  }
  return found;
}

Suspicions owners_of(const State& state, WorkerIndex worker, const Outstanding& record) {
  Suspicions found;
  const Worker& w = state.workers[worker];
  switch (record.kind) {
    case Work::step:
      for (const InFlightStep& step : w.compute.steps) {
        if (step.step == record.number) add_rows(state, step, found);
      }
      break;
    case Work::pull:
      add(found, record.request, Stage::pull);
      break;
    case Work::compile:  // awaited ones overtake others: it may be at any of them
      for (const auto& [number, open] : w.peer.work.of(Work::compile))
        add_grammar(state, open.key, found);
      break;
    case Work::close:
      break;  // of a pool, not of a request
  }
  return found;
}

void blame(State& state, const Suspicions& suspicions, Outbox& out) {
  std::set<std::uint64_t> requests;
  std::set<std::pair<std::uint64_t, std::uint64_t>> causes;
  std::set<std::uint64_t> grammars;
  for (const Suspicion& s : suspicions) {
    requests.insert(s.request);
    causes.emplace(s.grammar, s.grammar != 0 ? 0 : s.request);
  }
  // One request is the cause whatever it did; which of its row and its grammar was it, nobody
  // knows.
  const bool one_request = requests.size() == 1;
  const bool one_grammar = fault(Fault::requests_blamed) ? one_request : causes.size() == 1;
  for (const Suspicion& s : suspicions) {
    if (s.grammar != 0) {
      if (grammars.insert(s.grammar).second) blame_grammar(state, s.grammar, one_grammar, out);
      continue;
    }
    Request* request = state.requests.find(s.request);
    if (request == nullptr || request->phase == Phase::ended) continue;
    blame_request(state, *request, s.stage, one_request, out);
  }
}

void note_unblamed(State& state, WorkerIndex worker) {
  std::vector<Unblamed>& noted = state.workers[worker].peer.unblamed;
  const Suspicions running = running_on(state, worker);
  for (const Suspicion& s : running) {
    const bool known = std::any_of(noted.begin(), noted.end(), [&](const Unblamed& other) {
      return other.request == s.request && other.stage == s.stage && other.grammar == s.grammar;
    });
    const Request* request = state.requests.find(s.request);
    // Whoever is not known any more is kept, too: nobody was alone beside it.
    const std::uint32_t times = request != nullptr ? request->deaths.times(s.stage) : 0;
    if (!known) noted.push_back({s.request, s.stage, times, s.grammar});
  }
}

void note_given_up(State& state, WorkerIndex worker, const Request& request) {
  std::vector<Unblamed>& noted = state.workers[worker].peer.unblamed;
  const Unblamed own{request.id, Stage::prefill, request.deaths.times(Stage::prefill)};
  const bool known = std::any_of(noted.begin(), noted.end(), [&](const Unblamed& other) {
    return other.request == own.request && other.stage == own.stage &&
           other.progress == own.progress;
  });
  if (known) return;
  noted.push_back(own);
  // It was not alone, as far as anybody knows.
  if (!fault(Fault::given_up_alone)) noted.push_back({0, Stage::prefill, 0});
}

void blame_late(State& state, Worker& worker, Outbox& out) {
  std::vector<Unblamed> noted = std::exchange(worker.peer.unblamed, {});
  if (fault(Fault::no_late_blame)) return;
  // One who has got on was there, too: it may have been that one. A grammar got on with any of
  // those who have it; one of them that has left takes nothing away from it.
  const auto lives = [&](const Unblamed& n) {
    const Request* request = state.requests.find(n.request);
    return request != nullptr && request->phase != Phase::ended;
  };
  const auto got_on = [&](const Unblamed& n) {
    return lives(n) && state.requests.find(n.request)->deaths.times(n.stage) != n.progress;
  };
  std::set<std::uint64_t> cleared;
  std::set<std::uint64_t> held;
  for (const Unblamed& n : noted) {
    if (n.grammar != 0 && got_on(n)) cleared.insert(n.grammar);
    if (n.grammar != 0 && lives(n)) held.insert(n.grammar);
  }
  Suspicions left;
  bool others = false;
  for (const Unblamed& n : noted) {
    const bool blamed = lives(n) && !got_on(n) && !cleared.contains(n.grammar);
    if (blamed) left.push_back({n.request, n.stage, n.grammar});
    const bool shared = n.grammar != 0 && held.contains(n.grammar) && !cleared.contains(n.grammar);
    const bool ignored = fault(Fault::got_on_ignored) && got_on(n);
    others = others || (!blamed && !shared && !ignored);
  }
  if (others) left.push_back({0, Stage::prefill});
  blame(state, left, out);
}

bool is_suspect(const State& state, const Request& request, Stage stage) {
  const Deaths& deaths = request.deaths;
  const std::uint32_t most = state.settings.max_deaths;
  if (fault(Fault::no_suspects)) return false;
  std::uint32_t in_stage = deaths.of(stage);
  if (stage == Stage::compile) {
    const auto grammar = state.grammar_deaths.find(request.grammar);
    in_stage = grammar == state.grammar_deaths.end() ? 0 : grammar->second.count;
  }
  return (in_stage > 0 && in_stage + 1 >= most) ||
         (deaths.total > 0 && deaths.total + 1 >= most_in_all(state.settings));
}

bool is_suspect(const State& state, const Request& request) {
  return is_suspect(state, request, Stage::prefill) || is_suspect(state, request, Stage::decode);
}

bool avoids_pulls(const State& state, const Request& request) {
  return is_suspect(state, request, Stage::pull) && !fault(Fault::pulls_not_avoided);
}

}  // namespace baton
