// A worker's end of the lease of its pool: see memory/leases.h for the rules, docs/PROTOCOL.md for
// the messages. Used by the thread that allocates; every wait has an end, behind which the worker
// makes a pool of its own.
#pragma once

#include <string>

#include "ipc/messages.h"
#include "ipc/process.h"
#include "ipc/status.h"

namespace baton {

struct LeaseWaits {
  TimeNs connect = kSecond;      // a memory process that has died is started again
  TimeNs answer = 10 * kSecond;  // an older process of the name may take so long to end
};

struct LeasedPool {
  Leased answer;
  UniqueFd link;  // hangs up when the memory process dies: the pool is nobody's but ours then
};

/// A link to the memory process. The error: there is none, or none that answers in that time.
Result<UniqueFd> reach_memory_process(const std::string& socket, TimeNs patience);

/// The error says why there is no lease; the memory process may be absent, dead, or frozen.
Result<LeasedPool> lease_pool(const std::string& socket, const Lease& lease,
                              const LeaseWaits& waits = {});

}  // namespace baton
