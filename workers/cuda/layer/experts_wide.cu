// One product of pieces of up to 128 rows of an expert on Hopper, as prompts have them: wgmma,
// whose left operand is 256 features of W, from shared memory, or in MXFP4 dequantised in
// registers, once for all rows of the piece. A producer's warp brings W and x through a ring by the
// copy engine; so lines of x must lie in order: gate's and up's are gathered first.
//
// Pieces of an expert take the same features one after another, so that W is in the L2 cache for
// all but the first.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/experts_ring.h"
#include "workers/cuda/layer/fp8_numbers.cuh"
#include "workers/cuda/layer/gates.cuh"
#include "workers/cuda/layer/int4_numbers.cuh"
#include "workers/cuda/layer/mxfp4_numbers.cuh"
#include "workers/cuda/shared_memory.h"
#include "workers/cuda/tensor_map.h"

namespace baton::cuda {
namespace {

constexpr int kGroups = 4;  // warpgroups that multiply, 64 features each
constexpr int kTile = 64 * kGroups;
constexpr int kTiles = kTile / kExpertTile;
constexpr int kMultiplying = 128 * kGroups;
constexpr int kThreads = kMultiplying + 128;
constexpr int kStages = 4;
constexpr int kRowBytes = 2 * kExpertUnit;
constexpr int kBoxRows = 64;  // of x
constexpr int kBoxBytes = kBoxRows * kRowBytes;
// What the producer's warpgroup gives back of the CTA's registers the others take.
constexpr int kProducerRegisters = 24;
constexpr int kAtStart = 65536 / kThreads / 8 * 8;
constexpr int kRegisters = (kAtStart * kThreads - 128 * kProducerRegisters) / kMultiplying / 8 * 8;

/// What a stage of the ring holds: units of 64 inputs, of each x's rows, then W's.
template <ExpertFormat kFormat>
struct Stage {
  static constexpr bool kPlain = kFormat == ExpertFormat::bf16;
  static constexpr bool kFourBits = kFormat == ExpertFormat::mxfp4 || kFormat == ExpertFormat::int4;
  static constexpr int kUnits = kFourBits ? 2 : 1;
  static constexpr int kUnitBytes = expert_unit_bytes(kFormat);
  static constexpr int kXBytes = kWideRows * kRowBytes;  // of a unit
  static constexpr int kWAt = kUnits * kXBytes;
  static constexpr int kTileBytes = kUnits * kUnitBytes;  // if not plain: of 16 features
  static constexpr int kWBytes = kPlain ? kTile * kRowBytes : kTiles * kTileBytes;
  static constexpr int kBytes = (kWAt + kWBytes + 1023) / 1024 * 1024;
};

struct WideArguments {
  __nv_bfloat16* y;  // [lines, out], or [lines, out / 2] with gates
  const ExpertItem* items;
  const std::int32_t* n_items;
  int out, in;
  Activate act;
  const float* bias;  // of gate and up: [experts][out]; or null
};

#ifdef BATON_HOPPER

struct Work {
  ExpertItem item;
  int tile;  // of kTile features
};

__device__ __forceinline__ Work work_of(const WideArguments& a, int index, int turns) {
  Work work;
  work.item = a.items[index / turns];
  const int local = index - work.item.begin * turns;
  work.tile = local / work.item.pieces;
  work.item = a.items[work.item.begin + local % work.item.pieces];
  return work;
}

struct WideRing {
  std::uint8_t* data;
  std::uint64_t* full;
  std::uint64_t* empty;
  int stage = 0;
  int parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// One thread.
template <ExpertFormat kFormat>
__device__ __forceinline__ void produce(const CUtensorMap* w_map, const CUtensorMap* x_map,
                                        const WideArguments& a, WideRing ring, int turns,
                                        int chunks) {
  using S = Stage<kFormat>;
  const std::uint64_t keep = hopper::policy_evict_last();
  const std::uint64_t pass = hopper::policy_evict_first();
  const int works = *a.n_items * turns;
  for (int index = static_cast<int>(blockIdx.x); index < works;
       index += static_cast<int>(gridDim.x)) {
    const Work work = work_of(a, index, turns);
    const int boxes = work.item.rows > kBoxRows ? 2 : 1;
    const std::uint64_t policy = work.item.pieces > 1 ? keep : pass;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      std::uint8_t* const to = ring.data + ring.stage * S::kBytes;
      std::uint64_t* const full = &ring.full[ring.stage];
      hopper::barrier_wait(&ring.empty[ring.stage], ring.parity ^ 1);
      hopper::barrier_expect(full, S::kWBytes + S::kUnits * boxes * kBoxBytes);
      if constexpr (S::kPlain) {
        hopper::copy_box(to + S::kWAt, w_map, chunk * kExpertUnit,
                         work.item.expert * a.out + work.tile * kTile, full, policy);
      } else {
        hopper::copy_box(to + S::kWAt, w_map, chunk * (S::kTileBytes / 8),
                         work.item.expert * (a.out / kExpertTile) + work.tile * kTiles, full,
                         policy);
      }
      for (int unit = 0; unit < S::kUnits; ++unit) {
        for (int box = 0; box < boxes; ++box) {
          hopper::copy_box(to + unit * S::kXBytes + box * kBoxBytes, x_map,
                           (chunk * S::kUnits + unit) * kExpertUnit,
                           work.item.first + box * kBoxRows, full, keep);
        }
      }
      ring.advance();
    }
  }
}

/// FP8 and int4 take their scales when a unit's products are there, where registers have room for
/// these.
template <ExpertFormat kFormat, int kN>
constexpr bool kScalesApart =
    (kFormat == ExpertFormat::fp8 || kFormat == ExpertFormat::int4) && kN <= 64;

/// Of features lane / 4 and eight behind.
__device__ __forceinline__ float2 fp8_scales(const std::uint8_t* at, int lane) {
  const auto* const scales = reinterpret_cast<const float*>(at + kFp8WordBytes) + lane / 4;
  return float2{scales[0], scales[8]};
}
__device__ __forceinline__ uint2 int4_scale_words(const std::uint8_t* at, int lane) {
  return *(reinterpret_cast<const uint2*>(at + kInt4WordBytes) + lane / 4);
}
template <ExpertFormat kFormat>
__device__ __forceinline__ float2 unit_scales(const std::uint8_t* at, int lane) {
  if constexpr (kFormat == ExpertFormat::fp8) return fp8_scales(at, lane);
  const uint2 words = int4_scale_words(at, lane);
  return float2{scale_of(words.x), scale_of(words.y)};
}

/// A warp's 16 features of a unit that is not plain, as the left operands of four instructions.
template <ExpertFormat kFormat, bool kApart>
__device__ __forceinline__ void unit_operands(const std::uint8_t* at, int lane,
                                              std::uint32_t (&w)[4][4]) {
  if constexpr (kFormat == ExpertFormat::fp8) {
    const float2 scales = fp8_scales(at, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 words =
          *reinterpret_cast<const uint4*>(at + half * kFp8WordBytes / 2 + lane * 16);
      if constexpr (kApart) {
        exact_fp8(words.x, words.y, w[2 * half]);
        exact_fp8(words.z, words.w, w[2 * half + 1]);
      } else {
        scaled_fp8(words.x, words.y, scales.x, scales.y, w[2 * half]);
        scaled_fp8(words.z, words.w, scales.x, scales.y, w[2 * half + 1]);
      }
    }
  } else if constexpr (kFormat == ExpertFormat::int4) {
    const uint4 words = *reinterpret_cast<const uint4*>(at + lane * 16);
    const uint2 scales = int4_scale_words(at, lane);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kApart) {
        exact_int4(word_of(&words, k), scales.x, scales.y, w[k]);
      } else {
        scaled_int4(word_of(&words, k), scales.x, scales.y, w[k]);
      }
    }
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(at + lane * 16);
    const auto scales =
        *reinterpret_cast<const std::uint32_t*>(at + kMxfp4WordBytes + lane / 4 * 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      dequantize_mxfp4(word_of(&words, k), mxfp4_scale(scales, k / 2 * 2),
                       mxfp4_scale(scales, k / 2 * 2 + 1), w[k]);
    }
  }
}

