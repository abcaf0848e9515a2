// Pieces of the streamed attention kernel (attention_decode_streamed.cu): how a warp's keys and
// values come to shared memory, and the products over them there. The pool is one matrix of rows of
// head_dim elements; the copy engine's 128-byte swizzle lays 16 keys so that ldmatrix reads them,
// and values transposed, without bank conflicts.
#pragma once

#include <algorithm>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/attention_decode.cuh"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"

namespace baton::cuda::streamed {

constexpr int kTile = kDecodeTile;
constexpr int kBoxColumns = 64;  // what the swizzle spans
constexpr int kBoxBytes = kTile * kBoxColumns * 2;
// Eight warps with three places each: faster than four with seven but for long rows
// (docs/gpu-kernels.md).
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRegisters = 128;
constexpr int kRingBytes = 96 * 1024;
/// More than half of a multiprocessor's, so that two CTAs never share one; little enough that a CTA
/// of the next linear layer (linear_few_rows.cu) fits beside.
constexpr int kSharedBytes = std::max(kRingBytes + 1024, 115 * 1024);

template <int kDim>
struct Tile {
  static constexpr int kBytes = kTile * kDim * 2;  // of keys or of values
  static constexpr int kPlaces = kRingBytes / kWarps / kBytes;
};

struct Arguments {
  const std::uint16_t* qkv;
  std::uint16_t* out;
  const std::int32_t* table;
  const DecodeItem* items;
  const std::int32_t* starts;
  int runs, kv_heads, group;
  // In rows of the pool's matrix
  int layer_row, part_rows, head_rows, block_rows;
  int tokens_per_block;
  float scale;              // with log2(e)
  std::uint32_t* counters;  // [slots, kv_heads]
  float4* sums;             // m and l of two heads, [slots, kv_heads, pairs of heads]
  float4* partials;         // [slots, kv_heads, kDim / 16, 8, pairs]
};

#ifdef BATON_HOPPER

__device__ __forceinline__ DecodeItem load_item(const DecodeItem* from) {
  const int4 low = load_early(from);
  const int4 high = load_early(reinterpret_cast<const int4*>(from) + 1);
  return DecodeItem{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

// ------------------------------------------------------------------ keys and values to shared
// memory

/// What a warp asks for: the keys and the values of each tile of its run in turn, an item behind
/// the other. Entries of the block table are read a lane each, and for the tiles after those of
/// now.
template <int kDim>
class Feed {
 public:
  __device__ __forceinline__ Feed(const Arguments& args, const CUtensorMap* pool, int head,
                                  int first, int last, std::uint8_t* ring, std::uint64_t* full)
      : a_(args), pool_(pool), ring_(ring), full_(full), item_(first), last_(last) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    head_row_ = a_.layer_row + head * a_.head_rows;
    policy_ = hopper::policy_evict_first();
    if (item_ < last_) coming_ = load_item(a_.items + item_);
    look_ahead();
  }

  /// Asks for the next 16 keys or values, if there are more, into the place behind the last.
  __device__ __forceinline__ void next() {
    if (at_ == now_.tiles) {
      now_ = ahead_;
      at_ = 0;
      if (now_.tiles == 0) return;
      row_ = head_row_ + now_.entry * a_.block_rows + first_key(now_) % a_.tokens_per_block;
      look_ahead();
    }
    if (!waited_ && now_.first + at_ >= now_.fresh) {
      grid_wait();
      waited_ = true;
    }
    const int row = __shfl_sync(~0U, row_, at_) + (values_ ? a_.part_rows : 0);
    if (lane_ == 0) {
      hopper::barrier_expect(&full_[place_], Tile<kDim>::kBytes);
      hopper::copy_box_3d(ring_ + place_ * Tile<kDim>::kBytes, pool_, row, 0, &full_[place_],
                          policy_);
    }
    place_ = place_ + 1 == Tile<kDim>::kPlaces ? 0 : place_ + 1;
    at_ += values_ ? 1 : 0;
    values_ = !values_;
  }

 private:
  /// Up to 32 tiles of one item.
  struct Batch {
    int first = 0;  // in tiles of the sequence
    int tiles = 0;
    int fresh = 0;  // from this tile on the step itself writes them
    int entry = 0;  // the lane's: the block of tile first + lane
  };
  __device__ __forceinline__ int first_key(const Batch& b) const {
    return (b.first + lane_) * kTile;
  }

  __device__ __forceinline__ void look_ahead() {
    if (tile_ == tile_end_) {
      if (item_ == last_) {
        ahead_.tiles = 0;
        return;
      }
      table_ = a_.table + coming_.first_block;
      tile_ = coming_.key_begin / kTile;
      tile_end_ = (coming_.key_end + kTile - 1) / kTile;
      fresh_ = coming_.fresh / kTile;
      if (++item_ < last_) coming_ = load_item(a_.items + item_);
    }
    ahead_.first = tile_;
    ahead_.tiles = min(32, tile_end_ - tile_);
    ahead_.fresh = fresh_;
    ahead_.entry = lane_ < ahead_.tiles ? table_[first_key(ahead_) / a_.tokens_per_block] : 0;
    tile_ += ahead_.tiles;
  }

  const Arguments& a_;
  const CUtensorMap* pool_;
  std::uint8_t* ring_;
  std::uint64_t* full_;
  std::uint64_t policy_;
  int lane_, head_row_;
  // Where looking ahead is: `coming_` is item `item_`
  int item_, last_;
  DecodeItem coming_;
  const std::int32_t* table_ = nullptr;
  int tile_ = 0, tile_end_ = 0, fresh_ = 0;
  // Where asking is
  Batch now_, ahead_;
  int row_ = 0;  // the lane's tile's in the pool's matrix
  int at_ = 0;
  int place_ = 0;
  bool values_ = false;
  bool waited_ = false;
};

/// The places of the ring in the order in which the warp reads them.
template <int kDim>
struct Place {
  int index = 0, parity = 0;
  __device__ __forceinline__ void go_on() {
    if (++index == Tile<kDim>::kPlaces) {
      index = 0;
      parity ^= 1;
    }
  }
};

// ------------------------------------------------------------------ products

/// Four 8 x 8 matrices; lane 8 i + r has the address of row r of the i-th.
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t address, std::uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

/// Where a lane finds its rows of the matrices that make up fragment i (16 elements) of a tile: the
/// swizzle moves chunk c of 16 bytes of key r to c ^ r % 8.
struct Fragments {
  std::uint32_t first;  // of fragment 0; bits 4 to 6 are the chunk's

  /// Matrices: keys 0-7 and 8-15 of the first eight elements, the same of the next eight.
  static __device__ __forceinline__ Fragments of_keys(int lane) {
    return {place(lane % 8 + lane / 8 % 2 * 8, lane / 16)};
  }
  /// Matrices: the first eight elements of keys 0-7, the next eight, the same of keys 8-15.
  static __device__ __forceinline__ Fragments of_values(int lane) {
    return {place(lane % 8 + lane / 16 * 8, lane / 8 % 2)};
  }
  __device__ __forceinline__ std::uint32_t at(std::uint32_t tile, int i) const {
    return tile + i / 4 * kBoxBytes + (first ^ (i % 4 * 32));
  }

 private:
  static __device__ __forceinline__ std::uint32_t place(int key, int chunk) {
    return key * kBoxColumns * 2 + ((chunk ^ key % 8) << 4);
  }
};

/// q of this KV head's group, as the second factor: element 16 i + 2 t, + 1 and those 8 further on
/// of head g; zeros behind the last head.
template <int kDim>
__device__ __forceinline__ void load_queries(const Arguments& a, int row, int kv_head, int lane,
                                             std::uint32_t (&q)[kDim / 16][2]) {
  const std::int64_t width = static_cast<std::int64_t>(a.group + 2) * a.kv_heads * kDim;
  const int head = lane / 4;
  const std::uint16_t* p = a.qkv + row * width + (kv_head * a.group + head) * kDim + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      q[i][half] =
          head < a.group ? *reinterpret_cast<const std::uint32_t*>(p + 16 * i + 8 * half) : 0;
    }
  }
}

