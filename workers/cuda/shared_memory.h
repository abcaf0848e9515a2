// How much shared memory a kernel may take, and how a multiprocessor parts its memory for it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {

/// Once a process: lets `kKernel` take up to `bytes` of dynamic shared memory, beside the smallest
/// L1 there is. The same partition for such kernels, which follow each other: a multiprocessor
/// changes it only when it is idle, and so could not take up the next kernel while one of another
/// partition runs. Throws CudaError.
template <auto kKernel>
void take_shared_memory(int bytes, const char* name) {
  static const cudaError_t sized =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  check(sized, name);
  static const cudaError_t parted = cudaFuncSetAttribute(
      kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  check(parted, name);
}

/// Once a process: the most L1 beside the static shared memory of kCtas CTAs of `kKernel` a
/// multiprocessor, for kernels whose loads are under way to registers, since L1 is where these
/// wait. Such a kernel begins on a multiprocessor that is idle, not beside the last CTAs of one
/// that takes shared memory (and that one's successor likewise behind it). Throws CudaError.
template <auto kKernel, int kCtas>
void keep_l1(const char* name) {
  static const cudaError_t parted = [] {
    constexpr int kReserved = 1 << 10;  // of each CTA, by the driver
    int device = 0;
    int most = 0;
    cudaFuncAttributes attributes{};
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    }
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kKernel);
    if (error != cudaSuccess) return error;
    // Some to spare: the nearest partition is taken, which must not be one too small.
    const int bytes =
        kCtas * (static_cast<int>(attributes.sharedSizeBytes) + kReserved) + (16 << 10);
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                std::min(100, (100 * bytes + most - 1) / most));
  }();
  check(parted, name);
}

}  // namespace baton::cuda
