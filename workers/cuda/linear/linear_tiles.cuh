// What the kernels share that compute tiles of output features x rows by warpgroups from a ring of
// shared memory (linear_staged.cu, linear_quantized_tiles.cu): how the tiles are dealt out, how
// several CTAs add up one tile, how a tile is stored.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <string>

#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear.h"
#include "workers/cuda/tensor_map.h"

namespace baton::cuda {

constexpr int kMaxStages = 24;
constexpr std::size_t kPartBytes = 128 << 10;  // a CTA's part of a shared tile
constexpr std::size_t kFlagBytes = 4096;

struct TileArguments {
  void* y;
  int* flags;     // [CTAs], of parts that wait for their tile's owner
  float4* parts;  // [CTAs] of kPartBytes
  int rows, out;
  int row_tiles, chunks, units;  // a unit is one chunk of k of one tile
  int stages;                    // of the ring
  bool balanced;                 // units are dealt out evenly, not tiles
  int split;                     // CTAs of a cluster that share one tile; 1: no clusters
  LinearOutput output;
};

/// The first unit of a CTA; the one behind its last is the next CTA's first.
__device__ __forceinline__ int first_unit(const TileArguments& a, int cta) {
  const int ctas = static_cast<int>(gridDim.x);
  if (a.balanced) return static_cast<int>(static_cast<std::int64_t>(a.units) * cta / ctas);
  const int tiles = a.units / a.chunks;
  if (a.split > 1) return cta / a.split * a.chunks + cta % a.split * a.chunks / a.split;
  return static_cast<int>(static_cast<std::int64_t>(tiles) * cta / ctas) * a.chunks;
}

struct Ring {
  std::uint8_t* data;
  std::uint64_t* full;
  std::uint64_t* empty;
};

// ------------------------------------------------------------------ results

__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.0F + __expf(-v)); }

/// Where a lane's two neighbouring features of one row go. A warp's block is 16 features x 8 rows
/// as Product leaves it: lanes 4 apart hold neighbouring features of two rows, exchange (see put),
/// and then the even one has the first row, the odd one the second.
struct Destination {
  std::int64_t at = -1;  // in y; negative: outside
  bool both = true;      // both features are inside and at an even address

  __device__ __forceinline__ Destination(const TileArguments& a, int feature, int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool silu = a.output == LinearOutput::silu_mul;
    const int width = silu ? a.out / 2 : a.out;
    const int f = (silu ? feature / 2 : feature) + lane / 8 * 2;
    const int r = row + lane % 4 * 2 + lane / 4 % 2;
    if (r < a.rows && f < width) at = static_cast<std::int64_t>(r) * width + f;
    both = width % 2 == 0;
    last = f + 1 == width;
  }
  bool last;
};

/// What is in y already, of the residual.
__device__ __forceinline__ float2 old_pair(const TileArguments& a, const Destination& p) {
  if (a.output != LinearOutput::residual || p.at < 0) return make_float2(0, 0);
  const auto* y = static_cast<const __nv_bfloat16*>(a.y) + p.at;
  if (p.both) return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(y));
  return make_float2(__bfloat162float(y[0]), p.last ? 0.0F : __bfloat162float(y[1]));
}

/// v0, v1: one feature of two rows.
__device__ __forceinline__ void put(const TileArguments& a, const Destination& p, float v0,
                                    float v1, float2 old) {
  const bool odd = threadIdx.x / 4 % 2 != 0;
  const float got = __shfl_xor_sync(0xFFFFFFFFU, odd ? v0 : v1, 4);
  const float2 v = odd ? make_float2(got, v1) : make_float2(v0, got);
  if (p.at >= 0 && a.output == LinearOutput::f32) {
    auto* y = static_cast<float*>(a.y) + p.at;
    if (p.both) {
      __stcs(reinterpret_cast<float2*>(y), v);
    } else {
      y[0] = v.x;
      if (!p.last) y[1] = v.y;
    }
  } else if (p.at >= 0) {
    auto* y = static_cast<__nv_bfloat16*>(a.y) + p.at;
    const __nv_bfloat162 pair = __floats2bfloat162_rn(old.x + v.x, old.y + v.y);
    if (p.both) {
      *reinterpret_cast<__nv_bfloat162*>(y) = pair;
    } else {
      y[0] = pair.x;
      if (!p.last) y[1] = pair.y;
    }
  }
  __syncwarp();
}

/// Stores up to kCount blocks of a warp; block i is at feature(i), row(i), its sums come from
/// value(i). What the residual adds to is read for all of them first: one latency, not one a block.
template <int kCount, typename Feature, typename Row, typename Value>
__device__ __forceinline__ void put_blocks(const TileArguments& a, int count,
                                           const Feature& feature, const Row& row,
                                           const Value& value) {
  constexpr int kAtOnce = kCount < 4 ? kCount : 4;
  const bool silu_mul = a.output == LinearOutput::silu_mul;
#pragma unroll
  for (int i0 = 0; i0 < kCount; i0 += kAtOnce) {
    float2 old[kAtOnce][2];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i0 + i >= count || a.output != LinearOutput::residual) continue;
      old[i][0] = old_pair(a, Destination(a, feature(i0 + i), row(i0 + i)));
      old[i][1] = old_pair(a, Destination(a, feature(i0 + i) + 8, row(i0 + i)));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i0 + i >= count) continue;
      const float4 v = value(i0 + i);
      const Destination low(a, feature(i0 + i), row(i0 + i));
      if (silu_mul) {
        put(a, low, silu(v.x) * v.z, silu(v.y) * v.w, make_float2(0, 0));
        continue;
      }
      const bool add = a.output == LinearOutput::residual;
      put(a, low, v.x, v.y, add ? old[i][0] : make_float2(0, 0));
      put(a, Destination(a, feature(i0 + i) + 8, row(i0 + i)), v.z, v.w,
          add ? old[i][1] : make_float2(0, 0));
    }
  }
}

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ shared tiles

