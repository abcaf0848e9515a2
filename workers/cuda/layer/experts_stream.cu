// One product of pieces of at most 8 or 16 rows of an expert on Hopper, bound by the bytes of the
// experts: experts_ring.cuh over runs of tiles, pieces in order, so that a CTA's rows of x change
// seldom. They lie in shared memory whole, and a warp of their own brings the next piece's as soon
// as the last product of this one is done; the ring goes on filling meanwhile.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "workers/cuda/current_device.h"
#include "workers/cuda/layer/experts_ring.cuh"
#include "workers/cuda/layer/experts_ring.h"
#include "workers/cuda/layer/gates.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

using namespace expert_ring;

constexpr int kWeightWarp = kWarps;
constexpr int kInputWarp = kWarps + 1;
constexpr int kThreads = kMultiplying + 2 * kLanes;

struct StreamArguments {
  Matrix m;
  const std::uint16_t* x;
  const std::int32_t* source;  // null: a line is its row of x
  __nv_bfloat16* y;            // [lines, out], or [lines, out / 2] with gates
  const ExpertItem* items;
  const std::int32_t* n_items;
  Activate act;
  const float* bias;  // of gate and up: [experts][out]; or null
  int stages, x_stride;
};

template <int kGroups>
constexpr int most_bytes() {  // of dynamic shared memory, beside partial sums
  return (kGroups == 1 ? 208 : 192) << 10;
}

#ifdef BATON_HOPPER

/// Some neighbouring tiles of pieces.
struct Walk {
  int tiles;
  int left;
  int item, tile;

  __device__ __forceinline__ Walk(const StreamArguments& a) : tiles(a.m.tiles) {
    const std::int64_t works = std::int64_t{*a.n_items} * tiles;
    const auto first = works * blockIdx.x / gridDim.x;
    left = static_cast<int>(works * (blockIdx.x + 1) / gridDim.x - first);
    item = static_cast<int>(first / tiles);
    tile = static_cast<int>(first % tiles);
  }
  /// Whether another piece begins.
  __device__ __forceinline__ bool next() {
    --left;
    if (++tile < tiles) return false;
    tile = 0;
    ++item;
    return true;
  }
};

template <int kGroups>
struct Shared {
  float partial[2][Partial<kGroups>::kFloats];
  uint4 nought;
  std::uint64_t full[kMostStages];
  std::uint64_t empty[kMostStages];
  std::uint64_t x_full;
  std::uint64_t x_empty;
};

/// The rows of a CTA's pieces, one after the other. One warp.
template <int kGroups>
__device__ __forceinline__ void bring_rows(const StreamArguments& a, Walk walk, std::uint8_t* x,
                                           Shared<kGroups>& shared, int lane) {
  const std::uint64_t keep = hopper::policy_evict_last();
  const int bytes = a.m.in * 2;
  int parity = 1;  // nobody has anything to free at first
  while (walk.left > 0) {
    const ExpertItem item = a.items[walk.item];
    int row = item.first + lane;
    if (a.source != nullptr && lane < item.rows) row = a.source[row];
    hopper::barrier_wait(&shared.x_empty, parity);
    parity ^= 1;
    if (lane == 0) hopper::barrier_expect(&shared.x_full, item.rows * bytes);
    __syncwarp();
    if (lane < item.rows) {
      hopper::copy_bytes(x + lane * a.x_stride, a.x + std::int64_t{row} * a.m.in, bytes,
                         &shared.x_full, keep);
    }
    const int rest = walk.tiles - walk.tile;
    walk.left -= rest;
    walk.tile = 0;
    ++walk.item;
  }
}

/// Ends a tile for eight of its rows and two (gate and up) or four of a lane's elements, of which
/// this warp has one.
template <int kGroups, bool kGates>
__device__ __forceinline__ void finish(const StreamArguments& a, const float* partial,
                                       const ExpertItem& item, int tile, int lane, int part) {
  constexpr int kElements = kGates ? 2 : 4;
  const int n = part / kElements;
  const int element = part % kElements;
  const int row = 8 * n + lane % 4 * 2 + element % 2;
  if (row >= item.rows) return;
  const std::int64_t line = item.first + row;
  if constexpr (kGates) {
    const int feature = 8 * tile + lane / 4;
    float gate = Partial<kGroups>::total(partial, lane, n, element);
    float up = Partial<kGroups>::total(partial, lane, n, element + 2);
    if (a.bias != nullptr) {
      const float* bias = a.bias + std::int64_t{item.expert} * a.m.out;
      gate += bias[feature];
      up += bias[a.m.out / 2 + feature];
    }
    a.y[line * (a.m.out / 2) + feature] = __float2bfloat16(gate_of(a.act, gate, up));
  } else {
    a.y[line * a.m.out + kExpertTile * tile + lane / 4 + element / 2 * 8] =
        __float2bfloat16(Partial<kGroups>::total(partial, lane, n, element));
  }
}

#endif  // BATON_HOPPER

