// Draws one token from each row of logits, on the device: the twin of workers/sampling/sampler.h,
// with the same order of operations and the same counter-based random numbers
// (workers/sampling/philox.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// `value` is added to the logit of `token`. Entries of a row are sorted by token; those of one
/// token are added in their order.
struct LogitBias {
  std::int32_t token = 0;
  float value = 0;
};

/// A token that a row's prompt or output holds, `times` in the output. Once a row.
struct SeenToken {
  std::int32_t token = 0;
  std::int32_t times = 0;
};

/// One row's parameters, uploaded with the step. Checked on the host
/// (workers/protocol/sequence_table). What is told of lists is where they begin among the `words`
/// that sample() gets, and how many entries they have; ids outside of the vocabulary are passed
/// over.
struct SampleRow {
  std::int32_t logits_row = 0;  // which row of the logits; negative: padding, the row is skipped
  std::int32_t output = 0;      // index into `tokens` that gets the result
  float temperature = 0;        // below 1e-5: greedy
  float top_p = 1;              // (0, 1]
  std::int32_t top_k = 0;       // 0: off
  float min_p = 0;              // [0, 1]: drops tokens lighter than min_p times the heaviest
  std::uint32_t n_generated = 0;
  std::uint64_t seed = 0;
  // What changes the logits before the draw (workers/sampling/logit_edits.h)
  std::int32_t grammar = -1;  // bit mask, (vocab + 31) / 32 words: what may be drawn; -1: all. Log
                              // probabilities are those of what it leaves.
  std::int32_t allowed = -1;  // likewise, and log probabilities do not know of it
  std::int32_t first_masked = 0;  // ids that may not be drawn
  std::int32_t n_masked = 0;
  std::int32_t first_bias = 0;  // LogitBias
  std::int32_t n_biases = 0;
  std::int32_t first_seen = 0;  // SeenToken
  std::int32_t n_seen = 0;
  float repetition_penalty = 1;  // the penalties act on what was seen
  float frequency_penalty = 0;
  float presence_penalty = 0;
  // Log probabilities
  std::int32_t logprobs = -1;  // index into `logprobs` that gets them; -1: not wanted
  std::int32_t n_top = 0;      // 0 .. TokenLogprobs::kMaxTop
  std::int32_t about =
      -1;  // the token that they are about, and nothing is drawn; -1: the drawn one
};

/// Log probabilities of one row: natural logarithms of the softmax of its logits.
struct TokenLogprobs {
  static constexpr int kMaxTop = 20;
  float logprob = 0;  // -infinity where the token is masked
  std::int32_t n_top =
      0;  // fewer than asked for where a grammar leaves fewer; -1: no softmax (NaN)
  std::int32_t tokens[kMaxTop];  // the most probable ones, best first
  float logprobs[kMaxTop];
};

/// What a row gets that has no token to draw (NaN or +infinity among its logits, or all masked).
constexpr std::int32_t kNoSample = -1;

/// Device memory that sample() needs for `rows` rows: none where a row fits into shared memory.
std::size_t sample_workspace_bytes(int rows, int vocab);

/// logits [*, vocab] fp32, rows [n_rows], words: what the rows' lists are found in. All device
/// memory.
/// `tokens[rows[i].output]` = the token or kNoSample. Order: grammar; log probabilities; bias;
/// repetition, frequency and presence penalty; masked ids and those not allowed (where
/// workers/sampling/sampler.h has them first: of a masked logit nothing is left either way);
/// temperature; top_k; top_p over what top_k left; min_p, which then drops what is lighter than
/// min_p times the heaviest. Equal logits rank by id, the lowest first. The draw walks the ranks
/// where top_k, top_p or min_p is set, else the ids. Everything follows from the row's logits,
/// parameters and key alone, to the bit. One grid for any parameters, so that a graph captured once
/// serves them all. Queues on `stream`, allocates nothing. Throws CudaError.
void sample(const float* logits, int vocab, const SampleRow* rows, int n_rows,
            const std::int32_t* words, std::int32_t* tokens, TokenLogprobs* logprobs,
            void* workspace, Stream stream);

}  // namespace baton::cuda
