// How the layer kernel for many rows (linear_chain_wide.cu) cuts its work, and how it ends a unit.
// Sums come in blocks of 64 features by 128 rows, one or two a warpgroup; a unit ends a quarter of
// the rows at a time, in loops: written out for all sums it is more code than the instruction cache
// holds.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/linear/linear_chain_state.cuh"
#include "workers/cuda/linear/linear_chain_wide.h"
#include "workers/cuda/linear/linear_tiles.cuh"
#include "workers/cuda/tensor_map.h"

namespace baton::cuda::wide_gemms {

constexpr int kRows = kMostChainRows;
constexpr int kGroups = 2;  // warpgroups that multiply
constexpr int kMultiplying = 128 * kGroups;
constexpr int kThreads = kMultiplying + 128;    // and a warp each for W, x, norms, the next state
constexpr int kBlockK = 64;                     // of a box: the 128 bytes that the swizzle spans
constexpr int kStageBytes = 128 * kBlockK * 2;  // 128 features, or rows
constexpr int kWStages = 8;  // even: each is always of the same group, or of both
constexpr int kXStages = 5;
constexpr int kQuarter = kRows / 4;
constexpr int kQuarters = 4;

struct Gemm {
  CUtensorMap w, x;
  void* y;
  __nv_bfloat16* scaled;
  const __nv_bfloat16* gain;
  float inverse_in;  // normed: 1 / in, else 0
  float eps;
  int out;
  int features;  // of a warpgroup, in a unit: a unit has twice as many
  bool apart;    // more than 64: each warpgroup has stages of W of its own
  int units;     // dealt out in turns
  int sharing;   // CTAs that take a unit together, each a part of k: 1, 2 or 4
  int boxes;     // of k that a CTA takes
  int done;      // what the GEMM's count goes up to
  LinearOutput output;
};

struct Arguments {
  Gemm gemms[kMostChainGemms];
  ChainState *state, *next;
  ChainSquares squares;
  float4* handed;  // [CTAs][kHanded]
  int n, rows;
};

/// Sums of 128 features by 128 rows, four in a float4.
constexpr int kHanded = 128 * kRows / 4;

struct Shared {
  std::uint64_t full[kWStages], empty[kWStages];
  std::uint64_t x_full[kXStages], x_empty[kXStages];
  std::uint64_t seen[kMostChainGemms];  // that the GEMM before has been stored
  std::uint64_t normed[kMostChainGemms];
  float scales[kMostChainGemms][kRows];  // of normed GEMMs' rows: 1 / rms
  float squares[kGroups][4][kRows];      // [group][warp][row]
};

#ifdef BATON_HOPPER
/// What a CTA takes of a GEMM.
struct Slice {
  int unit, step;  // its first unit, and from there to the next
  int part;        // of k
  static __device__ __forceinline__ Slice of(const Gemm& gemm) {
    const int cta = static_cast<int>(blockIdx.x);
    return {cta / gemm.sharing, static_cast<int>(gridDim.x) / gemm.sharing, cta % gemm.sharing};
  }
};

/// Sums of 64 features by 32 rows. Of warp w of the group, lane 4 g + t: sum 4 j + 2 h + e is of
/// feature 16 w + g + 8 h and of row 8 j + 2 t + e.
struct Quarter {
  float sums[kQuarter / 2];