template <ExpertFormat kFormat, int kGroups, bool kGates>
__global__ void __launch_bounds__(kThreads, 1)
    stream_kernel(const __grid_constant__ CUtensorMap map, const StreamArguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];  // ring, x
  __shared__ Shared<kGroups> shared;
  constexpr int kEnding = kGroups * (kGates ? 2 : 4);  // warps that end a tile
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kLanes, 0);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const Ring ring{aligned_kib(dynamic), shared.full, shared.empty, a.stages,
                  a.m.stage_units * unit_bytes<kFormat>()};
  std::uint8_t* const x = ring.memory + ring.stages * ring.bytes;
  if (threadIdx.x == kMultiplying) {
    ring.init();
    hopper::barrier_init(&shared.x_full, 1);
    hopper::barrier_init(&shared.x_empty, kWarps);
    hopper::barrier_init_done();
  }
  if (threadIdx.x == 0) shared.nought = make_uint4(0, 0, 0, 0);
  clear_behind(x, kColumns * kGroups, a.x_stride, a.m.in);
  __syncthreads();
  grid_wait();
  Walk walk(a);
  if (warp == kInputWarp) return bring_rows<kGroups>(a, walk, x, shared, lane);
  Place place;
  if (warp == kWeightWarp) {
    if (lane != 0) return;
    const std::uint64_t policy = hopper::policy_evict_first();
    int expert = walk.left > 0 ? a.items[walk.item].expert : 0;
    while (walk.left > 0) {
      for (int split = 0; split < a.m.splits; ++split) {
        copy_stage<kFormat>(&map, a.m, ring, place, expert, walk.tile, split, policy);
      }
      if (walk.next() && walk.left > 0) expert = a.items[walk.item].expert;
    }
    grid_release();
    return;
  }
  const std::uint32_t nought = hopper::shared_address(&shared.nought);
  const std::int64_t x_at = hopper::shared_address(x);
  int turn = 0;
  for (int x_parity = 0; walk.left > 0; x_parity ^= 1) {
    const ExpertItem item = a.items[walk.item];
    Inputs<kGroups> inputs;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int row = 8 * n + lane % 8;
      inputs.point(n, lane, row < item.rows ? x_at + row * a.x_stride : -1, nought);
    }
    hopper::barrier_wait(&shared.x_full, x_parity);
    for (bool ended = false; !ended; ++turn) {
      Sums<kGroups> sums;
      sums.clear();
      multiply_tile<kFormat, kGroups>(a.m, ring, place, warp, lane, inputs, sums);
      const int tile = walk.tile;
      ended = walk.next() || walk.left == 0;
      if (ended && lane == 0) hopper::barrier_arrive(&shared.x_empty);
      // The other buffer may still be read by slower warps; this one was before the last barrier.
      float* const partial = shared.partial[turn % 2];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) Partial<kGroups>::put(partial, warp, lane, n, e, sums.of(n, e));
      }
      hopper::sync_threads(1, kMultiplying);
      const int part = (warp + kWarps - turn * kEnding % kWarps) % kWarps;
      if (part < kEnding) finish<kGroups, kGates>(a, partial, item, tile, lane, part);
      __syncwarp();
    }
  }
#endif
}

// ------------------------------------------------------------------ host

template <ExpertFormat kFormat, int kGroups>
int stages_of(const Matrix& m) {
  const int left = most_bytes<kGroups>() - 1024 - kColumns * kGroups * x_stride(m.in);
  return std::min(left / stage_bytes<kFormat>(m), kMostStages);
}

template <ExpertFormat kFormat>
bool fits(const StreamProduct& p) {
  if (p.in % (kFormat == ExpertFormat::bf16 ? kExpertUnit : kMxfp4Inputs) != 0) return false;
  const Matrix m = matrix_of<kFormat>(p.w, p.out, p.in);
  const int stages = p.routing->piece == 8 ? stages_of<kFormat, 1>(m) : stages_of<kFormat, 2>(m);
  return stages >= 3 && stages * stage_bytes<kFormat>(m) >=
                            std::min(64 << 10, kMostStages * stage_bytes<kFormat>(m));
}

template <ExpertFormat kFormat, int kGroups, bool kGates>
void run(const StreamProduct& p, Stream stream) {
  StreamArguments a{};
  const ExpertRouting& r = *p.routing;
  a.m = matrix_of<kFormat>(p.w, p.out, p.in);
  a.x = reinterpret_cast<const std::uint16_t*>(p.x);
  a.source = p.gathered ? r.source : nullptr;
  a.y = reinterpret_cast<__nv_bfloat16*>(p.y);
  a.items = r.items;
  a.n_items = r.n_items;
  a.act = r.rule.act;
  a.bias = r.rule.up_bias;
  a.stages = stages_of<kFormat, kGroups>(a.m);
  a.x_stride = x_stride(a.m.in);
  const int bytes = a.stages * stage_bytes<kFormat>(a.m) + kColumns * kGroups * a.x_stride + 1024;
  const CUtensorMap map = kFormat == ExpertFormat::bf16 ? map_of(p.w, a.m, r.count) : CUtensorMap{};
  const std::int64_t works =
      std::int64_t{most_items(r.rows, r.count, r.active, r.piece)} * a.m.tiles;
  take_shared_memory<stream_kernel<kFormat, kGroups, kGates>>(most_bytes<kGroups>(), "experts");
  launch("experts", stream_kernel<kFormat, kGroups, kGates>,
         static_cast<unsigned>(std::min<std::int64_t>(works, multiprocessors())), kThreads,
         static_cast<std::size_t>(bytes), stream, map, a);
}

template <ExpertFormat kFormat>
void run_format(const StreamProduct& p, Stream stream) {
  if (p.routing->piece == 8) {
    return p.gates ? run<kFormat, 1, true>(p, stream) : run<kFormat, 1, false>(p, stream);
  }
  p.gates ? run<kFormat, 2, true>(p, stream) : run<kFormat, 2, false>(p, stream);
}

}  // namespace

bool stream_experts_fit(const StreamProduct& p) {
  if (p.routing->piece > 16 || !is_hopper()) return false;
  return with_format(p.w.format, [&]<ExpertFormat kFormat> { return fits<kFormat>(p); });
}

void stream_experts(const StreamProduct& p, Stream stream) {
  with_format(p.w.format, [&]<ExpertFormat kFormat> { run_format<kFormat>(p, stream); });
}

}  // namespace baton::cuda
