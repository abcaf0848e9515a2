#include "tests/sim/plan_checks.h"

#include <algorithm>

namespace baton::sim {

namespace {

WorkerIndex worker_of(const State& state, LinkId link) {
  const auto it = state.worker_links.find(link);
  return it == state.worker_links.end() ? kNobody : it->second;
}

bool is_free(const BlockPool& pool, BlockId block) {
  const auto& list = pool.free_list();
  return std::find(list.begin(), list.end(), block) != list.end();
}

/// Belongs to the sequence in the books, or, if that has ended since, is at least not free.
bool belongs(const State& state, WorkerIndex index, SequenceId id, BlockId block) {
  const Sequence* sequence = state.sequences.find(id);
  if (sequence == nullptr || sequence->retiring) {
    return !is_free(state.workers[index].store.pool, block);
  }
  const auto lists = [&](const std::vector<BlockId>& blocks) {
    return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
  };
  if (sequence->gather && sequence->worker == index && lists(sequence->gather->blocks)) return true;
  return std::any_of(sequence->extents.begin(), sequence->extents.end(), [&](const Extent& extent) {
    const bool writes = sequence->spread || &extent == &sequence->tail();
    return writes && extent.store == index && lists(extent.blocks);
  });
}

/// Each block of another pool goes to the place of its tokens.
std::string gathered(const State& state, const Sequence& sequence, const OpenPull& open) {
  if (open.from_worker != kNobody && !state.workers[open.from_worker].ready())
    return "blocks are gathered from a worker that is away";
  std::size_t place = 0;
  std::size_t found = 0;
  for (const Extent& extent : sequence.extents) {
    if (extent.store == sequence.worker) continue;
    for (const BlockId block : extent.blocks) {
      const BlockId to = sequence.gather->blocks[place++];
      if (extent.store != open.from_worker) continue;
      const auto at = std::find(open.from.begin(), open.from.end(), block);
      if (at == open.from.end()) continue;
      if (open.to[static_cast<std::size_t>(at - open.from.begin())] != to)
        return "a block is gathered into another one's place";
      ++found;
    }
  }
  return found == open.from.size() ? "" : "a block is gathered that is not of the sequence";
}

}  // namespace

PlanChecks::Pool& PlanChecks::pool_of(const State& state, WorkerIndex index) {
  if (pools_.size() <= index) pools_.resize(index + 1);
  Pool& pool = pools_[index];
  const Worker& w = state.workers[index];
  if (pool.term != w.peer.term) {
    pool.term = w.peer.term;
    pool.last.assign(w.store.pool.total(), {});
    pool.saved.assign(w.store.pool.total() + w.store.pool.host_total(), 0);
    pool.filled = pool.saved;
  }
  return pool;
}

std::string PlanChecks::granted(const State& state, WorkerIndex index, SequenceId sequence,
                                BlockId block, const char* by) {
  const Worker& w = state.workers[index];
  Pool& pool = pool_of(state, index);
  const std::string where =
      std::string(by) + " for " + w.name() + ": block " + std::to_string(block) + " ";
  if (block >= pool.last.size()) return where + "does not exist";
  if (!belongs(state, index, sequence, block)) return where + "is not of its sequence";
  const Use& use = pool.last[block];
  if (use.step > w.compute.done && use.sequence != sequence) {
    return where + "is still named by step " + std::to_string(use.step) + " for another sequence";
  }
  return "";
}

std::string PlanChecks::rows(const State& state, WorkerIndex index, StepId step) {
  const Worker& w = state.workers[index];
  Pool& pool = pool_of(state, index);
  const auto it = std::find_if(w.compute.steps.begin(), w.compute.steps.end(),
                               [&](const InFlightStep& s) { return s.step == step; });
  if (it == w.compute.steps.end()) return "a plan left that is not in flight";
  const auto use = [&](SequenceId id) {
    const Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr) return;
    for (const Extent& extent : sequence->extents) {
      if (extent.store != index) continue;
      for (const BlockId block : extent.blocks) {
        if (block != kNoBlock) pool.last[block] = {id, step};
      }
    }
  };
  for (const SequenceId id : it->decode) use(id);
  for (const auto& [id, n] : it->rows) use(id);
  for (const SequenceId id : it->beams) use(id);
  return "";
}

std::string PlanChecks::forks(const State& state, WorkerIndex index, const StepPlan& plan) {
  for (const ForkSequence& fork : plan.fork) {
    for (const BlockId block : fork.blocks) {
      std::string what = granted(state, index, fork.sequence, block, "fork");
      if (!what.empty()) return what;
      const auto it = std::find_if(plan.ops.begin(), plan.ops.end(),
                                   [&](const CopyOp& op) { return op.to == block; });
      if (it == plan.ops.end()) continue;
      if (!belongs(state, index, fork.parent, it->from))
        return "a copy is not of the fork's parent";
    }
  }
  return "";
}

