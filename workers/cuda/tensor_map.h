// The driver's function that makes maps for the bulk tensor copy engine, found at run time: nothing here
// links against libcuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// Throws CudaError where the driver has none (before CUDA 12).
inline Encode encode_function() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess) throw CudaError("no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

}  // namespace baton::cuda
