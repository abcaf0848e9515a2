// Quantised products of many rows on Hopper: linear_staged.cu with another left operand. The
// producer brings W's packed words and scales to shared memory, and x's rows; a warpgroup turns the
// words of 64 features into the registers that wgmma takes its left operand from. A word is
// dequantised once for all rows of the tile.
//
// Sums of a group of inputs are kept apart until its scale has multiplied them, in fp32, some rows
// at a time: products are exact. While one warpgroup dequantises or scales another one multiplies.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_kernels.h"
#include "workers/cuda/linear/linear_tiles.cuh"
#include "workers/cuda/linear/quantized_numbers.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

constexpr int kChunkUnits = 2;
constexpr int kChunkInputs = kChunkUnits * kUnitInputs;
constexpr int kGroupBytes = kTileRows * 4;  // scales of one group of 16 features
constexpr int kWordColumns = 256;           // of a chunk, in elements of 4 bytes (int4) or 8
constexpr int kMostBytes = 226 << 10;       // of shared memory

struct Arguments : TileArguments {
  int group_shift;
};

/// kPartsOf: of a chunk, each with scales of its own. kGroupsOf warpgroups take kPerGroup tiles of
/// 64 features each, times kColumns rows, kSliceOf of them at a time.
template <WeightFormat kFormatOf, int kPartsOf, int kGroupsOf, int kPerGroup, int kColumns,
          int kSliceOf>
struct Shape {
  static constexpr WeightFormat kFormat = kFormatOf;
  static constexpr int kParts = kPartsOf;
  static constexpr int kGroups = kGroupsOf;
  static constexpr int kPer = kPerGroup;
  static constexpr int kN = kColumns;
  static constexpr int kSlice = kSliceOf;
  static constexpr int kTile = 64 * kGroups * kPer;
  static constexpr int kWTiles = kTile / kTileRows;
  static constexpr int kUnitBytes =
      kTileRows * kUnitInputs / (kFormat == WeightFormat::int4 ? 2 : 1);
  static constexpr int kBlockBytes = kChunkUnits * kUnitBytes;  // of one of kWTiles
  static constexpr int kBoxBytes = kN * kUnitInputs * 2;        // of x, one unit
  static constexpr int kWordsAt = kChunkUnits * kBoxBytes;      // in a stage, x in front
  static constexpr int kScalesAt = kWordsAt + kWTiles * kBlockBytes;
  static constexpr int kStageBytes =
      (kScalesAt + kWTiles * kParts * kGroupBytes + 1023) / 1024 * 1024;
  static constexpr int kMultiplying = 128 * kGroups;
  static constexpr int kThreads = kMultiplying + 128;
  // What the producer's warpgroup gives back of the CTA's registers the others take.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kAtStart =
      65536 / kThreads / 8 * 8;  // what the compiler then uses, of each thread
  static constexpr int kRegisters =
      (kAtStart * kThreads - 128 * kProducerRegisters) / kMultiplying / 8 * 8;
};

#ifdef BATON_HOPPER

// ------------------------------------------------------------------ producer

/// What the copy engine reads from: every stage takes one box of words, one of scales and two of x.
/// (Copies by hand, one for the words of every 16 features, took longer to issue than to carry
/// out.)
struct Maps {
  const CUtensorMap *w, *scales, *x;
};

