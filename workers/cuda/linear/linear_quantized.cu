// The quantised sibling of linear_direct.cu: W goes from memory straight into registers, becomes
// bf16 there by a few logical instructions, and is the 16-row operand of mma.m16n8k16; x's rows are
// the narrow one. What a lane loads is laid out for it when the model is loaded
// (quantized_layout.h).
//
// Products are exact, sums fp32, and the scale of a group multiplies the sum over what a warp takes
// of it at a time: a span of one or two units, or a part of it where groups are smaller.
//
// Warps of a CTA share the sum over the inputs and meet in shared memory. The first units of W are
// asked for before grid_wait(): weights are never written, so they stream while the kernel before
// still runs.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_kernels.h"
#include "workers/cuda/linear/linear_quantized.h"
#include "workers/cuda/linear/quantized_numbers.cuh"
#include "workers/cuda/mma.cuh"

namespace baton::cuda {
namespace {

constexpr int kWarps = 8;

struct Arguments {
  const std::uint16_t* x;
  const uint4* w;
  const uint2* scales;  // of rows g and g + 8
  void* y;
  int rows, out, in;
  int tiles, units, groups, group_shift;
  LinearOutput output;
};

__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint2 load_scales(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

/// How a CTA of eight warps is used: kSharers of them share the inputs of kRowTiles tiles of
/// features, the others do the same for further tiles.
template <WeightFormat kFormatOf, int kGroupParts, int kUnits, int kRows, int kColumns,
          int kSharing, int kSpansAhead, int kPer, int kInputsAhead>
struct Shape {
  static constexpr WeightFormat kFormat = kFormatOf;
  static constexpr int kSpan = kUnits;        // units that a warp takes at a time
  static constexpr int kParts = kGroupParts;  // of a span, each with scales of its own
  static constexpr int kRowTiles = kRows;
  static constexpr int kColumnTiles = kColumns;
  static constexpr int kSharers = kSharing;
  static constexpr int kDepth = kSpansAhead;
  static constexpr int kPerMultiprocessor = kPer;
  static constexpr int kInputs =
      kInputsAhead;  // spans of x that are loaded ahead; 0: none, when needed
  static constexpr bool kOffsetLater = kFormat == WeightFormat::int4 && kSpan == 2;
  static constexpr int kLoads =
      kSpan * (kFormat == WeightFormat::int4 ? 1 : 2);  // of W, 16 bytes each
  static constexpr int kInstructions = 4 * kSpan;
  static constexpr int kCtaTiles = kRows * kWarps / kSharing;
  static constexpr int kPartial = kWarps * kRows * kColumns * 4 * kLanes;  // floats
  /// With two of them, slow warps may still read one while the next turn's is written.
  static constexpr int kBuffers = kPartial <= 4096 ? 2 : 1;
  static constexpr int kSharedBytes = kBuffers * kPartial * static_cast<int>(sizeof(float));
  static_assert(kDepth % (kInputs > 1 ? kInputs : 1) == 0);
};

/// What a lane holds of one span of each of its warp's tiles.
template <class S>
struct WeightSpan {
  uint4 w[S::kRowTiles][S::kLoads];
  uint2 scale[S::kRowTiles][S::kParts];

  __device__ __forceinline__ std::uint32_t word(int m, int i) const { return word_of(w[m], i); }
  /// The span's instructions, as registers.
  __device__ __forceinline__ void dequantize(int m, std::uint32_t (&a)[S::kInstructions][4]) const {
#pragma unroll
    for (int j = 0; j < S::kInstructions; ++j) {
      if constexpr (S::kFormat != WeightFormat::int4) {
        dequantize_bytes<S::kFormat>(word(m, 2 * j), word(m, 2 * j + 1), a[j]);
      } else if constexpr (S::kOffsetLater) {
        dequantize_int4(word(m, j), a[j]);
      } else {
        const uint2 s = scale[m][j * S::kParts / S::kInstructions];
        dequantize_int4(word(m, j), offset_of(s.x), offset_of(s.y), a[j]);
      }
    }
  }
};

/// x of one span: of each instruction's inputs two pairs, from 2 t and from 2 t + 8 on, of row g of
/// a column tile.
template <class S>
struct InputSpan {
  std::uint32_t x[8 * S::kSpan];

  __device__ __forceinline__ void load(const Arguments& a, int span, int column_tile, int g,
                                       int t) {
    const int row = 8 * column_tile + g;
    const std::uint16_t* from = a.x + std::int64_t{row} * a.in + 2 * t;
#pragma unroll
    for (int i = 0; i < 8 * S::kSpan; ++i) {
      const int k = span * (S::kSpan * kUnitInputs) + 8 * i;
      x[i] = row < a.rows && k < a.in ? *reinterpret_cast<const std::uint32_t*>(from + k) : 0;
    }
  }
  __device__ __forceinline__ std::uint32_t word(int i) const { return x[i]; }
};

/// Walks over the spans of a warp: spans `first`, `first` + kSharers, ... of the tiles of each turn
/// of the CTA.
template <class S>
struct WeightCursor {
  const Arguments& a;
  int first, mine;  // spans
  int tile_offset;  // of the warp's tiles in the CTA's
  int lane;
  int turn;  // the CTA's next one
  int turns;
  int i = 0;
  const uint4* w[S::kRowTiles];
  const uint2* scales[S::kRowTiles];

  /// Tiles behind the last one compute what nobody stores.
  __device__ __forceinline__ void point() {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      const int tile = min(turn * S::kCtaTiles + tile_offset + m, a.tiles - 1);
      w[m] = a.w + std::int64_t{tile} * a.units * (S::kLoads / S::kSpan * kLanes) + lane;
      scales[m] = a.scales + std::int64_t{tile} * a.groups * 8 + lane / 4;
    }
  }

  __device__ __forceinline__ void load(WeightSpan<S>& to) {
    if (turn >= turns) return;
    const int span = first + i * S::kSharers;
    constexpr int kOfUnit = S::kLoads / S::kSpan;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int l = 0; l < S::kLoads; ++l) {
        to.w[m][l] = span * S::kSpan + l / kOfUnit < a.units
                         ? load_once(w[m] + (span * S::kLoads + l) * kLanes)
                         : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int p = 0; p < S::kParts; ++p) {
        const int k = (span * S::kParts + p) * (S::kSpan * kUnitInputs / S::kParts);
        to.scale[m][p] =
            k < a.in ? load_scales(scales[m] + (k >> a.group_shift) * 8) : make_uint2(0, 0);
      }
    }
    if (++i < mine) return;
    i = 0;
    turn += static_cast<int>(gridDim.x);
    point();
  }
};

