// The order in which a norm adds up a row's squares. Whoever norms keeps to it (rowwise.cu, the
// ranks' sums), so that a row has the same bits whichever kernel it went through.
#pragma once

#include <cuda_runtime.h>

namespace baton::cuda {

/// Thread t of `threads` takes vectors of eight t, t + threads, ...: `each` at most.
struct NormShape {
  int each = 1;
  int threads = 0;  // a multiple of 32

  /// `vectors` of eight are a row.
  static NormShape of(int vectors) {
    constexpr int kFewThreads = 256;  // unless a row then needs more than 8 loads a thread
    constexpr int kWarp = 32;
    NormShape shape;
    while (shape.each < 8 && vectors > shape.each * kFewThreads) shape.each *= 2;
    shape.threads = ((vectors + shape.each - 1) / shape.each + kWarp - 1) / kWarp * kWarp;
    return shape;
  }
};

/// The same sum in every thread, added in the same order whatever the timing. Further warps that
/// have nothing to add do not change its bits.
__device__ __forceinline__ float sum_over_block(float value) {
  constexpr int kWarp = 32;
  __shared__ float of_warp[32];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (warps == 1) return value;
  if (lane == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = lane < warps ? of_warp[lane] : 0.0F;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  }
  return value;
}

}  // namespace baton::cuda
