// What becomes of q, k and v between their product and attention, in layers by parts (general.h): a
// warp a head. Few bytes are moved, so what counts is how long a row waits for them: all that no
// kernel of the step writes is asked for while the kernel before still runs.
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/general.cuh"
#include "workers/cuda/layer/general.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostHeadDim = 256;

/// A warp a head of q or k; blockIdx.x is the row, blockIdx.y shares out its heads.
__global__ void __launch_bounds__(kThreads) head_squares_kernel(HeadAppend a, float* squares) {
  grid_release();
  grid_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int heads = a.shape.heads + a.shape.kv_heads;
  if (head >= heads) return;
  const int dim = a.shape.head_dim;
  const std::int64_t row = blockIdx.x;
  const Bf16* const mine = a.qkv + (row * (heads + a.shape.kv_heads) + head) * dim;
  float sum = 0;
  for (int i = lane; i < dim; i += 32) {
    const float x =
        value(mine + i) + (a.finish.bias == nullptr ? 0.0F : a.finish.bias[head * dim + i]);
    sum = fmaf(x, x, sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) squares[row * heads + head] = sum;
}

/// What all of q or all of k of a row is multiplied by; by a whole warp. The order of the sum
/// follows from the model's heads alone.
__device__ __forceinline__ float whole_factor(const HeadAppend& a, std::int64_t row, bool q) {
  const HeadFinish& f = a.finish;
  const int of_rank = a.shape.heads + a.shape.kv_heads;
  const int each = q ? a.shape.heads : a.shape.kv_heads;
  const int step = q ? 1 : f.kv_repeats;
  const int all = each * (f.ranks / step);
  const float* const squares = f.squares + row * f.ranks * of_rank + (q ? 0 : a.shape.heads);
  float sum = 0;
  for (int h = static_cast<int>(threadIdx.x) % 32; h < all; h += 32) {
    sum += squares[h / each * step * of_rank + h % each];
  }
  return rsqrtf(warp_sum(sum) / static_cast<float>(all * a.shape.head_dim) + f.eps);
}

/// What of a head does not depend on the kernels before, a lane's elements lane + 32 i; and of the
/// pairs that turn pair lane + 32 i.
struct HeadWeights {
  static constexpr int kEach = kMostHeadDim / 32;
  float bias[kEach], norm[kEach];
  float cos[kEach / 2], sin[kEach / 2];
  float grown = 1;

  __device__ __forceinline__ void load(const HeadAppend& a, int head, std::int64_t row, int lane) {
    const HeadFinish& f = a.finish;
    const int dim = a.shape.head_dim;
    const bool q = head < a.shape.heads;
    const bool turns = head < a.shape.heads + a.shape.kv_heads;
    const float* weight = !turns ? nullptr : q ? f.q_norm : f.k_norm;
    if (weight != nullptr && f.whole) weight += (q ? head : head - a.shape.heads) * dim;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane + 32 * i;
      bias[i] = f.bias != nullptr && at < dim ? __ldg(f.bias + head * dim + at) : 0.0F;
      norm[i] = weight != nullptr && at < dim ? __ldg(weight + at) : 0.0F;
    }
    if (q) grown = query_factor(f.query_growth, f.query_context, a.positions[row]);
    if (!turns || f.cos == nullptr) return;
    const int half = f.dims / 2;
    const std::int64_t angle = std::int64_t{a.positions[row]} * half;
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const int at = lane + 32 * i;
      if (at >= half) continue;
      cos[i] = __ldg(f.cos + angle + at);
      sin[i] = __ldg(f.sin + angle + at);
    }
  }
};

