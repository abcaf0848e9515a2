// What the layer kernels (linear_chain.cu, linear_chain_wide.cu, linear_chain_quantized.cu) have in
// common: how the GEMMs of a chain wait for each other, across all CTAs of the grid, and how their
// rows are normed.
#pragma once

#include <cstdint>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_chain.h"

namespace baton::cuda {

/// On the device, one a chain.
struct ChainState {
  static constexpr int kMostMeetings = 160;  // at least the multiprocessors
  int done[kMostChainGemms];                 // of a GEMM, what its CTAs count that they have stored
  int joined[kMostChainGemms];               // likewise rows that have joined the residual stream
  int unused[24];
  /// In linear_chain_wide.cu, of a GEMM: CTAs that have handed over the sums of a unit and
  /// warpgroup.
  int met[kMostChainGemms][kMostMeetings];
};

/// Of the rows that a GEMM stored, sums of squares of each part's features:
/// [GEMMs][slots][columns]. Written before the parts are counted, read in one order: the same bits
/// whoever was quicker. (Added up by atomics in double they cost 2 us a GEMM; in integers they have
/// overflown.) In the workspace: a chain writes them when the one before has ended.
struct ChainSquares {
  float* data;
  int slots;

  static ChainSquares of(void* workspace) {
    return {static_cast<float*>(workspace), 2 * multiprocessors()};
  }
  static std::size_t bytes() {
    return static_cast<std::size_t>(of(nullptr).slots) * kMostChainGemms * kMostChainRows *
           sizeof(float);
  }
  /// Of the rows that GEMM i stored.
  __device__ float* slot(int i, int slot, int columns) const {
    return data + (std::int64_t{i} * slots + slot) * columns;
  }
};

#ifdef BATON_HOPPER
/// The next stage of a ring; `parity` is that of its barriers.
__device__ __forceinline__ void next_stage(int& stage, int& parity, int stages) {
  if (++stage == stages) {
    stage = 0;
    parity ^= 1;
  }
}

/// Until all parts of a GEMM have been stored; what they stored may be copied then.
__device__ __forceinline__ void wait_for_parts(const int* done, int parts) {
  int now = 0;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(done) : "memory");
  } while (now < parts);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// By each thread that has stored something, before the CTA's threads meet and one says
/// part_done().
__device__ __forceinline__ void stores_before_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void part_done(int* done) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(done) : "memory");
}

/// By one warp: what the rows of GEMM i's x are divided by, squares of `slots` parts of the GEMM
/// before summed up; rows beyond those of the step get what there is.
template <int kColumns>
__device__ __forceinline__ void norm_scales(const ChainSquares& squares, int i, int slots,
                                            float inverse_in, float eps, float* scales) {
  constexpr int kQuads = kColumns / 4;  // of four rows; a lane always has the same one
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* from = reinterpret_cast<const float4*>(squares.slot(i - 1, 0, kColumns));
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int f = lane; f < slots * kQuads; f += 32) {
    const float4 v = __ldcg(from + f);
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
#pragma unroll
  for (int mask = kQuads; mask < 32; mask *= 2) {
    sum.x += __shfl_xor_sync(0xFFFFFFFFU, sum.x, mask);
    sum.y += __shfl_xor_sync(0xFFFFFFFFU, sum.y, mask);
    sum.z += __shfl_xor_sync(0xFFFFFFFFU, sum.z, mask);
    sum.w += __shfl_xor_sync(0xFFFFFFFFU, sum.w, mask);
  }
  if (lane >= kQuads) return;
  scales[4 * lane] = rsqrtf(sum.x * inverse_in + eps);
  scales[4 * lane + 1] = rsqrtf(sum.y * inverse_in + eps);
  scales[4 * lane + 2] = rsqrtf(sum.z * inverse_in + eps);
  scales[4 * lane + 3] = rsqrtf(sum.w * inverse_in + eps);
}

/// What the CTAs' warps tell each other of the GEMMs, once each.
template <class Arguments, class Shared>
__device__ __forceinline__ void init_gemms(const Arguments& a, Shared& shared) {
  for (int i = 0; i < a.n; ++i) {
    hopper::barrier_init(&shared.seen[i], 1);
    hopper::barrier_init(&shared.normed[i], 32);
  }
}

/// What a GEMM's x waits for.
struct Awaited {
  const int* count;
  int parts;  // what it counts up to
};

/// By the thread that copies x, before GEMM i's. awaited(j): of what GEMM j gives.
template <class Shared, class Of>
__device__ __forceinline__ void await_gemm(Shared& shared, int i, const Of& awaited) {
  if (i == 0) return;
  const Awaited before = awaited(i - 1);
  wait_for_parts(before.count, before.parts);
  hopper::barrier_arrive(&shared.seen[i]);
}

/// By one warp: the scales of all normed GEMMs' rows. slots_of(gemm): how many have their squares.
template <int kColumns, class Arguments, class Shared, class SlotsOf>
__device__ __forceinline__ void norm_gemms(const Arguments& a, Shared& shared,
                                           const SlotsOf& slots_of) {
  for (int i = 1; i < a.n; ++i) {
    const auto& gemm = a.gemms[i];
    if (gemm.inverse_in == 0) continue;
    hopper::barrier_wait(&shared.seen[i], 0);
    norm_scales<kColumns>(a.squares, i, slots_of(a.gemms[i - 1]), gemm.inverse_in, gemm.eps,
                          shared.scales[i]);
    hopper::barrier_arrive(&shared.normed[i]);
  }
}

/// By a warp: the state of the chain that is run next.
__device__ __forceinline__ void clear_next(ChainState* next) {
  static_assert(sizeof(ChainState) % sizeof(int4) == 0);
  if (blockIdx.x != 0) return;
  grid_wait();
  auto* to = reinterpret_cast<int4*>(next);
  for (int i = static_cast<int>(threadIdx.x) % 32;
       i < static_cast<int>(sizeof(ChainState) / sizeof(int4)); i += 32) {
    to[i] = make_int4(0, 0, 0, 0);
  }
}
#endif  // BATON_HOPPER

// ------------------------------------------------------------------ host

/// What a GEMM of each kernel has of the caller's.
template <class Gemm>
Gemm begin_gemm(const ChainGemm& from) {
  Gemm gemm{};
  gemm.y = from.y;
  gemm.scaled = reinterpret_cast<decltype(gemm.scaled)>(from.scaled);
  gemm.gain = reinterpret_cast<decltype(gemm.gain)>(from.gain);
  gemm.inverse_in = from.normed ? 1.0F / static_cast<float>(from.w.in) : 0.0F;
  gemm.eps = from.eps;
  gemm.out = from.w.out;
  gemm.output = from.output;
  return gemm;
}

template <class Arguments>
Arguments begin_arguments(int n, int rows, const ChainBuffers& buffers) {
  Arguments a{};
  a.state = static_cast<ChainState*>(buffers.state);
  a.next = static_cast<ChainState*>(buffers.next_state);
  a.squares = ChainSquares::of(buffers.workspace);
  a.n = n;
  a.rows = rows;
  return a;
}

}  // namespace baton::cuda
