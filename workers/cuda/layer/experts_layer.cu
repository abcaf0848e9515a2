// See experts_layer.h. One CTA a multiprocessor; a product begins when all CTAs have stored what it
// reads (counters in L2, as in linear_chain.cu). Weights, but for the router's, come through one
// ring in shared memory, filled by a warp that runs ahead: W_o is on its way while attention still
// runs, W_down while gates are waited for, W_next while W_down is multiplied. Only which experts'
// gates are needed is not known before the router has spoken.
//   - The router: every CTA norms all rows for itself, into shared memory, where the gates' product
//     finds them; then the CTAs share its outputs. A CTA asks for its first one's weights before it
//     waits for W_o.
//   - Until the router has spoken the memory has little to do: W_next comes into the L2 cache. What
//     every token takes needs no choice: its gates are computed meanwhile.
//   - The choice, gate and up, down: as in experts_few.cu. In down, what every token takes is one
//     more expert, whose matrices have sizes of their own.
#include "workers/cuda/layer/experts_layer.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "workers/cuda/current_device.h"
#include "workers/cuda/layer/experts_layer.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

using namespace expert_layers;

constexpr int kThreads = kMultiplyingFew + kLanes;
constexpr int kPartialFloats = kFewWarps * kMostDenseTiles * 4 * kLanes;
constexpr int kMostHidden = 8 * kMultiplyingFew * kHeldVectors;

constexpr std::size_t kStateBytes = 256;

/// Counters of CTAs that have done their part, on the device.
struct LayerState {
  int attended, routed, gated, joined;
};

struct LayerArguments : FewRows {
  CUtensorMap up_map, down_map;  // of experts in bf16 alone
  CUtensorMap shared_up_map, shared_down_map;
  Dense o, next;  // out 0: there is none
  Matrix up, down;
  Matrix shared_up, shared_down;  // tiles 0: there are none
  int hidden, stages, stage_bytes;
  int x_at;  // in shared memory, behind the ring
  const __nv_bfloat16* attended;
  const float* o_bias;
  Bf16* x;
  LayerNorm norm, next_norm;
  const Bf16* router;
  float* routed;  // logits, as they are written
  const float* shared_gate;
  __nv_bfloat16 *gated, *shared, *next_y;
  LayerState *state, *next_state;
};

struct Shared {
  alignas(16) float partial[kPartialFloats];
  Choice choice;
  float sums[kFewWarps];
  float dots[kFewWarps][kMostFewRows];
  float shared_weight[kMostFewRows];  // of what every token takes
  uint4 nought;
  std::uint64_t full[kMostStages];
  std::uint64_t empty[kMostStages];
  std::uint64_t chosen;
};
static_assert(kMostExperts <= kPartialFloats, "the choice takes the room of the sums");
static_assert(kFewWarps >= kMostFewRows, "a row's choice is a warp's");
static_assert(sizeof(LayerState) <= kStateBytes);
constexpr int kMostBytes = (227 << 10) - static_cast<int>(sizeof(Shared) + 15) / 16 * 16;

#ifdef BATON_HOPPER

static_assert(2 * Partial<1, kFewWarps>::kFloats <= kPartialFloats);

/// By the threads that multiply: what they have stored is there for all CTAs.
__device__ __forceinline__ void say_done(int* counter) {
  meet();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
  }
}
/// Until all CTAs have said it.
__device__ __forceinline__ void wait_for_all(const int* counter) {
  if (threadIdx.x == 0) {
    int now = 0;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < static_cast<int>(gridDim.x));
  }
  meet();
}

/// A CTA's share of some tiles.
struct Tiles {
  int first, last;
  __device__ __forceinline__ explicit Tiles(int all)
      : first(static_cast<int>(std::int64_t{all} * blockIdx.x / gridDim.x)),
        last(static_cast<int>(std::int64_t{all} * (blockIdx.x + 1) / gridDim.x)) {}
};

