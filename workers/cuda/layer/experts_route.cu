#include "workers/cuda/layer/experts_route.h"

#include <cuda_bf16.h>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

constexpr int kMostExperts = 1024;
constexpr int kMostActive = 64;
constexpr int kRowsOfCta = 4;  // a warp each
constexpr int kThreads = 256;

/// The likelier of two, of equal ones the lower number. A NaN counts less than any probability, one
/// that was taken less than that.
struct Candidate {
  float p;
  int expert;
  __device__ __forceinline__ void take_better(float other, int number) {
    if (other > p || (other == p && number < expert)) {
      p = other;
      expert = number;
    }
  }
};

constexpr float kNan = -1;
constexpr float kTaken = -2;
constexpr float kNothing = -3;

__global__ void __launch_bounds__(32 * kRowsOfCta) choose_kernel(ExpertRouting a) {
  __shared__ float all[kRowsOfCta][kMostExperts];
  __shared__ int chosen[kRowsOfCta][kMostActive];
  __shared__ float weight[kRowsOfCta][kMostActive];
  grid_release();
  grid_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kRowsOfCta + warp;
  if (row >= a.rows) return;
  float* p = all[warp];
  const float* logits = a.logits + std::int64_t{row} * a.count;
  float most = -INFINITY;
  for (int e = lane; e < a.count; e += 32) {
    p[e] = logits[e];
    most = fmaxf(most, p[e]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, step));
  float sum = 0;
  for (int e = lane; e < a.count; e += 32) {
    p[e] = expf(p[e] - most);
    sum += p[e];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
  for (int e = lane; e < a.count; e += 32) {
    const float v = p[e] / sum;
    p[e] = v >= 0 ? v : kNan;
  }
  __syncwarp();
  float taken = 0;
  for (int j = 0; j < a.active; ++j) {
    Candidate best{kNothing, kMostExperts};
    for (int e = lane; e < a.count; e += 32) best.take_better(p[e], e);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best.p, step);
      const int number = __shfl_xor_sync(0xFFFFFFFFU, best.expert, step);
      best.take_better(other, number);
    }
    taken += best.p;
    if (lane == 0) {
      chosen[warp][j] = best.expert;
      weight[warp][j] = best.p;
      p[best.expert] = kTaken;
    }
    __syncwarp();
  }
  for (int j = lane; j < a.active; j += 32) {
    int rank = 0;
    for (int i = 0; i < a.active; ++i) rank += chosen[warp][i] < chosen[warp][j] ? 1 : 0;
    const std::int64_t at = std::int64_t{row} * a.active + rank;
    a.chosen[at] = chosen[warp][j];
    a.weights[at] = a.normalise ? weight[warp][j] / taken : weight[warp][j];
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

}  // namespace

void route(const ExpertRouting& routing, Stream stream) {
  if (routing.count > kMostExperts || routing.active > kMostActive ||
      routing.active > routing.count) {
    throw CudaError("experts: too many");
  }
  launch("choose experts", choose_kernel,
         static_cast<unsigned>((routing.rows + kRowsOfCta - 1) / kRowsOfCta), 32 * kRowsOfCta, 0,
         stream, routing);
  launch("group rows by expert", group_kernel, static_cast<unsigned>(routing.count), kThreads, 0,
         stream, routing);
}

void combine(const ExpertRouting& routing, const Bf16* y, int hidden, Bf16* x, Stream stream) {
  launch("combine experts", combine_kernel, static_cast<unsigned>(routing.rows), kThreads, 0,
         stream, routing, reinterpret_cast<const __nv_bfloat162*>(y), hidden / 2,
         reinterpret_cast<__nv_bfloat162*>(x));
}

}  // namespace baton::cuda