/// One stage of a warpgroup's 64 features.
template <ExpertFormat kFormat, int kN>
__device__ __forceinline__ void multiply_stage(const std::uint8_t* stage, int group, int warp,
                                               int lane, bool first, float (&sums)[kN / 2]) {
  using S = Stage<kFormat>;
  const std::uint64_t x0 = hopper::operand(stage);
  if constexpr (S::kPlain) {
    const std::uint64_t w0 = hopper::operand(stage + S::kWAt + group * 64 * kRowBytes);
    hopper::product_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      hopper::Product<kN>::run(sums, w0 + 2 * k, x0 + 2 * k, first && k == 0 ? 0 : 1);
    }
    hopper::product_commit();
  } else {
#pragma unroll
    for (int unit = 0; unit < S::kUnits; ++unit) {
      const std::uint8_t* const at =
          stage + S::kWAt + (group * 4 + warp) * S::kTileBytes + unit * S::kUnitBytes;
      constexpr bool kApart = kScalesApart<kFormat, kN>;
      std::uint32_t w[4][4];
      unit_operands<kFormat, kApart>(at, lane, w);
      float apart[kApart ? kN / 2 : 1];
      const auto multiply = [&](auto& to, bool begins) {
        hopper::product_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          hopper::RegisterProduct<kN>::run(to, w[k], x0 + (unit * S::kXBytes >> 4) + 2 * k,
                                           begins && k == 0 ? 0 : 1);
        }
        hopper::product_commit();
        hopper::product_wait<0>();
        hopper::pin(to);
      };
      if constexpr (kApart) {
        multiply(apart, true);
        const float2 scales = unit_scales<kFormat>(at, lane);
#pragma unroll
        for (int e = 0; e < kN / 2; ++e) {
          sums[e] = fmaf(e % 4 < 2 ? scales.x : scales.y, apart[e], sums[e]);
        }
      } else {
        multiply(sums, first && unit == 0);
      }
    }
  }
}

