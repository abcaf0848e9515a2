#include "workers/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace baton {
namespace {

/// Llama 3.1's rule: long wavelengths are stretched by the factor, short ones kept, those between
/// interpolated.
double llama3_frequency(double frequency, const RopeConfig& rope) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double turns = rope.original_context / wavelength;  // in the original context
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double smooth =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

/// The pair (a fraction of one) that turns `turns` times in the original context.
double pair_of(double turns, const RopeConfig& rope, int head_dim) {
  return head_dim * std::log(rope.original_context / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

/// How far pair i is stretched: 0 not at all, 1 by the whole factor.
double yarn_ramp(int i, const RopeConfig& rope, int head_dim) {
  double low = pair_of(rope.beta_fast, rope, head_dim);
  double high = pair_of(rope.beta_slow, rope, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  return std::clamp((i - low) / (high - low), 0.0, 1.0);
}

double dynamic_theta(const RopeConfig& rope, int head_dim) {
  const double length = std::floor(rope.original_context * rope.factor);
  const double scale = rope.factor * length / rope.original_context - (rope.factor - 1.0);
  return rope.theta * std::pow(scale, head_dim / (head_dim - 2.0));
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope) {
  const int dims = rope.dims;
  const bool dynamic = rope.type == RopeType::dynamic;
  const double theta = dynamic ? dynamic_theta(rope, dims) : rope.theta;
  std::vector<float> frequencies;
  for (int i = 0; i < dims / 2; ++i) {
    // Rounded to fp32 before the scaling, as the reference implementation does.
    const auto plain = static_cast<double>(
        static_cast<float>(1.0 / std::pow(theta, 2.0 * i / static_cast<double>(dims))));
    double scaled = plain;
    if (rope.type == RopeType::longrope) {
      scaled = static_cast<double>(static_cast<float>(rope.stretch[static_cast<std::size_t>(i)]));
      scaled = 1.0 / (scaled * std::pow(theta, 2.0 * i / static_cast<double>(dims)));
    }
    if (rope.type == RopeType::linear) scaled = plain / rope.factor;
    if (rope.type == RopeType::llama3) scaled = llama3_frequency(plain, rope);
    if (rope.type == RopeType::yarn) {
      const double ramp = yarn_ramp(i, rope, dims);
      scaled = plain / rope.factor * ramp + plain * (1.0 - ramp);
    }
    frequencies.push_back(static_cast<float>(scaled));
  }
  return frequencies;
}

float query_factor(const RopeConfig& rope, std::int64_t position) {
  if (rope.query_growth == 0) return 1;
  const double lengths = std::floor(static_cast<double>(position) / rope.query_context);
  return static_cast<float>(1.0 + rope.query_growth * std::log1p(lengths));
}

RopeTable::RopeTable(const RopeConfig& rope, std::int64_t max_positions)
    : rope_(rope),
      frequencies_(rope_frequencies(rope)),
      pages_(static_cast<std::size_t>((max_positions + kPage - 1) / kPage)) {}

RopeTable::Angles RopeTable::at(std::int64_t position) {
  const std::size_t half = frequencies_.size();
  std::unique_ptr<float[]>& page = pages_[static_cast<std::size_t>(position / kPage)];
  if (!page) {
    page = std::make_unique<float[]>(static_cast<std::size_t>(kPage) * 2 * half);
    const auto factor = static_cast<float>(rope_.attention_factor);
    for (std::int64_t i = 0; i < kPage; ++i) {
      const auto p = static_cast<float>(position / kPage * kPage + i);
      float* line = page.get() + static_cast<std::size_t>(i) * 2 * half;
      for (std::size_t f = 0; f < half; ++f) {
        const auto angle = static_cast<double>(p * frequencies_[f]);  // the product in fp32
        line[f] = static_cast<float>(std::cos(angle)) * factor;
        line[half + f] = static_cast<float>(std::sin(angle)) * factor;
      }
    }
  }
  const float* line = page.get() + static_cast<std::size_t>(position % kPage) * 2 * half;
  return {line, line + half, query_factor(rope_, position)};
}

}  // namespace baton
