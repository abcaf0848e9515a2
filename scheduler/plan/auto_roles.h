// Whether a worker should take another role (`roles: auto`), from what is measured and what was
// measured before. Pure: who measures is role_pressure.h, who acts is apply/roles.h.
//
// A side is pressed when work waits for it: prompts for longer than `queue`, or decode workers
// nearly full (or their steps far longer than they need be). If that lasts, one worker is turned
// that the other side can spare. It goes home when its own side could do its part with room to
// spare: both limits lie far apart, so that no load lies on both of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/state/role_watch.h"

namespace baton {

struct RoleRules {
  TimeNs queue = kSecond / 2;  // of prompt work for each worker: pressed
  TimeNs dwell =
      10 * kSecond;  // a worker keeps a role at the least, and calm lasts, before it goes home

  TimeNs hold() const { return dwell / 10; }  // a side is pressed so long before anybody is turned
  TimeNs spacing() const {
    return dwell / 4;
  }  // between two changes: what one does must show first
};

/// One worker in term. Those that drain are none.
struct RoleSeat {
  std::uint32_t worker = 0;
  Role home = Role::mixed;  // the role that it was started with
  Role role = Role::mixed;
  bool free = false;  // it may be turned: heard of, not held by an operator, not mixed at home
  TimeNs since = 0;   // its last change
  std::uint32_t sequences = 0;
  std::uint32_t tokens = 0;            // of the longest request that its pool holds
  std::uint32_t blocks = 0;            // of its pool
  bool roomy[3] = {true, true, true};  // by role: it has room for that role's steps
};

struct RoleChange {
  std::uint32_t worker = 0;
  Role role = Role::mixed;
  std::string why;
};

/// Workers' worth of prefill: those that decode as well give half of their time, and without a
/// worker of that role whoever decodes prefills, too.
double prefill_worth(const std::vector<RoleSeat>& seats);
/// Workers that decode.
std::uint32_t decoders(const std::vector<RoleSeat>& seats);

/// At most one change. Where nobody is left who does one side's work, one that was lent away from
/// it goes home after `hold`; all else waits for `dwell` and `spacing`.
std::optional<RoleChange> choose_role(const RoleRules& rules, const std::vector<RoleSeat>& seats,
                                      RoleWatch& watch, TimeNs now);

}  // namespace baton
