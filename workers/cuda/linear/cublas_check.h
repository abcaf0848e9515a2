// What cuBLASLt answers, as an error.
#pragma once

#include <cublasLt.h>

#include <string>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// Throws CudaError.
inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError(std::string("cublasLt, ") + what + ": " + cublasLtGetStatusString(status));
  }
}

}  // namespace baton::cuda
