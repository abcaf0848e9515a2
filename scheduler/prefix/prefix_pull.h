// The beginning of a prompt that another worker's pool holds: found, pulled, awaited.
#pragma once

#include <vector>

#include "scheduler/apply/events.h"

namespace baton {

/// Settings allow it.
bool pulls_prefixes(const Settings& settings);
/// `to` may pull the beginning of this request out of the pool of `from`.
bool may_pull_prefix(const State& state, const Request& request, const Worker& from,
                     const Worker& to);
/// Blocks of another pool that hold the request's beginning behind what a worker itself knows of
/// it.
struct PrefixSource {
  WorkerIndex worker = kNobody;  // none is worth it
  std::vector<BlockId> blocks;   // columns
  std::uint32_t columns = 0;     // of the request that are known with them
};
/// Where most of it can be pulled from to `worker`, which knows the first `own_columns` columns.
PrefixSource find_prefix(const State& state, const Request& request, WorkerIndex worker,
                         std::uint32_t own_columns);
/// Those blocks are on their way to `worker` for somebody else, and will soon be found there.
bool is_being_pulled(const State& state, const PrefixSource& prefix, WorkerIndex worker);
/// Asks for them; `sequence`, just placed, waits for the answer before its worker hears of it.
void pull_prefix(State& state, Request& request, Sequence& sequence, const PrefixSource& prefix,
                 TimeNs now, Outbox& out);
/// The answer: the rest (if it failed, all that was asked for, too) is computed.
void prefix_pulled(State& state, Request& request, bool failed);

}  // namespace baton
