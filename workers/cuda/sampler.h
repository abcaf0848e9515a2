// Draws one token from each row of logits, on the device: the twin of workers/sampler.h, with the same
// order of operations and the same counter-based random numbers (workers/philox.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// One row's parameters, uploaded with the step. Checked on the host (workers/sequence_table).
struct SampleRow {
  std::int32_t logits_row = 0;    // which row of the logits; negative: padding, the row is skipped
  std::int32_t output = 0;        // index into `tokens` that gets the result
  float temperature = 0;          // below 1e-5: greedy
  float top_p = 1;                // (0, 1]
  std::int32_t top_k = 0;         // 0: off
  float min_p = 0;                // [0, 1]: drops tokens lighter than min_p times the heaviest
  std::uint32_t choice = 0;
  std::uint32_t n_generated = 0;
  std::uint64_t seed = 0;
  std::int32_t first_masked = 0;  // this row's entries of `masked`: ids that may not be drawn
  std::int32_t n_masked = 0;
};

/// What a row gets that has no token to draw (NaN or +infinity among its logits, or all masked).
constexpr std::int32_t kNoSample = -1;

/// Device memory that sample() needs for `rows` rows.
std::size_t sample_workspace_bytes(int rows, int vocab);

/// logits [*, vocab] fp32 (changed, if at all, only where ids are masked: rows that share a
/// logits_row must mask the same ids), rows [n_rows], masked: flat ids. All device memory.
/// `tokens[rows[i].output]` = the token or kNoSample. Order: masked ids; temperature; top_k; top_p
/// over what top_k left; min_p, which then drops what is lighter than min_p times the heaviest.
/// Equal logits rank by id, the lowest first. The draw walks the ranks where top_k or top_p is set,
/// else the ids, and follows from the row's logits, parameters and key alone, to the bit.
/// One grid for any parameters, so that a graph captured once serves them all. Queues on `stream`,
/// allocates nothing. Throws CudaError.
void sample(float* logits, int vocab, const SampleRow* rows, int n_rows, const std::int32_t* masked,
            std::int32_t* tokens, void* workspace, Stream stream);

}  // namespace baton::cuda
