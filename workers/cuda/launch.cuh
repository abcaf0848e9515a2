// Launching kernels one behind the other without the gap between them (CUDA programming guide,
// "Programmatic Dependent Launch"): a kernel may start while its predecessor on the stream still
// runs, and waits inside, at grid_wait(), until everything before it has finished.
//
// The rule that keeps this right: every kernel launched with launch() calls grid_wait() before it
// reads or writes any memory that another kernel writes or reads (weights are never written, so
// prefetching them before is fine), and calls grid_release() as early as it likes.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "workers/cuda/types.h"

namespace baton::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw CudaError(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void grid_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// In clusters of so many CTAs, which `grid` is a multiple of; 1: none.
template <typename... Parameters, typename... Arguments>
void launch_clusters(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                     std::size_t shared_bytes, int cluster, Stream stream,
                     Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Stream stream, Arguments&&... arguments) {
  launch_clusters(name, kernel, grid, block, shared_bytes, 1, stream,
                  std::forward<Arguments>(arguments)...);
}

}  // namespace baton::cuda