/// One thread: all weights, in the order in which they are multiplied.
template <ExpertFormat kFormat>
__device__ __forceinline__ void copy_weights(const LayerArguments& a, const Ring& ring,
                                             Shared& shared) {
  constexpr auto kPlain = ExpertFormat::bf16;
  const std::uint64_t policy = hopper::policy_evict_first();
  Place place;
  copy_dense(a.o, ring, place, policy);
  const Tiles of_all(a.shared_up.tiles);
  for (int tile = of_all.first; tile < of_all.last; ++tile) {
    for (int split = 0; split < a.shared_up.splits; ++split) {
      copy_stage<kPlain>(&a.shared_up_map, a.shared_up, ring, place, 0, tile, split, policy);
    }
  }
  if constexpr (kFormat == kPlain) {
    hopper::prefetch_map(&a.up_map);
    hopper::prefetch_map(&a.down_map);
  }
  hopper::barrier_wait(&shared.chosen, 0);
  const Choice& choice = shared.choice;
  const Tiles tiles(choice.experts * a.up.tiles);
  for (int at = tiles.first; at < tiles.last; ++at) {
    const int which = at / a.up.tiles;
    for (int split = 0; split < a.up.splits; ++split) {
      copy_stage<kFormat>(&a.up_map, a.up, ring, place, choice.expert[which],
                          at - which * a.up.tiles, split, policy);
    }
  }
  for (int tile = static_cast<int>(blockIdx.x); tile < a.down.tiles;
       tile += static_cast<int>(gridDim.x)) {
    for (int which = 0; which < choice.experts; ++which) {
      for (int split = 0; split < a.down.splits; ++split) {
        copy_stage<kFormat>(&a.down_map, a.down, ring, place, choice.expert[which], tile, split,
                            policy);
      }
    }
    for (int split = 0; split < a.shared_down.splits; ++split) {
      copy_stage<kPlain>(&a.shared_down_map, a.shared_down, ring, place, 0, tile, split, policy);
    }
  }
  copy_dense(a.next, ring, place, policy);
  grid_release();
}

/// What the threads that multiply go through, part by part.
template <ExpertFormat kFormat>
struct Layer {
  const LayerArguments& a;
  Shared& shared;
  const Ring& ring;
  std::uint8_t* x;  // rows, of whatever product is next
  Place place = {};
  int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kLanes, 0);
  int lane = static_cast<int>(threadIdx.x) % kLanes;
  RowThreads mine{a.rows};
  HeldGains gains = {};
  int turn = 0;  // tiles that this CTA has ended: which buffer the next one takes, and which warps

  /// A lane's row of those at `from`, `stride` bytes apart; none: noughts.
  __device__ __forceinline__ Inputs<1> inputs(const std::uint8_t* from, int stride, int row) {
    Inputs<1> found;
    const std::int64_t at = hopper::shared_address(from);
    found.point(0, lane, row < 0 ? -1 : at + row * stride, hopper::shared_address(&shared.nought));
    return found;
  }
  __device__ __forceinline__ int row_of_lane() const { return lane % 8 < a.rows ? lane % 8 : -1; }

  /// x += W_o attended
  __device__ __forceinline__ void project_attended() {
    if (a.o.out == 0) return;
    const int stride = x_stride(a.o.in);
    load_rows(a.attended, a.rows, a.o.in, x, stride);
    meet();
    multiply_dense(a.o, a.rows, ring, place, inputs(x, stride, row_of_lane()), shared.partial,
                   [&](int row, int feature, float sum) {
                     Bf16* const to = a.x + std::int64_t{row} * a.hidden + feature;
                     if (a.o_bias != nullptr) sum += a.o_bias[feature];
                     store(to, value_past_l1(to) + sum);
                   });
    say_done(&a.state->attended);
  }

  /// The rows of x, normed, are where products find them; logits.
  __device__ __forceinline__ void route() {
    const int vectors = a.hidden / 8;
    const int stride = x_stride(a.hidden);
    const auto weights_of = [&](int expert, int i) {
      const int vector = static_cast<int>(threadIdx.x) + i * kMultiplyingFew;
      if (expert >= a.count || vector >= vectors) return uint4{0, 0, 0, 0};
      return __ldg(reinterpret_cast<const uint4*>(a.router + std::int64_t{expert} * a.hidden) +
                   vector);
    };
    uint4 w[kHeldVectors];
    const int first = static_cast<int>(blockIdx.x);
#pragma unroll
    for (int i = 0; i < kHeldVectors; ++i) w[i] = weights_of(first, i);
    gains.load(a.norm, a.hidden, mine);
    // The memory has little to do until the router has spoken.
    prefetch_dense(a.next);
    if (a.o.out > 0) wait_for_all(&a.state->attended);
    norm_into(a.norm, gains, a.x, a.rows, a.hidden, mine, x, stride, shared.sums);
    for (int expert = first; expert < a.count; expert += static_cast<int>(gridDim.x)) {
      for (int row = 0; row < a.rows; ++row) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kHeldVectors; ++i) {
          const int vector = static_cast<int>(threadIdx.x) + i * kMultiplyingFew;
          if (vector >= vectors) continue;
          Eight n, g;
          n.unpack(*reinterpret_cast<const uint4*>(x + row * stride + vector * 16));
          g.unpack(w[i]);
#pragma unroll
          for (int k = 0; k < 8; ++k) dot = fmaf(n.v[k], g.v[k], dot);
        }
        dot = warp_sum(dot);
        if (lane == 0) shared.dots[warp][row] = dot;
      }
