// Measures what `roles: auto` decides from.
#pragma once

#include <vector>

#include "scheduler/plan/auto_roles.h"
#include "scheduler/state/cluster_state.h"

namespace baton {

/// The workers that take work.
std::vector<RoleSeat> role_seats(const State& state, TimeNs now);
/// Writes what is found to the state's RoleWatch.
void measure_roles(State& state, const std::vector<RoleSeat>& seats, TimeNs now);

}  // namespace baton
