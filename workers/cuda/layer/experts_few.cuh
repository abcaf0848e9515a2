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

/// A row's experts and weights, by one warp.
template <class Picked>
__device__ __forceinline__ void choose_row(const FewRows& a, int row, Choice& c,
                                           const Picked& picked) {
  const float* const logits = a.logits + std::int64_t{row} * a.count;
  int* const chosen = c.chosen + row * a.active;
  float* const weights = c.weights + row * a.active;
  if (a.count <= 128) {
    return baton::cuda::choose_row<4>(a.rule, a.count, a.active, a.normalise, logits, nullptr,
                                      chosen, weights, picked);
  }
  baton::cuda::choose_row<kMostExperts / 32>(a.rule, a.count, a.active, a.normalise, logits,
                                             nullptr, chosen, weights, picked);
}

/// The whole choice of a single row that takes at most 32 experts, by one warp, which waits for no
/// other.
template <class Known>
__device__ __forceinline__ void choose_alone(const FewRows& a, Choice& c, const Known& known) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool mine = lane < a.active;
  int rank = 0;
  choose_row(a, 0, c, [&] {
    if (mine) {
      const int expert = c.chosen[lane];
      for (int j = 0; j < a.active; ++j) rank += c.chosen[j] < expert ? 1 : 0;
      c.expert[rank] = expert;
    }
    if (lane == 0) c.experts = a.active;
    __syncwarp();
    if (lane == 0) known();
  });
  __syncwarp();
  if (!mine) return;
#pragma unroll
  for (int row = 0; row < kMostFewRows; ++row) {
    c.line[rank][row] = row == 0 ? lane : -1;
    c.weight[rank][row] = row == 0 ? c.weights[lane] : 0.0F;
  }
}

/// By the first kThreads threads, which meet at barrier kBarrier; once more before they read `c`. A
/// row is a warp's. `takers`, [count], is in shared memory. One thread calls known() when c.experts
/// and c.expert are there, before the rest is.
template <int kThreads, int kBarrier, class Known>
__device__ __forceinline__ void choose(const FewRows& a, unsigned* takers, Choice& c,
                                       const Known& known) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  if (a.rows == 1 && a.active <= kLanes) {
    if (warp == 0) choose_alone(a, c, known);
    return;
  }
  for (int e = thread; e < a.count; e += kThreads) takers[e] = 0;
  if (warp < a.rows) choose_row(a, warp, c, [] {});
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
    __syncwarp();
    if (lane == 0) known();
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
