// What a worker remembers of each sequence between two plans, and how a plan changes it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ipc/kv_groups.h"
#include "ipc/messages.h"
#include "ipc/types.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// What bounds every number in a plan.
struct TableLimits {
  std::uint32_t blocks = 0;  // on the device: ids are 0 .. blocks-1
  std::uint32_t tokens_per_block = 0;
  std::uint32_t max_context = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t host_blocks = 0;      // ids behind `blocks`; only copies may name these
  std::uint32_t max_step_tokens = 0;  // 0: any number
  AllocationId allocation = 0;        // of the own pool
  KvGroups groups = {};

  TableShape shape() const { return {tokens_per_block, groups}; }
};

/// One sequence, as the steps begun so far leave it: a token that an open step is to sample is
/// already in `tokens`, as kNoToken. Invariants: computed <= tokens.size(); in the decode set
/// computed + 1 == tokens.size(), the last token being the one to feed. A running beam is computed
/// whole: the plan of its next row brings the token.
struct WorkerSequence : std::enable_shared_from_this<WorkerSequence> {
  SequenceId id = 0;
  std::uint32_t n_prompt = 0;  // the first n_prompt of `tokens`
  std::uint32_t computed = 0;  // tokens with KV in the pool once the open steps have ended
  std::vector<Token> tokens;   // prompt + generated
  /// Columns of the groups' blocks (TableShape). What a window has left behind keeps the number
  /// that it had, or 0: nobody looks at what lies there.
  std::vector<BlockId> blocks;
  std::vector<TablePart> before;  // whose ids `blocks` begins with, if not all are the own pool's
  std::array<std::uint32_t, kMaxKvGroups> filled{};  // columns of each group that have a block
  SamplingParams sampling;
  std::string refused;             // not empty: its content cannot run; told with its first row
  bool unmapped = false;           // ... because a pool of `before` is not mapped
  bool failed = false;             // a row failed: its further rows are void
  StepId last_row = 0;             // step of its latest row
  std::int32_t pending_row = -1;   // >= 0: tokens.back() is what this row of ...
  StepId pending_step = 0;         // ... this open step samples
  std::int64_t decode_index = -1;  // place in the decode set
};

/// A step between begin_step() and end_step(). Reused, so that the steady state allocates nothing.
struct OpenStep {
  RunStep run;
  std::vector<std::shared_ptr<WorkerSequence>> owners;  // of the rows; a dropped one lives on here
  std::vector<RowFailure> refused;                      // rows whose content cannot run
  /// A prompt's chunk in the plan is void, and not among `run.rows`: what it was to leave for
  /// others is never written.
  bool lacks_rows = false;
};

/// All sequences of a term. A step may begin before the one before it has ended: its decode rows
/// then take their tokens from that one on the device. With more than two open steps a row could
/// need a token of an older one, which nobody can name: two is the limit.
class SequenceTable {
 public:
  /// Blocks that rows may name in a pool that is mapped; 0: none.
  using Readable = std::function<std::uint32_t(AllocationId)>;
  void set_readable(Readable readable) { readable_ = std::move(readable); }
  void set_limits(const TableLimits& limits) { limits_ = limits; }
  const TableLimits& limits() const { return limits_; }
  void clear();

  /// Applies `plan` (drop, add, fork, elsewhere, grow, ops, rows) and fills `step` with its rows.
  /// Returns what is wrong with the plan, if anything; the table is then good for nothing but
  /// clear().
  std::optional<std::string> begin_step(StepPlan& plan, OpenStep& step);
  /// Takes the output of the oldest open step: fills in the tokens and the columns of `result`. A
  /// row that was to sample and has no token of the vocabulary has failed: further rows are void.
  void end_step(OpenStep& step, const StepOutput& output, StepResult& result);

  /// Some sequence names blocks of that pool.
  bool reads(AllocationId allocation) const;
  static bool reads(const WorkerSequence& sequence, AllocationId allocation);
  std::size_t size() const { return by_id_.size(); }
  std::size_t decoding() const { return decode_.size(); }
  const WorkerSequence* find(SequenceId id) const;
  /// Every table, in order of sequence id.
  void list(Tables& out) const;

 private:
  using Problem = std::optional<std::string>;

  Problem too_many_tokens(const OpenStep& step) const;
  Problem drop(SequenceId id);
  Problem take_copies(const std::vector<CopyOp>& copies, RunStep& run) const;
  Problem add(AddSequence& m);
  Problem fork(const ForkSequence& m);
  Problem take_table(AddSequence& m, WorkerSequence& s) const;
  Problem grow(SequenceId id, BlockId block, std::uint32_t group);
  Problem prompt_row(const PromptRow& row, OpenStep& step);
  Problem beam_row(const BeamRow& row, OpenStep& step);
  Problem single_row(SequenceId id, OpenStep& step);
  Problem decode_rows(OpenStep& step);
  Problem place(WorkerSequence& s, std::uint32_t n_tokens, LogitsWanted logits, bool decode,
                OpenStep& step);
  void add_row(WorkerSequence& s, std::uint32_t n_tokens, LogitsWanted logits, bool decode,
               OpenStep& step);
  static void point_at_copies(RunStep& step);
  void take_candidates(WorkerSequence& s, LogprobReader& reader, std::uint32_t row,
                       StepResult& result);
  void fail(WorkerSequence& s, const FailedRow& why, StepResult& result);
  bool is_void(WorkerSequence& s, OpenStep& step);
  Problem take_before(AddSequence& m, WorkerSequence& s) const;
  Problem take_part(const PoolBlocks& part, WorkerSequence& s) const;
  Problem pass_over(const BlocksElsewhere& m);
  Problem take_waits(std::vector<StepWait>& waits, RunStep& run) const;
  void join_decode(WorkerSequence& s);
  void leave_decode(WorkerSequence& s);
  std::string content_problem(const AddSequence& m) const;
  std::string sampler_problem(const SamplingParams& p) const;
  static void take_prompt_logprobs(const RunStep& step, const BatchRow& row, LogprobReader& reader,
                                   StepResult& result);

  TableLimits limits_;
  Readable readable_;
  std::unordered_map<SequenceId, std::shared_ptr<WorkerSequence>> by_id_;
  std::vector<WorkerSequence*> decode_;
  std::vector<WorkerSequence*> joins_;  // then_decode of the plan at hand
};

/// The same in messages of at most `most_blocks` blocks each, or one sequence.
std::vector<Tables> split_tables(Tables all, std::size_t most_blocks);

}  // namespace baton
