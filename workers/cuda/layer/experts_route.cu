#include "workers/cuda/layer/experts_route.h"

#include <cuda_bf16.h>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

constexpr int kMostExperts = 1024;
constexpr int kMostActive = 64;
constexpr int kMostGroups = 64;
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

/// Above what was taken, below every score.
constexpr float kLowest = -3.0e38F;
constexpr float kClosed = -3.2e38F;

/// The experts of all groups but the best are closed. By one thread: there are few groups.
__device__ void close_groups(const ExpertRule& rule, int count, float* score) {
  float good[kMostGroups];
  const int size = count / rule.groups;
  for (int g = 0; g < rule.groups; ++g) {
    float best = kClosed;
    float second = kClosed;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(best, score[e]));
      best = fmaxf(best, score[e]);
    }
    good[g] = rule.group_pairs && size > 1 ? best + second : best;
  }
  for (int i = 0; i < rule.groups - rule.active_groups; ++i) {
    int worst = -1;  // of equal ones the last
    for (int g = 0; g < rule.groups; ++g) {
      if (!isnan(good[g]) && (worst < 0 || good[g] <= good[worst])) worst = g;
    }
    if (worst < 0) return;
    good[worst] = __int_as_float(0x7FC00000);  // not again
    for (int e = worst * size; e < (worst + 1) * size; ++e) score[e] = kClosed;
  }
}

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

/// The same for any router: weights, then what experts are chosen by, then the choice.
__global__ void __launch_bounds__(32 * kRowsOfCta) choose_general_kernel(ExpertRouting a) {
  __shared__ float all[kRowsOfCta][kMostExperts];
  __shared__ float scores[kRowsOfCta][kMostExperts];
  grid_release();
  grid_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kRowsOfCta + warp;
  if (row >= a.rows) return;
  const ExpertRule& rule = a.rule;
  float* p = all[warp];
  float* score = scores[warp];
  const float* logits = a.logits + std::int64_t{row} * a.count;
  float most = -INFINITY;
  for (int e = lane; e < a.count; e += 32) {
    p[e] = logits[e] + (rule.router_bias == nullptr ? 0.0F : rule.router_bias[e]);
    most = fmaxf(most, p[e]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, step));
  float sum = 0;
  for (int e = lane; e < a.count; e += 32) {
    p[e] = rule.sigmoid ? 1.0F / (1.0F + expf(-p[e])) : expf(p[e] - most);
    sum += p[e];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
  for (int e = lane; e < a.count; e += 32) {
    if (!rule.sigmoid) p[e] = p[e] / sum;
    const float v = p[e] + (rule.choice_bias == nullptr ? 0.0F : rule.choice_bias[e]);
    score[e] = isnan(v) ? kLowest : v;
  }
  __syncwarp();
  if (rule.groups > 1 && lane == 0) close_groups(rule, a.count, score);
  __syncwarp();
  float taken = 0;
  for (int j = 0; j < a.active; ++j) {
    Candidate best{-INFINITY, kMostExperts};
    for (int e = lane; e < a.count; e += 32) best.take_better(score[e], e);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best.p, step);
      const int number = __shfl_xor_sync(0xFFFFFFFFU, best.expert, step);
      best.take_better(other, number);
    }
    taken += p[best.expert];
    if (lane == 0) score[best.expert] = -INFINITY;  // and p, whose order is kept, is its weight
    __syncwarp();
  }
  // Who was taken, in order of their numbers.
  int rank = 0;
  for (int first = 0; first < a.count; first += 32) {
    const int e = first + lane;
    const bool mine = e < a.count && score[e] == -INFINITY;
    const unsigned votes = __ballot_sync(0xFFFFFFFFU, mine);
    const std::int64_t at =
        std::int64_t{row} * a.active + rank + __popc(votes & ((1U << lane) - 1));
    rank += __popc(votes);
    if (!mine) continue;
    a.chosen[at] = e;
    a.weights[at] = (a.normalise ? p[e] / taken : p[e]) * rule.scale;
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
  if (routing.rule.groups > kMostGroups ||
      (routing.rule.groups > 1 && routing.count % routing.rule.groups != 0)) {
    throw CudaError("experts: groups do not divide them, or are more than 64");
  }
  launch("choose experts", routing.rule.plain_router() ? choose_kernel : choose_general_kernel,
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
