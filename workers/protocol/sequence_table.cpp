#include "workers/protocol/sequence_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace baton {

namespace {

std::string name_of(SequenceId id) { return "sequence " + std::to_string(id); }

}  // namespace

void SequenceTable::clear() {
  decode_.clear();
  joins_.clear();
  by_id_.clear();
}

const WorkerSequence* SequenceTable::find(SequenceId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second.get();
}

std::optional<std::string> SequenceTable::begin_step(StepPlan& plan, OpenStep& step) {
  step.run.clear();
  step.run.term = plan.term;
  step.run.step = plan.step;
  step.owners.clear();
  step.refused.clear();
  step.lacks_rows = false;
  joins_.clear();
  const std::size_t growing = plan.grow_blocks.size();
  const bool grouped = !plan.grow_groups.empty();
  if (plan.grow_sequences.size() != growing || (grouped && plan.grow_groups.size() != growing))
    return "columns of grow differ";
  for (const SequenceId id : plan.drop) {
    if (auto problem = drop(id)) return problem;
  }
  for (AddSequence& m : plan.add) {
    if (auto problem = add(m)) return problem;
  }
  for (const ForkSequence& m : plan.fork) {
    if (auto problem = fork(m)) return problem;
  }
  for (const BlocksElsewhere& m : plan.elsewhere) {
    if (auto problem = pass_over(m)) return problem;
  }
  for (std::size_t i = 0; i < growing; ++i) {
    const std::uint32_t group = grouped ? plan.grow_groups[i] : 0;
    if (auto problem = grow(plan.grow_sequences[i], plan.grow_blocks[i], group)) return problem;
  }
  if (auto problem = take_copies(plan.ops, step.run)) return problem;
  for (const PromptRow& row : plan.rows) {
    if (auto problem = prompt_row(row, step)) return problem;
  }
  for (const BeamRow& row : plan.beams) {
    if (auto problem = beam_row(row, step)) return problem;
  }
  for (const SequenceId id : plan.singles) {
    if (auto problem = single_row(id, step)) return problem;
  }
  if (plan.decode) {
    if (auto problem = decode_rows(step)) return problem;
  }
  if (auto problem = too_many_tokens(step)) return problem;
  for (WorkerSequence* s : joins_) join_decode(*s);
  if (auto problem = take_waits(plan.waits, step.run)) return problem;
  point_at_copies(step.run);
  return std::nullopt;
}

/// Each is for a row of this plan; of one that is void nobody waits for anything.
SequenceTable::Problem SequenceTable::take_waits(std::vector<StepWait>& waits, RunStep& run) const {
  for (StepWait& wait : waits) {
    const auto row = std::find_if(run.rows.begin(), run.rows.end(), [&](const BatchRow& each) {
      return each.sequence == wait.sequence;
    });
    if (row == run.rows.end()) {
      const auto known = by_id_.find(wait.sequence);
      if (known != by_id_.end() && known->second->failed) continue;
      return name_of(wait.sequence) + " waits without a row";
    }
    if (wait.handle.empty() || wait.term == 0 || wait.step == 0)
      return name_of(wait.sequence) + " waits for nothing";
    run.waits.push_back({static_cast<std::uint32_t>(row - run.rows.begin()), std::move(wait.handle),
                         wait.term, wait.step});
  }
  return std::nullopt;
}

SequenceTable::Problem SequenceTable::too_many_tokens(const OpenStep& step) const {
  if (limits_.max_step_tokens == 0) return std::nullopt;
  std::size_t tokens = 0;
  for (const BatchRow& row : step.run.rows) tokens += row.tokens.size();
  if (tokens <= limits_.max_step_tokens) return std::nullopt;
  return "a step of " + std::to_string(tokens) + " tokens; there is room for " +
         std::to_string(limits_.max_step_tokens);
}

SequenceTable::Problem SequenceTable::drop(SequenceId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return "drop of unknown " + name_of(id);
  leave_decode(*it->second);
  by_id_.erase(it);
  return std::nullopt;
}

