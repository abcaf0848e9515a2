// Pieces of the streamed attention kernel (attention_decode_streamed.cu): rows that are done, and
// the merging of those that several warps share. What a lane stored is what the same lane of
// another warp reads.
#pragma once

#include "workers/cuda/attention/attention_decode_stream.cuh"

namespace baton::cuda::streamed {

#ifdef BATON_HOPPER

/// Two heads' m and l, the same in all lanes of equal t.
struct Sums {
  float m[2], l[2];
};

template <int kDim>
__device__ __forceinline__ void store_row(const Arguments& a, int row, int kv_head, int lane,
                                          const Sums& sums, const WarpState<kDim, 1>& state) {
  const int head = lane / 4;
  std::uint16_t* out =
      a.out +
      (static_cast<std::int64_t>(row) * a.kv_heads * a.group + kv_head * a.group + head) * kDim +
      lane % 4 * 2;
  const float x = __frcp_rn(sums.l[0]), y = __frcp_rn(sums.l[1]);
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
    const float(&o)[4] = state.o[0][i / 4][i % 4];
    const std::uint32_t low = transposed(o[0] * x, o[1] * y);
    const std::uint32_t high = transposed(o[2] * x, o[3] * y);
    if (head < a.group) {
      *reinterpret_cast<std::uint32_t*>(out + 16 * i) = low;
      *reinterpret_cast<std::uint32_t*>(out + 16 * i + 8) = high;
    }
  }
}

/// A lane's part of the split workspace: of one row's slots and one KV head. Lanes of heads behind
/// the group's last pair have none.
template <int kDim>
struct LaneSlots {
  static constexpr int kParts = kDim / 16;
  float4* o;
  float4* sums;
  std::uint32_t* counters;
  std::int64_t o_stride, sums_stride;  // from slot to slot; the counters are kv_heads apart
  int step;                            // from o[i] to o[i + 1]
  bool used;

  __device__ __forceinline__ LaneSlots(const Arguments& a, int slot, int kv_head, int lane) {
    const int pairs = (a.group + 1) / 2;
    const int g = lane / 4, t = lane % 4;
    counters = a.counters + static_cast<std::int64_t>(slot) * a.kv_heads + kv_head;
    const std::int64_t at = (static_cast<std::int64_t>(slot) * a.kv_heads + kv_head) * pairs;
    used = t < pairs;
    sums = a.sums + at + t;
    o = a.partials + at * (kDim / 2) + g * pairs + t;
    sums_stride = static_cast<std::int64_t>(a.kv_heads) * pairs;
    o_stride = sums_stride * (kDim / 2);
    step = 8 * pairs;
  }
  __device__ __forceinline__ void store(int i, int lane, const Sums& part,
                                        const WarpState<kDim, 1>& state) const {
    if (!used) return;
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const float(&x)[4] = state.o[0][j / 4][j % 4];
      o[i * o_stride + j * step] = float4{x[0], x[1], x[2], x[3]};
    }
    if (lane < 4) sums[i * sums_stride] = float4{part.m[0], part.l[0], part.m[1], part.l[1]};
  }
  /// Adds slot i to what is there.
  __device__ __forceinline__ void add(int i, Sums& part, WarpState<kDim, 1>& state) const {
    float4 ml = {0, 1, 0, 1};
    float4 x[kParts];
#pragma unroll
    for (int j = 0; j < kParts; ++j) x[j] = float4{0, 0, 0, 0};
    if (used) {
      ml = __ldcg(sums + i * sums_stride);
#pragma unroll
      for (int j = 0; j < kParts; ++j) x[j] = __ldcg(o + i * o_stride + j * step);
    }
    const float m[2] = {ml.x, ml.z}, l[2] = {ml.y, ml.w};
    float old[2], add[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(part.m[h], m[h]);
      old[h] = exp2_fast(__fsub_rn(part.m[h], most));
      add[h] = exp2_fast(__fsub_rn(m[h], most));
      part.m[h] = most;
      part.l[h] = __fmaf_rn(part.l[h], old[h], __fmul_rn(l[h], add[h]));
    }
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      float(&y)[4] = state.o[0][j / 4][j % 4];
      y[0] = __fmaf_rn(y[0], old[0], __fmul_rn(x[j].x, add[0]));
      y[1] = __fmaf_rn(y[1], old[1], __fmul_rn(x[j].y, add[1]));
      y[2] = __fmaf_rn(y[2], old[0], __fmul_rn(x[j].z, add[0]));
      y[3] = __fmaf_rn(y[3], old[1], __fmul_rn(x[j].w, add[1]));
    }
  }
};