  /// Branches, each with registers of its own: a loop over them becomes a load from local memory.
  template <int kBlocks, int kAt = 0>
  __device__ __forceinline__ void take(const float (&all)[kBlocks][kRows / 2], int at) {
    if (at == kAt) {
#pragma unroll
      for (int s = 0; s < kQuarter / 2; ++s) {
        sums[s] = all[kAt / kQuarters][kAt % kQuarters * (kQuarter / 2) + s];
      }
      hopper::pin(sums);
    } else if constexpr (kAt + 1 < kBlocks * kQuarters) {
      take<kBlocks, kAt + 1>(all, at);
    }
  }
  __device__ __forceinline__ void scale(const float* of_rows, int t) {
#pragma unroll
    for (int s = 0; s < kQuarter / 2; ++s) sums[s] *= of_rows[s / 4 * 8 + 2 * t + s % 2];
  }
};

/// A lane's 2 x 1 of an 8 x 8 matrix of floats (x: column 2 t, y: 2 t + 1 of row g), transposed.
__device__ __forceinline__ float2 transposed(float x, float y) {
  const std::uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
  const std::uint32_t low = transposed_pairs(__byte_perm(a, b, 0x5410));
  const std::uint32_t high = transposed_pairs(__byte_perm(a, b, 0x7632));
  return {__uint_as_float(__byte_perm(low, high, 0x5410)),
          __uint_as_float(__byte_perm(low, high, 0x7632))};
}

// ------------------------------------------------------------------ gate and up

/// Where a lane stores what comes of gate and up: of the warp's sixteen features (of which the
/// first is `first`) two, 2 t and 2 t + 1, of rows 8 j + g.
struct Gated {
  std::uint32_t* y;
  int words;      // from a row to the eighth behind it
  int rows_left;  // behind row g of the quarter, with it
  __device__ __forceinline__ Gated(const Gemm& gemm, int first, int rows, int lane)
      : words(gemm.out / 4 * 8), rows_left(rows - lane / 4) {
    y = reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(gemm.y) +
                                         static_cast<std::int64_t>(lane / 4) * (gemm.out / 2) +
                                         first / 2) +
        lane % 4;
  }
  /// Eight features of gate, then eight of up: both meet in a lane.
  __device__ __forceinline__ void store(const Quarter& q) {
    std::uint32_t pairs[kQuarter / 8];
#pragma unroll
    for (int j = 0; j < kQuarter / 8; ++j) {
      const float* s = &q.sums[4 * j];
      pairs[j] = narrow(silu(s[0]) * s[2], silu(s[1]) * s[3]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kQuarter / 8; ++j) pairs[j] = transposed_pairs(pairs[j]);
#pragma unroll
    for (int j = 0; j < kQuarter / 8; ++j) {
      if (rows_left > 8 * j) *y = pairs[j];
      y += words;
    }
    rows_left -= kQuarter;
  }
};

template <int kBlocks>
__device__ __forceinline__ void end_gated(const Arguments& a, Shared& shared, int i, int first,
                                          const float (&sums)[kBlocks][kRows / 2]) {
  const Gemm& gemm = a.gemms[i];
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool normed = gemm.inverse_in > 0;
  if (normed) hopper::barrier_wait(&shared.normed[i], 0);
#pragma unroll 1
  for (int b = 0; b < kBlocks; ++b) {
    const int of_group = 64 * b + 16 * warp;
    if (of_group >= gemm.features || first + of_group >= gemm.out) return;
    Gated gated(gemm, first + of_group, a.rows, lane);
    const float* scales = shared.scales[i];
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters && quarter * kQuarter < a.rows; ++quarter) {
      Quarter q;
      q.take(sums, b * kQuarters + quarter);
      if (normed) q.scale(scales + quarter * kQuarter, lane % 4);
      gated.store(q);
    }
  }
}

// ------------------------------------------------------------------ all others

/// What a residual adds to: pairs of a quarter's features, rows 8 j + g and features 8 h + 2 t of
/// the warp's sixteen.
struct Old {
  std::uint32_t y[kQuarter / 8][2];
};

/// Where a lane stores of a group's features.
struct Pairs {
  int feature;  // of the first; the second's is eight further on
  bool inside[2];
  __device__ __forceinline__ Pairs(const Gemm& gemm, int first) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int of_group = 16 * warp + static_cast<int>(threadIdx.x) % 4 * 2;
    feature = first + of_group;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inside[h] = of_group + 8 * h < gemm.features && feature + 8 * h < gemm.out;
    }
  }
};

