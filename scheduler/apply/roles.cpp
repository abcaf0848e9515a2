#include "scheduler/apply/roles.h"

#include <string>

#include "scheduler/apply/reachability.h"
#include "scheduler/plan/role_pressure.h"

namespace baton {

void set_role(State& state, WorkerIndex index, Role role, const std::string& why, TimeNs now,
              Outbox& out) {
  Worker& w = state.workers[index];
  if (w.role() == role) return;
  out.info(w.name() + ": was " + to_string(w.role()) + ", is " + to_string(role) +
           " from now on: " + why);
  ++state.counters.role_changes;
  w.given_role = role;
  w.role_since = now;
  if (w.peer.state == WorkerState::gone) return;
  tell_role(w, out);
  if (!w.ready()) return;
  warn_of_small_steps(state.settings, w, out);
  // Pairs that had nothing to hand over until now may be unable to read each other.
  probe_peers(state, index, now, out);
}

void hold_role(State& state, WorkerIndex index, std::optional<Role> role, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  w.held = role.has_value();
  w.role_set_here = true;
  if (role) set_role(state, index, *role, "an operator says so", now, out);
  if (role) w.given_role = role;  // also of a next process that is started with another one
  if (w.peer.state != WorkerState::gone) tell_role(w, out);
}

void turn_roles(State& state, TimeNs now, Outbox& out) {
  constexpr TimeNs kLook = 50 * kMillisecond;
  RoleWatch& watch = state.role_watch;
  if (state.settings.roles == Roles::fixed || now - watch.looked < kLook) return;
  const std::vector<RoleSeat> seats = role_seats(state, now);
  measure_roles(state, seats, now);
  const RoleRules rules{state.settings.role_queue, state.settings.role_dwell};
  const std::optional<RoleChange> change = choose_role(rules, seats, watch, now);
  if (!change) return;
  const Worker& w = state.workers[change->worker];
  watch.last =
      w.name() + ", " + to_string(w.role()) + " to " + to_string(change->role) + ": " + change->why;
  watch.changed = now;
  set_role(state, change->worker, change->role, change->why, now, out);
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
  Register& known = worker.peer.identity;
  if (worker.role() == known.role && worker.held == known.held) return;
  known.role = worker.role();
  known.held = worker.held;
  out.to_workers.emplace_back(worker.peer.link,
                              TakeRole{known.incarnation, known.role, known.held});
}

}  // namespace baton
