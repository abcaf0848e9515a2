// y = x W^T for 1 to 16 rows of x. W's rows are the 16-row operand of mma.m16n8k16, x's rows the
// narrow one. A lane loads 16 consecutive bytes of two rows of W: eight k, which are two k-pairs of
// each of two mma. The order of k inside an mma does not matter as long as both operands agree, so
// W needs no shuffle, no shared memory and no other layout. Warps share the sum over k and meet in
// shared memory. A CTA takes tiles of output features in turns, and asks for the next tile's W
// while it finishes this one.
//
// The first tiles of W are asked for before grid_wait(): weights are never written, so they stream
// while the kernel before still runs.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <iterator>

#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_kernels.h"
#include "workers/cuda/mma.cuh"

namespace baton::cuda {

namespace {

constexpr int kMostRows = 16;
constexpr int kMaxWarps = 8;
constexpr int kUnit = 64;  // k of one turn of a warp: 128 bytes of each row of W

struct Arguments {
  const std::uint16_t* x;
  const std::uint16_t* w;
  void* y;
  int rows, out, in;
};

__device__ __forceinline__ uint4 load_once(const std::uint16_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

/// What a lane holds of one unit: two halves of 32 k.
template <int kRowTiles>
struct WeightUnit {
  uint4 low[kRowTiles][2];   // rows g of the tiles
  uint4 high[kRowTiles][2];  // rows g + 8
};
template <int kColumnTiles>
struct InputUnit {
  uint4 x[kColumnTiles][2];
};

template <LinearOutput kOutput>
__device__ __forceinline__ void store(const Arguments& a, int row, int feature, float sum) {
  if (row >= a.rows || feature >= a.out) return;
  const std::int64_t at = std::int64_t{row} * a.out + feature;
  if constexpr (kOutput == LinearOutput::f32) {
    static_cast<float*>(a.y)[at] = sum;
  } else {
    auto* y = static_cast<__nv_bfloat16*>(a.y);
    if constexpr (kOutput == LinearOutput::residual) sum += __bfloat162float(y[at]);
    y[at] = __float2bfloat16(sum);
  }
}

/// Sums of a CTA's warps for a tile: [warp][row and column tile][element][lane].
template <int kTiles>
using Partial = float[kMaxWarps][kTiles][4][32];

/// Adds up what the warps found and stores the tile. An element e of a lane is feature g + 8 (e /
/// 2) of the tile, row 2 t + e % 2 of x.
template <int kRowTiles, int kColumnTiles, LinearOutput kOutput>
__device__ __forceinline__ void finish_tile(const Arguments& a,
                                            const Partial<kRowTiles * kColumnTiles>& partial,
                                            int first_feature) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  const auto total = [&](int tile, int element, int lane) {
    float sum = 0;
    for (int i = 0; i < warps; ++i) sum += partial[i][tile][element][lane];
    return sum;
  };
  constexpr int kElements = kOutput == LinearOutput::silu_mul ? 2 : 4;
  for (int i = static_cast<int>(threadIdx.x); i < kRowTiles * kColumnTiles * kElements * 32;
       i += static_cast<int>(blockDim.x)) {
    const int lane = i % 32;
    const int element = i / 32 % kElements;
    const int tile = i / 32 / kElements;
    const int row = tile % kColumnTiles * 8 + lane % 4 * 2 + element % 2;
    const int first = first_feature + 16 * (tile / kColumnTiles);
    if constexpr (kOutput == LinearOutput::silu_mul) {
      // Eight features of gate, then eight of up: both meet in this lane.
      const float gate = total(tile, element, lane);
      const float up = total(tile, element + 2, lane);
      const int column = first / 2 + lane / 4;
      if (row < a.rows && column < a.out / 2) {
        static_cast<__nv_bfloat16*>(a.y)[std::int64_t{row} * (a.out / 2) + column] =
            __float2bfloat16(gate / (1.0F + __expf(-gate)) * up);
      }
    } else {
      store<kOutput>(a, row, first + lane / 4 + element / 2 * 8, total(tile, element, lane));
    }
  }
}

/// Where a warp's loads of W are: unit `i` of `mine` of tile `tile`.
template <int kRowTiles>
struct WeightCursor {
  const Arguments& a;
  int warp, warps, g, t;
  int tile, i = 0, mine;
  const std::uint16_t* low[kRowTiles];
  const std::uint16_t* high[kRowTiles];

