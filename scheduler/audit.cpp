#include "scheduler/audit.h"

#include <map>
#include <set>

namespace baton {

namespace {

/// References of every block of one worker's pool, counted from the sequences placed there.
std::vector<std::uint32_t> recount_references(const State& state, WorkerIndex index) {
  std::vector<std::uint32_t> refs(state.workers[index].pool.total(), 0);
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker != index) return;
    for (const BlockId block : sequence.blocks) {
      if (block < refs.size()) ++refs[block];
    }
  });
  return refs;
}

struct Checker {
  const State& state;
  std::vector<std::string>& faults;

  void expect(bool condition, const std::string& what) {
    if (!condition) faults.push_back(what);
  }

  void check_pool(WorkerIndex index) {
    const Worker& w = state.workers[index];
    const BlockPool& pool = w.pool;
    const std::string& name = w.identity.name;
    const std::vector<std::uint32_t> refs = recount_references(state, index);
    std::vector<std::uint32_t> source_pins(pool.total(), 0);
    std::vector<std::uint32_t> destination_pins(pool.total(), 0);
    state.transfers.each([&](const Transfer& transfer) {
      if (transfer.from_worker == index) {
        for (const BlockId block : transfer.from) ++source_pins[block];
      }
      if (transfer.to_worker == index) {
        for (const BlockId block : transfer.to) ++destination_pins[block];
      }
    });
    std::vector<std::uint8_t> is_free(pool.total(), 0);
    for (const BlockId block : pool.free_list()) {
      expect(is_free[block] == 0, name + ": block is in the free list twice");
      is_free[block] = 1;
    }
    for (BlockId block = 0; block < pool.total(); ++block) {
      expect(refs[block] == pool.references(block), name + ": reference count differs from recount");
      expect(refs[block] <= 1, name + ": block is writable by two sequences");
      expect(source_pins[block] == pool.source_pins(block), name + ": source pins differ");
      expect(destination_pins[block] == pool.destination_pins(block),
             name + ": destination pins differ");
      if (is_free[block] == 0) continue;
      expect(refs[block] == 0, name + ": a free block is referenced");
      expect(source_pins[block] == 0 && destination_pins[block] == 0,
             name + ": a free block is named by a pull");
    }
  }

  void check_request(const Request& request) {
    const std::pair key(request.arrival, request.id);
    const Sequence* source = state.sequences.find(request.source);
    const Sequence* target = state.sequences.find(request.target);
    const bool waiting = state.waiting.count(key) != 0;
    expect(waiting == (request.phase == Phase::waiting), "queue and phase disagree");
    expect((request.source != 0) == (source != nullptr), "source is dangling");
    expect((request.target != 0) == (target != nullptr), "target is dangling");
    expect(state.deadlines.count({request.deadline, request.id}) ==
               (request.phase == Phase::ended ? 0U : 1U),
           "deadline and phase disagree");
    switch (request.phase) {
      case Phase::waiting:
      case Phase::ended: expect(!source && !target, "names a sequence without being placed"); break;
      case Phase::prefill: expect(source != nullptr, "prefill without a sequence"); break;
      case Phase::handoff:
        expect(source || target, "hand-off without a sequence");
        expect(target || state.handoffs.count(key) != 0, "hand-off is forgotten");
        break;
      case Phase::decode: expect(source && !target, "decode needs exactly its own sequence"); break;
      case Phase::preempting: expect(source && source->retiring, "preempting nothing"); break;
    }
    if (state.handoffs.count(key) != 0) expect(source && !target, "hand-off queue holds a stranger");
  }

  void check_worker(WorkerIndex index) {
    const Worker& w = state.workers[index];
    std::uint32_t placed = 0;
    std::map<SequenceId, std::uint32_t> named;
    for (const InFlightStep& step : w.steps) {
      for (const SequenceId id : step.decode) ++named[id];
      for (const auto& [id, n] : step.rows) ++named[id];
    }
    state.sequences.each([&](const Sequence& sequence) {
      if (sequence.worker != index) return;
      if (!sequence.retiring) ++placed;
      expect(sequence.inflight == named[sequence.id], "steps in flight differ from recount");
      expect(sequence.computed <= sequence.scheduled, "computed more than scheduled");
    });
    expect(placed == w.sequences, w.identity.name + ": sequence count differs");
    for (std::size_t i = 0; i < w.decode_set.size(); ++i) {
      const Sequence* sequence = state.sequences.find(w.decode_set[i]);
      expect(sequence != nullptr && sequence->decode_slot == i, "decode set is inconsistent");
    }
    if (!w.ready()) expect(w.steps.empty() && w.sequences == 0, "out of term, yet at work");
  }
};

}  // namespace

std::vector<PoolAudit> audit_pools(const State& state) {
  std::vector<PoolAudit> audits;
  for (WorkerIndex index = 0; index < state.workers.size(); ++index) {
    const Worker& w = state.workers[index];
    if (w.state == WorkerState::gone || w.pool.total() == 0) continue;
    PoolAudit audit;
    audit.worker = w.identity.name;
    audit.allocation = w.hello.allocation;
    audit.total = w.hello.blocks;
    if (!w.ready()) {
      audit.fenced = audit.total;  // nothing in it may be handed out before its next term
      audits.push_back(audit);
      continue;
    }
    std::vector<std::uint8_t> is_free(w.pool.total(), 0);
    for (const BlockId block : w.pool.free_list()) is_free[block] = 1;
    const std::vector<std::uint32_t> refs = recount_references(state, index);
    for (BlockId block = 0; block < w.pool.total(); ++block) {
      audit.free += is_free[block];
      audit.owned += refs[block] != 0 ? 1 : 0;
      audit.fenced += is_free[block] == 0 && refs[block] == 0 ? 1 : 0;
    }
    audits.push_back(audit);
  }
  return audits;
}

std::vector<std::string> audit_state(const State& state) {
  std::vector<std::string> faults;
  Checker checker{state, faults};
  for (WorkerIndex index = 0; index < state.workers.size(); ++index) {
    const Worker& w = state.workers[index];
    checker.check_pool(index);
    checker.check_worker(index);
    checker.expect(w.pool.free_blocks() <= w.pool.total() &&
                       w.pool.fenced_blocks() <= w.pool.total() - w.pool.free_blocks(),
                   w.identity.name + ": more blocks free and fenced than there are");
  }
  for (const PoolAudit& pool : audit_pools(state)) {
    checker.expect(pool.owned + pool.free + pool.fenced == pool.total,
                   pool.worker + ": owned + free + fenced is not total");
  }
  state.requests.each([&](const Request& request) { checker.check_request(request); });
  checker.expect(state.by_name.size() == state.requests.size(), "request names and table disagree");
  return faults;
}

}  // namespace baton
