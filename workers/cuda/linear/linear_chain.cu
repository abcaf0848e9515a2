// See linear_chain.h. Every CTA has its own output features of each GEMM, all of their k, so no
// sums cross CTAs; but where x is large, pairs of CTAs have them, half of k each, and exchange sums
// through their shared memory (split_k_features()). A GEMM begins when all CTAs have stored what
// the GEMM before it has (a counter in L2). W depends on nothing: the warp that asks for it runs
// ahead through the GEMMs, as far as the ring of shared memory lets it (the idea of a persistent
// kernel over all layers: "Look Ma, No Bubbles!", Hazy Research 2025).
//
// W's rows are the 64-row operand of a warpgroup product and x's the narrow one, as in
// linear_staged.cu. A CTA mostly has fewer than 64 features of a GEMM: the rows behind them hold
// what lies there in shared memory, and their sums are not stored.
//
// Measured while this was written: with few rows sums of a tile that CTAs share cost more than they
// bring, through L2 (a layer of the 8B took 146 us, this takes 107); 256-byte promotion in W's map
// costs 6 %; loops that read their bounds from memory, 10 to 40 %.
#include <algorithm>
#include <cstdint>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_chain.h"
#include "workers/cuda/linear/linear_chain_join.cuh"
#include "workers/cuda/linear/linear_chain_quantized.h"
#include "workers/cuda/linear/linear_chain_store.cuh"
#include "workers/cuda/linear/linear_chain_wide.h"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace gemms {
namespace {

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ producers

template <int kN>
__device__ __forceinline__ void produce_w(const Arguments& a, Shared<kN>& shared,
                                          std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_first();
  const int ring_stages = a.stages;
  int stage = 0;
  int parity = 1;
  for (int i = 0; i < a.n; ++i) {
    const Gemm& gemm = a.gemms[i];
    const int boxes = gemm.boxes;
    const int stages = gemm.stages;
    const int units = gemm.units;
    const int features = gemm.features;
    const int bytes = features * 128 * boxes;
    const auto slice = UnitSlice::of<kN>(a, gemm);
    const int first = slice.half * stages;
    for (int unit = slice.unit; unit < units; unit += slice.step) {
      for (int p = 0; p < stages; ++p) {
        hopper::barrier_wait(&shared.empty[stage], parity);
        hopper::barrier_expect(&shared.full[stage], bytes);
        hopper::copy_box_3d(ring + stage * stage_bytes(kN), &gemm.w, unit * features,
                            (first + p) * boxes, &shared.full[stage], policy);
        next_stage(stage, parity, ring_stages);
      }
    }
  }
  grid_release();
}

template <int kN>
__device__ __forceinline__ void produce_x(const Arguments& a, Shared<kN>& shared,
                                          std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_last();
  const int ring_stages = a.stages;
  int stage = 0;
  int parity = 1;
  grid_wait();
  for (int i = 0; i < a.n; ++i) {
    const Gemm& gemm = a.gemms[i];
    const int boxes = gemm.boxes;
    const int stages = gemm.stages;
    const int units = gemm.units;
    const int bytes = kN * 128 * boxes;
    std::uint8_t* to = ring + gemm.features * 128 * boxes;  // behind W
    const auto slice = UnitSlice::of<kN>(a, gemm);
    const int first = slice.half * stages;
    await_gemm(shared, i, [&](int j) {
      return a.gemms[j].joins ? Awaited{&a.state->joined[j], a.rows}
                              : Awaited{&a.state->done[j], a.gemms[j].parts};
    });
    for (int unit = slice.unit; unit < units; unit += slice.step) {
      for (int p = 0; p < stages; ++p) {
        hopper::barrier_wait(&shared.empty[stage], parity);
        hopper::barrier_expect(&shared.full[stage], bytes);
        hopper::copy_box_3d(to + stage * stage_bytes(kN), &gemm.x, 0, (first + p) * boxes,
                            &shared.full[stage], policy);
        next_stage(stage, parity, ring_stages);
      }
    }
  }
}

// ------------------------------------------------------------------ products

/// kBoxes times 64 k; w and x are operands, the next box of W lies `w_box` behind, in their units
/// of 16 bytes.
template <int kN, int kBoxes>
__device__ __forceinline__ void multiply(float (&sums)[kN / 2], std::uint64_t w, std::uint64_t x,
                                         int w_box) {
  constexpr int kSteps = kBlockK / 16;
  hopper::product_begin();
#pragma unroll
  for (int k = 0; k < kBoxes * kSteps; ++k) {
    const int box = k / kSteps, step = 2 * (k % kSteps);
    hopper::Product<kN>::run(sums, hopper::operand_behind(w, w_box * box + step),
                             hopper::operand_behind(x, kN * 8 * box + step), 1);
  }
  hopper::product_commit();
}

/// A stage of the ring: `boxes` boxes.
template <int kN>
__device__ __forceinline__ void multiply_stage(float (&sums)[kN / 2], std::uint64_t w,
                                               std::uint64_t x, int w_box, int boxes) {
  hopper::pin(sums);
  if (boxes == 1) {
    multiply<kN, 1>(sums, w, x, w_box);
  } else if (boxes == 2) {
    multiply<kN, 2>(sums, w, x, w_box);
  } else {
    multiply<kN, 4>(sums, w, x, w_box);
  }
  hopper::pin(sums);
  // Not one stage later: with few rows a product takes no time, and a stage is W in flight.
  hopper::product_wait<0>();
}

/// Sums of a block of eight rows.
__device__ __forceinline__ float4 quad(const float* sums) {
  return make_float4(sums[0], sums[1], sums[2], sums[3]);
}
__device__ __forceinline__ void add_quad(float* sums, float4 v) {
  sums[0] += v.x;
  sums[1] += v.y;
  sums[2] += v.z;
  sums[3] += v.w;
}

/// Both groups have sums of the same features, over stages of their own: the first gets all of
/// them.
template <int kN>
__device__ __forceinline__ void add_groups(Shared<kN>& shared, int group, float (&sums)[kN / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  hopper::sync_threads(3, kMultiplying);  // the sums before are no longer read
  if (group == 1) {
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) shared.half[j][thread] = quad(&sums[4 * j]);
  }
  hopper::sync_threads(3, kMultiplying);
  if (group == 1) return;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) add_quad(&sums[4 * j], shared.half[j][thread]);
}

