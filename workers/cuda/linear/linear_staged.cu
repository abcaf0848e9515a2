// y = x W^T for few rows of x, bound by the bytes of W up to about 128 of them: W comes through
// shared memory by the copy engine and is multiplied by warpgroups, its rows as the 64-row operand
// and the activations as the narrow one. One producer warp and one or more warpgroups that
// multiply, a ring of tiles between them (the structure of CUTLASS's warp-specialised kernels).
// What is particular here:
//   - The ring is filled with W before grid_wait(): weights are never written, so while the kernel
//     before drains, this one's first ~100 KiB a multiprocessor are already on their way.
//   - Few output tiles do not divide among the multiprocessors: each CTA takes an equal run of
//     (tile, k) units instead, and a tile that several share is added up in a fixed order through
//     the L2 cache ("stream-K", Osama et al. 2023).
//   - One CTA a multiprocessor, two kernels at a time. With fewer or more CTAs the next kernel's
//     land two on one multiprocessor and none on another, and stay there: measured, a loss of 20 to
//     40%.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_kernels.h"
#include "workers/cuda/linear/linear_tiles.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

using Arguments = TileArguments;

constexpr int kMostRows = 256;  // above, not worth timing
constexpr int kBlockK = 64;     // k of a stage: the 128 bytes that the swizzle spans

template <int kGroupsOf, int kPerGroup, int kColumns>
struct Shape {
  static constexpr int kGroups = kGroupsOf;  // warpgroups that multiply
  static constexpr int kPer = kPerGroup;     // 64-feature tiles of each
  static constexpr int kN = kColumns;        // activation rows of a tile
  static constexpr int kTile = 64 * kGroups * kPer;
  static constexpr int kWBytes = kTile * 2 * kBlockK;
  static constexpr int kXBytes = kN * 2 * kBlockK;
  static constexpr int kStageBytes = kWBytes + kXBytes;
  static constexpr int kMultiplying = 128 * kGroups;
  static constexpr int kThreads = kMultiplying + 32;
};

// ------------------------------------------------------------------ producer

