// FP8 numbers of experts become bf16: expert_layout.h says how they lie.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/layer/mxfp4_numbers.cuh"

namespace baton::cuda {

/// An E4M3 number whose bits are moved to their places in bf16 is 2^-120 of its value, subnormal
/// ones too.
constexpr float kFp8Factor = 0x1p120F;

/// A word as two registers, of rows g and g + 8, 2^-120 of their values.
__device__ __forceinline__ void spread_fp8(std::uint32_t word, std::uint32_t& low,
                                           std::uint32_t& high) {
  low = word & 0x87F087F0U;
  high = and_or(__funnelshift_r(word, word, 4), 0x87808780U, word << 4 & 0x00700070U);
}

/// Two words as the four registers of an instruction, exactly, without their scales.
__device__ __forceinline__ void exact_fp8(std::uint32_t first, std::uint32_t second,
                                          std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kFactor = 0x7B807B80;  // kFp8Factor in bf16, twice
  constexpr std::uint32_t kNought = 0x80008000;  // minus nought, twice
  spread_fp8(first, a[0], a[1]);
  spread_fp8(second, a[2], a[3]);
#pragma unroll
  for (std::uint32_t& pair : a) pair = fma2(pair, kFactor, kNought);
}

/// Likewise times the scales of rows g and g + 8, rounded once, as when a checkpoint is widened at
/// load.
__device__ __forceinline__ void scaled_fp8(std::uint32_t first, std::uint32_t second, float low,
                                           float high, std::uint32_t (&a)[4]) {
  spread_fp8(first, a[0], a[1]);
  spread_fp8(second, a[2], a[3]);
  const float scales[2] = {low, high};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = to_floats(a[i]);
    // The first product is exact.
    a[i] = narrow(v.x * kFp8Factor * scales[i % 2], v.y * kFp8Factor * scales[i % 2]);
  }
}

}  // namespace baton::cuda
