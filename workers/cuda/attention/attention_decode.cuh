// Pieces of the split attention kernel (attention_decode.cu): fragments, loads, partial results.
//
// The products are turned around, S^T = K Q^T and O^T = V^T P^T, so that the keys fill the 16 rows
// of mma.m16n8k16 and the query heads of one KV head its 8 columns. What the instruction calls the
// k-th element is free as long as both factors agree: a lane's 16-byte load of eight neighbouring
// elements of a key (of a value) gives whole registers of the fragments, and nothing passes shared
// memory. With g = lane / 4 and t = lane % 4, a lane holds of a tile of 16 keys
//   keys g and g + 8,                 elements 32 j + 8 t ... + 7
//   values 2t, 2t + 1, 2t + 8, 2t + 9, elements 64 j + 8 g ... + 7
// and of the results: scores of keys g, g + 8 and the output's elements 64 j + 8 g ... + 7, both
// for heads 2t, 2t + 1.
#pragma once

#include <cstdint>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/mma.cuh"

namespace baton::cuda {

constexpr int kDecodeTile = 16;  // keys that a warp takes at a time
constexpr int kDecodeWarps = 4;

/// Keys and values are read once: past L1. Not .nc, since the step's own kernels wrote some of
/// them.
__device__ __forceinline__ uint4 load_once(const std::uint16_t* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

/// Kept in place by `volatile`: issued before the branch that may leave them unused.
__device__ __forceinline__ int4 load_early(const void* p) {
  int4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ std::int32_t load_early(const std::int32_t* p) {
  std::int32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

__device__ __forceinline__ void prefetch_l2(const std::uint16_t* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// A warp's 8 x 8 matrix (x: columns 2t, y: 2t + 1 of row g) in bf16, transposed.
__device__ __forceinline__ std::uint32_t transposed(float x, float y) {
  return transposed_pairs(narrow(x, y));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Over the eight lanes of equal t, to all of them.
__device__ __forceinline__ float max_over_keys(float x) {
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, step));
  return x;
}
__device__ __forceinline__ float sum_over_keys(float x) {
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

/// Four elements of the softmax-weighted sum over some keys of one head: o = sum of 2^(s - m) v and
/// l = sum of 2^(s - m), with m the largest s.
struct Partial {
  float4 o;
  float m, l;
};

/// a's keys and then b's. Written out operation by operation: whoever merges, the bits are the
/// same.
__device__ __forceinline__ Partial merged(const Partial& a, const Partial& b) {
  Partial c;
  c.m = fmaxf(a.m, b.m);
  const float x = exp2_fast(__fsub_rn(a.m, c.m));
  const float y = exp2_fast(__fsub_rn(b.m, c.m));
  c.l = __fmaf_rn(a.l, x, __fmul_rn(b.l, y));
  c.o.x = __fmaf_rn(a.o.x, x, __fmul_rn(b.o.x, y));
  c.o.y = __fmaf_rn(a.o.y, x, __fmul_rn(b.o.y, y));
  c.o.z = __fmaf_rn(a.o.z, x, __fmul_rn(b.o.z, y));
  c.o.w = __fmaf_rn(a.o.w, x, __fmul_rn(b.o.w, y));
  return c;
}

__device__ __forceinline__ void store_output(std::uint16_t* out, const Partial& p) {
  const float scale = __frcp_rn(p.l);
  *reinterpret_cast<uint2*>(out) =
      uint2{narrow(p.o.x * scale, p.o.y * scale), narrow(p.o.z * scale, p.o.w * scale)};
}

/// One warp's part of some keys, for kHeadTiles * 8 heads.
template <int kDim, int kHeadTiles>
struct WarpState {
  float o[kHeadTiles][kDim / 64][4][4];
  float m[kHeadTiles][2];
  float l[kHeadTiles][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) o[n][i / 4][i % 4][c] = 0;
      }
      m[n][0] = m[n][1] = -INFINITY;
      l[n][0] = l[n][1] = 0;
    }
  }
};

/// The fragments of 16 keys and values.
template <int kDim>
struct TileFragments {
  uint4 k[2][kDim / 32];
  uint4 v[4][kDim / 64];
};

/// s = K Q^T of a tile for eight heads: s[0], s[1] key g and heads 2t, 2t + 1; s[2], s[3] key g +
/// 8. q[j] is the lane's fragment of elements 32 j ... + 31.
template <int kDim, class Query>
__device__ __forceinline__ void scores(const TileFragments<kDim>& tile, const Query& q,
                                       float (&s)[4]) {
  float other[4] = {0, 0, 0, 0};
  s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
  for (int j = 0; j < kDim / 32; ++j) {
    const uint4 &a = tile.k[0][j], &b = tile.k[1][j];
    const uint4 to = q[j];
    mma(s, a.x, b.x, a.y, b.y, to.x, to.y);
    mma(other, a.z, b.z, a.w, b.w, to.z, to.w);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) s[c] += other[c];
}

/// o += V^T P^T; p0, p1 as transposed() gives them for keys 0-7 and 8-15.
template <int kDim>
__device__ __forceinline__ void add_values(const TileFragments<kDim>& tile, std::uint32_t p0,
                                           std::uint32_t p1, float (&o)[kDim / 64][4][4]) {
#pragma unroll
  for (int j = 0; j < kDim / 64; ++j) {
    const uint4 &a = tile.v[0][j], &b = tile.v[1][j], &c = tile.v[2][j], &d = tile.v[3][j];
    const auto pair = [&](float(&sum)[4], std::uint32_t x, std::uint32_t y, std::uint32_t z,
                          std::uint32_t w) {
      mma(sum, __byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632), __byte_perm(z, w, 0x5410),
          __byte_perm(z, w, 0x7632), p0, p1);
    };
    pair(o[j][0], a.x, b.x, c.x, d.x);
    pair(o[j][1], a.y, b.y, c.y, d.y);
    pair(o[j][2], a.z, b.z, c.z, d.z);
    pair(o[j][3], a.w, b.w, c.w, d.w);
  }
}

/// Online softmax: turns the scores s into probabilities against the new maximum and scales what
/// the state holds to it. `low`, `high`: whether keys g and g + 8 are seen.
template <int kDim, int kHeadTiles>
__device__ __forceinline__ void soften(WarpState<kDim, kHeadTiles>& state, int n, float scale,
                                       bool low, bool high, float (&s)[4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float x = low ? s[h] : -INFINITY;
    const float y = high ? s[2 + h] : -INFINITY;
    const float m = fmaxf(state.m[n][h], max_over_keys(fmaxf(x, y)) * scale);
    const float shrink = exp2_fast(state.m[n][h] - m);
    s[h] = exp2_fast(fmaf(x, scale, -m));
    s[2 + h] = exp2_fast(fmaf(y, scale, -m));
    state.m[n][h] = m;
    state.l[n][h] = fmaf(state.l[n][h], shrink, s[h] + s[2 + h]);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      state.o[n][i / 4][i % 4][h] *= shrink;
      state.o[n][i / 4][i % 4][2 + h] *= shrink;
    }
  }
}

}  // namespace baton::cuda