/// Both CTAs of a pair have sums of all rows, over half of k each: each gets the other's sums of
/// the rows that it stores. A pair has at most one unit of such a GEMM (split_k_features()), and
/// the next GEMM waits for all that was stored: nothing is overwritten before it has been read.
template <int kN>
__device__ __forceinline__ void add_peer_sums(Shared<kN>& shared, int half, int group,
                                              int& peer_parity, float (&sums)[kN / 2]) {
  constexpr int kBlocks = kN / 16;  // of eight rows
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int peer = 1 - half;
#pragma unroll
  for (int j = 0; j < 2 * kBlocks; ++j) {
    if (j / kBlocks == half) continue;
    hopper::cluster_store(&shared.peer_sums[group][j % kBlocks][thread], peer, quad(&sums[4 * j]));
  }
  __syncwarp();
  if (thread % 32 == 0) hopper::cluster_barrier_arrive(&shared.peer_ready[group], peer);
  hopper::cluster_barrier_wait(&shared.peer_ready[group], peer_parity);
  peer_parity ^= 1;
#pragma unroll
  for (int j = 0; j < 2 * kBlocks; ++j) {
    if (j / kBlocks != half) continue;
    add_quad(&sums[4 * j], shared.peer_sums[group][j % kBlocks][thread]);
  }
}

