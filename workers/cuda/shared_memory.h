// How much shared memory a kernel may take, and how a multiprocessor parts its memory for it.
#pragma once

#include <cuda_runtime.h>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {

/// Once a process: lets `kKernel` take up to `bytes` of dynamic shared memory, beside the smallest L1 there is.
/// The same partition for all kernels that follow each other: a multiprocessor changes it only when it is
/// idle, and so could not take up the next kernel while one of another partition runs. Throws CudaError.
template <auto kKernel>
void take_shared_memory(int bytes, const char* name) {
  static const cudaError_t sized =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  check(sized, name);
  static const cudaError_t parted = cudaFuncSetAttribute(
      kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  check(parted, name);
}

}  // namespace baton::cuda
