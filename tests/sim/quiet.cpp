// The state that everything must come to rest in once nothing goes wrong any more.
#include "scheduler/state/audit.h"
#include "tests/sim/world.h"

namespace baton::sim {

namespace {

const Worker* worker_of(const State& state, const std::string& name) {
  for (const Worker& w : state.workers) {
    if (w.name() == name) return &w;
  }
  return nullptr;
}

/// Collects what is not at rest; `why` may be null when only the answer matters.
struct Rest {
  std::string* why;
  bool still = true;

  void busy(const std::string& what) {
    still = false;
    if (why != nullptr) *why += (why->empty() ? "" : "; ") + what;
  }
};

void look_at_requests(const State& state, Rest& rest) {
  if (state.requests.size() == 0 && state.sequences.size() == 0 && state.pulls.size() == 0) {
    return;
  }
  rest.busy("the scheduler has " + std::to_string(state.requests.size()) + " requests, " +
            std::to_string(state.sequences.size()) + " sequences, " +
            std::to_string(state.pulls.size()) + " pulls");
  if (rest.why == nullptr) return;
  state.requests.each([&](const Request& r) {
    *rest.why += std::string(" [#") + std::to_string(r.name.counter) + " " + to_string(r.phase) +
                 (state.handoffs.count({r.place, r.id}) != 0 ? " queued" : "") +
                 (r.target != 0 ? " target" : "") + (r.local ? " local" : "") +
                 (r.grouped ? " grouped" : "") + " length " + std::to_string(r.length()) +
                 (r.passed_over != nullptr ? std::string(": ") + r.passed_over : "") + "]";
  });
}

void look_at_books(const Worker& w, TimeNs now, Rest& rest) {
  if (rest.why != nullptr) {
    *rest.why += "; " + w.name() + ": " + to_string(w.peer.state) + ", holds " +
                 std::to_string(w.store.context()) + " tokens, " +
                 std::to_string(w.compute.sequences) + " sequences, " +
                 std::to_string(w.store.pool.available_blocks()) + " blocks free, silent for " +
                 std::to_string((now - w.peer.heard) / kMillisecond) + " ms" +
                 (w.compute.short_of_blocks ? ", short of blocks" : "") +
                 (w.peer.draining ? ", draining" : "");
  }
  if (!w.ready()) {
    rest.busy(w.name() + " is " + to_string(w.peer.state));
  } else if (w.peer.draining) {
    rest.busy(w.name() + " is draining");
  } else if (w.peer.work.any()) {
    rest.busy(w.name() + " has steps, pulls or closes outstanding");
  } else if (w.store.pool.available_blocks() != w.store.pool.total()) {
    rest.busy(w.name() + ": not every block is free");
  } else if (w.store.pool.host_fenced_blocks() != 0) {
    rest.busy(w.name() + ": a block of its host part is in use");
  }
}

void look_at_worker(const SimWorker& worker, const Worker* books, Rest& rest) {
  if (books == nullptr) {
    rest.busy(worker.label + " never registered");
  } else if (worker.core.term() != books->peer.term) {
    rest.busy(worker.label + " and the scheduler disagree about its term");
  }
  if (worker.core.sequences().size() != 0) rest.busy(worker.label + " knows sequences");
  if (worker.core.pulls().open() != 0) rest.busy(worker.label + " pulls");
}

}  // namespace

/// Nothing is open anywhere. `why`: what still is.
bool World::quiet(std::string* why) {
  Rest rest{why};
  if (!scheduler_->alive) {
    rest.busy("no scheduler");
    return false;
  }
  const State& state = scheduler_->state;
  if (draining_ends_) {
    draining_ends_ = false;
    for (const WorkerSpec& w : scenario_.workers) {
      scheduler_->inject(SetDraining{w.name, false});
      if (scenario_.blows.set_role == 0) continue;
      scheduler_->inject(SetRole{w.name, w.role});
      if (scenario_.settings.roles == Roles::automatic) scheduler_->inject(SetRole{w.name, {}});
    }
    rest.busy("an operator drains");
  }
  // A worker that the scheduler did not know then comes with the role that it was given.
  for (const WorkerSpec& w : scenario_.workers) {
    const Worker* books = worker_of(state, w.name);
    if (books == nullptr || !books->ready() || books->role() == w.role) continue;
    scheduler_->inject(SetRole{w.name, w.role});
    rest.busy(w.name + " has another role");
  }
  for (const auto& frontend : frontends_) {
    if (!frontend->alive || frontend->table.entry_count() == 0) continue;
    rest.busy(frontend->label + " has " + std::to_string(frontend->table.entry_count()) +
              " requests, " + std::to_string(frontend->clients_waiting()) + " clients wait");
  }
  for (const SimFrontend* frontend : current_frontend_) {
    if (!frontend->alive) rest.busy(frontend->label + " is dead");
  }
  look_at_requests(state, rest);
  for (const SimWorker* worker : current_worker_) {
    if (worker->name == lost_worker_) continue;
    const Worker* books = worker_of(state, scenario_.workers[worker->name].name);
    if (books != nullptr) look_at_books(*books, now_, rest);
    if (!worker->alive) {
      rest.busy(worker->label + " is dead");
    } else {
      look_at_worker(*worker, books, rest);
    }
  }
  for (const auto& worker : workers_) {
    // A later scheduler may never have heard of a successor that died for good.
    if (!worker->alive || is_current(*worker) || worker->name == lost_worker_) continue;
    rest.busy(worker->label + " was superseded and lives");
  }
  return rest.still;
}

void World::check_end() {
  const State& state = scheduler_->state;
  if (!state.waiting.empty() || !state.handoffs.empty() || !state.deadlines.empty() ||
      !state.by_name.empty() || !state.group.empty()) {
    fail("a queue of the scheduler holds something at the end");
  }
  for (const SimFrontend* frontend : current_frontend_) {
    if (frontend->clients_waiting() != 0 || !frontend->clients.empty())
      fail("a client of " + frontend->label + " waits, and nobody knows it");
  }
  for (const PoolAudit& pool : audit_pools(state)) {
    const bool lives =
        lost_worker_ == kNobody || scenario_.workers[lost_worker_].name != pool.worker;
    if (pool.owned != 0 || (lives && pool.fenced != 0)) {
      fail(pool.worker + ": owned " + std::to_string(pool.owned) + ", fenced " +
           std::to_string(pool.fenced) + " at the end");
    }
  }
  for (const Worker& w : state.workers) {
    if (!w.compute.adds.empty() || !w.compute.joins.empty() || !w.compute.prefills.empty() ||
        !w.compute.decode_set.empty() || !w.compute.beams.empty()) {
      fail(w.name() + ": a list of the planner holds something at the end");
    }
  }
}

}  // namespace baton::sim