/// Leaves this CTA's sums for the CTA that began the tile. A CTA has at most one such part: of the
/// tile that its run of units starts in the middle of.
template <class S>
__device__ __forceinline__ void leave_part(const TileArguments& a, int used,
                                           const float (&sums)[S::kPer][S::kN / 2]) {
  float4* part = a.parts + blockIdx.x * (kPartBytes / sizeof(float4)) + threadIdx.x;
#pragma unroll
  for (int p = 0; p < S::kPer; ++p) {
#pragma unroll
    for (int j = 0; j < S::kN / 8; ++j) {
      const float* d = &sums[p][4 * j];
      if (j < used) {
        __stcg(part + (p * (S::kN / 8) + j) * S::kMultiplying, make_float4(d[0], d[1], d[2], d[3]));
      }
    }
  }
  __threadfence();
  hopper::sync_threads(1, S::kMultiplying);
  if (threadIdx.x == 0) {
    asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(a.flags + blockIdx.x) : "memory");
  }
}

/// Adds the parts of the CTAs behind this one, in their order, up to the tile's last unit. They are
/// resident or become so when an earlier kernel ends, and compute their part first: the wait ends.
template <class S>
__device__ __forceinline__ void add_parts(const TileArguments& a, int used, int tile_end,
                                          float (&sums)[S::kPer][S::kN / 2]) {
  const int first = static_cast<int>(blockIdx.x) + 1;
  int last = first;  // behind the last
  while (first_unit(a, last) < tile_end) ++last;
  for (int cta = first + static_cast<int>(threadIdx.x); cta < last; cta += S::kMultiplying) {
    int ready = 0;
    while (ready == 0) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(ready)
                   : "l"(a.flags + cta)
                   : "memory");
    }
    a.flags[cta] = 0;  // for the next launch, which waits for the end of this one
  }
  hopper::sync_threads(1, S::kMultiplying);
  constexpr int kUnroll = S::kPer * S::kN / 8 <= 4 ? 4 : 1;
#pragma unroll kUnroll
  for (int cta = first; cta < last; ++cta) {
    const float4* part = a.parts + cta * (kPartBytes / sizeof(float4)) + threadIdx.x;
#pragma unroll
    for (int p = 0; p < S::kPer; ++p) {
#pragma unroll
      for (int j = 0; j < S::kN / 8; ++j) {
        if (j >= used) continue;
        const float4 v = __ldcg(part + (p * (S::kN / 8) + j) * S::kMultiplying);
        float* d = &sums[p][4 * j];
        d[0] += v.x;
        d[1] += v.y;
        d[2] += v.z;
        d[3] += v.w;
      }
    }
  }
}

/// Ends a CTA's units [unit, stop) of a tile: stores it, adds what other CTAs have of it first, or
/// leaves this part to the one that began the tile.
template <class S>
__device__ __forceinline__ void finish_tile(const TileArguments& a, int tile, int unit, int stop,
                                            float (&sums)[S::kPer][S::kN / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = tile % a.row_tiles * S::kN;
  const int used = min(S::kN / 8, (a.rows - row0 + 7) / 8);  // blocks of 8 rows
  const int tile_end = (tile + 1) * a.chunks;
  if (unit != tile * a.chunks) return leave_part<S>(a, used, sums);
  if (stop < tile_end) add_parts<S>(a, used, tile_end, sums);
#pragma unroll
  for (int p = 0; p < S::kPer; ++p) {
    const int block = (warp / 4 * S::kPer + p) * 4 + warp % 4;
    const int feature = tile / a.row_tiles * S::kTile + block * 16;
    put_blocks<S::kN / 8>(
        a, used, [&](int) { return feature; }, [&](int j) { return row0 + 8 * j; },
        [&](int j) {
          const float* d = &sums[p][4 * j];
          return make_float4(d[0], d[1], d[2], d[3]);
        });
  }
}
#endif  // BATON_HOPPER

// ------------------------------------------------------------------ host

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// A row-major matrix of elements of element_bytes, read in boxes; what lies outside reads as zero.
/// No L2 promotion: with 256 bytes a stream of W takes 6 % longer, these kernels up to 1 %. Throws
/// CudaError.
inline CUtensorMap matrix_map(const void* data, CUtensorMapDataType type, int element_bytes,
                              int rows, int columns, int box_rows, int box_columns,
                              CUtensorMapSwizzle swizzle) {
  return encode_map<2>(data, type,
                       {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                       {static_cast<cuuint64_t>(columns) * static_cast<cuuint64_t>(element_bytes)},
                       {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)},
                       swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

/// A bf16 matrix read in boxes of 64 columns, swizzled as hopper::operand() wants them.
inline CUtensorMap tensor_map(const Bf16* data, int rows, int columns, int box_rows) {
  return matrix_map(data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, sizeof(Bf16), rows, columns, box_rows,
                    64, CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace baton::cuda
