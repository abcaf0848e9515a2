// A warp an expert. Its weights, and the norm's, are asked for before grid_wait(), while the kernel
// before still runs; then each CTA norms all rows for itself, a warp a row, which is shorter than a
// kernel of its own.
#include "workers/cuda/layer/experts_router.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/general.cuh"

namespace baton::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kMostRows = kWarps;
constexpr int kMostSharedBytes = 48 << 10;

struct Pairs {
  std::uint32_t word[4];
};
__device__ __forceinline__ Pairs pairs_of(const uint4& v) { return {{v.x, v.y, v.z, v.w}}; }

/// Vectors of eight, lane + 32 i of a row; zeros behind its end.
template <int kEach>
__device__ __forceinline__ void load_row(const Bf16* from, int vectors, uint4 (&to)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + 32 * i;
    to[i] = at < vectors ? reinterpret_cast<const uint4*>(from)[at] : uint4{0, 0, 0, 0};
  }
}

template <int kEach>
__device__ __forceinline__ float dot(const uint4 (&a)[kEach], const uint4 (&b)[kEach]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Pairs p = pairs_of(a[i]), q = pairs_of(b[i]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 x = to_floats(p.word[k]), y = to_floats(q.word[k]);
      sum = fmaf(x.x, y.x, sum);
      sum = fmaf(x.y, y.y, sum);
    }
  }
  return warp_sum(sum);
}

__device__ __forceinline__ std::uint32_t scaled(std::uint32_t x, float factor, std::uint32_t gain) {
  const float2 v = to_floats(x), g = to_floats(gain);
  return narrow(v.x * factor * g.x, v.y * factor * g.y);
}

template <int kEach>
__global__ void __launch_bounds__(kThreads) router_kernel(RouterCall a) {
  extern __shared__ uint4 rows[];  // [rows][vectors], normed
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = a.hidden / 8;
  const int expert = static_cast<int>(blockIdx.x) * kWarps + warp;
  uint4 w[kEach], gain[kEach], v[kEach];
  if (expert < a.count) load_row(a.w + std::int64_t{expert} * a.hidden, vectors, w);
  if (a.gain != nullptr) load_row(a.gain, vectors, gain);
  grid_release();
  grid_wait();
  if (warp < a.rows) {
    load_row(a.x + std::int64_t{warp} * a.hidden, vectors, v);
    if (a.gain != nullptr) {
      const float factor = rsqrtf(dot(v, v) / static_cast<float>(a.hidden) + a.eps);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        v[i] = uint4{scaled(v[i].x, factor, gain[i].x), scaled(v[i].y, factor, gain[i].y),
                     scaled(v[i].z, factor, gain[i].z), scaled(v[i].w, factor, gain[i].w)};
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane + 32 * i;
      if (at >= vectors) continue;
      rows[warp * vectors + at] = v[i];
      if (a.gain == nullptr || blockIdx.x != 0) continue;
      reinterpret_cast<uint4*>(a.normed + std::int64_t{warp} * a.hidden)[at] = v[i];
    }
  }
  __syncthreads();
  if (expert >= a.count) return;
  for (int row = 0; row < a.rows; ++row) {
    load_row(reinterpret_cast<const Bf16*>(rows + row * vectors), vectors, v);
    const float logit = dot(v, w);
    if (lane == 0) a.logits[std::int64_t{row} * a.count + expert] = logit;
  }
}

constexpr int kMostEach = 16;

}  // namespace

bool router_fits(int rows, int hidden) {
  return rows >= 1 && rows <= kMostRows && hidden % 8 == 0 && hidden <= 256 * kMostEach &&
         rows * hidden * static_cast<int>(sizeof(Bf16)) <= kMostSharedBytes;
}

void run_router(const RouterCall& call, Stream stream) {
  if (!router_fits(call.rows, call.hidden)) throw CudaError("router: too many rows, or too long");
  const auto kernel = call.hidden <= 256 * 8    ? router_kernel<8>
                      : call.hidden <= 256 * 12 ? router_kernel<12>
                                                : router_kernel<kMostEach>;
  launch("router", kernel, static_cast<unsigned>((call.count + kWarps - 1) / kWarps), kThreads,
         static_cast<std::size_t>(call.rows * call.hidden) * sizeof(Bf16), stream, call);
}

}  // namespace baton::cuda
