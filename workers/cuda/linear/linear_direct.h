// A linear layer for very few rows, bound by the bytes of W: W goes from memory straight into the
// registers that multiply it.
#pragma once

#include <vector>

#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

constexpr int kMostDirectRows = 16;

struct DirectConfig {
  int row_tiles = 1;           // a CTA computes 16 * row_tiles output features
  int warps = 8;               // that share the sum over k
  int per_multiprocessor = 2;  // CTAs of eight warps
};

struct DirectCall {
  const Bf16* x = nullptr;
  int rows = 0;
  LinearWeight w;
  LinearOutput output = LinearOutput::bf16;
  void* y = nullptr;
};

/// Empty where the kernel does not serve: more than kMostDirectRows rows, `in` no multiple of 64.
std::vector<DirectConfig> direct_candidates(int rows, int out, int in);

/// Queues the product. Throws CudaError.
void direct_linear(const DirectConfig& config, const DirectCall& call, Stream stream);

}  // namespace baton::cuda