/// A warp a head; blockIdx.x is the row, blockIdx.y shares out its heads. Positions and slots are
/// read before grid_wait(): no kernel of the step writes them.
__global__ void __launch_bounds__(kThreads) finish_heads_kernel(HeadAppend a) {
  __shared__ float shared[kWarps][kMostHeadDim];
  grid_release();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  const int first_value = a.shape.heads + a.shape.kv_heads;
  const int all_heads = first_value + a.shape.kv_heads;
  const std::int64_t row = blockIdx.x;
  HeadWeights w;
  std::int64_t slot = -1;
  if (head < all_heads) {
    w.load(a, head, row, lane);
    slot = a.slots[row];
  }
  grid_wait();
  if (head >= all_heads) return;
  const HeadFinish& f = a.finish;
  const int dim = a.shape.head_dim;
  Bf16* const mine = a.qkv + (row * all_heads + head) * dim;
  float* const x = shared[warp];
  const bool turns = head < first_value;
  float v[HeadWeights::kEach] = {};
  float squares = 0;
#pragma unroll
  for (int i = 0; i < HeadWeights::kEach; ++i) {
    if (lane + 32 * i >= dim) continue;
    v[i] = value(mine + lane + 32 * i) + w.bias[i];
    squares = fmaf(v[i], v[i], squares);
  }
  float factor = 1;
  const bool normed = turns && f.q_norm != nullptr;
  if (normed) {
    factor = f.whole ? whole_factor(a, row, head < a.shape.heads)
                     : rsqrtf(warp_sum(squares) / static_cast<float>(dim) + f.eps);
  }
#pragma unroll
  for (int i = 0; i < HeadWeights::kEach; ++i) {
    if (lane + 32 * i < dim) x[lane + 32 * i] = normed ? v[i] * factor * w.norm[i] : v[i];
  }
  __syncwarp();
  if (turns && f.cos != nullptr) {
    const int half = f.dims / 2;
#pragma unroll
    for (int i = 0; i < HeadWeights::kEach / 2; ++i) {
      const int at = lane + 32 * i;
      if (at >= half) continue;
      const int low = f.interleaved ? 2 * at : at;
      const int high = f.interleaved ? 2 * at + 1 : at + half;
      const float p = x[low];
      const float q = x[high];
      x[low] = p * w.cos[i] - q * w.sin[i];
      x[high] = q * w.cos[i] + p * w.sin[i];
    }
    __syncwarp();
  }
  const int kv_head = turns ? head - a.shape.heads : head - first_value;
  Bf16* const to = head < a.shape.heads || slot < 0
                       ? nullptr
                       : a.kv.pool + slot + a.kv.layer_offset + (turns ? 0 : a.kv.part_stride) +
                             kv_head * a.kv.head_stride;
  for (int i = lane; i < dim; i += 32) {
    store(mine + i, x[i] * w.grown);
    if (to != nullptr) store(to + i, x[i]);
  }
}

dim3 of_heads(const HeadAppend& a, int heads) {
  return {static_cast<unsigned>(a.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)};
}

}  // namespace

void finish_heads(const HeadAppend& a, Stream stream) {
  if (a.rows <= 0) return;
  const HeadFinish& f = a.finish;
  if (a.shape.head_dim > kMostHeadDim || f.dims > a.shape.head_dim || f.dims % 2 != 0) {
    throw CudaError("finish heads: head_dim above 256, or an odd number of components that turn");
  }
  if ((f.q_norm == nullptr) != (f.k_norm == nullptr)) {
    throw CudaError("finish heads: q and k are normed both or neither");
  }
  if (f.whole && f.q_norm != nullptr &&
      (f.squares == nullptr || f.kv_repeats < 1 || f.ranks % f.kv_repeats != 0)) {
    throw CudaError("finish heads: norms over all heads need all heads' squares");
  }
  launch("finish heads", finish_heads_kernel, of_heads(a, a.shape.heads + 2 * a.shape.kv_heads),
         kThreads, 0, stream, a);
}

void head_squares(const HeadAppend& a, float* squares, Stream stream) {
  if (a.rows <= 0) return;
  launch("head squares", head_squares_kernel, of_heads(a, a.shape.heads + a.shape.kv_heads),
         kThreads, 0, stream, a, squares);
}

}  // namespace baton::cuda