/// Sums of a warp's 16 features: of a lane 4 g + t and eight rows j, features g and g + 8, rows 2 t
/// and 2 t + 1. A transposition makes them two features of row g.
template <int kN, bool kGates>
__device__ __forceinline__ void store(const WideArguments& a, const Work& work, int tile, int lane,
                                      const float (&sums)[kN / 2]) {
  if (kExpertTile * tile >= a.out) return;
  const int g = lane / 4;
  const int t = lane % 4;
  float gate_bias = 0;
  float up_bias = 0;
  if (kGates && a.bias != nullptr) {
    const float* bias = a.bias + std::int64_t{work.item.expert} * a.out + 8 * tile + g;
    gate_bias = bias[0];
    up_bias = bias[a.out / 2];
  }
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    if (8 * j >= work.item.rows) break;
    const float* d = &sums[4 * j];
    const std::int64_t line = work.item.first + 8 * j + g;
    const bool here = 8 * j + g < work.item.rows;
    if constexpr (kGates) {
      const std::uint32_t pair =
          transposed_pairs(narrow(gate_of(a.act, d[0] + gate_bias, d[2] + up_bias),
                                  gate_of(a.act, d[1] + gate_bias, d[3] + up_bias)));
      __nv_bfloat16* const to = a.y + line * (a.out / 2) + 8 * tile + 2 * t;
      if (here) *reinterpret_cast<std::uint32_t*>(to) = pair;
    } else {
      const std::uint32_t low = transposed_pairs(narrow(d[0], d[1]));
      const std::uint32_t high = transposed_pairs(narrow(d[2], d[3]));
      __nv_bfloat16* const to = a.y + line * a.out + kExpertTile * tile + 2 * t;
      if (here) *reinterpret_cast<std::uint32_t*>(to) = low;
      if (here) *reinterpret_cast<std::uint32_t*>(to + 8) = high;
    }
  }
}

/// A tile of kTile features of a piece of at most kN rows. In bf16 a stage is given back when the
/// next one's products have begun.
template <ExpertFormat kFormat, int kN, bool kGates>
__device__ __forceinline__ void compute(const WideArguments& a, const Work& work, WideRing& ring,
                                        int chunks, int group, int warp, int lane) {
  using S = Stage<kFormat>;
  float sums[kN / 2];
#pragma unroll
  for (int e = 0; e < kN / 2; ++e) sums[e] = 0;
  int before = -1;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    hopper::barrier_wait(&ring.full[ring.stage], ring.parity);
    multiply_stage<kFormat, kN>(ring.data + ring.stage * S::kBytes, group, warp, lane, chunk == 0,
                                sums);
    if constexpr (S::kPlain) {
      hopper::product_wait<1>();
      if (before >= 0 && lane == 0) hopper::barrier_arrive(&ring.empty[before]);
      before = ring.stage;
    } else {
      __syncwarp();  // the words have been read by all lanes
      if (lane == 0) hopper::barrier_arrive(&ring.empty[ring.stage]);
    }
    ring.advance();
  }
  if constexpr (S::kPlain) {
    hopper::product_wait<0>();
    hopper::pin(sums);
    if (lane == 0) hopper::barrier_arrive(&ring.empty[before]);
  }
  store<kN, kGates>(a, work, work.tile * kTiles + group * 4 + warp, lane, sums);
}

#endif  // BATON_HOPPER

