// What lies in several stores comes together again where it decodes (`elastic_gather: auto`,
// docs/adr/0028): its worker pulls the blocks that it reads in place into its own pool while it
// goes on decoding, and when all of them are there, and its steps have ended, its table is that of
// one pool. From then on its replies cost what any other's do, its beginning is found by later
// prompts, and the other workers have their blocks back.
//
// Full blocks are never written again, so the copies need no fence against the steps that read what
// they are copied from.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// `sequence` lies in several stores from now on: once it decodes, it may be gathered.
void note_spanning(State& state, const Sequence& sequence);

/// Sends the pulls of those that are due: one sequence at a time of each worker.
void begin_gathers(State& state, TimeNs now, Outbox& out);

/// One of its pulls has been answered. After the last one it leaves its worker's steps, to come
/// back by come_home(); if one has failed, it stays where it is and is tried again later.
void gather_pulled(State& state, Request& request, Sequence& sequence, bool failed);

/// Its steps have ended and all blocks are here: it goes on in its worker's pool alone.
void come_home(State& state, Sequence& sequence);

/// Its worker needs the blocks for those that decode. True: some will be free when the pulls into
/// them are answered.
bool give_up_gathers(State& state, WorkerIndex worker);
/// What was pulled for it is of no use: it leaves its worker, or a pull has failed.
void give_up_gather(State& state, Sequence& sequence);

}  // namespace baton
