#include "workers/cuda/layer/experts_route.h"

#include <cuda_bf16.h>

#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/experts_choose.cuh"

namespace baton::cuda {
namespace {

constexpr int kMostExperts = 1024;
constexpr int kMostActive = 64;
constexpr int kRowsOfCta = 4;  // a warp each
constexpr int kThreads = 256;

/// A warp a row; kEach: of 32 experts.
template <int kEach>
__global__ void __launch_bounds__(32 * kRowsOfCta) choose_kernel(ExpertRouting a) {
  __shared__ float scores[kRowsOfCta][32 * kEach];
  __shared__ int all_chosen[kRowsOfCta][kMostActive];
  __shared__ float all_weights[kRowsOfCta][kMostActive];
  grid_release();
  grid_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kRowsOfCta + warp;
  if (row >= a.rows) return;
  int* const chosen = all_chosen[warp];
  float* const weights = all_weights[warp];
  choose_row<kEach>(a.rule, a.count, a.active, a.normalise, a.logits + std::int64_t{row} * a.count,
                    scores[warp], chosen, weights, [] {});
  __syncwarp();
  for (int j = lane; j < a.active; j += 32) {
    int rank = 0;  // in order of their numbers
    for (int i = 0; i < a.active; ++i) rank += chosen[i] < chosen[j] ? 1 : 0;
    const std::int64_t at = std::int64_t{row} * a.active + rank;
    a.chosen[at] = chosen[j];
    a.weights[at] = weights[j];
  }
}

/// A CTA an expert: each one counts them all, so that none waits for another.
__global__ void __launch_bounds__(kThreads) group_kernel(ExpertRouting a) {
  __shared__ int counts[kMostExperts];
  __shared__ int of_warp[2][kThreads / 32];
  __shared__ int totals[2];  // lines and pieces of the experts before this one
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int mine = static_cast<int>(blockIdx.x);
  const int lines = a.rows * a.active;
  for (int e = thread; e < a.count; e += kThreads) counts[e] = 0;
  if (thread < 2) totals[thread] = 0;
  grid_release();
  grid_wait();
  __syncthreads();
  for (int i = thread; i < lines; i += kThreads) atomicAdd(&counts[a.chosen[i]], 1);
  __syncthreads();
  int before = 0;
  int pieces = 0;
  for (int e = thread; e < mine; e += kThreads) {
    before += counts[e];
    pieces += (counts[e] + a.piece - 1) / a.piece;
  }
  atomicAdd(&totals[0], before);  // integers: the order does not matter
  atomicAdd(&totals[1], pieces);
  __syncthreads();
  const int first = totals[0];
  const int begin = totals[1];
  const int count = counts[mine];
  const int own = (count + a.piece - 1) / a.piece;
  for (int i = thread; i < own; i += kThreads) {
    a.items[begin + i] = {mine, first + i * a.piece, min(a.piece, count - i * a.piece), begin, own};
  }
  if (mine == a.count - 1 && thread == 0) *a.n_items = begin + own;
  if (count == 0) return;
  int next = first;
  int buffer = 0;
  for (int base = 0; base < lines; base += kThreads, buffer ^= 1) {
    const int i = base + thread;
    const bool here = i < lines && a.chosen[i] == mine;
    const unsigned votes = __ballot_sync(0xFFFFFFFFU, here);
    if (lane == 0) of_warp[buffer][warp] = __popc(votes);
    __syncthreads();  // the other buffer may still be read
    int line = next;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) line += of_warp[buffer][w];
      next += of_warp[buffer][w];
    }
    if (!here) continue;
    line += __popc(votes & ((1U << lane) - 1));
    a.line[i] = line;
    a.source[line] = i / a.active;
  }
}

/// A CTA a row; a thread two columns at a time.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(ExpertRouting a, const __nv_bfloat162* y, int pairs, __nv_bfloat162* x) {
  __shared__ int line[kMostActive];
  __shared__ float weight[kMostActive];
  grid_release();
  grid_wait();
  const std::int64_t row = blockIdx.x;
  for (int j = static_cast<int>(threadIdx.x); j < a.active; j += kThreads) {
    line[j] = a.line[row * a.active + j];
    weight[j] = a.weights[row * a.active + j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    float2 sum = make_float2(0, 0);
    for (int j = 0; j < a.active; ++j) {
      const float2 v = __bfloat1622float2(y[std::int64_t{line[j]} * pairs + i]);
      sum.x = fmaf(weight[j], v.x, sum.x);
      sum.y = fmaf(weight[j], v.y, sum.y);
    }
    const float2 old = __bfloat1622float2(x[row * pairs + i]);
    x[row * pairs + i] = __floats2bfloat162_rn(old.x + sum.x, old.y + sum.y);
  }
}

/// The same where experts have biases.
__global__ void __launch_bounds__(kThreads)
    combine_biased_kernel(ExpertRouting a, const __nv_bfloat16* y, int hidden, __nv_bfloat16* x) {
  grid_release();
  grid_wait();
  const std::int64_t row = blockIdx.x;
  const std::int64_t first = row * a.active;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) {
    float sum = 0;
    for (int j = 0; j < a.active; ++j) {
      const float v = __bfloat162float(y[std::int64_t{a.line[first + j]} * hidden + i]);
      const float bias = a.rule.down_bias[std::int64_t{a.chosen[first + j]} * hidden + i];
      sum = fmaf(a.weights[first + j], v + bias, sum);
    }
    x[row * hidden + i] = __float2bfloat16(__bfloat162float(x[row * hidden + i]) + sum);
  }
}

}  // namespace

void route(const ExpertRouting& routing, Stream stream) {
  if (routing.count > kMostExperts || routing.active > kMostActive ||
      routing.active > routing.count) {
    throw CudaError("experts: too many");
  }
  if (routing.rule.groups > kMostExpertGroups ||
      (routing.rule.groups > 1 && routing.count % routing.rule.groups != 0)) {
    throw CudaError("experts: groups do not divide them, or are more than 64");
  }
  launch("choose experts",
         routing.count <= 128 ? choose_kernel<4> : choose_kernel<kMostExperts / 32>,
         static_cast<unsigned>((routing.rows + kRowsOfCta - 1) / kRowsOfCta), 32 * kRowsOfCta, 0,
         stream, routing);
  launch("group rows by expert", group_kernel, static_cast<unsigned>(routing.count), kThreads, 0,
         stream, routing);
}

void combine(const ExpertRouting& routing, const Bf16* y, int hidden, Bf16* x, Stream stream) {
  if (routing.rule.down_bias != nullptr) {
    return launch("combine experts", combine_biased_kernel, static_cast<unsigned>(routing.rows),
                  kThreads, 0, stream, routing, reinterpret_cast<const __nv_bfloat16*>(y), hidden,
                  reinterpret_cast<__nv_bfloat16*>(x));
  }
  launch("combine experts", combine_kernel, static_cast<unsigned>(routing.rows), kThreads, 0,
         stream, routing, reinterpret_cast<const __nv_bfloat162*>(y), hidden / 2,
         reinterpret_cast<__nv_bfloat162*>(x));
}

}  // namespace baton::cuda
