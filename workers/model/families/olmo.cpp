// Families that norm what a layer's parts give, and q and k: OLMo 2 and 3, EXAONE 4. OLMoE and
// K-EXAONE norm q and k alone, and what goes into the parts.
#include "workers/model/families/family.h"

namespace baton {
namespace {

TensorNames names_of_norms_after() {
  TensorNames names;
  names.attention_after = "post_attention_layernorm";
  names.mlp_after = "post_feedforward_layernorm";
  return names;
}

ExpertStyle exaone_experts() {
  ExpertStyle style = v3_experts();
  style.count = {"num_experts"};
  style.shared_count = "num_shared_experts";
  return style;
}
const ExpertStyle kExaoneExperts = exaone_experts();

TensorNames exaone_moe_names() {
  TensorNames names;
  names.choice_bias = "mlp.e_score_correction_bias";
  names.shared = "mlp.shared_experts.";
  names.other_parts = {"mtp."};  // layers that guess ahead
  return names;
}

const ExpertStyle kOlmoeExperts = {.intermediate = "intermediate_size", .sparse_step = false};

}  // namespace

std::vector<Family> olmo_families() {
  return {
      {.architecture = "OlmoeForCausalLM",
       .model_type = "olmoe",
       .must_say = {"num_key_value_heads", "num_experts", "num_experts_per_tok"},
       .norm = {.eps = 1e-5},
       .qk_norm = QkNorm::whole,
       .bias_key = "attention_bias",
       .experts = &kOlmoeExperts},
      {.architecture = "Olmo2ForCausalLM",
       .model_type = "olmo2",
       .norm = {.eps = 1e-5},
       .norm_place = NormPlace::after,
       .qk_norm = QkNorm::whole,
       .bias_key = "attention_bias",
       .names = names_of_norms_after()},
      {.architecture = "Olmo3ForCausalLM",
       .model_type = "olmo3",
       .must_say = {"sliding_window"},
       .norm = {.eps = 1e-5},
       .norm_place = NormPlace::after,
       .qk_norm = QkNorm::whole,
       .bias_key = "attention_bias",
       .windows = Windows::listed,
       .window_pattern = 4,
       .theta = 5e5,
       .local_theta = -1,
       .names = names_of_norms_after()},
      {.architecture = "Exaone4ForCausalLM",
       .model_type = "exaone4",
       .must_say = {"num_key_value_heads", "sliding_window"},
       .norm = {.eps = 1e-5},
       .norm_place = NormPlace::after,
       .qk_norm = QkNorm::head,
       .windows = Windows::listed,
       .window_pattern = 4,
       .pattern_key = true,
       .rope_places = RopePlaces::windowed,
       .names = names_of_norms_after()},
      {.architecture = "ExaoneMoEForCausalLM",
       .other_architecture = "ExaoneMoeForCausalLM",
       .model_type = "exaone_moe",
       .must_say = {"num_key_value_heads", "sliding_window", "num_experts_per_tok"},
       .defaults = R"({"first_k_dense_replace": 1, "routed_scaling_factor": 2.5})",
       .norm = {.eps = 1e-5},
       .qk_norm = QkNorm::head,
       .windows = Windows::listed,
       .window_pattern = 4,
       .pattern_key = true,
       .rope_places = RopePlaces::windowed,
       .experts = &kExaoneExperts,
       .names = exaone_moe_names()},
  };
}

}  // namespace baton
