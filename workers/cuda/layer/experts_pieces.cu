// The products of experts.h: the structure of linear_direct.cu, over pieces of rows that share an
// expert. W goes from memory (or L2, where several pieces read the same) straight into the
// registers that multiply it, as the 16-row operand of mma.m16n8k16; a piece's rows are the narrow
// one. Warps share the sum over the inputs, or, with many rows, take features of their own and
// share x through the L1 cache.
//
// A piece's expert is known on the device alone: nothing can be asked for before grid_wait().
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/experts_pieces.h"
#include "workers/cuda/layer/fp8_numbers.cuh"
#include "workers/cuda/layer/gates.cuh"
#include "workers/cuda/layer/int4_numbers.cuh"
#include "workers/cuda/layer/mxfp4_numbers.cuh"
#include "workers/cuda/mma.cuh"

namespace baton::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kUnit = 64;  // inputs of one turn of a warp
constexpr int kLanes = 32;

struct Arguments {
  const std::uint16_t* x;
  const std::int32_t* source;  // the row of x of each line; null: the line itself
  const std::byte* w;          // [experts][out, in]
  std::int64_t expert_bytes;
  __nv_bfloat16* y;  // [lines, out], or [lines, out / 2] with silu
  const ExpertItem* items;
  const std::int32_t* n_items;
  int out, in;
  bool silu;  // gate and up become one
  // Of the general kernels, beside `silu`:
  Activate act;
  const float* bias;  // [experts][out], gate's, then up's; null: none
};

/// How a CTA of eight warps is used: kSharers of them share the inputs of kRowTiles tiles of
/// features, the others do the same for further ones. A piece has 8 * kColumnTiles rows at most.
template <int kRows, int kColumns, int kSharing, int kUnitsAhead, int kPer>
struct Shape {
  static constexpr int kRowTiles = kRows;
  static constexpr int kColumnTiles = kColumns;
  static constexpr int kSharers = kSharing;
  static constexpr int kDepth = kUnitsAhead;
  static constexpr int kPerMultiprocessor = kPer;
  static constexpr int kCtaTiles = kRows * kWarps / kSharing;
  static constexpr int kPartial = kWarps * kRows * kColumns * 4 * kLanes;  // floats
  static constexpr int kSharedBytes = kPartial * static_cast<int>(sizeof(float));
};

