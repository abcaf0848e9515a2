// Attention of many single query tokens over the paged pool, as one unbroken stream. Every warp of
// a grid of one CTA a multiprocessor takes a run of rows of one KV head, all runs equally long
// (plan_runs), and has a ring of tiles in shared memory of its own: the copy engine fills a place
// as soon as the warp has read it, across the borders of rows. So the memory never waits for a row
// to begin or to end, and no warp waits for another. The ring is filled before grid_wait(), up to
// the first key that this step writes. A row that several runs share is merged by the warp that
// comes last.
#include <cuda_runtime.h>

#include "workers/cuda/attention/attention_decode_merge.cuh"
#include "workers/cuda/attention/attention_decode_stream.cuh"
#include "workers/cuda/attention/attention_decode_streamed.h"
#include "workers/cuda/current_device.h"
#include "workers/cuda/shared_memory.h"
#include "workers/cuda/tensor_map.h"

namespace baton::cuda {
namespace {

using namespace streamed;

#ifdef BATON_HOPPER

// ------------------------------------------------------------------ a warp's run

template <int kDim>
__device__ __forceinline__ void take_tile(const Arguments& a, const DecodeItem& item, int tile,
                                          int lane, std::uint8_t* ring, std::uint64_t* full,
                                          const std::uint32_t (&q)[kDim / 16][2], Feed<kDim>& feed,
                                          Place<kDim>& place, WarpState<kDim, 1>& state) {
  const std::uint32_t base = hopper::shared_address(ring);
  const int g = lane / 4, t = lane % 4;
  const int first = tile * kTile;
  const int begin = item.key_begin - first, end = item.key_end - first;

  hopper::barrier_wait(&full[place.index], place.parity);
  float s[4];
  tile_scores<kDim>(base + place.index * Tile<kDim>::kBytes, Fragments::of_keys(lane), q, s);
  __syncwarp();
  feed.next();
  place.go_on();

  soften<kDim, 1>(state, 0, a.scale, g >= begin && g < end, g + 8 >= begin && g + 8 < end, s);
  const std::uint32_t p[2] = {transposed(s[0], s[1]), transposed(s[2], s[3])};

  hopper::barrier_wait(&full[place.index], place.parity);
  const std::uint32_t values = base + place.index * Tile<kDim>::kBytes;
  const Fragments fragments = Fragments::of_values(lane);
  if (begin <= 0 && end >= kTile) {
    add_tile_values<kDim, false>(values, fragments, p, 0, 0, state);
  } else {
    add_tile_values<kDim, true>(values, fragments, p, pair_mask(2 * t, begin, end),
                                pair_mask(2 * t + 8, begin, end), state);
  }
  __syncwarp();
  feed.next();
  place.go_on();
}

#endif  // BATON_HOPPER

template <int kDim>
__global__ void __launch_bounds__(kThreads, 65536 / kRegisters / kThreads)
    streamed_attention(const __grid_constant__ CUtensorMap pool,
                       const __grid_constant__ Arguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];
  constexpr int kPlaces = Tile<kDim>::kPlaces;
  __shared__ std::uint64_t barriers[kWarps][kPlaces];
  // The next kernel's CTAs spread evenly beside or behind these: they may come at once.
  grid_release();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Few runs go to as many multiprocessors as there are.
  const int unit = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int run = unit / a.kv_heads;
  const int kv_head = unit % a.kv_heads;
  const int first = run < a.runs ? a.starts[run] : 0;
  const int last = run < a.runs ? a.starts[run + 1] : 0;
  if (first == last) {
    grid_wait();  // or this grid could end before the one before it
    return;
  }
  const std::uint32_t base = hopper::shared_address(dynamic);
  std::uint8_t* const ring =
      dynamic + ((base + 1023) / 1024 * 1024 - base) + warp * kPlaces * Tile<kDim>::kBytes;
  std::uint64_t* const full = barriers[warp];
  if (lane == 0) {
    for (int i = 0; i < kPlaces; ++i) hopper::barrier_init(&full[i], 1);
    hopper::barrier_init_done();
    hopper::prefetch_map(&pool);
  }
  __syncwarp();
  Feed<kDim> feed(a, &pool, kv_head, first, last, ring, full);
  for (int i = 0; i < kPlaces; ++i) feed.next();
  grid_wait();

