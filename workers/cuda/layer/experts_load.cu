#include "workers/cuda/layer/experts_load.h"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/quantized_load.h"
#include "workers/sampling/philox.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCodes = 8;  // of a thread: four bytes

unsigned blocks_for(std::size_t n) {
  return static_cast<unsigned>(std::clamp<std::size_t>((n + kThreads - 1) / kThreads, 1, 1 << 16));
}
__device__ __forceinline__ std::size_t thread_index() {
  return std::size_t{blockIdx.x} * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::size_t all_threads() { return std::size_t{gridDim.x} * kThreads; }

/// What shares a word (rows g and g + 8, inputs eight apart) comes from different threads: an
/// atomic or joins it.
__global__ void __launch_bounds__(kThreads)
    pack_mxfp4_kernel(Mxfp4Part p, std::byte* to, int* bad) {
  const int of_row = p.in / kCodes;
  const std::size_t n = std::size_t(of_row) * p.out;
  for (std::size_t i = thread_index(); i < n; i += all_threads()) {
    const int stored = static_cast<int>(i / of_row);
    const int input = static_cast<int>(i % of_row) * kCodes;
    const int row = p.alternating ? stored / 16 * 16 + stored % 2 * 8 + stored / 2 % 8 : stored;
    std::byte* const unit = to + mxfp4_unit_at(p.in, row, input);
    const std::uint32_t codes = reinterpret_cast<const std::uint32_t*>(p.codes)[i];
    auto* const words = reinterpret_cast<std::uint32_t*>(unit);
    for (int j = 0; j < kCodes; j += 2) {
      const ExpertPlace even = mxfp4_place(row, input + j, codes >> (4 * j) & 15U);
      const ExpertPlace odd = mxfp4_place(row, input + j + 1, codes >> (4 * j + 4) & 15U);
      atomicOr(words + even.word, even.bits | odd.bits);
    }
    if (input % kMxfp4Inputs != 0) continue;
    const int exponent = static_cast<int>(
        p.scales[std::size_t(stored) * (p.in / kMxfp4Inputs) + input / kMxfp4Inputs]);
    if (exponent > kMxfp4LargestScale) *bad = kBadMxfp4Scale;
    unit[mxfp4_scale_at(row, input)] = static_cast<std::byte>(exponent + kMxfp4ScaleOffset);
  }
}

/// What fills units of one format: random words, of which the bits of `never` are nought and those
/// of `always` set, and a word of scale again and again behind them.
struct UnitFill {
  int unit_bytes, word_bytes;
  std::uint32_t never, always, scale;
  std::uint32_t stream;  // of random numbers
};

__global__ void __launch_bounds__(kThreads)
    fill_units_kernel(std::uint32_t* to, std::size_t n, UnitFill fill, std::uint64_t seed) {
  const std::size_t unit_words = fill.unit_bytes / 4;
  const std::size_t words = fill.word_bytes / 4;
  for (std::size_t i = thread_index(); 4 * i < n; i += all_threads()) {
    const auto bits = philox4x32(
        {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), fill.stream, 0},
        {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    for (int j = 0; j < 4; ++j) {
      const std::size_t at = 4 * i + j;
      if (at >= n) break;
      to[at] = at % unit_words < words ? (bits[j] & ~fill.never) | fill.always : fill.scale;
    }
  }
}

void fill_units(std::byte* to, std::size_t bytes, const UnitFill& fill, std::uint64_t seed,
                Stream stream) {
  fill_units_kernel<<<blocks_for(bytes / 16), kThreads, 0, stream>>>(
      reinterpret_cast<std::uint32_t*>(to), bytes / 4, fill, seed);
  check(cudaGetLastError(), "fill of experts");
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

__global__ void __launch_bounds__(kThreads) pack_fp8_kernel(Fp8Part p, std::byte* to) {
  const std::size_t n = std::size_t(p.in) * p.out;
  const int units = expert_units(p.in);
  for (std::size_t i = thread_index(); i < n; i += all_threads()) {
    const int row = static_cast<int>(i / p.in);
    const int input = static_cast<int>(i % p.in);
    std::byte* const unit = to + expert_units_before(p.in, row, input) * kFp8UnitBytes;
    const float scale = p.scales[std::size_t(row) * units + input / kExpertUnit];
    const float v = __uint_as_float(std::uint32_t{p.values[i].bits} << 16);
    const float number = scale == 0 ? 0.0F : v / scale;
    const ExpertPlace place =
        fp8_place(row, input, __nv_cvt_float_to_fp8(number, __NV_SATFINITE, __NV_E4M3));
    atomicOr(reinterpret_cast<std::uint32_t*>(unit) + place.word, place.bits);
    if (input % kExpertUnit != 0) continue;
    reinterpret_cast<float*>(unit + kFp8WordBytes)[row % kExpertTile] = scale;
  }
}

/// A word each: units' numbers and, behind them, the scales of the group that they lie in.
__global__ void __launch_bounds__(kThreads)
    pack_int4_kernel(QuantizedWeight from, int tiles, int units, std::uint32_t* to) {
  constexpr std::size_t kUnitWords = kInt4UnitBytes / 4;
  constexpr std::size_t kWords = kInt4WordBytes / 4;
  const std::size_t n = kUnitWords * tiles * units;
  for (std::size_t i = thread_index(); i < n; i += all_threads()) {
    const std::size_t unit = i / kUnitWords;
    const std::size_t word = i % kUnitWords;
    if (word < kWords) {
      to[i] = from.words[unit * kWords + word];
      continue;
    }
    const int group = static_cast<int>(unit % units) * kExpertUnit >> from.group_shift;
    to[i] = from.scales[scale_line(from.groups, static_cast<int>(unit / units) * kTileRows, group) *
                            kTileRows +
                        (word - kWords)];
  }
}

}  // namespace

void pack_int4(const QuantizedWeight& part, int out, int in, std::byte* to, Stream stream) {
  const std::size_t n = expert_bytes(ExpertFormat::int4, out, in) / 4;
  pack_int4_kernel<<<blocks_for(n), kThreads, 0, stream>>>(
      part, expert_tiles(out), expert_units(in), reinterpret_cast<std::uint32_t*>(to));
  check(cudaGetLastError(), "pack_int4");
}

void fill_int4(std::byte* to, std::size_t bytes, float deviation, std::uint64_t seed,
               Stream stream) {
  constexpr float kDeviation = 4.6F;  // of a random number
  constexpr std::uint32_t kZero = 8;
  const std::uint32_t scale = (bits_of(deviation / kDeviation) & ~15U) | kZero;
  fill_units(to, bytes, {kInt4UnitBytes, kInt4WordBytes, 0, kOddInt4, scale, 4}, seed, stream);
}

void pack_fp8(const Fp8Part& part, std::byte* to, Stream stream) {
  const auto n = static_cast<std::size_t>(part.in) * static_cast<std::size_t>(part.out);
  pack_fp8_kernel<<<blocks_for(n), kThreads, 0, stream>>>(part, to);
  check(cudaGetLastError(), "pack_fp8");
}

void fill_fp8(std::byte* to, std::size_t bytes, float deviation, std::uint64_t seed,
              Stream stream) {
  constexpr float kDeviation = 0.6F;  // of a random byte
  // No number has the highest bit of its exponent: all are below 2.
  constexpr std::uint32_t kNever = 0x44004400;
  fill_units(to, bytes,
             {kFp8UnitBytes, kFp8WordBytes, kNever, 0, bits_of(deviation / kDeviation), 3}, seed,
             stream);
}

void pack_mxfp4(const Mxfp4Part& part, std::byte* to, int* bad, Stream stream) {
  const auto n = static_cast<std::size_t>(part.in / kCodes) * static_cast<std::size_t>(part.out);
  pack_mxfp4_kernel<<<blocks_for(n), kThreads, 0, stream>>>(part, to, bad);
  check(cudaGetLastError(), "pack_mxfp4");
}

void fill_mxfp4(std::byte* to, std::size_t bytes, float deviation, std::uint64_t seed,
                Stream stream) {
  constexpr float kDeviation = 2.93F;  // of a random code
  const int exponent = 127 + static_cast<int>(std::lround(std::log2(deviation / kDeviation)));
  const auto scale = static_cast<std::uint32_t>(exponent + kMxfp4ScaleOffset);
  fill_units(to, bytes, {kMxfp4UnitBytes, kMxfp4WordBytes, 0, 0, scale * 0x01010101U, 2}, seed,
             stream);
}

}  // namespace baton::cuda
