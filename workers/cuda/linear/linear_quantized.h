// Linear layers over quantised weights, which stay quantised in device memory: bound by their bytes
// for few rows of x. Products of x with the stored numbers themselves (exact in bf16) are summed in
// fp32 and scaled there, a group at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

/// More rows are served in pieces of so many by the kernel that runs everywhere; from there on
/// dequantising is worth timing.
constexpr int kMostQuantizedRows = 64;

struct QuantizedConfig {
  enum class Kernel : std::uint8_t {
    registers,  // linear_quantized.cu; its first variant serves every row count, and adds up in the
                // same order whatever the count
    ring,       // linear_quantized_ring.cu
    tiles,      // linear_quantized_tiles.cu
  };
  Kernel kernel = Kernel::registers;
  int variant = 0;  // how the work is cut
};

struct QuantizedCall {
  const Bf16* x = nullptr;  // in the weight's order of inputs
  int rows = 0;
  LinearWeight w;
  LinearOutput output = LinearOutput::bf16;
  void* y = nullptr;
  void* workspace = nullptr;  // staged_workspace_bytes(), zeroed once, then left to the kernels
};

/// Variants worth timing at this row count.
std::vector<QuantizedConfig> quantized_candidates(int rows, const LinearWeight& w);
/// For the log.
std::string quantized_name(const QuantizedConfig& config);

/// Queues the product. Throws CudaError.
void quantized_linear(const QuantizedConfig& config, const QuantizedCall& call, Stream stream);

/// Queues y[r][i] = x[r][order[i]], rows of `columns`; x and y apart.
void gather_columns(const Bf16* x, const std::int32_t* order, int rows, int columns, Bf16* y,
                    Stream stream);

/// Queues the dequantising of the whole matrix to bf16 [out, in], row-major, inputs in the weight's
/// order.
void dequantize(const LinearWeight& w, Bf16* to, Stream stream);

}  // namespace baton::cuda
