// Angles of rotary position embeddings.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "workers/model/config.h"

namespace baton {

/// The d / 2 angular frequencies f_i of d = rope.dims, in fp32, like the models were trained with.
/// Pair i turns by f_i = theta^(-2i/d) a position without scaling; else
///   linear   f_i / factor
///   dynamic  theta^(-2i/d) of a larger theta ("NTK-aware"): theta * s^(d / (d - 2)) with
///            s = factor * length / original_context - (factor - 1), length = factor *
///            original_context, the longest sequence served
///   yarn     pairs that turn more than beta_fast times in original_context keep f_i, those below
///            beta_slow get f_i / factor, a ramp over i leads from one to the other (Peng et al.,
///            "YaRN", arXiv:2309.00071, section 3.2); angles are also multiplied, see RopeTable
///   llama3   the same idea over wavelengths, as Llama 3.1 has it
///   longrope f_i / stretch[i] (arXiv:2402.13753)
///
/// All of them are those of transformers (modeling_rope_utils.py), with one exception. There,
/// dynamic takes the length of the batch's longest sequence so far, so that a token's keys depend
/// on its batch-mates and on how its prompt was cut. Here they must not: there is one set of
/// frequencies for all positions, that of the longest sequence (vLLM's decision, too). It equals
/// transformers for a prompt of factor * original_context tokens in one pass, to rounding; no set
/// can equal it for shorter ones at the same time. Likewise longrope: transformers takes
/// long_factor once a sequence is longer than original_context; here it is long_factor for all
/// positions of a model that serves more than that, short_factor for one that does not (as vLLM).
std::vector<float> rope_frequencies(const RopeConfig& rope);

/// What a query at this position is multiplied by.
float query_factor(const RopeConfig& rope, std::int64_t position);

/// cos and sin of position * frequency, both times the attention_factor. Computed at first use,
/// kept: memory follows the longest context seen, not the longest possible. Not thread-safe.
class RopeTable {
 public:
  RopeTable(const RopeConfig& rope, std::int64_t max_positions);

  /// dims / 2 values each; valid as long as the table.
  struct Angles {
    const float* cos;
    const float* sin;
    float query_factor;
  };
  /// `position` is in [0, max_positions).
  Angles at(std::int64_t position);

 private:
  static constexpr std::int64_t kPage = 256;  // positions computed at a time
  RopeConfig rope_;
  std::vector<float> frequencies_;
  std::vector<std::unique_ptr<float[]>> pages_;
};

}  // namespace baton
