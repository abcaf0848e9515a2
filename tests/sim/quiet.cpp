// The state that everything must come to rest in once nothing goes wrong any more.
#include "scheduler/audit.h"
#include "tests/sim/world.h"

namespace baton::sim {

namespace {

const Worker* worker_of(const State& state, const std::string& name) {
  for (const Worker& w : state.workers) {
    if (w.identity.name == name) return &w;
  }
  return nullptr;
}

}  // namespace

/// Nothing is open anywhere. `why`: what still is.
bool World::quiet(std::string* why) {
  const auto busy = [&](const std::string& what) {
    if (why != nullptr) *why += (why->empty() ? "" : "; ") + what;
    return false;
  };
  if (!scheduler_->alive) return busy("no scheduler");
  const State& state = scheduler_->state;
  if (draining_ends_) {
    draining_ends_ = false;
    for (const WorkerSpec& w : scenario_.workers) scheduler_->inject(SetDraining{w.name, false});
    return busy("an operator drains");
  }
  bool still = true;
  for (const auto& frontend : frontends_) {
    if (!frontend->alive || frontend->table.entry_count() == 0) continue;
    still = busy(frontend->label + " has " + std::to_string(frontend->table.entry_count()) +
                 " requests, " + std::to_string(frontend->clients_waiting()) + " clients wait");
  }
  if (state.requests.size() != 0) {
    still = busy(std::to_string(state.requests.size()) + " requests at the scheduler");
    if (why != nullptr) {
      state.requests.each([&](const Request& r) {
        const Sequence* source = state.sequences.find(r.source);
        *why += std::string(" [#") + std::to_string(r.name.counter) + " " + to_string(r.phase) +
                (state.handoffs.count({r.arrival, r.id}) != 0 ? " queued" : "") +
                (r.target != 0 ? " target" : "") + (r.local ? " local" : "") +
                (r.grouped ? " grouped" : "") + " failures " + std::to_string(r.handoff_failures) +
                " length " + std::to_string(r.length()) +
                (source != nullptr ? " of " + std::to_string(source->prefill_length) : "") + "]";
      });
    }
  }
  if (state.sequences.size() != 0 || state.transfers.size() != 0) {
    still = busy("sequences or transfers at the scheduler");
  }
  if (state.workers.size() < scenario_.workers.size()) still = busy("a worker never registered");
  for (const Worker& w : state.workers) {
    if (why != nullptr) {
      *why += "; " + w.identity.name + ": " + std::to_string(w.sequences) + " sequences, " +
              std::to_string(w.pool.free_blocks()) + " blocks free, silent for " +
              std::to_string((now_ - w.heard) / kMillisecond) + " ms" +
              (w.short_of_blocks ? ", short of blocks" : "") + (w.draining ? ", draining" : "");
    }
    if (!w.ready()) {
      still = busy(w.identity.name + " is " + to_string(w.state));
    } else if (w.draining) {
      still = busy(w.identity.name + " is draining");
    } else if (w.outstanding()) {
      still = busy(w.identity.name + " has steps, pulls or closes outstanding");
    } else if (w.pool.free_blocks() != w.pool.total()) {
      still = busy(w.identity.name + ": not every block is free");
    }
  }
  for (const SimWorker* worker : current_worker_) {
    if (!worker->alive) still = busy(worker->label + " is dead");
  }
  for (const SimFrontend* frontend : current_frontend_) {
    if (!frontend->alive) still = busy(frontend->label + " is dead");
  }
  for (const auto& worker : workers_) {
    if (!worker->alive) continue;
    if (!is_current(*worker)) still = busy(worker->label + " was superseded and lives");
    const Worker* books = worker_of(state, scenario_.workers[worker->name].name);
    if (books != nullptr && worker->core.term() != books->term) {
      still = busy(worker->label + " and the scheduler disagree about its term");
    }
    if (worker->core.sequences().size() != 0) still = busy(worker->label + " knows sequences");
    if (worker->core.pulls().open() != 0) still = busy(worker->label + " pulls");
  }
  return still;
}

void World::check_end() {
  const State& state = scheduler_->state;
  if (!state.waiting.empty() || !state.handoffs.empty() || !state.deadlines.empty() ||
      !state.by_name.empty()) {
    fail("a queue of the scheduler holds something at the end");
  }
  for (const PoolAudit& pool : audit_pools(state)) {
    if (pool.owned != 0 || pool.fenced != 0 || pool.free != pool.total) {
      fail(pool.worker + ": owned " + std::to_string(pool.owned) + ", fenced " +
           std::to_string(pool.fenced) + " at the end");
    }
  }
  for (const Worker& w : state.workers) {
    if (!w.adds.empty() || !w.joins.empty() || !w.prefills.empty() || !w.decode_set.empty()) {
      fail(w.identity.name + ": a list of the planner holds something at the end");
    }
  }
}

}  // namespace baton::sim
