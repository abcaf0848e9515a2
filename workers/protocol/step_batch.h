// One step, ready to run: what the protocol core hands to the device and what it gets back. Plain
// values, std only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"

namespace baton {

/// The next `blocks` entries of a sequence's table are in that pool, and only read.
struct TablePart {
  AllocationId allocation = 0;
  std::uint32_t blocks = 0;
};

/// Rows of a step that read what another worker may still be writing (StepWait).
struct RowWait {
  std::uint32_t row = 0;
  std::string handle;
  Term term = 0;
  StepId step = 0;
};

/// One row of a step: some tokens of one sequence. The spans look into the RunStep's own copies;
/// `sampling` is valid until the core is told that the step has finished.
struct BatchRow {
  SequenceId sequence = 0;
  std::span<const Token> tokens;    // at least one
  std::int64_t position = 0;        // of tokens[0]; all positions before it have their KV
  std::span<const BlockId> blocks;  // the table; covers every position that this row writes. Of
                                    // several groups of layers, one of each side by side
  /// Whose ids the table begins with; what follows is in the own pool.
  std::span<const TablePart> before;
  LogitsWanted logits = LogitsWanted::none;
  const SamplingParams* sampling = nullptr;
  /// Prompt and generated tokens up to the one to come, if needs_history(); the first n_prompt of
  /// them are the prompt.
  std::span<const Token> history;
  std::uint32_t n_prompt = 0;
  Token next =
      kNoToken;  // with logits `all`: the known token after the last of `tokens`, or kNoToken
  std::uint32_t n_generated = 0;  // index of the token to be sampled: keys its random number, and
                                  // stop ids are masked while it is below min_tokens
  bool decode = false;            // one token that an earlier step sampled
  /// >= 0: the last of `tokens` is kNoToken here, and is what row `from_row` of the step launched
  /// just before this one samples: the device takes it from there, nobody waits for the host.
  std::int32_t from_row = -1;
  /// Of a beam search, with logits `last`: nothing is drawn, candidates are told instead.
  bool ranks = false;

  /// Unless `logits` is none: the first of `tokens` behind which logits are wanted; so are they
  /// behind every later one.
  std::size_t first_logits() const { return logits == LogitsWanted::all ? 0 : tokens.size() - 1; }
  /// What logits would be made of is wanted instead of them.
  bool wants_hidden() const {
    return logits == LogitsWanted::last && sampling->pooling == Pooling::last_hidden;
  }
  /// The draw depends on the tokens before it.
  bool needs_history() const {
    return sampling->needs_history() || sampling->reasoning_ends_at(n_generated);
  }
  /// The host must know the token that is drawn here before the next step can begin.
  bool holds_next_step() const {
    return samples() && (sampling->holds_next_step() ||
                         sampling->reasoning_ends_at(std::uint64_t{n_generated} + 1));
  }
  /// A token is drawn after the last of `tokens`.
  bool samples() const {
    return (logits == LogitsWanted::last && !ranks) ||
           (logits == LogitsWanted::all && next == kNoToken);
  }
};

/// A step. Owned by the core, its buffers are reused: steady state allocates nothing. It holds its
/// own copies of tokens and tables, since the core plans the next step while this one runs.
struct RunStep {
  Term term = 0;
  StepId step = 0;
  std::vector<CopyOp> copies;  // run first, in order
  std::size_t saves = 0;       // the first so many of them go from the device to the host part
  std::vector<BatchRow> rows;
  std::vector<Token> tokens;     // of all rows, one after another
  std::vector<BlockId> blocks;   // tables of all rows, one after another
  std::vector<TablePart> parts;  // BatchRow::before of all rows, one after another
  std::vector<Token> histories;  // of the rows that need one, one after another
  std::vector<RowWait> waits;    // in order of rows
  std::vector<BlockId> summed;   // blocks whose checksums are wanted when it has ended
  bool reads_in_place = false;   // some row has `before`

  void clear() {
    reads_in_place = false;
    summed.clear();
    copies.clear();
    saves = 0;
    rows.clear();
    tokens.clear();
    blocks.clear();
    parts.clear();
    histories.clear();
    waits.clear();
  }
  /// The next step cannot begin before this one has ended.
  bool holds_next_step() const {
    return std::any_of(rows.begin(), rows.end(),
                       [](const BatchRow& row) { return row.holds_next_step(); });
  }
};

/// Follows the reason why a row has no token, where it has a grammar.
constexpr const char* kGrammarLeavesNothing =
    "; the request has a grammar, which may allow nothing that its other fields "
    "(allowed_token_ids, bad_words) leave";

/// A row without a usable result; `row` is an index into RunStep::rows.
struct FailedRow {
  std::uint32_t row = 0;
  std::string reason;
  bool waited = false;           // as in RowFailure,
  bool grammar_missing = false;  // as is this
};

/// Answer to a RunStep: its writes are visible to other processes.
struct StepOutput {
  std::vector<Token> tokens;  // one a row; kNoToken where nothing was sampled
  std::vector<FailedRow> failed;
  Logprobs logprobs;         // of `tokens`; items are row indexes
  Logprobs prompt_logprobs;  // of rows with logits `all`; an item is the index into RunStep::tokens
                             // of the token before the one that the entry is about
  Logprobs candidates;       // of rows that rank, as in StepResult; items are row indexes
  std::vector<std::uint64_t> sums;  // of RunStep::summed
  std::uint32_t duration_us = 0;
  std::uint32_t waited_us = 0;  // of these, for other workers
  /// By the device's own clock, from executors that were asked for it: idle between the step before
  /// and this one, and from this one's first operation to its end. Negative: not measured.
  float idle_us = -1;
  float run_us = -1;
};

}  // namespace baton
