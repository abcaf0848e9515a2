// Maps for the bulk tensor copy engine. The driver's function that makes them is found at run time:
// nothing here links against libcuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <string>

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

/// Of `data` with kRank dimensions of `sizes` elements, the innermost first; `strides` in bytes, of
/// all but the innermost. What a box reads outside of the sizes is zero. Throws CudaError.
template <std::size_t kRank>
CUtensorMap encode_map(const void* data, CUtensorMapDataType type,
                       const std::array<cuuint64_t, kRank>& sizes,
                       const std::array<cuuint64_t, kRank - 1>& strides,
                       const std::array<cuuint32_t, kRank>& box, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion) {
  CUtensorMap map;
  std::array<cuuint32_t, kRank> steps;
  steps.fill(1);
  const CUresult result =
      encode_function()(&map, type, kRank, const_cast<void*>(data), sizes.data(), strides.data(),
                        box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw CudaError("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result)));
  }
  return map;
}

}  // namespace baton::cuda
