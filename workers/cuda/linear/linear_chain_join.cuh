// What a part of a layer gives joins the residual stream, inside a layer kernel (linear_chain.cu):
// a CTA takes a row, with the warps that multiply, which have nothing to do before the next GEMM
// has its x; the next W streams into the rings meanwhile.
//
// Measured while this was written, hidden 3,840: with one warp a row, whose loads wait for its
// stores, a layer took 22 us longer than its kernels one by one.
#pragma once

#include "workers/cuda/eight.cuh"
#include "workers/cuda/layer/general.cuh"
#include "workers/cuda/linear/linear_chain_state.cuh"

namespace baton::cuda {

#ifdef BATON_HOPPER
/// By kThreads threads, which meet at barrier kBarrier; `sums` is theirs, one a warp.
template <int kThreads, int kBarrier>
__device__ __forceinline__ float sum_of_threads(float x, float* sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) sums[warp] = x;
  hopper::sync_threads(kBarrier, kThreads);
  float all = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) all += sums[w];
  return all;
}

/// Row `row` of a GEMM that joins, by the first kThreads threads: all `parts` of the GEMM are
/// waited for. `sums`: room for two numbers a warp, which nobody reads any more.
template <int kThreads, int kBarrier>
__device__ __forceinline__ void join_row(const PartCall& c, int row, const int* done, int parts,
                                         float* sums) {
  constexpr int kVectors = kMostJoined / 8 / kThreads;  // a thread's
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = c.hidden / 8;
  const std::int64_t at = std::int64_t{row} * c.hidden;
  auto* const x = reinterpret_cast<uint4*>(c.x + at);
  const auto* const part = reinterpret_cast<const uint4*>(c.part + at);
  auto* const normed = reinterpret_cast<uint4*>(c.normed + at);
  const bool norms = c.norm.weight != nullptr;
  uint4 old[kVectors] = {}, given[kVectors] = {};
  Eight weight[kVectors], next[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = thread + i * kThreads;
    if (vector >= vectors) continue;
    weight[i].load_weight(norms ? c.norm.weight + 8 * vector : nullptr);
    next[i].load_weight(c.normed == nullptr ? nullptr : c.next.weight + 8 * vector);
    old[i] = __ldcg(x + vector);  // this thread alone writes it
  }
  if (thread == 0) wait_for_parts(done, parts);
  hopper::sync_threads(kBarrier, kThreads);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = thread + i * kThreads;
    if (vector < vectors) given[i] = __ldcg(part + vector);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Eight p;
    p.unpack(given[i]);
    squares += p.squares();
  }
  const auto columns = static_cast<float>(c.hidden);
  float scale = c.factor;
  if (norms) {
    const float all = sum_of_threads<kThreads, kBarrier>(squares, sums);
    scale *= rsqrtf(all / columns + c.norm.eps);
  }
  squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = thread + i * kThreads;
    if (vector >= vectors) continue;
    Eight p, sum;
    p.unpack(given[i]);
    sum.unpack(old[i]);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum.v[k] = fmaf(p.v[k] * scale, weight[i].v[k], sum.v[k]);
    old[i] = sum.pack();
    x[vector] = old[i];
    sum.unpack(old[i]);  // the norm behind is taken of what is stored
    squares += sum.squares();
  }
  if (c.normed == nullptr) return;
  const float all = sum_of_threads<kThreads, kBarrier>(squares, sums + kThreads / 32);
  const float behind = rsqrtf(all / columns + c.next.eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = thread + i * kThreads;
    if (vector >= vectors) continue;
    Eight sum;
    sum.unpack(old[i]);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum.v[k] *= behind * next[i].v[k];
    normed[vector] = sum.pack();
  }
}

/// This CTA's rows of GEMM i, which joins. parts_of(gemm): what `done` counts up to.
template <int kThreads, int kBarrier, class Arguments, class PartsOf>
__device__ __forceinline__ void join_gemm(const Arguments& a, int i, float* sums,
                                          const PartsOf& parts_of) {
  grid_wait();
  const auto& gemm = a.gemms[i];
  for (int row = static_cast<int>(blockIdx.x); row < a.rows; row += static_cast<int>(gridDim.x)) {
    join_row<kThreads, kBarrier>(gemm.join, row, &a.state->done[i], parts_of(gemm), sums);
    stores_before_copies();
    hopper::sync_threads(kBarrier, kThreads);
    if (threadIdx.x == 0) part_done(&a.state->joined[i]);
  }
}
#endif  // BATON_HOPPER

}  // namespace baton::cuda