/// All units of GEMM i. `stage` and the parities go on from GEMM to GEMM.
template <int kN>
__device__ __forceinline__ void run_gemm(const Arguments& a, Shared<kN>& shared,
                                         const std::uint8_t* ring, int i, int& stage, int& parity,
                                         int& peer_parity) {
  const Gemm& gemm = a.gemms[i];
  const auto slice = UnitSlice::of<kN>(a, gemm);
  const int boxes = gemm.boxes;
  const int stages = gemm.stages;
  const int units = gemm.units;
  const int features = gemm.features;
  const int ring_stages = a.stages;
  const int group = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const bool leader = threadIdx.x % 32 == 0;
  // Up to 64 features: the groups take stages in turns, and add up. More: each has 64 of them.
  const bool by_k = features <= 64;
  const int mine = by_k ? 0 : 64 * group;
  const int w_box = features * 128 >> 4;
  const int x_offset = w_box * boxes - (mine * 128 >> 4);
  float squares = 0;  // of a row of all our units, in the threads that store them
  for (int unit = slice.unit; unit < units; unit += slice.step) {
    const int first = unit * features + mine;
    const int end = min(gemm.out, (unit + 1) * features);
    Fragment<kN> f;
#pragma unroll
    for (float& sum : f.sums) sum = 0;
#pragma unroll 1
    for (int p = 0; p < stages; ++p) {
      // The ring has an even number of stages: each is always of the same group, in turns, so that
      // its barrier is never two laps ahead of a group, which its parity would not tell.
      if (!by_k || stage % 2 == group) {
        const std::uint64_t w = hopper::operand(ring + stage * stage_bytes(kN) + mine * 128);
        hopper::barrier_wait(&shared.full[stage], parity);
        multiply_stage<kN>(f.sums, w, hopper::operand_behind(w, x_offset), w_box, boxes);
        if (leader) hopper::barrier_arrive(&shared.empty[stage], by_k ? 2 : 1);
      }
      next_stage(stage, parity, ring_stages);
      // Of three stages one was this group's: what the GEMM waits for has been seen.
      if (p == 2) f.load(a, i, slice, first, end);
    }
    hopper::pin(f.sums);
    if (by_k) {
      add_groups<kN>(shared, group, f.sums);
      if (group == 1) continue;
    }
    if (stages <= 2) f.load(a, i, slice, first, end);
    if constexpr (can_split_k(kN)) {
      if (gemm.split_k) add_peer_sums<kN>(shared, slice.half, group, peer_parity, f.sums);
    }
    store<kN>(a, shared, i, slice, first, end, f, squares);
    stores_before_copies();
    hopper::sync_threads(1 + group, 128);
    if (thread == 0) part_done(&a.state->done[i]);
  }
}
#endif  // BATON_HOPPER

template <int kN>
__global__ void __launch_bounds__(kThreads, 1) chain_kernel(const __grid_constant__ Arguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];
  __shared__ Shared<kN> shared;
  // The swizzle is a function of the address: stages start at multiples of 1 KiB.
  const std::uint32_t base = hopper::shared_address(dynamic);
  std::uint8_t* ring = dynamic + ((base + 1023) / 1024 * 1024 - base);
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.stages; ++i) {
      hopper::barrier_init(&shared.full[i], 2);  // W and x
      hopper::barrier_init(&shared.empty[i], kMultiplying / 32);
    }
    for (auto& barrier : shared.peer_ready) hopper::barrier_init(&barrier, 4);  // warps
    init_gemms(a, shared);
    hopper::barrier_init_done();
  }
  __syncthreads();
  if (a.pairs) hopper::cluster_sync();  // the peer's barriers are ready, too
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kMultiplying / 32) {
    int stage = 0;
    int parity = 0;
    int peer_parity = 0;
#pragma unroll 1
    for (int i = 0; i < a.n; ++i) {
      run_gemm<kN>(a, shared, ring, i, stage, parity, peer_parity);
      if (!a.gemms[i].joins) continue;
      join_gemm<kMultiplying, 4>(a, i, shared.joining, [](const Gemm& gemm) { return gemm.parts; });
    }
  } else if (threadIdx.x == kMultiplying) {
    produce_w<kN>(a, shared, ring);
  } else if (threadIdx.x == kMultiplying + 32) {
    produce_x<kN>(a, shared, ring);
  } else if (warp == kMultiplying / 32 + 2) {
    clear_next(a.next);
    norm_gemms<kN>(a, shared, [](const Gemm& gemm) { return gemm.slots; });
  }
