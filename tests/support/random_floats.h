// Inputs that look like activations or logits: normally distributed, the same for a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace baton {

inline std::vector<float> random_floats(std::size_t n, std::uint32_t seed, float deviation = 1.0F) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(n);
  for (float& value : values) value = normal(rng);
  return values;
}

}  // namespace baton