SequenceTable::Problem SequenceTable::add(AddSequence& m) {
  const std::size_t known = m.prompt.size() + m.generated.size();
  if (known == 0) return "add of " + name_of(m.sequence) + " without a token";
  if (m.computed > known || (m.computed == known && !m.sampling.beams())) {
    return name_of(m.sequence) + ": computed is " + std::to_string(m.computed) + " of " +
           std::to_string(known) + " tokens; at least one must be left";
  }
  if (m.decode && m.computed + 1 != known) {
    return name_of(m.sequence) + ": cannot decode with " + std::to_string(known - m.computed) +
           " tokens to compute";
  }
  auto [it, fresh] = by_id_.try_emplace(m.sequence);
  if (!fresh) return name_of(m.sequence) + " added twice";
  it->second = std::make_shared<WorkerSequence>();
  WorkerSequence& s = *it->second;
  s.id = m.sequence;
  s.n_prompt = static_cast<std::uint32_t>(m.prompt.size());
  s.computed = m.computed;
  if (auto problem = m.before.empty() ? take_table(m, s) : take_before(m, s)) return problem;
  if (!s.unmapped) s.refused = content_problem(m);
  s.tokens = std::move(m.prompt);
  s.tokens.insert(s.tokens.end(), m.generated.begin(), m.generated.end());
  s.sampling = std::move(m.sampling);
  // An id that the model cannot draw has no logit to mask.
  std::erase_if(s.sampling.stop_ids, [&](Token t) {
    return t < 0 || static_cast<std::uint32_t>(t) >= limits_.vocab_size;
  });
  if (m.decode) join_decode(s);
  return std::nullopt;
}

/// A table that begins in other pools. One that is not mapped is nobody's fault: its exporter may
/// have died while the plan was on its way.
SequenceTable::Problem SequenceTable::take_before(AddSequence& m, WorkerSequence& s) const {
  if (!limits_.shape().plain()) {
    return name_of(s.id) + ": lies in several pools, whose layers have windows";
  }
  for (const PoolBlocks& part : m.before) {
    if (auto problem = take_part(part, s)) return problem;
  }
  if (s.blocks.size() * limits_.tokens_per_block > m.computed) {
    return name_of(s.id) + ": a block that is only read is not computed";
  }
  for (const BlockId block : m.blocks) {
    if (block >= limits_.blocks) {
      return name_of(s.id) + ": block " + std::to_string(block) + " of a pool of " +
             std::to_string(limits_.blocks);
    }
  }
  s.blocks.insert(s.blocks.end(), m.blocks.begin(), m.blocks.end());
  s.filled[0] = static_cast<std::uint32_t>(s.blocks.size());
  if (s.blocks.size() * limits_.tokens_per_block < m.computed) {
    return name_of(s.id) + ": " + std::to_string(s.blocks.size()) + " blocks cannot hold " +
           std::to_string(m.computed) + " tokens";
  }
  return std::nullopt;
}

/// Blocks that are only read, behind those that it has.
SequenceTable::Problem SequenceTable::take_part(const PoolBlocks& part, WorkerSequence& s) const {
  const bool own = part.allocation == limits_.allocation;
  const std::uint32_t known = own ? limits_.blocks : readable_ ? readable_(part.allocation) : 0;
  for (const BlockId block : part.blocks) {
    if (known != 0 && block >= known) {
      return name_of(s.id) + ": reads block " + std::to_string(block) + " of a pool of " +
             std::to_string(known);
    }
  }
  if (known == 0) {
    s.refused = "a pool that holds some of its tokens is not mapped";
    s.unmapped = true;
  }
  s.before.push_back({part.allocation, static_cast<std::uint32_t>(part.blocks.size())});
  s.blocks.insert(s.blocks.end(), part.blocks.begin(), part.blocks.end());
  return std::nullopt;
}

/// Others compute its next tokens. What it has is full by then, and only read from here on.
SequenceTable::Problem SequenceTable::pass_over(const BlocksElsewhere& m) {
  const auto it = by_id_.find(m.sequence);
  if (it == by_id_.end()) return "tokens elsewhere of unknown " + name_of(m.sequence);
  WorkerSequence& s = *it->second;
  if (!limits_.shape().plain())
    return name_of(s.id) + ": tokens elsewhere, and layers with windows";
  if (s.failed || s.unmapped) return std::nullopt;  // its rows are void, whatever they name
  const std::uint64_t per_block = limits_.tokens_per_block;
  const std::uint64_t end = (s.blocks.size() + m.part.blocks.size()) * per_block;
  if (s.blocks.size() * per_block != s.computed || s.decode_index >= 0 || end >= s.tokens.size()) {
    return name_of(s.id) + ": " + std::to_string(m.part.blocks.size()) +
           " blocks of others behind token " + std::to_string(s.computed) + " of " +
           std::to_string(s.tokens.size());
  }
  std::size_t others = 0;
  for (const TablePart& part : s.before) others += part.blocks;
  if (others < s.blocks.size())
    s.before.push_back({limits_.allocation, static_cast<std::uint32_t>(s.blocks.size() - others)});
  if (auto problem = take_part(m.part, s)) return problem;
  s.filled[0] = static_cast<std::uint32_t>(s.blocks.size());
  s.computed = static_cast<std::uint32_t>(end);
  return std::nullopt;
}