#pragma unroll
      for (int i = 0; i < kHeldVectors; ++i) {
        w[i] = weights_of(expert + static_cast<int>(gridDim.x), i);
      }
      meet();
      const int row = static_cast<int>(threadIdx.x);
      if (row < a.rows) {
        float logit = 0;
#pragma unroll
        for (int i = 0; i < kFewWarps; ++i) logit += shared.dots[i][row];
        a.routed[std::int64_t{row} * a.count + expert] = logit;
      }
      meet();
    }
    say_done(&a.state->routed);
    weigh_shared();
  }

  __device__ __forceinline__ void weigh_shared() {
    float weight = 1;
    if (a.shared_gate != nullptr) {
      float dot = 0;
      for (int vector = mine.at; mine.row < a.rows && vector < a.hidden / 8; vector += mine.each) {
        Eight n, g;
        n.unpack(*reinterpret_cast<const uint4*>(x + mine.row * x_stride(a.hidden) + vector * 16));
        g.load_weight(a.shared_gate + 8 * vector);
#pragma unroll
        for (int k = 0; k < 8; ++k) dot = fmaf(n.v[k], g.v[k], dot);
      }
      weight = 1.0F / (1.0F + expf(-mine.sum(dot, shared.sums)));
    }
    if (mine.at == 0 && mine.row < kMostFewRows) shared.shared_weight[mine.row] = weight;
  }

  /// This CTA's tiles of one kind of gate and up, [first, last): end(partial, tile, row, element)
  /// ends a tile.
  template <ExpertFormat kOf, class End>
  __device__ __forceinline__ void multiply_gates(const Matrix& m, const Tiles& tiles,
                                                 const End& end) {
    const Inputs<1> rows = inputs(x, x_stride(a.hidden), row_of_lane());
    Sums<1> sums;
    for (int tile = tiles.first; tile < tiles.last; ++tile, ++turn) {
      sums.clear();
      multiply_tile<kOf, 1, kFewWarps>(m, ring, place, warp, lane, rows, sums);
      // The other buffer may still be read by slower warps; this one was before the last barrier.
      float* const partial = shared.partial + turn % 2 * Partial<1, kFewWarps>::kFloats;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        Partial<1, kFewWarps>::put(partial, warp, lane, 0, e, sums.of(0, e));
      meet();
      // Two warps end a tile, others each time.
      const int element = (warp + kFewWarps - turn * 2 % kFewWarps) % kFewWarps;
      if (element < 2) end(partial, tile, lane % 4 * 2 + element, element);
      __syncwarp();
    }
  }

  /// shared = act(W_gate n) (W_up n) of what every token takes: nothing is waited for.
  __device__ __forceinline__ void gate_of_all() {
    if (a.shared_up.tiles == 0) return;
    multiply_gates<ExpertFormat::bf16>(a.shared_up, Tiles(a.shared_up.tiles),
                                       [&](const float* partial, int tile, int row, int element) {
                                         store_gate(a.rule.act, a.shared_up, nullptr, partial,
                                                    row < a.rows ? row : -1, tile, lane, element,
                                                    a.shared);
                                       });
  }

  /// gated = act(W_gate n) (W_up n), of each row's experts
  __device__ __forceinline__ void gate() {
    wait_for_all(&a.state->routed);
    meet();  // the last tile's sums have been read
    choose<kMultiplyingFew, kMeeting>(a, reinterpret_cast<unsigned*>(shared.partial), shared.choice,
                                      [this] { hopper::barrier_arrive(&shared.chosen); });
    meet();
    const Choice& choice = shared.choice;
    multiply_gates<kFormat>(
        a.up, Tiles(choice.experts * a.up.tiles),
        [&](const float* partial, int at, int row, int element) {
          const int which = at / a.up.tiles;
          store_gate(a.rule.act, a.up, bias_of(a.rule.up_bias, a.up, choice.expert[which]), partial,
                     choice.line[which][row], at - which * a.up.tiles, lane, element, a.gated);
        });
    say_done(&a.state->gated);
  }

  /// Adds an expert's tile of down, times its weights.
  template <ExpertFormat kOf>
  __device__ __forceinline__ void multiply_down(const Matrix& m, const Inputs<1>& rows,
                                                const float* weight,  // [2], of the lane's rows
                                                float (&all)[4]) {
    Sums<1> sums;
    sums.clear();
    multiply_tile<kOf, 1, kFewWarps>(m, ring, place, warp, lane, rows, sums);
#pragma unroll
    for (int e = 0; e < 4; ++e) all[e] = fmaf(weight[e % 2], sums.of(0, e), all[e]);
  }

  /// x += the sum of W_down gated over a row's experts, each as much as it weighs
  __device__ __forceinline__ void join() {
    const Choice& choice = shared.choice;
    const int stride = x_stride(a.down.in);
    const int lines = a.rows * a.active;
    std::uint8_t* const taken_by_all = x + lines * stride;
    const int stride_of_all = x_stride(a.shared_down.in);
    wait_for_all(&a.state->gated);  // of what every token takes, too
    load_rows(a.gated, lines, a.down.in, x, stride);
    if (a.shared_down.tiles > 0) {
      load_rows(a.shared, a.rows, a.shared_down.in, taken_by_all, stride_of_all);
    }
    meet();
    for (int tile = static_cast<int>(blockIdx.x); tile < a.down.tiles;
         tile += static_cast<int>(gridDim.x), ++turn) {
      const int element = (warp + kFewWarps - turn * 4 % kFewWarps) % kFewWarps;
      const int feature = kExpertTile * tile + lane / 4 + element / 2 * 8;
      const int row = lane % 4 * 2 + element % 2;
      const bool ends = element < 4 && row < a.rows;
      Bf16* const to = a.x + std::int64_t{row} * a.hidden + feature;
      const float old = ends ? value_past_l1(to) : 0.0F;
      float all[4] = {};
      for (int which = 0; which < choice.experts; ++which) {
        const float* weight = &choice.weight[which][lane % 4 * 2];
        multiply_down<kFormat>(a.down, inputs(x, stride, choice.line[which][lane % 8]), weight,
                               all);
        if (a.rule.down_bias != nullptr && which % kFewWarps == warp) {
          const float* bias = bias_of(a.rule.down_bias, a.down, choice.expert[which]) +
                              kExpertTile * tile + lane / 4;
#pragma unroll
          for (int e = 0; e < 4; ++e) all[e] = fmaf(weight[e % 2], bias[e / 2 * 8], all[e]);
        }
      }
      if (a.shared_down.tiles > 0) {
        multiply_down<ExpertFormat::bf16>(a.shared_down,
                                          inputs(taken_by_all, stride_of_all, row_of_lane()),
                                          &shared.shared_weight[lane % 4 * 2], all);
      }
      float* const partial = shared.partial + turn % 2 * Partial<1, kFewWarps>::kFloats;
#pragma unroll
      for (int e = 0; e < 4; ++e) Partial<1, kFewWarps>::put(partial, warp, lane, 0, e, all[e]);
      meet();
      if (ends) store(to, old + Partial<1, kFewWarps>::total(partial, lane, 0, element));
      __syncwarp();
    }
    if (a.next.out > 0) say_done(&a.state->joined);
  }

  /// next = W_next norm(x)
  __device__ __forceinline__ void project_next() {
    if (a.next.out == 0) return;
    const int stride = x_stride(a.hidden);
    gains.load(a.next_norm, a.hidden, mine);
    wait_for_all(&a.state->joined);
    norm_into(a.next_norm, gains, a.x, a.rows, a.hidden, mine, x, stride, shared.sums);
    multiply_dense(a.next, a.rows, ring, place, inputs(x, stride, row_of_lane()), shared.partial,
                   [&](int row, int feature, float sum) {
                     a.next_y[std::int64_t{row} * a.next.out + feature] = __float2bfloat16(sum);
                   });
  }

  /// This layer's numbers, which other CTAs have stored in this kernel.
  static __device__ __forceinline__ float value_past_l1(const Bf16* from) {
    const auto bits = __ldcg(reinterpret_cast<const unsigned short*>(from));
    return __uint_as_float(static_cast<std::uint32_t>(bits) << 16U);
  }
};

