// Experts of up to eight rows on Hopper, bound by the bytes of the experts that they take: two
// kernels, where pieces (experts_pieces.cu) are five. Every CTA chooses the rows' experts for
// itself, which is shorter than a kernel (experts_few.cuh). Who did not take an expert is left out
// of its sums at the end.
//   - Gate and up: tiles of all experts are dealt out evenly, and the ring (experts_ring.cuh) runs
//     on from expert to expert.
//   - Down: a CTA has a tile of features of all experts, one after the other by their numbers. Each
//     warp scales what it found of an expert and adds it up, and the warps meet once, at the end.
//     So a row's sum has one order, and x is added to in the same kernel.
// The second kernel chooses before grid_wait(), and asks for its weights: the logits were there
// before the first one let it start (that one waits first, then releases), and are read past L1.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "workers/cuda/current_device.h"
#include "workers/cuda/layer/experts_few.cuh"
#include "workers/cuda/layer/experts_ring.h"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

using namespace expert_ring;

constexpr int kThreads = kMultiplyingFew + kLanes;

/// What a CTA takes of its multiprocessor.
struct Room {
  int bytes;         // of dynamic shared memory
  int stage_target;  // of a stage, at most
};
constexpr Room kAlone{200 << 10, 32 << 10};
/// So that CTAs of both kernels are there at the same time: the second one asks for its weights
/// while the first one still reads. With stages of kAlone's size there would be only two.
constexpr Room kBesides{100 << 10, 16 << 10};
constexpr int kBesidesRows = 2;  // for more, more bytes on the way count for more

struct FewArguments : FewRows {
  Matrix m;
  const std::uint16_t* x;  // [rows, in]; of down [lines, in]
  __nv_bfloat16* y;        // [lines, out / 2]; of down [rows, out], added to
  int stages;
  int x_at, x_stride;  // in shared memory, behind the ring
};

#ifdef BATON_HOPPER

/// The parts of a CTA's shared memory, and its barriers.
struct Shared {
  float partial[2][Partial<1, kFewWarps>::kFloats];
  Choice choice;
  uint4 nought;
  std::uint64_t full[kMostStages];
  std::uint64_t empty[kMostStages];
  std::uint64_t x_full;
};

__device__ __forceinline__ void begin(const FewArguments& a, const Ring& ring, Shared& shared,
                                      std::uint8_t* x, int x_rows) {
  if (threadIdx.x == kMultiplyingFew) {
    ring.init(kFewWarps);
    hopper::barrier_init(&shared.x_full, 1);
    hopper::barrier_init_done();
  }
  if (threadIdx.x == 0) shared.nought = make_uint4(0, 0, 0, 0);
  clear_behind(x, x_rows, a.x_stride, a.m.in);
}

/// All threads; the choice takes the ring's memory before it is one.
__device__ __forceinline__ void choose_in(const FewArguments& a, const Ring& ring, Choice& choice) {
  choose<kThreads, 0>(a, reinterpret_cast<unsigned*>(ring.memory), choice, [] {});
  fence_copies();
  __syncthreads();
}

/// One thread.
__device__ __forceinline__ void copy_rows(const FewArguments& a, std::uint8_t* x, int rows,
                                          std::uint64_t* full) {
  const std::uint64_t keep = hopper::policy_evict_last();
  const int bytes = a.m.in * 2;
  hopper::barrier_expect(full, rows * bytes);
  for (int row = 0; row < rows; ++row) {
    hopper::copy_bytes(x + row * a.x_stride, a.x + std::int64_t{row} * a.m.in, bytes, full, keep);
  }
}

#endif  // BATON_HOPPER

template <ExpertFormat kFormat>
__global__ void __launch_bounds__(kThreads, 2)
    few_up_kernel(const __grid_constant__ CUtensorMap map, const FewArguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];  // ring, x
  __shared__ Shared shared;
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kLanes, 0);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const Ring ring{aligned_kib(dynamic), shared.full, shared.empty, a.stages,
                  a.m.stage_units * unit_bytes<kFormat>()};
  std::uint8_t* const x = ring.memory + a.x_at;
  begin(a, ring, shared, x, a.rows);
  __syncthreads();
  grid_wait();
  grid_release();
  if (threadIdx.x == kMultiplyingFew) copy_rows(a, x, a.rows, &shared.x_full);
  choose_in(a, ring, shared.choice);
  const Choice& choice = shared.choice;
  const int works = choice.experts * a.m.tiles;
  const int first = static_cast<int>(std::int64_t{works} * blockIdx.x / gridDim.x);
  const int last = static_cast<int>(std::int64_t{works} * (blockIdx.x + 1) / gridDim.x);
  int which = first / a.m.tiles;
  int tile = first % a.m.tiles;
  const auto next = [&] {
    if (++tile < a.m.tiles) return;
    tile = 0;
    ++which;
  };
  Place place;
  if (warp == kFewWarps) {
    if (lane != 0) return;
    const std::uint64_t policy = hopper::policy_evict_first();
    for (int work = first; work < last; ++work, next()) {
      for (int split = 0; split < a.m.splits; ++split) {
        copy_stage<kFormat>(&map, a.m, ring, place, choice.expert[which], tile, split, policy);
      }
    }
    return;
  }
  Inputs<1> inputs;
  const int row = lane % 8;
  const std::int64_t x_at = hopper::shared_address(x);
  inputs.point(0, lane, row < a.rows ? x_at + row * a.x_stride : -1,
               hopper::shared_address(&shared.nought));
  hopper::barrier_wait(&shared.x_full, 0);
  Sums<1> sums;
  for (int work = first, turn = 0; work < last; ++work, ++turn, next()) {
    sums.clear();
    multiply_tile<kFormat, 1, kFewWarps>(a.m, ring, place, warp, lane, inputs, sums);
    // The other buffer may still be read by slower warps; this one was before the last barrier.
    float* const partial = shared.partial[turn % 2];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      Partial<1, kFewWarps>::put(partial, warp, lane, 0, e, sums.of(0, e));
    hopper::sync_threads(1, kMultiplyingFew);
    // Two warps end a tile, others each time.
    const int element = (warp + kFewWarps - turn * 2 % kFewWarps) % kFewWarps;
    if (element < 2) {
      store_gate(a.rule.act, a.m, bias_of(a.rule.up_bias, a.m, choice.expert[which]), partial,
                 choice.line[which][lane % 4 * 2 + element], tile, lane, element, a.y);
    }
    __syncwarp();
  }
