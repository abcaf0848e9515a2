// How a warp of the split attention kernel (attention_decode.cu) goes over its keys and values in
// the paged pool: its tiles, their loads, and the products over them.
#pragma once

#include <cstdint>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/attention_decode.cuh"
#include "workers/cuda/attention/pool_block.cuh"

namespace baton::cuda::split {

constexpr int kTile = kDecodeTile;

struct Arguments {
  const std::uint16_t* qkv;
  std::uint16_t* out;
  std::uint16_t* keys;  // of this layer, block 0
  std::int64_t part_stride, head_stride, block_stride;
  int tokens_per_block;
  const std::int32_t* table;
  const std::int32_t* table_shift;   // null: 0
  const std::int64_t* pool_offsets;  // of kernels over several pools
  const DecodeItem* items;
  const std::int32_t* n_items;
  float scale;  // with log2(e)
  float cap, scale_to_cap;  // above 0: scores are capped, see cap_scores()
  int group, split, multiprocessors;
  std::uint32_t* counters;  // [slots, kv_heads]
  float2* sums;             // m and l, [slots, kv_heads, group]
  float4* partials;         // [slots, kv_heads, group, kDim / 4]
  const float* sinks;       // [heads]; null: none
  Rope rope;                // of the kernels that apply it
};

/// Finds a warp's tiles of the keys [begin, end) in the pool: its i-th is tile warp + i * warps.
/// Places outside of the keys are led to the nearest key: whatever lies in a block behind the last
/// token (NaN, perhaps) is not touched. kPools: the table leads to several pools.
template <int kDim, bool kWhole, bool kPools>
struct Cursor {
  const Arguments& a;
  const std::int32_t* table;  // of the row
  int warp, lane;
  int begin = 0, end = 0;
  int tiles = 0;          // of all warps
  std::int64_t mine = 0;  // kWhole: of tile 32 * (i / 32) + lane; else of key lane % 16
  std::int64_t here = 0;  // kWhole: of this tile
  int low = 0, high = 0;  // the first and the last key of the tile that is seen

  __device__ __forceinline__ Cursor(const Arguments& args, const DecodeItem& item, int shift)
      : a(args), table(args.table + shift + item.first_block) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
  }
  __device__ __forceinline__ void start(int from, int to) {
    begin = from;
    end = to;
    tiles = (end + kTile - 1) / kTile - begin / kTile;
    if constexpr (kWhole) find_tiles(0);
  }
  __device__ __forceinline__ int n() const {
    return (tiles - warp + kDecodeWarps - 1) / kDecodeWarps;
  }
  __device__ __forceinline__ int first_key(int i) const {
    return (begin / kTile + warp + i * kDecodeWarps) * kTile;
  }
  __device__ __forceinline__ std::int64_t offset_of(int key) const {
    const int block = key / a.tokens_per_block;
    return offset_of_block<kPools>(table[block], a.block_stride, a.pool_offsets) +
           static_cast<std::int64_t>(key - block * a.tokens_per_block) * kDim;
  }
  __device__ __forceinline__ void find_tiles(int i) {
    mine = i + lane < n() ? offset_of(first_key(i + lane)) : 0;
  }
  /// Goes to the warp's i-th tile; i grows by one.
  __device__ __forceinline__ void go(int i) {
    const int first = first_key(i);
    low = max(begin - first, 0);
    high = min(end - first, kTile) - 1;
    if constexpr (kWhole) {
      if (i > 0 && i % 32 == 0) find_tiles(i);
      here = __shfl_sync(~0U, mine, i % 32);
    } else {
      mine = offset_of(first + min(max(lane % kTile, low), high));
    }
  }
  __device__ __forceinline__ std::int64_t row(int r) const {
    if constexpr (kWhole) return here + min(max(r, low), high) * kDim;
    return __shfl_sync(~0U, mine, r);
  }
};

