// What goes wrong, and the end of it: the state that everything must come to rest in.
#include <algorithm>

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

void World::blow() {
  if (!faults_on_) return;
  const Blows& b = scenario_.blows;
  after(random_.time(b.gap / 10, b.gap), What::blow, 0);
  auto draw = static_cast<std::uint32_t>(random_.below(b.total()));
  const auto chosen = [&](std::uint32_t weight) {
    const bool hit = draw < weight;
    draw -= hit ? 0 : weight;
    return weight != 0 && hit;
  };
  const TimeNs freeze_for = random_.time(b.freeze / 20, b.freeze);
  SimWorker* worker = some_worker();
  SimFrontend* frontend = some_frontend();
  if (chosen(b.kill_worker)) {
    if (worker != nullptr) kill(worker->id);
    if (random_.permille(150) && (worker = some_worker()) != nullptr) kill(worker->id);
  } else if (chosen(b.kill_scheduler)) {
    kill(scheduler_->id);
    if (random_.permille(150) && worker != nullptr) kill(worker->id);
  } else if (chosen(b.kill_frontend)) {
    if (frontend != nullptr) kill(frontend->id);
  } else if (chosen(b.freeze_worker)) {
    if (worker != nullptr) freeze(worker->id, freeze_for);
  } else if (chosen(b.freeze_scheduler)) {
    freeze(scheduler_->id, freeze_for);
  } else if (chosen(b.freeze_frontend)) {
    if (frontend != nullptr) freeze(frontend->id, freeze_for);
  } else if (chosen(b.relink)) {
    relink(random_.permille(700) ? static_cast<Process*>(worker) : frontend);
  } else if (chosen(b.terminate)) {
    if (worker != nullptr && !worker->frozen) {
      trace("SIGTERM " + worker->label);
      worker->terminate();
    }
  } else if (chosen(b.leave)) {
    if (frontend != nullptr && !frontend->frozen) {
      trace("SIGTERM " + frontend->label);
      frontend->leave();
    }
  } else if (chosen(b.set_draining)) {
    if (scheduler_->alive && !scheduler_->frozen) {
      scheduler_->inject(SetDraining{scenario_.workers[random_.below(scenario_.workers.size())].name,
                                     random_.permille(500)});
    }
  } else if (chosen(b.admin_cancel)) {
    admin_cancel();
  } else if (chosen(b.double_start)) {
    if (worker != nullptr) {
      if (random_.permille(500)) freeze(worker->id, freeze_for);
      start_worker(worker->name);
    }
  }
}

void World::relink(Process* peer) {
  if (peer == nullptr) return;
  trace("RELINK " + peer->label);
  network_.break_link(peer->id);
}

void World::admin_cancel() {
  if (!scheduler_->alive || scheduler_->frozen || scheduler_->state.deadlines.empty()) return;
  auto it = scheduler_->state.deadlines.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(random_.below(scheduler_->state.deadlines.size())));
  const RequestId name = scheduler_->state.requests.find(it->second)->name;
  admin_cancelled_.push_back(name);
  scheduler_->inject(AdminCancel{name});
}

bool World::was_cancelled(const RequestId& request) const {
  return std::find(admin_cancelled_.begin(), admin_cancelled_.end(), request) !=
         admin_cancelled_.end();
}

void World::stop_faults() {
  trace("FAULTS STOP");
  faults_on_ = false;
  for (std::uint32_t id = 0; id < processes_.size(); ++id) {
    if (processes_[id]->frozen) at(now_, What::thaw, id);
  }
  draining_ends_ = true;
}

void World::add_counters(const Counters& c) {
  Counters& sum = report_.counters;
  sum.accepted += c.accepted;
  sum.refused += c.refused;
  sum.finished += c.finished;
  sum.errors += c.errors;
  sum.cancelled += c.cancelled;
  sum.tokens += c.tokens;
  sum.preemptions += c.preemptions;
  sum.handoffs += c.handoffs;
  sum.local_prefills += c.local_prefills;
  sum.remote_prefills += c.remote_prefills;
  sum.pull_failures += c.pull_failures;
  sum.terms_ended += c.terms_ended;
  sum.requeued += c.requeued;
}

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
        *why += std::string(" [#") + std::to_string(r.name.counter) + " " + to_string(r.phase) + "]";
      });
    }
  }
  if (state.sequences.size() != 0 || state.transfers.size() != 0) {
    still = busy("sequences or transfers at the scheduler");
  }
  if (state.workers.size() < scenario_.workers.size()) still = busy("a worker never registered");
  for (const Worker& w : state.workers) {
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