/// Every block is written once, and nobody else is given what is copied, or read, before the result
/// is in.
std::string PlanChecks::copies(const State& state, WorkerIndex index, const StepPlan& plan) {
  const BlockPool& books = state.workers[index].store.pool;
  Pool& pool = pool_of(state, index);
  for (const CopyOp& op : plan.ops) {
    if (op.from >= pool.filled.size() || op.to >= pool.filled.size()) return "a copy of no block";
    if (pool.filled[op.to] == plan.step) return "a block is the target of two copies";
    pool.filled[op.to] = plan.step;
    if (!books.is_host(op.from) && !books.is_host(op.to)) continue;  // a fork
    if (books.is_host(op.from) && books.is_host(op.to)) return "a copy inside the host part";
    if (books.source_pins(op.from) == 0 || books.target_pins(op.to) == 0)
      return "a copy without a pin";
    if (books.is_host(op.to)) pool.saved[op.from] = plan.step;
  }
  for (const CopyOp& op : plan.ops) {
    if (books.is_host(op.from) && pool.filled[op.from] == plan.step)
      return "a copy of what the plan copies";
  }
  return "";
}

/// The blocks of a pull are not those of a copy that has not ended.
std::string PlanChecks::copied(const State& state, const OpenPull& open) {
  if (open.from_worker != kNobody && state.workers[open.from_worker].ready()) {
    const Pool& from = pool_of(state, open.from_worker);
    for (const BlockId block : open.from) {
      if (block >= from.filled.size()) return "a pull of no block";
      if (from.filled[block] > state.workers[open.from_worker].compute.done)
        return "a pull of what a step copies yet";
    }
  }
  const Pool& to = pool_of(state, open.to_worker);
  for (const BlockId block : open.to) {
    const StepId done = state.workers[open.to_worker].compute.done;
    if (to.saved[block] > done || to.filled[block] > done)
      return "a pull over what a step copies yet";
  }
  return "";
}

/// What a step waits for was sent before it, over all workers: so the oldest step that has not
/// ended waits for nobody. Counted here, plan by plan, and not asked of the scheduler.
std::string PlanChecks::waits(const StepPlan& plan) {
  for (const StepWait& wait : plan.waits) {
    const auto sent = sent_.find(wait.term);
    if (sent == sent_.end() || sent->second < wait.step || wait.term == plan.term)
      return "a step waits for one that was not sent before it";
    const bool row = std::any_of(plan.rows.begin(), plan.rows.end(), [&](const PromptRow& each) {
      return each.sequence == wait.sequence;
    });
    if (!row) return "a step waits for nothing that it does";
  }
  sent_[plan.term] = plan.step;
  return "";
}

std::string PlanChecks::plan(const State& state, LinkId link, const StepPlan& plan) {
  const WorkerIndex index = worker_of(state, link);
  if (index == kNobody) return "a plan for nobody";
  if (std::string wrong = waits(plan); !wrong.empty()) return wrong;
  const Worker& w = state.workers[index];
  if (!w.ready() || plan.term != w.peer.term) return "";  // its term ended in the same turn
  for (const AddSequence& add : plan.add) {
    for (std::size_t i = 0; i < add.blocks.size(); ++i) {
      const BlockId block = add.blocks[i];
      if (block == kNoBlock) continue;
      const std::size_t column = i / w.store.shape.groups.count;
      const bool found = (column + 1) * w.store.tokens_per_block() <= add.computed;
      if (found && w.store.pool.remembers(block)) continue;  // shared with whoever reads it
      std::string what = granted(state, index, add.sequence, block, "add");
      if (!what.empty()) return what;
    }
  }
  for (std::size_t i = 0; i < plan.grow_blocks.size(); ++i) {
    std::string what = granted(state, index, plan.grow_sequences[i], plan.grow_blocks[i], "growth");
    if (!what.empty()) return what;
  }
  std::string what = forks(state, index, plan);
  if (what.empty()) what = copies(state, index, plan);
  return what.empty() ? rows(state, index, plan.step) : what;
}

/// A pool's index knows everything that is pulled out of it for a prompt.
std::string PlanChecks::prefix(const State& state, const OpenPull& open) {
  const Worker& from = state.workers[open.from_worker];
  for (const BlockId block : open.from) {
    if (from.ready() && !from.store.pool.remembers(block)) {
      return "pull reads block " + std::to_string(block) + ", which is not in its pool's index";
    }
  }
  return "";
}

std::string PlanChecks::pull(const State& state, LinkId link, const Pull& pull) {
  const WorkerIndex index = worker_of(state, link);
  if (index == kNobody) return "";  // its link changed in the same turn
  const Worker& w = state.workers[index];
  if (!w.ready() || pull.term != w.peer.term) return "";
  const OpenPull* open = state.pulls.find(pull.pull_id);
  if (open == nullptr) return "";  // ended in the same turn
  for (const BlockId block : pull.to) {
    std::string what = granted(state, index, open->target, block, "pull");
    if (!what.empty()) return what;
  }
  std::string what = copied(state, *open);
  if (!what.empty()) return what;
  const Request* request = state.requests.find(open->request);
  if (request == nullptr || open->from_worker == kNobody) return "";
  const bool prefix_pull = request->phase == Phase::pull;
  const Sequence* own = state.sequences.find(request->source);
  if (own != nullptr && own->gather && own->id == open->target) return gathered(state, *own, *open);
  // Given up in the same turn: the request may already have another place.
  if (open->target != (prefix_pull ? request->source : request->target)) return "";
  if (prefix_pull) return prefix(state, *open);
  const Sequence* source = state.sequences.find(request->source);
  if (source == nullptr || source->worker != open->from_worker) return "";
  for (const BlockId block : pull.from) {
    if (!belongs(state, open->from_worker, source->id, block)) {
      return "pull reads block " + std::to_string(block) + ", which is not of its sequence";
    }
  }
  return "";
}

}  // namespace baton::sim