#ifdef BATON_HOPPER
template <class S>
__device__ __forceinline__ void produce(const CUtensorMap* w_map, const CUtensorMap* x_map,
                                        const Arguments& a, const Ring& ring) {
  hopper::prefetch_map(w_map);
  hopper::prefetch_map(x_map);
  // W passes through L2 once, unless several row tiles read it.
  const std::uint64_t keep = hopper::policy_evict_last();
  const std::uint64_t w_policy = a.row_tiles > 1 ? keep : hopper::policy_evict_first();
  const auto copy_w = [&](int unit, int stage) {
    hopper::copy_box(ring.data + stage * S::kStageBytes, w_map, unit % a.chunks * kBlockK,
                     unit / a.chunks / a.row_tiles * S::kTile, &ring.full[stage], w_policy);
  };
  const auto copy_x = [&](int unit, int stage) {
    hopper::copy_box(ring.data + stage * S::kStageBytes + S::kWBytes, x_map,
                     unit % a.chunks * kBlockK, unit / a.chunks % a.row_tiles * S::kN,
                     &ring.full[stage], keep);
  };
  const int begin = first_unit(a, static_cast<int>(blockIdx.x));
  const int end = first_unit(a, static_cast<int>(blockIdx.x) + 1);
  const int early = min(end - begin, a.stages);
  for (int i = 0; i < early; ++i) {
    hopper::barrier_expect(&ring.full[i], S::kStageBytes);
    copy_w(begin + i, i);
  }
  grid_wait();
  for (int i = 0; i < early; ++i) copy_x(begin + i, i);
  int stage = 0;
  int parity = 0;
  for (int unit = begin + early; unit < end; ++unit) {
    hopper::barrier_wait(&ring.empty[stage], parity);
    hopper::barrier_expect(&ring.full[stage], S::kStageBytes);
    copy_w(unit, stage);
    copy_x(unit, stage);
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}
#endif  // BATON_HOPPER

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ clusters

/// What leave_part and add_parts do, for the CTAs of a cluster, through their shared memory:
/// quicker, for small weights. Each CTA adds up and stores some of the tile's blocks. The parts go
/// where the ring was.
template <class S>
__device__ __forceinline__ void add_cluster_parts(const Arguments& a, int tile, int used,
                                                  float4* parts,
                                                  const float (&sums)[S::kPer][S::kN / 2]) {
  constexpr int kColumnBlocks = S::kN / 8;
  constexpr int kWarps = S::kMultiplying / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = tile % a.row_tiles * S::kN;
  const int feature0 = tile / a.row_tiles * S::kTile;
  hopper::sync_threads(1, S::kMultiplying);  // the other warps' products have read the ring
#pragma unroll
  for (int p = 0; p < S::kPer; ++p) {
    const int block = (warp / 4 * S::kPer + p) * 4 + warp % 4;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j) {
      const float* d = &sums[p][4 * j];
      if (j < used) {
        parts[(block * kColumnBlocks + j) * 32 + lane] = make_float4(d[0], d[1], d[2], d[3]);
      }
    }
  }
  hopper::cluster_sync();
  const int units = S::kTile / 16 * used;  // dealt out to the cluster's warps
  const int first = static_cast<int>(blockIdx.x) % a.split + warp * a.split;
  const int step = kWarps * a.split;
  const auto unit = [&](int i) { return first + i * step; };
  put_blocks<(S::kPer * kColumnBlocks + 1) / 2>(
      a, first < units ? (units - first - 1) / step + 1 : 0,
      [&](int i) { return feature0 + unit(i) / used * 16; },
      [&](int i) { return row0 + unit(i) % used * 8; },
      [&](int i) {
        const int u = unit(i);
        const float4* at = &parts[(u / used * kColumnBlocks + u % used) * 32 + lane];
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int rank = 0; rank < a.split; ++rank) {
          const float4 v = hopper::cluster_load(at, rank);
          sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
        }
        return sum;
      });
  hopper::cluster_sync();  // no CTA leaves while another reads its parts
}

// ------------------------------------------------------------------ products

/// The sums of one tile over `count` units; `stage` and `parity` go on from tile to tile.
template <class S>
__device__ __forceinline__ void multiply(const Arguments& a, int count, const Ring& ring,
                                         int& stage, int& parity,
                                         float (&sums)[S::kPer][S::kN / 2]) {
  const int group = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  const bool leader = threadIdx.x % 32 == 0;
  // With few rows a product takes no time, and a stage held back is a stage less in flight.
  constexpr int kPending = S::kN > 64 ? 1 : 0;
  int before = -1;
  for (int c = 0; c < count; ++c) {
    std::uint8_t* w = ring.data + stage * S::kStageBytes;
    hopper::barrier_wait(&ring.full[stage], parity);
    const std::uint64_t w0 = hopper::operand(w + group * S::kPer * 64 * 128);
    const std::uint64_t x0 = hopper::operand(w + S::kWBytes);
#pragma unroll
    for (int p = 0; p < S::kPer; ++p) hopper::pin(sums[p]);
    hopper::product_begin();
#pragma unroll
    for (int k = 0; k < kBlockK / 16; ++k) {
#pragma unroll
      for (int p = 0; p < S::kPer; ++p) {
        hopper::Product<S::kN>::run(sums[p], w0 + (p * 64 * 128 >> 4) + 2 * k, x0 + 2 * k,
                                    c + k > 0 ? 1 : 0);
      }
    }
    hopper::product_commit();
#pragma unroll
    for (int p = 0; p < S::kPer; ++p) hopper::pin(sums[p]);
    hopper::product_wait<kPending>();
    const int done = kPending == 0 ? stage : before;
    if (done >= 0 && leader) hopper::barrier_arrive(&ring.empty[done]);
    before = stage;
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  hopper::product_wait<0>();
#pragma unroll
  for (int p = 0; p < S::kPer; ++p) hopper::pin(sums[p]);
  if (kPending > 0 && leader) hopper::barrier_arrive(&ring.empty[before]);
}
#endif  // BATON_HOPPER

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    staged_kernel(const __grid_constant__ CUtensorMap w_map,
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
    if (threadIdx.x == S::kMultiplying) produce<S>(&w_map, &x_map, a, ring);
    __syncwarp();
    if (a.split > 1) {  // as add_cluster_parts does
      hopper::cluster_sync();
      hopper::cluster_sync();
    }
    return;
  }
  grid_wait();
  float sums[S::kPer][S::kN / 2];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int end = first_unit(a, static_cast<int>(blockIdx.x) + 1);
  int stage = 0;
  int parity = 0;
  for (int unit = first_unit(a, static_cast<int>(blockIdx.x)); unit < end;) {
    const int tile = unit / a.chunks;
    const int tile_end = (tile + 1) * a.chunks;
    const int stop = min(end, tile_end);
    const int row0 = tile % a.row_tiles * S::kN;
    const int used = min(S::kN / 8, (a.rows - row0 + 7) / 8);  // blocks of 8 rows
    multiply<S>(a, stop - unit, ring, stage, parity, sums);
    if (a.split > 1) {
      add_cluster_parts<S>(a, tile, used, reinterpret_cast<float4*>(ring.data), sums);
      return;
    }
    finish_tile<S>(a, tile, unit, stop, sums);
    unit = stop;
  }
#endif
}