__device__ __forceinline__ void store(const Arguments& a, int row, int feature, float sum) {
  if (row >= a.rows || feature >= a.out) return;
  const std::int64_t at = std::int64_t{row} * a.out + feature;
  if (a.output == LinearOutput::f32) {
    static_cast<float*>(a.y)[at] = sum;
    return;
  }
  auto* y = static_cast<__nv_bfloat16*>(a.y);
  if (a.output == LinearOutput::residual) sum += __bfloat162float(y[at]);
  y[at] = __float2bfloat16(sum);
}

/// Adds up what the warps that share a tile found, and stores. `partial` is [warp of those that
/// share the inputs][tile of the CTA][column tile][element][lane]; element e of a lane is feature g
/// + 8 (e / 2) of the tile, row 2 t + e % 2 of the column tile.
template <int kCtaTiles, int kColumnTiles, int kSharers>
__device__ __forceinline__ void finish(const Arguments& a, const float* partial, int first_tile) {
  constexpr int kTiles = kCtaTiles * kColumnTiles;
  const auto total = [&](int tile, int element, int lane) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSharers; ++i)
      sum += partial[((i * kTiles + tile) * 4 + element) * kLanes + lane];
    return sum;
  };
  const bool silu = a.output == LinearOutput::silu_mul;
  const int elements = silu ? 2 : 4;
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * elements * kLanes; i += 32 * kWarps) {
    const int lane = i % kLanes;
    const int element = i / kLanes % elements;
    const int tile = i / kLanes / elements;
    const int row = tile % kColumnTiles * 8 + lane % 4 * 2 + element % 2;
    const int feature = kTileRows * (first_tile + tile / kColumnTiles) + lane / 4;
    if (!silu) {
      store(a, row, feature + element / 2 * 8, total(tile, element, lane));
      continue;
    }
    // Eight features of gate, then eight of up: both meet in this lane.
    const float gate = total(tile, element, lane);
    const float up = total(tile, element + 2, lane);
    const int column = (feature - lane / 4) / 2 + lane / 4;
    if (row < a.rows && column < a.out / 2) {
      static_cast<__nv_bfloat16*>(a.y)[std::int64_t{row} * (a.out / 2) + column] =
          __float2bfloat16(gate / (1.0F + __expf(-gate)) * up);
    }
  }
}