#endif
}

// ------------------------------------------------------------------ host

int columns_for(int rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

/// Features of a unit: as few turns times features as can be, and of those the most, since x is
/// read for each.
int features_for(int out, int step, int columns) {
  int best = step;
  for (int f = step; f <= 128 && (f + columns) * 128 <= stage_bytes(columns); f += step) {
    const auto cost = [&](int n) { return ceil_div(ceil_div(out, n), multiprocessors()) * n; };
    if (cost(f) <= cost(best)) best = f;
  }
  return best;
}

/// Features of a unit that a pair of CTAs takes, half of k each, or 0: not worth it, or not
/// possible. The pair reads half of the x that two CTAs would, and exchanges sums for about 1.2 us:
/// measured with the 8B, it pays from 16 rows of 14,336 inputs or 64 of 4,096 on, and not for 32 of
/// 4,096.
int split_k_features(const LinearWeight& w, int step, int columns) {
  constexpr int kWorth = 180 << 10;
  const int pairs = multiprocessors() / 2;
  const int features = ceil_div(ceil_div(w.out, pairs), step) * step;
  if (!can_split_k(columns) || columns * w.in < kWorth) return 0;
  if (features > 128 || (features + columns) * 128 > stage_bytes(columns)) return 0;
  return w.in / kBlockK % 2 == 0 ? features : 0;
}

/// [rows, columns] in boxes of 64 columns by box_rows, `boxes` of them side by side in one copy. No
/// L2 promotion: reading 256 bytes at a time costs 6 % here.
CUtensorMap chunks_map(const void* data, int rows, int columns, int box_rows, int boxes) {
  const auto row_bytes = static_cast<cuuint64_t>(columns) * sizeof(Bf16);
  return encode_map<3>(
      data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {kBlockK, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / kBlockK)},
      {row_bytes, kBlockK * sizeof(Bf16)},
      {kBlockK, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(boxes)},
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

Gemm make_gemm(const ChainGemm& from, int rows, int columns, bool pairs) {
  auto gemm = begin_gemm<Gemm>(from);
  const int step = from.output == LinearOutput::silu_mul ? 16 : 8;
  gemm.features = pairs ? split_k_features(from.w, step, columns) : 0;
  gemm.split_k = gemm.features > 0;
  if (!gemm.split_k) gemm.features = features_for(from.w.out, step, columns);
  gemm.units = ceil_div(from.w.out, gemm.features);
  const int sharing = gemm.split_k ? 2 : 1;
  const int chunks = from.w.in / kBlockK / sharing;
  // The second group reads 64 rows of each box from its 65th on, whatever lies there.
  const int read = gemm.features > 64 ? 128 : gemm.features;
  const auto fits = [&](int boxes) {
    return std::max(boxes * (gemm.features + columns), (boxes - 1) * gemm.features + read) * 128 <=
           stage_bytes(columns);
  };
  gemm.boxes = 1;
  while (gemm.boxes < 4 && chunks % (2 * gemm.boxes) == 0 && fits(2 * gemm.boxes)) gemm.boxes *= 2;
  gemm.stages = chunks / gemm.boxes;
  const int storing = gemm.features > 64 ? kGroups : 1;
  gemm.parts = gemm.units * storing * sharing;
  gemm.slots = std::min(gemm.units, multiprocessors() / sharing) * storing;
  gemm.joins = from.joins;
  gemm.join = from.join;
  gemm.gate.gate = from.gate;
  gemm.w = chunks_map(from.w.data, from.w.out, from.w.in, gemm.features, gemm.boxes);
  gemm.x = chunks_map(from.x, rows, from.w.in, columns, gemm.boxes);
  return gemm;
}

/// Whether `ctas` CTAs are on the device all at once, as they must be, if they are launched in
/// pairs.
bool pairs_fit(void (*kernel)(const Arguments), int ctas, std::size_t shared_bytes) {
  if (ctas % 2 != 0) return false;
  cudaLaunchAttribute pair{};
  pair.id = cudaLaunchAttributeClusterDimension;
  pair.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(ctas);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &pair;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "linear_chain");
  return 2 * clusters >= ctas;
}

template <int kN>
void launch_chain(const ChainGemm* gemms, Arguments& a, Stream stream) {
  constexpr int kMostBytes = (227 << 10) - static_cast<int>(sizeof(Shared<kN>) + 15) / 16 * 16;
  a.stages = std::min(kMostStages, (kMostBytes - 1024) / stage_bytes(kN) / 2 * 2);
  take_shared_memory<chain_kernel<kN>>(kMostBytes, "linear_chain");
  const auto bytes = static_cast<std::size_t>(a.stages * stage_bytes(kN) + 1024);
  static const bool pairs =
      can_split_k(kN) && pairs_fit(chain_kernel<kN>, multiprocessors(), bytes);
  int units = 1;
  for (int i = 0; i < a.n; ++i) {
    a.gemms[i] = make_gemm(gemms[i], a.rows, kN, pairs);
    units = std::max(units, a.gemms[i].units * (a.gemms[i].split_k ? 2 : 1));
    a.pairs = a.pairs || a.gemms[i].split_k;
  }
  const int grid = std::min(units, multiprocessors());
  launch_clusters("linear_chain", chain_kernel<kN>, a.pairs ? (grid + 1) / 2 * 2 : grid, kThreads,
                  bytes, a.pairs ? 2 : 1, stream, a);
}

}  // namespace
}  // namespace gemms

