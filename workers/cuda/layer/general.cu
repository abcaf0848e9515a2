// Plain kernels: what they move is small beside the weights, and they are chained by programmatic
// dependent launch as all others are.
#include "workers/cuda/layer/general.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <string>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/gates.cuh"
#include "workers/cuda/layer/general.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

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

/// A thread's part of a vector in fp32, as Row has it: of weights, which are never written, so that
/// they may be asked for before grid_wait() and come while the kernel before still runs.
template <int kVectors>
struct Early {
  float v[kVectors][8];

  __device__ __forceinline__ void load(const float* from, int columns) {
    if (from == nullptr) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = 8 * (static_cast<int>(threadIdx.x) + i * kThreads);
      if (at >= columns) continue;
      const float4 low = __ldg(reinterpret_cast<const float4*>(from + at));
      const float4 high = __ldg(reinterpret_cast<const float4*>(from + at) + 1);
      v[i][0] = low.x, v[i][1] = low.y, v[i][2] = low.z, v[i][3] = low.w;
      v[i][4] = high.x, v[i][5] = high.y, v[i][6] = high.z, v[i][7] = high.w;
    }
  }
};

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

  __device__ __forceinline__ void add(const Early<kVectors>& other) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < 8; ++k) v[i][k] += other.v[i][k];
    }
  }

  /// `weight` is norm.weight's.
  __device__ __forceinline__ void normalise(const NormWeights& norm,
                                            const Early<kVectors>& weight) {
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
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < 8; ++k) v[i][k] = (v[i][k] - mean) * factor * weight.v[i][k];
    }
    if (norm.bias != nullptr) each([&](float x, int c) { return x + norm.bias[c]; });
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
  constexpr bool kAhead = kVectors <= 4;  // as far as registers last
  Early<kVectors> before, weight, next;
  before.load(a.before, a.columns);
  if (kAhead) {
    weight.load(a.norm.weight, a.columns);
    next.load(a.next.weight, a.columns);
  }
  grid_wait();
  Row<kVectors> row, old;
  row.columns = old.columns = a.columns;
  Bf16* const sum = a.sum + std::int64_t{blockIdx.x} * a.columns;
  row.load(a.x + blockIdx.x * a.x_stride);
  if (a.sum != nullptr) old.load(sum);
  if (a.before != nullptr) row.add(before);
  if (!kAhead) weight.load(a.norm.weight, a.columns);
  if (a.norm.weight != nullptr) row.normalise(a.norm, weight);
  if (a.sum != nullptr) {
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
  if (!kAhead) next.load(a.next.weight, a.columns);
  if (a.next.weight != nullptr) row.normalise(a.next, next);
  row.store(a.y + blockIdx.x * a.y_stride);
}

void launch_rows(const char* name, const RowCall& a, int rows, Stream stream) {
  if (rows <= 0) return;
  if (a.columns <= 0 || a.columns % 8 != 0 || a.columns > 8 * 8 * kThreads) {
    throw CudaError(std::string(name) + ": rows of multiples of 8 up to 16384 elements");
  }
  const auto aligned = [](const float* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  if (!aligned(a.before) || !aligned(a.norm.weight) || !aligned(a.next.weight)) {
    throw CudaError(std::string(name) + ": weights and biases at multiples of 16 bytes");
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

void apply_sinks(const float* lse, const float* sinks, int rows, int heads, int head_dim, Bf16* out,
                 Stream stream) {
  if (rows <= 0) return;
  launch("apply sinks", sinks_kernel, static_cast<unsigned>(rows), kThreads, 0, stream, lse, sinks,
         heads, head_dim, out);
}

}  // namespace baton::cuda
