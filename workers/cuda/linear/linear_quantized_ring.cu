// Quantised products of one to eight rows on Hopper, bound by the bytes of W. As in
// linear_quantized.cu a warp's 16 features are the wide operand of mma.m16n8k16 and the warps of a
// CTA share the inputs. What is particular here:
//   - W comes through a ring in shared memory. Registers hold nothing that is on its way, so the
//     bytes in flight do not depend on what the compiler makes of the loop. A warp of its own fills
//     it, by one copy of words and one of scales for all the others: with a copy or two for every
//     warp and 128 inputs the copy engine was the limit (measured: half the memory's rate).
//   - The ring is filled before grid_wait(): weights are never written. One CTA a multiprocessor
//     takes every 132nd tile, and its ring runs on from tile to tile. The next kernel may start
//     when the last copies have been asked for, not earlier: its CTAs would take places unevenly.
//   - x lies in shared memory, whole.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear/linear_kernels.h"
#include "workers/cuda/linear/quantized_numbers.cuh"
#include "workers/cuda/mma.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

constexpr int kMostRows = 8;           // whose x fits into shared memory
constexpr int kMostBytes = 208 << 10;  // of shared memory
constexpr int kMostStages = 12;
constexpr int kBlockUnits = 2;
constexpr int kBlockInputs = kBlockUnits * kUnitInputs;
constexpr int kGroupBytes = kTileRows * 4;  // scales of one group of a tile

struct Arguments {
  const std::uint16_t* x;
  const std::uint8_t* w;
  const std::uint8_t* scales;
  void* y;
  int rows, out, in;
  int tiles, units, groups, group_shift;
  int stages;
  int x_stride;  // bytes of a row of x in shared memory
  LinearOutput output;
};

/// kPartsOf: of a block (128 inputs), each with scales of its own. kWarpsOf warps multiply, each a
/// block of every stage of the ring.
template <WeightFormat kFormatOf, int kPartsOf, int kWarpsOf>
struct Shape {
  static constexpr WeightFormat kFormat = kFormatOf;
  static constexpr int kParts = kPartsOf;
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kMultiplying = 32 * kWarps;
  static constexpr int kThreads = kMultiplying + 32;
  static constexpr int kUnitBytes =
      kTileRows * kUnitInputs / (kFormat == WeightFormat::int4 ? 2 : 1);
  static constexpr int kBlockBytes = kBlockUnits * kUnitBytes;
  static constexpr int kScalesAt = kWarps * kBlockBytes;  // in a stage
  static constexpr int kStageBytes = kScalesAt + kWarps * kParts * kGroupBytes;
  static constexpr int kStageUnits = kWarps * kBlockUnits;
  static constexpr int kPartial = kWarps * 4 * kLanes;  // floats
};

#ifdef BATON_HOPPER

/// Walks over the stages of a CTA's tiles and asks for them.
template <class S>
struct Cursor {
  const Arguments& a;
  int per_tile;  // stages
  int tile;
  std::uint64_t policy;
  int i = 0;

  __device__ __forceinline__ bool ended() const { return tile >= a.tiles; }

  __device__ __forceinline__ void copy(std::uint8_t* stage, std::uint64_t* full) {
    const int unit = i * S::kStageUnits;
    const int units = min(S::kStageUnits, a.units - unit);
    const int group = unit * kUnitInputs >> a.group_shift;
    const int last = min((unit + units) * kUnitInputs - 1 >> a.group_shift, a.groups - 1);
    const int words = units * S::kUnitBytes;
    const int scales = (last - group + 1) * kGroupBytes;
    hopper::barrier_expect(full, words + scales);
    hopper::copy_bytes(stage, a.w + (std::int64_t{tile} * a.units + unit) * S::kUnitBytes, words,
                       full, policy);
    hopper::copy_bytes(stage + S::kScalesAt,
                       a.scales + (std::int64_t{tile} * a.groups + group) * kGroupBytes, scales,
                       full, policy);
    if (++i < per_tile) return;
    i = 0;
    tile += static_cast<int>(gridDim.x);
  }
};

