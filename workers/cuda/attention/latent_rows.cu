// What rows go through before and behind attention over latent keys and values.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "workers/cuda/attention/latent.h"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/general.cuh"
#include "workers/cuda/mma.cuh"

namespace baton::cuda {
namespace {

// ------------------------------------------------------------------ into the pool

constexpr int kAppendWarps = 4;
constexpr int kAppendThreads = 32 * kAppendWarps;
constexpr int kEach = kMostLatentRank / kAppendThreads;

/// One warp: the pair `i` of rope components, at the row's position, times `grown`.
__device__ __forceinline__ void turn(const LatentAppend& a, std::int64_t row, const Bf16* from,
                                     Bf16* to, int i, float grown) {
  const int half = a.shape.rope / 2;
  const std::int64_t angle = std::int64_t{a.positions[row]} * half + i;
  const float cos = __ldg(a.cos + angle), sin = __ldg(a.sin + angle);
  const int low = a.interleaved ? 2 * i : i;
  const int high = a.interleaved ? 2 * i + 1 : i + half;
  const float p = value(from + low), q = value(from + high);
  store(to + low, (p * cos - q * sin) * grown);
  store(to + high, (q * cos + p * sin) * grown);
}

/// blockIdx.y 0 is the latent vector; behind it a warp a head.
__global__ void __launch_bounds__(kAppendThreads) append_kernel(LatentAppend a) {
  __shared__ float of_warp[kAppendWarps];
  grid_wait();
  grid_release();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const std::int64_t row = blockIdx.x;
  const int rank = a.shape.rank;
  if (blockIdx.y > 0) {
    const int head = (static_cast<int>(blockIdx.y) - 1) * kAppendWarps + warp;
    if (head >= a.shape.heads) return;
    Bf16* const from =
        a.q + row * a.q_stride + std::int64_t{head} * a.shape.query() + a.shape.plain;
    Bf16* const wide = a.wide + (row * a.shape.heads + head) * a.shape.width() + rank;
    Bf16* const to = row < a.in_place ? from : wide;
    const float grown = query_factor(a.query_growth, a.query_context, a.positions[row]);
    for (int i = lane; i < a.shape.rope / 2; i += 32) turn(a, row, from, to, i, grown);
    if (a.query_growth == 0) return;
    Bf16* const plain = from - a.shape.plain;
    for (int i = lane; i < a.shape.plain; i += 32) store(plain + i, value(plain + i) * grown);
    return;
  }
  const std::int64_t slot = a.slots[row];
  if (slot < 0) return;  // a row that only fills a graph
  // A slot counts a key's numbers; a latent vector is as long as a key and a value.
  Bf16* const to =
      a.kv_layer.pool + slot + slot % a.kv_layer.block_stride + a.kv_layer.layer_offset;
  const Bf16* const from = a.kv + row * a.kv_stride;
  float v[kEach];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = thread + kAppendThreads * i;
    v[i] = at < rank ? value(from + at) : 0.0F;
    squares = fmaf(v[i], v[i], squares);
  }
  squares = warp_sum(squares);
  if (lane == 0) of_warp[warp] = squares;
  __syncthreads();
  squares = 0;
#pragma unroll
  for (int w = 0; w < kAppendWarps; ++w) squares += of_warp[w];
  const float factor = rsqrtf(squares / static_cast<float>(rank) + a.eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = thread + kAppendThreads * i;
    if (at < rank) store(to + at, v[i] * factor * __ldg(a.norm + at));
  }
  for (int i = thread; i < a.shape.rope / 2; i += kAppendThreads) {
    turn(a, row, from + rank, to + rank, i, 1);
  }
}

// ------------------------------------------------------------------ through a head's matrix

constexpr int kOuts = 64;
constexpr int kInputs = 64;  // at a time
constexpr int kStride = kInputs + 8;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kVectors = kInputs / 8;
static_assert(kOuts == kInputs, "a piece of W has one stride, whichever way it lies");

/// 64 x 64 elements at (first row, first column) of a matrix on their way to shared memory; noughts
/// behind its ends.
template <int kRows>
struct Piece {
  static constexpr int kHere = kRows * kVectors / kThreads;
  uint4 v[kHere];
  __device__ __forceinline__ void load(const Bf16* from, std::int64_t stride, int row, int rows,
                                       int column, int columns) {
#pragma unroll
    for (int i = 0; i < kHere; ++i) {
      const int at = static_cast<int>(threadIdx.x) + kThreads * i;
      const int r = row + at / kVectors, c = column + at % kVectors * 8;
      v[i] = r < rows && c < columns ? *reinterpret_cast<const uint4*>(from + r * stride + c)
                                     : uint4{0, 0, 0, 0};
    }
  }
  __device__ __forceinline__ void put(__nv_bfloat16* to) const {
#pragma unroll
    for (int i = 0; i < kHere; ++i) {
      const int at = static_cast<int>(threadIdx.x) + kThreads * i;
      *reinterpret_cast<uint4*>(to + at / kVectors * kStride + at % kVectors * 8) = v[i];
    }
  }
};

/// Grid (tiles of outputs, heads, tiles of rows). Warps share the rows, or for 16 rows the outputs;
/// either way an output is one sum in the order of its inputs.
template <int kRows, bool kInputsFirst>
__global__ void __launch_bounds__(kThreads) product_kernel(HeadProduct a) {
  constexpr int kRowWarps = kRows / 16;
  constexpr int kTiles = kOuts / 8 * kRowWarps / kWarps;  // of outputs, a warp's
  __shared__ __align__(16) __nv_bfloat16 x_piece[kRows * kStride];
  __shared__ __align__(16) __nv_bfloat16 w_piece[kOuts * kStride];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_out = static_cast<int>(blockIdx.x) * kOuts;
  const int first_row = static_cast<int>(blockIdx.z) * kRows;
  const Bf16* const x = a.x + blockIdx.y * a.x_head;
  const Bf16* const w = a.w + blockIdx.y * a.w_head;
  const int row_at = warp % kRowWarps * 16;
  const int out_at = warp / kRowWarps * kTiles * 8;
  Piece<kRows> next_x;
  Piece<kOuts> next_w;
  const auto load_w = [&](int k) {
    if constexpr (kInputsFirst) {
      next_w.load(w, a.out, k, a.in, first_out, a.out);
    } else {
      next_w.load(w, a.in, first_out, a.out, k, a.in);
    }
  };
  load_w(0);
  grid_wait();
  grid_release();
  next_x.load(x, a.x_row, first_row, a.rows, 0, a.in);
  float sums[kTiles][4] = {};
  for (int k = 0; k < a.in; k += kInputs) {
    next_x.put(x_piece);
    next_w.put(w_piece);
    __syncthreads();
    if (k + kInputs < a.in) {
      next_x.load(x, a.x_row, first_row, a.rows, k + kInputs, a.in);
      load_w(k + kInputs);
    }
#pragma unroll
    for (int half = 0; half < kInputs / 32; ++half) {
      std::uint32_t left[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const __nv_bfloat16* at =
            x_piece + (row_at + lane % 16) * kStride + half * 32 + i * 16 + lane / 16 * 8;
        load_inputs(static_cast<std::uint32_t>(__cvta_generic_to_shared(at)), left[i]);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        std::uint32_t b[4];
        const int out = out_at + 8 * t;
        if constexpr (kInputsFirst) {
          const __nv_bfloat16* at = w_piece + (half * 32 + lane) * kStride + out;
          load_turned(static_cast<std::uint32_t>(__cvta_generic_to_shared(at)), b);
        } else {
          const __nv_bfloat16* at = w_piece + (out + lane % 8) * kStride + half * 32 + lane / 8 * 8;
          load_inputs(static_cast<std::uint32_t>(__cvta_generic_to_shared(at)), b);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma(sums[t], left[i][0], left[i][1], left[i][2], left[i][3], b[2 * i], b[2 * i + 1]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int out = first_out + out_at + 8 * t + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = first_row + row_at + lane / 4 + e / 2 * 8;
      if (row < a.rows && out + e % 2 < a.out) {
        store(a.y + row * a.y_row + blockIdx.y * a.y_head + out + e % 2, sums[t][e]);
      }
    }
  }
}

template <int kRows>
void launch_product(const HeadProduct& a, Stream stream) {
  const dim3 grid(static_cast<unsigned>((a.out + kOuts - 1) / kOuts),
                  static_cast<unsigned>(a.heads),
                  static_cast<unsigned>((a.rows + kRows - 1) / kRows));
  launch("product by heads",
         a.inputs_first ? product_kernel<kRows, true> : product_kernel<kRows, false>, grid,
         kThreads, 0, stream, a);
}

}  // namespace

void latent_append(const LatentAppend& a, Stream stream) {
  if (a.rows <= 0) return;
  const dim3 grid(static_cast<unsigned>(a.rows),
                  static_cast<unsigned>(1 + (a.shape.heads + kAppendWarps - 1) / kAppendWarps));
  launch("latent vectors", append_kernel, grid, kAppendThreads, 0, stream, a);
}

void head_product(const HeadProduct& a, Stream stream) {
  if (a.rows <= 0) return;
  if (a.in % 8 != 0 || a.out % 8 != 0) {
    throw CudaError("product by heads: inputs or outputs are no multiple of 8");
  }
  if (a.rows <= 16) return launch_product<16>(a, stream);
  launch_product<64>(a, stream);
}

}  // namespace baton::cuda
