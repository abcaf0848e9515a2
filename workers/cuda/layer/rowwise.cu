// Memory-bound kernels. Each moves 16 bytes a load, computes in fp32 and rounds once, at the end.
// The shape of every reduction follows from the row's length alone: a row's bits do not depend on
// its batch-mates.
#include "workers/cuda/layer/rowwise.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <string>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/norm.cuh"

namespace baton::cuda {
namespace {

template <int kWords>
struct alignas(4 * kWords) Words {
  std::uint32_t word[kWords];
};
using Words4 = Words<4>;  // eight bf16

template <int kWords>
__device__ __forceinline__ void all_to_floats(const Words<kWords>& from, float (&to)[2 * kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const float2 pair = to_floats(from.word[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

template <int kWords>
__device__ __forceinline__ Words<kWords> narrow_all(const float (&from)[2 * kWords]) {
  Words<kWords> to;
#pragma unroll
  for (int i = 0; i < kWords; ++i) to.word[i] = narrow(from[2 * i], from[2 * i + 1]);
  return to;
}

[[noreturn]] void refuse(const char* call, const char* what) {
  throw CudaError(std::string(call) + ": " + what);
}

// ------------------------------------------------------------------ copies of rows

constexpr int kCopyThreads = 128;
constexpr int kCopyUnroll = 4;

/// Copies `vectors` times 16 bytes; blockIdx.y names the part of the row.
__device__ __forceinline__ void copy_row(const Words4* from, Words4* to, int vectors) {
  const int begin =
      static_cast<int>(blockIdx.y) * kCopyThreads * kCopyUnroll + static_cast<int>(threadIdx.x);
  Words4 held[kCopyUnroll];
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i) {
    const int at = begin + i * kCopyThreads;
    if (at < vectors) held[i] = from[at];
  }
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i) {
    const int at = begin + i * kCopyThreads;
    if (at < vectors) to[at] = held[i];
  }
}

dim3 copy_grid(int rows, int vectors) {
  const int part = kCopyThreads * kCopyUnroll;
  return {static_cast<unsigned>(rows), static_cast<unsigned>((vectors + part - 1) / part)};
}

__global__ void __launch_bounds__(kCopyThreads)
    embed_kernel(const Words4* table, int vocab, const std::int32_t* tokens,
                 const std::int32_t* sampled, int vectors, Words4* x) {
  grid_release();
  grid_wait();
  const std::size_t row = blockIdx.x;
  std::int32_t token = tokens[row];
  if (token < 0) token = sampled[-1 - token];
  if (token < 0 || token >= vocab) token = 0;
  copy_row(table + static_cast<std::size_t>(token) * vectors, x + row * vectors, vectors);
}

__global__ void __launch_bounds__(kCopyThreads)
    gather_kernel(const Words4* x, const std::int32_t* index, int vectors, Words4* y) {
  grid_release();
  grid_wait();
  const std::size_t row = blockIdx.x;
  copy_row(x + static_cast<std::size_t>(index[row]) * vectors, y + row * vectors, vectors);
}

// ------------------------------------------------------------------ norms

/// One CTA a row; the row stays in registers between the sum and the product.
template <int kVectors, bool kAdd>
__global__ void norm_kernel(const Words4* x, const Words4* delta, const Words4* weight, float eps,
                            int vectors, Words4* sum, Words4* y) {
  grid_release();
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  Words4 scale[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {  // weights are never written: before the wait
    const int at = thread + i * threads;
    if (at < vectors) scale[i] = weight[at];
  }
  grid_wait();
  const std::size_t begin = static_cast<std::size_t>(blockIdx.x) * vectors;
  Words4 held[kVectors];
  Words4 added[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = thread + i * threads;
    if (at < vectors) held[i] = x[begin + at];
    if (kAdd && at < vectors) added[i] = delta[begin + at];
  }
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = thread + i * threads;
    if (at >= vectors) continue;
    float value[8];
    all_to_floats(held[i], value);
    if (kAdd) {
      float more[8];
      all_to_floats(added[i], more);
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] += more[j];
      held[i] = narrow_all<4>(value);
      sum[begin + at] = held[i];
      all_to_floats(held[i], value);  // the norm is taken of what is stored
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares = fmaf(value[j], value[j], squares);
  }
  const float mean = sum_over_block(squares) / (8.0F * static_cast<float>(vectors));
  const float factor = rsqrtf(mean + eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = thread + i * threads;
    if (at >= vectors) continue;
    float value[8];
    float w[8];
    all_to_floats(held[i], value);
    all_to_floats(scale[i], w);
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j] = value[j] * factor * w[j];
    y[begin + at] = narrow_all<4>(value);
  }
}

template <bool kAdd>
void launch_norm(const char* call, const Bf16* x, const Bf16* delta, const Bf16* weight, float eps,
                 int rows, int hidden, Bf16* sum, Bf16* y, Stream stream) {
  if (rows <= 0) return;
  if (hidden <= 0 || hidden % 8 != 0) refuse(call, "the row length is no multiple of 8");
  const int vectors = hidden / 8;
  const auto [each, threads] = NormShape::of(vectors);
  if (threads > 1024) refuse(call, "rows of more than 65536 elements");
  auto* kernel = each == 1   ? norm_kernel<1, kAdd>
                 : each == 2 ? norm_kernel<2, kAdd>
                 : each == 4 ? norm_kernel<4, kAdd>
                             : norm_kernel<8, kAdd>;
  launch(call, kernel, static_cast<unsigned>(rows), static_cast<unsigned>(threads), 0, stream,
         reinterpret_cast<const Words4*>(x), reinterpret_cast<const Words4*>(delta),
         reinterpret_cast<const Words4*>(weight), eps, vectors, reinterpret_cast<Words4*>(sum),
         reinterpret_cast<Words4*>(y));
}

// ------------------------------------------------------------------ rope and the KV pool

constexpr int kRopeThreads = 128;

/// Loads 2 * kWords values of `from` as floats (16 bytes a load; the address is a multiple of it).
template <int kWords>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[2 * kWords]) {
#pragma unroll
  for (int i = 0; i < kWords / 2; ++i) {
    const float4 four = reinterpret_cast<const float4*>(from)[i];
    to[4 * i] = four.x;
    to[4 * i + 1] = four.y;
    to[4 * i + 2] = four.z;
    to[4 * i + 3] = four.w;
  }
}

/// One head: each lane of a group holds 2 * kWords elements of either half, low[i] and high[i]
/// being the pairs that turn together.
template <int kWords>
struct HeadPart {
  static constexpr int kElements = 2 * kWords;
  using Vector = Words<kWords>;
  float low[kElements];
  float high[kElements];

