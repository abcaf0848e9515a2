// How the layer kernel (linear_chain.cu) cuts its work, and how it ends a unit: sums are normed,
// stored, and squared for the norm behind.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "workers/cuda/hopper.cuh"
#include "workers/cuda/layer/gates.cuh"
#include "workers/cuda/linear/linear_chain.h"
#include "workers/cuda/linear/linear_chain_state.cuh"
#include "workers/cuda/linear/linear_tiles.cuh"
#include "workers/cuda/tensor_map.h"

namespace baton::cuda::gemms {

constexpr int kGroups = 2;  // warpgroups that multiply
constexpr int kMultiplying = 128 * kGroups;
constexpr int kThreads = kMultiplying + 96;  // and a warp each for W, for x and for norms
constexpr int kMostStages = 12;              // of the ring
/// A box of 128 features and 32 rows, or of 112 and 64, fits.
constexpr int stage_bytes(int columns) { return columns == 64 ? 22 << 10 : 20 << 10; }
constexpr int kMostRows = 64;
constexpr int kBlockK = 64;  // k of a box: the 128 bytes that the swizzle spans

/// Each CTA of a pair stores half of the rows, in blocks of eight.
constexpr bool can_split_k(int columns) { return columns >= 16; }

struct Gemm {
  CUtensorMap w, x;
  void* y;
  __nv_bfloat16* scaled;
  const __nv_bfloat16* gain;
  float inverse_in;  // normed: 1 / in, else 0
  float eps;
  int out;
  int features;  // of a unit
  int units;     // dealt out to the CTAs, or pairs of CTAs, in turns
  bool split_k;  // the CTAs of a pair take a unit together, half of k each
  int stages;    // of the ring that a unit takes
  int boxes;     // of W, and of x, in a stage
  int parts;     // what `done` counts up to
  int slots;     // of squares
  LinearOutput output;
  bool joins;
  Activate gate;
  PartCall join;
};

struct Arguments {
  Gemm gemms[kMostChainGemms];
  ChainState *state, *next;
  ChainSquares squares;
  int n, rows, stages;
  bool pairs;  // the CTAs are in clusters of two
};

template <int kN>
struct Shared {
  std::uint64_t full[kMostStages], empty[kMostStages];
  std::uint64_t seen[kMostChainGemms];  // that the GEMM before has been stored
  std::uint64_t normed[kMostChainGemms];
  float scales[kMostChainGemms][kN];  // of normed GEMMs' rows: 1 / rms
  float squares[kGroups][4][kN];      // [group][warp][row]
  float4 half[kN / 8][128];           // the second group's sums
  // The other CTA's sums of our rows, [group][block of eight rows]
  float4 peer_sums[kGroups][can_split_k(kN) ? kN / 16 : 1][can_split_k(kN) ? 128 : 1];
  std::uint64_t peer_ready[kGroups];
  float joining[2 * kMultiplying / 32];  // of a row that joins, sums of each warp
};

#ifdef BATON_HOPPER
/// What a CTA takes of a GEMM's units.
struct UnitSlice {
  int unit, step;  // its first unit, and from there to the next
  int half;        // of k: the first or the second; 0 where it takes all
  int begin, end;  // of the rows that it stores

  template <int kN>
  static __device__ __forceinline__ UnitSlice of(const Arguments& a, const Gemm& gemm) {
    const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
    if (!gemm.split_k) return {cta, ctas, 0, 0, a.rows};
    const int half = cta % 2;
    return {cta / 2, ctas / 2, half, half * kN / 2, half == 0 ? min(a.rows, kN / 2) : a.rows};
  }
  __device__ __forceinline__ bool stores(int row) const { return row >= begin && row < end; }
};

/// What a thread stores: of warp w of a group, lane 4 g + t, sum 4 j + 2 h + e is of feature 16 w +
/// g + 8 h of the group's 64 and of row 8 j + 2 t + e.
template <int kN>
struct Fragment {
  static constexpr int kSums = kN / 2;
  static constexpr int kRows = kN / 4;
  float sums[kSums];
  __nv_bfloat16 old[kSums];  // what a residual adds to
  float gain[2];             // of the next norm, for both features

  static __device__ __forceinline__ int row_of(int sum) {
    return sum / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + sum % 2;
  }
  static __device__ __forceinline__ int feature_of(int sum) {
    return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 +
           sum / 2 % 2 * 8;
  }

