// Random weights for benchmarks without a checkpoint.
#include <cuda_bf16.h>

#include <algorithm>

#include "workers/cuda/device.h"
#include "workers/cuda/launch.cuh"
#include "workers/sampling/philox.h"

namespace baton::cuda {

namespace {

__global__ void fill_normal_kernel(__nv_bfloat16* to, std::size_t n, float deviation,
                                   std::uint64_t seed) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i * 4 < n; i += stride) {
    const auto bits =
        philox4x32({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0},
                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    // Box and Muller: two normal numbers out of two uniform ones.
    for (int pair = 0; pair < 2; ++pair) {
      const float u = (static_cast<float>(bits[2 * pair]) + 1.0F) * 0x1p-32F;
      const float angle = static_cast<float>(bits[2 * pair + 1]) * (6.2831853F * 0x1p-32F);
      const float radius = deviation * sqrtf(-2.0F * logf(u));
      const std::size_t at = i * 4 + 2 * pair;
      if (at < n) to[at] = __float2bfloat16(radius * cosf(angle));
      if (at + 1 < n) to[at + 1] = __float2bfloat16(radius * sinf(angle));
    }
  }
}

}  // namespace

void fill_normal(Bf16* to, std::size_t n, float deviation, std::uint64_t seed, Stream stream) {
  const auto blocks = static_cast<unsigned>(std::min<std::size_t>((n / 4 + 255) / 256 + 1, 4096));
  fill_normal_kernel<<<blocks, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(to), n, deviation,
                                                 seed);
  check(cudaGetLastError(), "fill_normal");
}

}  // namespace baton::cuda