/// Once the GEMM's x has been seen, so that what it waits for is there.
__device__ __forceinline__ void load_old(const Gemm& gemm, const Pairs& pairs, int row0, int rows,
                                         int g, Old& old) {
  if (gemm.output != LinearOutput::residual) return;
  const auto* y = static_cast<const std::uint16_t*>(gemm.y);
#pragma unroll
  for (int j = 0; j < kQuarter / 8; ++j) {
    const int row = row0 + 8 * j + g;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      old.y[j][h] = 0;
      if (row >= rows || !pairs.inside[h]) continue;
      const auto* at = y + static_cast<std::int64_t>(row) * gemm.out + pairs.feature + 8 * h;
      old.y[j][h] = __ldcg(reinterpret_cast<const unsigned int*>(at));
    }
  }
}

__device__ __forceinline__ void store_quarter(const Arguments& a, Shared& shared, const Gemm& gemm,
                                              const Pairs& pairs, int row0, int g, const Quarter& q,
                                              const Old& old, const float2 (&gain)[2]) {
  auto* y = static_cast<std::uint16_t*>(gemm.y);
  auto* scaled = reinterpret_cast<std::uint16_t*>(gemm.scaled);
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int group = static_cast<int>(threadIdx.x) / 128;
#pragma unroll
  for (int j = 0; j < kQuarter / 8; ++j) {
    const int row = row0 + 8 * j + g;
    __syncwarp();
    float2 both[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      both[h] = transposed(q.sums[4 * j + 2 * h], q.sums[4 * j + 2 * h + 1]);
    }
    float squares = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float2 v = both[h];
      if (row >= a.rows || !pairs.inside[h]) continue;
      if (gemm.output == LinearOutput::residual) {
        const float2 before = to_floats(old.y[j][h]);
        v.x += before.x;
        v.y += before.y;
      }
      const std::int64_t at = static_cast<std::int64_t>(row) * gemm.out + pairs.feature + 8 * h;
      const std::uint32_t pair = narrow(v.x, v.y);
      *reinterpret_cast<std::uint32_t*>(y + at) = pair;
      if (scaled == nullptr) continue;
      const float2 rounded = to_floats(pair);
      *reinterpret_cast<std::uint32_t*>(scaled + at) =
          narrow(rounded.x * gain[h].x, rounded.y * gain[h].y);
      squares += rounded.x * rounded.x + rounded.y * rounded.y;
    }
    if (scaled == nullptr) continue;
    __syncwarp();
    squares += __shfl_xor_sync(0xFFFFFFFFU, squares, 1);
    squares += __shfl_xor_sync(0xFFFFFFFFU, squares, 2);
    if (t == 0) shared.squares[group][threadIdx.x / 32 % 4][row] = squares;
  }
}

/// Where the CTA of part `to` finds what that of part `from` hands over: block `block` of eight
/// rows, counted from the first that `to` stores.
__device__ __forceinline__ float4* handed(const Arguments& a, const Gemm& gemm, int unit, int to,
                                          int from, int group, int block) {
  const int blocks = kRows / 8 / gemm.sharing;
  const int at = (from * kGroups + group) * blocks + block;
  return a.handed + static_cast<std::int64_t>(unit * gemm.sharing + to) * kHanded + at * 128 +
         static_cast<int>(threadIdx.x) % 128;
}

/// Whether this warp has features of the GEMM: a group has up to 64, and a warp sixteen of them.
__device__ __forceinline__ bool has_features(const Gemm& gemm) {
  return static_cast<int>(threadIdx.x) / 32 % 4 * 16 < gemm.features;
}

