// MXFP4 numbers become bf16, exactly: expert_layout.h says how they lie.
#pragma once

#include <cstdint>

#include "workers/cuda/linear/quantized_numbers.cuh"

namespace baton::cuda {

/// The bf16 of the scale byte `which` of a lane's word, twice: 0 and 1 are rows g's and g + 8's of
/// the first half, 2 and 3 of the second.
__device__ __forceinline__ std::uint32_t mxfp4_scale(std::uint32_t word, int which) {
  return __byte_perm(word, 0, 0x4040U + 0x0101U * static_cast<std::uint32_t>(which)) << 7;
}

/// A word as the four registers of an instruction; `low` and `high` are its rows' scales.
__device__ __forceinline__ void dequantize_mxfp4(std::uint32_t word, std::uint32_t low,
                                                 std::uint32_t high, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = 0x81C081C0;    // sign, two bits of exponent, one of fraction
  constexpr std::uint32_t kNought = 0x80008000;  // minus nought, twice
  a[0] = fma2(word << 6 & kMask, low, kNought);
  a[1] = fma2(word << 2 & kMask, high, kNought);
  a[2] = fma2(__funnelshift_r(word, word, 4) & kMask, low, kNought);
  a[3] = fma2(and_or(word >> 8, 0x00400040U, word & 0x81808180U), high, kNought);
}

}  // namespace baton::cuda