#endif
}

template <ExpertFormat kFormat>
__global__ void __launch_bounds__(kThreads, 2)
    few_down_kernel(const __grid_constant__ CUtensorMap map, const FewArguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];  // ring, x
  __shared__ Shared shared;
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kLanes, 0);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const Ring ring{aligned_kib(dynamic), shared.full, shared.empty, a.stages,
                  a.m.stage_units * unit_bytes<kFormat>()};
  std::uint8_t* const x = ring.memory + a.x_at;
  begin(a, ring, shared, x, a.rows * a.active);
  choose_in(a, ring, shared.choice);
  const Choice& choice = shared.choice;
  Place place;
  if (warp == kFewWarps) {
    if (lane != 0) return;
    const std::uint64_t policy = hopper::policy_evict_first();
    int asked = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < a.m.tiles;
         tile += static_cast<int>(gridDim.x)) {
      for (int which = 0; which < choice.experts; ++which) {
        for (int split = 0; split < a.m.splits; ++split, ++asked) {
          if (asked == ring.stages) {
            grid_wait();
            copy_rows(a, x, a.rows * a.active, &shared.x_full);
          }
          copy_stage<kFormat>(&map, a.m, ring, place, choice.expert[which], tile, split, policy);
        }
      }
    }
    if (asked <= ring.stages) {
      grid_wait();
      copy_rows(a, x, a.rows * a.active, &shared.x_full);
    }
    grid_release();
    return;
  }
  grid_wait();
  const std::uint32_t nought = hopper::shared_address(&shared.nought);
  const std::int64_t x_at = hopper::shared_address(x);
  hopper::barrier_wait(&shared.x_full, 0);
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < a.m.tiles;
       tile += static_cast<int>(gridDim.x), ++turn) {
    const int element = (warp + kFewWarps - turn * 4 % kFewWarps) % kFewWarps;
    const int feature = kExpertTile * tile + lane / 4 + element / 2 * 8;
    const int row = lane % 4 * 2 + element % 2;
    const bool ends = element < 4 && row < a.rows;
    __nv_bfloat16* const to = a.y + std::int64_t{row} * a.m.out + feature;
    const float old = ends ? __bfloat162float(*to) : 0.0F;
    float all[4] = {};
    for (int which = 0; which < choice.experts; ++which) {
      Inputs<1> inputs;
      const int line = choice.line[which][lane % 8];
      inputs.point(0, lane, line < 0 ? -1 : x_at + line * a.x_stride, nought);
      Sums<1> sums;
      sums.clear();
      multiply_tile<kFormat, 1, kFewWarps>(a.m, ring, place, warp, lane, inputs, sums);
      const float* weight = &choice.weight[which][lane % 4 * 2];
#pragma unroll
      for (int e = 0; e < 4; ++e) all[e] = fmaf(weight[e % 2], sums.of(0, e), all[e]);
      if (a.rule.down_bias != nullptr && which % kFewWarps == warp) {
        const float* bias = a.rule.down_bias + std::int64_t{choice.expert[which]} * a.m.out +
                            kExpertTile * tile + lane / 4;
#pragma unroll
        for (int e = 0; e < 4; ++e) all[e] = fmaf(weight[e % 2], bias[e / 2 * 8], all[e]);
      }
    }
    float* const partial = shared.partial[turn % 2];
#pragma unroll
    for (int e = 0; e < 4; ++e) Partial<1, kFewWarps>::put(partial, warp, lane, 0, e, all[e]);
    hopper::sync_threads(1, kMultiplyingFew);
    if (ends) *to = __float2bfloat16(old + Partial<1, kFewWarps>::total(partial, lane, 0, element));
    __syncwarp();
  }