/// Adds a block's products to `sums`. `words` are this lane's, `scales` those of its rows and of
/// the stage's first group, `x` is where it reads the block's inputs, step_bytes from one 32 of
/// them to the next.
template <class S>
__device__ __forceinline__ void multiply(const Arguments& a, const uint4* words,
                                         const uint2* scales, int block, int first_group,
                                         std::uint32_t x, std::uint32_t step_bytes,
                                         float (&sums)[4]) {
  constexpr int kInstructions = 4 * kBlockUnits;
  constexpr int kLoads = S::kBlockBytes / (16 * kLanes);
  uint4 w[kLoads];
#pragma unroll
  for (int l = 0; l < kLoads; ++l) w[l] = words[l * kLanes];
  std::uint32_t b[2 * kInstructions];
#pragma unroll
  for (int i = 0; i < kInstructions / 2; ++i) load_inputs(x + i * step_bytes, b + 4 * i);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    // Behind the last group there are no inputs: any scale does that is a number.
    const int group =
        min((block * S::kParts + part) * (kBlockInputs / S::kParts) >> a.group_shift, a.groups - 1);
    const uint2 scale = scales[(group - first_group) * 8];
    const std::uint32_t low = offset_of(scale.x);
    const std::uint32_t high = offset_of(scale.y);
    float found[2][4] = {};  // two, or every instruction would wait for the one before
#pragma unroll
    for (int i = 0; i < kInstructions / S::kParts; ++i) {
      const int j = part * (kInstructions / S::kParts) + i;
      std::uint32_t v[4];
      if constexpr (S::kFormat == WeightFormat::int4) {
        dequantize_int4(word_of(w, j), low, high, v);
      } else {
        dequantize_bytes<S::kFormat>(word_of(w, 2 * j), word_of(w, 2 * j + 1), v);
      }
      mma(found[i % 2], v[0], v[1], v[2], v[3], b[2 * j], b[2 * j + 1]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[e] = fmaf(scale_of(e < 2 ? scale.x : scale.y), found[0][e] + found[1][e], sums[e]);
    }
  }
}

/// Which output of a tile a thread of the first 128 adds up and stores: element e of a lane is
/// feature g + 8 (e / 2) of the tile, row 2 t + e % 2.
struct Output {
  std::int64_t at = -1;  // in y; negative: none
  __nv_bfloat16* y;

  __device__ __forceinline__ Output(const Arguments& a, int tile)
      : y(static_cast<__nv_bfloat16*>(a.y)) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int element = static_cast<int>(threadIdx.x) / kLanes;
    const bool silu =
        a.output == LinearOutput::silu_mul;  // eight features of gate, then eight of up
    const int row = lane % 4 * 2 + element % 2;
    const int width = silu ? a.out / 2 : a.out;
    const int feature = silu ? 8 * tile + lane / 4 : kTileRows * tile + lane / 4 + element / 2 * 8;
    if (row < a.rows && feature < width && element < (silu ? 2 : 4))
      at = std::int64_t{row} * width + feature;
  }
};

/// `partial` is [warp][element][lane].
template <class S>
__device__ __forceinline__ void finish(const Arguments& a, const float* partial, const Output& to,
                                       float old) {
  if (to.at < 0) return;
  const auto total = [&](int i) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < S::kWarps; ++warp) sum += partial[warp * 4 * kLanes + i];
    return sum;
  };
  const float sum = total(static_cast<int>(threadIdx.x));
  if (a.output == LinearOutput::f32) {
    static_cast<float*>(a.y)[to.at] = sum;
  } else if (a.output == LinearOutput::silu_mul) {
    const float up = total(static_cast<int>(threadIdx.x) + 2 * kLanes);
    to.y[to.at] = __float2bfloat16(sum / (1.0F + __expf(-sum)) * up);
  } else {
    to.y[to.at] = __float2bfloat16(sum + old);
  }
}

