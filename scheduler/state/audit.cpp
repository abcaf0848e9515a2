#include "scheduler/state/audit.h"

#include <algorithm>
#include <utility>

#include "scheduler/plan/policy.h"

namespace baton {

namespace {

/// References of every block of one worker's pool, counted from the sequences placed there.
void recount_references(const State& state, WorkerIndex index, std::vector<std::uint32_t>& refs) {
  const BlockPool& pool = state.workers[index].store.pool;
  refs.assign(pool.total() + pool.host_total(), 0);
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.gather && sequence.worker == index) {
      for (const BlockId block : sequence.gather->blocks) {
        if (block < refs.size()) ++refs[block];
      }
    }
    for (const std::vector<Extent>* extents : {&sequence.extents, &sequence.ahead}) {
      for (const Extent& extent : *extents) {
        if (extent.store != index) continue;
        for (const BlockId block : extent.blocks) {
          if (block < refs.size()) ++refs[block];
        }
      }
    }
  });
}

/// The simulator runs this after every event: no text is built and nothing allocated while all is
/// well.
struct Checker {
  const State& state;
  std::vector<std::string>& faults;
  std::vector<std::uint32_t> refs{};
  std::vector<std::uint32_t> source_pins{};
  std::vector<std::uint32_t> target_pins{};
  std::vector<std::uint8_t> is_free{};
  std::vector<std::pair<SequenceId, std::uint32_t>> named{};  // by steps in flight, how often

  void expect(bool condition, const char* what) {
    if (!condition) faults.emplace_back(what);
  }
  void expect(bool condition, const Worker& w, const char* what) {
    if (!condition) faults.push_back(w.name() + ": " + what);
  }

  void check_pool(WorkerIndex index) {
    const Worker& w = state.workers[index];
    const BlockPool& pool = w.store.pool;
    recount(index);
    for (const std::vector<BlockId>* list : {&pool.free_list(), &pool.host_free_list()}) {
      for (const BlockId block : *list) {
        expect(is_free[block] == 0, w, "block is in the free list twice");
        is_free[block] = 1;
      }
    }
    check_part(w, 0, pool.total(), pool.fenced_blocks());
    check_part(w, pool.total(), pool.host_total(), pool.host_fenced_blocks());
    expect(w.store.copies.empty(), w, "a copy has missed its plan");
  }

  void check_part(const Worker& w, BlockId first, std::uint32_t total, std::uint32_t fenced) {
    const BlockPool& pool = w.store.pool;
    std::uint32_t free = 0;
    std::uint32_t owned = 0;
    std::uint32_t cached = 0;
    for (BlockId block = first; block < first + total; ++block) {
      expect(refs[block] == pool.references(block), w, "reference count differs from recount");
      expect(source_pins[block] == pool.source_pins(block), w, "source pins differ");
      expect(target_pins[block] == pool.target_pins(block), w, "target pins differ");
      owned += refs[block] != 0 ? 1 : 0;
      const BlockState is = pool.state(block);
      expect((refs[block] != 0) == (is == BlockState::owned), w,
             "an owned block is named by nobody, or another one by somebody");
      expect((is_free[block] != 0) == (is == BlockState::free), w, "free list and state disagree");
      expect(pool.is_listed_as_cached(block) == (is == BlockState::cached), w,
             "list of cached blocks and state disagree");
      const bool pinned = source_pins[block] != 0 || target_pins[block] != 0;
      expect(is != BlockState::held || pinned, w, "a held block is pinned by nobody");
      expect(first == 0 || refs[block] == 0, w, "a sequence names a block of the host part");
      if (is == BlockState::cached) {
        ++cached;
        expect(refs[block] == 0 && is_free[block] == 0 && pool.remembers(block), w,
               "a cached block is referenced, free or not in the index");
        expect(source_pins[block] == 0 && target_pins[block] == 0, w,
               "a cached block is named by a pull or a copy");
      }
      if (is_free[block] == 0) continue;
      ++free;
      expect(!pool.remembers(block), w, "a free block is in the index");
      expect(refs[block] == 0, w, "a free block is referenced");
      expect(source_pins[block] == 0 && target_pins[block] == 0, w,
             "a free block is named by a pull or a copy");
    }
    expect(owned + cached + free + fenced == total, w,
           "owned + cached + free + fenced is not total");
  }

