// Attention of single query tokens over the paged pool, split over the keys ("Flash-Decoding",
// pytorch.org/blog/flash-decoding). A CTA takes some keys of one row and KV head; its warps take tiles
// of 16 keys in turns, each asking for the next tile before it computes this one; they meet in shared
// memory. The pieces of a row meet in the workspace, where the last one to arrive merges them.
#include <cuda_runtime.h>

#include "workers/cuda/attention.h"
#include "workers/cuda/attention_any.h"
#include "workers/cuda/attention_decode.cuh"
#include "workers/cuda/attention_decode_streamed.h"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 32 * kDecodeWarps;
/// CTAs of a multiprocessor at the least.
template <int kHeadTiles>
constexpr int kResident = kHeadTiles == 1 ? 3 : 2;
constexpr int kTile = kDecodeTile;

struct Arguments {
  const std::uint16_t* qkv;
  std::uint16_t* out;
  const std::uint16_t* keys;  // of this layer, block 0
  std::int64_t part_stride, head_stride, block_stride;
  int tokens_per_block;
  const std::int32_t* table;
  const DecodeItem* items;
  const std::int32_t* n_items;
  float scale;  // with log2(e)
  int group, split, few_ctas;
  std::uint32_t* counters;  // [slots, kv_heads]
  float2* sums;             // m and l, [slots, kv_heads, group]
  float4* partials;         // [slots, kv_heads, group, kDim / 4]
};

/// What the warps of a CTA leave for each other.
template <int kDim, int kHeadTiles>
struct Shared {
  static constexpr int kHeads = 8 * kHeadTiles;
  float4 o[kDecodeWarps][kHeads][kDim / 4 + 1];  // one more: spreads the banks
  float2 sums[kDecodeWarps][kHeads];
  // With fixed pieces taken in turn: those behind us. A thread reads what it wrote itself.
  float4 run_o[kHeads * kDim / 4];
  float2 run_sums[kHeads * kDim / 4];
  bool last;
};

/// Finds a warp's tiles of the keys [begin, end) in the pool: its i-th is tile warp + i * warps.
/// Places outside of the keys are led to the nearest key: whatever lies in a block behind the last
/// token (NaN, perhaps) is not touched.
template <int kDim, bool kWhole>
struct Cursor {
  const Arguments& a;
  const std::int32_t* table;  // of the row
  int warp, lane;
  int begin = 0, end = 0;
  int tiles = 0;              // of all warps
  std::int64_t mine = 0;      // kWhole: of tile 32 * (i / 32) + lane; else of key lane % 16
  std::int64_t here = 0;      // kWhole: of this tile
  int low = 0, high = 0;      // the first and the last key of the tile that is seen

  __device__ __forceinline__ Cursor(const Arguments& args, const DecodeItem& item)
      : a(args), table(args.table + item.first_block) {
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
    return table[block] * a.block_stride +
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

template <int kDim, bool kWhole>
__device__ __forceinline__ void load_keys(const Cursor<kDim, kWhole>& at, const std::uint16_t* keys,
                                          TileFragments<kDim>& tile) {
  const int g = at.lane / 4, t = at.lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::uint16_t* p = keys + at.row(g + 8 * r) + 8 * t;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) tile.k[r][j] = load_once(p + 32 * j);
  }
}

