// Where the warps of the split attention kernel (attention_decode.cu) have a KV head's queries: in
// registers, as the fragments that scores() takes, or, where a tile's keys and values fill those,
// in shared memory, from where each fragment is read when its turn comes.
#pragma once

#include <cstdint>

#include "workers/cuda/attention/attention_decode.cuh"

namespace baton::cuda::split {

template <int kDim>
constexpr bool kSharesQueries = kDim > 128;

/// The queries of this KV head's group, `stride` from head to head; zeros behind the last.
template <int kDim, int kHeadTiles>
__device__ __forceinline__ void load_queries(const std::uint16_t* heads, int stride, int group,
                                             int lane, uint4 (&q)[kHeadTiles][kDim / 32]) {
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
    const int head = 8 * n + lane / 4;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      q[n][j] = uint4{0, 0, 0, 0};
      if (head < group) {
        q[n][j] = *reinterpret_cast<const uint4*>(heads + head * stride + 32 * j + 8 * (lane % 4));
      }
    }
  }
}

/// Eight heads' queries in shared memory.
template <int kDim>
struct SharedQueries {
  static constexpr int kStride = kDim + 32;  // spreads the banks
  alignas(16) std::uint16_t q[8][kStride];

  /// By all threads, which are to meet behind it; zeros behind the group's last head.
  __device__ __forceinline__ void load(const std::uint16_t* heads, int group) {
    constexpr int kVectors = kDim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < 8 * kVectors; i += 32 * kDecodeWarps) {
      const int head = i / kVectors;
      const int at = 8 * (i % kVectors);
      uint4 v{0, 0, 0, 0};
      if (head < group) v = *reinterpret_cast<const uint4*>(heads + head * kDim + at);
      *reinterpret_cast<uint4*>(&q[head][at]) = v;
    }
  }
};

/// A lane's fragments of them, as scores() takes them.
template <int kDim>
struct SharedFragments {
  const std::uint16_t* mine;

  __device__ __forceinline__ SharedFragments(const SharedQueries<kDim>& from, int lane)
      : mine(&from.q[lane / 4][8 * (lane % 4)]) {}
  __device__ __forceinline__ uint4 operator[](int j) const {
    return *reinterpret_cast<const uint4*>(mine + 32 * j);
  }
};

}  // namespace baton::cuda::split