__device__ __forceinline__ uint4 load_weight(const std::byte* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ std::uint32_t load_scales(const std::byte* p) {
  std::uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

/// Where a lane reads its part of a tile, and what it has of one unit: two halves of 32 inputs,
/// eight of them of rows g and g + 8, which are the left operands of two instructions each. In bf16
/// these take the inputs in another order than they lie, so that eight are one load, of x, too.
template <ExpertFormat kFormat>
struct LaneTile;

template <>
struct LaneTile<ExpertFormat::bf16> {
  struct Unit {
    uint4 low[2], high[2];
  };
  const std::byte* low;
  const std::byte* high;

  /// Rows behind the last one compute what nobody stores.
  __device__ __forceinline__ void point(const std::byte* expert, int tile, int out, int in, int g,
                                        int t) {
    const int row = 16 * tile + g;
    low = expert + (std::int64_t{min(row, out - 1)} * in + 8 * t) * 2;
    high = expert + (std::int64_t{min(row + 8, out - 1)} * in + 8 * t) * 2;
  }
  __device__ __forceinline__ void load(int unit, int in, int t, Unit& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = unit * kUnit + 32 * half;
      const bool inside = k + 8 * t < in;
      to.low[half] = inside ? load_weight(low + k * 2) : make_uint4(0, 0, 0, 0);
      to.high[half] = inside ? load_weight(high + k * 2) : make_uint4(0, 0, 0, 0);
    }
  }
  static __device__ __forceinline__ void operands(const Unit& u, int half,
                                                  std::uint32_t (&a)[2][4]) {
    const uint4 lo = u.low[half];
    const uint4 hi = u.high[half];
    a[0][0] = lo.x, a[0][1] = hi.x, a[0][2] = lo.y, a[0][3] = hi.y;
    a[1][0] = lo.z, a[1][1] = hi.z, a[1][2] = lo.w, a[1][3] = hi.w;
  }
  /// The right operands of both, from the half's first input in a row of x on.
  static __device__ __forceinline__ uint4 inputs(const std::uint16_t* x, int t) {
    return *reinterpret_cast<const uint4*>(x + 8 * t);
  }
};

template <>
struct LaneTile<ExpertFormat::mxfp4> {
  struct Unit {
    uint4 words;
    std::uint32_t scales;
  };
  const std::byte* first;

  __device__ __forceinline__ void point(const std::byte* expert, int tile, int out, int in, int g,
                                        int t) {
    const int last = out / kExpertTile - 1;
    first = expert + std::int64_t{min(tile, last)} * expert_units(in) * kMxfp4UnitBytes;
    words_at = (4 * g + t) * 16;
    scales_at = kMxfp4WordBytes + 4 * g;
  }
  __device__ __forceinline__ void load(int unit, int in, int, Unit& to) const {
    const bool inside = unit * kUnit < in;
    const std::byte* at = first + unit * kMxfp4UnitBytes;
    to.words = inside ? load_weight(at + words_at) : make_uint4(0, 0, 0, 0);
    to.scales = inside ? load_scales(at + scales_at) : 0;
  }
  static __device__ __forceinline__ void operands(const Unit& u, int half,
                                                  std::uint32_t (&a)[2][4]) {
    const std::uint32_t low = mxfp4_scale(u.scales, 2 * half);
    const std::uint32_t high = mxfp4_scale(u.scales, 2 * half + 1);
    dequantize_mxfp4(half == 0 ? u.words.x : u.words.z, low, high, a[0]);
    dequantize_mxfp4(half == 0 ? u.words.y : u.words.w, low, high, a[1]);
  }
  static __device__ __forceinline__ uint4 inputs(const std::uint16_t* x, int t) {
    const auto* pairs = reinterpret_cast<const std::uint32_t*>(x) + t;
    return {pairs[0], pairs[4], pairs[8], pairs[12]};
  }
  int words_at, scales_at;
};

template <>
struct LaneTile<ExpertFormat::fp8> {
  struct Unit {
    uint4 words[2];
    std::uint32_t low, high;  // scales, of rows g and g + 8
  };
  const std::byte* first;

  __device__ __forceinline__ void point(const std::byte* expert, int tile, int out, int in, int g,
                                        int t) {
    const int last = out / kExpertTile - 1;
    first = expert + std::int64_t{min(tile, last)} * expert_units(in) * kFp8UnitBytes;
    words_at = (4 * g + t) * 16;
    scales_at = kFp8WordBytes + 4 * g;
  }
  __device__ __forceinline__ void load(int unit, int in, int, Unit& to) const {
    const bool inside = unit * kUnit < in;
    const std::byte* at = first + unit * kFp8UnitBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to.words[half] =
          inside ? load_weight(at + words_at + half * kFp8WordBytes / 2) : make_uint4(0, 0, 0, 0);
    }
    to.low = inside ? load_scales(at + scales_at) : 0;
    to.high = inside ? load_scales(at + scales_at + 32) : 0;
  }
  static __device__ __forceinline__ void operands(const Unit& u, int half,
                                                  std::uint32_t (&a)[2][4]) {
    const float low = __uint_as_float(u.low), high = __uint_as_float(u.high);
    scaled_fp8(u.words[half].x, u.words[half].y, low, high, a[0]);
    scaled_fp8(u.words[half].z, u.words[half].w, low, high, a[1]);
  }
  static __device__ __forceinline__ uint4 inputs(const std::uint16_t* x, int t) {
    return LaneTile<ExpertFormat::mxfp4>::inputs(x, t);
  }
  int words_at, scales_at;
};

