#include "scheduler/plan/gather.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "ipc/fault_points.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/prefix/prefix_cache.h"

namespace baton {

namespace {

/// A reply that has fewer tokens left ends before the blocks have come.
constexpr std::uint32_t kLeastTokens = 2;
/// It must be able to grow by this part of what is pulled: else it would soon outgrow the pool
/// again, and all of it be pulled after it. So a token that is decoded moves no more than eight
/// others.
constexpr std::uint32_t kGrowthPart = 8;
/// Of one pull, so that each ends long before it counts as one that hangs.
constexpr std::size_t kPullBlocks = 1024;
/// After so many pulls that failed it stays where it is.
constexpr std::uint32_t kMostFailures = 3;

std::uint32_t foreign_blocks(const Sequence& sequence) {
  std::size_t blocks = 0;
  for (const Extent& extent : sequence.extents)
    blocks += extent.store != sequence.worker ? extent.blocks.size() : 0;
  return static_cast<std::uint32_t>(blocks);
}

/// It decodes, and nothing is about to take it elsewhere.
bool settled(const Sequence& sequence) {
  return sequence.decode_slot != kNobody && !sequence.spread && !sequence.outgrown &&
         sequence.ahead.empty() && !sequence.gather && sequence.open_pulls == 0;
}

bool is_due(const State& state, const Request& request, const Sequence& sequence, TimeNs now) {
  const Worker& w = state.workers[sequence.worker];
  if (!settled(sequence) || !w.takes_work() || !w.may_begin() || w.compute.short_of_blocks ||
      sequence.gather_failures >= kMostFailures || request.handoff_not_before > now ||
      is_suspect(state, request) || request.deaths.of(Stage::pull) != 0 ||
      request.generated.size() + kLeastTokens > request.sampling.max_tokens) {
    return false;
  }
  const bool there =
      std::all_of(sequence.extents.begin(), sequence.extents.end(), [&](const Extent& e) {
        return e.store == sequence.worker || state.workers[e.store].ready() ||
               fault(Fault::gathered_from_absent);
      });
  const std::uint32_t blocks = foreign_blocks(sequence);
  return there && room_beside_growth(state, w) >= blocks + blocks / kGrowthPart;
}

void begin_gather(State& state, const Request& request, Sequence& sequence, TimeNs now,
                  Outbox& out) {
  Store& store = state.store(sequence.worker);
  sequence.gather = std::make_unique<Gather>();
  std::vector<BlockId>& to = sequence.gather->blocks;
  store.pool.allocate(foreign_blocks(sequence), to);
  std::map<StoreIndex, std::pair<std::vector<BlockId>, std::vector<BlockId>>> by_store;
  std::size_t at = 0;
  for (const Extent& extent : sequence.extents) {
    if (extent.store == sequence.worker) continue;
    auto& [from, places] = by_store[extent.store];
    for (const BlockId block : extent.blocks) {
      from.push_back(block);
      places.push_back(to[at++]);
    }
  }
  for (const auto& [exporter, blocks] : by_store) {
    const std::span<const BlockId> from(blocks.first);
    const std::span<const BlockId> places(blocks.second);
    for (std::size_t i = 0; i < from.size(); i += kPullBlocks) {
      const std::size_t n = std::min(kPullBlocks, from.size() - i);
      open_pull(state, request, exporter, from.subspan(i, n), places.subspan(i, n), sequence, now,
                out);
    }
  }
  ++state.counters.gathers;
  state.counters.gathered_blocks += to.size();
}

}  // namespace

void note_spanning(State& state, const Sequence& sequence) {
  if (!state.settings.elastic_gather) return;
  std::vector<SequenceId>& list = state.spanning;
  if (std::find(list.begin(), list.end(), sequence.id) == list.end()) list.push_back(sequence.id);
}

void begin_gathers(State& state, TimeNs now, Outbox& out) {
  std::vector<bool> busy(state.workers.size(), false);
  std::erase_if(state.spanning, [&](SequenceId id) {
    const Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr || sequence->retiring || !sequence->spans()) return true;
    if (sequence->gather) busy[sequence->worker] = true;
    return false;
  });
  for (const SequenceId id : state.spanning) {
    Sequence& sequence = *state.sequences.find(id);
    const Request* request = state.request_of(sequence);
    if (request == nullptr || busy[sequence.worker] || !is_due(state, *request, sequence, now))
      continue;
    busy[sequence.worker] = true;
    begin_gather(state, *request, sequence, now, out);
  }
}

void gather_pulled(State& state, Request& request, Sequence& sequence, bool failed) {
  sequence.gather->failed = sequence.gather->failed || failed;
  if (sequence.open_pulls != 0 && !fault(Fault::home_before_its_blocks)) return;
  if (sequence.gather->failed) {
    ++sequence.gather_failures;
    request.handoff_not_before = state.now + 200 * kMillisecond;
    return give_up_gather(state, sequence);
  }
  if (sequence.outgrown) return;
  // Its last token is on its way: it stays to its end where it is.
  if (sequence.decode_slot == kNobody) return give_up_gather(state, sequence);
  leave_for_next(state, sequence);
}

void come_home(State& state, Sequence& sequence) {
  Worker& w = state.workers[sequence.worker];
  Request& request = *state.request_of(sequence);
  const std::unique_ptr<Gather> gather = std::move(sequence.gather);
  const bool elsewhere = sequence.extents.front().store != sequence.worker;
  if (elsewhere && !fault(Fault::stale_prefix_node)) {  // another pool's index knew it
    sequence.remembered = 0;
    sequence.prefix_node = PrefixIndex::kRoot;
  }
  Extent whole{sequence.worker, 0, {}};
  std::size_t at = 0;
  for (Extent& extent : sequence.extents) {
    if (extent.store == sequence.worker) {
      whole.blocks.insert(whole.blocks.end(), extent.blocks.begin(), extent.blocks.end());
      continue;
    }
    for (std::size_t i = 0; i < extent.blocks.size(); ++i)
      whole.blocks.push_back(gather->blocks[at++]);
    release_extent(state, sequence, extent);
  }
  sequence.extents.clear();
  sequence.extents.push_back(std::move(whole));
  sequence.outgrown = false;
  remember_prefix(state, sequence);
  request.deaths.got_on(Stage::pull);
  request.times.enter(Part::decode_wait, state.now);
  w.compute.adds.push_back(sequence.id);
}

bool give_up_gathers(State& state, WorkerIndex worker) {
  bool some = false;
  for (const SequenceId id : state.spanning) {
    Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr || sequence->worker != worker || !sequence->gather ||
        sequence->outgrown)
      continue;
    give_up_gather(state, *sequence);
    ++sequence->gather_failures;  // not again and again
    some = true;
  }
  return some;
}

void give_up_gather(State& state, Sequence& sequence) {
  if (!sequence.gather) return;
  Extent blocks{sequence.worker, 0, std::move(sequence.gather->blocks)};
  sequence.gather.reset();
  if (!fault(Fault::gathered_kept)) release_extent(state, sequence, blocks);
}

}  // namespace baton