bool SequenceTable::reads(const WorkerSequence& sequence, AllocationId allocation) {
  return std::any_of(sequence.before.begin(), sequence.before.end(),
                     [&](const TablePart& part) { return part.allocation == allocation; });
}

bool SequenceTable::reads(AllocationId allocation) const {
  return std::any_of(by_id_.begin(), by_id_.end(),
                     [&](const auto& entry) { return reads(*entry.second, allocation); });
}

/// Its blocks, and whether windows may look at what is not there.
SequenceTable::Problem SequenceTable::take_table(AddSequence& m, WorkerSequence& s) const {
  const TableShape shape = limits_.shape();
  const std::size_t groups = shape.groups.count;
  for (BlockId& block : m.blocks) {
    if (block < limits_.blocks || (block == kNoBlock && !shape.plain())) continue;
    return name_of(m.sequence) + ": block " + std::to_string(block) + " of a pool of " +
           std::to_string(limits_.blocks);
  }
  if (m.blocks.size() % groups != 0) return name_of(m.sequence) + ": a table that is cut off";
  s.blocks = std::move(m.blocks);
  const auto columns = static_cast<std::uint32_t>(s.blocks.size() / groups);
  for (std::uint32_t g = 0; g < groups; ++g) {
    const auto at = [&](std::uint32_t column) -> BlockId& { return s.blocks[column * groups + g]; };
    std::uint32_t end = columns;
    while (end > 0 && at(end - 1) == kNoBlock) --end;
    const std::uint32_t behind = shape.first(g, m.computed);
    if (end == 0) end = std::min(behind, columns);
    for (std::uint32_t column = 0; column < end; ++column) {
      if (at(column) != kNoBlock) continue;
      if (column >= behind) {
        return name_of(m.sequence) + ": no block for column " + std::to_string(column) +
               ", where the window of group " + std::to_string(g) + " looks";
      }
      at(column) = 0;
    }
    s.filled[g] = end;
    if (std::uint64_t{end} * shape.per_block < m.computed) {
      return name_of(m.sequence) + ": " + std::to_string(end) + " blocks cannot hold " +
             std::to_string(m.computed) + " tokens";
    }
  }
  return std::nullopt;
}

/// What every device's sampler takes for granted.
std::string SequenceTable::sampler_problem(const SamplingParams& p) const {
  const auto outside = [&](Token t) {
    return t < 0 || static_cast<std::uint32_t>(t) >= limits_.vocab_size;
  };
  if (p.bias_tokens.size() != p.bias_values.size()) return "columns of logit_bias differ";
  if (!std::all_of(p.bias_values.begin(), p.bias_values.end(),
                   [](float value) { return std::isfinite(value); })) {
    return "a value of logit_bias is not a number";
  }
  for (const std::vector<Token>* tokens : {&p.bias_tokens, &p.allowed_tokens}) {
    const auto bad = std::find_if(tokens->begin(), tokens->end(), outside);
    if (bad != tokens->end()) {
      return "token " + std::to_string(*bad) + " is outside the vocabulary of " +
             std::to_string(limits_.vocab_size);
    }
  }
  if (p.reasoning_close >= 0 && outside(p.reasoning_close)) {
    return "the end of the reasoning is outside the vocabulary";
  }
  for (const std::vector<Token>& word : p.bad_words) {
    if (word.empty()) return "a bad word has no tokens";
    if (outside(word.back())) return "a bad word ends outside the vocabulary";
  }
  return {};
}