#endif  // BATON_HOPPER

template <ExpertFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    layer_kernel(const __grid_constant__ LayerArguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];  // ring, x
  __shared__ Shared shared;
  const Ring ring{aligned_kib(dynamic), shared.full, shared.empty, a.stages, a.stage_bytes};
  if (threadIdx.x == kMultiplyingFew) {
    ring.init(kFewWarps);
    hopper::barrier_init(&shared.chosen, 1);
    hopper::barrier_init_done();
  }
  if (threadIdx.x == 0) shared.nought = make_uint4(0, 0, 0, 0);
  __syncthreads();
  if (threadIdx.x >= kMultiplyingFew) {
    if (threadIdx.x == kMultiplyingFew) copy_weights<kFormat>(a, ring, shared);
    return;
  }
  grid_wait();
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.next_state = LayerState{};
  Layer<kFormat> layer{a, shared, ring, ring.memory + a.x_at};
  layer.project_attended();
  layer.route();
  layer.gate_of_all();
  layer.gate();
  layer.join();
  layer.project_next();
#endif
}

// ------------------------------------------------------------------ host

int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// Features of a part: as few turns times features as can be, and of those the most.
int features_for(int out) {
  int best = 8;
  for (int f = 8; f <= kMostDenseTiles * kExpertTile; f += 8) {
    const auto cost = [&](int n) { return ceil_div(ceil_div(out, n), multiprocessors()) * n; };
    if (cost(f) <= cost(best)) best = f;
  }
  return best;
}

