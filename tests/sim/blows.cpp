// What goes wrong, until it stops.
#include <algorithm>

#include "tests/sim/world.h"

namespace baton::sim {

void World::blow() {
  if (!faults_on_) return;
  const Blows& b = scenario_.blows;
  // Blows grow rarer with time: a cluster that is killed faster than it can start has nothing to
  // tell.
  const TimeNs gap = b.gap * (1 + now_ / (10 * kSecond));
  after(random_.time(gap / 10, gap), What::blow, 0);
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
    if (frontend == nullptr) return;
    if (scenario_.successors && heirs_.permille(500)) {
      frontend->doom(heirs_.between(1, 6));  // between a message and a record, say
    } else {
      kill(frontend->id);
    }
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
      scheduler_->inject(SetDraining{
          scenario_.workers[random_.below(scenario_.workers.size())].name, random_.permille(500)});
    }
  } else if (chosen(b.set_role)) {
    if (scheduler_->alive && !scheduler_->frozen) {
      scheduler_->inject(SetRole{scenario_.workers[random_.below(scenario_.workers.size())].name,
                                 random_.pick<Role>({Role::prefill, Role::decode, Role::mixed})});
    }
  } else if (chosen(b.admin_cancel)) {
    admin_cancel();
  } else if (chosen(b.replace_frontend)) {
    if (frontend != nullptr) {
      freeze(frontend->id, freeze_for);
      after(successor_delay(), What::start_successor, frontend->id);
    }
  } else if (chosen(b.kill_memory)) {
    kill_memory();
  } else if (chosen(b.double_start)) {
    if (worker != nullptr) {
      if (random_.permille(500)) freeze(worker->id, freeze_for);
      note_blow();
      start_worker(worker->name);
    }
  }
}

void World::relink(Process* peer) {
  if (peer == nullptr) return;
  trace("RELINK " + peer->label);
  // A worker whose link breaks all the time looks like a dead one.
  if (now_ - relinked_at_ < scenario_.settings.worker_timeout) note_blow();
  relinked_at_ = now_;
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
  sum.resumed += c.resumed;
  sum.growths += c.growths;
  sum.spreads += c.spreads;
  sum.spread_failures += c.spread_failures;
  sum.gathers += c.gathers;
  sum.gathered_blocks += c.gathered_blocks;
  sum.role_changes += c.role_changes;
  sum.prefix_pulls += c.prefix_pulls;
  sum.pulled_prefix_tokens += c.pulled_prefix_tokens;
  sum.blocks_out += c.blocks_out;
  sum.blocks_in += c.blocks_in;
}

}  // namespace baton::sim
