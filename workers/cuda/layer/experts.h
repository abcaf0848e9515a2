// A feed-forward part of experts: each row takes a few of them, weighted by the router's softmax.
// Rows are sorted by expert on the device, so that nothing waits for the host and the calls can be
// captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/layer/general.h"
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

/// What of a layer of experts is not Mixtral's or Qwen's; the defaults are. Vectors are in fp32 and
/// may be null.
struct ExpertRule {
  Activate act = {};                   // gated
  const float* up_bias = nullptr;      // [count][2 * intermediate], gate's, then up's
  const float* down_bias = nullptr;    // [count][hidden]
  bool sigmoid = false;                // the router's, instead of a softmax
  const float* router_bias = nullptr;  // [count], added to the logits
  const float* choice_bias = nullptr;  // [count], added to the weights where experts are chosen
  int groups = 1;                      // experts are chosen in the best groups alone
  int active_groups = 1;
  bool group_pairs = true;  // a group is as good as its two best experts together
  float scale = 1;          // of the weights, at the end

  bool plain_expert() const {
    return act.gate == Gate::silu && up_bias == nullptr && down_bias == nullptr;
  }
};

/// Which kernels; the first one chooses. Others are for tests and benchmarks, and must serve.
enum class ExpertPath : std::uint8_t {
  automatic,
  pieces,  // any device, any number of rows; alone in deterministic
  stream,  // Hopper, pieces of at most 16 rows
  few,     // Hopper, at most 8 rows
  wide,    // Hopper, pieces of up to 128 rows
};

struct ExpertCall {
  ExpertShape shape;
  int rows = 0;                   // at most kMostExpertRows
  const Bf16* normed = nullptr;   // [rows, hidden]
  const float* logits = nullptr;  // [rows, count], the router's
  ExpertWeight gate_up;           // [count][2 * intermediate, hidden], 8 rows of gate, 8 of up, ...
  ExpertWeight down;              // [count][hidden, intermediate], in the same format
  Bf16* x = nullptr;              // [rows, hidden], added to
  void* workspace = nullptr;      // experts_workspace_bytes(), 256-byte aligned
  /// The bits of a row do not depend on the other rows of the call nor on their number.
  bool deterministic = false;
  ExpertRule rule = {};
  ExpertPath path = ExpertPath::automatic;
};

std::size_t experts_workspace_bytes(const ExpertShape& shape, int max_rows);

/// With the plain rule:
/// x[r] += sum over the row's experts e, ascending, of p_e * W_down,e (silu(W_gate,e n) * (W_up,e
/// n)), n the row of `normed`, p = softmax(logits) in fp32; of equal p the lower number is taken.
/// Queues two to six kernels. Throws CudaError.
void experts(const ExpertCall& call, Stream stream);

}  // namespace baton::cuda