template <ExpertFormat kFormat, bool kGates>
__global__ void __launch_bounds__(kThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map, const WideArguments a) {
#ifdef BATON_HOPPER
  using S = Stage<kFormat>;
  extern __shared__ std::uint8_t dynamic[];
  __shared__ std::uint64_t full[kStages];
  __shared__ std::uint64_t empty[kStages];
  const std::uint32_t base = hopper::shared_address(dynamic);
  WideRing ring{dynamic + ((base + 1023) / 1024 * 1024 - base), full, empty};
  if (threadIdx.x == kMultiplying) {
    for (int i = 0; i < kStages; ++i) {
      hopper::barrier_init(&full[i], 1);
      hopper::barrier_init(&empty[i], kMultiplying / 32);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  const int turns = (a.out + kTile - 1) / kTile;
  const int chunks = (a.in + S::kUnits * kExpertUnit - 1) / (S::kUnits * kExpertUnit);
  if (threadIdx.x >= kMultiplying) {
    hopper::give_registers<kProducerRegisters>();
    if (threadIdx.x == kMultiplying) {
      grid_wait();
      produce<kFormat>(&w_map, &x_map, a, ring, turns, chunks);
      grid_release();
    }
    return;
  }
  hopper::take_registers<kRegisters>();
  grid_wait();
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int works = *a.n_items * turns;
  for (int index = static_cast<int>(blockIdx.x); index < works;
       index += static_cast<int>(gridDim.x)) {
    const Work work = work_of(a, index, turns);
    if (work.item.rows > kBoxRows) {
      compute<kFormat, 128, kGates>(a, work, ring, chunks, warp / 4, warp % 4, lane);
    } else if (work.item.rows > 32) {
      compute<kFormat, 64, kGates>(a, work, ring, chunks, warp / 4, warp % 4, lane);
    } else {
      compute<kFormat, 32, kGates>(a, work, ring, chunks, warp / 4, warp % 4, lane);
    }
  }
#endif
}

/// A CTA a line.
__global__ void __launch_bounds__(128)
    gather_lines_kernel(const uint4* x, const std::int32_t* source, int words, uint4* y) {
  grid_release();
  grid_wait();
  const std::int64_t from = std::int64_t{source[blockIdx.x]} * words;
  const std::int64_t to = std::int64_t{blockIdx.x} * words;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += 128) y[to + i] = x[from + i];
}

// ------------------------------------------------------------------ host

/// Rows of 16-byte multiples; what lies outside reads as zero.
CUtensorMap map_of(const void* data, CUtensorMapDataType type, int element, std::int64_t rows,
                   std::int64_t columns, int box_rows, int box_columns,
                   CUtensorMapSwizzle swizzle) {
  return encode_map<2>(data, type,
                       {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                       {static_cast<cuuint64_t>(columns * element)},
                       {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)},
                       swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

template <ExpertFormat kFormat, bool kGates>
void run(const StreamProduct& p, Stream stream) {
  using S = Stage<kFormat>;
  const ExpertRouting& r = *p.routing;
  WideArguments a{};
  a.y = reinterpret_cast<__nv_bfloat16*>(p.y);
  a.items = r.items;
  a.n_items = r.n_items;
  a.out = p.out;
  a.in = p.in;
  a.act = r.rule.act;
  a.bias = r.rule.up_bias;
  const auto bf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUtensorMap x_map = map_of(p.x, bf16, 2, std::int64_t{r.rows} * r.active, p.in, kBoxRows,
                                   kExpertUnit, CU_TENSOR_MAP_SWIZZLE_128B);
  const CUtensorMap w_map = S::kPlain
                                ? map_of(p.w.data, bf16, 2, std::int64_t{r.count} * p.out, p.in,
                                         kTile, kExpertUnit, CU_TENSOR_MAP_SWIZZLE_128B)
                                : map_of(p.w.data, CU_TENSOR_MAP_DATA_TYPE_INT64, 8,
                                         std::int64_t{r.count} * expert_tiles(p.out),
                                         std::int64_t{expert_units(p.in)} * (S::kUnitBytes / 8),
                                         kTiles, S::kTileBytes / 8, CU_TENSOR_MAP_SWIZZLE_NONE);
  constexpr int kBytes = kStages * S::kBytes + 1024;  // to align by
  const std::int64_t works =
      std::int64_t{most_items(r.rows, r.count, r.active, r.piece)} * ((p.out + kTile - 1) / kTile);
  take_shared_memory<wide_kernel<kFormat, kGates>>(kBytes, "experts");
  launch("experts", wide_kernel<kFormat, kGates>,
         static_cast<unsigned>(std::min<std::int64_t>(works, multiprocessors())), kThreads, kBytes,
         stream, w_map, x_map, a);
}

template <ExpertFormat kFormat>
void run_format(const StreamProduct& p, Stream stream) {
  p.gates ? run<kFormat, true>(p, stream) : run<kFormat, false>(p, stream);
}

}  // namespace

bool wide_experts_fit() { return is_hopper(); }

void gather_lines(const ExpertRouting& r, const Bf16* x, int columns, Bf16* y, Stream stream) {
  launch("gather experts' rows", gather_lines_kernel, static_cast<unsigned>(r.rows * r.active), 128,
         0, stream, reinterpret_cast<const uint4*>(x), r.source, columns / 8,
         reinterpret_cast<uint4*>(y));
}

void wide_experts(const StreamProduct& p, Stream stream) {
  with_format(p.w.format, [&]<ExpertFormat kFormat> { run_format<kFormat>(p, stream); });
}

}  // namespace baton::cuda
