// One thread a few weights; nothing here is fast but for the memory that it moves: a model takes a
// fraction of a second. Two parts may share a word (gate and up do): words are put together by
// atomic or.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/quantized_load.h"
#include "workers/sampling/philox.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::size_t n) {
  return static_cast<unsigned>(std::clamp<std::size_t>((n + kThreads - 1) / kThreads, 1, 1 << 16));
}

__device__ __forceinline__ std::size_t thread_index() {
  return std::size_t{blockIdx.x} * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::size_t all_threads() { return std::size_t{gridDim.x} * kThreads; }

/// AWQ's outputs 8 k .. 8 k + 7 lie in nibbles 0, 4, 1, 5, 2, 6, 3, 7.
__device__ __forceinline__ int awq_nibble(int feature) { return feature % 2 * 4 + feature % 8 / 2; }

__device__ __forceinline__ std::uint32_t int4_number(const QuantizedPart& p, int feature,
                                                     int input) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(p.weights);
  if (p.layout == QuantizedPart::Layout::gptq) {
    return words[std::size_t(input / 8) * p.out + feature] >> (input % 8 * 4) & 15U;
  }
  return words[std::size_t(input) * (p.out / 8) + feature / 8] >> (awq_nibble(feature) * 4) & 15U;
}

__device__ __forceinline__ std::uint32_t int4_zero(const QuantizedPart& p, int feature, int group) {
  const std::uint32_t word = p.zeros[std::size_t(group) * (p.out / 8) + feature / 8];
  const int nibble = p.layout == QuantizedPart::Layout::gptq ? feature % 8 : awq_nibble(feature);
  return ((word >> (nibble * 4) & 15U) + static_cast<std::uint32_t>(p.zero_offset)) & 15U;
}

__device__ __forceinline__ float stored_scale(const QuantizedPart& p, std::size_t at) {
  switch (p.scale_type) {
    case QuantizedPart::ScaleType::f32:
      return reinterpret_cast<const float*>(p.scales)[at];
    case QuantizedPart::ScaleType::f16:
      return __half2float(reinterpret_cast<const __half*>(p.scales)[at]);
    case QuantizedPart::ScaleType::bf16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.scales)[at]);
  }
  return 0;
}

__device__ __forceinline__ float fp8_scale(const QuantizedPart& p, int feature, int input) {
  return stored_scale(
      p, std::size_t(feature / p.block_rows) * p.scale_columns + input / p.block_columns);
}

__device__ __forceinline__ std::uint32_t fp8_bits(const QuantizedPart& p, int feature, int input) {
  return static_cast<std::uint32_t>(p.weights[std::size_t(feature) * p.in + input]);
}

__device__ __forceinline__ int row_of(PartRows rows, int feature) {
  return rows.first + (rows.interleaved ? feature / 8 * 16 + feature % 8 : feature);
}

/// A thread four inputs of one feature: two words.
__global__ void __launch_bounds__(kThreads)
    pack_kernel(QuantizedPart p, PartRows rows, WeightFormat format, const std::int32_t* order,
                std::uint32_t* words, int* nan) {
  const int fours = p.in / 4;
  const int units = units_of(p.in);
  const std::size_t n = std::size_t(fours) * p.out;
  for (std::size_t i = thread_index(); i < n; i += all_threads()) {
    // Neighbours read neighbouring words.
    const bool by_feature = format == WeightFormat::int4;
    const int feature = static_cast<int>(by_feature ? i % p.out : i / fours);
    const int first = static_cast<int>(by_feature ? i / p.out : i % fours) * 4;
    const int row = row_of(rows, feature);
    std::uint32_t found[2] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int input = order == nullptr ? first + j : order[first + j];
      const int bit = place_of(format, units, row, first + j).bit;
      if (by_feature) {
        found[j / 2] |= int4_number(p, feature, input) << bit;
      } else {
        const std::uint32_t bits = fp8_bits(p, feature, input);
        if ((bits & 0x7FU) == 0x7FU) *nan = 1;
        found[j / 2] |= bits << bit;
      }
    }
    atomicOr(words + place_of(format, units, row, first).word, found[0]);
    atomicOr(words + place_of(format, units, row, first + 2).word, found[1]);
  }
}