template <>
struct LaneTile<ExpertFormat::int4> {
  struct Unit {
    uint4 words;
    uint2 scales;  // words of rows g and g + 8
  };
  const std::byte* first;

  __device__ __forceinline__ void point(const std::byte* expert, int tile, int out, int in, int g,
                                        int t) {
    const int last = out / kExpertTile - 1;
    first = expert + std::int64_t{min(tile, last)} * expert_units(in) * kInt4UnitBytes;
    words_at = (4 * g + t) * 16;
    scales_at = kInt4WordBytes + 8 * g;
  }
  __device__ __forceinline__ void load(int unit, int in, int, Unit& to) const {
    const bool inside = unit * kUnit < in;
    const std::byte* at = first + unit * kInt4UnitBytes;
    to.words = inside ? load_weight(at + words_at) : make_uint4(0, 0, 0, 0);
    to.scales = inside ? make_uint2(load_scales(at + scales_at), load_scales(at + scales_at + 4))
                       : make_uint2(0, 0);
  }
  static __device__ __forceinline__ void operands(const Unit& u, int half,
                                                  std::uint32_t (&a)[2][4]) {
    scaled_int4(half == 0 ? u.words.x : u.words.z, u.scales.x, u.scales.y, a[0]);
    scaled_int4(half == 0 ? u.words.y : u.words.w, u.scales.x, u.scales.y, a[1]);
  }
  static __device__ __forceinline__ uint4 inputs(const std::uint16_t* x, int t) {
    return LaneTile<ExpertFormat::mxfp4>::inputs(x, t);
  }
  int words_at, scales_at;
};

/// What a CTA computes in one turn: some tiles of features of one piece.
struct Work {
  ExpertItem item;
  int first_tile = 0;
};

/// Pieces of an expert take the same features one after another, so that W is in the L2 cache for
/// all but the first.
template <class S>
__device__ __forceinline__ Work work_of(const Arguments& a, int index, int turns_of_piece) {
  Work work;
  work.item = a.items[index / turns_of_piece];
  const int local = index - work.item.begin * turns_of_piece;
  work.first_tile = local / work.item.pieces * S::kCtaTiles;
  work.item = a.items[work.item.begin + local % work.item.pieces];
  return work;
}

/// Walks ahead over the units of a warp.
template <class S, ExpertFormat kFormat>
struct Cursor {
  using Tile = LaneTile<kFormat>;
  const Arguments& a;
  int index, works, turns_of_piece;
  int sharer, set, g, t, mine;
  int i = 0;
  Tile tile[S::kRowTiles];

  __device__ __forceinline__ void point() {
    if (index >= works) return;
    const Work work = work_of<S>(a, index, turns_of_piece);
    const std::byte* expert = a.w + work.item.expert * a.expert_bytes;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      tile[m].point(expert, work.first_tile + set * S::kRowTiles + m, a.out, a.in, g, t);
    }
  }
  __device__ __forceinline__ void load(typename Tile::Unit (&to)[S::kRowTiles]) {
    if (index >= works) return;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) tile[m].load(sharer + i * S::kSharers, a.in, t, to[m]);
    if (++i < mine) return;
    i = 0;
    index += static_cast<int>(gridDim.x);
    point();
  }
};

