// See linear_chain.h; the GEMMs wait for each other as in linear_chain.cu. What is particular to 65
// to 128 rows: x is as large as W, and read by every CTA. So
//   - gate and up: a CTA has up to 256 features in a turn, 128 a warpgroup, and all of k;
//   - the other GEMMs: 128 features or fewer, and where x is large up to four CTAs take a unit
//   together, a part of k each. They hand each other sums of the rows that the other stores,
//   through L2 (clusters of four do not find places on all multiprocessors of all devices);
//   - W and x have rings of their own, so that W can run ahead by as much as there is room for.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_chain_wide.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace wide_gemms {
namespace {

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ producers

__device__ __forceinline__ void produce_w(const Arguments& a, Shared& shared, std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_first();
  int stage = 0;
  int parity = 1;
  for (int i = 0; i < a.n; ++i) {
    const Gemm& gemm = a.gemms[i];
    const Slice slice = Slice::of(gemm);
    const int features = gemm.features;
    const int copies = gemm.apart ? kGroups : 1;
    const int rows = gemm.apart ? features : kGroups * features;
    const int boxes = gemm.boxes;
    const int first = slice.part * boxes;
    for (int unit = slice.unit; unit < gemm.units; unit += slice.step) {
      for (int box = 0; box < boxes; ++box) {
        for (int copy = 0; copy < copies; ++copy) {
          hopper::barrier_wait(&shared.empty[stage], parity);
          hopper::barrier_expect(&shared.full[stage], rows * kBlockK * 2);
          hopper::copy_box(ring + stage * kStageBytes, &gemm.w, (first + box) * kBlockK,
                           (kGroups * unit + copy) * features, &shared.full[stage], policy);
          next_stage(stage, parity, kWStages);
        }
      }
    }
  }
  grid_release();
}

__device__ __forceinline__ void produce_x(const Arguments& a, Shared& shared, std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_last();
  int stage = 0;
  int parity = 1;
  grid_wait();
  for (int i = 0; i < a.n; ++i) {
    const Gemm& gemm = a.gemms[i];
    const Slice slice = Slice::of(gemm);
    const int boxes = gemm.boxes;
    const int first = slice.part * boxes;
    await_gemm(shared, i, [&](int j) { return Awaited{&a.state->done[j], a.gemms[j].done}; });
    for (int unit = slice.unit; unit < gemm.units; unit += slice.step) {
      for (int box = 0; box < boxes; ++box) {
        hopper::barrier_wait(&shared.x_empty[stage], parity);
        hopper::barrier_expect(&shared.x_full[stage], kStageBytes);
        hopper::copy_box(ring + stage * kStageBytes, &gemm.x, (first + box) * kBlockK, 0,
                         &shared.x_full[stage], policy);
        next_stage(stage, parity, kXStages);
      }
    }
  }
}

// ------------------------------------------------------------------ products

/// Where a warpgroup is in both rings.
struct Turn {
  int stage = 0, parity = 0;
  int x_stage = 0, x_parity = 0;
};

/// 64 k of kBlocks blocks of features; w and x are operands.
template <int kBlocks>
__device__ __forceinline__ void multiply(float (&sums)[kBlocks][kRows / 2], std::uint64_t w,
                                         std::uint64_t x) {
  constexpr int kBlockUnits = 64 * kBlockK * 2 / 16;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) hopper::pin(sums[b]);
  hopper::product_begin();
#pragma unroll
  for (int k = 0; k < kBlockK / 16; ++k) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      hopper::Product<kRows>::run(sums[b], hopper::operand_behind(w, b * kBlockUnits + 2 * k),
                                  hopper::operand_behind(x, 2 * k), 1);
    }
  }
  hopper::product_commit();
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) hopper::pin(sums[b]);
  hopper::product_wait<0>();
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) hopper::pin(sums[b]);
}

