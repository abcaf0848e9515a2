// Plain kernels: what they move is small beside the weights, and they are chained by programmatic
// dependent launch as all others are.
#include "workers/cuda/layer/general.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <string>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/gates.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostHeadDim = 256;

__device__ __forceinline__ float value(const Bf16* x) {
  return __uint_as_float(static_cast<std::uint32_t>(x->bits) << 16);
}
__device__ __forceinline__ void store(Bf16* to, float x) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16(x));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
  return x;
}

/// The same in every thread of kThreads; added in one order.
__device__ __forceinline__ float block_sum(float x) {
  __shared__ float of_warp[kWarps];
  x = warp_sum(x);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += of_warp[w];
  return sum;
}

/// What a thread holds of a row: eight elements at a time, kThreads threads side by side.
template <int kVectors>
struct Row {
  float v[kVectors][8];
  int columns;

  __device__ __forceinline__ int at(int i) const {
    return 8 * (static_cast<int>(threadIdx.x) + i * kThreads);
  }
  __device__ __forceinline__ bool has(int i) const { return at(i) < columns; }

  __device__ __forceinline__ void load(const Bf16* x) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!has(i)) continue;
      const uint4 words = *reinterpret_cast<const uint4*>(x + at(i));
      const std::uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 pair = to_floats(word[k]);
        v[i][2 * k] = pair.x;
        v[i][2 * k + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ void store(Bf16* y) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!has(i)) continue;
      *reinterpret_cast<uint4*>(y + at(i)) =
          uint4{narrow(v[i][0], v[i][1]), narrow(v[i][2], v[i][3]), narrow(v[i][4], v[i][5]),
                narrow(v[i][6], v[i][7])};
    }
  }
  /// Every element becomes f(element, its column).
  template <class F>
  __device__ __forceinline__ void each(const F& f) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!has(i)) continue;
#pragma unroll
      for (int k = 0; k < 8; ++k) v[i][k] = f(v[i][k], at(i) + k);
    }
  }

  __device__ __forceinline__ void normalise(const NormWeights& norm) {
    const auto n = static_cast<float>(columns);
    float mean = 0;
    if (norm.layer) {
      float sum = 0;
      each([&](float x, int) {
        sum += x;
        return x;
      });
      mean = block_sum(sum) / n;
    }
    float squares = 0;
    each([&](float x, int) {
      squares = fmaf(x - mean, x - mean, squares);
      return x;
    });
    const float factor = rsqrtf(block_sum(squares) / n + norm.eps);
    each([&](float x, int c) {
      const float y = (x - mean) * factor * norm.weight[c];
      return norm.bias == nullptr ? y : y + norm.bias[c];
    });
  }
};

/// v = norm(x + before); sum = v = sum + factor * v; y = next(v): each where it is there.
struct RowCall {
  const Bf16* x = nullptr;
  std::int64_t x_stride = 0;
  const float* before = nullptr;
  NormWeights norm;
  float factor = 1;
  Bf16* sum = nullptr;  // dense rows
  NormWeights next;
  Bf16* y = nullptr;
  std::int64_t y_stride = 0;
  int columns = 0;
};

template <int kVectors>
__global__ void __launch_bounds__(kThreads) row_kernel(RowCall a) {
  grid_release();
  grid_wait();
  Row<kVectors> row;
  row.columns = a.columns;
  row.load(a.x + blockIdx.x * a.x_stride);
  if (a.before != nullptr) row.each([&](float x, int c) { return x + a.before[c]; });
  if (a.norm.weight != nullptr) row.normalise(a.norm);
  if (a.sum != nullptr) {
    Bf16* sum = a.sum + std::int64_t{blockIdx.x} * a.columns;
    Row<kVectors> old;
    old.columns = a.columns;
    old.load(sum);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < 8; ++k) row.v[i][k] = fmaf(a.factor, row.v[i][k], old.v[i][k]);
    }
    // The norm behind is taken of what is stored.
    row.each([](float x, int) { return __bfloat162float(__float2bfloat16(x)); });
    row.store(sum);
  }
  if (a.y == nullptr) return;
  if (a.next.weight != nullptr) row.normalise(a.next);
  row.store(a.y + blockIdx.x * a.y_stride);
}

