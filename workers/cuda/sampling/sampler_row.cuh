// One row of logits as a cluster of CTAs sees it: who holds what, keys and weights of logits, sums
// over the row. Included by sampler.cu, which says how it all goes together.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

using u64 = unsigned long long;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 8;
constexpr int kBins = 2048;
constexpr int kBinsEach = kBins / kThreads;
constexpr int kList = kThreads;  // tokens that are sorted directly
constexpr unsigned kAll = 0xFFFFFFFFU;
constexpr float kGreedyBelow = 1e-5F;  // as on the CPU
constexpr float kOne = 0x1p40F;
/// Tokens lighter than exp(-27.7), one part in 2^40, have no weight: 152,000 of them weigh 1.4e-7.
constexpr float kReach = 27.7F;
constexpr float kBinsUsed = kBins - 8;  // rounding may carry a token a little beyond
constexpr unsigned kMinusInfinityKey = 0x007FFFFFU;

struct Two {
  u64 a;
  u64 b;
};

struct Entry {
  unsigned key;
  int token;
};

struct Place {
  int bin;  // -1: the target lies beyond the last bin
  unsigned count;
  u64 weight;
  Two before;  // weight and count of the bins before
};

struct alignas(16) Shared {
  unsigned count[kBins];
  unsigned low[kBins];  // 64-bit sums in halves: shared memory adds 32 bits at a time
  unsigned high[kBins];
  Entry list[kList];
  Entry merged[kList];
  Two of_cta[2][kCluster];
  Two of_warp[kWarps];
  Place place;
  u64 total_weight;
  u64 found_weight;
  int found_token;
  unsigned listed;
  unsigned listed_by[kCluster];
};

// ------------------------------------------------------------------ the cluster

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ int cluster_rank() {
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
}
__device__ __forceinline__ void cluster_sync() { cooperative_groups::this_cluster().sync(); }
/// Together: no CTA writes to another's shared memory before that one has started.
__device__ __forceinline__ void cluster_started() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_await_start() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
template <typename T>
__device__ __forceinline__ T* at_rank(T* mine, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
}
#else  // before Hopper a row has one CTA
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ void cluster_sync() { __syncthreads(); }
__device__ __forceinline__ void cluster_started() {}
__device__ __forceinline__ void cluster_await_start() {}
template <typename T>
__device__ __forceinline__ T* at_rank(T* mine, int) {
  return mine;
}
#endif

// ------------------------------------------------------------------ logits, keys, weights

/// Grows with the logit; -0 counts as 0, as it compares.
__device__ __forceinline__ unsigned key_of(float logit) {
  const unsigned bits = __float_as_uint(logit + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// Where tokens fall into the histogram: by distance from the best (coarse), or by key.
struct Bins {
  bool by_key;
  float reach;
  float scale;
  unsigned low;
  unsigned high;
  int shift;
};

/// One row as one CTA sees it.
struct Row {
  Shared& s;
  float* slice;  // logits of tokens first .. first + count - 1
  int first;
  int count;
  int vectors;  // of 4 logits that may be read at once
  int ctas;
  int rank;
  int parity;
  float best;
  float factor;  // 1 / temperature

  __device__ __forceinline__ float distance(float logit) const { return (best - logit) * factor; }
  /// In 2^-40 of the best token's, rounded down; at least 1 for what lies within kReach.
  __device__ __forceinline__ u64 weight(float logit, float least = 0.0F) const {
    const float x = distance(logit);
    const float w = __expf(-x);
    // By shifts: conversions to 64 bits would share the pipe of the exponentials.
    const unsigned bits = __float_as_uint(w);
    const u64 mantissa = u64{(bits & 0x007FFFFFU) | 0x00800000U} << 24;
    return x < kReach && w >= least ? mantissa >> (134 - (bits >> 23)) : 0;
  }
  __device__ __forceinline__ int bin(const Bins& bins, float logit) const {
    if (bins.by_key) {
      const unsigned key = key_of(logit);
      return key < bins.low || key > bins.high ? -1
                                               : static_cast<int>((bins.high - key) >> bins.shift);
    }
    const float x = distance(logit);
    return x < bins.reach ? static_cast<int>(x * bins.scale) : -1;
  }

  /// f(logit, index in the slice) for every logit; a thread's indices ascend.
  template <typename F>
  __device__ __forceinline__ void each(F f) const {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < vectors; i += kThreads) {
      const float4 v = reinterpret_cast<const float4*>(slice)[i];
      f(v.x, 4 * i);
      f(v.y, 4 * i + 1);
      f(v.z, 4 * i + 2);
      f(v.w, 4 * i + 3);
    }
    for (int i = 4 * vectors + thread; i < count; i += kThreads) f(slice[i], i);
  }
};

// ------------------------------------------------------------------ sums and scans

template <bool kMax>
__device__ __forceinline__ Two combine(Two x, Two y) {
  if (kMax) return {x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b};
  return {x.a + y.a, x.b + y.b};
}

/// Sum or maximum over all threads of the row, known to all of them. The CTAs' own values stay in
/// of_cta[row.parity ^ 1] until the next but one call (two buffers: a CTA may be one call ahead).
template <bool kMax>
__device__ Two over_row(Two mine, Row& row) {
  Shared& s = row.s;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int step = 16; step > 0; step /= 2) {
    mine = combine<kMax>(
        mine, {__shfl_xor_sync(kAll, mine.a, step), __shfl_xor_sync(kAll, mine.b, step)});
  }
  if (lane == 0) s.of_warp[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    mine = lane < kWarps ? s.of_warp[lane] : Two{0, 0};
    for (int step = 16; step > 0; step /= 2) {
      mine = combine<kMax>(
          mine, {__shfl_xor_sync(kAll, mine.a, step), __shfl_xor_sync(kAll, mine.b, step)});
    }
    if (lane < row.ctas) *at_rank(&s.of_cta[row.parity][row.rank], lane) = mine;
  }
  cluster_sync();
  Two all = s.of_cta[row.parity][0];
  for (int cta = 1; cta < row.ctas; ++cta) all = combine<kMax>(all, s.of_cta[row.parity][cta]);
  row.parity ^= 1;
  return all;
}

/// Sum over the threads before this one. A barrier must follow before the next use of of_warp.
__device__ Two sum_before(Two mine, Shared& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Two sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const Two left{__shfl_up_sync(kAll, sum.a, step), __shfl_up_sync(kAll, sum.b, step)};
    if (lane >= step) sum = combine<false>(sum, left);
  }
  if (lane == 31) s.of_warp[warp] = sum;
  __syncthreads();
  sum = {sum.a - mine.a, sum.b - mine.b};
  for (int i = 0; i < warp; ++i) sum = combine<false>(sum, s.of_warp[i]);
  return sum;
}

}  // namespace
}  // namespace baton::cuda