/// s = K Q^T of a tile in shared memory, as scores() of attention_decode.cuh gives it.
template <int kDim>
__device__ __forceinline__ void tile_scores(std::uint32_t keys, const Fragments& fragments,
                                            const std::uint32_t (&q)[kDim / 16][2], float (&s)[4]) {
  float other[4] = {0, 0, 0, 0};
  s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
    std::uint32_t k[4];
    load_matrices(fragments.at(keys, i), k);
    mma(i % 2 == 0 ? s : other, k[0], k[1], k[2], k[3], q[i][0], q[i][1]);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) s[c] += other[c];
}

/// o += V^T P^T; o[i]: elements 16 i + g (the first two) and + 8 of heads 2t, 2t + 1. What `low`
/// and `high` mask of keys 2t, 2t + 1 and 2t + 8, 2t + 9 may be anything, NaN too.
template <int kDim, bool kMasked>
__device__ __forceinline__ void add_tile_values(std::uint32_t values, const Fragments& fragments,
                                                const std::uint32_t (&p)[2], std::uint32_t low,
                                                std::uint32_t high, WarpState<kDim, 1>& state) {
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
    std::uint32_t v[4];
    load_transposed(fragments.at(values, i), v);
    if constexpr (kMasked) {
      v[0] &= low;
      v[1] &= low;
      v[2] &= high;
      v[3] &= high;
    }
    mma(state.o[0][i / 4][i % 4], v[0], v[1], v[2], v[3], p[0], p[1]);
  }
}

/// Of keys 2t and 2t + 1 (and `from` further on): which are inside of [begin, end).
__device__ __forceinline__ std::uint32_t pair_mask(int key, int begin, int end) {
  const bool even = key >= begin && key < end;
  const bool odd = key + 1 >= begin && key + 1 < end;
  return (even ? 0xFFFFU : 0) | (odd ? 0xFFFF0000U : 0);
}

#endif  // BATON_HOPPER

}  // namespace baton::cuda::streamed
