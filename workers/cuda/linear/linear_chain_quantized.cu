// See linear_chain.h; the GEMMs wait for each other as in linear_chain.cu. What is particular to
// quantised weights: the multiplying warps are as scarce as the memory. So
//   - a warp has 2 KiB of W at a time, 16 features, dequantised in registers for mma.m16n8k16; the
//   warps of a CTA share its features, and where those are few also the inputs ("slices");
//   - W comes through a ring of its own, with the scales, one copy each for all warps; x through
//   another, in stages of up to 2,048 inputs: as few waits as can be (with stages half as large,
//   the barriers alone took a quarter of the time);
//   - int4 is dequantised with one shift for eight numbers (dequantize_int4_small).
#include <algorithm>
#include <climits>
#include <cstdint>
#include <tuple>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_chain_quantized.cuh"
#include "workers/cuda/linear/linear_chain_quantized_store.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace quantized_gemms {
namespace {

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ producers

template <class S>
__device__ __forceinline__ void produce_w(const Arguments& a, Shared<S>& shared,
                                          std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_first();
  const int ring_stages = a.stages;
  int stage = 0;
  int parity = 1;
  for (int i = 0; i < a.n; ++i) {
    const Gemm& gemm = a.gemms[i];
    const int tiles = gemm.tiles;
    const int slices = gemm.slices;
    const int units = gemm.units;
    const int stages = gemm.stages;
    const int shift = gemm.group_shift;
    const int bytes = tiles * (slices * S::kBlockBytes + gemm.groups * S::kGroupBytes);
    for (int unit = static_cast<int>(blockIdx.x); unit < units;
         unit += static_cast<int>(gridDim.x)) {
      for (int p = 0; p < stages; ++p) {
        std::uint8_t* to = ring + stage * S::kStageBytes;
        hopper::barrier_wait(&shared.empty[stage], parity);
        hopper::barrier_expect(&shared.full[stage], bytes);
        hopper::copy_box_3d(to, &gemm.w, p * slices * S::kBlockUnits, unit * tiles,
                            &shared.full[stage], policy);
        const int group = p * slices * S::kBlockInputs >> shift;
        hopper::copy_box_3d(to + S::kWordBytes, &gemm.scales, group, unit * tiles,
                            &shared.full[stage], policy);
        next_stage(stage, parity, ring_stages);
      }
    }
  }
  grid_release();
}

template <class S>
__device__ __forceinline__ void produce_x(const Arguments& a, Shared<S>& shared,
                                          std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_last();
  const int x_ring_stages = a.x_stages;
  int stage = 0;
  int parity = 1;
  grid_wait();
  for (int i = 0; i < a.n; ++i) {
    const Gemm& gemm = a.gemms[i];
    const int units = gemm.units;
    const int inputs = gemm.x_stages * gemm.slices * S::kBlockInputs;
    const int copies = (gemm.in + inputs - 1) / inputs;
    await_gemm(shared, i, [&](int j) { return Awaited{&a.state->done[j], a.gemms[j].units}; });
    for (int unit = static_cast<int>(blockIdx.x); unit < units;
         unit += static_cast<int>(gridDim.x)) {
      for (int p = 0; p < copies; ++p) {
        hopper::barrier_wait(&shared.x_empty[stage], parity);
        const int bytes = 2 * min(inputs, gemm.in - p * inputs);
        std::uint8_t* to = ring + stage * a.x_stage_bytes;
        hopper::barrier_expect(&shared.x_full[stage], a.rows * bytes);
        for (int row = 0; row < a.rows; ++row) {
          hopper::copy_bytes(to + row * kXRowBytes,
                             gemm.x + std::int64_t{row} * gemm.in + p * inputs, bytes,
                             &shared.x_full[stage], policy);
        }
        next_stage(stage, parity, x_ring_stages);
      }
    }
  }
}

// ------------------------------------------------------------------ a CTA

/// Where a warp is in a ring.
struct Turn {
  int stage = 0, parity = 0;
};

/// All units of GEMM i. The turns of both rings go on from GEMM to GEMM.
template <class S>
__device__ __forceinline__ void run_gemm(const Arguments& a, Shared<S>& shared, std::uint32_t ring,
                                         std::uint32_t x_ring, int i, Turn& w, Turn& x) {
  const Gemm& gemm = a.gemms[i];
  const int ring_stages = a.stages;
  const int x_ring_stages = a.x_stages;
  const int stages = gemm.stages;
  const int x_stages = gemm.x_stages;
  const int slices = gemm.slices;
  const int blocks = gemm.blocks;
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int of_tiles = warp * gemm.by_tiles >> 16;
  const int tile = warp - of_tiles * gemm.tiles;
  const int slice = of_tiles < slices ? of_tiles : blocks;  // none: beyond the last
  const bool own_scales = S::kScales > 1 || gemm.group_shift <= 7;
  const int group =
      own_scales ? slice * S::kParts * S::kScales : slice * S::kBlockInputs >> gemm.group_shift;
  const int part_scales = own_scales ? S::kScales * S::kGroupBytes : 0;
  const std::uint32_t my_words = ring + (tile * slices + slice) * S::kBlockBytes + lane * 16;
  const std::uint32_t my_scales = ring + S::kWordBytes +
                                  (tile * gemm.groups + group) * S::kGroupBytes +
                                  (S::kShared ? 0 : lane / 4 * 8);
  // Lanes of rows that there are not read another's: nobody stores their sums.
  const std::uint32_t my_x =
      x_ring + min(lane % 8, a.rows - 1) * kXRowBytes + lane / 8 * 16 + slice * S::kBlockInputs * 2;
  const int x_step = slices * S::kBlockInputs * 2;
  const Outputs<S> to(gemm.output == LinearOutput::silu_mul);
  float squares = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < gemm.units;
       unit += static_cast<int>(gridDim.x)) {
    Old old;
    float sums[4] = {};
    int block = slice;
    for (int p0 = 0; p0 < stages; p0 += x_stages) {
      hopper::barrier_wait(&shared.x_full[x.stage], x.parity);
      if (p0 == 0) old = load_old(a, gemm, unit, to, to.tile);
      std::uint32_t x_at = my_x + x.stage * a.x_stage_bytes;
#pragma unroll 1
      for (int left = min(x_stages, stages - p0); left > 0; --left) {
        hopper::barrier_wait(&shared.full[w.stage], w.parity);
        if (block < blocks) {
          const std::uint32_t here = w.stage * S::kStageBytes;
          multiply<S>(my_words + here, my_scales + here, part_scales, x_at, sums);
        }
        __syncwarp();
        if (lane == 0) hopper::barrier_arrive(&shared.empty[w.stage]);
        block += slices;
        x_at += x_step;
        next_stage(w.stage, w.parity, ring_stages);
      }
      if (lane == 0) hopper::barrier_arrive(&shared.x_empty[x.stage]);
      next_stage(x.stage, x.parity, x_ring_stages);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) shared.sums[warp][e][lane] = sums[e];
    hopper::sync_threads(1, kMultiplying);
    store<S>(a, shared, i, unit, to, old, squares);
    stores_before_copies();
    hopper::sync_threads(1, kMultiplying);
    if (threadIdx.x == 0) part_done(&a.state->done[i]);
  }
}
#endif  // BATON_HOPPER

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    quantized_chain_kernel(const __grid_constant__ Arguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];
  __shared__ Shared<S> shared;
  const std::uint32_t base = hopper::shared_address(dynamic);
  std::uint8_t* ring = dynamic + ((base + 127) / 128 * 128 - base);
  std::uint8_t* x_ring = ring + a.stages * S::kStageBytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.stages; ++i) {
      hopper::barrier_init(&shared.full[i], 1);
      hopper::barrier_init(&shared.empty[i], kWarps);
    }
    for (int i = 0; i < a.x_stages; ++i) {
      hopper::barrier_init(&shared.x_full[i], 1);
      hopper::barrier_init(&shared.x_empty[i], kWarps);
    }
    init_gemms(a, shared);
    hopper::barrier_init_done();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kWarps) {
    Turn w;
    Turn x;
#pragma unroll 1
    for (int i = 0; i < a.n; ++i)
      run_gemm<S>(a, shared, hopper::shared_address(ring), hopper::shared_address(x_ring), i, w, x);
  } else if (threadIdx.x == kMultiplying) {
    produce_w<S>(a, shared, ring);
  } else if (threadIdx.x == kMultiplying + 32) {
    produce_x<S>(a, shared, x_ring);
  } else if (warp == kWarps + 2) {
    clear_next(a.next);
    norm_gemms<kMostRows>(
        a, shared, [](const Gemm& gemm) { return min(gemm.units, static_cast<int>(gridDim.x)); });
  }
