// What a request changes in a row of logits (workers/sampling/logit_edits.h), as lists for the
// device's sampler. Host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "workers/cuda/sampling/sampler.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// Where lists go: words `used` .. `capacity` - 1 are free.
struct WordArea {
  std::int32_t* words = nullptr;
  std::size_t used = 0;
  std::size_t capacity = 0;
};

/// Remembers the tokens of sequences from step to step, so that a step costs little more than the
/// new ones. What it remembers is compared with the row, and thrown away if the row tells
/// otherwise.
class GpuEdits {
 public:
  explicit GpuEdits(std::uint32_t vocab) : vocab_(vocab) {}

  /// A step begins. Sequences without a row for many steps are forgotten.
  void begin_step();
  /// Writes the lists of a row that draws, and names them in `sample`. False, and nothing is
  /// written, if
  /// `area` has no room for them. `may_stop`: below min_tokens, too.
  bool write(const BatchRow& row, WordArea& area, cuda::SampleRow& sample, bool may_stop = false);

 private:
  struct Sequence {
    std::vector<Token> counted;  // the history that `seen` is made of
    std::uint32_t n_prompt = 0;
    std::vector<cuda::SeenToken> seen;  // by token
    std::vector<Token> bias_tokens;     // what `biases` is made of
    std::vector<float> bias_values;
    std::vector<cuda::LogitBias> biases;  // by token
    std::uint64_t step = 0;               // of its last row
  };

  const Sequence& remember(const BatchRow& row);
  static void count(Sequence& sequence, const BatchRow& row);
  static void sort_biases(Sequence& sequence, const SamplingParams& params);
  void find_masked(const BatchRow& row, bool may_stop);
  bool write_forced(Token forced, WordArea& area, cuda::SampleRow& sample) const;
  void write_mask(std::span<const Token> allowed, std::int32_t* mask) const;

  const std::uint32_t vocab_;
  std::unordered_map<std::uint64_t, Sequence> sequences_;
  std::uint64_t step_ = 0;
  std::vector<std::int32_t> masked_;  // of the row at hand
};

}  // namespace baton
