// FP8 numbers of experts become bf16: expert_layout.h says how they lie.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/cuda/bf16_pair.cuh"

namespace baton::cuda {

/// Two E4M3 numbers in the upper bytes of a word's halves, times a scale that holds 2^120: an E4M3
/// number whose bits are moved to their places in bf16 is 2^-120 of its value, subnormal ones too.
/// The product is rounded once, as when a checkpoint is widened at load.
__device__ __forceinline__ std::uint32_t scaled_fp8(std::uint32_t word, float scale) {
  const float2 v = to_floats((word & 0x80008000U) | (word >> 4 & 0x07F007F0U));
  return narrow(v.x * scale, v.y * scale);
}

/// Two words as the four registers of an instruction; `low` and `high` are its rows' scales.
__device__ __forceinline__ void dequantize_fp8(std::uint32_t first, std::uint32_t second, float low,
                                               float high, std::uint32_t (&a)[4]) {
  a[0] = scaled_fp8(first, low);
  a[1] = scaled_fp8(first << 8, high);
  a[2] = scaled_fp8(second, low);
  a[3] = scaled_fp8(second << 8, high);
}

}  // namespace baton::cuda