using namespace gemms;

namespace {
bool may_join(const ChainGemm& gemm) {
  const PartCall& join = gemm.join;
  return gemm.output == LinearOutput::bf16 && join.hidden == gemm.w.out &&
         join.hidden <= kMostJoined && join.bias == nullptr && !join.norm.layer && !join.next.layer;
}
}  // namespace

int chain_rows(const ChainGemm* gemms, int n) {
  if (!is_hopper() || under_mps() || n < 1 || n > kMostChainGemms) return 0;
  if (gemms[0].normed) return 0;
  for (int i = 0; i < n; ++i) {
    const LinearWeight& w = gemms[i].w;
    const bool gated = gemms[i].output == LinearOutput::silu_mul;
    if (gemms[i].output == LinearOutput::f32) return 0;
    if (w.in % kBlockK != 0 || w.out % (gated ? 16 : 8) != 0) return 0;
    if (w.is_quantized() != gemms[0].w.is_quantized()) return 0;
    if (gemms[i].joins && !may_join(gemms[i])) return 0;
  }
  const bool joins = std::any_of(
      gemms, gemms + n, [](const ChainGemm& g) { return g.joins || g.gate != Gate::silu; });
  if (joins) return gemms[0].w.is_quantized() ? 0 : kMostRows;
  if (gemms[0].w.is_quantized()) return quantized_chain_rows(gemms, n);
  return has_wide_chain(gemms, n) ? kMostChainRows : kMostRows;
}

std::size_t chain_state_bytes() { return (sizeof(ChainState) + 255) / 256 * 256; }

std::size_t chain_workspace_bytes(int rows) {
  return ChainSquares::bytes() + (rows > kMostRows ? wide_workspace_bytes() : 0);
}

void linear_chain(const ChainGemm* gemms, int n, int rows, const ChainBuffers& buffers,
                  Stream stream) {
  if (rows == 0) return;
  if (rows > chain_rows(gemms, n)) throw CudaError("linear_chain: no such chain");
  if (gemms[0].w.is_quantized()) return quantized_chain(gemms, n, rows, buffers, stream);
  if (rows > kMostRows) return wide_chain(gemms, n, rows, buffers, stream);
  auto a = begin_arguments<Arguments>(n, rows, buffers);
  switch (columns_for(rows)) {
    case 8:
      return launch_chain<8>(gemms, a, stream);
    case 16:
      return launch_chain<16>(gemms, a, stream);
    case 32:
      return launch_chain<32>(gemms, a, stream);
    default:
      return launch_chain<64>(gemms, a, stream);
  }
}

}  // namespace baton::cuda