/// Column tile n of x times the span's weights.
template <class S>
__device__ __forceinline__ void multiply(
    const WeightSpan<S>& span, const std::uint32_t (&w)[S::kRowTiles][S::kInstructions][4],
    const InputSpan<S>& input, int n, float (&sums)[S::kRowTiles][S::kColumnTiles][4]) {
  constexpr int kOfPart = S::kInstructions / S::kParts;
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    float inputs[4] = {0, 0, 0, 0};  // the sum of x, in every row
    if constexpr (S::kOffsetLater) {
      constexpr std::uint32_t kOnes = 0x3F803F80;
#pragma unroll
      for (int j = part * kOfPart; j < (part + 1) * kOfPart; ++j) {
        mma(inputs, kOnes, kOnes, kOnes, kOnes, input.word(2 * j), input.word(2 * j + 1));
      }
    }
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      float found[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = part * kOfPart; j < (part + 1) * kOfPart; ++j) {
        mma(found, w[m][j][0], w[m][j][1], w[m][j][2], w[m][j][3], input.word(2 * j),
            input.word(2 * j + 1));
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t word = e < 2 ? span.scale[m][part].x : span.scale[m][part].y;
        if constexpr (S::kOffsetLater) found[e] = fmaf(-offset_sum(word), inputs[e], found[e]);
        sums[m][n][e] = fmaf(scale_of(word), found[e], sums[m][n][e]);
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(32 * kWarps, S::kPerMultiprocessor)
    quantized_kernel(Arguments a) {
  extern __shared__ float partial[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int sharer = warp % S::kSharers;
  const int set = warp / S::kSharers;
  const int turns = (a.tiles + S::kCtaTiles - 1) / S::kCtaTiles;
  // All warps take as many spans; those behind the last are nought.
  const int spans = (a.units + S::kSpan - 1) / S::kSpan;
  const int mine = (spans + S::kSharers - 1) / S::kSharers;
  int turn = static_cast<int>(blockIdx.x);
  WeightCursor<S> cursor{a, sharer, mine, set * S::kRowTiles, lane, turn, turns, 0, {}, {}};
  cursor.point();
  WeightSpan<S> w[S::kDepth];
#pragma unroll
  for (int d = 0; d < S::kDepth; ++d) cursor.load(w[d]);
  grid_wait();

  constexpr int kInputs = S::kInputs > 0 ? S::kInputs : 1;
  InputSpan<S> x[kInputs][S::kInputs > 0 ? S::kColumnTiles : 1];
  int next_input = 0;
  const auto input_ahead = [&](auto& to) {
    const int span = sharer + next_input * S::kSharers;
    if (++next_input == mine) next_input = 0;
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) to[S::kInputs > 0 ? n : 0].load(a, span, n, g, t);
  };
  if constexpr (S::kInputs > 0) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) input_ahead(x[i]);
  }

  float sums[S::kRowTiles][S::kColumnTiles][4] = {};
  int done = 0;
  int buffer = 0;
  while (turn < turns) {
#pragma unroll
    for (int d = 0; d < S::kDepth; ++d) {
      if (turn >= turns) break;
      std::uint32_t dequantized[S::kRowTiles][S::kInstructions][4];
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) w[d].dequantize(m, dequantized[m]);
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        if constexpr (S::kInputs == 0) x[0][0].load(a, sharer + done * S::kSharers, n, g, t);
        multiply<S>(w[d], dequantized, x[d % kInputs][S::kInputs > 0 ? n : 0], n, sums);
      }
      cursor.load(w[d]);
      if constexpr (S::kInputs > 0) input_ahead(x[d % kInputs]);
      // Not earlier: CTAs of the next kernel that wait beside us would take places unevenly.
      if (cursor.turn >= turns) grid_release();
      if (++done < mine) continue;
      // The other buffer may still be read by slower warps; this one was before the last barrier.
      float* const here = partial + buffer * S::kPartial;
      if (S::kBuffers == 1) __syncthreads();
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
          const int tile = (sharer * S::kCtaTiles + set * S::kRowTiles + m) * S::kColumnTiles + n;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            here[(tile * 4 + e) * kLanes + lane] = sums[m][n][e];
            sums[m][n][e] = 0;
          }
        }
      }
      __syncthreads();
      finish<S::kCtaTiles, S::kColumnTiles, S::kSharers>(a, here, turn * S::kCtaTiles);
      if (S::kBuffers == 2) buffer ^= 1;
      done = 0;
      turn += static_cast<int>(gridDim.x);
    }
  }
}

