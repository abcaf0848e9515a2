#include "scheduler/apply/roles.h"

#include <string>

#include "scheduler/apply/reachability.h"

namespace baton {

void set_role(State& state, WorkerIndex index, Role role, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  if (w.role() == role) return;
  out.info(w.name() + ": was " + to_string(w.role()) + ", is " + to_string(role) + " from now on");
  w.given_role = role;
  if (w.peer.state == WorkerState::gone) return;
  tell_role(w, out);
  if (!w.ready()) return;
  warn_of_small_steps(state.settings, w, out);
  // Pairs that had nothing to hand over until now may be unable to read each other.
  probe_peers(state, index, now, out);
}

void warn_of_small_steps(const Settings& settings, const Worker& worker, Outbox& out) {
  const std::uint32_t wanted = settings.token_budget.of(worker.role());
  if (worker.step_room() >= wanted) return;
  out.warn(worker.name() + ": has room for " + std::to_string(worker.step_room()) +
           " tokens in a step, and the settings say " + std::to_string(wanted) + " where one is " +
           to_string(worker.role()) +
           ": its steps are smaller. Start it again with the scheduler's settings");
}

void tell_role(Worker& worker, Outbox& out) {
  if (!worker.given_role || *worker.given_role == worker.peer.identity.role) return;
  worker.peer.identity.role = *worker.given_role;
  out.to_workers.emplace_back(worker.peer.link,
                              TakeRole{worker.peer.identity.incarnation, *worker.given_role});
}

}  // namespace baton
