#include "scheduler/plan/elastic.h"

#include <algorithm>
#include <limits>

#include "ipc/fault_points.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/admission.h"
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/gather.h"
#include "scheduler/plan/policy.h"
#include "scheduler/prefix/prefix_cache.h"

namespace baton {

namespace {

/// Of a request whose masters could not read its blocks so often nothing more is tried.
constexpr std::uint32_t kMostUnmapped = 3;

bool takes_part(const Worker& worker) { return shares_pools(worker) && worker.takes_work(); }

std::uint64_t pool_tokens(const Worker& worker) {
  return std::uint64_t{worker.store.offer.blocks} * worker.store.tokens_per_block();
}

/// As many run there as may, or are to come.
bool is_full(const State& state, const Worker& worker) {
  return worker.compute.sequences + worker.compute.expected >= most_running(state, worker);
}

/// May be given something of another worker now.
bool has_a_place(const State& state, const Worker& worker, TimeNs now) {
  return takes_part(worker) && accepts(worker, now) && worker.may_begin() &&
         !worker.compute.short_of_blocks && !is_full(state, worker);
}

/// What one has computed the other may go on with: `worker.max_context` is each one's own.
bool same_positions(const Worker& a, const Worker& b) {
  return a.store.last_positions == b.store.last_positions;
}

std::size_t stores_of(const Sequence& sequence, StoreIndex more) {
  std::vector<StoreIndex> stores = {more};
  for (const Extent& extent : sequence.extents) stores.push_back(extent.store);
  std::sort(stores.begin(), stores.end());
  return static_cast<std::size_t>(std::unique(stores.begin(), stores.end()) - stores.begin());
}

/// Tokens of a set of workers around `first` that grows by the largest pool that fits it.
template <typename Fits, typename Tokens>
std::uint64_t sum_around(const State& state, WorkerIndex first, const Fits& fits,
                         const Tokens& tokens) {
  std::vector<WorkerIndex> set = {first};
  std::uint64_t sum = tokens(state.workers[first]);
  std::vector<WorkerIndex> others;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    if (i != first) others.push_back(i);
  }
  std::stable_sort(others.begin(), others.end(), [&](WorkerIndex a, WorkerIndex b) {
    return tokens(state.workers[a]) > tokens(state.workers[b]);
  });
  for (const WorkerIndex i : others) {
    if (set.size() >= state.settings.elastic_degree) break;
    const bool all = std::all_of(set.begin(), set.end(), [&](WorkerIndex member) {
      return fits(state.workers[member], state.workers[i]);
    });
    if (!all) continue;
    set.push_back(i);
    sum += tokens(state.workers[i]);
  }
  return sum;
}

}  // namespace

std::uint32_t room_beside_growth(const State& state, const Worker& worker) {
  const std::uint32_t available = worker.store.pool.available_blocks();
  // It may be filled to the last block.
  if (worker.compute.sequences + worker.compute.expected == 0) return available;
  const std::uint32_t kept = std::max(watermark(state.settings, worker),
                                      worker.compute.sequences + worker.compute.expected);
  return available > kept ? available - kept : 0;
}

bool shares_pools(const Worker& worker) {
  return worker.role() == Role::mixed && worker.store.shape.plain() &&
         worker.store.offer.reads_in_place;
}

bool may_span(const State& state, const Request& request) {
  return state.settings.elastic && !request.beams && request.handoff_failures < kMostUnmapped;
}

bool reads_in_place(const Worker& reader, const Worker& exporter) {
  return reader.peer.readable.count(exporter.store.allocation()) != 0;
}

std::size_t parts_of_heads(const Hello& hello) {
  const bool cut = std::any_of(hello.ranks.begin(), hello.ranks.end(), [&](const PoolRank& rank) {
    return rank.handle != hello.ranks.front().handle;
  });
  return cut ? hello.ranks.size() : 1;
}

bool same_heads(const Worker& a, const Worker& b) {
  return parts_of_heads(a.store.offer) == parts_of_heads(b.store.offer);
}

/// Each of the later ones must read all those before it; between the same workers growth may go
/// either way, so both ways are asked for.
bool read_each_other(const Worker& a, const Worker& b) {
  if (fault(Fault::unreachable_share)) return same_positions(a, b);
  return reads_in_place(a, b) && reads_in_place(b, a) && same_positions(a, b);
}

