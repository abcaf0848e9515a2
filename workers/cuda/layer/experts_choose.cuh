// A row's experts, by one warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/cuda/layer/experts.h"

namespace baton::cuda {

constexpr int kMostExpertGroups = 64;

/// Above the scores of closed groups, below all others: instead of what is no number.
constexpr float kLowestScore = -3.0e38F;
constexpr float kClosedScore = -3.2e38F;

/// Numbers whose order as whole ones is that of the floats; none is 0.
__device__ __forceinline__ std::uint32_t in_order(float v) {
  const std::uint32_t bits = __float_as_uint(isnan(v) ? kLowestScore : v);
  return bits ^ (bits >> 31 == 0 ? 0x80000000U : 0xFFFFFFFFU);
}

/// The experts of all groups but the best are closed. By one thread: there are few groups.
__device__ inline void close_groups(const ExpertRule& rule, int count, float* score) {
  float good[kMostExpertGroups];
  const int size = count / rule.groups;
  for (int g = 0; g < rule.groups; ++g) {
    float best = kClosedScore;
    float second = kClosedScore;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(best, score[e]));
      best = fmaxf(best, score[e]);
    }
    good[g] = rule.group_pairs && size > 1 ? best + second : best;
  }
  for (int i = 0; i < rule.groups - rule.active_groups; ++i) {
    int worst = -1;  // of equal ones the last
    for (int g = 0; g < rule.groups; ++g) {
      if (!isnan(good[g]) && (worst < 0 || good[g] <= good[worst])) worst = g;
    }
    if (worst < 0) return;
    good[worst] = __int_as_float(0x7FC00000);  // not again
    for (int e = worst * size; e < (worst + 1) * size; ++e) score[e] = kClosedScore;
  }
}

/// One of the 32 kEach experts at most is taken `active` times, the one with the highest score, of
/// equal ones the lower number; `chosen` and `weights`, [active], are in the order of choice, in
/// shared memory. With groups `scores` is room for [count] there, too; without it may be null. The
/// logits are read past the L1 cache. A lane holds experts lane + 32 i. picked() is called by all
/// lanes when `chosen` is there, before `weights` are.
template <int kEach, class Picked>
__device__ __forceinline__ void choose_row(const ExpertRule& rule, int count, int active,
                                           bool normalise, const float* logits, float* scores,
                                           int* chosen, float* weights, const Picked& picked) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto number = [lane](int i) { return lane + 32 * i; };
  float weight[kEach];
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    weight[i] = -INFINITY;
    if (number(i) >= count) continue;
    const float bias = rule.router_bias == nullptr ? 0.0F : rule.router_bias[number(i)];
    weight[i] = __ldcg(logits + number(i)) + bias;
    most = fmaxf(most, weight[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAll, most, step));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (number(i) >= count) continue;
    weight[i] = rule.sigmoid ? 1.0F / (1.0F + expf(-weight[i])) : expf(weight[i] - most);
    sum += weight[i];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  std::uint32_t key[kEach];  // 0: cannot be taken
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    key[i] = 0;
    if (number(i) >= count) continue;
    if (!rule.sigmoid) weight[i] /= sum;
    const float bias = rule.choice_bias == nullptr ? 0.0F : rule.choice_bias[number(i)];
    const float score = weight[i] + bias;
    key[i] = in_order(score);
    if (scores != nullptr) scores[number(i)] = isnan(score) ? kLowestScore : score;
  }
  if (scores != nullptr && rule.groups > 1) {
    __syncwarp();
    if (lane == 0) close_groups(rule, count, scores);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (number(i) < count) key[i] = in_order(scores[number(i)]);
    }
  }
  for (int j = 0; j < active; ++j) {
    std::uint32_t best = 0;
    int mine = count;  // this lane's best
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (key[i] <= best) continue;
      best = key[i];
      mine = number(i);
    }
    const std::uint32_t highest = __reduce_max_sync(kAll, best);
    const auto expert = static_cast<int>(
        __reduce_min_sync(kAll, static_cast<unsigned>(best == highest ? mine : count)));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (number(i) != expert) continue;
      key[i] = 0;
      chosen[j] = expert;
      weights[j] = weight[i];
    }
  }
  __syncwarp();
  picked();
  float taken = 0;
  for (int j = 0; j < active; ++j) taken += weights[j];
  __syncwarp();  // all have read them
  for (int j = lane; j < active; j += 32) {
    weights[j] = (normalise ? weights[j] / taken : weights[j]) * rule.scale;
  }
}

}  // namespace baton::cuda