/// Faults of the request itself fail its row and leave the term alone.
std::string SequenceTable::content_problem(const AddSequence& m) const {
  const std::size_t known = m.prompt.size() + m.generated.size();
  if (known > limits_.max_context) {
    return std::to_string(known) + " tokens exceed the context of " +
           std::to_string(limits_.max_context);
  }
  for (const std::vector<Token>* tokens : {&m.prompt, &m.generated}) {
    for (const Token t : *tokens) {
      if (t < 0 || static_cast<std::uint32_t>(t) >= limits_.vocab_size) {
        return "token " + std::to_string(t) + " is outside the vocabulary of " +
               std::to_string(limits_.vocab_size);
      }
    }
  }
  const SamplingParams& p = m.sampling;
  if (!std::isfinite(p.temperature) || p.temperature < 0) return "temperature is not a number >= 0";
  if (!(p.top_p > 0) || p.top_p > 1) return "top_p is not in (0, 1]";
  if (p.top_k < 0) return "top_k is negative";
  if (!(p.min_p >= 0) || p.min_p > 1) return "min_p is not in [0, 1]";
  if (!(p.typical_p > 0) || p.typical_p > 1) return "typical_p is not in (0, 1]";
  if (!std::isfinite(p.repetition_penalty) || p.repetition_penalty <= 0) {
    return "repetition_penalty is not a number > 0";
  }
  if (!std::isfinite(p.frequency_penalty) || !std::isfinite(p.presence_penalty)) {
    return "a penalty is not a number";
  }
  return sampler_problem(p);
}

SequenceTable::Problem SequenceTable::fork(const ForkSequence& m) {
  const auto parent = by_id_.find(m.parent);
  if (parent == by_id_.end()) return "fork of unknown " + name_of(m.parent);
  const WorkerSequence& p = *parent->second;
  if (!p.sampling.beams() || p.computed != p.tokens.size()) {
    return "fork of " + name_of(p.id) + ", which is no whole beam";
  }
  const std::size_t groups = limits_.groups.count;
  if (m.blocks.size() != groups) return name_of(m.sequence) + ": forked onto a table cut off";
  for (const BlockId block : m.blocks) {
    if (block < limits_.blocks) continue;
    return name_of(m.sequence) + ": forked onto block " + std::to_string(block) + " of a pool of " +
           std::to_string(limits_.blocks);
  }
  auto child = std::make_shared<WorkerSequence>(p);
  child->id = m.sequence;
  const std::uint32_t full = p.computed / limits_.tokens_per_block;
  child->blocks.resize(full * groups);
  child->blocks.insert(child->blocks.end(), m.blocks.begin(), m.blocks.end());
  child->filled.fill(full + 1);
  const bool fresh = by_id_.emplace(m.sequence, std::move(child)).second;
  if (!fresh) return name_of(m.sequence) + " forked twice";
  return std::nullopt;
}

SequenceTable::Problem SequenceTable::grow(SequenceId id, BlockId block, std::uint32_t group) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return "grow of unknown " + name_of(id);
  if (block >= limits_.blocks || group >= limits_.groups.count) {
    return name_of(id) + ": grown by block " + std::to_string(block) + " of a pool of " +
           std::to_string(limits_.blocks) + ", group " + std::to_string(group);
  }
  WorkerSequence& s = *it->second;
  const std::size_t groups = limits_.groups.count;
  const std::size_t column = s.filled[group]++;
  if (s.blocks.size() < (column + 1) * groups) s.blocks.resize((column + 1) * groups, kNoBlock);
  s.blocks[column * groups + group] = block;
  return std::nullopt;
}

/// Those that save blocks in the host part first: others, and the rows, may write onto what they
/// read.
SequenceTable::Problem SequenceTable::take_copies(const std::vector<CopyOp>& copies,
                                                  RunStep& run) const {
  const std::uint64_t all = std::uint64_t{limits_.blocks} + limits_.host_blocks;
  const auto saves = [&](const CopyOp& op) {
    return op.from < limits_.blocks && op.to >= limits_.blocks;
  };
  for (const CopyOp& op : copies) {
    if (op.from >= all || op.to >= all) {
      return "copy of block " + std::to_string(op.from) + " to " + std::to_string(op.to) +
             " in a pool of " + std::to_string(limits_.blocks) + " and " +
             std::to_string(limits_.host_blocks) + " on the host";
    }
    if (saves(op)) run.copies.push_back(op);
  }
  run.saves = run.copies.size();
  for (const CopyOp& op : copies) {
    if (!saves(op)) run.copies.push_back(op);
  }
  return std::nullopt;
}

