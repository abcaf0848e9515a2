// Attention of single query tokens over the paged pool, split over the keys ("Flash-Decoding",
// pytorch.org/blog/flash-decoding). A CTA takes some keys of one row and KV head; its warps take
// tiles of 16 keys in turns, each asking for the next tile before it computes this one; they meet
// in shared memory. The pieces of a row meet in the workspace, where the last one to arrive merges
// them.
#include <cuda_runtime.h>

#include <type_traits>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/attention_any.h"
#include "workers/cuda/attention/attention_decode.cuh"
#include "workers/cuda/attention/attention_decode_queries.cuh"
#include "workers/cuda/attention/attention_decode_rope.cuh"
#include "workers/cuda/attention/attention_decode_slots.cuh"
#include "workers/cuda/attention/attention_decode_walk.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

using namespace split;

constexpr int kThreads = 32 * kDecodeWarps;
/// CTAs of a multiprocessor at the least.
template <int kDim, int kHeadTiles>
constexpr int kResident = split_attention_ctas(8 * kHeadTiles, kDim);

/// What the warps of a CTA leave for each other.
template <int kDim, int kHeadTiles, bool kRope>
struct Shared {
  static constexpr int kHeads = 8 * kHeadTiles;
  /// Fixed pieces that were taken in turn: those behind us. A thread reads what it wrote itself.
  struct Run {
    float4 o[kHeads * kDim / 4];
    float2 sums[kHeads * kDim / 4];
  };
  union {
    float4 o[kDecodeWarps][kHeads][kDim / 4 + 1];  // one more: spreads the banks
    SharedQueries<kDim> queries;                   // before, where kSharesQueries
  };
  float2 sums[kDecodeWarps][kHeads];
  alignas(16) std::conditional_t<kRope, RopedHeads<kDim, kHeads>, Run> scratch;
  bool last;
};

