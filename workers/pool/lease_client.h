// A worker's end of the lease of its pool: see memory/leases.h for the rules, docs/PROTOCOL.md for
// the messages. Used by the thread that allocates; every wait has an end, behind which the worker
// makes a pool of its own.
#pragma once

#include <string>

#include "ipc/messages.h"
#include "ipc/process.h"
#include "ipc/status.h"
#include "workers/pool/kv_pool.h"

namespace baton {

/// What a worker asks for when its pool is to be `geometry`, with so many blocks on the host.
/// `weights`: their type in memory.
Lease lease_of(const PoolRequest& request, const KvGeometry& geometry, std::uint32_t host_blocks,
               const std::string& weights);

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

/// The memory process that has allocated the pool of this handle; empty: it is its worker's own.
std::string keeper_of(const std::string& handle);
/// Before that pool is mapped: the memory is its content's for as long as the link is held. The
/// error says why the pool cannot be mapped.
Result<UniqueFd> hold_mapping(const std::string& socket, const std::string& handle);

}  // namespace baton
