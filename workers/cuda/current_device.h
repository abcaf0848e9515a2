// What kernels ask of the device that is current at the first call: a process uses one.
#pragma once

#include <cuda_runtime.h>

#include "workers/cuda/launch.cuh"

namespace baton::cuda {

/// How many a grid is spread over. Throws CudaError.
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

/// Has what the kernels for sm_90a use: wgmma, the bulk tensor copy engine. Throws CudaError.
inline bool is_hopper() {
  static const bool hopper = [] {
    int device = 0;
    int major = 0;
    int minor = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "capability");
    return major == 9 && minor == 0;
  }();
  return hopper;
}

/// Other processes may have kernels beside ours, so that not all of a grid's CTAs need find a place
/// at once. Throws CudaError.
inline bool under_mps() {
  static const bool shared = [] {
    int device = 0;
    int mps = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device), "MPS");
    return mps != 0;
  }();
  return shared;
}

}  // namespace baton::cuda
