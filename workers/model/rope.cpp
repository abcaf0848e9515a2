#include "workers/model/rope.h"

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

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) {
    // Rounded to fp32 before the scaling, as the reference implementation does.
    const auto plain = static_cast<double>(
        static_cast<float>(1.0 / std::pow(rope.theta, 2.0 * i / static_cast<double>(head_dim))));
    switch (rope.type) {
      case RopeType::none:
        frequencies.push_back(static_cast<float>(plain));
        break;
      case RopeType::linear:
        frequencies.push_back(static_cast<float>(plain / rope.factor));
        break;
      case RopeType::llama3:
        frequencies.push_back(static_cast<float>(llama3_frequency(plain, rope)));
        break;
    }
  }
  return frequencies;
}

RopeTable::RopeTable(const RopeConfig& rope, int head_dim, std::int64_t max_positions)
    : frequencies_(rope_frequencies(rope, head_dim)),
      pages_(static_cast<std::size_t>((max_positions + kPage - 1) / kPage)) {}

RopeTable::Angles RopeTable::at(std::int64_t position) {
  const std::size_t half = frequencies_.size();
  std::unique_ptr<float[]>& page = pages_[static_cast<std::size_t>(position / kPage)];
  if (!page) {
    page = std::make_unique<float[]>(static_cast<std::size_t>(kPage) * 2 * half);
    for (std::int64_t i = 0; i < kPage; ++i) {
      const auto p = static_cast<float>(position / kPage * kPage + i);
      float* line = page.get() + static_cast<std::size_t>(i) * 2 * half;
      for (std::size_t f = 0; f < half; ++f) {
        const auto angle = static_cast<double>(p * frequencies_[f]);  // the product in fp32
        line[f] = static_cast<float>(std::cos(angle));
        line[half + f] = static_cast<float>(std::sin(angle));
      }
    }
  }
  const float* line = page.get() + static_cast<std::size_t>(position % kPage) * 2 * half;
  return {line, line + half};
}

}  // namespace baton
