// What a worker remembers of each sequence between two plans, and how a plan changes it. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"
#include "workers/step_batch.h"

namespace baton {

/// What bounds every number in a plan.
struct TableLimits {
  std::uint32_t blocks = 0;  // of the pool: ids are 0 .. blocks-1
  std::uint32_t tokens_per_block = 0;
  std::uint32_t max_context = 0;
  std::uint32_t vocab_size = 0;
};

/// One sequence. Invariants: computed <= tokens.size(); in the decode set computed + 1 ==
/// tokens.size(), the last token being the one to feed.
struct WorkerSequence {
  SequenceId id = 0;
  std::uint32_t choice = 0;
  std::uint32_t n_prompt = 0;    // the first n_prompt of `tokens`
  std::uint32_t computed = 0;    // tokens with KV in the pool
  std::vector<Token> tokens;     // prompt + generated
  std::vector<BlockId> blocks;
  SamplingParams sampling;
  std::string refused;           // not empty: its content cannot run; told with its first row
  bool failed = false;           // a row failed: its further rows are void
  StepId last_row = 0;           // step of its latest row
  std::int64_t decode_index = -1;  // place in the decode set
};

/// All sequences of a term. Addresses are stable until drop() or clear(): the running step looks
/// into them.
class SequenceTable {
 public:
  void set_limits(const TableLimits& limits) { limits_ = limits; }
  const TableLimits& limits() const { return limits_; }
  void clear();

  /// Applies `plan` (drop, add, grow, ops, rows) and fills `step` with its rows. Returns what is
  /// wrong with the plan, if anything; the table is then good for nothing but clear(). Rows of
  /// sequences whose content cannot run go to `refused` instead.
  std::optional<std::string> begin_step(StepPlan& plan, RunStep& step,
                                        std::vector<RowFailure>& refused);
  /// Takes the output of the step begun last: advances its sequences and fills the columns of `result`.
  /// A row that was to sample and has no token of the vocabulary has failed: further rows are void.
  void end_step(const RunStep& step, const StepOutput& output, StepResult& result);

  std::size_t size() const { return by_id_.size(); }
  std::size_t decoding() const { return decode_.size(); }
  const WorkerSequence* find(SequenceId id) const;
  /// Every table, in order of sequence id.
  void list(Tables& out) const;

 private:
  using Problem = std::optional<std::string>;

  Problem drop(SequenceId id);
  Problem check_copies(const std::vector<CopyOp>& copies) const;
  Problem add(AddSequence& m);
  Problem grow(SequenceId id, BlockId block);
  Problem prompt_row(const PromptRow& row, RunStep& step, std::vector<RowFailure>& refused);
  Problem decode_rows(RunStep& step, std::vector<RowFailure>& refused);
  Problem place(WorkerSequence& s, std::uint32_t n_tokens, LogitsWanted logits, bool decode,
                RunStep& step);
  bool is_void(WorkerSequence& s, std::vector<RowFailure>& refused);
  void join_decode(WorkerSequence& s);
  void leave_decode(WorkerSequence& s);
  std::string content_problem(const AddSequence& m) const;

  TableLimits limits_;
  std::unordered_map<SequenceId, std::unique_ptr<WorkerSequence>> by_id_;
  std::vector<WorkerSequence*> decode_;
  std::vector<WorkerSequence*> row_owner_;   // of the running step, by row
  std::vector<WorkerSequence*> joins_;       // then_decode of the running step
};

}  // namespace baton