  void recount(WorkerIndex index) {
    const Worker& w = state.workers[index];
    const std::size_t total = w.store.pool.total() + w.store.pool.host_total();
    recount_references(state, index, refs);
    source_pins.assign(total, 0);
    target_pins.assign(total, 0);
    is_free.assign(total, 0);
    std::size_t pulls = 0;
    state.pulls.each([&](const OpenPull& pull) {
      if (pull.from_worker == index) {
        for (const BlockId block : pull.from) ++source_pins[block];
      }
      if (pull.to_worker == index) {
        ++pulls;
        for (const BlockId block : pull.to) ++target_pins[block];
      }
    });
    for (const Worker& reader : state.workers) {
      for (const ForeignRead& read : reader.compute.reads) {
        if (read.store != index) continue;
        for (const BlockId block : read.blocks) {
          if (block < source_pins.size()) ++source_pins[block];
          expect(block < source_pins.size(), w, "a step reads a block of a pool that is gone");
        }
      }
    }
    expect(w.peer.work.open(Work::pull) == pulls, w,
           "pulls are outstanding that are not in the table");
    for (const InFlightStep& step : w.compute.steps) {
      for (const CopyOp& copy : step.copies) {
        ++source_pins[copy.from];
        ++target_pins[copy.to];
      }
    }
  }

  static bool part_fits(Phase phase, Part part) {
    switch (phase) {
      case Phase::waiting:
        return part == Part::queue || part == Part::requeue;
      case Phase::pull:
        return part == Part::prefix_pull || part == Part::recompute;
      case Phase::prefill:
        return part == Part::prefill || part == Part::recompute || part == Part::grammar ||
               part == Part::away;
      case Phase::handoff:
        return part == Part::handoff || part == Part::decode_wait || part == Part::away;
      case Phase::decode:
        return part == Part::decode || part == Part::decode_wait || part == Part::grammar ||
               part == Part::away;
      case Phase::preempting:
        return part == Part::requeue;
      case Phase::ended:
        return true;
    }
    return false;
  }

  void check_request(const Request& request) {
    const std::pair key(request.place, request.id);
    const Sequence* source = state.sequences.find(request.source);
    const Sequence* target = state.sequences.find(request.target);
    const bool waiting = state.waiting.count(key) != 0;
    expect(waiting == (request.phase == Phase::waiting), "queue and phase disagree");
    expect((request.source != 0) == (source != nullptr), "source is dangling");
    expect((request.target != 0) == (target != nullptr), "target is dangling");
    expect(state.deadlines.count({request.deadline, request.id}) ==
               (request.phase == Phase::ended ? 0U : 1U),
           "deadline and phase disagree");
    expect(request.times.untold() == 0, "its parts do not add up to its time");
    if (!part_fits(request.phase, request.times.part())) {
      faults.push_back(std::string("in phase ") + to_string(request.phase) +
                       " its time counts as " + to_string(request.times.part()));
    }
    switch (request.phase) {
      case Phase::waiting:
      case Phase::ended:
        expect(!source && !target, "names a sequence without being placed");
        break;
      case Phase::pull:
        expect(source && !target && !source->on_worker && source->open_pulls == 1,
               "a prefix is pulled for nobody");
        break;
      case Phase::prefill:
        expect(source != nullptr, "prefill without a sequence");
        break;
      case Phase::handoff:
        expect(source || target, "hand-off without a sequence");
        expect(target || state.handoffs.count(key) != 0, "hand-off is forgotten");
        break;
      case Phase::decode:
        expect(source && !target, "decode needs exactly its own sequence");
        break;
      case Phase::preempting:
        expect(source && source->retiring, "preempting nothing");
        break;
    }
    expect(state.tenants.of(request.tenant).waiting.count(key) == (waiting ? 1U : 0U),
           "the queue and its tenant's disagree");
    if (request.beams) check_beams(request, source);
    if (state.handoffs.count(key) != 0)
      expect(source && !target, "hand-off queue holds a stranger");
  }

  /// Nobody waits who is in no queue, and each that has not ended is somebody's.
  void check_tenants() {
    std::size_t waiting = 0;
    std::size_t open = 0;
    for (TenantIndex i = 0; i < state.tenants.all().size(); ++i) {
      const Tenant& tenant = state.tenants.of(i);
      waiting += tenant.waiting.size();
      open += tenant.open;
      expect(tenant.waiting.empty() != state.tenants.queued().contains(i),
             "a tenant waits and is not listed, or the other way round");
    }
    expect(waiting == state.waiting.size(), "the queue and the tenants' differ");
    expect(open == state.deadlines.size(), "tenants' open requests differ from recount");
  }