#endif
}

// ------------------------------------------------------------------ host

int parts_of(const QuantizedWeight& w) {
  int parts = 1;
  by_format(w, [&]<WeightFormat, int kParts>() { parts = kParts; });
  return parts;
}

/// How a matrix is cut: the fewest tiles in a row for a CTA, then the fewest units in a row (x is
/// read for each, and each ends with the warps' sums), then the fewest stages.
struct Cut {
  int tiles = 1, slices = 1;
};
Cut cut_of(const LinearWeight& w, int block_inputs) {
  Cut best;
  std::tuple<int, int, int> least(INT_MAX, 0, 0);
  for (int tiles = 1; tiles <= kWarps; ++tiles) {
    int slices = std::min(kWarps / tiles, kMostSlices);
    // Groups of more than a part begin where stages do.
    while (w.quantized.group_shift > 7 && (slices & (slices - 1)) != 0) --slices;
    const int turns = ceil_div(ceil_div(tiles_of(w.out), tiles), multiprocessors());
    const int stages = turns * ceil_div(w.in / block_inputs, slices);
    const std::tuple<int, int, int> cost(turns * tiles, turns, stages);
    if (cost >= least) continue;
    best = {tiles, slices};
    least = cost;
  }
  return best;
}

template <class S>
Gemm make_gemm(const ChainGemm& from) {
  const LinearWeight& w = from.w;
  const QuantizedWeight& q = w.quantized;
  const Cut cut = cut_of(w, S::kBlockInputs);
  auto gemm = begin_gemm<Gemm>(from);
  gemm.x = reinterpret_cast<const std::uint16_t*>(from.x);
  gemm.in = w.in;
  gemm.tiles = cut.tiles;
  gemm.slices = cut.slices;
  gemm.by_tiles = (1 << 16) / cut.tiles + 1;
  gemm.units = ceil_div(tiles_of(w.out), cut.tiles);
  gemm.blocks = w.in / S::kBlockInputs;
  gemm.stages = ceil_div(gemm.blocks, cut.slices);
  gemm.x_stages = kXInputs / (cut.slices * S::kBlockInputs);
  gemm.group_shift = q.group_shift;
  gemm.groups = std::max(1, cut.slices * S::kBlockInputs >> q.group_shift);
  const auto units = static_cast<cuuint64_t>(units_of(w.in));
  const auto tiles = static_cast<cuuint64_t>(tiles_of(w.out));
  const auto groups = static_cast<cuuint64_t>(q.groups);
  const auto box_tiles = static_cast<cuuint32_t>(cut.tiles);
  gemm.w = encode_map<3>(
      q.words, CU_TENSOR_MAP_DATA_TYPE_INT64, {S::kUnitBytes / 8, units, tiles},
      {S::kUnitBytes, units * S::kUnitBytes},
      {S::kUnitBytes / 8, static_cast<cuuint32_t>(cut.slices * S::kBlockUnits), box_tiles},
      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE);
  gemm.scales =
      encode_map<3>(S::kShared ? q.shared_scales : q.scales, CU_TENSOR_MAP_DATA_TYPE_INT32,
                    {S::kGroupBytes / 4, groups, tiles}, {S::kGroupBytes, groups * S::kGroupBytes},
                    {S::kGroupBytes / 4, static_cast<cuuint32_t>(gemm.groups), box_tiles},
                    CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE);
  return gemm;
}