bool SequenceTable::is_void(WorkerSequence& s, OpenStep& step) {
  if (s.failed) return true;
  if (s.refused.empty()) return false;
  step.refused.push_back({s.id, s.refused, s.unmapped, false, false});
  s.failed = true;
  return true;
}

SequenceTable::Problem SequenceTable::prompt_row(const PromptRow& row, OpenStep& step) {
  const auto it = by_id_.find(row.sequence);
  if (it == by_id_.end()) return "row of unknown " + name_of(row.sequence);
  WorkerSequence& s = *it->second;
  if (is_void(s, step)) {
    // Others go on behind chunks, which want no logits.
    const bool chunk = row.n_tokens > 0 && row.logits == LogitsWanted::none;
    step.lacks_rows = step.lacks_rows || chunk;
    return std::nullopt;
  }
  if (s.decode_index >= 0) return "prompt row of " + name_of(s.id) + ", which decodes";
  if (row.n_tokens == 0 && row.then_decode && row.logits == LogitsWanted::none &&
      s.computed + 1 == s.tokens.size()) {
    if (s.last_row == step.run.step) return name_of(s.id) + " has two rows in one step";
    s.last_row = step.run.step;
    joins_.push_back(&s);  // its first token was sampled before; it stays here after all
    return std::nullopt;
  }
  const bool last = row.logits == LogitsWanted::last ||
                    (row.logits == LogitsWanted::all &&
                     std::uint64_t{s.computed} + row.n_tokens == s.tokens.size());
  if (row.then_decode && !last) {
    return name_of(s.id) + " is to decode without a first token";
  }
  if (auto problem = place(s, row.n_tokens, row.logits, /*decode=*/false, step)) return problem;
  if (row.then_decode) joins_.push_back(&s);
  return std::nullopt;
}

SequenceTable::Problem SequenceTable::beam_row(const BeamRow& row, OpenStep& step) {
  const auto it = by_id_.find(row.sequence);
  if (it == by_id_.end()) return "beam of unknown " + name_of(row.sequence);
  WorkerSequence& s = *it->second;
  if (is_void(s, step)) return std::nullopt;
  if (!s.sampling.beams() || s.computed != s.tokens.size()) {
    return name_of(s.id) + " is no whole beam";
  }
  if (row.token < 0 || static_cast<std::uint32_t>(row.token) >= limits_.vocab_size) {
    return name_of(s.id) + ": token " + std::to_string(row.token) + " is outside the vocabulary";
  }
  s.tokens.push_back(row.token);
  return place(s, 1, LogitsWanted::last, /*decode=*/true, step);
}

SequenceTable::Problem SequenceTable::single_row(SequenceId id, OpenStep& step) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return "single row of unknown " + name_of(id);
  WorkerSequence& s = *it->second;
  if (is_void(s, step)) return std::nullopt;
  if (s.decode_index >= 0) return "single row of " + name_of(id) + ", which is in the decode set";
  return place(s, 1, LogitsWanted::last, /*decode=*/true, step);
}

SequenceTable::Problem SequenceTable::decode_rows(OpenStep& step) {
  for (std::size_t i = 0; i < decode_.size();) {
    WorkerSequence& s = *decode_[i];
    if (is_void(s, step)) {
      leave_decode(s);  // another one takes its place
      continue;
    }
    if (auto problem = place(s, 1, LogitsWanted::last, /*decode=*/true, step)) return problem;
    ++i;
  }
  return std::nullopt;
}

SequenceTable::Problem SequenceTable::place(WorkerSequence& s, std::uint32_t n_tokens,
                                            LogitsWanted logits, bool decode, OpenStep& step) {
  const std::uint64_t end = std::uint64_t{s.computed} + n_tokens;
  if (n_tokens == 0 || end > s.tokens.size()) {
    return name_of(s.id) + ": row of " + std::to_string(n_tokens) + " tokens with " +
           std::to_string(s.computed) + " of " + std::to_string(s.tokens.size()) + " computed";
  }
  const std::uint32_t columns =
      *std::min_element(s.filled.begin(), s.filled.begin() + limits_.groups.count);
  if (end > std::uint64_t{limits_.tokens_per_block} * columns) {
    return name_of(s.id) + ": position " + std::to_string(end - 1) + " is past its " +
           std::to_string(columns) + " blocks";
  }
  if (end > limits_.max_context) {
    return name_of(s.id) + ": position " + std::to_string(end - 1) + " is past the context of " +
           std::to_string(limits_.max_context);
  }
  if (logits == LogitsWanted::last && end != s.tokens.size()) {
    return name_of(s.id) + ": a token is wanted before its last known one";
  }
  if (s.last_row == step.run.step) return name_of(s.id) + " has two rows in one step";
  s.last_row = step.run.step;
  add_row(s, n_tokens, logits, decode, step);
  return std::nullopt;
}