  void check_beams(const Request& request, const Sequence* source) {
    bool has_source = request.beams->lines.empty();
    for (const SequenceId line : request.beams->lines) {
      const Sequence* sequence = state.sequences.find(line);
      if (line == 0) continue;  // ran no further
      has_source = has_source || line == request.source;
      expect(sequence && source && sequence->worker == source->worker &&
                 sequence->computed == source->computed && sequence->request == request.id,
             "a beam is not where the others are");
    }
    expect(has_source, "a search's own sequence is none of its beams");
    if (source == nullptr) return;
    const std::vector<std::uint64_t>& listed = state.workers[source->worker].compute.beams;
    const bool runs =
        request.phase == Phase::decode && source->on_worker;  // it may wait to be added
    expect(std::count(listed.begin(), listed.end(), request.id) == (runs ? 1 : 0),
           "beams run that are not listed");
  }

  /// Every sequence is its request's source, target, or one of its beams.
  void check_owner(const Sequence& sequence) {
    const Request* request = state.requests.find(sequence.request);
    if (request == nullptr) return;
    const bool beam = request->beams && std::count(request->beams->lines.begin(),
                                                   request->beams->lines.end(), sequence.id) == 1;
    expect(sequence.id == request->source || sequence.id == request->target || beam,
           "a sequence belongs to nobody");
  }

  void check_worker(WorkerIndex index) {
    const Worker& w = state.workers[index];
    count_named(w);
    std::uint32_t placed = 0;
    std::uint32_t expected = 0;
    state.sequences.each([&](const Sequence& sequence) {
      for (const Extent& extent : sequence.ahead) expected += extent.store == index ? 1 : 0;
      if (sequence.spread) expected += check_lane(w, index, sequence);
      if (sequence.worker != index) return;
      check_owner(sequence);
      if (!sequence.retiring) placed += sequence.width;
      expect(sequence.parked == (!w.ready()), w,
             "a sequence waits for a worker that is there, or runs on one that is not");
      expect(sequence.spread || sequence.inflight == times_named(sequence.id), w,
             "steps in flight differ from recount");
      expect(sequence.computed <= sequence.scheduled, w, "computed more than scheduled");
      if (!sequence.retiring) check_extents(w, index, sequence);
      sequence.spread ? check_spread(w, sequence) : check_writes(w, sequence);
    });
    check_alone(w);
    expect(w.peer.work.open(Work::step) == w.compute.steps.size(), w,
           "steps are outstanding that are not in flight");
    expect(placed == w.compute.sequences, w, "sequence count differs");
    expect(expected == w.compute.expected, w, "those expected differ from recount");
    for (const SequenceId id : w.compute.singles) {
      const Sequence* sequence = state.sequences.find(id);
      expect(sequence != nullptr && sequence->worker == index && sequence->decode_slot == kNobody,
             w, "a suspect that decodes alone is not here, or in the decode set");
    }
    for (std::size_t i = 0; i < w.compute.decode_set.size(); ++i) {
      const Sequence* sequence = state.sequences.find(w.compute.decode_set[i]);
      expect(sequence != nullptr && sequence->decode_slot == i, w, "decode set is inconsistent");
    }
    if (!w.ready())
      expect(w.compute.steps.empty() && (w.store.kept || w.compute.sequences == 0), w,
             "out of term, yet at work");
  }

  /// Its extents follow one another, all but the last one full and computed, each in a pool whose
  /// content counts.
  void check_extents(const Worker& w, WorkerIndex index, const Sequence& sequence) {
    expect(sequence.tail().store == index, w, "a sequence writes to a pool that is another's");
    std::uint32_t token = 0;
    for (const Extent& extent : sequence.extents) {
      expect(extent.first_token == token, w, "a sequence has a gap between two pools");
      token += static_cast<std::uint32_t>(extent.blocks.size()) * w.store.tokens_per_block();
      const Worker& at = state.workers[extent.store];
      expect(at.ready() || at.store.kept, w, "a sequence lies in a pool that is gone");
    }
    expect(sequence.spread || sequence.tail().first_token <= sequence.computed, w,
           "a sequence has left a block that is not computed");
    const bool listed = std::count(state.outgrown.begin(), state.outgrown.end(), sequence.id) == 1;
    expect(!sequence.outgrown || (listed && (!sequence.ahead.empty() || sequence.gather)), w,
           "a sequence is to go on nowhere");
    expect(!sequence.spans() || !sequence.parked, w, "a sequence that spans is parked");
    if (sequence.gather) check_gather(w, sequence);
  }

