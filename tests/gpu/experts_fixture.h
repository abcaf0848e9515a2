// A layer of experts with random weights, on the host and on the device.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/device.h"
#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/experts_load.h"
#include "workers/cuda/linear/quantized_layout.h"

namespace baton::cuda {

inline std::size_t at(int i) { return static_cast<std::size_t>(i); }
inline std::size_t size(int a, int b) { return at(a) * at(b); }

inline std::vector<float> random_logits(int rows, int count, unsigned seed) {
  std::minstd_rand random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(size(rows, count));
  for (float& v : logits) v = normal(random);
  return logits;
}

inline std::vector<float> softmax(const std::vector<float>& logits, int count) {
  std::vector<float> p(logits);
  for (std::size_t r = 0; r < logits.size(); r += at(count)) {
    const auto first = p.begin() + static_cast<std::ptrdiff_t>(r);
    const float most = *std::max_element(first, first + count);
    float sum = 0;
    for (auto v = first; v != first + count; ++v) sum += * v = std::exp(*v - most);
    for (auto v = first; v != first + count; ++v) *v /= sum;
  }
  return p;
}

/// Matrices [out, in] of `count` experts: `values` as numbers, and what the kernels read. `gates`:
/// eight rows of gate, eight of up, and so on.
struct Experts {
  std::vector<Bf16> values;
  Device<std::byte> memory;
  ExpertWeight weight;

