// A model's parameters on a GPU: one allocation, in bf16 or as they are quantised (gpu_format.h),
// fused as the kernels want them. Nothing writes there once they are loaded, and where each one
// lies follows from the checkpoint's headers alone: so processes can share the memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "workers/cuda/device.h"
#include "workers/cuda/linear/linear.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/config.h"

namespace baton {

/// Of the places and their content: raised when the same bytes mean something else, so that nobody
/// maps weights that another version of the program has left.
constexpr std::uint32_t kGpuWeightLayoutVersion = 1;

/// Vectors are [hidden] unless said otherwise; null where the family has none.
struct GpuLayer {
  const cuda::Bf16* input_norm = nullptr;
  cuda::LinearWeight qkv;                // [hidden] -> [(heads + 2 kv_heads) * head_dim]
  const cuda::Bf16* qkv_bias = nullptr;  // [(heads + 2 kv_heads) * head_dim]
  const cuda::Bf16* q_norm = nullptr;    // [head_dim]
  const cuda::Bf16* k_norm = nullptr;    // [head_dim]
  cuda::LinearWeight o;                  // [heads * head_dim] -> [hidden]
  const cuda::Bf16* post_norm = nullptr;
  cuda::LinearWeight gate_up;  // [hidden] -> [2 * intermediate], 8 of gate, 8 of up, ...
  cuda::LinearWeight down;     // [intermediate] -> [hidden]
  // A sparse layer instead of these two, always in bf16; E experts of their own intermediate size:
  cuda::LinearWeight router;                   // [hidden] -> [E]
  const cuda::Bf16* expert_gate_up = nullptr;  // [E][2 * intermediate, hidden], as gate_up
  const cuda::Bf16* expert_down = nullptr;     // [E][hidden, intermediate]
  bool sparse() const { return expert_down != nullptr; }
};

struct GpuWeights {
  cuda::DeviceMemory memory;              // everything below lies in here
  const cuda::Bf16* embedding = nullptr;  // [vocab, hidden]
  std::vector<GpuLayer> layers;
  const cuda::Bf16* final_norm = nullptr;
  cuda::LinearWeight lm_head;  // [hidden] -> [vocab]; the embedding itself if they are tied
  // [max_context, head_dim / 2]; no parameters, but 8 million cosines take a third of a second
  const float* rope_cos = nullptr;
  const float* rope_sin = nullptr;
};

/// Device memory that the weights will take: the checkpoint says which layers are quantised;
/// without one (`load_format: dummy`) all of the configuration's are.
std::uint64_t gpu_weight_bytes(const ModelConfig& config, const Checkpoint* checkpoint);

/// Gives every tensor its place in `memory`, gpu_weight_bytes() of the current device, and writes
/// nothing.
GpuWeights place_gpu_weights(const ModelConfig& config, const Checkpoint* checkpoint,
                             cuda::DeviceMemory memory);

/// Fills what was placed, in memory whose bytes are all zero: streams the checkpoint to the current
/// device through page-locked buffers, several threads at a time.
/// `percent` rises to 100 on the way. Throws ModelError or CudaError.
void load_gpu_weights(const ModelConfig& config, const Checkpoint& checkpoint, int ordinal,
                      std::atomic<int>& percent, GpuWeights& weights);

/// Likewise random weights of the configuration's shapes (`load_format: dummy`): for benchmarks.
void random_gpu_weights(const ModelConfig& config, std::atomic<int>& percent, GpuWeights& weights);

}  // namespace baton