// ------------------------------------------------------------------ host

template <class S>
void launch_shape(const Arguments& a, Stream stream) {
  if constexpr (S::kSharedBytes > 48 * 1024) {
    static const cudaError_t prepared = cudaFuncSetAttribute(
        quantized_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
    check(prepared, "quantized linear");
  }
  const int turns = (a.tiles + S::kCtaTiles - 1) / S::kCtaTiles;
  const int places = S::kPerMultiprocessor * multiprocessors();
  launch("quantized linear", quantized_kernel<S>, std::min(turns, places), 32 * kWarps,
         S::kSharedBytes, stream, a);
}

/// The ways to cut the work; what each does follows from the row count.
enum Variant { kPlain, kSecond, kThird, kFourth, kVariants };

/// kGroup: log2 of the inputs that share a scale, 7 standing for more. In a Shape: units of a span,
/// row tiles, column tiles, sharers, spans of W ahead, CTAs a multiprocessor, spans of x ahead.
template <WeightFormat kFormat, int kGroup>
void launch_variant(int variant, const Arguments& a, Stream stream) {
  constexpr WeightFormat kF = kFormat;
  constexpr int kOne = kGroup == 5 ? 2 : 1;                     // parts of a unit
  constexpr int kTwo = kGroup == 5 ? 4 : kGroup == 6 ? 2 : 1;   // and of two
  constexpr int kLess = kFormat == WeightFormat::int4 ? 1 : 2;  // bytes take twice the registers
  constexpr int kDeep = 8 / kLess / kOne;
  if (a.rows <= 8) {
    if (variant == kSecond)
      return launch_shape<Shape<kF, kTwo, 2, 1, 1, 8, 4 / kLess, 2, 1>>(a, stream);
    if (variant == kThird)
      return launch_shape<Shape<kF, kTwo, 2, 2, 1, 8, 2 / kLess, 2, 1>>(a, stream);
    if (variant == kFourth)
      return launch_shape<Shape<kF, kTwo, 2, 1, 1, 8, 2 / kLess, 3, 1>>(a, stream);
    return launch_shape<Shape<kF, kOne, 1, 1, 1, 8, kDeep, 2, 2>>(a, stream);
  }
  if constexpr (kGroup != 5) {
    if (a.rows <= 16) {
      if (variant == kSecond)
        return launch_shape<Shape<kF, 1, 1, 2, 2, 8, 4 / kLess, 1, 2>>(a, stream);
      if (variant == kThird)
        return launch_shape<Shape<kF, 1, 1, 2, 2, 4, 4 / kLess, 1, 2>>(a, stream);
    } else if (a.rows <= 32) {
      if (variant == kSecond)
        return launch_shape<Shape<kF, 1, 1, 2, 4, 4, 4 / kLess, 1, 1>>(a, stream);
      if (variant == kThird)
        return launch_shape<Shape<kF, 1, 1, 2, 4, 2, 4 / kLess, 1, 1>>(a, stream);
    } else {
      if (variant == kSecond)
        return launch_shape<Shape<kF, 1, 1, 1, 8, 4, 4 / kLess, 1, 1>>(a, stream);
      if (variant == kThird)
        return launch_shape<Shape<kF, 1, 1, 1, 8, 2, 4 / kLess, 1, 1>>(a, stream);
      if (variant == kFourth)
        return launch_shape<Shape<kF, 1, 1, 2, 8, 2, 2 / kLess, 1, 1>>(a, stream);
    }
  }
  if (a.rows <= 16) return launch_shape<Shape<kF, kOne, 1, 1, 2, 8, 4, 2, 2>>(a, stream);
  if (a.rows <= 32) return launch_shape<Shape<kF, kOne, 1, 2, 4, 8, 4 / kLess, 1, 1>>(a, stream);
  return launch_shape<Shape<kF, kOne, 1, 2, 8, 8, 4 / kLess, 1, 0>>(a, stream);
}

std::vector<int> variants(int rows, const LinearWeight& w, bool deterministic) {
  if (!w.is_quantized()) return {};
  // The first one adds up in the same order whatever the row count.
  const int most = deterministic                  ? 1
                   : rows <= 8                    ? kVariants
                   : w.quantized.group_shift == 5 ? 1
                   : rows <= 32                   ? 3
                                                  : kVariants;
  std::vector<int> found(static_cast<std::size_t>(most));
  std::iota(found.begin(), found.end(), 0);
  return found;
}

std::string describe(int variant) { return "variant " + std::to_string(variant); }

void run(int variant, const LinearCall& call, Stream stream) {
  const QuantizedWeight& w = call.w.quantized;
  Arguments a{};
  a.w = reinterpret_cast<const uint4*>(w.words);
  a.scales = reinterpret_cast<const uint2*>(w.scales);
  a.out = call.w.out;
  a.in = call.w.in;
  a.tiles = tiles_of(a.out);
  a.units = units_of(a.in);
  a.groups = w.groups;
  a.group_shift = w.group_shift;
  a.output = call.output;
  const std::int64_t width = call.output == LinearOutput::silu_mul ? a.out / 2 : a.out;
  const std::int64_t row_bytes = width * (call.output == LinearOutput::f32 ? 4 : 2);
  for (int done = 0; done < call.rows; done += kMostQuantizedRows) {
    a.x = reinterpret_cast<const std::uint16_t*>(call.x) + std::int64_t{done} * a.in;
    a.y = static_cast<std::byte*>(call.y) + done * row_bytes;
    a.rows = std::min(call.rows - done, kMostQuantizedRows);
    by_format(w, [&]<WeightFormat kFormat, int kParts>() {
      launch_variant<kFormat, kParts == 4 ? 5 : kParts == 2 ? 6 : 7>(variant, a, stream);
    });
  }
}

// ------------------------------------------------------------------ other kernels

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    gather_columns_kernel(const std::uint16_t* x, const std::int32_t* order, int columns,
                          std::uint16_t* y) {
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int from = column < columns ? order[column] : 0;
  grid_wait();
  grid_release();
  const std::int64_t row = std::int64_t{blockIdx.y} * columns;
  if (column < columns) y[row + column] = x[row + from];
}

/// A thread a word of four (of bytes: two by two) inputs of rows g and g + 8.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const std::uint32_t* words, const uint2* scales, int out, int in, int units,
                      int groups, int group_shift, std::size_t n, __nv_bfloat16* to) {
  grid_wait();
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * kThreads) {
    // One 16-byte load holds four instructions (int4) or two of a half (bytes).
    const int step = static_cast<int>(i % 4);
    const int lane = static_cast<int>(i / 4 % kLanes);
    const std::size_t unit = i / (4 * kLanes);
    const int tile = static_cast<int>(unit / static_cast<std::size_t>(units));
    const int k = static_cast<int>(unit % static_cast<std::size_t>(units)) * kUnitInputs +
                  step * 16 + lane % 4 * 2;
    if (k >= in) continue;
    const uint2 scale = scales[(std::size_t(tile) * groups + (k >> group_shift)) * 8 + lane / 4];
    std::uint32_t a[4];
    if constexpr (kFormat == WeightFormat::int4) {
      dequantize_int4(words[i], offset_of(scale.x), offset_of(scale.y), a);
    } else {
      const std::uint32_t* pair =
          words + ((unit * 2 + step / 2) * kLanes + static_cast<std::size_t>(lane)) * 4 +
          step % 2 * 2;
      dequantize_bytes<kFormat>(pair[0], pair[1], a);
    }
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int row = tile * kTileRows + lane / 4 + 8 * high;
      if (row >= out) continue;
      const float s = scale_of(high == 0 ? scale.x : scale.y);
      const auto scaled = [s](std::uint32_t two) {
        const float2 v = to_floats(two);
        return narrow(s * v.x, s * v.y);
      };
      auto* at = reinterpret_cast<std::uint32_t*>(to + std::int64_t{row} * in + k);
      at[0] = scaled(a[high]);
      at[4] = scaled(a[2 + high]);
    }
  }
}

}  // namespace