#endif
}

// ------------------------------------------------------------------ host

/// Choosing takes the ring's memory, before it is one.
int scratch_bytes(const FewArguments& a) { return a.count * 4; }

template <ExpertFormat kFormat>
Matrix up_of(const ExpertCall& call, const Room& room) {
  const ExpertShape& s = call.shape;
  return matrix_of<kFormat>(call.gate_up, 2 * s.intermediate, s.hidden, room.stage_target,
                            kFewWarps);
}

template <ExpertFormat kFormat>
Matrix down_of(const ExpertCall& call, const Room& room) {
  return matrix_of<kFormat>(call.down, call.shape.hidden, call.shape.intermediate,
                            room.stage_target, kFewWarps);
}

template <ExpertFormat kFormat>
int stages_of(const Matrix& m, int x_rows, const Room& room) {
  const int left = room.bytes - 1024 - x_rows * x_stride(m.in);
  return std::min(left / stage_bytes<kFormat>(m), kMostStages);
}

template <ExpertFormat kFormat>
bool fits(const ExpertCall& call, const Room& room) {
  const ExpertShape& s = call.shape;
  const int whole = kFormat == ExpertFormat::bf16 ? kExpertUnit : kMxfp4Inputs;
  if (s.hidden % whole != 0 || s.intermediate % whole != 0) return false;
  const int lines = call.rows * s.active;
  if (s.count > kMostExperts) return false;
  const Matrix up = up_of<kFormat>(call, room);
  const Matrix down = down_of<kFormat>(call, room);
  for (const auto& [m, x_rows] : {std::pair{&up, call.rows}, std::pair{&down, lines}}) {
    const int stages = stages_of<kFormat>(*m, x_rows, room);
    const int bytes = stages * stage_bytes<kFormat>(*m);
    if (stages < 2 || bytes < std::min(48 << 10, kMostStages * stage_bytes<kFormat>(*m)))
      return false;
  }
  return true;
}

/// Side by side where the second kernel's CTAs have one tile each: with two, those that come late
/// would have fewer bytes on the way than one that is alone.
template <ExpertFormat kFormat>
const Room& room_of(const ExpertCall& call) {
  const bool besides = call.rows <= kBesidesRows &&
                       down_of<kFormat>(call, kBesides).tiles <= multiprocessors() &&
                       fits<kFormat>(call, kBesides);
  return besides ? kBesides : kAlone;
}

template <ExpertFormat kFormat>
void run(const ExpertCall& call, Bf16* gated, Stream stream) {
  const ExpertShape& s = call.shape;
  const Room& room = room_of<kFormat>(call);
  FewArguments a{};
  a.rows = call.rows;
  a.count = s.count;
  a.active = s.active;
  a.normalise = s.normalise;
  a.logits = call.logits;
  a.rule = call.rule;
  const auto start = [&](const char* name, auto kernel, const ExpertWeight& w, int x_rows,
                         int works) {
    a.stages = stages_of<kFormat>(a.m, x_rows, room);
    a.x_stride = x_stride(a.m.in);
    a.x_at = std::max(a.stages * stage_bytes<kFormat>(a.m), (scratch_bytes(a) + 127) / 128 * 128);
    const int bytes = a.x_at + x_rows * a.x_stride + 1024;
    const CUtensorMap map = kFormat == ExpertFormat::bf16 ? map_of(w, a.m, s.count) : CUtensorMap{};
    launch(name, kernel, static_cast<unsigned>(std::min(works, multiprocessors())), kThreads,
           static_cast<std::size_t>(bytes), stream, map, a);
  };
  take_shared_memory<few_up_kernel<kFormat>>(kAlone.bytes, "experts");
  take_shared_memory<few_down_kernel<kFormat>>(kAlone.bytes, "experts");
  a.m = up_of<kFormat>(call, room);
  a.x = reinterpret_cast<const std::uint16_t*>(call.normed);
  a.y = reinterpret_cast<__nv_bfloat16*>(gated);
  start("experts' gates", few_up_kernel<kFormat>, call.gate_up, call.rows,
        call.rows * s.active * a.m.tiles);
  a.m = down_of<kFormat>(call, room);
  a.x = reinterpret_cast<const std::uint16_t*>(gated);
  a.y = reinterpret_cast<__nv_bfloat16*>(call.x);
  start("experts' results", few_down_kernel<kFormat>, call.down, call.rows * s.active, a.m.tiles);
}

}  // namespace

bool few_experts_fit(const ExpertCall& call) {
  if (call.deterministic || call.rows > kMostFewRows ||
      call.rows * call.shape.active > kMostLines || call.rule.groups > 1 ||
      call.gate_up.format != call.down.format || !is_hopper()) {
    return false;
  }
  return with_format(call.gate_up.format,
                     [&]<ExpertFormat kFormat> { return fits<kFormat>(call, kAlone); });
}

void few_experts(const ExpertCall& call, Bf16* gated, Stream stream) {
  with_format(call.gate_up.format,
              [&]<ExpertFormat kFormat> { run<kFormat>(call, gated, stream); });
}

}  // namespace baton::cuda
