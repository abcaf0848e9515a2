// A row's experts, by one warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/cuda/layer/experts.h"

namespace baton::cuda {

/// Numbers whose order as whole ones is that of the floats; none is 0.
__device__ __forceinline__ std::uint32_t in_order(float v) {
  constexpr float kLowest = -3.0e38F;  // instead of what is no number
  const std::uint32_t bits = __float_as_uint(isnan(v) ? kLowest : v);
  return bits ^ (bits >> 31 == 0 ? 0x80000000U : 0xFFFFFFFFU);
}

/// What choose_general_kernel (experts_route.cu) does, without groups; in the order of choice.
/// `weight` and `key` are [count] in shared memory; `chosen` and `weights` [active]. The logits are
/// read past the L1 cache.
__device__ __forceinline__ void choose_row(const ExpertRule& rule, int count, int active,
                                           bool normalise, const float* logits, float* weight,
                                           std::uint32_t* key, int* chosen, float* weights) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float most = -INFINITY;
  for (int e = lane; e < count; e += 32) {
    const float v = __ldcg(logits + e) + (rule.router_bias == nullptr ? 0.0F : rule.router_bias[e]);
    weight[e] = v;
    most = fmaxf(most, v);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAll, most, step));
  float sum = 0;
  for (int e = lane; e < count; e += 32) {
    weight[e] = rule.sigmoid ? 1.0F / (1.0F + expf(-weight[e])) : expf(weight[e] - most);
    sum += weight[e];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  std::uint32_t best = 0;
  int mine = count;  // this lane's best
  for (int e = lane; e < count; e += 32) {
    if (!rule.sigmoid) weight[e] /= sum;
    const std::uint32_t k =
        in_order(weight[e] + (rule.choice_bias == nullptr ? 0.0F : rule.choice_bias[e]));
    key[e] = k;
    if (k > best) {
      best = k;
      mine = e;
    }
  }
  __syncwarp();
  float taken = 0;
  for (int j = 0; j < active; ++j) {
    const std::uint32_t highest = __reduce_max_sync(kAll, best);
    const auto expert = static_cast<int>(
        __reduce_min_sync(kAll, static_cast<unsigned>(best == highest ? mine : count)));
    taken += weight[expert];
    if (lane == 0) {
      chosen[j] = expert;
      weights[j] = weight[expert];
    }
    if (expert != mine) continue;
    key[expert] = 0;
    best = 0;
    for (int e = lane; e < count; e += 32) {
      if (key[e] > best) {
        best = key[e];
        mine = e;
      }
    }
  }
  __syncwarp();
  for (int j = lane; j < active; j += 32) {
    weights[j] = (normalise ? weights[j] / taken : weights[j]) * rule.scale;
  }
}

}  // namespace baton::cuda