/// The row itself. The sequence moves on at once: the next step may begin before this one has run.
void SequenceTable::add_row(WorkerSequence& s, std::uint32_t n_tokens, LogitsWanted logits,
                            bool decode, OpenStep& step) {
  const std::size_t end = std::size_t{s.computed} + n_tokens;
  BatchRow& row = step.run.rows.emplace_back();
  row.sequence = s.id;
  row.tokens = std::span<const Token>(s.tokens).subspan(s.computed, n_tokens);
  row.position = s.computed;
  // Blocks grown ahead of the tokens have nothing to read yet.
  const std::size_t tpb = limits_.tokens_per_block;
  row.blocks =
      std::span<const BlockId>(s.blocks).first((end + tpb - 1) / tpb * limits_.groups.count);
  row.before = s.before;
  step.run.parts.insert(step.run.parts.end(), s.before.begin(), s.before.end());
  step.run.reads_in_place = step.run.reads_in_place || !s.before.empty();
  row.logits = logits;
  row.next = end < s.tokens.size() ? s.tokens[end] : kNoToken;
  row.sampling = &s.sampling;
  row.n_prompt = s.n_prompt;
  row.ranks = logits == LogitsWanted::last && s.sampling.beams();
  row.n_generated = static_cast<std::uint32_t>(s.tokens.size()) - s.n_prompt;
  if ((row.samples() || row.ranks) && row.needs_history()) {
    row.history = s.tokens;
    step.run.histories.insert(step.run.histories.end(), s.tokens.begin(), s.tokens.end());
  }
  row.decode = decode;
  if (end == s.tokens.size()) row.from_row = s.pending_row;
  step.run.tokens.insert(step.run.tokens.end(), row.tokens.begin(), row.tokens.end());
  step.run.blocks.insert(step.run.blocks.end(), row.blocks.begin(), row.blocks.end());
  step.owners.push_back(s.shared_from_this());
  s.computed += n_tokens;
  s.pending_row = -1;
  if (!row.samples()) return;
  s.pending_row = static_cast<std::int32_t>(step.run.rows.size()) - 1;
  s.pending_step = step.run.step;
  s.tokens.push_back(kNoToken);
}

/// The rows' spans onto the step's own copies, once these grow no more.
void SequenceTable::point_at_copies(RunStep& step) {
  std::size_t token = 0;
  std::size_t block = 0;
  std::size_t part = 0;
  std::size_t history = 0;
  for (BatchRow& row : step.rows) {
    row.tokens = std::span<const Token>(step.tokens).subspan(token, row.tokens.size());
    row.blocks = std::span<const BlockId>(step.blocks).subspan(block, row.blocks.size());
    token += row.tokens.size();
    block += row.blocks.size();
    row.before = std::span<const TablePart>(step.parts).subspan(part, row.before.size());
    part += row.before.size();
    row.history = std::span<const Token>(step.histories).subspan(history, row.history.size());
    history += row.history.size();
  }
}

void SequenceTable::end_step(OpenStep& step, const StepOutput& output, StepResult& result) {
  for (const FailedRow& failed : output.failed) {
    if (failed.row >= step.owners.size()) continue;
    fail(*step.owners[failed.row], failed, result);
  }
  result.sequences.reserve(step.owners.size());
  result.tokens.reserve(step.owners.size());
  LogprobReader logprobs(output.logprobs);
  LogprobReader prompt_logprobs(output.prompt_logprobs);
  LogprobReader candidates(output.candidates);
  for (std::size_t i = 0; i < step.owners.size(); ++i) {
    WorkerSequence& s = *step.owners[i];
    const BatchRow& row = step.run.rows[i];
    LogprobReader::Entry entry;
    const bool given = logprobs.take(static_cast<std::uint32_t>(i), entry);
    take_prompt_logprobs(step.run, row, prompt_logprobs, result);
    if (row.ranks) take_candidates(s, candidates, static_cast<std::uint32_t>(i), result);
    if (s.failed || !row.samples()) continue;
    const Token token = i < output.tokens.size() ? output.tokens[i] : kNoToken;
    if (token < 0 || static_cast<std::uint32_t>(token) >= limits_.vocab_size) {
      fail(s, {.reason = "no token was sampled"}, result);
      continue;
    }
    s.tokens[s.n_prompt + row.n_generated] = token;
    if (s.pending_step == step.run.step) s.pending_row = -1;
    if (given) {
      result.logprobs.push(static_cast<std::uint32_t>(result.tokens.size()), entry.logprob,
                           entry.top_tokens, entry.top_logprobs, entry.vector);
    }
    result.sequences.push_back(s.id);
    result.tokens.push_back(token);
  }
  step.owners.clear();
}

