// The project's own linear kernel (Hopper): streams W through shared memory by the copy engine and
// multiplies by warpgroups, with W's rows as the 64-row operand and the activations as the narrow
// one. Bound by the bytes of W up to about 128 rows.
#pragma once

#include <cstddef>
#include <vector>

#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

struct StagedConfig {
  int tile = 128;         // output features of a CTA's tile: 64, 128 or 256
  bool balanced = false;  // tiles are cut along k so that every CTA streams the same bytes
  int ring_kib = 104;     // shared memory for tiles in flight
  int split = 1;          // CTAs of a cluster that share a tile: 1, 2, 4 or 8
};

struct StagedCall {
  const Bf16* x = nullptr;
  int rows = 0;
  LinearWeight w;
  LinearOutput output = LinearOutput::bf16;
  void* y = nullptr;
  void* workspace = nullptr;  // staged_workspace_bytes(), zeroed once, then left to the kernels
};

/// The current device runs the kernel: compute capability 9.0 exactly.
bool staged_supported();
std::size_t staged_workspace_bytes();

/// Configurations worth timing at this row count. `whole_sums`: those that add up over k in one
/// order whatever the row count: neither balanced nor split.
std::vector<StagedConfig> staged_candidates(int rows, int out, int in, bool whole_sums);

/// Queues the product. Throws CudaError.
void staged(const StagedConfig& config, const StagedCall& call, Stream stream);

}  // namespace baton::cuda