  /// Features [first, end) are ours; once the GEMM's x has been seen, so that what it waits for is
  /// there.
  __device__ __forceinline__ void load(const Arguments& a, int i, const UnitSlice& slice, int first,
                                       int end) {
    const Gemm& gemm = a.gemms[i];
    const auto* y = static_cast<const __nv_bfloat16*>(gemm.y);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int feature = first + feature_of(2 * h);
      gain[h] = 0;
      if (gemm.gain != nullptr && feature < end) gain[h] = __bfloat162float(gemm.gain[feature]);
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      const int feature = first + feature_of(s);
      old[s] = __float2bfloat16(0);
      if (gemm.output == LinearOutput::residual && slice.stores(row_of(s)) && feature < end) {
        old[s] = y[static_cast<std::int64_t>(row_of(s)) * gemm.out + feature];
      }
    }
  }
};

/// Eight features of gate, then eight of up: both meet in a lane.
template <int kN>
__device__ __forceinline__ void store_gated(const Gemm& gemm, const UnitSlice& slice, int first,
                                            int end, const Fragment<kN>& f) {
  auto* y = static_cast<__nv_bfloat16*>(gemm.y);
  const int gate = first + Fragment<kN>::feature_of(0);
  if (gate >= end) return;
  const int column = gate / 16 * 8 + gate % 8;
#pragma unroll
  for (int s = 0; s < Fragment<kN>::kSums; ++s) {
    if (s / 2 % 2 != 0) continue;
    const int row = Fragment<kN>::row_of(s);
    if (slice.stores(row)) {
      const float gated = gemm.gate.gate == Gate::silu
                              ? silu(f.sums[s]) * f.sums[s + 2]
                              : gate_of(gemm.gate, f.sums[s], f.sums[s + 2]);
      y[static_cast<std::int64_t>(row) * (gemm.out / 2) + column] = __float2bfloat16(gated);
    }
  }
}

template <int kN>
__device__ __forceinline__ void store(const Arguments& a, Shared<kN>& shared, int i,
                                      const UnitSlice& slice, int first, int end, Fragment<kN>& f,
                                      float& all_squares) {
  using F = Fragment<kN>;
  const Gemm& gemm = a.gemms[i];
  if (gemm.inverse_in > 0) {
    hopper::barrier_wait(&shared.normed[i], 0);
#pragma unroll
    for (int s = 0; s < F::kSums; ++s) f.sums[s] *= shared.scales[i][F::row_of(s)];
  }
  if (gemm.output == LinearOutput::silu_mul) return store_gated(gemm, slice, first, end, f);
  auto* y = static_cast<__nv_bfloat16*>(gemm.y);
  float squares[F::kRows] = {};
#pragma unroll
  for (int s = 0; s < F::kSums; ++s) {
    const int row = F::row_of(s);
    const int feature = first + F::feature_of(s);
    if (!slice.stores(row) || feature >= end) continue;
    const std::int64_t at = static_cast<std::int64_t>(row) * gemm.out + feature;
    const __nv_bfloat16 v = __float2bfloat16(f.sums[s] + __bfloat162float(f.old[s]));
    y[at] = v;
    if (gemm.scaled == nullptr) continue;
    const float rounded = __bfloat162float(v);
    gemm.scaled[at] = __float2bfloat16(rounded * f.gain[s / 2 % 2]);
    squares[s / 4 * 2 + s % 2] += rounded * rounded;
  }
  if (gemm.scaled == nullptr) return;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < F::kRows; ++r) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      squares[r] += __shfl_xor_sync(0xFFFFFFFFU, squares[r], mask);
    }
    if (lane < 4)
      shared.squares[group][threadIdx.x / 32 % 4][F::row_of(r / 2 * 4 + r % 2)] = squares[r];
  }
  hopper::sync_threads(1 + group, 128);
  const int row = static_cast<int>(threadIdx.x) % 128;
  if (!slice.stores(row)) return;
  for (int warp = 0; warp < 4; ++warp) all_squares += shared.squares[group][warp][row];
  const int slot = gemm.features > 64 ? slice.unit * kGroups + group : slice.unit;
  a.squares.slot(i, slot, kN)[row] = all_squares;
}
#endif  // BATON_HOPPER

}  // namespace baton::cuda::gemms