  /// What is pulled for it has a place of its own for each block that lies elsewhere.
  void check_gather(const Worker& w, const Sequence& sequence) {
    std::size_t elsewhere = 0;
    for (const Extent& extent : sequence.extents)
      elsewhere += &state.workers[extent.store] != &w ? extent.blocks.size() : 0;
    expect(sequence.gather->blocks.size() == elsewhere && !sequence.spread, w,
           "a sequence is gathered that has grown meanwhile");
    expect(sequence.open_pulls != 0 || sequence.outgrown, w, "a sequence is gathered by nobody");
    for (const BlockId block : sequence.gather->blocks) {
      expect(w.store.pool.references(block) == 1 && !w.store.pool.remembers(block), w,
             "a block that is pulled into is shared or cached");
    }
  }

  /// 1: it is computed here beside the worker that goes on with it.
  std::uint32_t check_lane(const Worker& w, WorkerIndex index, const Sequence& sequence) {
    const std::vector<SpreadLane>& lanes = sequence.spread->lanes;
    const auto lane = std::find_if(lanes.begin(), lanes.end(),
                                   [&](const SpreadLane& each) { return each.worker == index; });
    const auto listed = std::count(w.compute.spreads.begin(), w.compute.spreads.end(), sequence.id);
    expect(listed == (lane != lanes.end() ? 1 : 0), w, "a spread prompt and its lists disagree");
    const std::uint32_t steps = times_named(sequence.id);
    expect(steps == (lane != lanes.end() ? lane->inflight : 0), w,
           "steps of a spread prompt differ from recount");
    expect(lane == lanes.end() || w.ready(), w, "a chunk is computed by a worker that is away");
    return lane != lanes.end() && index != sequence.worker ? 1 : 0;
  }

  /// Chunks follow one another, each in an extent of its worker's; they are sent in order, and what
  /// counts is computed up to there without a gap. Where something is still written, nobody else
  /// has a block.
  void check_spread(const Worker& w, const Sequence& sequence) {
    const Spread& spread = *sequence.spread;
    std::uint32_t inflight = 0;
    for (const SpreadLane& lane : spread.lanes) inflight += lane.inflight;
    expect(inflight == sequence.inflight, w, "steps of a spread prompt's workers do not add up");
    expect(sequence.extents.size() == spread.chunks.size() + 1 && sequence.ahead.empty() &&
               !sequence.retiring && sequence.sampling == 0 && spread.next >= spread.counted,
           w, "a spread prompt is not one any more");
    std::uint32_t computed = spread.chunks.front().first;
    std::uint32_t sent = computed;
    for (std::size_t i = 0; i < spread.chunks.size(); ++i) {
      const SpreadChunk& chunk = spread.chunks[i];
      const Extent& extent = sequence.extents[i];
      expect(extent.store == chunk.worker && chunk.done <= chunk.sent && chunk.sent <= chunk.tokens,
             w, "a chunk is not in its worker's pool, or done before it was sent");
      expect(sent == chunk.first || chunk.sent == 0, w,
             "a chunk was sent before the one ahead of it");
      if (sent == chunk.first) sent += chunk.sent;
      if (computed == chunk.first) computed += chunk.done;
      const BlockPool& pool = state.workers[extent.store].store.pool;
      for (std::size_t b = 0; b < extent.blocks.size(); ++b) {
        const auto end =
            extent.first_token + static_cast<std::uint32_t>(b + 1) * w.store.tokens_per_block();
        if (end <= sequence.computed) continue;
        expect(pool.references(extent.blocks[b]) == 1 && !pool.remembers(extent.blocks[b]), w,
               "a block that a chunk may write is shared or cached");
      }
    }
    expect(computed == sequence.computed && sent == sequence.scheduled, w,
           "a spread prompt counts what is not computed");
  }

  /// Beside a suspect's work nothing is outstanding, so nobody else is blamed for its worker's
  /// death.
  void check_alone(const Worker& w) {
    if (!w.compute.runs_alone()) return;
    const std::size_t compiles = w.compute.compiles_alone ? 1 : 0;
    expect(w.compute.steps.size() + compiles == 1 && w.peer.work.open(Work::compile) == compiles, w,
           "a suspect's work is not the only one");
    for (const auto& [id, n] : named) {
      const Sequence* first = state.sequences.find(named.front().first);
      const Sequence* other = state.sequences.find(id);
      expect(first == nullptr || other == nullptr || other->request == first->request, w,
             "a suspect shares its step");
    }
  }