std::uint32_t elastic_room(const State& state, const Worker& worker, TimeNs now) {
  return has_a_place(state, worker, now) ? room_beside_growth(state, worker) : 0;
}

std::uint32_t elastic_context(const State& state) {
  if (!state.settings.elastic) return 0;
  const auto tokens = [](const Worker& w) { return std::uint64_t{w.store.last_context}; };
  // One that is away comes back, but for one that an operator has drained; that two cannot read
  // each other is known once they were asked.
  const auto fits = [](const Worker& a, const Worker& b) {
    const auto may = [](const Worker& w) {
      return w.role() == Role::mixed && w.store.shape.plain() &&
             (w.store.offer.reads_in_place || !w.ready()) &&
             !(w.ready() && w.peer.draining && !w.peer.leaving);
    };
    const bool known = a.ready() && b.ready();
    return may(a) && may(b) && same_positions(a, b) && (!known || same_heads(a, b)) &&
           reaches(a, b) && reaches(b, a);
  };
  std::uint64_t most = 0;
  std::uint32_t positions = 0;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    positions = std::max(positions, w.store.last_positions);
    if (w.role() != Role::mixed || w.store.last_context == 0) continue;
    most = std::max(most, sum_around(state, i, fits, tokens));
  }
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, positions));
}

void prove_context(State& state, bool anew) {
  if (anew) state.proven_context = 0;
  if (!state.settings.elastic) return;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    if (state.workers[i].takes_work())
      state.proven_context = std::max(state.proven_context, context_around(state, i));
  }
}

std::uint32_t context_around(const State& state, WorkerIndex worker) {
  const Worker& w = state.workers[worker];
  if (!state.settings.elastic || !takes_part(w)) return w.store.context();
  const auto fits = [](const Worker& a, const Worker& b) {
    return takes_part(b) && read_each_other(a, b);
  };
  const auto tokens = [](const Worker& each) { return pool_tokens(each); };
  const std::uint64_t sum = sum_around(state, worker, fits, tokens);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(sum, w.store.offer.max_context));
}

std::optional<std::vector<PoolShare>> share_out(const State& state, WorkerIndex first,
                                                std::uint32_t blocks, TimeNs now) {
  std::vector<WorkerIndex> order;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    if (i != first && has_a_place(state, state.workers[i], now)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](WorkerIndex a, WorkerIndex b) {
    return room_beside_growth(state, state.workers[a]) >
           room_beside_growth(state, state.workers[b]);
  });
  std::vector<PoolShare> shares;
  for (const WorkerIndex i : order) {
    if (blocks == 0 || shares.size() + 1 >= state.settings.elastic_degree) break;
    const Worker& w = state.workers[i];
    const bool reads = read_each_other(w, state.workers[first]) &&
                       std::all_of(shares.begin(), shares.end(), [&](const PoolShare& share) {
                         return read_each_other(w, state.workers[share.store]);
                       });
    const std::uint32_t share = std::min(blocks, room_beside_growth(state, w));
    if (!reads || share == 0) continue;
    shares.push_back({i, share});
    blocks -= share;
  }
  if (blocks != 0) return std::nullopt;
  return shares;
}

void reserve(State& state, Sequence& sequence, const std::vector<PoolShare>& shares) {
  for (const PoolShare& share : shares) {
    Extent& extent = sequence.ahead.emplace_back(Extent{share.store, 0, {}});
    ++state.workers[share.store].compute.expected;
    // Nothing is saved for it: its owner's next plan may have left, and the copies with it.
    state.store(share.store).pool.allocate(share.blocks, extent.blocks);
  }
}

namespace {

/// It could go on there, if there is a place: `reads` tells whether a worker reads the pool of
/// another one.
template <typename Reads>
bool could_go_on_at(const State& state, const Sequence& sequence, WorkerIndex next,
                    const Reads& reads) {
  const Worker& w = state.workers[next];
  return next != sequence.worker && stores_of(sequence, next) <= state.settings.elastic_degree &&
         same_positions(w, state.workers[sequence.worker]) &&
         std::all_of(sequence.extents.begin(), sequence.extents.end(), [&](const Extent& extent) {
           return extent.store == next || reads(w, state.workers[extent.store]);
         });
}

}  // namespace

