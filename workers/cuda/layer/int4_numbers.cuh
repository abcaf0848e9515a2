// Int4 numbers of experts become bf16: linear/quantized_layout.h says how they lie.
#pragma once

#include <cstdint>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/linear/quantized_numbers.cuh"

namespace baton::cuda {

/// A word as the four registers of an instruction, q - zero, exactly; `low` and `high` are the
/// words of scale of rows g and g + 8.
__device__ __forceinline__ void exact_int4(std::uint32_t word, std::uint32_t low,
                                           std::uint32_t high, std::uint32_t (&a)[4]) {
  dequantize_int4(word, offset_of(low), offset_of(high), a);
}

/// Likewise times the scales, rounded once, as when a checkpoint is widened at load.
__device__ __forceinline__ void scaled_int4(std::uint32_t word, std::uint32_t low,
                                            std::uint32_t high, std::uint32_t (&a)[4]) {
  exact_int4(word, low, high, a);
  const float scales[2] = {scale_of(low), scale_of(high)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = to_floats(a[i]);
    a[i] = narrow(v.x * scales[i % 2], v.y * scales[i % 2]);
  }
}

}  // namespace baton::cuda
