// How many multiprocessors a grid is spread over.
#pragma once

#include <cuda_runtime.h>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {

/// Of the device that is current at the first call: a process uses one. Throws CudaError.
inline int multiprocessors() {
  static const int count = [] {
    int device = 0;
    int n = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
    return n;
  }();
  return count;
}

}  // namespace baton::cuda
