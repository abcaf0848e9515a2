// A checkpoint's parameters, packed for the kernels. Torch-free.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "workers/cpu/packing.h"
#include "workers/model/config.h"
#include "workers/model/cut.h"
#include "workers/model/safetensors.h"
#include "workers/model/weight_memory.h"
#include "workers/model/weight_plan.h"

namespace baton {

using cpu::PackedMatrix;
using WeightVector = std::span<const float>;  // empty: the model has none

/// The embedding, row by row as it is stored. Empty where the head is the same matrix, and whole
/// numbers: then its rows are read there.
struct EmbeddingTable {
  const void* data = nullptr;  // [vocab, hidden]
  cpu::WeightType type = cpu::WeightType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// A feed-forward part: a dense layer's, one expert, or what all tokens take beside their experts.
struct FeedForwardWeights {
  PackedMatrix gate_up;    // [hidden] -> [intermediate], panels alternate gate, up; unless the part
                           // is plain() [hidden] -> [2 * intermediate], gate's in front; without a
                           // gate [hidden] -> [intermediate]
  PackedMatrix down;       // [intermediate] -> [hidden]
  WeightVector up_bias;    // as wide as what gate_up gives
  WeightVector down_bias;  // [hidden]
};

struct NormVectors {
  WeightVector weight, bias;  // [hidden]
};

/// Of latent keys and values. The last two are one matrix a head: what leads from a query's plain
/// components to the latent vector, and from the latent vector to the head's value.
struct LatentWeights {
  PackedMatrix q_a;                  // [hidden] -> [q_rank]; empty without q_rank
  WeightVector q_norm;               // [q_rank]
  PackedMatrix q;                    // -> [heads * (plain + rope)]
  PackedMatrix kv_a;                 // [hidden] -> [rank + rope]
  WeightVector kv_norm;              // [rank]
  std::vector<PackedMatrix> absorb;  // [plain] -> [rank]
  std::vector<PackedMatrix> value;   // [rank] -> [value]
};

/// What the spec does not ask for is empty.
struct LayerWeights {
  LatentWeights latent;  // instead of qkv
  NormVectors input_norm;
  NormVectors attention_after;
  PackedMatrix qkv;       // [hidden] -> [(heads + 2 kv_heads) * head_dim]
  WeightVector qkv_bias;  // [(heads + 2 kv_heads) * head_dim]
  WeightVector q_norm;    // [head_dim] or [heads * head_dim]
  WeightVector k_norm;    // [head_dim] or [kv_heads * head_dim]
  WeightVector sinks;     // [heads]
  PackedMatrix o;         // [heads * head_dim] -> [hidden]
  WeightVector o_bias;    // [hidden]
  NormVectors post_norm;
  NormVectors mlp_after;
  FeedForwardWeights dense;  // empty in a sparse layer
  PackedMatrix router;       // [hidden] -> [experts]; empty in a dense layer
  WeightVector router_bias;  // [experts]
  WeightVector choice_bias;  // [experts]
  FeedForwardWeights shared;
  PackedMatrix shared_gate;                 // [hidden] -> [1]
  std::vector<FeedForwardWeights> experts;  // empty in a dense layer
};

/// Looks into `memory`, which nobody writes to any more. Of a rank: its heads, features, experts
/// and tokens (cut.h); what says [heads], [intermediate] or [vocab] above has as many as the rank,
/// and so has what comes out of `o` and `down`, though not their biases. The experts of others are
/// empty.
struct Weights {
  EmbeddingTable embedding;
  std::vector<LayerWeights> layers;
  NormVectors final_norm;
  PackedMatrix lm_head;     // [hidden] -> [vocab]
  std::shared_ptr<const void> memory;
  std::uint64_t bytes_read = 0;  // of the checkpoint; 0 if somebody else has packed them

  std::uint64_t bytes() const;
};

/// Packs them into `memory`. Throws ModelError that names the file and the tensor: one that is
/// missing, or whose shape or type does not fit the configuration, or that nothing uses.
/// `progress`, if given, rises to 100. Of a rank its own part alone is read; can_cut() is ok.
Weights pack_weights(const ModelConfig& config, const Checkpoint& checkpoint, WeightChoice choice,
                     int threads, std::atomic<int>* progress, std::shared_ptr<WeightMemory> memory,
                     const ModelCut& cut = {}, Activations activations = Activations::exact);

/// Writes behind the packed weights where each of them lies, and seals their memory: now everybody
/// can map them (view_weights). Throws ModelError.
std::shared_ptr<const SealedMemory> seal_weights(Weights packed, WeightMemory& memory);

/// The weights in memory that seal_weights() has sealed, for a model of this configuration, or for
/// one rank's part of it. The error: it holds something else.
Result<Weights> view_weights(const ModelConfig& config, const ModelCut& cut,
                             std::shared_ptr<const SealedMemory> memory);

}  // namespace baton
