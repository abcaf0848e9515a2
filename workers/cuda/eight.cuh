// Eight numbers of bf16, the sixteen bytes that a thread loads or stores at once.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace baton::cuda {

/// Eight numbers as bf16, in a thread.
struct Eight {
  float v[8];

  __device__ __forceinline__ void unpack(const uint4& from) {
    const std::uint32_t pairs[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[2 * k] = __uint_as_float(pairs[k] << 16U);
      v[2 * k + 1] = __uint_as_float(pairs[k] & 0xFFFF0000U);
    }
  }
  __device__ __forceinline__ uint4 pack() const {
    std::uint32_t pairs[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __nv_bfloat162 rounded = __floats2bfloat162_rn(v[2 * k], v[2 * k + 1]);
      pairs[k] = *reinterpret_cast<const std::uint32_t*>(&rounded);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
  __device__ __forceinline__ float squares() const {
    float sum = 0;
#pragma unroll
    for (const float x : v) sum = fmaf(x, x, sum);
    return sum;
  }
  /// `weight` is 16-byte aligned; null: ones.
  __device__ __forceinline__ void load_weight(const float* weight) {
    float4 a{1, 1, 1, 1}, b{1, 1, 1, 1};
    if (weight != nullptr) {
      a = __ldg(reinterpret_cast<const float4*>(weight));
      b = __ldg(reinterpret_cast<const float4*>(weight) + 1);
    }
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
};

}  // namespace baton::cuda
