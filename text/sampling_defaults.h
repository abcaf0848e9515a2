// How a model's publisher wants its tokens drawn: generation_config.json of its folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ipc/status.h"

namespace baton {

/// What a request that does not say otherwise is drawn with; empty: the server's own default.
struct SamplingDefaults {
  std::optional<float> temperature;         // 0 to 100; 0: greedy
  std::optional<float> top_p;               // above 0, to 1
  std::optional<std::int32_t> top_k;        // 0: off
  std::optional<float> min_p;               // 0 to 1
  std::optional<float> repetition_penalty;  // above 0, to 100

  bool any() const { return temperature || top_p || top_k || min_p || repetition_penalty; }
  /// "temperature 0.6, top_p 0.95"; empty: none is given.
  std::string described() const;
};

/// The values in `folder`/generation_config.json; none where there is no such file. Other keys are
/// not read: vLLM and SGLang take the same five. An error names a value that is out of range.
Result<SamplingDefaults> read_sampling_defaults(const std::string& folder);

}  // namespace baton
