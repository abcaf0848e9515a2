// A request over several workers (`elastic: auto`, docs/adr/0026): its extents lie in several
// stores, and one worker at a time, its master, runs its rows. The master reads the earlier extents
// in place, in the pools that it has mapped, and writes to its own pool alone.
//
// When the master has no block left for it, another worker becomes the master: nothing is copied,
// since extents end with a full block. Until its last step here has ended nobody else may run it.
// Who is next is reserved before: in decoding with the block that was missing, in a prompt that is
// longer than a pool when it is admitted, for all of it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/apply/events.h"

namespace baton {

/// So many blocks in one store.
struct PoolShare {
  StoreIndex store = kNobody;
  std::uint32_t blocks = 0;
};

/// Its pool may hold a part of a request whose other parts lie elsewhere: by its role and by what
/// it is, whether it takes work now or not.
bool shares_pools(const Worker& worker);

/// The request may lie in several stores. A beam search stays on one worker, and so does what
/// failed there too often.
bool may_span(const State& state, const Request& request);

/// `reader` computes rows that read the pool of `exporter` in place.
bool reads_in_place(const Worker& reader, const Worker& exporter);

/// How many pools a worker's heads are cut over. A rank on a GPU has a pool of its own heads; on
/// CPUs there is one with all heads, however many ranks write it: 1.
std::size_t parts_of_heads(const Hello& hello);

/// Their blocks hold the same heads.
bool same_heads(const Worker& a, const Worker& b);

/// Both ways, and what one has computed the other may go on with.
bool read_each_other(const Worker& a, const Worker& b);

/// Free blocks beside those that whoever runs there takes next.
std::uint32_t room_beside_growth(const State& state, const Worker& worker);
/// Free blocks that a request which others run, too, may take there now.
std::uint32_t elastic_room(const State& state, const Worker& worker, TimeNs now);

/// Tokens of the longest request that the pools of a set of workers hold, which can read each
/// other, to the best of anybody's knowledge; 0: nobody spans.
std::uint32_t elastic_context(const State& state);

/// Workers have shown that they read each other's pools: State::proven_context grows. With `anew`
/// what was shown before counts no more.
void prove_context(State& state, bool anew);

/// Tokens that fit `worker` and those that it could share a request with, were all of them empty.
std::uint32_t context_around(const State& state, WorkerIndex worker);

/// Where `blocks` more blocks of a request that begins at `first` would lie, in order of their
/// tokens; nothing is reserved. Nothing if there is no room.
std::optional<std::vector<PoolShare>> share_out(const State& state, WorkerIndex first,
                                                std::uint32_t blocks, TimeNs now);
/// Reserves what share_out() has found.
void reserve(State& state, Sequence& sequence, const std::vector<PoolShare>& shares);

/// Its master has no block for its next token: reserves one at another worker that can read all of
/// it, and takes it out of the master's next steps. False: nobody has room.
bool outgrow(State& state, Sequence& sequence, TimeNs now);
/// outgrow() has found nobody, but somebody has room who only takes nothing at this moment, or has
/// not said yet that he can read all of it: each of these ends by itself, and soon.
bool may_outgrow_soon(const State& state, const Sequence& sequence);
/// Likewise, to where blocks are reserved already, or gathered. Of a prompt, its rows so far stay
/// planned.
void leave_for_next(State& state, Sequence& sequence);
/// Those whose steps have ended go on at their next worker, or in one pool (gather.h).
void move_outgrown(State& state);

/// Sequences that other workers run have blocks there, or will have.
bool holds_for_others(const State& state, StoreIndex store);
/// Blocks that were released wait for steps of other workers that read them.
bool is_read_by_others(const State& state, StoreIndex store);
/// `reader`'s steps up to `done` have ended.
void end_reads(State& state, WorkerIndex reader, StepId done);
/// The pool's books are given up: what is pinned there is nobody's.
void forget_reads(State& state, StoreIndex store);

}  // namespace baton
