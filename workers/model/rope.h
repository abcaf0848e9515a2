// Angles of rotary position embeddings.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "workers/model/config.h"

namespace baton {

/// The head_dim / 2 angular frequencies, scaled as the configuration says. In fp32, like the models
/// were trained with.
std::vector<float> rope_frequencies(const RopeConfig& rope, int head_dim);

/// cos and sin of position * frequency. Computed at first use, kept: memory follows the longest
/// context seen, not the longest possible. Not thread-safe.
class RopeTable {
 public:
  RopeTable(const RopeConfig& rope, int head_dim, std::int64_t max_positions);

  /// head_dim / 2 values each; valid as long as the table.
  struct Angles {
    const float* cos;
    const float* sin;
  };
  /// `position` is in [0, max_positions).
  Angles at(std::int64_t position);

 private:
  static constexpr std::int64_t kPage = 256;  // positions computed at a time
  std::vector<float> frequencies_;
  std::vector<std::unique_ptr<float[]>> pages_;
};

}  // namespace baton