template <int kDim, bool kWhole>
__device__ __forceinline__ void load_values(const Cursor<kDim, kWhole>& at,
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

/// A warp's share of the keys that `at` walks over. The next tile's keys are asked for as soon as
/// this one's are spent, and so with the values: 8 KiB of a warp's are always on their way.
template <int kDim, int kHeadTiles, bool kWhole>
__device__ __forceinline__ void walk(Cursor<kDim, kWhole>& at, const std::uint16_t* keys,
                                     const std::uint16_t* values,
                                     const uint4 (&q)[kHeadTiles][kDim / 32], float scale,
                                     TileFragments<kDim>& tile,
                                     WarpState<kDim, kHeadTiles>& state) {
  const int n = at.n();
  const int g = at.lane / 4;
  for (int i = 0; i < n; ++i) {
    const bool low = g >= at.low && g <= at.high;
    const bool high = g + 8 >= at.low && g + 8 <= at.high;
    float s[kHeadTiles][4];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) scores<kDim>(tile, q[h], s[h]);
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

/// The queries of this KV head's group; zeros behind the last.
template <int kDim, int kHeadTiles>
__device__ __forceinline__ void load_queries(const Arguments& a, int row, int lane,
                                             uint4 (&q)[kHeadTiles][kDim / 32]) {
  const int kv_head = blockIdx.x, kv_heads = gridDim.x;
  const std::int64_t width = static_cast<std::int64_t>(a.group + 2) * kv_heads * kDim;
  const std::uint16_t* p = a.qkv + row * width + kv_head * a.group * kDim;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
    const int head = 8 * n + lane / 4;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      q[n][j] = uint4{0, 0, 0, 0};
      if (head < a.group) {
        q[n][j] = *reinterpret_cast<const uint4*>(p + head * kDim + 32 * j + 8 * (lane % 4));
      }
    }
  }
}

template <int kDim, int kHeadTiles>
__device__ __forceinline__ void store_state(WarpState<kDim, kHeadTiles>& state, int group,
                                            Shared<kDim, kHeadTiles>& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float l = sum_over_keys(state.l[n][h]);
      const int head = 8 * n + 2 * t + h;
      if (head >= group) continue;
      if (g == 0) shared.sums[warp][head] = float2{state.m[n][h], l};
#pragma unroll
      for (int j = 0; j < kDim / 64; ++j) {
        const auto& o = state.o[n][j];
        float4* to = &shared.o[warp][head][16 * j + 2 * g];
        to[0] = float4{o[0][h], o[0][2 + h], o[1][h], o[1][2 + h]};
        to[1] = float4{o[2][h], o[2][2 + h], o[3][h], o[3][2 + h]};
      }
    }
  }
}

/// The warps' states, in their order. A warp without keys has m = -inf and weighs nothing; the first
/// warp always has some.
template <int kDim, int kHeadTiles>
__device__ __forceinline__ Partial merge_warps(const Shared<kDim, kHeadTiles>& shared, int head,
                                               int column) {
  Partial p{shared.o[0][head][column], shared.sums[0][head].x, shared.sums[0][head].y};
#pragma unroll
  for (int w = 1; w < kDecodeWarps; ++w) {
    const float2 sums = shared.sums[w][head];
    p = merged(p, Partial{shared.o[w][head][column], sums.x, sums.y});
  }
  return p;
}

/// Counts this CTA's arrival; true for the last of the row's pieces, which then sees all of them.
__device__ __forceinline__ bool arrive_last(std::uint32_t* counter, int pieces, bool& last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    last = before == static_cast<std::uint32_t>(pieces - 1);
    if (last) *counter = 0;  // for the next layer
  }
  __syncthreads();
  return last;
}

/// A row's place in the split workspace: piece i of element `index` of the group's output.
template <int kDim>
struct Slots {
  float4* o;
  float2* sums;
  std::int64_t o_stride, sums_stride;

  __device__ __forceinline__ Slots(const Arguments& a, int slot) {
    const std::int64_t at = static_cast<std::int64_t>(slot) * gridDim.x + blockIdx.x;
    sums = a.sums + at * a.group;
    o = a.partials + at * a.group * (kDim / 4);
    sums_stride = static_cast<std::int64_t>(gridDim.x) * a.group;
    o_stride = sums_stride * (kDim / 4);
  }
  __device__ __forceinline__ void store(int piece, int index, const Partial& p) const {
    o[piece * o_stride + index] = p.o;
    if (index % (kDim / 4) == 0) {
      sums[piece * sums_stride + index / (kDim / 4)] = float2{p.m, p.l};
    }
  }
  __device__ __forceinline__ Partial load(int piece, int index) const {
    const float2 s = __ldcg(sums + piece * sums_stride + index / (kDim / 4));
    return Partial{__ldcg(o + piece * o_stride + index), s.x, s.y};
  }
};