/// Gives the other CTAs of a unit the sums of the rows that they store, and waits for theirs.
__device__ __forceinline__ void hand_over(const Arguments& a, int i, int unit, int part,
                                          const float (&sums)[1][kRows / 2]) {
  const Gemm& gemm = a.gemms[i];
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int own = kQuarters / gemm.sharing;
  const int rows = has_features(gemm) ? a.rows : 0;
#pragma unroll 1
  for (int quarter = 0; quarter < kQuarters && quarter * kQuarter < rows; ++quarter) {
    const int to = quarter / own;
    if (to == part) continue;
    Quarter q;
    q.take(sums, quarter);
    float4* at = handed(a, gemm, unit, to, part, group, quarter % own * (kQuarter / 8));
#pragma unroll
    for (int j = 0; j < kQuarter / 8; ++j) {
      const float* s = &q.sums[4 * j];
      __stcg(at + j * 128, make_float4(s[0], s[1], s[2], s[3]));
    }
  }
  hopper::sync_threads(1 + group, 128);
  if (threadIdx.x % 128 == 0) {
    int* met = &a.state->met[i][unit * kGroups + group];
    part_done(met);
    wait_for_parts(met, gemm.sharing);
  }
  hopper::sync_threads(1 + group, 128);
}

/// Adds what the other CTAs of the unit have handed over; all of it is asked for at once.
__device__ __forceinline__ void add_handed(const Arguments& a, const Gemm& gemm, int unit, int part,
                                           int quarter, Quarter& q) {
  constexpr int kBlocks = kQuarter / 8;
  if (gemm.sharing == 1 || !has_features(gemm)) return;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int first = quarter % (kQuarters / gemm.sharing) * kBlocks;
  float4 v[kQuarters - 1][kBlocks];
#pragma unroll
  for (int other = 0; other < kQuarters - 1; ++other) {
#pragma unroll
    for (float4& sums : v[other]) sums = make_float4(0, 0, 0, 0);
    if (other >= gemm.sharing - 1) continue;
    const float4* at = handed(a, gemm, unit, part, other + (other >= part ? 1 : 0), group, first);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) v[other][j] = __ldcg(at + j * 128);
  }
#pragma unroll
  for (const auto& of_other : v) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      q.sums[4 * j] += of_other[j].x;
      q.sums[4 * j + 1] += of_other[j].y;
      q.sums[4 * j + 2] += of_other[j].z;
      q.sums[4 * j + 3] += of_other[j].w;
    }
  }
}

/// `first`: of the group's features.
__device__ __forceinline__ void end_plain(const Arguments& a, Shared& shared, int i, int unit,
                                          int part, int first, const float (&sums)[1][kRows / 2]) {
  const Gemm& gemm = a.gemms[i];
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int own = kQuarters / gemm.sharing;
  const Pairs pairs(gemm, first);
  float2 gain[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (gemm.gain == nullptr || !pairs.inside[h]) continue;
    gain[h] = to_floats(*reinterpret_cast<const std::uint32_t*>(gemm.gain + pairs.feature + 8 * h));
  }
  Old old;
  load_old(gemm, pairs, part * own * kQuarter, a.rows, g, old);
  if (gemm.sharing > 1) hand_over(a, i, unit, part, sums);
  if (gemm.inverse_in > 0) hopper::barrier_wait(&shared.normed[i], 0);
#pragma unroll 1
  for (int quarter = part * own; quarter < (part + 1) * own; ++quarter) {
    const int row0 = quarter * kQuarter;
    if (row0 >= a.rows) break;
    Quarter q;
    q.take(sums, quarter);
    add_handed(a, gemm, unit, part, quarter, q);
    if (gemm.inverse_in > 0) q.scale(&shared.scales[i][row0], lane % 4);
    if (quarter > part * own) load_old(gemm, pairs, row0, a.rows, g, old);
    store_quarter(a, shared, gemm, pairs, row0, g, q, old, gain);
  }
  if (gemm.scaled == nullptr) return;
  hopper::sync_threads(1 + group, 128);
  const int row = static_cast<int>(threadIdx.x) % 128;
  if (row >= a.rows || row / kQuarter / own != part) return;
  float squares = 0;
  for (int warp = 0; warp < 4; ++warp) squares += shared.squares[group][warp][row];
  a.squares.slot(i, unit * kGroups + group, kRows)[row] = squares;
}
#endif  // BATON_HOPPER

}  // namespace baton::cuda::wide_gemms