template <int kDim, int kHeadTiles, bool kRope>
__device__ __forceinline__ void store_state(WarpState<kDim, kHeadTiles>& state, int group,
                                            Shared<kDim, kHeadTiles, kRope>& shared) {
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

/// The warps' states, in their order. A warp without keys has m = -inf and weighs nothing; the
/// first warp always has some.
template <int kDim, int kHeadTiles, bool kRope>
__device__ __forceinline__ Partial merge_warps(const Shared<kDim, kHeadTiles, kRope>& shared,
                                               int head, int column) {
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

/// By the CTA whose piece of the row was the last to come.
template <int kDim>
__device__ __forceinline__ void merge_pieces(const Arguments& a, const Slots<kDim>& slots,
                                             int pieces, std::uint16_t* out) {
  for (int i = threadIdx.x; i < a.group * (kDim / 4); i += kThreads) {
    Partial p = slots.load(0, i);
#pragma unroll 8
    for (int piece = 1; piece < pieces; ++piece) p = merged(p, slots.load(piece, i));
    store_output(out + 4 * i, with_sink(a, i / (kDim / 4), p));
  }
}

/// One CTA for each item and KV head: grid (kv_heads, items). kRope: q, k and v have not been
/// through RoPE, and the newest key, item.fresh, is not in the pool; there are no fixed pieces
/// then. kPools: keys lie in several pools.
template <int kDim, int kHeadTiles, bool kWhole, bool kRope, bool kPools>
__device__ __forceinline__ void attend_item(const Arguments& a) {
  static_assert(kWhole || !kRope);
  __shared__ Shared<kDim, kHeadTiles, kRope> shared;
  const DecodeItem item = load_item(a.items + blockIdx.y);
  const int n_items = *a.n_items;
  const int shift = a.table_shift == nullptr ? 0 : load_early(a.table_shift);
  if (static_cast<int>(blockIdx.y) >= n_items) {
    // This grid must not end before the one before it; but places are for those who work.
    if (n_items == 0) grid_wait();
    return;
  }
  // Where every CTA has a place at once, the next kernel may begin to ask for its weights.
  const bool one_wave =
      n_items * static_cast<int>(gridDim.x) <= kResident<kDim, kHeadTiles> * a.multiprocessors;
  if (one_wave) grid_release();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint16_t* keys = a.keys + blockIdx.x * a.head_stride;
  std::uint16_t* values = keys + a.part_stride;
  const auto piece_end = [&](int begin) {
    return kRope || a.split == 0 ? item.key_end
                                 : min(item.key_end, (begin / a.split + 1) * a.split);
  };
  int begin = item.key_begin;
  int end = piece_end(begin);
  Cursor<kDim, kWhole, kPools> at(a, item, shift);
  at.start(begin, end);
  if constexpr (kWhole && !kPools) {
    // Only where latency is what counts: with more CTAs it costs more requests than it saves.
    if (n_items * static_cast<int>(gridDim.x) <= a.multiprocessors) {
      prefetch_tiles<kDim>(at, keys, values);
    }
  }
  const std::uint16_t* row = a.qkv + static_cast<std::int64_t>(item.row) * (a.group + 2) *
                                         static_cast<int>(gridDim.x) * kDim;
  const bool newest = kRope && item.key_end > item.fresh;
  const std::int64_t place = newest ? at.offset_of(item.fresh) : 0;
  RowRope<kDim> rope(a.rope, a.group);
  if (kRope) rope.prepare(item.fresh, newest);
  grid_wait();

  const std::uint16_t* heads = row + static_cast<int>(blockIdx.x) * a.group * kDim;
  constexpr bool kShares = kSharesQueries<kDim>;
  static_assert(!kShares || (!kRope && kHeadTiles == 1));
  uint4 q[kHeadTiles][kDim / 32];
  if constexpr (kRope) {
    rope.ask(row);
  } else if constexpr (!kShares) {
    load_queries<kDim, kHeadTiles>(heads, kDim, a.group, lane, q);
  }
  const Slots<kDim> slots(a, item.slot);
  std::uint16_t* out =
      a.out + (static_cast<std::int64_t>(item.row) * gridDim.x + blockIdx.x) * a.group * kDim;
  while (true) {
    TileFragments<kDim> tile;
    WarpState<kDim, kHeadTiles> state;
    if (at.n() > 0) {
      at.go(0);
      load_keys(at, keys, tile);
      load_values(at, values, tile);
    }
    if constexpr (kRope) {
      auto& turned = shared.scratch;
      rope.run(turned, keys + place, values + place);
      load_queries<kDim, kHeadTiles>(turned.q[0], turned.kStride, a.group, lane, q);
      // If it was not the warp's first tile, it will be asked for behind what has been stored.
      if (newest && at.n() == 1 && warp == (at.tiles - 1) % kDecodeWarps) {
        put_newest(turned.k, turned.v, at.low, at.high, lane, tile);
      }
    }
    state.clear();
    if constexpr (kShares) {
      shared.queries.load(heads, a.group);
      __syncthreads();
      const SharedFragments<kDim> fragments[1] = {{shared.queries, lane}};
      walk<kDim, kHeadTiles>(at, keys, values, fragments, tile, state);
      __syncthreads();  // what follows lies in the same place
    } else {
      walk<kDim, kHeadTiles>(at, keys, values, q, tile, state);
    }
    // Not earlier: the next grid's CTAs, waiting, would take the places that even out this one's.
    const bool done = kRope || end == item.key_end;
    if (done && !one_wave) grid_release();
    store_state(state, a.group, shared);
    __syncthreads();
    for (int i = threadIdx.x; i < a.group * (kDim / 4); i += kThreads) {
      Partial p = merge_warps(shared, i / (kDim / 4), i % (kDim / 4));
      if constexpr (!kRope) {
        auto& run = shared.scratch;
        if (begin != item.key_begin) {
          p = merged(Partial{run.o[i], run.sums[i].x, run.sums[i].y}, p);
        }
        if (!done) {
          run.o[i] = p.o;
          run.sums[i] = float2{p.m, p.l};
          continue;
        }
      }
      if (item.pieces == 1) {
        store_output(out + 4 * i, with_sink(a, i / (kDim / 4), p));
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
  if (item.pieces <= 1) return;  // 0: DecodeAttention::merge() ends it
  std::uint32_t* counter =
      a.counters + static_cast<std::int64_t>(item.slot) * gridDim.x + blockIdx.x;
  if (!arrive_last(counter, item.pieces, shared.last)) return;
  merge_pieces(a, slots, item.pieces, out);
}

template <int kDim, int kHeadTiles, bool kWhole, bool kRope>
__global__ void __launch_bounds__(kThreads, kResident<kDim, kHeadTiles>)
    decode_attention(const __grid_constant__ Arguments a) {
  attend_item<kDim, kHeadTiles, kWhole, kRope, false>(a);
}

template <int kDim, int kHeadTiles, bool kWhole>
__global__ void __launch_bounds__(kThreads, kResident<kDim, kHeadTiles>)
    decode_attention_over_pools(const __grid_constant__ Arguments a) {
  attend_item<kDim, kHeadTiles, kWhole, false, true>(a);
}

template <int kDim, int kHeadTiles, auto kKernel>
void launch_split(const Arguments& a, dim3 grid, Stream stream) {
  keep_l1<kKernel, kResident<kDim, kHeadTiles>>("decode attention");
  launch("decode attention", kKernel, grid, kThreads, 0, stream, a);
}
template <auto kKernel>
void load() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kKernel), "decode attention");
}
template <int kDim, int kHeadTiles>
auto pick_load(bool whole) {
  return whole ? load<decode_attention_over_pools<kDim, kHeadTiles, true>>
               : load<decode_attention_over_pools<kDim, kHeadTiles, false>>;
}
template <int kDim, int kHeadTiles, bool kMayRope = true>
auto pick_launch(bool whole, bool rope, bool pools) {
  if (pools) {
    return whole
               ? launch_split<kDim, kHeadTiles, decode_attention_over_pools<kDim, kHeadTiles, true>>
               : launch_split<kDim, kHeadTiles,
                              decode_attention_over_pools<kDim, kHeadTiles, false>>;
  }
  if constexpr (kMayRope) {
    if (rope) return launch_split<kDim, kHeadTiles, decode_attention<kDim, kHeadTiles, true, true>>;
  }
  return whole ? launch_split<kDim, kHeadTiles, decode_attention<kDim, kHeadTiles, true, false>>
               : launch_split<kDim, kHeadTiles, decode_attention<kDim, kHeadTiles, false, false>>;
}
template <int kDim>
auto pick_launch(int group, bool whole, bool rope, bool pools) {
  return group > 8 ? pick_launch<kDim, 2>(whole, rope, pools)
                   : pick_launch<kDim, 1>(whole, rope, pools);
}

}  // namespace

std::size_t DecodeAttention::workspace_bytes(int more_slots) const {
  const WorkspaceParts parts(options_.shape, split_slots() + more_slots);
  return parts.counters + parts.sums + parts.partials;
}

bool DecodeAttention::applies_rope() const {
  return tiles_ && options_.shape.head_dim <= 128 && options_.fixed_split == 0 &&
         options_.tokens_per_block % kTile == 0;
}

void DecodeAttention::load_over_pools() const {
  const HeadShape& s = options_.shape;
  if (!tiles_) return;
  const bool whole = options_.tokens_per_block % kTile == 0;
  const bool many = s.heads / s.kv_heads > 8;
  const auto load_it = s.head_dim == 256 ? pick_load<256, 1>(whole)
                       : s.head_dim == 128
                           ? (many ? pick_load<128, 2>(whole) : pick_load<128, 1>(whole))
                       : many ? pick_load<64, 2>(whole)
                              : pick_load<64, 1>(whole);
  load_it();
}

void DecodeAttention::run(const Bf16* qkv, Bf16* out, const KvLayerView& kv,
                          const std::int32_t* block_table, const DecodeWork& work, float scale,
                          void* workspace, Stream stream, const Rope* rope,
                          const AttentionRule& rule) const {
  if (work.launch == 0) return;
  if (rope != nullptr) {
    if (!applies_rope() || kv.pool_offsets != nullptr) {
      throw CudaError("decode attention: no RoPE in such steps");
    }
    check_rope(*rope);
  }
  const HeadShape& s = options_.shape;
  if (!tiles_) {
    return run_any_attention({qkv, out, kv, s, block_table, work.items, work.n_items, scale, rule},
                             work.launch, stream);
  }
  if ((rule.soft_cap > 0 && !takes_caps(s)) ||
      (rule.window > 0 && rule.window != options_.window)) {
    throw CudaError("decode attention: no capped scores, and no window but the plan's");
  }
  Arguments a{};
  WorkspaceParts(s, split_slots() + work.more_slots).show(workspace, a);
  a.qkv = reinterpret_cast<const std::uint16_t*>(qkv);
  a.out = reinterpret_cast<std::uint16_t*>(out);
  a.keys = reinterpret_cast<std::uint16_t*>(kv.pool + kv.layer_offset);
  a.part_stride = kv.part_stride;
  a.head_stride = kv.head_stride;
  a.block_stride = kv.block_stride;
  a.tokens_per_block = kv.tokens_per_block;
  a.table = block_table;
  a.table_shift = kv.table_shift;
  a.pool_offsets = kv.pool_offsets;
  a.items = work.items;
  a.n_items = work.n_items;
  constexpr float kLog2E = 1.4426950408889634F;
  a.scale = scale * kLog2E;
  if (rule.soft_cap > 0) {
    a.cap = rule.soft_cap * kLog2E;
    a.scale_to_cap = 2 * kLog2E * scale / rule.soft_cap;
  }
  a.group = s.heads / s.kv_heads;
  a.split = options_.fixed_split;
  a.multiprocessors = sm_count_;
  a.sinks = rule.sinks;
  if (rope != nullptr) a.rope = *rope;
  const bool whole = kv.tokens_per_block % kTile == 0;
  const bool pools = kv.pool_offsets != nullptr;
  const bool ropes = rope != nullptr;
  const auto launch_it = s.head_dim == 256   ? pick_launch<256, 1, false>(whole, ropes, pools)
                         : s.head_dim == 128 ? pick_launch<128>(a.group, whole, ropes, pools)
                                             : pick_launch<64>(a.group, whole, ropes, pools);
  launch_it(a, dim3(s.kv_heads, work.launch), stream);
}

}  // namespace baton::cuda
