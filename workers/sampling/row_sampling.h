// From the logits of a step's rows to its output, on the host: tokens, log probabilities, what beam
// search asks for. The CPU backend does all of its rows so, the CUDA backend those that its kernels
// cannot do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ipc/status.h"
#include "workers/cpu/thread_pool.h"
#include "workers/protocol/step_batch.h"
#include "workers/sampling/grammar_masks.h"
#include "workers/sampling/sampler.h"

namespace baton {

/// One line of logits: those behind rows[row].tokens[token] of a step.
struct LogitsLine {
  std::size_t row = 0;
  std::size_t token = 0;
};

/// Instead of a token, where the row wants a vector (SamplingParams::pooling): token 0, and the
/// vector beside it. A row whose vector has a value that is no number fails.
void tell_vector(std::uint32_t row, std::span<const float> vector, StepOutput& output);

/// The mask of a row that samples and has a grammar, as GrammarMasks::wait() gives it. Thread-safe.
using MaskOfRow = std::function<Result<RowMask>(std::size_t row)>;

/// Keeps scratch memory: one instance a thread.
class RowSampling {
 public:
  explicit RowSampling(MaskOfRow mask) : mask_(std::move(mask)) {}

  /// Whatever the row wants of this line, appended to `output`, whose `tokens` has an entry a row.
  /// The lines of a step come in order. `logits`, [vocab], loses what the row's grammar excludes:
  /// log probabilities of generated tokens are those of what is left.
  void finish(const RunStep& step, LogitsLine line, std::span<float> logits, StepOutput& output);

 private:
  void pool(const BatchRow& row, std::uint32_t index, std::span<const float> logits,
            StepOutput& output);
  Result<Token> draw(const BatchRow& row, std::size_t index, std::span<float> logits);

  MaskOfRow mask_;
  Sampler sampler_;
  std::vector<float> vector_;
};

/// The same on several threads, for many lines at once. The result does not depend on their number.
class RowSamplingPool {
 public:
  RowSamplingPool(int threads, const MaskOfRow& mask);

  /// `logits`: [lines.size(), vocab], line by line. Appends to `output` in the order of `lines`,
  /// and writes the tokens of their rows.
  void finish(const RunStep& step, std::span<const LogitsLine> lines, std::span<float> logits,
              StepOutput& output);

 private:
  cpu::ThreadPool pool_;
  std::vector<RowSampling> samplings_;  // by thread
  std::vector<StepOutput> parts_;       // of consecutive lines, in order; reused
};

/// Appends what `part` tells to `to`; the tokens that `part` knows are written over those of `to`.
/// Both are about the same step, and the entries of `part` are about later lines.
void append(StepOutput& to, const StepOutput& part);

}  // namespace baton