Dense dense_of(const LinearWeight& w) {
  Dense m{};
  if (w.data == nullptr) return m;
  m.data = reinterpret_cast<const __nv_bfloat16*>(w.data);
  m.out = w.out;
  m.in = w.in;
  m.features = features_for(w.out);
  m.parts = ceil_div(w.out, m.features);
  m.units = w.in / kExpertUnit;
  const int most = std::max(kStageTarget / (m.features * kRowBytes), 1);
  m.splits = ceil_div(m.units, most);
  m.stage_units = ceil_div(m.units, m.splits);
  m.map = encode_map<3>(
      w.data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {kExpertUnit, static_cast<cuuint64_t>(w.out), static_cast<cuuint64_t>(m.units)},
      {static_cast<cuuint64_t>(w.in) * 2, kRowBytes},
      {kExpertUnit, static_cast<cuuint32_t>(m.features), static_cast<cuuint32_t>(m.stage_units)},
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  return m;
}

ExpertWeight as_expert(const LinearWeight& w) {
  return {ExpertFormat::bf16, reinterpret_cast<const std::byte*>(w.data)};
}

/// The layer's matrices and what of shared memory is whose, for `rows`; no stages: there is no
/// room.
template <ExpertFormat kFormat>
LayerArguments arguments_of(const ExpertLayerCall& call, int rows) {
  constexpr auto kPlain = ExpertFormat::bf16;
  const ExpertShape& s = call.experts.shape;
  LayerArguments a{};
  a.rows = rows;
  a.count = s.count;
  a.active = s.active;
  a.normalise = s.normalise;
  a.rule = call.experts.rule;
  a.hidden = s.hidden;
  a.o = dense_of(call.o);
  a.next = dense_of(call.next_w);
  const auto matrix = [&]<ExpertFormat kOf>(const ExpertWeight& w, int out, int in) {
    const Matrix m = matrix_of<kOf>(w, out, in, kStageTarget, kFewWarps);
    a.stage_bytes = std::max(a.stage_bytes, stage_bytes<kOf>(m));
    return m;
  };
  a.up = matrix.template operator()<kFormat>(call.experts.gate_up, 2 * s.intermediate, s.hidden);
  a.down = matrix.template operator()<kFormat>(call.experts.down, s.hidden, s.intermediate);
  if (call.shared_down.data != nullptr) {
    a.shared_up = matrix.template operator()<kPlain>(as_expert(call.shared_gate_up),
                                                     call.shared_gate_up.out, s.hidden);
    a.shared_down = matrix.template operator()<kPlain>(as_expert(call.shared_down), s.hidden,
                                                       call.shared_down.in);
  }
  for (const Dense* m : {&a.o, &a.next}) {
    a.stage_bytes = std::max(a.stage_bytes, m->features * kRowBytes * m->stage_units);
  }
  a.stage_bytes = (a.stage_bytes + 1023) / 1024 * 1024;
  // multiply_unit() reads 16 features at a time: of 8, 24, 40 or 56 the last 1 KiB lies behind the
  // part, and must be there.
  int x_bytes = std::max(rows * x_stride(s.hidden), 1024);
  x_bytes = std::max(x_bytes, rows * x_stride(a.o.in));
  x_bytes =
      std::max(x_bytes, rows * s.active * x_stride(a.down.in) + rows * x_stride(a.shared_down.in));
  a.stages = std::min((kMostBytes - 1024 - x_bytes) / a.stage_bytes, kMostStages);
  a.x_at = a.stages * a.stage_bytes;
  return a;
}

template <ExpertFormat kFormat>
int rows_of(const ExpertLayerCall& call) {
  constexpr int kLeastRing = 80 << 10;  // bytes on the way: with fewer several kernels are quicker
  int rows = std::min(kMostFewRows, kMostLines / call.experts.shape.active);
  for (; rows > 0; --rows) {
    const LayerArguments a = arguments_of<kFormat>(call, rows);
    if (a.stages == kMostStages || a.stages * a.stage_bytes >= kLeastRing) return rows;
  }
  return 0;
}

bool is_plain(const LinearWeight& w) { return !w.is_quantized() && w.in % kExpertUnit == 0; }

template <ExpertFormat kFormat>
void run(const ExpertLayerCall& call, LayerState* state, LayerState* next_state, Stream stream) {
  const int rows = call.experts.rows;
  if (rows < 1 || rows > kMostFewRows || rows * call.experts.shape.active > kMostLines) {
    throw CudaError("expert_layer: too many rows");
  }
  LayerArguments a = arguments_of<kFormat>(call, rows);
  if (a.stages < 2) throw CudaError("expert_layer: too many rows");
  if constexpr (kFormat == ExpertFormat::bf16) {
    a.up_map = map_of(call.experts.gate_up, a.up, a.count);
    a.down_map = map_of(call.experts.down, a.down, a.count);
  }
  if (a.shared_down.tiles > 0) {
    a.shared_up_map = map_of(as_expert(call.shared_gate_up), a.shared_up, 1);
    a.shared_down_map = map_of(as_expert(call.shared_down), a.shared_down, 1);
  }
  const auto plain = [](const Bf16* p) { return reinterpret_cast<const __nv_bfloat16*>(p); };
  const auto written = [](void* p) { return static_cast<__nv_bfloat16*>(p); };
  a.attended = plain(call.attended);
  a.o_bias = call.o_bias;
  a.x = call.experts.x;
  a.norm = call.norm;
  a.next_norm = call.next_norm;
  a.router = call.router.data;
  a.routed = call.logits;
  a.logits = call.logits;
  a.shared_gate = call.shared_gate;
  a.gated = written(call.experts.workspace);
  a.shared = written(call.shared);
  a.next_y = written(call.next);
  a.state = state;
  a.next_state = next_state;
  take_shared_memory<layer_kernel<kFormat>>(kMostBytes, "expert_layer");
  launch("expert_layer", layer_kernel<kFormat>, static_cast<unsigned>(multiprocessors()), kThreads,
         kMostBytes, stream, a);
}

}  // namespace

