// See linear_few_rows.h. One producer warp and one or more warpgroups that multiply, a ring of tiles
// between them (the structure of CUTLASS's warp-specialised kernels). What is particular here:
//   - The ring is filled with W before grid_wait(): weights are never written, so while the kernel
//     before drains, this one's first ~100 KiB a multiprocessor are already on their way.
//   - Few output tiles do not divide among the multiprocessors: each CTA takes an equal run of (tile, k)
//     units instead, and a tile that several share is added up in a fixed order through the L2 cache
//     ("stream-K", Osama et al. 2023).
//   - One CTA a multiprocessor, two kernels at a time. With fewer or more CTAs the next kernel's land
//     two on one multiprocessor and none on another, and stay there: measured, a loss of 20 to 40%.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear_few_rows.h"
#include "workers/cuda/multiprocessors.h"

namespace baton::cuda {
namespace {

constexpr int kMaxStages = 24;
constexpr int kBlockK = 64;  // k of a stage: the 128 bytes that the swizzle spans
constexpr std::size_t kPartBytes = 128 << 10;  // a CTA's part of a shared tile
constexpr std::size_t kFlagBytes = 4096;

struct Arguments {
  void* y;
  int* flags;      // [CTAs], of parts that wait for their tile's owner
  float4* parts;   // [CTAs] of kPartBytes
  int rows, out;
  int row_tiles, chunks, units;  // a unit is one chunk of k of one tile
  int stages;
  bool balanced;   // units are dealt out evenly, not tiles
  int split;       // CTAs of a cluster that share one tile; 1: no clusters
  LinearOutput output;
};

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

/// The first unit of a CTA; the one behind its last is the next CTA's first.
__device__ __forceinline__ int first_unit(const Arguments& a, int cta) {
  const int ctas = static_cast<int>(gridDim.x);
  if (a.balanced) return static_cast<int>(static_cast<std::int64_t>(a.units) * cta / ctas);
  const int tiles = a.units / a.chunks;
  if (a.split > 1) return cta / a.split * a.chunks + cta % a.split * a.chunks / a.split;
  return static_cast<int>(static_cast<std::int64_t>(tiles) * cta / ctas) * a.chunks;
}

struct Ring {
  std::uint8_t* data;
  std::uint64_t* full;
  std::uint64_t* empty;
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

// ------------------------------------------------------------------ results

__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.0F + __expf(-v)); }

/// Where a lane's two neighbouring features of one row go. A warp's block is 16 features x 8 rows as
/// Product leaves it: lanes 4 apart hold neighbouring features of two rows, exchange (see put), and
/// then the even one has the first row, the odd one the second.
struct Place {
  std::int64_t at = -1;  // in y; negative: outside
  bool both = true;      // both features are inside and at an even address

  __device__ __forceinline__ Place(const Arguments& a, int feature, int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool silu = a.output == LinearOutput::silu_mul;
    const int width = silu ? a.out / 2 : a.out;
    const int f = (silu ? feature / 2 : feature) + lane / 8 * 2;
    const int r = row + lane % 4 * 2 + lane / 4 % 2;
    if (r < a.rows && f < width) at = static_cast<std::int64_t>(r) * width + f;
    both = width % 2 == 0;
    last = f + 1 == width;
  }
  bool last;
};

/// What is in y already, of the residual.
__device__ __forceinline__ float2 old_pair(const Arguments& a, const Place& p) {
  if (a.output != LinearOutput::residual || p.at < 0) return make_float2(0, 0);
  const auto* y = static_cast<const __nv_bfloat16*>(a.y) + p.at;
  if (p.both) return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(y));
  return make_float2(__bfloat162float(y[0]), p.last ? 0.0F : __bfloat162float(y[1]));
}

