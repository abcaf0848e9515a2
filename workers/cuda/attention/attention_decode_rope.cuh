// What rope_append() does, inside of the split attention kernel (attention_decode.cu): the CTA's
// warps share the row's heads out and leave them in shared memory, where all of them find their
// queries. The row's newest key and value go to the pool from there, and into the tile of the warp
// that has asked for their place before. That saves steps of few rows a kernel a layer.
//
// The code is short on purpose: it is run once a kernel, so it is fetched from far away. Written
// out for each warp's own fragments it took 2,500 to 3,000 cycles.
#pragma once

#include <cstdint>

#include "workers/cuda/attention/attention_decode.cuh"
#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/layer/rowwise.h"

namespace baton::cuda {

/// Of one KV head, for all warps.
template <int kDim, int kMostHeads>
struct RopedHeads {
  static constexpr int kStride = kDim + 8;  // spreads the banks; 16-byte aligned all the same
  std::uint16_t q[kMostHeads][kStride];
  std::uint16_t k[kDim];
  std::uint16_t v[kDim];
};

/// Elements 2 lane and 2 lane + 1 of either half of a head: what RoPE turns together. With kDim =
/// 64 the upper 16 lanes have none.
template <int kDim>
struct HeadWords {
  std::uint32_t low = 0, high = 0;

  static __device__ __forceinline__ bool has(int lane) { return lane < kDim / 4; }
  __device__ __forceinline__ void load(const void* head, int lane) {
    if (!has(lane)) return;
    low = static_cast<const std::uint32_t*>(head)[lane];
    high = static_cast<const std::uint32_t*>(head)[kDim / 4 + lane];
  }
  __device__ __forceinline__ void store(void* head, int lane) const {
    if (!has(lane)) return;
    static_cast<std::uint32_t*>(head)[lane] = low;
    static_cast<std::uint32_t*>(head)[kDim / 4 + lane] = high;
  }
};

/// One warp's part of a row's heads of one KV head: query u, and where the row's newest key is the
/// CTA's to write, that key and value, dealt out to the warps in turns.
template <int kDim>
class RowRope {
 public:
  __device__ __forceinline__ RowRope(const Rope& rope, int group)
      : rope_(rope), group_(group), units_(group) {
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
  }

  /// Before grid_wait(): reads what is never written.
  __device__ __forceinline__ void prepare(std::int64_t position, bool newest) {
    if (newest) units_ += 2;
    if (HeadWords<kDim>::has(lane_)) {
      const std::int64_t first = position * (kDim / 2);
      cos_ = __ldg(reinterpret_cast<const float2*>(rope_.cos + first) + lane_);
      sin_ = __ldg(reinterpret_cast<const float2*>(rope_.sin + first) + lane_);
    }
    if (rope_.q_norm == nullptr) return;
    q_norm_.load(rope_.q_norm, lane_);
    k_norm_.load(rope_.k_norm, lane_);
  }

  /// Asks for the warp's first head of `row`, one of qkv.
  __device__ __forceinline__ void ask(const std::uint16_t* row) {
    row_ = row;
    if (warp_ < units_) asked_.load(row_ + head_of(warp_) * kDim, lane_);
  }

  /// By all of the CTA's warps, which meet at the end. The newest key and value also go to `key`
  /// and
  /// `value`.
  template <int kMostHeads>
  __device__ __forceinline__ void run(RopedHeads<kDim, kMostHeads>& to, std::uint16_t* key,
                                      std::uint16_t* value) {
#pragma unroll 1
    for (int u = warp_; u < units_; u += kDecodeWarps) {
      HeadWords<kDim> next;
      if (u + kDecodeWarps < units_) next.load(row_ + head_of(u + kDecodeWarps) * kDim, lane_);
      apply(asked_, u);
      asked_.store(u < group_ ? to.q[u] : u == group_ ? to.k : to.v, lane_);
      if (u >= group_) asked_.store(u == group_ ? key : value, lane_);
      asked_ = next;
    }
    __syncthreads();
  }

 private:
  /// In a row of qkv, and of its bias.
  __device__ __forceinline__ int head_of(int u) const {
    const int kv_heads = static_cast<int>(gridDim.x), kv_head = static_cast<int>(blockIdx.x);
    return u < group_ ? kv_head * group_ + u : u * kv_heads + kv_head;
  }

  __device__ __forceinline__ void apply(HeadWords<kDim>& x, int u) const {
    float2 low = to_floats(x.low), high = to_floats(x.high);
    if (rope_.bias != nullptr) {
      HeadWords<kDim> bias;
      bias.load(rope_.bias + head_of(u) * kDim, lane_);
      const float2 l = to_floats(bias.low), h = to_floats(bias.high);
      low = {low.x + l.x, low.y + l.y};
      high = {high.x + h.x, high.y + h.y};
    }
    const bool is_q = u < group_;
    if (u <= group_) {  // not the value
      if (rope_.q_norm != nullptr) {
        norm(is_q ? q_norm_.low : k_norm_.low, is_q ? q_norm_.high : k_norm_.high, low, high);
      }
      const float2 l = low, h = high;
      low = {l.x * cos_.x - h.x * sin_.x, l.y * cos_.y - h.y * sin_.y};
      high = {h.x * cos_.x + l.x * sin_.x, h.y * cos_.y + l.y * sin_.y};
    }
    x.low = narrow(low.x, low.y);
    x.high = narrow(high.x, high.y);
  }

  __device__ __forceinline__ void norm(std::uint32_t low_weights, std::uint32_t high_weights,
                                       float2& low, float2& high) const {
    float squares = low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
    const float scale = rsqrtf(squares / static_cast<float>(kDim) + rope_.eps);
    const float2 l = to_floats(low_weights), h = to_floats(high_weights);
    low = {low.x * scale * l.x, low.y * scale * l.y};
    high = {high.x * scale * h.x, high.y * scale * h.y};
  }

  const Rope& rope_;
  int group_, units_, warp_, lane_;
  const std::uint16_t* row_ = nullptr;
  HeadWords<kDim> asked_;
  float2 cos_{}, sin_{};
  HeadWords<kDim> q_norm_, k_norm_;
};

/// Puts the newest key and value into a tile that was asked for before they were stored. They
/// belong to key `high` of its 16, and wherever a cursor that goes from key `low` to `high` was led
/// to it.
template <int kDim>
__device__ __forceinline__ void put_newest(const std::uint16_t* k, const std::uint16_t* v, int low,
                                           int high, int lane, TileFragments<kDim>& tile) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (max(g + 8 * r, low) < high) continue;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      tile.k[r][j] = *reinterpret_cast<const uint4*>(k + 32 * j + 8 * t);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (max(2 * t + r % 2 + 8 * (r / 2), low) < high) continue;
#pragma unroll
    for (int j = 0; j < kDim / 64; ++j) {
      tile.v[r][j] = *reinterpret_cast<const uint4*>(v + 64 * j + 8 * g);
    }
  }
}

}  // namespace baton::cuda
