// Which workers can read which pools. When two of them meet, the one that decodes is asked to read
// nothing from the pool of the one that prefills (a Pull without blocks): it maps the pool, which
// keeps the mapping's time off the first hand-off, or says why it cannot. Where cached prefixes are
// pulled, each is asked about the pool of the other. A pair that cannot is named in the log at
// once, nothing is pulled between the two, and now and then they are asked again.
#include "scheduler/apply/reachability.h"

#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/apply/apply_handlers.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/prefix/prefix_pull.h"

namespace baton {

namespace {

constexpr TimeNs kAskAgain = 10 * kSecond;

bool hands_off(const Worker& w) { return w.role() == Role::prefill; }

bool hands_off(const Worker& from, const Worker& to) { return hands_off(from) && to.decodes(); }

std::string pair_name(const Worker& importer, const Worker& exporter) {
  return importer.name() + " (" + importer.peer.identity.device + ") and " + exporter.name() +
         " (" + exporter.peer.identity.device + ")";
}

}  // namespace

bool may_read_in_place(const State& state, const Worker& exporter, const Worker& importer) {
  return state.settings.elastic && shares_pools(exporter) && shares_pools(importer) &&
         same_heads(exporter, importer);
}

bool reaches(const Worker& exporter, const Worker& importer) {
  return importer.peer.unreachable.count(exporter.store.allocation()) == 0;
}

bool reaches_some_decoder(const State& state, const Worker& exporter) {
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    return w.decodes() && w.takes_work() && reaches(exporter, w);
  });
}

bool is_fed(const State& state, const Worker& importer) {
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    return hands_off(w) && w.takes_work() && reaches(w, importer);
  });
}

void probe(State& state, WorkerIndex exporter, WorkerIndex importer, TimeNs now, Outbox& out) {
  // Nobody may map the pool of a worker that is about to free it. And what a suspect does alone
  // stays alone: the first pull maps the pool then.
  bool asked = !state.workers[exporter].takes_work() ||
               (!state.workers[importer].may_begin() && !fault(Fault::pulls_beside_suspects));
  state.pulls.each([&](const OpenPull& t) {
    asked = asked || (t.is_probe() && t.from_worker == exporter && t.to_worker == importer);
  });
  if (asked) return;
  OpenPull& pull = state.pulls.create();
  pull.from_worker = exporter;
  pull.from_allocation = state.workers[exporter].store.allocation();
  pull.to_worker = importer;
  post_pull(state, pull, now, out);
}

void probe_peers(State& state, WorkerIndex joined, TimeNs now, Outbox& out) {
  const Worker& w = state.workers[joined];
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& peer = state.workers[i];
    if (i == joined || !peer.ready()) continue;
    const bool all = pulls_prefixes(state.settings);
    const auto asks = [&](const Worker& exporter, const Worker& importer) {
      if (may_read_in_place(state, exporter, importer) && !reads_in_place(importer, exporter))
        return true;
      return (all || hands_off(exporter, importer)) &&
             importer.peer.imports.count(exporter.store.allocation()) == 0;
    };
    if (asks(w, peer)) probe(state, joined, i, now, out);
    if (asks(peer, w)) probe(state, i, joined, now, out);
  }
}

void probe_again(State& state, WorkerIndex importer, TimeNs now, Outbox& out) {
  Worker& w = state.workers[importer];
  if (!w.ready()) return;
  for (auto it = w.peer.unreachable.begin(); it != w.peer.unreachable.end();) {
    const auto exporter =
        std::find_if(state.workers.begin(), state.workers.end(), [&](const Worker& other) {
          return other.peer.state != WorkerState::gone && other.store.offer.allocation == it->first;
        });
    if (exporter == state.workers.end()) {
      it = w.peer.unreachable.erase(it);  // its process has ended
      continue;
    }
    if (it->second <= now && exporter->ready()) {
      it->second = now + kAskAgain;
      probe(state, static_cast<WorkerIndex>(exporter - state.workers.begin()), importer, now, out);
    }
    ++it;
  }
  if (!state.settings.elastic) return;
  // Closed for a worker that was to leave and did not, say.
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& exporter = state.workers[i];
    if (i != importer && exporter.ready() && may_read_in_place(state, exporter, w) &&
        reaches(exporter, w) && !reads_in_place(w, exporter)) {
      probe(state, i, importer, now, out);
    }
  }
}

void probe_answered(State& state, const OpenPull& pull, const std::string& failure, TimeNs now,
                    Outbox& out) {
  if (pull.from_worker == kNobody) return;  // the exporter has died meanwhile
  const Worker& exporter = state.workers[pull.from_worker];
  Worker& importer = state.workers[pull.to_worker];
  if (exporter.store.allocation() != pull.from_allocation) return;
  const bool known = !reaches(exporter, importer);
  if (failure.empty()) {
    if (may_read_in_place(state, exporter, importer)) {
      importer.peer.readable.insert(pull.from_allocation);
      prove_context(state, /*anew=*/false);
    }
    if (!known) return;
    importer.peer.unreachable.erase(pull.from_allocation);
    tell_context(state, out);
    out.info(pair_name(importer, exporter) + " reach each other again");
    return;
  }
  importer.peer.unreachable[pull.from_allocation] = now + kAskAgain;
  importer.peer.readable.erase(pull.from_allocation);
  if (known) return;
  out.warn(pair_name(importer, exporter) + " cannot reach each other: " + failure +
           (hands_off(exporter, importer)
                ? "; no prompt is handed from one to the other, each decodes what it prefills"
                : "; the first computes what the second has in its cache"));
}

}  // namespace baton