/// v0, v1: one feature of two rows.
__device__ __forceinline__ void put(const Arguments& a, const Place& p, float v0, float v1,
                                    float2 old) {
  const bool odd = threadIdx.x / 4 % 2 != 0;
  const float got = __shfl_xor_sync(0xFFFFFFFFU, odd ? v0 : v1, 4);
  const float2 v = odd ? make_float2(got, v1) : make_float2(v0, got);
  if (p.at >= 0 && a.output == LinearOutput::f32) {
    auto* y = static_cast<float*>(a.y) + p.at;
    if (p.both) {
      __stcs(reinterpret_cast<float2*>(y), v);
    } else {
      y[0] = v.x;
      if (!p.last) y[1] = v.y;
    }
  } else if (p.at >= 0) {
    auto* y = static_cast<__nv_bfloat16*>(a.y) + p.at;
    const __nv_bfloat162 pair = __floats2bfloat162_rn(old.x + v.x, old.y + v.y);
    if (p.both) {
      *reinterpret_cast<__nv_bfloat162*>(y) = pair;
    } else {
      y[0] = pair.x;
      if (!p.last) y[1] = pair.y;
    }
  }
  __syncwarp();
}

/// Stores up to kCount blocks of a warp; block i is at feature(i), row(i), its sums come from value(i).
/// What the residual adds to is read for all of them first: one latency, not one a block.
template <int kCount, typename Feature, typename Row, typename Value>
__device__ __forceinline__ void put_blocks(const Arguments& a, int count, const Feature& feature,
                                           const Row& row, const Value& value) {
  constexpr int kAtOnce = kCount < 4 ? kCount : 4;
  const bool silu_mul = a.output == LinearOutput::silu_mul;
#pragma unroll
  for (int i0 = 0; i0 < kCount; i0 += kAtOnce) {
    float2 old[kAtOnce][2];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i0 + i >= count || a.output != LinearOutput::residual) continue;
      old[i][0] = old_pair(a, Place(a, feature(i0 + i), row(i0 + i)));
      old[i][1] = old_pair(a, Place(a, feature(i0 + i) + 8, row(i0 + i)));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i0 + i >= count) continue;
      const float4 v = value(i0 + i);
      const Place low(a, feature(i0 + i), row(i0 + i));
      if (silu_mul) {
        put(a, low, silu(v.x) * v.z, silu(v.y) * v.w, make_float2(0, 0));
        continue;
      }
      const bool add = a.output == LinearOutput::residual;
      put(a, low, v.x, v.y, add ? old[i][0] : make_float2(0, 0));
      put(a, Place(a, feature(i0 + i) + 8, row(i0 + i)), v.z, v.w,
          add ? old[i][1] : make_float2(0, 0));
    }
  }
}

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ shared tiles

/// Leaves this CTA's sums for the CTA that began the tile. A CTA has at most one such part: of the
/// tile that its run of units starts in the middle of.
template <class S>
__device__ __forceinline__ void leave_part(const Arguments& a, int used,
                                           const float (&sums)[S::kPer][S::kN / 2]) {
  float4* part = a.parts + blockIdx.x * (kPartBytes / sizeof(float4)) + threadIdx.x;
#pragma unroll
  for (int p = 0; p < S::kPer; ++p) {
#pragma unroll
    for (int j = 0; j < S::kN / 8; ++j) {
      const float* d = &sums[p][4 * j];
      if (j < used) {
        __stcg(part + (p * (S::kN / 8) + j) * S::kMultiplying, make_float4(d[0], d[1], d[2], d[3]));
      }
    }
  }
  __threadfence();
  hopper::sync_threads(1, S::kMultiplying);
  if (threadIdx.x == 0) {
    asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(a.flags + blockIdx.x) : "memory");
  }
}

