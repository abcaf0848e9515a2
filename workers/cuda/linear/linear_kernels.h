// Our own kernels for linear layers, a descriptor each: Linears (linear.h) goes over them to find
// what can compute a product, times that, and runs the fastest.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

/// y = x W^T, as Linears::run() has it.
struct LinearCall {
  const Bf16* x = nullptr;  // [rows, w.in]; of a quantised weight in its order of inputs
  int rows = 0;
  LinearWeight w;
  LinearOutput output = LinearOutput::bf16;
  void* y = nullptr;
  void* workspace = nullptr;  // tile_workspace_bytes(), zeroed once, then left to the kernels
};

/// A kernel with its variants: ways to cut the work, numbered.
struct LinearKernel {
  const char* name;
  /// The variants worth timing for this matrix and row count on the current device; none where the
  /// kernel does not serve. `deterministic`: those that serve every row count, and give a row the
  /// same bits whatever that is and whichever of them is taken.
  std::vector<int> (*variants)(int rows, const LinearWeight& w, bool deterministic);
  /// Queues the product. Throws CudaError.
  void (*run)(int variant, const LinearCall& call, Stream stream);
  /// How a variant cuts the work, for the log.
  std::string (*describe)(int variant);
  /// Of more rows it is timed only where no kernel before it in kLinearKernels serves.
  int beside_rows = std::numeric_limits<int>::max();
};

extern const LinearKernel kDirectLinear;          // linear_direct.cu
extern const LinearKernel kStagedLinear;          // linear_staged.cu
extern const LinearKernel kQuantizedRingLinear;   // linear_quantized_ring.cu
extern const LinearKernel kQuantizedTilesLinear;  // linear_quantized_tiles.cu
extern const LinearKernel kQuantizedLinear;       // linear_quantized.cu

inline constexpr std::array kLinearKernels = {&kDirectLinear, &kStagedLinear, &kQuantizedRingLinear,
                                              &kQuantizedTilesLinear, &kQuantizedLinear};

/// What the kernels of linear_tiles.cuh keep on the device; 0 where none of them runs.
std::size_t tile_workspace_bytes();

}  // namespace baton::cuda