bool may_outgrow_soon(const State& state, const Sequence& sequence) {
  const auto will_read = [&](const Worker& w, const Worker& at) {
    const bool asked = may_read_in_place(state, at, w) && at.takes_work() && reaches(at, w);
    return reads_in_place(w, at) || asked;
  };
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (takes_part(w) && !is_full(state, w) && room_beside_growth(state, w) != 0 &&
        could_go_on_at(state, sequence, i, will_read)) {
      return true;
    }
  }
  return false;
}

bool outgrow(State& state, Sequence& sequence, TimeNs now) {
  WorkerIndex best = kNobody;
  std::uint32_t most = 0;
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (!has_a_place(state, w, now)) continue;
    const std::uint32_t room = room_beside_growth(state, w);
    if (room <= most || !could_go_on_at(state, sequence, i, reads_in_place)) continue;
    best = i;
    most = room;
  }
  if (best == kNobody) return false;
  give_up_gather(state, sequence);
  reserve(state, sequence, {{best, 1}});
  leave_for_next(state, sequence);
  return true;
}

void leave_for_next(State& state, Sequence& sequence) {
  Worker& w = state.workers[sequence.worker];
  if (sequence.decode_slot != kNobody) {
    leave_decode_set(state, sequence);
    // At once: the worker would give it a row in the step that is being planned.
    if (sequence.on_worker) w.compute.drops.push_back(sequence.id);
    sequence.on_worker = false;
  }
  sequence.outgrown = true;
  state.outgrown.push_back(sequence.id);
}

namespace {

void move_on(State& state, Sequence& sequence) {
  Request& request = *state.request_of(sequence);
  Worker& from = state.workers[sequence.worker];
  remember_prefix(state, sequence);
  if (sequence.on_worker) from.compute.drops.push_back(sequence.id);
  sequence.on_worker = false;
  from.compute.sequences -= sequence.width;
  sequence.extents.push_back(std::move(sequence.ahead.front()));
  sequence.ahead.erase(sequence.ahead.begin());
  sequence.tail().first_token = sequence.scheduled;
  sequence.worker = sequence.tail().store;
  sequence.outgrown = false;
  Worker& to = state.workers[sequence.worker];
  --to.compute.expected;
  to.compute.sequences += sequence.width;
  ++state.counters.growths;
  note_spanning(state, sequence);
  request.times.grew();
  clamp_output(state, request);
  if (sequence.scheduled < sequence.prefill_length) {
    to.compute.prefills.push_back(sequence.id);
  } else {
    request.times.enter(Part::decode_wait, state.now);
    to.compute.adds.push_back(sequence.id);
  }
}

/// A block that was found in the host part is not there before the step that copies it has ended.
bool is_being_filled(const State& state, const Sequence& sequence) {
  const BlockPool& pool = state.store(sequence.worker).pool;
  const std::vector<BlockId>& blocks = sequence.tail().blocks;
  if (fault(Fault::moved_before_copies)) return false;
  return std::any_of(blocks.begin(), blocks.end(),
                     [&](BlockId block) { return pool.target_pins(block) != 0; });
}

}  // namespace

void move_outgrown(State& state) {
  std::erase_if(state.outgrown, [&](SequenceId id) {
    Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr || sequence->retiring || !sequence->outgrown) return true;
    if (sequence->inflight != 0 || is_being_filled(state, *sequence)) return false;
    sequence->gather ? come_home(state, *sequence) : move_on(state, *sequence);
    return true;
  });
}

bool holds_for_others(const State& state, StoreIndex store) {
  bool holds = false;
  state.sequences.each([&](const Sequence& sequence) {
    holds = holds || (sequence.worker != store && sequence.lies_in(store));
  });
  return holds;
}

bool is_read_by_others(const State& state, StoreIndex store) {
  return std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    return std::any_of(w.compute.reads.begin(), w.compute.reads.end(),
                       [&](const ForeignRead& read) { return read.store == store; });
  });
}

void end_reads(State& state, WorkerIndex reader, StepId done) {
  std::deque<ForeignRead>& reads = state.workers[reader].compute.reads;
  while (!reads.empty() && reads.front().last_sent <= done) {
    const ForeignRead read = std::move(reads.front());
    reads.pop_front();
    for (const BlockId block : read.blocks) state.store(read.store).pool.unpin_source(block);
  }
}

void forget_reads(State& state, StoreIndex store) {
  for (Worker& w : state.workers) {
    std::erase_if(w.compute.reads, [&](const ForeignRead& read) { return read.store == store; });
  }
}

}  // namespace baton