template <class S>
__device__ __forceinline__ void produce(const Maps& maps, const Arguments& a, const Ring& ring) {
  const std::uint64_t keep = hopper::policy_evict_last();
  const std::uint64_t w_policy = a.row_tiles > 1 ? keep : hopper::policy_evict_first();
  const auto copy_w = [&](int unit, int stage) {
    const int chunk = unit % a.chunks;
    const int tile = unit / a.chunks / a.row_tiles * S::kWTiles;
    std::uint8_t* const to = ring.data + stage * S::kStageBytes;
    std::uint64_t* const full = &ring.full[stage];
    hopper::barrier_expect(full, S::kScalesAt + S::kWTiles * S::kParts * kGroupBytes);
    hopper::copy_box(to + S::kWordsAt, maps.w, chunk * kWordColumns, tile, full, w_policy);
    hopper::copy_box(to + S::kScalesAt, maps.scales,
                     (chunk * kChunkInputs >> a.group_shift) * kTileRows, tile, full, w_policy);
  };
  const auto copy_x = [&](int unit, int stage) {
    const int column = unit % a.chunks * kChunkInputs;
    const int row = unit / a.chunks % a.row_tiles * S::kN;
    std::uint8_t* const to = ring.data + stage * S::kStageBytes;
    hopper::copy_box(to, maps.x, column, row, &ring.full[stage], keep);
    hopper::copy_box(to + S::kBoxBytes, maps.x, column + kUnitInputs, row, &ring.full[stage], keep);
  };
  const int begin = first_unit(a, static_cast<int>(blockIdx.x));
  const int end = first_unit(a, static_cast<int>(blockIdx.x) + 1);
  const int early = min(end - begin, a.stages);
  for (int i = 0; i < early; ++i) copy_w(begin + i, i);
  grid_wait();
  for (int i = 0; i < early; ++i) copy_x(begin + i, i);
  int stage = 0;
  int parity = 0;
  for (int unit = begin + early; unit < end; ++unit) {
    hopper::barrier_wait(&ring.empty[stage], parity);
    copy_w(unit, stage);
    copy_x(unit, stage);
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// ------------------------------------------------------------------ products

/// One chunk of a warpgroup's p-th 64 features: adds to `sums`.
template <class S>
__device__ __forceinline__ void multiply_chunk(const std::uint8_t* stage, int block,
                                               float (&sums)[S::kN / 2]) {
  constexpr int kInstructions = 4 * kChunkUnits / S::kParts;
  constexpr int kLoads = S::kBlockBytes / (16 * kLanes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t x0 = hopper::operand(stage);
  const auto* words =
      reinterpret_cast<const uint4*>(stage + S::kWordsAt + block * S::kBlockBytes) + lane;
  const auto* scales =
      reinterpret_cast<const uint2*>(stage + S::kScalesAt + block * S::kParts * kGroupBytes) +
      lane / 4;
  uint4 w[kLoads];
#pragma unroll
  for (int l = 0; l < kLoads; ++l) w[l] = words[l * kLanes];
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    const uint2 scale = scales[part * 8];
    std::uint32_t v[kInstructions][4];
#pragma unroll
    for (int i = 0; i < kInstructions; ++i) {
      const int j = part * kInstructions + i;
      if constexpr (S::kFormat == WeightFormat::int4) {
        dequantize_int4(word_of(w, j), offset_of(scale.x), offset_of(scale.y), v[i]);
      } else {
        dequantize_bytes<S::kFormat>(word_of(w, 2 * j), word_of(w, 2 * j + 1), v[i]);
      }
    }
    const float low = scale_of(scale.x);
    const float high = scale_of(scale.y);
#pragma unroll
    for (int slice = 0; slice < S::kN / S::kSlice; ++slice) {
      float found[S::kSlice / 2];
      hopper::product_begin();
#pragma unroll
      for (int i = 0; i < kInstructions; ++i) {
        const int j = part * kInstructions + i;
        const int at = j / 4 * S::kBoxBytes + slice * S::kSlice * 128;
        hopper::RegisterProduct<S::kSlice>::run(found, v[i], x0 + (at >> 4) + 2 * (j % 4),
                                                i > 0 ? 1 : 0);
      }
      hopper::product_commit();
      hopper::product_wait<0>();
      hopper::pin(found);
#pragma unroll
      for (int e = 0; e < S::kSlice / 2; ++e) {
        float& sum = sums[slice * (S::kSlice / 2) + e];
        sum = fmaf(e % 4 < 2 ? low : high, found[e], sum);
      }
    }
  }
}

/// The sums of one tile over units [unit, stop); behind the last input and the last feature the
/// boxes hold noughts; `stage` and `parity` go on from tile to tile.
template <class S>
__device__ __forceinline__ void multiply(int units, int stages, const Ring& ring, int& stage,
                                         int& parity, float (&sums)[S::kPer][S::kN / 2]) {
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
#pragma unroll
  for (int p = 0; p < S::kPer; ++p) {
#pragma unroll
    for (int e = 0; e < S::kN / 2; ++e) sums[p][e] = 0;
  }
  for (int i = 0; i < units; ++i) {
    hopper::barrier_wait(&ring.full[stage], parity);
#pragma unroll
    for (int p = 0; p < S::kPer; ++p) {
      const int block = (warp / 4 * S::kPer + p) * 4 + warp % 4;
      multiply_chunk<S>(ring.data + stage * S::kStageBytes, block, sums[p]);
    }
    if (threadIdx.x % 32 == 0) hopper::barrier_arrive(&ring.empty[stage]);
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

#endif  // BATON_HOPPER

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    tiles_kernel(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap scale_map,
                 const __grid_constant__ CUtensorMap x_map, const Arguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];
  __shared__ std::uint64_t full[kMaxStages];
  __shared__ std::uint64_t empty[kMaxStages];
  grid_release();
  // The swizzle is a function of the address: stages start at multiples of 1 KiB.
  const std::uint32_t base = hopper::shared_address(dynamic);
  const Ring ring{dynamic + ((base + 1023) / 1024 * 1024 - base), full, empty};
  if (threadIdx.x == S::kMultiplying) {
    for (int i = 0; i < a.stages; ++i) {
      hopper::barrier_init(&full[i], 1);
      hopper::barrier_init(&empty[i], S::kMultiplying / 32);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= S::kMultiplying) {
    hopper::give_registers<S::kProducerRegisters>();
    if (threadIdx.x == S::kMultiplying) produce<S>({&w_map, &scale_map, &x_map}, a, ring);
    return;
  }
  hopper::take_registers<S::kRegisters>();
  grid_wait();
  float sums[S::kPer][S::kN / 2];
  const int end = first_unit(a, static_cast<int>(blockIdx.x) + 1);
  int stage = 0;
  int parity = 0;
  for (int unit = first_unit(a, static_cast<int>(blockIdx.x)); unit < end;) {
    const int tile = unit / a.chunks;
    const int stop = min(end, (tile + 1) * a.chunks);
    multiply<S>(stop - unit, a.stages, ring, stage, parity, sums);
    finish_tile<S>(a, tile, unit, stop, sums);
    unit = stop;
  }
#endif
}

// ------------------------------------------------------------------ host

/// 16 features a row.
template <class S>
CUtensorMap words_map(const LinearWeight& w) {
  const auto type = S::kFormat == WeightFormat::int4 ? CU_TENSOR_MAP_DATA_TYPE_INT32
                                                     : CU_TENSOR_MAP_DATA_TYPE_INT64;
  return matrix_map(w.quantized.words, type, S::kBlockBytes / kWordColumns, tiles_of(w.out),
                    units_of(w.in) * (kWordColumns / kChunkUnits), S::kWTiles, kWordColumns,
                    CU_TENSOR_MAP_SWIZZLE_NONE);
}
template <class S>
CUtensorMap scales_map(const LinearWeight& w) {
  return matrix_map(w.quantized.scales, CU_TENSOR_MAP_DATA_TYPE_INT32, 4, tiles_of(w.out),
                    w.quantized.groups * kTileRows, S::kWTiles, S::kParts * kTileRows,
                    CU_TENSOR_MAP_SWIZZLE_NONE);
}

template <class S>
void launch_shape(int ring_kib, const LinearCall& call, Stream stream) {
  const LinearWeight& w = call.w;
  Arguments a{};
  a.y = call.y;
  a.flags = static_cast<int*>(call.workspace);
  a.parts = reinterpret_cast<float4*>(static_cast<std::byte*>(call.workspace) + kFlagBytes);
  a.rows = call.rows;
  a.out = w.out;
  a.row_tiles = ceil_div(call.rows, S::kN);
  a.chunks = ceil_div(w.in, kChunkInputs);
  const int tiles = ceil_div(w.out, S::kTile) * a.row_tiles;
  a.units = tiles * a.chunks;
  a.balanced = true;
  a.split = 1;
  a.output = call.output;
  a.group_shift = w.quantized.group_shift;
  a.stages = std::clamp((ring_kib << 10) / S::kStageBytes, 2, kMaxStages);
  // Never a third CTA on a multiprocessor (see linear_staged.cu).
  const int bytes = std::max(a.stages * S::kStageBytes, 80 << 10) + 1024;  // to align by
  take_shared_memory<tiles_kernel<S>>(kMostBytes, "quantized linear");
  launch("quantized linear", tiles_kernel<S>, std::min(a.units, multiprocessors()), S::kThreads,
         static_cast<std::size_t>(bytes), stream, words_map<S>(w), scales_map<S>(w),
         tensor_map(call.x, call.rows, w.in, S::kN), a);
}

/// The ways to cut the work, numbered; the best one for many features is not the best one for few,
/// where several CTAs add up a tile.
enum Variant { k16, k16Few, k32, k32Few, k64, k64Middle, k64Few, k128Middle, k128Few };

template <WeightFormat kFormat, int kParts>
void launch_variant(int variant, const LinearCall& call, Stream stream) {
  constexpr WeightFormat kF = kFormat;
  constexpr int kP = kParts;
  switch (variant) {
    case k16:
      return launch_shape<Shape<kF, kP, 4, 1, 16, 16>>(104, call, stream);
    case k16Few:
      return launch_shape<Shape<kF, kP, 2, 1, 16, 16>>(104, call, stream);
    case k32:
      return launch_shape<Shape<kF, kP, 4, 1, 32, 32>>(104, call, stream);
    case k32Few:
      return launch_shape<Shape<kF, kP, 2, 1, 32, 32>>(104, call, stream);
    case k64:
      return launch_shape<Shape<kF, kP, 4, 1, 64, 32>>(208, call, stream);
    case k64Middle:
      return launch_shape<Shape<kF, kP, 3, 1, 64, 64>>(208, call, stream);
    case k64Few:
      return launch_shape<Shape<kF, kP, 2, 1, 64, 64>>(208, call, stream);
    case k128Middle:
      return launch_shape<Shape<kF, kP, 3, 1, 128, 64>>(208, call, stream);
    default:
      return launch_shape<Shape<kF, kP, 2, 1, 128, 128>>(208, call, stream);
  }
}

std::vector<int> variants(int rows, const LinearWeight& w, bool deterministic) {
  if (!w.is_quantized() || deterministic || !is_hopper()) return {};
  if (rows <= 16) return {k16, k16Few};
  if (rows <= 32) return {k32, k32Few, k16Few};
  if (rows <= 64) return {k64, k64Middle, k64Few, k32Few};
  return {k128Middle, k128Few, k64Middle, k64Few};
}

std::string describe(int variant) { return "variant " + std::to_string(variant); }

void run(int variant, const LinearCall& call, Stream stream) {
  by_format(call.w.quantized, [&]<WeightFormat kFormat, int kParts>() {
    launch_variant<kFormat, kParts>(variant, call, stream);
  });
}

}  // namespace

const LinearKernel kQuantizedTilesLinear{"quantized tiles", variants, run, describe};

}  // namespace baton::cuda