void launch_rows(const char* name, const RowCall& a, int rows, Stream stream) {
  if (rows <= 0) return;
  if (a.columns <= 0 || a.columns % 8 != 0 || a.columns > 8 * 8 * kThreads) {
    throw CudaError(std::string(name) + ": rows of multiples of 8 up to 16384 elements");
  }
  const int vectors = (a.columns / 8 + kThreads - 1) / kThreads;
  auto* kernel = vectors == 1   ? row_kernel<1>
                 : vectors == 2 ? row_kernel<2>
                 : vectors <= 4 ? row_kernel<4>
                                : row_kernel<8>;
  launch(name, kernel, static_cast<unsigned>(rows), kThreads, 0, stream, a);
}

__global__ void __launch_bounds__(kThreads)
    add_gated_kernel(const Bf16* part, const float* bias, const Bf16* n, const float* w, int hidden,
                     Bf16* x) {
  grid_release();
  grid_wait();
  const std::int64_t first = std::int64_t{blockIdx.x} * hidden;
  float dot = 0;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) {
    dot = fmaf(w[i], value(n + first + i), dot);
  }
  const float share = 1.0F / (1.0F + __expf(-block_sum(dot)));
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) {
    const float y = value(part + first + i) + (bias == nullptr ? 0.0F : bias[i]);
    store(x + first + i, fmaf(share, y, value(x + first + i)));
  }
}

__global__ void __launch_bounds__(kThreads)
    activate_kernel(const Bf16* x, const float* bias, Activate how, int intermediate, Bf16* y) {
  grid_release();
  grid_wait();
  const int c = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (c >= intermediate) return;
  const std::int64_t row = blockIdx.y;
  const Bf16* from = x + row * intermediate * (how.gated ? 2 : 1);
  float g = value(from + (how.gated ? 16 * (c / 8) + c % 8 : c));
  float u = how.gated ? value(from + 16 * (c / 8) + 8 + c % 8) : 0.0F;
  if (bias != nullptr) {
    g += bias[c];
    if (how.gated) u += bias[intermediate + c];
  }
  store(y + row * intermediate + c, gate_of(how, g, u));
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float factor, std::int64_t n, Bf16* x) {
  grid_release();
  grid_wait();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) store(x + i, factor * value(x + i));
}

__global__ void __launch_bounds__(kThreads)
    logits_kernel(float scale, float cap, std::int64_t n, float* x) {
  grid_release();
  grid_wait();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const float y = scale * x[i];
  x[i] = cap > 0 ? cap * tanhf(y / cap) : y;
}

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

/// A warp a head; blockIdx.x is the row, blockIdx.y shares out its heads.
__global__ void __launch_bounds__(kThreads) finish_heads_kernel(HeadAppend a) {
  __shared__ float shared[kWarps][kMostHeadDim];
  grid_release();
  grid_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  const int first_value = a.shape.heads + a.shape.kv_heads;
  const int all_heads = first_value + a.shape.kv_heads;
  if (head >= all_heads) return;
  const HeadFinish& f = a.finish;
  const int dim = a.shape.head_dim;
  const std::int64_t row = blockIdx.x;
  Bf16* const mine = a.qkv + (row * all_heads + head) * dim;
  float* const x = shared[warp];
  const bool turns = head < first_value;
  float squares = 0;
  for (int i = lane; i < dim; i += 32) {
    x[i] = value(mine + i) + (f.bias == nullptr ? 0.0F : f.bias[head * dim + i]);
    squares = fmaf(x[i], x[i], squares);
  }
  if (turns && f.q_norm != nullptr) {
    const bool q = head < a.shape.heads;
    const float factor = f.whole ? whole_factor(a, row, q)
                                 : rsqrtf(warp_sum(squares) / static_cast<float>(dim) + f.eps);
    const float* weight = q ? f.q_norm : f.k_norm;
    if (f.whole) weight += (q ? head : head - a.shape.heads) * dim;
    for (int i = lane; i < dim; i += 32) x[i] = x[i] * factor * weight[i];
  }
  __syncwarp();
  if (turns && f.cos != nullptr) {
    const int half = f.dims / 2;
    const std::int64_t angle = std::int64_t{a.positions[row]} * half;
    for (int i = lane; i < half; i += 32) {
      const int low = f.interleaved ? 2 * i : i;
      const int high = f.interleaved ? 2 * i + 1 : i + half;
      const float cos = f.cos[angle + i];
      const float sin = f.sin[angle + i];
      const float p = x[low];
      const float q = x[high];
      x[low] = p * cos - q * sin;
      x[high] = q * cos + p * sin;
    }
    __syncwarp();
  }
  for (int i = lane; i < dim; i += 32) store(mine + i, x[i]);
  const std::int64_t slot = a.slots[row];
  if (head < a.shape.heads || slot < 0) return;
  const int kv_head = turns ? head - a.shape.heads : head - first_value;
  Bf16* const to = a.kv.pool + slot + a.kv.layer_offset + (turns ? 0 : a.kv.part_stride) +
                   kv_head * a.kv.head_stride;
  for (int i = lane; i < dim; i += 32) store(to + i, x[i]);
}