// ------------------------------------------------------------------ host

/// Rows of the activation tile that serves this many rows; 256 only with tiles of 64 and 128
/// features.
int columns_for(int rows, int tile) {
  for (const int n : {8, 16, 32, 64, 128}) {
    if (rows <= n) return n;
  }
  return tile <= 128 ? 256 : 128;
}

/// How a variant cuts the work.
struct Cut {
  int tile;       // output features of a CTA's tile: 64, 128 or 256
  bool balanced;  // tiles are cut along k so that every CTA streams the same bytes
  int ring_kib;   // shared memory for tiles in flight; 104 leaves room for the next kernel's
  int split = 1;  // CTAs of a cluster that share a tile: 1, 2, 4 or 8
};
constexpr Cut kCuts[] = {
    {64, false, 104},     {64, false, 208},     {64, true, 104},     {64, true, 208},
    {64, false, 104, 2},  {64, false, 104, 4},  {64, false, 104, 8}, {128, false, 104},
    {128, false, 208},    {128, true, 104},     {128, true, 208},    {128, false, 104, 2},
    {128, false, 104, 4}, {128, false, 104, 8}, {256, false, 104},   {256, false, 208},
    {256, true, 104},     {256, true, 208},
};

template <class S>
void launch_shape(const Cut& cut, const LinearCall& call, Stream stream) {
  const LinearWeight& w = call.w;
  Arguments a{};
  a.y = call.y;
  a.flags = static_cast<int*>(call.workspace);
  a.parts = reinterpret_cast<float4*>(static_cast<std::byte*>(call.workspace) + kFlagBytes);
  a.rows = call.rows;
  a.out = w.out;
  a.row_tiles = ceil_div(call.rows, S::kN);
  a.chunks = ceil_div(w.in, kBlockK);
  const int tiles = ceil_div(w.out, S::kTile) * a.row_tiles;
  a.units = tiles * a.chunks;
  a.balanced = cut.balanced;
  a.output = call.output;
  a.split = cut.split;
  const int grid =
      a.split > 1 ? tiles * a.split : std::min(cut.balanced ? a.units : tiles, multiprocessors());
  a.stages = std::clamp(cut.ring_kib * 1024 / S::kStageBytes, 2, kMaxStages);
  int bytes = a.stages * S::kStageBytes;
  if (a.split > 1) {
    a.stages = std::min(a.stages, ceil_div(a.chunks, a.split));
    bytes = std::max(a.stages * S::kStageBytes, S::kTile * S::kN * 4);
  }
  // Never a third CTA on a multiprocessor (see above).
  bytes = std::max(bytes, 80 * 1024) + 1024;  // to align by
  constexpr int kMostBytes = 226 * 1024;
  take_shared_memory<staged_kernel<S>>(kMostBytes, "staged linear");

  launch_clusters("staged linear", staged_kernel<S>, static_cast<unsigned>(grid), S::kThreads,
                  static_cast<std::size_t>(bytes), a.split, stream,
                  tensor_map(w.data, w.out, w.in, S::kTile),
                  tensor_map(call.x, call.rows, w.in, S::kN), a);
}

