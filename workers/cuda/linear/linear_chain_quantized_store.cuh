// How the layer kernel for quantised weights (linear_chain_quantized.cu) ends a unit: its warps'
// sums are added up, normed, stored, and squared for the norm behind.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "workers/cuda/linear/linear_chain_quantized.cuh"
#include "workers/cuda/linear/linear_tiles.cuh"

#ifdef BATON_HOPPER
namespace baton::cuda::quantized_gemms {

/// Which results of a unit a thread adds up and stores: one row's, of the same feature of every
/// `step`th tile from `tile` on.
template <class S>
struct Outputs {
  int lane, element, tile, step;
  int row;
  int feature;  // of the tile

  __device__ __forceinline__ explicit Outputs(bool silu) {
    const int thread = static_cast<int>(threadIdx.x);
    const int elements = silu ? 2 : 4;  // the others are of up
    lane = thread % kLanes;
    element = thread / kLanes % elements;
    tile = thread / kLanes / elements;
    step = kWarps / elements;
    row = lane % 4 * 2 + element % 2;
    feature = lane / 4 + element / 2 * 8;
  }

  __device__ __forceinline__ float total(const Shared<S>& shared, const Gemm& gemm, int of_tile,
                                         int of_element) const {
    float part[kMostSlices];
#pragma unroll
    for (int slice = 0; slice < kMostSlices; ++slice) {
      part[slice] =
          slice < gemm.slices ? shared.sums[slice * gemm.tiles + of_tile][of_element][lane] : 0;
    }
    float sum = 0;
#pragma unroll
    for (const float p : part) sum += p;
    if constexpr (S::kFormat == WeightFormat::int4) sum *= kSmallInt4;
    return sum;
  }
};

/// A feature of y, and of the next norm's weight, as bits of bf16: nothing waits for them before
/// they are used. To be read once the GEMM's x has been seen.
struct Old {
  std::uint16_t y = 0, gain = 0;
};
template <class S>
__device__ __forceinline__ Old load_old(const Arguments& a, const Gemm& gemm, int unit,
                                        const Outputs<S>& to, int tile) {
  Old old;
  const int feature = (unit * gemm.tiles + tile) * kTileRows + to.feature;
  if (gemm.output != LinearOutput::residual || to.row >= a.rows || tile >= gemm.tiles ||
      feature >= gemm.out)
    return old;
  const auto* y = static_cast<const std::uint16_t*>(gemm.y);
  old.y = __ldcg(y + static_cast<std::int64_t>(to.row) * gemm.out + feature);
  if (gemm.gain != nullptr) old.gain = __ldg(gemm.gain + feature);
  return old;
}

__device__ __forceinline__ float float_of(std::uint16_t bf16) {
  return __uint_as_float(std::uint32_t{bf16} << 16);
}

/// `first_old`: of the first tile; `all_squares`: of a row of all our units, in the thread that
/// stores them.
template <class S>
__device__ __forceinline__ void store(const Arguments& a, Shared<S>& shared, int i, int unit,
                                      const Outputs<S>& to, Old first_old, float& all_squares) {
  const Gemm& gemm = a.gemms[i];
  const bool silu_mul = gemm.output == LinearOutput::silu_mul;
  auto* y = static_cast<__nv_bfloat16*>(gemm.y);
  float scale = 1;
  if (gemm.inverse_in > 0) {
    hopper::barrier_wait(&shared.normed[i], 0);
    scale = shared.scales[i][to.row];
  }
  float squares = 0;
  for (int tile = to.tile; tile < gemm.tiles; tile += to.step) {
    const float sum = scale * to.total(shared, gemm, tile, to.element);
    const int feature = (unit * gemm.tiles + tile) * kTileRows + to.feature;
    if (to.row >= a.rows || feature >= gemm.out) continue;
    if (silu_mul) {  // eight features of gate, then eight of up
      const float up = scale * to.total(shared, gemm, tile, to.element + 2);
      const int column = (unit * gemm.tiles + tile) * 8 + to.feature;
      y[static_cast<std::int64_t>(to.row) * (gemm.out / 2) + column] =
          __float2bfloat16(silu(sum) * up);
      continue;
    }
    const std::int64_t at = static_cast<std::int64_t>(to.row) * gemm.out + feature;
    const Old old = tile == to.tile ? first_old : load_old(a, gemm, unit, to, tile);
    const __nv_bfloat16 v = __float2bfloat16(sum + float_of(old.y));
    y[at] = v;
    if (gemm.scaled == nullptr) continue;
    const float rounded = __bfloat162float(v);
    gemm.scaled[at] = __float2bfloat16(rounded * float_of(old.gain));
    squares += rounded * rounded;
  }
  if (gemm.scaled == nullptr) return;
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) squares += __shfl_xor_sync(0xFFFFFFFFU, squares, mask);
  if (to.lane < 4) shared.squares[threadIdx.x / 32][to.lane] = squares;
  hopper::sync_threads(1, kMultiplying);
  const int row = static_cast<int>(threadIdx.x);
  if (row >= a.rows) return;
  for (int warp = row % 2; warp < kWarps; warp += 2)  // those whose element has this row
    all_squares += shared.squares[warp][row / 2];
  a.squares.slot(i, static_cast<int>(blockIdx.x), kMostRows)[row] = all_squares;
}

}  // namespace baton::cuda::quantized_gemms
#endif  // BATON_HOPPER