__global__ void __launch_bounds__(kThreads)
    sinks_kernel(const float* lse, const float* sinks, int heads, int head_dim, Bf16* out) {
  grid_release();
  grid_wait();
  const std::int64_t row = blockIdx.x;
  const int columns = heads * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads) {
    const int head = i / head_dim;
    const float sink = sinks[head] * 1.4426950408889634F;
    const float share = 1.0F / (1.0F + exp2f(sink - lse[row * heads + head]));
    store(out + row * columns + i, share * value(out + row * columns + i));
  }
}

unsigned ctas(std::int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

dim3 of_heads(const HeadAppend& a, int heads) {
  return {static_cast<unsigned>(a.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)};
}

}  // namespace

void norm_rows(const NormCall& call, Stream stream) {
  RowCall a;
  a.x = call.x;
  a.x_stride = call.x_stride;
  a.before = call.before;
  a.norm = call.norm;
  a.y = call.y;
  a.y_stride = call.y_stride;
  a.columns = call.columns;
  launch_rows("norm", a, call.rows, stream);
}

void add_part(const PartCall& call, Stream stream) {
  RowCall a;
  a.x = call.part;
  a.x_stride = a.y_stride = call.hidden;
  a.before = call.bias;
  a.norm = call.norm;
  a.factor = call.factor;
  a.sum = call.x;
  a.next = call.next;
  a.y = call.normed;
  a.columns = call.hidden;
  launch_rows("add part", a, call.rows, stream);
}

void add_gated_part(const Bf16* part, const float* bias, const Bf16* n, const float* w, int rows,
                    int hidden, Bf16* x, Stream stream) {
  if (rows <= 0) return;
  launch("add gated part", add_gated_kernel, static_cast<unsigned>(rows), kThreads, 0, stream, part,
         bias, n, w, hidden, x);
}

void activate(const Bf16* x, const float* bias, const Activate& how, int rows, int intermediate,
              Bf16* y, Stream stream) {
  if (rows <= 0) return;
  if (intermediate % 8 != 0) throw CudaError("activate: the row length is no multiple of 8");
  launch("activate", activate_kernel, dim3(ctas(intermediate), static_cast<unsigned>(rows)),
         kThreads, 0, stream, x, bias, how, intermediate, y);
}

void scale_rows(float factor, int rows, int hidden, Bf16* x, Stream stream) {
  const std::int64_t n = std::int64_t{rows} * hidden;
  if (n <= 0) return;
  launch("scale", scale_kernel, ctas(n), kThreads, 0, stream, factor, n, x);
}

void finish_logits(float scale, float cap, int rows, int vocab, float* logits, Stream stream) {
  const std::int64_t n = std::int64_t{rows} * vocab;
  if (n <= 0) return;
  launch("finish logits", logits_kernel, ctas(n), kThreads, 0, stream, scale, cap, n, logits);
}

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

void apply_sinks(const float* lse, const float* sinks, int rows, int heads, int head_dim, Bf16* out,
                 Stream stream) {
  if (rows <= 0) return;
  launch("apply sinks", sinks_kernel, static_cast<unsigned>(rows), kThreads, 0, stream, lse, sinks,
         heads, head_dim, out);
}

}  // namespace baton::cuda