/// Adds the parts of the CTAs behind this one, in their order, up to the tile's last unit. They are
/// resident or become so when an earlier kernel ends, and compute their part first: the wait ends.
template <class S>
__device__ __forceinline__ void add_parts(const Arguments& a, int used, int tile_end,
                                          float (&sums)[S::kPer][S::kN / 2]) {
  const int first = static_cast<int>(blockIdx.x) + 1;
  int last = first;  // behind the last
  while (first_unit(a, last) < tile_end) ++last;
  for (int cta = first + static_cast<int>(threadIdx.x); cta < last; cta += S::kMultiplying) {
    int ready = 0;
    while (ready == 0) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(ready) : "l"(a.flags + cta) : "memory");
    }
    a.flags[cta] = 0;  // for the next launch, which waits for the end of this one
  }
  hopper::sync_threads(1, S::kMultiplying);
  constexpr int kUnroll = S::kPer * S::kN / 8 <= 4 ? 4 : 1;
#pragma unroll kUnroll
  for (int cta = first; cta < last; ++cta) {
    const float4* part = a.parts + cta * (kPartBytes / sizeof(float4)) + threadIdx.x;
#pragma unroll
    for (int p = 0; p < S::kPer; ++p) {
#pragma unroll
      for (int j = 0; j < S::kN / 8; ++j) {
        if (j >= used) continue;
        const float4 v = __ldcg(part + (p * (S::kN / 8) + j) * S::kMultiplying);
        float* d = &sums[p][4 * j];
        d[0] += v.x;
        d[1] += v.y;
        d[2] += v.z;
        d[3] += v.w;
      }
    }
  }
}

/// The same for the CTAs of a cluster, through their shared memory: quicker, for small weights. Each
/// CTA adds up and stores some of the tile's blocks. The parts go where the ring was.
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
__device__ __forceinline__ void multiply(const Arguments& a, int count, const Ring& ring, int& stage,
                                         int& parity, float (&sums)[S::kPer][S::kN / 2]) {
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
    few_rows_kernel(const __grid_constant__ CUtensorMap w_map,
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
    const bool begun = unit == tile * a.chunks;
    unit = stop;
    if (!begun) {
      leave_part<S>(a, used, sums);
      continue;
    }
    if (stop < tile_end) add_parts<S>(a, used, tile_end, sums);
#pragma unroll
    for (int p = 0; p < S::kPer; ++p) {
      const int block = (warp / 4 * S::kPer + p) * 4 + warp % 4;
      const int feature = tile / a.row_tiles * S::kTile + block * 16;
      put_blocks<S::kN / 8>(
          a, used, [&](int) { return feature; }, [&](int j) { return row0 + 8 * j; },
          [&](int j) {
            const float* d = &sums[p][4 * j];
            return make_float4(d[0], d[1], d[2], d[3]);
          });
    }
  }
#endif
}

// ------------------------------------------------------------------ host

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode_function() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess) throw CudaError("no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

/// A row-major bf16 matrix read in boxes of 64 columns; what lies outside reads as zero.
CUtensorMap tensor_map(const Bf16* data, int rows, int columns, int box_rows) {
  CUtensorMap map;
  constexpr auto promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * sizeof(Bf16)};
  const cuuint32_t box[2] = {kBlockK, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = encode_function()(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(data), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw CudaError("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result)));
  }
  return map;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// Rows of the activation tile that serves this many rows; 256 only with tiles of 64 and 128 features.
int columns_for(int rows, int tile) {
  for (const int n : {8, 16, 32, 64, 128}) {
    if (rows <= n) return n;
  }
  return tile <= 128 ? 256 : 128;
}

template <class S>
void launch_shape(const FewRowsConfig& config, const FewRowsCall& call, Stream stream) {
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
  a.balanced = config.balanced;
  a.output = call.output;
  a.split = config.split;
  const int grid = a.split > 1 ? tiles * a.split
                               : std::min(config.balanced ? a.units : tiles, multiprocessors());
  a.stages = std::clamp(config.ring_kib * 1024 / S::kStageBytes, 2, kMaxStages);
  int bytes = a.stages * S::kStageBytes;
  if (a.split > 1) {
    a.stages = std::min(a.stages, ceil_div(a.chunks, a.split));
    bytes = std::max(a.stages * S::kStageBytes, S::kTile * S::kN * 4);
  }
  // Never a third CTA on a multiprocessor (see above).
  bytes = std::max(bytes, 80 * 1024) + 1024;  // to align by
  constexpr int kMostBytes = 226 * 1024;
  static const cudaError_t prepared = cudaFuncSetAttribute(
      few_rows_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes);
  check(prepared, "few_rows");
  // The same partition of L1 and shared memory for every shape: a multiprocessor changes it only when
  // it is idle, and so could not take up the next kernel while one of another partition runs.
  static const cudaError_t parted =
      cudaFuncSetAttribute(few_rows_kernel<S>, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared);
  check(parted, "few_rows");

  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(a.split), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(grid));
  launch.blockDim = dim3(S::kThreads);
  launch.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = a.split > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&launch, few_rows_kernel<S>, tensor_map(w.data, w.out, w.in, S::kTile),
                           tensor_map(call.x, call.rows, w.in, S::kN), a),
        "few_rows");
}

