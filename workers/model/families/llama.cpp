// Llama and what differs from it in few settings: norms in front of both parts, gated SiLU.
#include "workers/model/families/family.h"

namespace baton {
namespace {

const ExpertStyle kMixtralExperts = {.intermediate = "intermediate_size", .normalise = true};
const ExpertStyle kQwenExperts = {};
const ExpertStyle kQwen2Experts = {.shared = "shared_expert_intermediate_size",
                                   .shared_gate = true};

TensorNames mixtral_names() {
  TensorNames names;
  names.router = "block_sparse_moe.gate";
  names.experts = "block_sparse_moe.experts.";
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  return names;
}

/// Of the text half in a folder that has the part for pictures, too.
TensorNames mistral_text_names() {
  TensorNames names;
  names.roots = {"language_model.model.", "model.language_model."};
  for (const char* outer : {"", "model."}) {
    names.other_parts.push_back(std::string(outer) + "vision_tower.");
    names.other_parts.push_back(std::string(outer) + "multi_modal_projector.");
  }
  return names;
}

}  // namespace

std::vector<Family> llama_families() {
  const std::string kv = "num_key_value_heads";
  return {
      {.architecture = "LlamaForCausalLM",
       .model_type = "llama",
       .reads = {"mlp_bias"},
       .bias_key = "attention_bias"},
      {.architecture = "MistralForCausalLM",
       .model_type = "mistral",
       .must_say = {kv, "sliding_window"},
       .bias_key = "attention_bias",
       .windows = Windows::all},
      {.architecture = "MinistralForCausalLM",
       .model_type = "ministral",
       .must_say = {kv, "sliding_window"},
       .windows = Windows::listed},
      {.architecture = "Mistral3ForConditionalGeneration",
       .model_type = "mistral3",
       .text_of = "mistral",
       .names = mistral_text_names()},
      {.architecture = "MixtralForCausalLM",
       .model_type = "mixtral",
       .must_say = {kv, "rms_norm_eps", "num_experts_per_tok"},
       .windows = Windows::all,
       .theta = 1e6,
       .experts = &kMixtralExperts,
       .names = mixtral_names()},
      {.architecture = "Qwen2ForCausalLM",
       .model_type = "qwen2",
       .must_say = {kv},
       .qkv_bias = true,
       .windows = Windows::switched},
      {.architecture = "Qwen3ForCausalLM",
       .model_type = "qwen3",
       .must_say = {kv, "head_dim"},
       .qk_norm = QkNorm::head,
       .windows = Windows::switched},
      {.architecture = "Qwen3MoeForCausalLM",
       .model_type = "qwen3_moe",
       .must_say = {kv, "num_experts_per_tok"},
       .qk_norm = QkNorm::head,
       .windows = Windows::switched,
       .experts = &kQwenExperts},
      {.architecture = "Qwen2MoeForCausalLM",
       .model_type = "qwen2_moe",
       .must_say = {kv, "num_experts_per_tok", "shared_expert_intermediate_size"},
       .reads = {"qkv_bias"},
       .windows = Windows::switched,
       .experts = &kQwen2Experts},
      {.architecture = "GraniteForCausalLM",
       .model_type = "granite",
       .reads = {"mlp_bias", "embedding_multiplier", "attention_multiplier", "residual_multiplier",
                 "logits_scaling"},
       .bias_key = "attention_bias"},
      {.architecture = "SmolLM3ForCausalLM",
       .model_type = "smollm3",
       .must_say = {kv},
       .reads = {"mlp_bias", "no_rope_layers"},
       .bias_key = "attention_bias",
       .windows = Windows::switched,
       .rope_places = RopePlaces::listed,
       .theta = 2e6,
       .tied = true},
  };
}

}  // namespace baton
