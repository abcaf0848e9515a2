// What the kernels of general.h have in common.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "workers/cuda/types.h"

namespace baton::cuda {

__device__ __forceinline__ float value(const Bf16* x) {
  return __uint_as_float(static_cast<std::uint32_t>(x->bits) << 16);
}
__device__ __forceinline__ void store(Bf16* to, float x) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16(x));
}

/// What Llama 4's rule multiplies a query at this position by.
__device__ __forceinline__ float query_factor(float growth, float context, int position) {
  if (growth == 0) return 1;
  return 1.0F + growth * log1pf(floorf(static_cast<float>(position) / context));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
  return x;
}

}  // namespace baton::cuda
