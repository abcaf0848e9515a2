// Choices that a setting or a taste decides, each testable alone. Pure functions of the state.
#pragma once

#include <cstdint>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// A worker that took no plan lately and has been silent longer than this gets nothing new: it may
/// be frozen, and an idle worker is not judged by its progress.
constexpr TimeNs kStaleAfter = 1500 * kMillisecond;

/// True if the worker may be given new sequences at all.
bool accepts(const Worker& worker, TimeNs now);

/// True if what is prefilled on `worker` is decoded there, too (as long as nobody joins who
/// decodes).
bool decodes_here(const State& state, const Worker& worker);

/// Blocks that admission leaves free so that running sequences can grow for a while: a share of the
/// pool, or one for each running sequence.
std::uint32_t watermark(const Settings& settings, const Worker& worker);

/// True if the free and cached blocks of `worker` take `blocks` more (and one for each further
/// beam), and leave the watermark or, with `admission: future`, suffice to the end of all
/// (fits_to_the_end). An empty worker may be filled to the last block, so that a long prompt is
/// never refused for ever.
bool has_room(const State& state, const Worker& worker, const Request& request,
              std::uint32_t blocks);

/// True if `worker` has so large a share of the prompt in its prefix cache that no hand-off is
/// worth it (`local_prefill`: cached).
bool mostly_cached(const State& state, const Request& request, const Worker& worker);

/// Looks now and then whether the blocks of a waiting request are still where it was preempted
/// (`kept`).
void look_after_kept(const State& state, Request& request);

/// True if the request was preempted on a decode worker, and its blocks are kept there but for the
/// last few tokens: it goes on there, and nowhere else, once there is room.
bool goes_back(const State& state, const Request& request, TimeNs now);

/// True if `worker` may run this request's prompt. A decode worker runs short ones
/// (`local_prefill`: tokens), those that it has cached and those that come back to it, and a
/// prefill worker leaves them to it.
bool may_prefill(const State& state, const Request& request, const Worker& worker, TimeNs now);

/// It has waited for a prefill worker for as long as `local_prefill` says (wait_ms): decode workers
/// may take it, too.
bool has_waited(const Settings& settings, const Request& request, TimeNs now);

/// For as long a request may be left to a worker with less to do, which may turn out to be frozen.
constexpr TimeNs kWaitForBalance = 50 * kMillisecond;

/// True if another mixed worker, which has no prompt at hand and runs fewer sequences (by two or
/// more), can take this one: whoever plans first would else take all that wait.
bool lighter_elsewhere(const State& state, const Request& request, const Worker& worker,
                       TimeNs now);

/// True if another worker may run this prompt at once and knows so much more of it than `worker`,
/// which knows `own_columns`, that waiting for its turn there is shorter than computing that here.
bool better_placed(const State& state, const Request& request, const Worker& worker,
                   std::size_t own_columns, TimeNs now);

/// True if `worker` may be handed a prompt: less than `pull_watermark` of its pool is in use, or
/// nothing runs there.
bool may_pull(const Settings& settings, const Worker& worker);

/// The decode worker for a hand-off from `exporter`: the least loaded one within reach that has
/// room and is not spoken for (one flag a worker), or kNobody.
WorkerIndex choose_decoder(const State& state, const Request& request, WorkerIndex exporter,
                           const std::vector<bool>& spoken_for, TimeNs now);

/// Whom to preempt on `worker` (`victim`): the request that stands last in the queue; the one with
/// the fewest tokens, which costs least to compute again; or the tail, which was placed there last.
/// nullptr if only one is left.
Request* choose_victim(State& state, WorkerIndex worker);

}  // namespace baton
