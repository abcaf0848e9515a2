// Where pieces of a row meet: their partial results in the split kernel's workspace
// (attention_decode.cu, attention_decode_merge.cu).
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/attention_decode.cuh"
#include "workers/cuda/attention/attention_decode_walk.cuh"

namespace baton::cuda::split {

/// How much of the workspace each of its parts takes: counters, sums, partials.
struct WorkspaceParts {
  std::size_t counters, sums, partials;
  WorkspaceParts(const HeadShape& s, int slots)
      : counters(aligned(sizeof(std::uint32_t) * slots * s.kv_heads)),
        sums(aligned(sizeof(float2) * slots * s.heads)),
        partials(sizeof(float) * slots * s.heads * s.head_dim) {}

  void show(void* workspace, Arguments& a) const {
    auto* memory = static_cast<std::byte*>(workspace);
    a.counters = reinterpret_cast<std::uint32_t*>(memory);
    a.sums = reinterpret_cast<float2*>(memory + counters);
    a.partials = reinterpret_cast<float4*>(memory + counters + sums);
  }

 private:
  static std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
};

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

/// A sink is one more key, without a value: `head` is of this KV head's group. For what all keys of
/// a row have given, once. Written out as merged() is.
__device__ __forceinline__ Partial with_sink(const Arguments& a, int head, Partial p) {
  if (a.sinks == nullptr) return p;
  const float sink = a.sinks[static_cast<int>(blockIdx.x) * a.group + head];
  p.l = __fadd_rn(p.l, exp2_fast(__fmaf_rn(sink, 1.4426950408889634F, -p.m)));
  return p;
}

}  // namespace baton::cuda::split
