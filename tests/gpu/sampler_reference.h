// What the tests of the device's sampler share: random logits, and an fp64 judge of draws.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "workers/cuda/sampling/sampler.h"
#include "workers/sampling/philox.h"

namespace baton::cuda {

/// How far `uniform` lies outside of the token's share, in fp64; 2 for a token that is not kept.
/// `slack` moves the border of top_p a little, for sums that fall on it within rounding.
inline double distance(const std::vector<float>& logits, const SampleRow& p, std::int32_t token,
                       double slack) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  const bool top_k = p.top_k > 0 && static_cast<std::size_t>(p.top_k) < order.size();
  if (top_k || p.top_p < 1.0F || p.min_p > 0.0F) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  }
  if (top_k) order.resize(static_cast<std::size_t>(p.top_k));
  const float best = *std::max_element(logits.begin(), logits.end());
  const auto weight = [&](std::size_t i) {
    return std::exp((static_cast<double>(logits[i]) - static_cast<double>(best)) *
                    static_cast<double>(1.0F / p.temperature));
  };
  double total = 0;
  for (const std::size_t i : order) total += weight(i);
  if (p.top_p < 1.0F) {
    double sum = 0;
    std::size_t kept = 0;
    do {
      sum += weight(order[kept++]);
    } while (kept < order.size() && sum < (static_cast<double>(p.top_p) + slack) * total);
    order.resize(kept);
  }
  std::erase_if(order, [&](std::size_t i) {
    return weight(i) < static_cast<double>(p.min_p) * (1.0 + slack);
  });
  total = 0;
  for (const std::size_t i : order) total += weight(i);
  const double target = total * uniform_draw(p.seed, p.n_generated, 0);
  double begin = 0;
  for (const std::size_t i : order) {
    const double end = begin + weight(i);
    if (static_cast<std::int32_t>(i) == token) {
      return std::max({0.0, begin - target, target - end}) / total;
    }
    begin = end;
  }
  return 2.0;
}

inline double distance(const std::vector<float>& logits, const SampleRow& p, std::int32_t token) {
  double least = 2.0;
  for (const double slack : {0.0, 1e-6, -1e-6}) {
    if (least > 1e-5) least = std::min(least, distance(logits, p, token, slack));
  }
  return least;
}

enum class Shape { peaked, flat, quantised, equal, huge };

inline std::vector<float> random_logits(int vocab, Shape shape, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  for (float& v : logits) {
    const float z = normal(random);
    switch (shape) {
      case Shape::peaked:
        v = 2.5F * z + (random() % 500 == 0 ? 10.0F : 0.0F);
        break;
      case Shape::flat:
        v = 0.8F * z - 3.0F;
        break;
      case Shape::quantised:
        v = std::round(8.0F * z) / 4.0F;
        break;
      case Shape::equal:
        v = random() % 4 == 0 ? 1.25F : -1.0F;
        break;
      case Shape::huge:
        v = 1e30F * z;
        break;
    }
  }
  return logits;
}

}  // namespace baton::cuda