  Place<kDim> place;
  DecodeItem coming = load_item(a.items + first);
  for (int i = first; i < last; ++i) {
    const DecodeItem item = coming;
    if (i + 1 < last) coming = load_item(a.items + i + 1);
    std::uint32_t q[kDim / 16][2];
    load_queries<kDim>(a, item.row, kv_head, lane, q);
    WarpState<kDim, 1> state;
    state.clear();
    const int tile_end = (item.key_end + kTile - 1) / kTile;
    for (int tile = item.key_begin / kTile; tile < tile_end; ++tile) {
      take_tile<kDim>(a, item, tile, lane, ring, full, q, feed, place, state);
    }
    Sums sums;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sums.m[h] = state.m[0][h];
      sums.l[h] = sum_over_keys(state.l[0][h]);
    }
    if (item.pieces == 1 || merge_pieces<kDim>(a, item, kv_head, lane, sums, state)) {
      store_row<kDim>(a, item.row, kv_head, lane, sums, state);
    }
  }
#endif
}

// ------------------------------------------------------------------ host

/// The pool as a matrix of rows of kDim elements, read in boxes of 16 rows as 64-column halves.
/// Without L2 promotion: that to 256 bytes cost 7 % of the speed.
template <int kDim>
CUtensorMap pool_map(const Bf16* pool) {
  constexpr cuuint64_t kRows = std::uint64_t{1} << 31;  // what a coordinate reaches
  return encode_map<3>(
      pool, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, {kBoxColumns, kRows, kDim / kBoxColumns},
      {kDim * sizeof(Bf16), kBoxColumns * sizeof(Bf16)}, {kBoxColumns, kTile, kDim / kBoxColumns},
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

template <int kDim>
void launch_streamed(const StreamedAttention& call, const Arguments& a, Stream stream) {
  take_shared_memory<streamed_attention<kDim>>(kSharedBytes, "streamed attention");
  launch("streamed attention", streamed_attention<kDim>, multiprocessors(), kThreads, kSharedBytes,
         stream, pool_map<kDim>(call.kv.pool), a);
}

}  // namespace

int streamed_attention_runs(const HeadShape& shape, int tokens_per_block) {
  if (shape.head_dim != 64 && shape.head_dim != 128) return 0;
  if (shape.heads / shape.kv_heads > 8 || tokens_per_block % kTile != 0) return 0;
  if (!is_hopper()) return 0;
  return multiprocessors() * kWarps / shape.kv_heads;
}

void run_streamed_attention(const StreamedAttention& call, Stream stream) {
  const int dim = call.shape.head_dim;
  const auto rows = [dim](std::int64_t elements) { return static_cast<int>(elements / dim); };
  Arguments a{};
  a.qkv = reinterpret_cast<const std::uint16_t*>(call.qkv);
  a.out = reinterpret_cast<std::uint16_t*>(call.out);
  a.table = call.table;
  a.items = call.items;
  a.starts = call.starts;
  a.runs = call.runs;
  a.kv_heads = call.shape.kv_heads;
  a.group = call.shape.heads / call.shape.kv_heads;
  a.layer_row = rows(call.kv.layer_offset);
  a.part_rows = rows(call.kv.part_stride);
  a.head_rows = rows(call.kv.head_stride);
  a.block_rows = rows(call.kv.block_stride);
  a.tokens_per_block = call.kv.tokens_per_block;
  a.scale = call.scale * 1.4426950408889634F;
  a.counters = call.counters;
  a.sums = static_cast<float4*>(call.sums);
  a.partials = static_cast<float4*>(call.partials);
  if (dim == 64) {
    launch_streamed<64>(call, a, stream);
  } else {
    launch_streamed<128>(call, a, stream);
  }
}

}  // namespace baton::cuda