  /// Rows behind the last one compute what nobody stores.
  __device__ __forceinline__ void point() {
    const int first = tile * 16 * kRowTiles;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      low[m] = a.w + std::int64_t{min(first + 16 * m + g, a.out - 1)} * a.in + 8 * t;
      high[m] = a.w + std::int64_t{min(first + 16 * m + g + 8, a.out - 1)} * a.in + 8 * t;
    }
  }
  __device__ __forceinline__ void load(WeightUnit<kRowTiles>& to, int tiles) {
    if (tile >= tiles) return;
    const int k = (warp + i * warps) * kUnit;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to.low[m][half] = load_once(low[m] + k + 32 * half);
        to.high[m][half] = load_once(high[m] + k + 32 * half);
      }
    }
    if (++i < mine) return;
    i = 0;
    tile += static_cast<int>(gridDim.x);
    point();
  }
};

template <int kRowTiles, int kColumnTiles, int kDepth, int kPerMultiprocessor, LinearOutput kOutput>
__global__ void __launch_bounds__(32 * kMaxWarps, kPerMultiprocessor)
    direct_kernel(Arguments a, int tiles) {
  __shared__ Partial<kRowTiles * kColumnTiles> partial[2];
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int mine = (a.in / kUnit - warp + warps - 1) / warps;
  WeightCursor<kRowTiles> cursor{a, warp, warps, g, t, static_cast<int>(blockIdx.x),
                                 0, mine, {},    {}};
  cursor.point();
  int next_input = 0;
  const auto load_input = [&](InputUnit<kColumnTiles>& to) {
    const int k = (warp + next_input * warps) * kUnit + 8 * t;
    if (++next_input == mine) next_input = 0;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int row = 8 * n + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to.x[n][half] = make_uint4(0, 0, 0, 0);
        if (row < a.rows) {
          to.x[n][half] =
              *reinterpret_cast<const uint4*>(a.x + std::int64_t{row} * a.in + k + 32 * half);
        }
      }
    }
  };

  WeightUnit<kRowTiles> w[kDepth];
  InputUnit<kColumnTiles> x[kDepth];
#pragma unroll
  for (int d = 0; d < kDepth; ++d) cursor.load(w[d], tiles);
  grid_wait();
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load_input(x[d]);

  float sums[kRowTiles][kColumnTiles][4] = {};
  int tile = static_cast<int>(blockIdx.x);
  int done = 0;
  int buffer = 0;
  while (tile < tiles) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (tile >= tiles) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          const uint4 lo = w[d].low[m][half];
          const uint4 hi = w[d].high[m][half];
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) {
            const uint4 b = x[d].x[n][half];
            mma(sums[m][n], lo.x, hi.x, lo.y, hi.y, b.x, b.y);
            mma(sums[m][n], lo.z, hi.z, lo.w, hi.w, b.z, b.w);
          }
        }
      }
      cursor.load(w[d], tiles);
      load_input(x[d]);
      // Not earlier: CTAs of the next kernel that wait beside us would take places unevenly.
      if (cursor.tile >= tiles) grid_release();
      if (++done < mine) continue;
        // The other buffer may still be read by slower warps; this one was before the last barrier.
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            partial[buffer][warp][m * kColumnTiles + n][e][lane] = sums[m][n][e];
            sums[m][n][e] = 0;
          }
        }
      }
      __syncthreads();
      finish_tile<kRowTiles, kColumnTiles, kOutput>(a, partial[buffer], tile * 16 * kRowTiles);
      buffer ^= 1;
      done = 0;
      tile += static_cast<int>(gridDim.x);
    }
  }
}