  __device__ __forceinline__ void load(const Bf16* head, int at, int half) {
    all_to_floats(*reinterpret_cast<const Vector*>(head + at), low);
    all_to_floats(*reinterpret_cast<const Vector*>(head + half + at), high);
  }
  __device__ __forceinline__ void store(Bf16* head, int at, int half) const {
    *reinterpret_cast<Vector*>(head + at) = narrow_all<kWords>(low);
    *reinterpret_cast<Vector*>(head + half + at) = narrow_all<kWords>(high);
  }
  __device__ __forceinline__ void add(const HeadPart& other) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      low[i] += other.low[i];
      high[i] += other.high[i];
    }
  }
  __device__ __forceinline__ float squares() const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
    return sum;
  }
  __device__ __forceinline__ void scale(const HeadPart& weight, float factor) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      low[i] = low[i] * factor * weight.low[i];
      high[i] = high[i] * factor * weight.high[i];
    }
  }
  __device__ __forceinline__ void rotate(const float (&cos)[kElements],
                                         const float (&sin)[kElements]) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float x = low[i];
      const float y = high[i];
      low[i] = x * cos[i] - y * sin[i];
      high[i] = y * cos[i] + x * sin[i];
    }
  }
};

/// Groups of `lanes` (a power of two) take one head each; blockIdx.x is the row, blockIdx.y shares
/// out its heads. Lanes beyond the head's length only take part in the shuffles.
template <int kWords>
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(RopeAppend a, int lanes) {
  grid_release();
  constexpr int kElements = 2 * kWords;
  const int half = a.shape.head_dim / 2;
  const int at = static_cast<int>(threadIdx.x) % lanes * kElements;
  const bool inside = at < half;
  const int groups = kRopeThreads / lanes;
  const int all_heads = a.shape.heads + 2 * a.shape.kv_heads;
  const int first_value = a.shape.heads + a.shape.kv_heads;
  const std::size_t row = blockIdx.x;
  grid_wait();
  const std::int64_t slot = a.slots[row];
  float cos[kElements] = {};
  float sin[kElements] = {};
  if (inside) {
    const std::size_t angle = static_cast<std::size_t>(a.positions[row]) * half + at;
    load_floats<kWords>(a.rope.cos + angle, cos);
    load_floats<kWords>(a.rope.sin + angle, sin);
  }
  Bf16* const x = a.qkv + row * static_cast<std::size_t>(all_heads) * a.shape.head_dim;
  const int stride = groups * static_cast<int>(gridDim.y);
  const int group = static_cast<int>(threadIdx.x) / lanes + static_cast<int>(blockIdx.y) * groups;
  // All threads go round equally often: the shuffles need whole warps.
  for (int base = 0; base < all_heads; base += stride) {
    const int head = base + group;
    const bool active = inside && head < all_heads;
    Bf16* const mine = x + static_cast<std::size_t>(active ? head : 0) * a.shape.head_dim;
    HeadPart<kWords> part{};
    if (active) part.load(mine, at, half);
    if (active && a.rope.bias != nullptr) {
      HeadPart<kWords> bias;
      bias.load(a.rope.bias + static_cast<std::size_t>(head) * a.shape.head_dim, at, half);
      part.add(bias);
    }
    if (a.rope.q_norm != nullptr) {
      float squares = part.squares();
      for (int step = lanes / 2; step > 0; step /= 2) {
        squares += __shfl_xor_sync(0xFFFFFFFFU, squares, step);
      }
      if (active && head < first_value) {
        HeadPart<kWords> weight;
        weight.load(head < a.shape.heads ? a.rope.q_norm : a.rope.k_norm, at, half);
        part.scale(weight, rsqrtf(squares / static_cast<float>(2 * half) + a.rope.eps));
      }
    }
    if (!active) continue;
    if (head < first_value) part.rotate(cos, sin);
    if (head < first_value || a.rope.bias != nullptr) part.store(mine, at, half);
    if (head >= a.shape.heads && slot >= 0) {
      const bool value = head >= first_value;
      const int kv_head = head - (value ? first_value : a.shape.heads);
      part.store(a.kv.pool + slot + a.kv.layer_offset + (value ? a.kv.part_stride : 0) +
                     kv_head * a.kv.head_stride,
                 at, half);
    }
  }
}