/// Adds up what the sharers of a tile found, and stores. `partial` is [sharer][tile of the
/// CTA][column tile][element][lane]; element e of a lane is feature g + 8 (e / 2) of the tile, row
/// 2 t + e % 2.
template <class S, bool kGeneral>
__device__ __forceinline__ void finish(const Arguments& a, const float* partial, const Work& work) {
  constexpr int kTiles = S::kCtaTiles * S::kColumnTiles;
  const auto total = [&](int tile, int element, int lane) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < S::kSharers; ++i) {
      sum += partial[((i * kTiles + tile) * 4 + element) * kLanes + lane];
    }
    return sum;
  };
  const int elements = a.silu ? 2 : 4;
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * elements * kLanes; i += 32 * kWarps) {
    const int lane = i % kLanes;
    const int element = i / kLanes % elements;
    const int tile = i / kLanes / elements;
    const int row = tile % S::kColumnTiles * 8 + lane % 4 * 2 + element % 2;
    const int feature = 16 * (work.first_tile + tile / S::kColumnTiles);
    if (row >= work.item.rows || feature >= a.out) continue;
    const std::int64_t line = work.item.first + row;
    if (a.silu) {  // eight features of gate, then eight of up
      float gate = total(tile, element, lane);
      float up = total(tile, element + 2, lane);
      if constexpr (kGeneral) {
        const int column = feature / 2 + lane / 4;
        if (a.bias != nullptr) {
          const float* bias = a.bias + std::int64_t{work.item.expert} * a.out;
          gate += bias[column];
          up += bias[a.out / 2 + column];
        }
        a.y[line * (a.out / 2) + column] = __float2bfloat16(gate_of(a.act, gate, up));
        continue;
      }
      a.y[line * (a.out / 2) + feature / 2 + lane / 4] =
          __float2bfloat16(gate / (1.0F + __expf(-gate)) * up);
    } else {
      a.y[line * a.out + feature + lane / 4 + element / 2 * 8] =
          __float2bfloat16(total(tile, element, lane));
    }
  }
}

/// Where a lane reads x: row g of each column tile of a piece.
template <class S>
struct Inputs {
  const std::uint16_t* row[S::kColumnTiles];  // null: behind the last

  __device__ __forceinline__ void point(const Arguments& a, const Work& work, int g) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
      const int line = work.item.first + 8 * n + g;
      row[n] = nullptr;
      if (8 * n + g >= work.item.rows) continue;
      row[n] = a.x + std::int64_t{a.source == nullptr ? line : a.source[line]} * a.in;
    }
  }
};

template <class S, bool kGeneral, ExpertFormat kFormat>
__global__ void __launch_bounds__(32 * kWarps, S::kPerMultiprocessor) experts_kernel(Arguments a) {
  extern __shared__ float partial[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int sharer = warp % S::kSharers;
  const int set = warp / S::kSharers;
  const int turns_of_piece = (a.out + 16 * S::kCtaTiles - 1) / (16 * S::kCtaTiles);
  const int mine = ((a.in + kUnit - 1) / kUnit + S::kSharers - 1) / S::kSharers;
  grid_wait();
  const int works = *a.n_items * turns_of_piece;
  Cursor<S, kFormat> cursor{
      a, static_cast<int>(blockIdx.x), works, turns_of_piece, sharer, set, g, t, mine, 0, {}};
  cursor.point();
  typename LaneTile<kFormat>::Unit w[S::kDepth][S::kRowTiles];
#pragma unroll
  for (int d = 0; d < S::kDepth; ++d) cursor.load(w[d]);

  int index = static_cast<int>(blockIdx.x);
  Work work;
  Inputs<S> inputs;
  if (index < works) {
    work = work_of<S>(a, index, turns_of_piece);
    inputs.point(a, work, g);
  }
  float sums[S::kRowTiles][S::kColumnTiles][4] = {};
  int done = 0;
  while (index < works) {
#pragma unroll
    for (int d = 0; d < S::kDepth; ++d) {
      if (index >= works) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = (sharer + done * S::kSharers) * kUnit + 32 * half;
        const bool inside = k + (kFormat == ExpertFormat::bf16 ? 8 * t : 0) < a.in;
        std::uint32_t operand[S::kRowTiles][2][4];
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m)
          LaneTile<kFormat>::operands(w[d][m], half, operand[m]);
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
          uint4 b = make_uint4(0, 0, 0, 0);
          if (inputs.row[n] != nullptr && inside)
            b = LaneTile<kFormat>::inputs(inputs.row[n] + k, t);
#pragma unroll
          for (int m = 0; m < S::kRowTiles; ++m) {
            const auto& v = operand[m];
            mma(sums[m][n], v[0][0], v[0][1], v[0][2], v[0][3], b.x, b.y);
            mma(sums[m][n], v[1][0], v[1][1], v[1][2], v[1][3], b.z, b.w);
          }
        }
      }
      cursor.load(w[d]);
      if (cursor.index >= works) grid_release();
      if (++done < mine) continue;
      __syncthreads();  // slower warps may still read the last turn's
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
          const int tile = (sharer * S::kCtaTiles + set * S::kRowTiles + m) * S::kColumnTiles + n;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            partial[(tile * 4 + e) * kLanes + lane] = sums[m][n][e];
            sums[m][n][e] = 0;
          }
        }
      }
      __syncthreads();
      finish<S, kGeneral>(a, partial, work);
      done = 0;
      index += static_cast<int>(gridDim.x);
      if (index >= works) continue;
      work = work_of<S>(a, index, turns_of_piece);
      inputs.point(a, work, g);
    }
  }
}