/// x [rows] of x_stride bytes, with noughts behind its last input.
__device__ __forceinline__ void clear_behind(const Arguments& a, std::uint8_t* x) {
  const int from = a.in * 2;
  const int words = (a.x_stride - from) / 4;
  for (int i = static_cast<int>(threadIdx.x); i < words * a.rows;
       i += static_cast<int>(blockDim.x)) {
    *reinterpret_cast<std::uint32_t*>(x + i / words * a.x_stride + from + i % words * 4) = 0;
  }
}

#endif  // BATON_HOPPER

template <class S>
__global__ void __launch_bounds__(S::kThreads, 2) ring_kernel(const Arguments a) {
#ifdef BATON_HOPPER
  extern __shared__ __align__(128) std::uint8_t dynamic[];  // ring, x
  __shared__ float partial[2][S::kPartial];
  __shared__ uint4 nought;
  __shared__ std::uint64_t full[kMostStages];
  __shared__ std::uint64_t empty[kMostStages];
  __shared__ std::uint64_t x_full;
  const int warp = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint8_t* const x = dynamic + a.stages * S::kStageBytes;
  const int per_tile = (a.units + S::kStageUnits - 1) / S::kStageUnits;
  Cursor<S> cursor{a, per_tile, static_cast<int>(blockIdx.x), 0};
  if (threadIdx.x == S::kMultiplying) {
    for (int s = 0; s < a.stages; ++s) {
      hopper::barrier_init(&full[s], 1);
      hopper::barrier_init(&empty[s], S::kWarps);
    }
    hopper::barrier_init(&x_full, 1);
    hopper::barrier_init_done();
    cursor.policy = hopper::policy_evict_first();
    for (int s = 0; s < a.stages && !cursor.ended(); ++s)
      cursor.copy(dynamic + s * S::kStageBytes, &full[s]);
  }
  if (threadIdx.x == 0) nought = make_uint4(0, 0, 0, 0);
  clear_behind(a, x);
  __syncthreads();
  if (warp == S::kWarps) {
    if (lane != 0) return;
    grid_wait();
    const std::uint64_t keep = hopper::policy_evict_last();
    hopper::barrier_expect(&x_full, a.rows * a.in * 2);
    for (int row = 0; row < a.rows; ++row) {
      hopper::copy_bytes(x + row * a.x_stride, a.x + std::int64_t{row} * a.in, a.in * 2, &x_full,
                         keep);
    }
    for (int stage = 0, parity = 0; !cursor.ended();) {
      hopper::barrier_wait(&empty[stage], parity);
      cursor.copy(dynamic + stage * S::kStageBytes, &full[stage]);
      if (++stage == a.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    grid_release();
    return;
  }
  grid_wait();
  const bool used = lane % 8 < a.rows;
  const std::uint32_t my_x = used
                                 ? hopper::shared_address(x) + lane % 8 * a.x_stride + lane / 8 * 16
                                 : hopper::shared_address(&nought);
  const std::uint32_t step_bytes = used ? 64 : 0;
  const int blocks = (a.units + kBlockUnits - 1) / kBlockUnits;
  const bool finishes = threadIdx.x < 4 * kLanes;
  hopper::barrier_wait(&x_full, 0);

  int stage = 0;
  int parity = 0;
  int buffer = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < a.tiles;
       tile += static_cast<int>(gridDim.x)) {
    const Output to(a, tile);
    float old = 0;
    if (finishes && a.output == LinearOutput::residual && to.at >= 0)
      old = __bfloat162float(to.y[to.at]);
    float sums[4] = {};
    for (int i = 0; i < per_tile; ++i) {
      const int block = i * S::kWarps + warp;
      const std::uint8_t* const here = dynamic + stage * S::kStageBytes;
      hopper::barrier_wait(&full[stage], parity);
      if (block < blocks) {
        multiply<S>(a, reinterpret_cast<const uint4*>(here + warp * S::kBlockBytes) + lane,
                    reinterpret_cast<const uint2*>(here + S::kScalesAt) + lane / 4, block,
                    i * S::kStageUnits * kUnitInputs >> a.group_shift,
                    my_x + block * 4 * step_bytes, step_bytes, sums);
      }
      __syncwarp();
      if (lane == 0) hopper::barrier_arrive(&empty[stage]);
      if (++stage == a.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    // The other buffer may still be read by slower warps; this one was before the last barrier.
#pragma unroll
    for (int e = 0; e < 4; ++e) partial[buffer][(warp * 4 + e) * kLanes + lane] = sums[e];
    hopper::sync_threads(1, S::kMultiplying);
    if (finishes) finish<S>(a, partial[buffer], to, old);
    buffer ^= 1;
  }
#endif
}

// ------------------------------------------------------------------ host

/// Shared memory of a row of x: rows four banks apart, for ldmatrix.
int x_stride(int in) { return (in + kBlockInputs - 1) / kBlockInputs * (kBlockInputs * 2) + 16; }

struct Variant {
  int warps;
  int ring_kib;
};
constexpr Variant kVariants[] = {{16, 104}, {16, 140}, {16, 70}, {8, 104}};

template <class S>
void launch_shape(const Variant& v, Arguments a, Stream stream) {
  a.stages = std::clamp((v.ring_kib << 10) / S::kStageBytes, 1, kMostStages);
  const int bytes = a.stages * S::kStageBytes + a.rows * a.x_stride;
  take_shared_memory<ring_kernel<S>>(kMostBytes, "quantized linear");
  launch("quantized linear", ring_kernel<S>, std::min(a.tiles, multiprocessors()), S::kThreads,
         static_cast<std::size_t>(bytes), stream, a);
}

template <WeightFormat kFormat, int kParts>
void launch_variant(const Variant& v, const Arguments& a, Stream stream) {
  if (v.warps == 16) return launch_shape<Shape<kFormat, kParts, 16>>(v, a, stream);
  launch_shape<Shape<kFormat, kParts, 8>>(v, a, stream);
}

std::vector<int> variants(int rows, const LinearWeight& w, bool deterministic) {
  if (!w.is_quantized() || deterministic || rows > kMostRows || !is_hopper()) return {};
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(std::size(kVariants)); ++i) {
    if ((kVariants[i].ring_kib << 10) + rows * x_stride(w.in) <= kMostBytes) found.push_back(i);
  }
  return found;
}

std::string describe(int variant) {
  return std::to_string(kVariants[variant].warps) + " warps, " +
         std::to_string(kVariants[variant].ring_kib) + " KiB";
}

void run(int variant, const LinearCall& call, Stream stream) {
  const QuantizedWeight& w = call.w.quantized;
  Arguments a{};
  a.x = reinterpret_cast<const std::uint16_t*>(call.x);
  a.w = reinterpret_cast<const std::uint8_t*>(w.words);
  a.scales = reinterpret_cast<const std::uint8_t*>(w.scales);
  a.y = call.y;
  a.rows = call.rows;
  a.out = call.w.out;
  a.in = call.w.in;
  a.tiles = tiles_of(a.out);
  a.units = units_of(a.in);
  a.groups = w.groups;
  a.group_shift = w.group_shift;
  a.x_stride = x_stride(a.in);
  a.output = call.output;
  by_format(w, [&]<WeightFormat kFormat, int kParts>() {
    launch_variant<kFormat, kParts>(kVariants[variant], a, stream);
  });
}

}  // namespace

const LinearKernel kQuantizedRingLinear{"quantized ring", variants, run, describe};

}  // namespace baton::cuda