// ------------------------------------------------------------------ silu

constexpr int kSiluThreads = 256;
constexpr int kSiluUnroll = 2;

__global__ void __launch_bounds__(kSiluThreads)
    silu_kernel(const Words4* gate_up, std::size_t groups, Words4* y) {
  grid_release();
  grid_wait();
  const std::size_t begin =
      static_cast<std::size_t>(blockIdx.x) * kSiluThreads * kSiluUnroll + threadIdx.x;
  Words4 gate[kSiluUnroll];
  Words4 up[kSiluUnroll];
#pragma unroll
  for (int i = 0; i < kSiluUnroll; ++i) {
    const std::size_t at = begin + i * kSiluThreads;
    if (at < groups) {
      gate[i] = gate_up[2 * at];
      up[i] = gate_up[2 * at + 1];
    }
  }
#pragma unroll
  for (int i = 0; i < kSiluUnroll; ++i) {
    const std::size_t at = begin + i * kSiluThreads;
    if (at >= groups) continue;
    float g[8];
    float u[8];
    all_to_floats(gate[i], g);
    all_to_floats(up[i], u);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = g[j] / (1.0F + __expf(-g[j])) * u[j];
    y[at] = narrow_all<4>(g);
  }
}

}  // namespace

void embed(const Bf16* table, int vocab, const std::int32_t* tokens, const std::int32_t* sampled,
           int rows, int hidden, Bf16* x, Stream stream) {
  if (rows <= 0) return;
  if (hidden <= 0 || hidden % 8 != 0) refuse("embed", "the row length is no multiple of 8");
  launch("embed", embed_kernel, copy_grid(rows, hidden / 8), kCopyThreads, 0, stream,
         reinterpret_cast<const Words4*>(table), vocab, tokens, sampled, hidden / 8,
         reinterpret_cast<Words4*>(x));
}

