// A linear layer for very few rows, bound by the bytes of W: W goes from memory straight into the
// registers that multiply it.
#pragma once

#include <vector>

#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

constexpr int kMostStreamedRows = 16;

struct StreamedConfig {
  int row_tiles = 1;           // a CTA computes 16 * row_tiles output features
  int warps = 8;               // that share the sum over k
  int per_multiprocessor = 2;  // CTAs of eight warps
};

struct StreamedCall {
  const Bf16* x = nullptr;
  int rows = 0;
  LinearWeight w;
  LinearOutput output = LinearOutput::bf16;
  void* y = nullptr;
};

/// Empty where the kernel does not serve: more than kMostStreamedRows rows, `in` no multiple of 64.
std::vector<StreamedConfig> streamed_candidates(int rows, int out, int in);

/// Queues the product. Throws CudaError.
void streamed_linear(const StreamedConfig& config, const StreamedCall& call, Stream stream);

}  // namespace baton::cuda
