// One step, ready to run: what the protocol core hands to the device and what it gets back. Plain
// values, std only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"

namespace baton {

/// No token: the row asked for none, or it failed.
constexpr Token kNoToken = -1;

/// One row of a step: some tokens of one sequence. The spans and the pointer look into the core's
/// sequence table, which does not change a sequence while a step runs: they are valid until the core
/// is told that the step has finished, and no longer.
struct BatchRow {
  SequenceId sequence = 0;
  std::span<const Token> tokens;    // at least one
  std::int64_t position = 0;        // of tokens[0]; all positions before it have their KV
  std::span<const BlockId> blocks;  // the table; covers every position that this row writes
  LogitsWanted logits = LogitsWanted::none;  // none or last
  const SamplingParams* sampling = nullptr;
  std::uint32_t choice = 0;
  std::uint32_t n_generated = 0;  // index of the token to be sampled: keys its random number, and
                                  // stop ids are masked while it is below min_tokens
  bool decode = false;            // one token that the step before sampled
};

/// A step. Owned by the core, its buffers are reused: steady state allocates nothing.
struct RunStep {
  StepId step = 0;
  std::vector<CopyOp> copies;  // run first, in order
  std::vector<BatchRow> rows;
};

/// A row without a usable result; `row` is an index into RunStep::rows.
struct FailedRow {
  std::uint32_t row = 0;
  std::string reason;
};

/// Answer to a RunStep: its writes are visible to other processes.
struct StepOutput {
  std::vector<Token> tokens;  // one a row; kNoToken where nothing was sampled
  std::vector<FailedRow> failed;
  std::uint32_t duration_us = 0;
};

}  // namespace baton