/// All units of GEMM i.
template <int kBlocks>
__device__ __forceinline__ void run_units(const Arguments& a, Shared& shared,
                                          const std::uint8_t* ring, const std::uint8_t* x_ring,
                                          int i, Turn& turn) {
  const Gemm& gemm = a.gemms[i];
  const Slice slice = Slice::of(gemm);
  const int features = gemm.features;
  const int boxes = gemm.boxes;
  const bool apart = kBlocks > 1;
  const int group = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  const bool leader = threadIdx.x % 32 == 0;
  const int mine = apart ? 0 : group * features * kBlockK * 2;  // bytes, in a stage
  for (int unit = slice.unit; unit < gemm.units; unit += slice.step) {
    float sums[kBlocks][kRows / 2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& sum : sums[b]) sum = 0;
    }
#pragma unroll 1
    for (int box = 0; box < boxes; ++box) {
      const int stage = apart ? turn.stage + group : turn.stage;
      const std::uint64_t w = hopper::operand(ring + stage * kStageBytes + mine);
      const std::uint64_t x = hopper::operand(x_ring + turn.x_stage * kStageBytes);
      // In this order: x has come, so all groups are through with the GEMM before, and `stage` is
      // not a lap of the other group's ahead.
      hopper::barrier_wait(&shared.x_full[turn.x_stage], turn.x_parity);
      hopper::barrier_wait(&shared.full[stage], turn.parity);
      multiply<kBlocks>(sums, w, x);
      if (leader) {
        hopper::barrier_arrive(&shared.empty[stage], apart ? 2 : 1);
        hopper::barrier_arrive(&shared.x_empty[turn.x_stage]);
      }
      next_stage(turn.stage, turn.parity, kWStages);
      if (apart) next_stage(turn.stage, turn.parity, kWStages);
      next_stage(turn.x_stage, turn.x_parity, kXStages);
    }
    const int first = (kGroups * unit + group) * features;
    if constexpr (kBlocks > 1) {
      end_gated(a, shared, i, first, sums);
    } else if (gemm.output == LinearOutput::silu_mul) {
      end_gated(a, shared, i, first, sums);
    } else {
      end_plain(a, shared, i, unit, slice.part, first, sums);
    }
    stores_before_copies();
    hopper::sync_threads(1 + group, 128);
    if (threadIdx.x % 128 == 0) part_done(&a.state->done[i]);
  }
}
#endif  // BATON_HOPPER

__global__ void __launch_bounds__(kThreads, 1)
    wide_chain_kernel(const __grid_constant__ Arguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];
  __shared__ Shared shared;
  const std::uint32_t base = hopper::shared_address(dynamic);
  std::uint8_t* ring = dynamic + ((base + 1023) / 1024 * 1024 - base);
  std::uint8_t* x_ring = ring + kWStages * kStageBytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kWStages; ++i) {
      hopper::barrier_init(&shared.full[i], 1);
      hopper::barrier_init(&shared.empty[i], kMultiplying / 32);
    }
    for (int i = 0; i < kXStages; ++i) {
      hopper::barrier_init(&shared.x_full[i], 1);
      hopper::barrier_init(&shared.x_empty[i], kMultiplying / 32);
    }
    init_gemms(a, shared);
    hopper::barrier_init_done();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kMultiplying / 32) {
    hopper::take_registers<232>();
    Turn turn;
#pragma unroll 1
    for (int i = 0; i < a.n; ++i) {
      if (a.gemms[i].apart) {
        run_units<2>(a, shared, ring, x_ring, i, turn);
      } else {
        run_units<1>(a, shared, ring, x_ring, i, turn);
      }
    }
    return;
  }
  hopper::give_registers<40>();
  if (threadIdx.x == kMultiplying) {
    produce_w(a, shared, ring);
  } else if (threadIdx.x == kMultiplying + 32) {
    produce_x(a, shared, x_ring);
  } else if (warp == kMultiplying / 32 + 2) {
    norm_gemms<kRows>(a, shared, [](const Gemm& gemm) { return gemm.units * kGroups; });
  } else if (warp == kMultiplying / 32 + 3) {
    clear_next(a.next);
  }
#endif
}

// ------------------------------------------------------------------ host

/// How a matrix is cut: features of a warpgroup, and CTAs that share a unit. No features: not at
/// all.
struct Cut {
  int features = 0, sharing = 1;
  bool apart() const { return features > 64; }
};

int units_of(const LinearWeight& w, int features) { return ceil_div(w.out, kGroups * features); }

/// Where both groups read a stage of W, their number must be even: the next GEMM may have stages
/// apart.
bool even_boxes(const LinearWeight& w, int sharing) { return w.in % (2 * sharing * kBlockK) == 0; }