/// Of more than 16 rows the other two are quicker where they serve.
const LinearKernel kQuantizedLinear{"quantized", variants, run, describe, 16};

void gather_columns(const Bf16* x, const std::int32_t* order, int rows, int columns, Bf16* y,
                    Stream stream) {
  if (rows <= 0) return;
  constexpr int kMostRows = 65535;  // of a grid
  for (int done = 0; done < rows; done += kMostRows) {
    const std::int64_t at = std::int64_t{done} * columns;
    launch("gather_columns", gather_columns_kernel,
           dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads),
                static_cast<unsigned>(std::min(rows - done, kMostRows))),
           kThreads, 0, stream, reinterpret_cast<const std::uint16_t*>(x) + at, order, columns,
           reinterpret_cast<std::uint16_t*>(y) + at);
  }
}

void dequantize(const LinearWeight& w, Bf16* to, Stream stream) {
  const QuantizedWeight& q = w.quantized;
  const std::size_t n =
      weight_words(WeightFormat::int4, w.out, w.in);  // threads: one an instruction
  const auto blocks = static_cast<unsigned>(std::min<std::size_t>(
      (n + kThreads - 1) / kThreads, 16 * static_cast<std::size_t>(multiprocessors())));
  const auto kernel = q.format == WeightFormat::int4   ? dequantize_kernel<WeightFormat::int4>
                      : q.format == WeightFormat::int8 ? dequantize_kernel<WeightFormat::int8>
                                                       : dequantize_kernel<WeightFormat::fp8>;
  launch("dequantize", kernel, blocks, kThreads, 0, stream, q.words,
         reinterpret_cast<const uint2*>(q.scales), w.out, w.in, units_of(w.in), q.groups,
         q.group_shift, n, reinterpret_cast<__nv_bfloat16*>(to));
}

}  // namespace baton::cuda
