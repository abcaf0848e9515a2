#include <utility>

#include "workers/model/families/family.h"

namespace baton {

ExpertStyle v3_experts() {
  return {.count = {"n_routed_experts", "num_local_experts"},
          .normalise = true,
          .router = RouterKind::sigmoid,
          .choice_bias = true,
          .groups = true,
          .scale = "routed_scaling_factor",
          .sparse_step = false,
          .leading_dense = true,
          .shared_count = "n_shared_experts"};
}

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = [] {
    std::vector<Family> all;
    for (const auto table :
         {deepseek_families, llama_families, olmo_families, phi_families, glm_families,
          gemma_families, gpt_oss_families, granite_families, picture_families}) {
      for (Family& family : table()) all.push_back(std::move(family));
    }
    return all;
  }();
  return kFamilies;
}

const std::vector<MathematicsKey>& mathematics_keys() {
  static const std::vector<MathematicsKey> kKeys = {
      {"attention_bias", "false"},
      {"mlp_bias", "false"},
      {"qkv_bias", "false"},
      {"use_bias", "false"},
      {"use_qk_norm", "false"},
      {"use_sliding_window", "false"},
      {"use_mrope", "false"},
      {"use_bidirectional_attention", "false"},
      {"attn_logit_softcapping", "null"},
      {"final_logit_softcapping", "null"},
      {"attention_multiplier", "null"},
      {"embedding_multiplier", "null"},
      {"residual_multiplier", "null"},
      {"logits_scaling", "null"},
      {"logit_scale", "null"},
      {"query_pre_attn_scalar", "null"},
      {"partial_rotary_factor", "1"},
      {"no_rope_layers", "null"},
      {"rope_local_base_freq", "null"},
      {"kv_lora_rank", "null"},
      {"q_lora_rank", "null"},
      {"moe_layer_freq", "1"},
      {"index_topk", "null"},
      {"attention_out_bias", "false"},
      {"clip_qkv", "null"},
      {"rotary_dim", "null"},
      {"is_causal", "true"},
      {"rope_interleave", "null"},
  };
  return kKeys;
}

}  // namespace baton