void SequenceTable::take_candidates(WorkerSequence& s, LogprobReader& reader, std::uint32_t row,
                                    StepResult& result) {
  LogprobReader::Entry entry;
  const bool given = reader.take(row, entry);
  if (s.failed) return;
  if (!given || entry.top_tokens.empty())
    return fail(s, {.reason = "no candidates were found"}, result);
  result.candidates.push(static_cast<std::uint32_t>(result.beam_sequences.size()), entry.logprob,
                         entry.top_tokens, entry.top_logprobs);
  result.beam_sequences.push_back(s.id);
}

/// From the step's numbering of tokens to positions of the row's sequence.
void SequenceTable::take_prompt_logprobs(const RunStep& step, const BatchRow& row,
                                         LogprobReader& reader, StepResult& result) {
  const auto first = static_cast<std::uint32_t>(row.tokens.data() - step.tokens.data());
  const auto end = first + static_cast<std::uint32_t>(row.tokens.size());
  if (reader.done() || reader.item() >= end) return;
  PromptLogprobs& part = result.prompt_logprobs.emplace_back();
  part.owner = row.sequence;
  while (!reader.done() && reader.item() < end) {
    const std::uint32_t item = reader.item();
    LogprobReader::Entry entry;
    reader.take(item, entry);
    part.values.push(static_cast<std::uint32_t>(row.position) + (item - first) + 1, entry.logprob,
                     entry.top_tokens, entry.top_logprobs);
  }
}

void SequenceTable::fail(WorkerSequence& s, const FailedRow& why, StepResult& result) {
  if (s.failed) return;
  s.failed = true;
  leave_decode(s);
  result.failed.push_back({s.id, why.reason, false, why.waited, why.grammar_missing});
}

void SequenceTable::join_decode(WorkerSequence& s) {
  s.decode_index = static_cast<std::int64_t>(decode_.size());
  decode_.push_back(&s);
}

void SequenceTable::leave_decode(WorkerSequence& s) {
  if (s.decode_index < 0) return;
  WorkerSequence* last = decode_.back();
  decode_[static_cast<std::size_t>(s.decode_index)] = last;
  last->decode_index = s.decode_index;
  decode_.pop_back();
  s.decode_index = -1;
}

void SequenceTable::list(Tables& out) const {
  for (const auto& [id, s] : by_id_) out.sequences.push_back(id);
  std::sort(out.sequences.begin(), out.sequences.end());
  for (const SequenceId id : out.sequences) {
    const WorkerSequence& s = *by_id_.at(id);
    out.counts.push_back(static_cast<std::uint32_t>(s.blocks.size()));
    out.blocks.insert(out.blocks.end(), s.blocks.begin(), s.blocks.end());
  }
}

std::vector<Tables> split_tables(Tables all, std::size_t most_blocks) {
  std::vector<Tables> parts;
  auto begin_part = [&]() -> Tables& {
    if (!parts.empty()) parts.back().more = true;
    Tables& part = parts.emplace_back();
    part.term = all.term;
    part.steps_done = all.steps_done;
    return part;
  };
  begin_part();
  auto block = all.blocks.begin();
  for (std::size_t i = 0; i < all.sequences.size(); ++i) {
    const std::uint32_t count = all.counts[i];
    const bool full = parts.back().blocks.size() + count > most_blocks;
    Tables& part = full && !parts.back().sequences.empty() ? begin_part() : parts.back();
    part.sequences.push_back(all.sequences[i]);
    part.counts.push_back(count);
    part.blocks.insert(part.blocks.end(), block, block + count);
    block += count;
  }
  return parts;
}

}  // namespace baton
