// DeepSeek V2 and V3, GLM 4.7 Flash, Mistral 4: latent keys and values, experts in groups, some
// that every token takes; Youtu has them without experts.
#include "workers/model/families/family.h"

namespace baton {
namespace {

const ExpertStyle kV3Experts = v3_experts();
// V2's own code and transformers differ in what they do where norm_topk_prob is set; no folder sets
// it.
const ExpertStyle kV2Experts = {.count = {"n_routed_experts", "num_local_experts"},
                                .may_normalise = false,
                                .groups = true,
                                .scale = "routed_scaling_factor",
                                .greedy = true,
                                .group_pairs = false,
                                .sparse_step = false,
                                .leading_dense = true,
                                .shared_count = "n_shared_experts"};
ExpertStyle mistral_experts() {
  ExpertStyle style = v3_experts();
  style.router = RouterKind::softmax;
  style.choice_bias = false;
  return style;
}
const ExpertStyle kMistralExperts = mistral_experts();

Family deepseek(const std::string& architecture, const std::string& type,
                const std::vector<std::string>& other_types, const ExpertStyle& experts) {
  TensorNames names;
  names.shared = "mlp.shared_experts.";
  return {.architecture = architecture,
          .model_type = type,
          .other_types = other_types,
          .must_say = {"num_experts_per_tok", "first_k_dense_replace", "q_lora_rank"},
          .reads = {"kv_lora_rank", "q_lora_rank", "rope_interleave"},
          .interleaved = true,
          .latent = true,
          .experts = &experts,
          .names = names};
}

}  // namespace

std::vector<Family> deepseek_families() {
  // GLM 4.7 Flash has V3's layers.
  Family glm_lite = deepseek("Glm4MoeLiteForCausalLM", "glm4_moe_lite", {}, kV3Experts);
  glm_lite.must_say = {"num_experts_per_tok", "q_lora_rank"};
  glm_lite.defaults = R"({"first_k_dense_replace": 1, "routed_scaling_factor": 1.8})";
  glm_lite.norm.eps = 1e-5;
  // Queries that grow, and V3's groups by a softmax.
  Family mistral = deepseek("Mistral4ForCausalLM", "mistral4", {}, kMistralExperts);
  mistral.must_say = {"num_experts_per_tok", "q_lora_rank"};
  mistral.names.expert_storage = ExpertStorage::stacked;
  mistral.reads.emplace_back("llama_4_scaling_beta");
  mistral.defaults = R"({"first_k_dense_replace": 0, "rope_parameters": {
                           "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
                           "original_max_position_embeddings": 8192, "beta_fast": 32.0,
                           "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                           "llama_4_scaling_beta": 0.1}})";
  mistral.text_defaults = R"({"hidden_size": 4096, "intermediate_size": 12288,
                              "moe_intermediate_size": 2048, "num_hidden_layers": 36,
                              "num_attention_heads": 32, "num_key_value_heads": 32,
                              "vocab_size": 131072, "n_shared_experts": 1,
                              "n_routed_experts": 128, "kv_lora_rank": 256, "q_lora_rank": 1024,
                              "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 64,
                              "num_experts_per_tok": 4, "max_position_embeddings": 1048576})";
  Family youtu = deepseek("YoutuForCausalLM", "youtu", {}, kV3Experts);
  youtu.must_say = {"q_lora_rank"};
  youtu.experts = nullptr;
  youtu.tied = true;
  Family v2 = deepseek("DeepseekV2ForCausalLM", "deepseek_v2", {}, kV2Experts);
  v2.reads = {"kv_lora_rank", "q_lora_rank"};
  v2.defaults = R"({"topk_method": "greedy"})";
  Family v3 = deepseek("DeepseekV3ForCausalLM", "deepseek_v3", {"kimi_k2"}, kV3Experts);
  v3.defaults = R"({"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5})";
  return {v2, v3, glm_lite, mistral, youtu};
}

}  // namespace baton