  /// Full blocks are shared; what a sequence may still write is its own, and nobody finds it.
  void check_writes(const Worker& w, const Sequence& sequence) {
    const TableShape& shape = w.store.shape;
    const std::size_t groups = shape.groups.count;
    const std::vector<BlockId>& blocks = sequence.tail().blocks;
    const std::uint32_t written = sequence.computed - sequence.tail().first_token;
    const std::size_t first =
        sequence.is_target ? sequence.pulled : written / w.store.tokens_per_block();
    for (std::size_t i = first * groups; i < blocks.size(); ++i) {
      if (blocks[i] == kNoBlock) continue;
      expect(w.store.pool.references(blocks[i]) == 1 && !w.store.pool.remembers(blocks[i]), w,
             "a block that a sequence may write is shared or cached");
    }
    if (!shape.plain() && !blocks.empty() && sequence.on_worker) check_windows(w, sequence);
  }

  /// What a window looks at from behind the last computed token on is there, and nothing else.
  void check_windows(const Worker& w, const Sequence& sequence) {
    const TableShape& shape = w.store.shape;
    const std::vector<BlockId>& blocks = sequence.tail().blocks;
    const std::size_t scheduled = shape.columns(sequence.scheduled);
    for (std::uint32_t g = 0; g < shape.groups.count; ++g) {
      const std::uint64_t window = shape.groups.windows[g];
      std::size_t first = 0;  // whose last key the next token sees
      while (window != 0 && (first + 1) * shape.per_block + window <= sequence.computed + 1)
        ++first;
      for (std::size_t c = 0; c * shape.groups.count < blocks.size(); ++c) {
        const bool there = blocks[c * shape.groups.count + g] != kNoBlock;
        expect(there ? c >= first : c < first || c >= scheduled, w,
               "a window looks at a block that is not there, or another one is kept");
      }
    }
  }

  void count_named(const Worker& w) {
    named.clear();
    for (const InFlightStep& step : w.compute.steps) {
      for (const SequenceId id : step.decode) named.emplace_back(id, 1);
      for (const SequenceId id : step.beams) named.emplace_back(id, 1);
      for (const auto& [id, n] : step.rows) named.emplace_back(id, 1);
    }
    std::sort(named.begin(), named.end());
    std::size_t kept = 0;
    for (const auto& [id, n] : named) {
      if (kept != 0 && named[kept - 1].first == id) {
        named[kept - 1].second += n;
      } else {
        named[kept++] = {id, n};
      }
    }
    named.resize(kept);
  }

  std::uint32_t times_named(SequenceId id) const {
    const auto it = std::lower_bound(named.begin(), named.end(), std::pair(id, 0U));
    return it != named.end() && it->first == id ? it->second : 0;
  }
};

}  // namespace

std::vector<PoolAudit> audit_pools(const State& state) {
  std::vector<PoolAudit> audits;
  for (WorkerIndex index = 0; index < state.workers.size(); ++index) {
    const Worker& w = state.workers[index];
    if (w.peer.state == WorkerState::gone || w.store.pool.total() == 0) continue;
    std::vector<std::uint8_t> is_free(w.store.pool.total() + w.store.pool.host_total(), 0);
    for (const std::vector<BlockId>* list :
         {&w.store.pool.free_list(), &w.store.pool.host_free_list()}) {
      for (const BlockId block : *list) is_free[block] = 1;
    }
    std::vector<std::uint32_t> refs;
    recount_references(state, index, refs);
    for (const bool host : {false, true}) {
      PoolAudit audit;
      audit.worker = w.name();
      audit.allocation = w.store.allocation();
      audit.host = host;
      audit.total = host ? w.store.offer.host_blocks : w.store.offer.blocks;
      if (audit.total == 0) continue;
      const BlockId first = host ? w.store.pool.total() : 0;
      for (BlockId block = first; w.ready() && block < first + audit.total; ++block) {
        const bool cached = w.store.pool.state(block) == BlockState::cached;
        audit.free += is_free[block];
        audit.cached += cached ? 1 : 0;
        audit.owned += refs[block] != 0 ? 1 : 0;
        audit.fenced += is_free[block] == 0 && refs[block] == 0 && !cached ? 1 : 0;
      }
      // Out of term, nothing in it may be handed out before the next one.
      if (!w.ready()) audit.fenced = audit.total;
      audits.push_back(audit);
    }
  }
  return audits;
}

std::vector<std::string> audit_state(const State& state) {
  std::vector<std::string> faults;
  Checker checker{state, faults};
  for (WorkerIndex index = 0; index < state.workers.size(); ++index) {
    checker.check_pool(index);
    checker.check_worker(index);
  }
  state.requests.each([&](const Request& request) { checker.check_request(request); });
  checker.check_tenants();
  checker.expect(state.by_name.size() == state.requests.size(), "request names and table disagree");
  return faults;
}

}  // namespace baton
