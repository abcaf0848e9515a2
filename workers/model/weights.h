// A checkpoint's parameters, packed for the kernels. The memory belongs to libtorch tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "workers/cpu/packing.h"
#include "workers/model/config.h"
#include "workers/model/safetensors.h"
#include "workers/model/weight_plan.h"

namespace baton {

/// A linear layer: `matrix` looks into `panels`, [panels, in, 32] of float or bfloat16.
struct LinearWeight {
  at::Tensor panels;
  cpu::PackedMatrix matrix;
};

/// A gated feed-forward part: a dense layer's, or one expert.
struct FeedForwardWeights {
  LinearWeight gate_up;  // [hidden] -> [intermediate], panels alternate gate, up
  LinearWeight down;     // [intermediate] -> [hidden]
};

struct LayerWeights {
  at::Tensor input_norm;     // [hidden], float
  LinearWeight qkv;          // [hidden] -> [(heads + 2 kv_heads) * head_dim]
  at::Tensor qkv_bias;       // [(heads + 2 kv_heads) * head_dim], float; empty without qkv_bias
  at::Tensor q_norm;         // [head_dim], float; empty without qk_norm
  at::Tensor k_norm;         // the same
  LinearWeight o;            // [heads * head_dim] -> [hidden]
  at::Tensor post_norm;      // [hidden], float
  FeedForwardWeights dense;  // empty in a sparse layer
  LinearWeight router;       // [hidden] -> [experts]; empty in a dense layer
  std::vector<FeedForwardWeights> experts;  // empty in a dense layer
};

struct Weights {
  at::Tensor embedding;  // [vocab, hidden], float or bfloat16
  cpu::WeightType embedding_type = cpu::WeightType::f32;
  std::vector<LayerWeights> layers;
  at::Tensor final_norm;  // [hidden], float
  LinearWeight lm_head;   // [hidden] -> [vocab]

  std::uint64_t bytes() const;
};

/// Throws ModelError that names the file and the tensor: one that is missing, or whose shape or
/// type does not fit the configuration, or that nothing uses. `progress`, if given, rises to 100.
Weights load_weights(const ModelConfig& config, const Checkpoint& checkpoint, WeightChoice choice,
                     int threads, std::atomic<int>* progress);

}  // namespace baton
