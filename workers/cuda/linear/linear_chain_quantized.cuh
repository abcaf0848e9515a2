// How the layer kernel for quantised weights (linear_chain_quantized.cu) cuts its work, and what a
// warp does with the block of W that it has.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "workers/cuda/hopper.cuh"
#include "workers/cuda/linear/linear_chain_quantized.h"
#include "workers/cuda/linear/linear_chain_state.cuh"
#include "workers/cuda/linear/quantized_layout.h"
#include "workers/cuda/linear/quantized_numbers.cuh"
#include "workers/cuda/mma.cuh"
#include "workers/cuda/tensor_map.h"

namespace baton::cuda::quantized_gemms {

constexpr int kWarps = 16;  // that multiply
constexpr int kMultiplying = 32 * kWarps;
constexpr int kThreads = kMultiplying + 96;  // and a warp each for W, for x and for norms
constexpr int kMostRows = 8;
constexpr int kMostStages = 8;
constexpr int kMostXStages = 4;
constexpr int kXRingBytes = 34 << 10;  // where two stages take no more
constexpr int kMostSlices = 8;
constexpr int kPartInputs = 128;               // that have one scale, or more
constexpr int kXInputs = 2048;                 // most of a stage of x
constexpr int kXRowBytes = kXInputs * 2 + 16;  // rows lie four banks apart, for ldmatrix

struct Gemm {
  CUtensorMap w, scales;
  const std::uint16_t* x;
  void* y;
  __nv_bfloat16* scaled;
  const std::uint16_t* gain;
  float inverse_in;  // normed: 1 / in, else 0
  float eps;
  int out, in;
  int tiles;     // of a unit: tiles * slices warps work on it
  int slices;    // blocks of a tile in a stage of W
  int by_tiles;  // warp * by_tiles >> 16 is warp / tiles
  int units;     // dealt out to the CTAs in turns
  int blocks;    // of a tile
  int stages;    // of W that a unit takes
  int x_stages;  // stages of W to one of x
  int groups;    // of a tile, in a stage
  int group_shift;
  LinearOutput output;
};

struct Arguments {
  Gemm gemms[kMostChainGemms];
  ChainState *state, *next;
  ChainSquares squares;
  int n, rows;
  int stages, x_stages;  // of the rings
  int x_stage_bytes;
};

/// kScalesOf: of kPartInputs. kSharedOf: eight rows share them (QuantizedWeight::shared_scales).
template <WeightFormat kFormatOf, int kScalesOf, bool kSharedOf = false>
struct Shape {
  static constexpr WeightFormat kFormat = kFormatOf;
  static constexpr int kScales = kScalesOf;
  static constexpr bool kShared = kSharedOf;
  static constexpr int kGroupBytes = 4 * (kShared ? kSharedScaleWords : kTileRows);  // of a tile
  static constexpr int kUnitBytes =
      kTileRows * kUnitInputs / (kFormat == WeightFormat::int4 ? 2 : 1);
  static constexpr int kBlockBytes = 2048;  // of a warp, in a stage
  static constexpr int kBlockUnits = kBlockBytes / kUnitBytes;
  static constexpr int kBlockInputs = kBlockUnits * kUnitInputs;
  static constexpr int kParts = kBlockInputs / kPartInputs;
  static constexpr int kWordBytes = kWarps * kBlockBytes;  // of a stage; scales lie behind
  static constexpr int kStageBytes = kWordBytes + kWarps * kParts * kScales * kGroupBytes;
};

template <class S>
struct Shared {
  std::uint64_t full[kMostStages], empty[kMostStages];
  std::uint64_t x_full[kMostXStages], x_empty[kMostXStages];
  std::uint64_t seen[kMostChainGemms];  // that the GEMM before has been stored
  std::uint64_t normed[kMostChainGemms];
  float scales[kMostChainGemms][kMostRows];  // of normed GEMMs' rows: 1 / rms
  float sums[kWarps][4][kLanes];
  float squares[kWarps][4];
};

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ products

__device__ __forceinline__ uint4 load_words(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 load_scales(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

/// Adds a block's products. In shared memory: the lane's `words`, its rows' `scales`, where it
/// reads the block's inputs; a group of more than a part has no scale of its own for each part, so
/// part_scales is how far their scales lie apart.
template <class S>
__device__ __forceinline__ void multiply(std::uint32_t words, std::uint32_t scales, int part_scales,
                                         std::uint32_t x, float (&sums)[4]) {
  constexpr int kLoads = S::kBlockBytes / (16 * kLanes);
  constexpr int kInstructions = kPartInputs / 16;
  uint4 w[kLoads];
#pragma unroll
  for (int l = 0; l < kLoads; ++l) w[l] = load_words(words + l * 16 * kLanes);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    std::uint32_t b[2 * kInstructions];
#pragma unroll
    for (int i = 0; i < kInstructions / 2; ++i)
      load_inputs(x + part * kPartInputs * 2 + i * 64, &b[4 * i]);
#pragma unroll
    for (int s = 0; s < S::kScales; ++s) {
      const uint2 scale = load_scales(scales + part * part_scales + s * S::kGroupBytes);
      std::uint32_t low = 0;
      std::uint32_t high = 0;
      if constexpr (S::kFormat == WeightFormat::int4) {
        low = small_offset_of(scale.x);
        high = small_offset_of(scale.y);
      }
      float found[4] = {};
#pragma unroll
      for (int i = 0; i < kInstructions / S::kScales; ++i) {
        const int j = s * (kInstructions / S::kScales) + i;
        const int all = part * kInstructions + j;
        std::uint32_t v[4];
        if constexpr (S::kFormat == WeightFormat::int4) {
          dequantize_int4_small(word_of(w, all), low, high, v);
        } else {
          dequantize_fp8(word_of(w, 2 * all), word_of(w, 2 * all + 1), v);
        }
        mma(found, v[0], v[1], v[2], v[3], b[2 * j], b[2 * j + 1]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // The zero point in the scale's last bits changes it by 2^-19 of itself at most.
        sums[e] = fmaf(__uint_as_float(e < 2 ? scale.x : scale.y), found[e], sums[e]);
      }
    }
  }
}
#endif  // BATON_HOPPER

}  // namespace baton::cuda::quantized_gemms
