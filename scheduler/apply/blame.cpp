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

/// `request` may be 0: somebody who is not known any more, or a probe. It is blamed for nothing,
/// but nobody was alone beside it.
void add(Suspicions& found, std::uint64_t request, Stage stage) {
  const bool known = std::any_of(found.begin(), found.end(), [&](const Suspicion& s) {
    return s.request == request && s.stage == stage;
  });
  if (!known) found.push_back({request, stage});
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

/// Everybody who has that grammar: it is the grammar that kills. Perhaps nobody has it any more.
void add_grammar(const State& state, std::uint64_t key, Suspicions& found) {
  bool known = false;
  state.requests.each([&](const Request& request) {
    if (request.grammar != key || request.phase == Phase::ended) return;
    add(found, request.id, Stage::compile);
    known = true;
  });
  if (!known) add(found, 0, Stage::compile);
}

/// Somebody else may be the cause of the deaths before as well as this request: they were there
/// together.
bool others_suspected(const State& state, const Request& request, Stage stage) {
  bool found = false;
  state.requests.each([&](const Request& other) {
    found = found || (other.id != request.id && other.phase != Phase::ended &&
                      is_suspect(state, other, stage));
  });
  return found;
}

/// How far short of the end a death leaves the request's counts. Beside others: one. Alone: none,
/// unless others are suspected with it and it is the first that it was alone with: an outsider may
/// have killed the worker, and whoever has its turn then would end for that.
std::uint32_t spared(const State& state, const Request& request, Stage stage, bool alone) {
  if (state.settings.max_deaths <= 1) return 0;  // the first death is the end
  if (!alone) return 1;
  return request.deaths.alone <= 1 && others_suspected(state, request, stage) ? 1 : 0;
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
  for (const Suspicion& s : suspicions) requests.insert(s.request);
  const std::uint32_t in_stage = state.settings.max_deaths;
  const std::uint32_t in_all = most_in_all(state.settings);
  const bool alone = requests.size() == 1;
  for (const Suspicion& s : suspicions) {
    Request* request = state.requests.find(s.request);
    if (request == nullptr || request->phase == Phase::ended) continue;
    if (alone) ++request->deaths.alone;
    const std::uint32_t spare = spared(state, *request, s.stage, alone);
    request->deaths.add(s.stage, in_stage - spare, in_all - spare);
    const std::uint32_t count = request->deaths.of(s.stage);
    if (count < in_stage && request->deaths.total < in_all) continue;
    const bool stage_over = count >= in_stage;
    end_request(
        state, *request, FinishReason::error, ErrorCode::worker_crashes,
        stage_over
            ? std::to_string(count) + " workers in a row died in its " + to_string(s.stage)
            : std::to_string(request->deaths.total) + " workers died while they ran this request",
        out);
  }
}

void note_unblamed(State& state, WorkerIndex worker) {
  std::vector<Unblamed>& noted = state.workers[worker].peer.unblamed;
  const Suspicions running = running_on(state, worker);
  for (const Suspicion& s : running) {
    const bool known = std::any_of(noted.begin(), noted.end(), [&](const Unblamed& other) {
      return other.request == s.request && other.stage == s.stage;
    });
    const Request* request = state.requests.find(s.request);
    // Whoever is not known any more is kept, too: nobody was alone beside it.
    const std::uint32_t times = request != nullptr ? request->deaths.times(s.stage) : 0;
    if (!known) noted.push_back({s.request, s.stage, times});
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
  noted.push_back({0, Stage::prefill, 0});  // it was not alone, as far as anybody knows
}

void blame_late(State& state, Worker& worker, Outbox& out) {
  std::vector<Unblamed> noted = std::exchange(worker.peer.unblamed, {});
  if (fault(Fault::no_late_blame)) return;
  Suspicions left;
  bool others = false;  // one who has got on was there, too: it may have been that one
  for (const Unblamed& n : noted) {
    const Request* request = state.requests.find(n.request);
    const bool got_on = request == nullptr || request->phase == Phase::ended ||
                        request->deaths.times(n.stage) != n.progress;
    if (got_on) {
      others = true;
    } else {
      left.push_back({n.request, n.stage});
    }
  }
  if (others) left.push_back({0, Stage::prefill});
  blame(state, left, out);
}

bool is_suspect(const State& state, const Request& request, Stage stage) {
  const Deaths& deaths = request.deaths;
  const std::uint32_t most = state.settings.max_deaths;
  if (fault(Fault::no_suspects)) return false;
  return (deaths.of(stage) > 0 && deaths.of(stage) + 1 >= most) ||
         (deaths.total > 0 && deaths.total + 1 >= most_in_all(state.settings));
}

bool is_suspect(const State& state, const Request& request) {
  return is_suspect(state, request, Stage::prefill) || is_suspect(state, request, Stage::decode);
}

bool avoids_pulls(const State& state, const Request& request) {
  return is_suspect(state, request, Stage::pull) && !fault(Fault::pulls_not_avoided);
}

}  // namespace baton
