// Choices that a setting or a taste decides, each testable alone. Pure functions of the state.
#pragma once

#include <cstdint>

#include "scheduler/cluster_state.h"

namespace baton {

/// A worker that took no plan lately and has been silent longer than this gets nothing new: it may be
/// frozen, and an idle worker is not judged by its progress.
constexpr TimeNs kStaleAfter = 1500 * kMillisecond;

/// Where a request stands in every queue: its arrival, moved by `priority_age` a step of its priority.
/// So the queue is ordered by priority among those that came within that time, and whoever has waited
/// longer goes first all the same: nothing starves.
TimeNs queue_place(const Submit& submit, const Settings& settings);

/// True if the worker may be given new sequences at all.
bool accepts(const Worker& worker, TimeNs now);

/// Blocks that admission leaves free so that running sequences can grow for a while.
std::uint32_t watermark(const Worker& worker);

/// True if the free and cached blocks of `worker` take `blocks` more (and one for each further beam) and
/// leave the watermark. An empty worker may be filled to the last block, so that a long prompt is never
/// refused for ever.
bool has_room(const State& state, const Worker& worker, const Request& request,
              std::uint32_t blocks);

/// True if `worker` may run this request's prompt.
bool may_prefill(const State& state, const Request& request, const Worker& worker);

/// True if another worker may run this prompt at once and knows so much more of it than `worker`, which
/// knows `own_blocks`, that waiting for its turn there is shorter than computing that here.
bool better_placed(const State& state, const Request& request, const Worker& worker,
                   std::size_t own_blocks, TimeNs now);

/// A request that two workers died under is run alone, so that its batch-mates are never blamed.
bool is_suspect(const State& state, const Request& request);

/// True while `worker` computes the prompt of a suspect: nobody joins it.
bool runs_suspect(const State& state, const Worker& worker);

/// The decode worker for a hand-off from `source`: the least loaded one within reach that has room and is
/// not spoken for (one flag a worker), or kNobody.
WorkerIndex choose_decoder(const State& state, const Request& request, WorkerIndex source,
                           const std::vector<bool>& spoken_for, TimeNs now);

/// Whom to preempt on `worker`: the request that stands last; nullptr if only one is left.
Request* choose_victim(State& state, WorkerIndex worker);

}  // namespace baton