__global__ void __launch_bounds__(kThreads)
    pack_scales_kernel(QuantizedPart p, PartRows rows, int groups, int group_shift,
                       const std::int32_t* order, std::uint32_t* scales, std::uint32_t* shared) {
  const std::size_t n = std::size_t(groups) * p.out;
  for (std::size_t i = thread_index(); i < n; i += all_threads()) {
    const int feature = static_cast<int>(i % p.out);
    const int group = static_cast<int>(i / p.out);
    const int input = groups == 1 ? 0 : group << group_shift;
    std::uint32_t word = 0;
    if (p.layout == QuantizedPart::Layout::fp8) {
      word = __float_as_uint(fp8_scale(p, feature, input)) & ~15U;
    } else {
      // Stored may be more groups than the part's inputs are in, and several of `groups` be one.
      const int stored = p.group[order == nullptr ? input : order[input]];
      word = (__float_as_uint(stored_scale(p, std::size_t(stored) * p.out + feature)) & ~15U) |
             int4_zero(p, feature, stored);
    }
    const int row = row_of(rows, feature);
    scales[scale_at(groups, row, group)] = word;
    if (shared != nullptr && row % 8 == 0) shared[shared_scale_at(groups, row, group)] = word;
  }
}

__global__ void __launch_bounds__(kThreads)
    dequantize_part_kernel(QuantizedPart p, PartRows rows, __nv_bfloat16* to) {
  const std::size_t n = std::size_t(p.in) * p.out;
  for (std::size_t i = thread_index(); i < n; i += all_threads()) {
    const int feature = static_cast<int>(i / p.in);
    const int input = static_cast<int>(i % p.in);
    float value = 0;
    if (p.layout == QuantizedPart::Layout::fp8) {
      const __half_raw half = __nv_cvt_fp8_to_halfraw(
          static_cast<__nv_fp8_storage_t>(fp8_bits(p, feature, input)), __NV_E4M3);
      value = __half2float(__half(half)) * fp8_scale(p, feature, input);
    } else {
      const int group = p.group[input];
      const int number = static_cast<int>(int4_number(p, feature, input)) -
                         static_cast<int>(int4_zero(p, feature, group));
      value = static_cast<float>(number) * stored_scale(p, std::size_t(group) * p.out + feature);
    }
    to[std::size_t(row_of(rows, feature)) * p.in + input] = __float2bfloat16(value);
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_random_kernel(std::uint32_t* to, std::size_t n, std::uint64_t seed, std::uint32_t always) {
  for (std::size_t i = thread_index(); 4 * i < n; i += all_threads()) {
    const auto bits =
        philox4x32({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 1, 0},
                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    for (int j = 0; j < 4; ++j) {
      if (4 * i + j < n) to[4 * i + j] = bits[j] | always;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_words_kernel(std::uint32_t* to, std::size_t n, std::uint32_t value) {
  for (std::size_t i = thread_index(); i < n; i += all_threads()) to[i] = value;
}

}  // namespace

void pack_part(const QuantizedPart& part, PartRows rows, const QuantizedWeight& to, int* nan,
               Stream stream) {
  const std::size_t fours =
      static_cast<std::size_t>(part.in / 4) * static_cast<std::size_t>(part.out);
  pack_kernel<<<blocks_for(fours), kThreads, 0, stream>>>(
      part, rows, to.format, to.order, const_cast<std::uint32_t*>(to.words), nan);
  check(cudaGetLastError(), "pack_part");
  const std::size_t scales =
      static_cast<std::size_t>(to.groups) * static_cast<std::size_t>(part.out);
  pack_scales_kernel<<<blocks_for(scales), kThreads, 0, stream>>>(
      part, rows, to.groups, to.group_shift, to.order, const_cast<std::uint32_t*>(to.scales),
      const_cast<std::uint32_t*>(to.shared_scales));
  check(cudaGetLastError(), "pack_part");
}

void dequantize_part(const QuantizedPart& part, PartRows rows, Bf16* to, Stream stream) {
  const std::size_t n = static_cast<std::size_t>(part.in) * static_cast<std::size_t>(part.out);
  dequantize_part_kernel<<<blocks_for(n), kThreads, 0, stream>>>(
      part, rows, reinterpret_cast<__nv_bfloat16*>(to));
  check(cudaGetLastError(), "dequantize_part");
}

void fill_random(std::uint32_t* to, std::size_t words, std::uint64_t seed, Stream stream,
                 std::uint32_t always) {
  fill_random_kernel<<<blocks_for(words / 4), kThreads, 0, stream>>>(to, words, seed, always);
  check(cudaGetLastError(), "fill_random");
}

void fill_words(std::uint32_t* to, std::size_t words, std::uint32_t value, Stream stream) {
  fill_words_kernel<<<blocks_for(words), kThreads, 0, stream>>>(to, words, value);
  check(cudaGetLastError(), "fill_words");
}

}  // namespace baton::cuda
