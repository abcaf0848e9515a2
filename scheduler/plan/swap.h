// Which blocks that a pool has no room for any more are kept in its host part. What is kept is
// found again through the prefix cache; a sequence that comes back has its blocks copied in by the
// plan after it is placed.
#pragma once

#include <cstdint>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// True if `worker` has a host part and (`swap`) blocks that its pool takes from the cache are
/// copied there: always, or where out and back in take less time than computing the tokens again.
/// While no step with a prompt has been measured anywhere, copying counts as cheaper.
bool swaps(const State& state, const Worker& worker);

/// For allocate(): with `auto`, what was found once or is waited for is saved. The blocks of most
/// requests are asked for by nobody after them: to copy all of them costs more than it brings.
Saving saving_of(const State& state, Worker& worker);

/// Before a plan is sent: blocks that will be taken soon and that the host part does not know are
/// copied ahead (`swap_step_blocks`), for those who cannot wait for a copy then: a pull may write
/// as soon as it is sent.
void save_ahead(const State& state, Worker& worker);

}  // namespace baton