using Kernel = void (*)(Arguments, int);

template <int kRowTiles, int kColumnTiles, int kDepth, int kPerMultiprocessor>
Kernel pick(LinearOutput output) {
  constexpr int kR = kRowTiles;
  constexpr int kC = kColumnTiles;
  constexpr int kD = kDepth;
  constexpr int kP = kPerMultiprocessor;
  switch (output) {
    case LinearOutput::bf16:
      return direct_kernel<kR, kC, kD, kP, LinearOutput::bf16>;
    case LinearOutput::f32:
      return direct_kernel<kR, kC, kD, kP, LinearOutput::f32>;
    case LinearOutput::residual:
      return direct_kernel<kR, kC, kD, kP, LinearOutput::residual>;
    case LinearOutput::silu_mul:
      return direct_kernel<kR, kC, kD, kP, LinearOutput::silu_mul>;
  }
  return nullptr;
}

/// How a variant cuts the work.
struct Cut {
  int row_tiles;           // a CTA computes 16 * row_tiles output features
  int warps;               // that share the sum over k
  int per_multiprocessor;  // CTAs of eight warps
};
constexpr Cut kCuts[] = {{1, 8, 2}, {2, 8, 2}, {1, 8, 3}, {1, 4, 3}};

std::vector<int> variants(int rows, const LinearWeight& w, bool deterministic) {
  if (w.is_quantized() || deterministic || rows > kMostRows || w.in % kUnit != 0) return {};
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(std::size(kCuts)); ++i) {
    const Cut& cut = kCuts[i];
    // More places than CTAs are no use: the first multiprocessors to be free would take too many.
    const bool uneven = cut.per_multiprocessor == 3 && (w.out + 15) / 16 <= 2 * multiprocessors();
    if (w.in / kUnit >= cut.warps && !uneven) found.push_back(i);
  }
  return found;
}

std::string describe(int variant) {
  const Cut& cut = kCuts[variant];
  return std::to_string(16 * cut.row_tiles) + " features, " + std::to_string(cut.warps) +
         " warps, " + std::to_string(cut.per_multiprocessor) + " a multiprocessor";
}

void run(int variant, const LinearCall& call, Stream stream) {
  const Cut& cut = kCuts[variant];
  const Arguments a{reinterpret_cast<const std::uint16_t*>(call.x),
                    reinterpret_cast<const std::uint16_t*>(call.w.data),
                    call.y,
                    call.rows,
                    call.w.out,
                    call.w.in};
  const bool narrow = call.rows <= 8;
  // Depth times loads of a unit is what the registers hold beside each other.
  const Kernel kernel =
      cut.row_tiles == 2 ? (narrow ? pick<2, 1, 2, 2>(call.output) : pick<2, 2, 2, 2>(call.output))
      : cut.per_multiprocessor == 3
          ? (narrow ? pick<1, 1, 2, 3>(call.output) : pick<1, 2, 2, 3>(call.output))
          : (narrow ? pick<1, 1, 4, 2>(call.output) : pick<1, 2, 3, 2>(call.output));
  const int tiles = (call.w.out + 16 * cut.row_tiles - 1) / (16 * cut.row_tiles);
  // Every CTA takes the same number of tiles, or one less.
  const int places = cut.per_multiprocessor * multiprocessors() * kMaxWarps / cut.warps;
  const int turns = (tiles + places - 1) / places;
  launch("direct linear", kernel, (tiles + turns - 1) / turns, 32 * cut.warps, 0, stream, a, tiles);
}

}  // namespace

const LinearKernel kDirectLinear{"direct", variants, run, describe};

}  // namespace baton::cuda