int expert_layer_rows(const ExpertLayerCall& call) {
  if (!is_hopper() || under_mps()) return 0;
  const ExpertCall& e = call.experts;
  const ExpertShape& s = e.shape;
  if (s.active < 1 || s.count > kMostExperts || e.rule.groups > 1) return 0;
  if (e.gate_up.format != e.down.format) return 0;
  if (s.hidden % kExpertUnit != 0 || s.hidden > kMostHidden) return 0;
  const bool bf16 = e.gate_up.format == ExpertFormat::bf16;
  if (s.intermediate % (bf16 ? kExpertUnit : kMxfp4Inputs) != 0) return 0;
  if (call.router.data == nullptr || call.router.is_quantized()) return 0;
  for (const LinearWeight* w : {&call.o, &call.next_w, &call.shared_gate_up, &call.shared_down}) {
    if (!is_plain(*w)) return 0;
  }
  if (call.shared_down.data != nullptr && call.shared_gate_up.out != 2 * call.shared_down.in) {
    return 0;
  }
  return with_format(e.gate_up.format,
                     [&]<ExpertFormat kFormat> { return rows_of<kFormat>(call); });
}

std::size_t expert_layer_state_bytes() { return kStateBytes; }

void expert_layer(const ExpertLayerCall& call, void* state, void* next_state, Stream stream) {
  with_format(call.experts.gate_up.format, [&]<ExpertFormat kFormat> {
    run<kFormat>(call, static_cast<LayerState*>(state), static_cast<LayerState*>(next_state),
                 stream);
  });
}

}  // namespace baton::cuda