template <int kGroups, int kPer>
void launch_tile(const FewRowsConfig& config, const FewRowsCall& call, Stream stream) {
  switch (columns_for(call.rows, config.tile)) {
    case 8: return launch_shape<Shape<kGroups, kPer, 8>>(config, call, stream);
    case 16: return launch_shape<Shape<kGroups, kPer, 16>>(config, call, stream);
    case 32: return launch_shape<Shape<kGroups, kPer, 32>>(config, call, stream);
    case 64: return launch_shape<Shape<kGroups, kPer, 64>>(config, call, stream);
    case 128: return launch_shape<Shape<kGroups, kPer, 128>>(config, call, stream);
    default:
      if constexpr (kGroups * kPer <= 2) {
        return launch_shape<Shape<kGroups, kPer, 256>>(config, call, stream);
      }
  }
}

}  // namespace

bool few_rows_supported() {
  int device = 0;
  int major = 0;
  int minor = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  return major == 9 && minor == 0;
}

std::size_t few_rows_workspace_bytes() {
  return kFlagBytes + static_cast<std::size_t>(multiprocessors()) * kPartBytes;
}

std::vector<FewRowsConfig> few_rows_candidates(int rows, int out, int in, bool whole_sums) {
  std::vector<FewRowsConfig> found;
  for (const int tile : {64, 128, 256}) {
    const int columns = columns_for(rows, tile);
    const int tiles = ceil_div(out, tile) * ceil_div(rows, columns);
    for (const bool balanced : {false, true}) {
      if (balanced && (whole_sums || rows > columns)) continue;
      // Where tiles are many, the last round is short against the others.
      if (!balanced && !whole_sums && tiles < 5 * multiprocessors() && rows <= columns) continue;
      for (const int ring : {104, 208}) {  // the first leaves room for the next kernel's
        if (ring * 1024 < 3 * (tile + columns) * 128) continue;
        if (ring == 208 && columns < 64) continue;
        found.push_back({tile, balanced, ring});
      }
    }
    // Weights that take a few microseconds, where the way of the parts counts.
    constexpr std::int64_t kSmall = 10 << 20;
    if (whole_sums || rows > 64 || tile > 128 || std::int64_t{out} * in > kSmall) continue;
    for (const int split : {2, 4, 8}) {
      if (tiles * split > multiprocessors() || tiles * split * 2 < multiprocessors() * 7 / 10) continue;
      if (split <= ceil_div(in, kBlockK)) found.push_back({tile, false, 104, split});
    }
  }
  return found;
}

void few_rows(const FewRowsConfig& config, const FewRowsCall& call, Stream stream) {
  switch (config.tile) {
    case 64: return launch_tile<1, 1>(config, call, stream);
    case 128: return launch_tile<2, 1>(config, call, stream);
    case 256: return launch_tile<2, 2>(config, call, stream);
    default: throw CudaError("few_rows: no tile of " + std::to_string(config.tile));
  }
}

}  // namespace baton::cuda

