// What the CUDA backend's host code and kernels share: element types, the stream, errors. Plain
// C++, so that the files which describe the model need no CUDA header.
#pragma once

#include <cstdint>
#include <stdexcept>

struct CUstream_st;
struct CUevent_st;

namespace baton::cuda {

/// Same type as cudaStream_t and cudaEvent_t.
using Stream = CUstream_st*;
using Event = CUevent_st*;

/// Storage of one bfloat16; kernels read it as __nv_bfloat16.
struct Bf16 {
  std::uint16_t bits;
};

/// A call of CUDA or cuBLAS failed. Most of these leave the process without a usable device.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace baton::cuda