__device__ __forceinline__ DecodeItem load_item(const DecodeItem* from) {
  const int4 low = load_early(from);
  const int4 high = load_early(reinterpret_cast<const int4*>(from) + 1);
  return DecodeItem{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

/// One CTA for each item and KV head: grid (kv_heads, items).
template <int kDim, int kHeadTiles, bool kWhole>
__global__ void __launch_bounds__(kThreads, kResident<kHeadTiles>)
    decode_attention(const __grid_constant__ Arguments a) {
  __shared__ Shared<kDim, kHeadTiles> shared;
  const DecodeItem item = load_item(a.items + blockIdx.y);
  const int n_items = *a.n_items;
  if (static_cast<int>(blockIdx.y) >= n_items) {
    grid_wait();  // or this grid could end before the one before it
    return;
  }
  // Where every CTA has a place at once, the next kernel may begin to ask for its weights.
  const bool one_wave = n_items * static_cast<int>(gridDim.x) <= kResident<kHeadTiles> * a.few_ctas;
  if (one_wave) grid_release();
  const int lane = threadIdx.x % 32;
  const std::uint16_t* keys = a.keys + blockIdx.x * a.head_stride;
  const std::uint16_t* values = keys + a.part_stride;
  const auto piece_end = [&](int begin) {
    return a.split == 0 ? item.key_end : min(item.key_end, (begin / a.split + 1) * a.split);
  };
  int begin = item.key_begin;
  int end = piece_end(begin);
  Cursor<kDim, kWhole> at(a, item);
  at.start(begin, end);
  if (kWhole && n_items * static_cast<int>(gridDim.x) <= a.few_ctas) {
    // Keys and values of a tile are dense: kDim / 4 lines each. A hint, so before grid_wait(). Only
    // where latency is what counts: with more CTAs it costs more requests than it saves.
    const std::int64_t first = __shfl_sync(~0U, at.mine, 0);
    const std::int64_t second = __shfl_sync(~0U, at.mine, 1);
    if (lane < kDim / 4 && at.n() > 0) {
      prefetch_l2(keys + first + 64 * lane);
      prefetch_l2(values + first + 64 * lane);
    }
    if (lane < kDim / 4 && at.n() > 1) {
      prefetch_l2(keys + second + 64 * lane);
      prefetch_l2(values + second + 64 * lane);
    }
  }
  grid_wait();

  uint4 q[kHeadTiles][kDim / 32];
  load_queries<kDim, kHeadTiles>(a, item.row, lane, q);
  const Slots<kDim> slots(a, item.slot);
  std::uint16_t* out = a.out + (static_cast<std::int64_t>(item.row) * gridDim.x + blockIdx.x) *
                                   a.group * kDim;
  while (true) {
    TileFragments<kDim> tile;
    WarpState<kDim, kHeadTiles> state;
    if (at.n() > 0) {
      at.go(0);
      load_keys(at, keys, tile);
      load_values(at, values, tile);
    }
    state.clear();
    walk<kDim, kHeadTiles, kWhole>(at, keys, values, q, a.scale, tile, state);
    // Not earlier: the next grid's CTAs, waiting, would take the places that even out this one's.
    const bool done = end == item.key_end;
    if (done && !one_wave) grid_release();
    store_state<kDim, kHeadTiles>(state, a.group, shared);
    __syncthreads();
    for (int i = threadIdx.x; i < a.group * (kDim / 4); i += kThreads) {
      Partial p = merge_warps<kDim, kHeadTiles>(shared, i / (kDim / 4), i % (kDim / 4));
      if (begin != item.key_begin) {
        p = merged(Partial{shared.run_o[i], shared.run_sums[i].x, shared.run_sums[i].y}, p);
      }
      if (!done) {
        shared.run_o[i] = p.o;
        shared.run_sums[i] = float2{p.m, p.l};
      } else if (item.pieces == 1) {
        store_output(out + 4 * i, p);
      } else {
        slots.store(item.piece, i, p);
      }
    }
    if (done) break;
    __syncthreads();
    begin = end;
    end = piece_end(begin);
    at.start(begin, end);
  }
  if (item.pieces == 1) return;
  std::uint32_t* counter =
      a.counters + static_cast<std::int64_t>(item.slot) * gridDim.x + blockIdx.x;
  if (!arrive_last(counter, item.pieces, shared.last)) return;
  for (int i = threadIdx.x; i < a.group * (kDim / 4); i += kThreads) {
    Partial p = slots.load(0, i);
#pragma unroll 8
    for (int piece = 1; piece < item.pieces; ++piece) p = merged(p, slots.load(piece, i));
    store_output(out + 4 * i, p);
  }
}

template <int kDim>
auto pick_kernel(int group, bool whole) {
  if (group > 8) return whole ? decode_attention<kDim, 2, true> : decode_attention<kDim, 2, false>;
  return whole ? decode_attention<kDim, 1, true> : decode_attention<kDim, 1, false>;
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// How much of the workspace each of its parts takes: counters, sums, partials.
struct WorkspaceParts {
  std::size_t counters, sums, partials;
  WorkspaceParts(const HeadShape& s, int slots)
      : counters(aligned(sizeof(std::uint32_t) * slots * s.kv_heads)),
        sums(aligned(sizeof(float2) * slots * even_heads(s))),
        partials(sizeof(float) * slots * even_heads(s) * s.head_dim) {}
  /// The streamed kernel stores the heads of a KV head in pairs.
  static std::size_t even_heads(const HeadShape& s) {
    return static_cast<std::size_t>(s.heads / s.kv_heads + 1) / 2 * 2 * s.kv_heads;
  }
};

}  // namespace

std::size_t DecodeAttention::workspace_bytes() const {
  const WorkspaceParts parts(options_.shape, split_slots());
  return parts.counters + parts.sums + parts.partials;
}

void DecodeAttention::run(const Bf16* qkv, Bf16* out, const KvLayerView& kv,
                          const std::int32_t* block_table, const DecodeWork& work, float scale,
                          void* workspace, Stream stream) const {
  if (work.launch == 0) return;
  const HeadShape& s = options_.shape;
  if (!tiles_) {
    return run_any_attention({qkv, out, kv, s, block_table, work.items, work.counts, scale},
                             work.launch, stream);
  }
  const WorkspaceParts parts(s, split_slots());
  auto* memory = static_cast<std::byte*>(workspace);
  auto* const counters = reinterpret_cast<std::uint32_t*>(memory);
  std::byte* const sums = memory + parts.counters;
  std::byte* const partials = sums + parts.sums;
  if (streams(work.rows)) {
    return run_streamed_attention({qkv, out, kv, s, block_table, work.items, work.counts, runs_,
                                   scale, counters, sums, partials},
                                  stream);
  }
  Arguments a{};
  a.qkv = reinterpret_cast<const std::uint16_t*>(qkv);
  a.out = reinterpret_cast<std::uint16_t*>(out);
  a.keys = reinterpret_cast<const std::uint16_t*>(kv.pool + kv.layer_offset);
  a.part_stride = kv.part_stride;
  a.head_stride = kv.head_stride;
  a.block_stride = kv.block_stride;
  a.tokens_per_block = kv.tokens_per_block;
  a.table = block_table;
  a.items = work.items;
  a.n_items = work.counts;
  a.scale = scale * 1.4426950408889634F;
  a.group = s.heads / s.kv_heads;
  a.split = options_.fixed_split;
  a.few_ctas = sm_count_;
  a.counters = counters;
  a.sums = reinterpret_cast<float2*>(sums);
  a.partials = reinterpret_cast<float4*>(partials);
  const bool whole = kv.tokens_per_block % kTile == 0;
  const dim3 grid(s.kv_heads, work.launch);
  launch("decode attention",
         s.head_dim == 64 ? pick_kernel<64>(a.group, whole) : pick_kernel<128>(a.group, whole),
         grid, kThreads, 0, stream, a);
}

}  // namespace baton::cuda