template <class S>
void launch_chain(const ChainGemm* gemms, int n, int rows, const ChainBuffers& buffers,
                  Stream stream) {
  constexpr int kShared = static_cast<int>(sizeof(Shared<S>) + 15) / 16 * 16;
  constexpr int kMostBytes = (227 << 10) - kShared;
  auto a = begin_arguments<Arguments>(n, rows, buffers);
  a.x_stage_bytes = ceil_div(rows * kXRowBytes, 128) * 128;
  a.x_stages = std::clamp(kXRingBytes / a.x_stage_bytes, 2, kMostXStages);
  const int x_bytes = a.x_stages * a.x_stage_bytes;
  a.stages = std::min(kMostStages, (kMostBytes - 128 - x_bytes) / S::kStageBytes);
  int units = 1;
  for (int i = 0; i < n; ++i) {
    a.gemms[i] = make_gemm<S>(gemms[i]);
    units = std::max(units, a.gemms[i].units);
  }
  take_shared_memory<quantized_chain_kernel<S>>(kMostBytes, "quantized_chain");
  launch("quantized_chain", quantized_chain_kernel<S>, std::min(units, multiprocessors()), kThreads,
         static_cast<std::size_t>(128 + x_bytes + a.stages * S::kStageBytes), stream, a);
}

}  // namespace
}  // namespace quantized_gemms

using namespace quantized_gemms;

int quantized_chain_rows(const ChainGemm* gemms, int n) {
  for (int i = 0; i < n; ++i) {
    const LinearWeight& w = gemms[i].w;
    if (w.quantized.order != nullptr || w.in % 256 != 0) return 0;
    if (w.quantized.format == WeightFormat::int8) return 0;  // other kernels multiply it
    if (w.quantized.format != gemms[0].w.quantized.format) return 0;
    if (parts_of(w.quantized) != parts_of(gemms[0].w.quantized)) return 0;
  }
  return kMostRows;
}

void quantized_chain(const ChainGemm* gemms, int n, int rows, const ChainBuffers& buffers,
                     Stream stream) {
  const bool shared = std::all_of(gemms, gemms + n, [](const ChainGemm& gemm) {
    return gemm.w.quantized.shared_scales != nullptr;
  });
  if (shared) {
    using S = Shape<WeightFormat::fp8, 1, true>;
    return launch_chain<S>(gemms, n, rows, buffers, stream);
  }
  by_format(gemms[0].w.quantized, [&]<WeightFormat kFormat, int kParts>() {
    if constexpr (kFormat != WeightFormat::int8) {
      launch_chain<Shape<kFormat, kParts>>(gemms, n, rows, buffers, stream);
    }
  });
}

}  // namespace baton::cuda