/// A hint, so before grid_wait(): the warp's first two tiles to L2. Keys and values of a tile are
/// dense: kDim / 4 lines each.
template <int kDim>
__device__ __forceinline__ void prefetch_tiles(const Cursor<kDim, true, false>& at,
                                               const std::uint16_t* keys,
                                               const std::uint16_t* values) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t tile = __shfl_sync(~0U, at.mine, i);
    if (at.n() <= i) continue;
    for (int line = at.lane; line < kDim / 4; line += 32) {
      prefetch_l2(keys + tile + 64 * line);
      prefetch_l2(values + tile + 64 * line);
    }
  }
}

template <int kDim, bool kWhole, bool kPools>
__device__ __forceinline__ void load_keys(const Cursor<kDim, kWhole, kPools>& at,
                                          const std::uint16_t* keys, TileFragments<kDim>& tile) {
  const int g = at.lane / 4, t = at.lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::uint16_t* p = keys + at.row(g + 8 * r) + 8 * t;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) tile.k[r][j] = load_once(p + 32 * j);
  }
}

template <int kDim, bool kWhole, bool kPools>
__device__ __forceinline__ void load_values(const Cursor<kDim, kWhole, kPools>& at,
                                            const std::uint16_t* values,
                                            TileFragments<kDim>& tile) {
  const int g = at.lane / 4, t = at.lane % 4;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const std::uint16_t* p = values + at.row(2 * t + r % 2 + 8 * (r / 2)) + 8 * g;
#pragma unroll
    for (int j = 0; j < kDim / 64; ++j) tile.v[r][j] = load_once(p + 64 * j);
  }
}

/// cap * tanh(scale * s / soft_cap) with log2(e) in `cap`; `scale_to_cap` is 2 log2(e) scale /
/// soft_cap: tanh(x) = 1 - 2 / (1 + exp(2x)).
__device__ __forceinline__ void cap_scores(const Arguments& a, float (&s)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    s[c] = a.cap * (1.0F - __fdividef(2.0F, 1.0F + exp2_fast(fminf(s[c] * a.scale_to_cap, 64.0F))));
  }
}

/// A warp's share of the keys that `at` walks over. The next tile's keys are asked for as soon as
/// this one's are spent, and so with the values: kDim * 64 bytes at most of a warp's are on their
/// way. `q`, [kHeadTiles], is what scores() takes. Heads of 256 alone may have capped scores.
template <int kDim, int kHeadTiles, bool kWhole, bool kPools, class Query>
__device__ __forceinline__ void walk(Cursor<kDim, kWhole, kPools>& at, const std::uint16_t* keys,
                                     const std::uint16_t* values, const Query (&q)[kHeadTiles],
                                     TileFragments<kDim>& tile,
                                     WarpState<kDim, kHeadTiles>& state) {
  const int n = at.n();
  const int g = at.lane / 4;
  const bool capped = kDim > 128 && at.a.cap > 0;
  const float scale = capped ? 1.0F : at.a.scale;
  for (int i = 0; i < n; ++i) {
    const bool low = g >= at.low && g <= at.high;
    const bool high = g + 8 >= at.low && g + 8 <= at.high;
    float s[kHeadTiles][4];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      scores<kDim>(tile, q[h], s[h]);
      if (capped) cap_scores(at.a, s[h]);
    }
    if (i + 1 < n) {
      at.go(i + 1);
      load_keys(at, keys, tile);
    }
    std::uint32_t p[kHeadTiles][2];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      soften<kDim, kHeadTiles>(state, h, scale, low, high, s[h]);
      p[h][0] = transposed(s[h][0], s[h][1]);
      p[h][1] = transposed(s[h][2], s[h][3]);
    }
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) add_values<kDim>(tile, p[h][0], p[h][1], state.o[h]);
    if (i + 1 < n) load_values(at, values, tile);
  }
}

}  // namespace baton::cuda::split