// ------------------------------------------------------------------ host

template <class S, bool kGeneral, ExpertFormat kFormat>
void launch_shape(const Arguments& a, int most, Stream stream) {
  constexpr auto kKernel = experts_kernel<S, kGeneral, kFormat>;
  if constexpr (S::kSharedBytes > 48 * 1024) {
    static const cudaError_t prepared =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
    check(prepared, "experts");
  }
  const std::int64_t turns = (a.out + 16 * S::kCtaTiles - 1) / (16 * S::kCtaTiles);
  const std::int64_t places = std::int64_t{S::kPerMultiprocessor} * multiprocessors();
  launch("experts", kKernel, static_cast<unsigned>(std::min(turns * most, places)), 32 * kWarps,
         S::kSharedBytes, stream, a);
}

template <bool kGeneral, ExpertFormat kFormat>
void launch_product(const Arguments& a, const ExpertCall& call, int piece, Stream stream) {
  const int most = most_items(call.rows, call.shape.count, call.shape.active, piece);
  if (piece == 8) return launch_shape<Shape<1, 1, 8, 4, 2>, kGeneral, kFormat>(a, most, stream);
  if (piece == 16) return launch_shape<Shape<1, 2, 8, 4, 2>, kGeneral, kFormat>(a, most, stream);
  // Sums are added up in another order with fewer sharers.
  if (call.deterministic)
    return launch_shape<Shape<2, 8, 8, 2, 1>, kGeneral, kFormat>(a, most, stream);
  launch_shape<Shape<2, 8, 2, 2, 1>, kGeneral, kFormat>(a, most, stream);
}

/// Only gate and up have more than one way to end.
template <ExpertFormat kFormat>
void run(const StreamProduct& p, const ExpertCall& call, Stream stream) {
  Arguments a{};
  a.items = p.routing->items;
  a.n_items = p.routing->n_items;
  a.x = reinterpret_cast<const std::uint16_t*>(p.x);
  a.source = p.gathered ? p.routing->source : nullptr;
  a.w = p.w.data;
  a.expert_bytes = static_cast<std::int64_t>(expert_bytes(kFormat, p.out, p.in));
  a.y = reinterpret_cast<__nv_bfloat16*>(p.y);
  a.out = p.out;
  a.in = p.in;
  a.silu = p.gates;
  a.act = call.rule.act;
  a.bias = call.rule.up_bias;
  const int piece = p.routing->piece;
  if (p.gates && !call.rule.plain_expert())
    return launch_product<true, kFormat>(a, call, piece, stream);
  launch_product<false, kFormat>(a, call, piece, stream);
}

}  // namespace

void experts_by_pieces(const StreamProduct& p, const ExpertCall& call, Stream stream) {
  with_format(p.w.format, [&]<ExpertFormat kFormat> { run<kFormat>(p, call, stream); });
}

}  // namespace baton::cuda