/// Whether everybody else of n has arrived already: then nobody looks at this warp's arrival.
__device__ __forceinline__ bool is_last(std::uint32_t* counter, int n, int lane) {
  std::uint32_t before = 0;
  if (lane == 0) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(before) : "l"(counter) : "memory");
    if (before + 1 == static_cast<std::uint32_t>(n)) *counter = 0;  // for the next layer
  }
  before = __shfl_sync(~0U, before, 0);
  __syncwarp();
  return before + 1 == static_cast<std::uint32_t>(n);
}

/// Counts the warp's arrival; true for the last of n, which then sees what the others stored.
__device__ __forceinline__ bool arrive_last(std::uint32_t* counter, int n, int lane) {
  __syncwarp();
  std::uint32_t before = 0;
  if (lane == 0) {
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    if (before + 1 == static_cast<std::uint32_t>(n)) *counter = 0;
  }
  before = __shfl_sync(~0U, before, 0);
  __syncwarp();
  return before + 1 == static_cast<std::uint32_t>(n);
}

/// Adds up slots first, first + stride ...: n of them, of which `piece` is this warp's. True, and
/// the sum in `sums` and `state`, for the last to come. Always in this order: the bits are the
/// same.
template <int kDim>
__device__ __forceinline__ bool meet(const LaneSlots<kDim>& slots, std::uint32_t* counter,
                                     int first, int stride, int n, int piece, int lane, Sums& sums,
                                     WarpState<kDim, 1>& state) {
  // Often so at the end of a run, where time counts: the other piece was the beginning of the next
  // one.
  const bool in_hand = piece == first && is_last(counter, n, lane);
  if (!in_hand) {
    slots.store(piece, lane, sums, state);
    if (!arrive_last(counter, n, lane)) return false;
    state.clear();
    sums = {{-INFINITY, -INFINITY}, {0, 0}};
  }
#pragma unroll 1
  for (int i = in_hand ? 1 : 0; i < n; ++i) slots.add(first + i * stride, sums, state);
  return true;
}

/// The whole row for the last of its pieces to come; beyond eight pieces they meet by eights first.
template <int kDim>
__device__ __forceinline__ bool merge_pieces(const Arguments& a, const DecodeItem& item,
                                             int kv_head, int lane, Sums& sums,
                                             WarpState<kDim, 1>& state) {
  constexpr int kTogether = 8;
  const LaneSlots<kDim> slots(a, item.slot, kv_head, lane);
  int piece = item.piece;
  int stride = 1;
  // Level 0: of eight slots; their counter is that of the second. Level 1: of each eight the first.
  for (int level = item.pieces > kTogether ? 0 : 1; level < 2; ++level) {
    const int first = level == 0 ? piece / kTogether * kTogether : 0;
    const int n =
        level == 0 ? min(kTogether, item.pieces - first) : (item.pieces + stride - 1) / stride;
    std::uint32_t* counter = slots.counters + (first + 1 - level) * a.kv_heads;
    if (n > 1 && !meet<kDim>(slots, counter, first, stride, n, piece, lane, sums, state))
      return false;
    piece = first;
    stride = kTogether;
  }
  return true;
}

#endif  // BATON_HOPPER

}  // namespace baton::cuda::streamed