void rms_norm(const Bf16* x, const Bf16* weight, float eps, int rows, int hidden, Bf16* y,
              Stream stream) {
  launch_norm<false>("rms_norm", x, nullptr, weight, eps, rows, hidden, nullptr, y, stream);
}

void add_rms_norm(Bf16* x, const Bf16* delta, const Bf16* weight, float eps, int rows, int hidden,
                  Bf16* y, Stream stream) {
  launch_norm<true>("add_rms_norm", x, delta, weight, eps, rows, hidden, x, y, stream);
}

void gather_rows(const Bf16* x, const std::int32_t* index, int rows, int columns, Bf16* y,
                 Stream stream) {
  if (rows <= 0) return;
  if (columns <= 0 || columns % 8 != 0) {
    refuse("gather_rows", "the row length is no multiple of 8");
  }
  launch("gather_rows", gather_kernel, copy_grid(rows, columns / 8), kCopyThreads, 0, stream,
         reinterpret_cast<const Words4*>(x), index, columns / 8, reinterpret_cast<Words4*>(y));
}

void check_rope(const Rope& rope) {
  if ((rope.q_norm == nullptr) != (rope.k_norm == nullptr)) {
    refuse("rope", "q and k are normed both or neither");
  }
}

void rope_append(const RopeAppend& a, Stream stream) {
  if (a.rows <= 0) return;
  const int dim = a.shape.head_dim;
  if (dim % 8 != 0 || dim < 16 || dim > 256) {
    refuse("rope_append", "head_dim must be a multiple of 8 from 16 to 256");
  }
  check_rope(a.rope);
  const int elements = dim % 16 == 0 ? 8 : 4;  // of either half, a lane
  int lanes = 1;
  while (lanes * elements < dim / 2) lanes *= 2;
  const int groups = kRopeThreads / lanes;
  const int heads = a.shape.heads + 2 * a.shape.kv_heads;
  // Few rows: one round for every CTA. Many rows: the angles are loaded once for all heads.
  const int parts = a.rows <= 128 ? (heads + groups - 1) / groups : 1;
  launch("rope_append", elements == 8 ? rope_kernel<4> : rope_kernel<2>,
         dim3(static_cast<unsigned>(a.rows), static_cast<unsigned>(parts)), kRopeThreads, 0, stream,
         a, lanes);
}

void silu_mul(const Bf16* gate_up, int rows, int intermediate, Bf16* y, Stream stream) {
  if (rows <= 0) return;
  if (intermediate <= 0 || intermediate % 8 != 0) {
    refuse("silu_mul", "the row length is no multiple of 8");
  }
  const std::size_t groups = static_cast<std::size_t>(rows) * (intermediate / 8);
  constexpr std::size_t kEach = kSiluThreads * kSiluUnroll;
  launch("silu_mul", silu_kernel, static_cast<unsigned>((groups + kEach - 1) / kEach), kSiluThreads,
         0, stream, reinterpret_cast<const Words4*>(gate_up), groups, reinterpret_cast<Words4*>(y));
}

}  // namespace baton::cuda