  /// In bf16.
  Experts(int count, int out, int in, unsigned seed)
      : values(random_bf16(size(count, out) * at(in), 0.1F, seed)),
        memory(values.size() * sizeof(Bf16)),
        weight{ExpertFormat::bf16, memory.get()} {
    EXPECT_EQ(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(Bf16),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  /// In MXFP4, packed from what a checkpoint stores; all scales and numbers occur, minus nought
  /// too.
  Experts(int count, int out, int in, bool gates, unsigned seed)
      : values(size(count, out) * at(in)),
        memory(at(count) * expert_bytes(ExpertFormat::mxfp4, out, in)),
        weight{ExpertFormat::mxfp4, memory.get()} {
    static constexpr std::array<float, 8> kGrid{0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    std::minstd_rand random(seed);
    cudaMemset(memory.get(), 0, at(count) * expert_bytes(ExpertFormat::mxfp4, out, in));
    const Device<int> bad(std::vector<int>{0});
    for (int e = 0; e < count; ++e) {
      std::vector<std::byte> codes(size(out, in) / 2);
      std::vector<std::byte> scales(size(out, in) / 32);
      for (std::byte& b : codes) b = static_cast<std::byte>(random() >> 8 & 255U);
      for (std::size_t i = 0; i < scales.size(); ++i) {
        // Now and then one so small that its weights are no normal numbers.
        scales[i] = static_cast<std::byte>(i % 97 == 5 ? random() % 3 : 119 + random() % 5);
      }
      for (int stored = 0; stored < out; ++stored) {
        const int pair = stored / 2;
        const int row = gates ? pair / 8 * 16 + stored % 2 * 8 + pair % 8 : stored;
        for (int k = 0; k < in; ++k) {
          const std::size_t i = size(stored, in) + at(k);
          const auto code = static_cast<unsigned>(codes[i / 2]) >> (i % 2 * 4) & 15U;
          const float magnitude =
              std::ldexp(kGrid[code & 7U], static_cast<int>(scales[i / 32]) - 127);
          values[(size(e, out) + at(row)) * at(in) + at(k)] =
              rounded((code & 8U) != 0 ? -magnitude : magnitude);
        }
      }
      const Device<std::byte> device_codes(codes), device_scales(scales);
      pack_mxfp4({out, in, device_codes.get(), device_scales.get(), gates},
                 memory.get() + at(e) * expert_bytes(ExpertFormat::mxfp4, out, in), bad.get(),
                 nullptr);
      EXPECT_EQ(bad.read()[0], 0);
    }
  }
  /// In FP8, packed from the bf16 that each number and its scale stand for; every code but the NaNs
  /// occurs. `tag` tells it from the others.
  struct Fp8 {};
  Experts(Fp8, int count, int out, int in, unsigned seed)
      : values(size(count, out) * at(in)),
        memory(at(count) * expert_bytes(ExpertFormat::fp8, out, in)),
        weight{ExpertFormat::fp8, memory.get()} {
    std::minstd_rand random(seed);
    cudaMemset(memory.get(), 0, at(count) * expert_bytes(ExpertFormat::fp8, out, in));
    const int units = expert_units(in);
    for (int e = 0; e < count; ++e) {
      std::vector<float> scales(size(out, units));
      for (float& s : scales) s = 0.0002F + 0.0000001F * static_cast<float>(random() % 9973);
      for (int row = 0; row < out; ++row) {
        for (int k = 0; k < in; ++k) {
          const auto code = static_cast<unsigned>(random() >> 8 & 255U);
          const int exponent = static_cast<int>(code >> 3 & 15U);
          const auto fraction = static_cast<float>(code & 7U);
          float v =
              exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
          if ((code & 127U) == 127U) v = 0;
          v *= scales[size(row, units) + at(k / kExpertUnit)];
          values[(size(e, out) + at(row)) * at(in) + at(k)] = rounded((code & 128U) != 0 ? -v : v);
        }
      }
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(size(e, out) * at(in));
      const Device<Bf16> wide(
          std::vector<Bf16>(first, first + static_cast<std::ptrdiff_t>(size(out, in))));
      const Device<float> device_scales(scales);
      pack_fp8({out, in, wide.get(), device_scales.get()},
               memory.get() + at(e) * expert_bytes(ExpertFormat::fp8, out, in), nullptr);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }

  /// In int4, from linear layers in int4; all numbers and zero points occur. Groups of 128 inputs,
  /// or of 64 where there are fewer.
  struct Int4 {};
  Experts(Int4, int count, int out, int in, unsigned seed)
      : values(size(count, out) * at(in)),
        memory(at(count) * expert_bytes(ExpertFormat::int4, out, in)),
        weight{ExpertFormat::int4, memory.get()} {
    std::minstd_rand random(seed);
    cudaMemset(memory.get(), 0xFF, at(count) * expert_bytes(ExpertFormat::int4, out, in));
    QuantizedWeight w;
    w.format = WeightFormat::int4;
    w.group_shift = in > 128 ? 7 : 6;
    w.groups = ((in - 1) >> w.group_shift) + 1;
    for (int e = 0; e < count; ++e) {
      std::vector<std::uint32_t> words(weight_words(w.format, out, in));
      std::vector<std::uint32_t> scales(scale_words(out, w.groups));
      for (int row = 0; row < out; ++row) {
        for (int g = 0; g < w.groups; ++g) {
          const float scale =
              value(rounded(0.003F + 0.00001F * static_cast<float>(random() % 997)));
          std::uint32_t word;
          std::memcpy(&word, &scale, sizeof word);
          scales[scale_at(w.groups, row, g)] = word | (random() >> 8 & 15U);
        }
        for (int k = 0; k < in; ++k) {
          const auto q = static_cast<std::uint32_t>(random() >> 8 & 15U);
          const WeightPlace place = place_of(w.format, units_of(in), row, k);
          words[place.word] |= q << place.bit;
          const std::uint32_t word = scales[scale_at(w.groups, row, k >> w.group_shift)];
          const std::uint32_t bits = word & ~15U;
          float scale;
          std::memcpy(&scale, &bits, sizeof scale);
          const int number = static_cast<int>(q) - static_cast<int>(word & 15U);
          values[(size(e, out) + at(row)) * at(in) + at(k)] =
              rounded(static_cast<float>(number) * scale);
        }
      }
      const Device<std::uint32_t> device_words(words), device_scales(scales);
      w.words = device_words.get();
      w.scales = device_scales.get();
      pack_int4(w, out, in, memory.get() + at(e) * expert_bytes(ExpertFormat::int4, out, in),
                nullptr);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }

  static Experts make(ExpertFormat format, int count, int out, int in, bool gates, unsigned seed) {
    if (format == ExpertFormat::int4) return Experts(Int4{}, count, out, in, seed);
    if (format == ExpertFormat::fp8) return Experts(Fp8{}, count, out, in, seed);
    return format == ExpertFormat::bf16 ? Experts(count, out, in, seed)
                                        : Experts(count, out, in, gates, seed);
  }
};

/// Random experts of a benchmark, on the device; queued on the default stream.
inline void fill_experts(ExpertFormat format, std::byte* to, std::size_t bytes) {
  if (format == ExpertFormat::bf16) {
    fill_normal(reinterpret_cast<Bf16*>(to), bytes / 2, 0.02F, 1, nullptr);
  } else if (format == ExpertFormat::fp8) {
    fill_fp8(to, bytes, 0.02F, 1, nullptr);
  } else if (format == ExpertFormat::int4) {
    fill_int4(to, bytes, 0.02F, 1, nullptr);
  } else {
    fill_mxfp4(to, bytes, 0.02F, 1, nullptr);
  }
}

}  // namespace baton::cuda
