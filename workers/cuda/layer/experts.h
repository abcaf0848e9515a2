// A feed-forward part of experts: each row takes a few of them, weighted by the router's softmax.
// Rows are sorted by expert on the device, so that nothing waits for the host and the calls can be
// captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// More rows are the caller's to cut into pieces: the workspace grows with them.
constexpr int kMostExpertRows = 2048;

struct ExpertShape {
  int count = 0;           // at most 1024
  int active = 0;          // experts that a row takes, at most 64
  int hidden = 0;          // a multiple of 16
  int intermediate = 0;    // of one expert, a multiple of 16
  bool normalise = false;  // a row's weights are made to sum to 1
};

struct ExpertCall {
  ExpertShape shape;
  int rows = 0;                   // at most kMostExpertRows
  const Bf16* normed = nullptr;   // [rows, hidden]
  const float* logits = nullptr;  // [rows, count], the router's
  const Bf16* gate_up = nullptr;  // [count][2 * intermediate, hidden], 8 rows of gate, 8 of up, ...
  const Bf16* down = nullptr;     // [count][hidden, intermediate]
  Bf16* x = nullptr;              // [rows, hidden], added to
  void* workspace = nullptr;      // experts_workspace_bytes(), 256-byte aligned
  /// The bits of a row do not depend on the other rows of the call nor on their number.
  bool deterministic = false;
};

std::size_t experts_workspace_bytes(const ExpertShape& shape, int max_rows);

/// x[r] += sum over the row's experts e, ascending, of p_e * W_down,e (silu(W_gate,e n) * (W_up,e
/// n)), n the row of `normed`, p = softmax(logits) in fp32; of equal p the lower number is taken.
/// Queues six kernels. Throws CudaError.
void experts(const ExpertCall& call, Stream stream);

}  // namespace baton::cuda
