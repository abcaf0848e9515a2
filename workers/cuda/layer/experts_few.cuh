// What the kernels for experts of up to eight rows have in common (experts_few.cu,
// experts_layer.cu): every CTA chooses the rows' experts for itself, and each expert that any row
// takes multiplies all rows, since a matrix instruction has eight columns anyway.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "workers/cuda/layer/experts_choose.cuh"
#include "workers/cuda/layer/experts_ring.cuh"
#include "workers/cuda/layer/gates.cuh"

namespace baton::cuda::expert_ring {

constexpr int kFewWarps = 8;  // that multiply; sixteen take as long
constexpr int kMultiplyingFew = kFewWarps * kLanes;
constexpr int kMostFewRows = kColumns;
constexpr int kMostLines = 64;     // rows * active
constexpr int kMostExperts = 512;  // of which a warp holds all scores in registers

/// What a choice is made of.
struct FewRows {
  int rows, count, active;
  bool normalise;
  const float* logits;  // [rows, count]
  ExpertRule rule;
};

/// Which experts the rows take, in shared memory.
struct Choice {
  int experts;
  int expert[kMostLines];                  // ascending
  int line[kMostLines][kMostFewRows];      // row * active + j; negative: the row takes another
  float weight[kMostLines][kMostFewRows];  // then 0
  int chosen[kMostLines];                  // by line, as the rows have chosen
  float weights[kMostLines];
};

#ifdef BATON_HOPPER

/// By the first kThreads threads, which meet at barrier kBarrier; once more before they read `c`. A
/// row is a warp's. `takers`, [count], is in shared memory.
template <int kThreads, int kBarrier>
__device__ __forceinline__ void choose(const FewRows& a, unsigned* takers, Choice& c) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < a.count; e += kThreads) takers[e] = 0;
  if (warp < a.rows) {
    const float* const logits = a.logits + std::int64_t{warp} * a.count;
    int* const chosen = c.chosen + warp * a.active;
    float* const weights = c.weights + warp * a.active;
    if (a.count <= 128) {
      choose_row<4>(a.rule, a.count, a.active, a.normalise, logits, nullptr, chosen, weights);
    } else {
      choose_row<kMostExperts / 32>(a.rule, a.count, a.active, a.normalise, logits, nullptr, chosen,
                                    weights);
    }
  }
  hopper::sync_threads(kBarrier, kThreads);
  if (thread < a.rows * a.active) atomicOr(&takers[c.chosen[thread]], 1U << thread / a.active);
  hopper::sync_threads(kBarrier, kThreads);
  if (warp == 0) {
    int found = 0;
    for (int first = 0; first < a.count; first += kLanes) {
      const int e = first + lane;
      const bool taken = e < a.count && takers[e] != 0;
      const unsigned votes = __ballot_sync(0xFFFFFFFFU, taken);
      if (taken) c.expert[found + __popc(votes & ((1U << lane) - 1))] = e;
      found += __popc(votes);
    }
    if (lane == 0) c.experts = found;
  }
  hopper::sync_threads(kBarrier, kThreads);
  for (int i = thread; i < c.experts * kMostFewRows; i += kThreads) {
    const int row = i % kMostFewRows;
    int line = -1;
    for (int j = 0; row < a.rows && j < a.active; ++j) {
      if (c.chosen[row * a.active + j] == c.expert[i / kMostFewRows]) line = row * a.active + j;
    }
    c.line[i / kMostFewRows][row] = line;
    c.weight[i / kMostFewRows][row] = line < 0 ? 0.0F : c.weights[line];
  }
}

/// Of a tile of gate and up, eight features of gate, then eight of up, one element of a lane's
/// becomes a number of y, [lines, m.out / 2]. `bias`, of the tile's expert, may be null.
__device__ __forceinline__ void store_gate(const Activate& act, const Matrix& m, const float* bias,
                                           const float* partial, int line, int tile, int lane,
                                           int element, __nv_bfloat16* y) {
  if (line < 0) return;
  const int feature = 8 * tile + lane / 4;
  float gate = Partial<1, kFewWarps>::total(partial, lane, 0, element);
  float up = Partial<1, kFewWarps>::total(partial, lane, 0, element + 2);
  if (bias != nullptr) {
    gate += bias[feature];
    up += bias[m.out / 2 + feature];
  }
  y[std::int64_t{line} * (m.out / 2) + feature] = __float2bfloat16(gate_of(act, gate, up));
}

/// The same of an expert's matrix.
__device__ __forceinline__ const float* bias_of(const float* biases, const Matrix& m, int expert) {
  return biases == nullptr ? nullptr : biases + std::int64_t{expert} * m.out;
}

#endif  // BATON_HOPPER

}  // namespace baton::cuda::expert_ring
