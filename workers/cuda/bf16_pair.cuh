// Two bf16 in a word.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace baton::cuda {

__device__ __forceinline__ float2 to_floats(std::uint32_t pair) {
  // A bf16 is the upper half of a float.
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U)};
}

__device__ __forceinline__ std::uint32_t narrow(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// A warp's 8 x 8 matrix (lane 4 g + t: columns 2 t and 2 t + 1 of row g), transposed.
__device__ __forceinline__ std::uint32_t transposed_pairs(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

}  // namespace baton::cuda