template <int kGroups, int kPer>
void launch_tile(const Cut& cut, const LinearCall& call, Stream stream) {
  switch (columns_for(call.rows, cut.tile)) {
    case 8:
      return launch_shape<Shape<kGroups, kPer, 8>>(cut, call, stream);
    case 16:
      return launch_shape<Shape<kGroups, kPer, 16>>(cut, call, stream);
    case 32:
      return launch_shape<Shape<kGroups, kPer, 32>>(cut, call, stream);
    case 64:
      return launch_shape<Shape<kGroups, kPer, 64>>(cut, call, stream);
    case 128:
      return launch_shape<Shape<kGroups, kPer, 128>>(cut, call, stream);
    default:
      if constexpr (kGroups * kPer <= 2) {
        return launch_shape<Shape<kGroups, kPer, 256>>(cut, call, stream);
      }
  }
}

/// `whole_sums`: only what adds up over k in one order whatever the row count, neither balanced nor
/// split.
bool worth_timing(const Cut& cut, int rows, const LinearWeight& w, bool whole_sums) {
  const int columns = columns_for(rows, cut.tile);
  const int tiles = ceil_div(w.out, cut.tile) * ceil_div(rows, columns);
  if (cut.split > 1) {
    // Weights that take a few microseconds, where the way of the parts counts.
    constexpr std::int64_t kSmall = 10 << 20;
    if (whole_sums || rows > 64 || std::int64_t{w.out} * w.in > kSmall) return false;
    return tiles * cut.split <= multiprocessors() &&
           tiles * cut.split * 2 >= multiprocessors() * 7 / 10 &&
           cut.split <= ceil_div(w.in, kBlockK);
  }
  if (cut.balanced && (whole_sums || rows > columns)) return false;
  // Where tiles are many, the last round is short against the others.
  if (!cut.balanced && !whole_sums && tiles < 5 * multiprocessors() && rows <= columns)
    return false;
  return cut.ring_kib * 1024 >= 3 * (cut.tile + columns) * 128 &&
         (cut.ring_kib == 104 || columns >= 64);
}

std::vector<int> variants(int rows, const LinearWeight& w, bool deterministic) {
  if (w.is_quantized() || !is_hopper() || (rows > kMostRows && !deterministic)) return {};
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(std::size(kCuts)); ++i) {
    if (worth_timing(kCuts[i], rows, w, deterministic)) found.push_back(i);
  }
  return found;
}

std::string describe(int variant) {
  const Cut& cut = kCuts[variant];
  return "tile " + std::to_string(cut.tile) + (cut.balanced ? " balanced" : "") + ", split " +
         std::to_string(cut.split) + ", " + std::to_string(cut.ring_kib) + " KiB";
}

void run(int variant, const LinearCall& call, Stream stream) {
  const Cut& cut = kCuts[variant];
  switch (cut.tile) {
    case 64:
      return launch_tile<1, 1>(cut, call, stream);
    case 128:
      return launch_tile<2, 1>(cut, call, stream);
    default:
      return launch_tile<2, 2>(cut, call, stream);
  }
}

}  // namespace

std::size_t tile_workspace_bytes() {
  if (!is_hopper()) return 0;
  return kFlagBytes + static_cast<std::size_t>(multiprocessors()) * kPartBytes;
}

/// Not beside the direct kernel: the two do not overlap well with each other (measured: a quarter
/// slower in a mixed chain).
const LinearKernel kStagedLinear{"staged", variants, run, describe, 0};

}  // namespace baton::cuda