/// Gate and up: the fewest bytes for a CTA, of W and of x, which it reads in each turn.
Cut cut_gated(const LinearWeight& w) {
  Cut best;
  int least = 0;
  for (int features = 16; features <= 128; features += 16) {
    const Cut cut{features, 1};
    if (!cut.apart() && !even_boxes(w, 1)) continue;
    const int turns = ceil_div(units_of(w, features), multiprocessors());
    const int cost = turns * (kGroups * features + kRows);
    if (best.features != 0 && cost >= least) continue;
    best = cut;
    least = cost;
  }
  return best;
}

/// The others: the fewest bytes for a CTA, of W, x and the sums that it exchanges. Where CTAs share
/// units there is one turn.
Cut cut_plain(const LinearWeight& w) {
  constexpr std::int64_t kMeeting = 32 << 10;  // bytes that could have come meanwhile
  Cut best;
  std::int64_t least = 0;
  for (int sharing = 1; sharing <= kQuarters; sharing *= 2) {
    const int units = multiprocessors() / sharing;  // in a turn
    const int features = std::min(64, ceil_div(ceil_div(w.out, units), 8 * kGroups) * 8);
    const int turns = ceil_div(units_of(w, features), units);
    if (!even_boxes(w, sharing) || (sharing > 1 && turns > 1)) continue;
    const std::int64_t k = w.in / sharing;
    const std::int64_t sums = std::int64_t{kGroups} * features * kRows * 4;
    const std::int64_t cost = turns * (k * 2 * (kGroups * features + kRows)) +
                              (sharing > 1 ? kMeeting + 2 * sums * (sharing - 1) / sharing : 0);
    if (best.features != 0 && cost >= least) continue;
    best = {features, sharing};
    least = cost;
  }
  return best;
}

Cut cut_of(const ChainGemm& gemm) {
  return gemm.output == LinearOutput::silu_mul ? cut_gated(gemm.w) : cut_plain(gemm.w);
}

Gemm make_gemm(const ChainGemm& from, int rows) {
  const Cut cut = cut_of(from);
  auto gemm = begin_gemm<Gemm>(from);
  gemm.features = cut.features;
  gemm.apart = cut.apart();
  gemm.sharing = cut.sharing;
  gemm.units = units_of(from.w, cut.features);
  gemm.boxes = from.w.in / kBlockK / cut.sharing;
  gemm.done = gemm.units * cut.sharing * kGroups;
  gemm.w = tensor_map(from.w.data, from.w.out, from.w.in,
                      gemm.apart ? cut.features : kGroups * cut.features);
  gemm.x = tensor_map(from.x, rows, from.w.in, kRows);
  return gemm;
}

}  // namespace
}  // namespace wide_gemms

using namespace wide_gemms;

bool has_wide_chain(const ChainGemm* gemms, int n) {
  if (multiprocessors() > ChainState::kMostMeetings) return false;
  return std::all_of(gemms, gemms + n, [](const ChainGemm& gemm) {
    const Cut cut = cut_of(gemm);
    if (cut.features == 0) return false;
    // Each warpgroup of a unit has squares of its own, of which there are two for a multiprocessor.
    return gemm.scaled == nullptr || units_of(gemm.w, cut.features) <= multiprocessors();
  });
}

std::size_t wide_workspace_bytes() {
  return static_cast<std::size_t>(multiprocessors()) * kHanded * sizeof(float4);
}

void wide_chain(const ChainGemm* gemms, int n, int rows, const ChainBuffers& buffers,
                Stream stream) {
  auto a = begin_arguments<Arguments>(n, rows, buffers);
  a.handed =
      reinterpret_cast<float4*>(static_cast<std::byte*>(buffers.workspace) + ChainSquares::bytes());
  for (int i = 0; i < n; ++i) a.gemms[i] = make_gemm(gemms[i], rows);
  constexpr int kBytes = (kWStages + kXStages) * kStageBytes + 1024;
  take_shared_memory<wide_chain_kernel>(kBytes, "wide_chain");
  launch("wide_chain", wide_chain_kernel, multiprocessors(), kThreads, kBytes, stream, a);
}

}  // namespace baton::cuda
