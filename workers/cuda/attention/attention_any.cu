// Attention of single query tokens for head sizes and groups that the tiled kernels do not have:
// one warp a row and query head, plain multiply-adds. For small models; nobody tuned it.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "workers/cuda/attention/attention_any.h"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {

namespace {

constexpr int kMaxDim = 256;
constexpr int kWarps = 4;
constexpr int kDimsALane = kMaxDim / 32;

__device__ float warp_max(float x) {
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, d));
  return x;
}
__device__ float warp_sum(float x) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0U, x, d);
  return x;
}

/// A lane takes a key for the products with q, and some of the dims for the sum over the values.
__global__ void any_attention_kernel(AnyAttention a) {
  __shared__ float shared_q[kWarps][kMaxDim];
  grid_wait();
  grid_release();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.x * kWarps + warp;
  if (static_cast<int>(blockIdx.y) >= *a.n_items || head >= a.shape.heads) return;
  const DecodeItem item = a.items[blockIdx.y];
  const int dim = a.shape.head_dim;
  const std::int64_t columns = std::int64_t{a.shape.heads + 2 * a.shape.kv_heads} * dim;
  const auto* q = reinterpret_cast<const __nv_bfloat16*>(a.qkv) + item.row * columns + head * dim;
  for (int d = lane; d < dim; d += 32) shared_q[warp][d] = __bfloat162float(q[d]) * a.scale;
  __syncwarp();

  const int kv_head = head / (a.shape.heads / a.shape.kv_heads);
  const auto* pool = reinterpret_cast<const __nv_bfloat16*>(a.kv.pool) + a.kv.layer_offset +
                     kv_head * a.kv.head_stride;
  const auto key_of = [&](int key) {
    const std::int64_t block = a.table[item.first_block + key / a.kv.tokens_per_block];
    return pool + block * a.kv.block_stride + std::int64_t{key % a.kv.tokens_per_block} * dim;
  };
  float best = -INFINITY;
  float sum = 0;
  float out[kDimsALane] = {};
  for (int first = item.key_begin; first < item.key_end; first += 32) {
    const int key = first + lane;
    float score = -INFINITY;
    if (key < item.key_end) {
      const __nv_bfloat16* k = key_of(key);
      score = 0;
      for (int d = 0; d < dim; ++d) score = fmaf(shared_q[warp][d], __bfloat162float(k[d]), score);
    }
    const float higher = fmaxf(best, warp_max(score));
    const float fade = __expf(best - higher);
    const float weight = __expf(score - higher);
    sum = sum * fade + warp_sum(weight);
    best = higher;
    for (float& o : out) o *= fade;
    const int n = min(32, item.key_end - first);
    for (int i = 0; i < n; ++i) {
      const float w = __shfl_sync(~0U, weight, i);
      const __nv_bfloat16* v = key_of(first + i) + a.kv.part_stride;
#pragma unroll
      for (int j = 0; j < kDimsALane; ++j) {
        const int d = lane + 32 * j;
        if (d < dim) out[j] = fmaf(w, __bfloat162float(v[d]), out[j]);
      }
    }
  }
  auto* to = reinterpret_cast<__nv_bfloat16*>(a.out) +
             (std::int64_t{item.row} * a.shape.heads + head) * dim;
#pragma unroll
  for (int j = 0; j < kDimsALane; ++j) {
    const int d = lane + 32 * j;
    if (d < dim) to[d] = __float2bfloat16(out[j] / sum);
  }
}

}  // namespace

void run_any_attention(const AnyAttention& a, int launched_items, Stream stream) {
  const dim3 grid((a.shape.heads + kWarps - 1) / kWarps, launched_items);
  launch("attention", any_attention_kernel, grid, 32 * kWarps, 0, stream, a);
}

}  // namespace baton::cuda
