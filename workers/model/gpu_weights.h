// A model's parameters on a GPU: one allocation, in bf16 or as they are quantised (gpu_format.h),
// fused as the kernels want them. Nothing writes there once they are loaded, and where each one
// lies follows from the checkpoint's headers alone: so processes can share the memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "workers/cuda/device.h"
#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/linear/linear.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/config.h"
#include "workers/model/gpu_cut.h"

namespace baton {

/// Of the places and their content: raised when the same bytes mean something else, so that nobody
/// maps weights that another version of the program has left.
constexpr std::uint32_t kGpuWeightLayoutVersion = 4;

/// A norm's weights and biases, fp32, [hidden]; null where there are none.
struct GpuNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

/// Of latent keys and values; the product that leads to them is the layer's qkv (gpu_latent.cpp).
struct GpuLatent {
  const float* q_norm = nullptr;     // [q_rank]
  cuda::LinearWeight q;              // [q_rank] -> [heads * (plain + rope)]; none without q_rank
  const float* kv_norm = nullptr;    // [rank]
  const cuda::Bf16* kv_b = nullptr;  // [heads * (plain + value), rank]
};

/// What a layer has beside its matrices where the fused kernels do not cover its model
/// (has_fused_layers()): vectors in fp32, null where the family has none.
struct GpuGeneralLayer {
  GpuNorm before_attention, after_attention, before_mlp, after_mlp;
  const float* qkv_bias = nullptr;     // [(heads + 2 kv_heads) * head_dim]
  const float* q_norm = nullptr;       // [head_dim], or [heads * head_dim]
  const float* k_norm = nullptr;       // [head_dim], or [kv_heads * head_dim]
  const float* sinks = nullptr;        // [heads]
  const float* o_bias = nullptr;       // [hidden]
  const float* up_bias = nullptr;      // [E][2 * intermediate], gate's, then up's; E: 1 if dense
  const float* down_bias = nullptr;    // [E][hidden]
  const float* router_bias = nullptr;  // [E]
  const float* choice_bias = nullptr;  // [E]
  // What every token takes beside its experts, and how much of it
  cuda::LinearWeight shared_gate_up;
  cuda::LinearWeight shared_down;
  const float* shared_up_bias = nullptr;
  const float* shared_down_bias = nullptr;
  const float* shared_gate = nullptr;  // [hidden]
  GpuLatent latent;
};

/// Vectors are [hidden] unless said otherwise; null where the family has none.
struct GpuLayer {
  const cuda::Bf16* input_norm = nullptr;
  cuda::LinearWeight qkv;                // [hidden] -> [(heads + 2 kv_heads) * head_dim]; of latent
                                         // keys: queries, or q_rank numbers of them, and the vector
  const cuda::Bf16* qkv_bias = nullptr;  // [(heads + 2 kv_heads) * head_dim]
  const cuda::Bf16* q_norm = nullptr;    // [head_dim]
  const cuda::Bf16* k_norm = nullptr;    // [head_dim]
  cuda::LinearWeight o;                  // [attended_columns()] -> [hidden]
  const cuda::Bf16* post_norm = nullptr;
  cuda::LinearWeight gate_up;  // [hidden] -> [2 * intermediate], 8 of gate, 8 of up, ...; or,
                               // without a gate, [intermediate]
  cuda::LinearWeight down;     // [intermediate] -> [hidden]
  // A sparse layer instead of these two, in bf16, MXFP4 or FP8; E experts of their own intermediate
  // size:
  cuda::LinearWeight router;          // [hidden] -> [E]
  cuda::ExpertWeight expert_gate_up;  // [E][2 * intermediate, hidden], as gate_up
  cuda::ExpertWeight expert_down;     // [E][hidden, intermediate]
  GpuGeneralLayer general;            // and then none of the norms and biases above
  bool sparse() const { return expert_down.data != nullptr; }
};

/// No parameters, but 8 million cosines take a third of a second: [max_context, dims / 2].
struct GpuRope {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

struct GpuWeights {
  cuda::DeviceMemory memory;              // everything below lies in here
  const cuda::Bf16* embedding = nullptr;  // [vocab, hidden]
  std::vector<GpuLayer> layers;
  const cuda::Bf16* final_norm = nullptr;
  /// [hidden] -> [vocab], of a rank its tokens; the embedding itself if they are tied
  cuda::LinearWeight lm_head;
  GpuNorm general_final_norm;  // instead of final_norm, as with the layers'
  std::vector<GpuRope> ropes;  // of ModelSpec::ropes
};

// Of a worker of several ranks everything here is one rank's part: `config` is the whole model's.

/// Device memory that the weights will take: the checkpoint says which layers are quantised;
/// without one (`load_format: dummy`) all of the configuration's are.
std::uint64_t gpu_weight_bytes(const ModelConfig& config, const Checkpoint* checkpoint,
                               const GpuCut& cut = {});

/// Gives every tensor its place in `memory`, gpu_weight_bytes() of the current device, and writes
/// nothing.
GpuWeights place_gpu_weights(const ModelConfig& config, const Checkpoint* checkpoint,
                             cuda::DeviceMemory memory, const GpuCut& cut = {});

/// Fills what was placed, in memory whose bytes are all zero: streams the checkpoint to the current
/// device through page-locked buffers, several threads at a time.
/// `percent` rises to 100 on the way. Throws ModelError or CudaError.
void load_gpu_weights(const ModelConfig& config, const Checkpoint& checkpoint, int ordinal,
                      std::atomic<int>& percent, GpuWeights& weights, const GpuCut& cut = {});

/// Likewise random weights of the configuration's shapes (`load_format: dummy`): for benchmarks.
/// All ranks have the same.
void random_gpu_weights(const ModelConfig& config, std::atomic<int>& percent, GpuWeights& weights,
                        const GpuCut& cut = {});

}  // namespace baton
