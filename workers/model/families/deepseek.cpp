// DeepSeek V2 and V3, and GLM 4.7 Flash: latent keys and values, experts in groups, some that every
// token takes.
#include "workers/model/families/family.h"

namespace baton {
namespace {

const ExpertStyle kV3Experts = {.count = {"n_routed_experts", "num_local_experts"},
                                .normalise = true,
                                .router = RouterKind::sigmoid,
                                .choice_bias = true,
                                .groups = true,
                                .sparse_step = false,
                                .leading_dense = true,
                                .shared_count = "n_shared_experts"};
// V2's own code and transformers differ in what they do where norm_topk_prob is set; no folder sets
// it.
const ExpertStyle kV2Experts = {.count = {"n_routed_experts", "num_local_experts"},
                                .may_normalise = false,
                                .groups = true,
                                .group_pairs = false,
                                .sparse_step = false,
                                .leading_dense = true,
                                .shared_count = "n_shared_experts"};

Family deepseek(const std::string& architecture, const std::string& type,
                const std::vector<std::string>& other_types, const ExpertStyle& experts) {
  TensorNames names;
  names.shared = "mlp.shared_experts.";
  return {.architecture = architecture,
          .model_type = type,
          .other_types = other_types,
          .must_say = {"num_experts_per_tok", "first_k_dense_replace", "q_lora_rank"},
          .reads = {"kv_lora_rank", "q_lora_rank"},
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
  glm_lite.defaults = R"({"first_k_dense_replace": 1})";
  glm_lite.norm.eps = 1e-5;
  return {deepseek("DeepseekV2ForCausalLM", "deepseek_v2", {}, kV2Experts),
          deepseek("DeepseekV3ForCausalLM", "deepseek_v3", {"kimi_k2"}, kV3Experts), glm_lite};
}

}  // namespace baton
