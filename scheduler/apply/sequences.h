// One request's places on workers: made, released, moved into the decode set. The books of blocks
// are kept here.
#pragma once

#include <cstdint>

#include "scheduler/apply/tables.h"
#include "scheduler/state/cluster_state.h"

namespace baton {

/// Who writes first to the fresh blocks of a sequence: steps of its worker from the next plan on,
/// or a pull, beside the steps.
enum class Writer : std::uint8_t { steps, pull };
/// A new sequence of `request` on `worker` with the blocks of its start, those of `prefix` (of
/// cached_prefix(), just now) and fresh ones; nullptr if they are not free. What the host part
/// holds of the prefix is copied into fresh ones by the worker's next plan, which must follow.
Sequence* place_sequence(State& state, Request& request, WorkerIndex worker, StartSpan span,
                         const BlockPool::Match& prefix, Writer writer);
/// Releases the blocks, leaves the decode set, tells the worker to drop it. With `keep`, and steps
/// in flight, the entry stays (retiring) until they have ended; otherwise it is gone.
void release_sequence(State& state, SequenceId id, bool keep = false);
/// Releases every sequence of the request, and its beam search goes back to the start.
void release_places(State& state, Request& request);
/// A prompt that is computed stays on its worker to decode.
void begin_decode(State& state, Request& request, Sequence& sequence);
/// The blocks of one of its extents go; steps in flight that read them still may.
void release_extent(State& state, const Sequence& sequence, Extent& extent);
void join_decode_set(State& state, Sequence& sequence);
void leave_decode_set(State& state, Sequence& sequence);

}  // namespace baton
