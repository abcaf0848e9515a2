// GLM 4: half of each head turns; the dense ones in pairs of neighbours, with norms around both
// parts (also 4.1V's text half), the one of experts (4.5) with a router of sigmoids and an expert
// that every token takes, as Solar Open and, with Qwen3's attention, dots.llm1.
#include "workers/model/families/family.h"

namespace baton {
namespace {

const ExpertStyle kGlmExperts = v3_experts();

ExpertStyle solar_experts() {
  ExpertStyle style = kGlmExperts;
  style.leading_dense = false;
  return style;
}
const ExpertStyle kSolarExperts = solar_experts();

ExpertStyle dots_experts() {
  ExpertStyle style = kGlmExperts;
  style.normalise = false;
  style.other_scores = "noaux_tc";
  return style;
}
const ExpertStyle kDotsExperts = dots_experts();

TensorNames fused_names() {
  TensorNames names;
  names.gate_up = "mlp.gate_up_proj";
  return names;
}

TensorNames around_names() {
  TensorNames names = fused_names();
  names.attention_after = "post_self_attn_layernorm";
  names.mlp_after = "post_mlp_layernorm";
  return names;
}

TensorNames expert_names() {
  TensorNames names;
  names.shared = "mlp.shared_experts.";
  return names;
}

Family glm(const std::string& architecture, const std::string& type) {
  return {.architecture = architecture,
          .model_type = type,
          .must_say = {"num_key_value_heads", "head_dim"},
          .reads = {"partial_rotary_factor"},
          .norm = {.eps = 1.5625e-7},
          .bias_key = "attention_bias",
          .bias_default = true,
          .bias_of_o = false,
          .interleaved = true,
          .partial = 0.5,
          .names = fused_names()};
}

}  // namespace

std::vector<Family> glm_families() {
  Family glm4 = glm("Glm4ForCausalLM", "glm4");
  glm4.norm_place = NormPlace::both;
  glm4.names = around_names();
  Family text_of_4v = glm4;  // GLM 4.1V
  text_of_4v.architecture = {};
  text_of_4v.model_type = "glm4v_text";
  text_of_4v.must_say = {"num_key_value_heads"};
  text_of_4v.norm.eps = 1e-5;
  text_of_4v.partial = 1;
  return {
      glm("GlmForCausalLM", "glm"),
      glm4,
      text_of_4v,
      {.architecture = "Glm4MoeForCausalLM",
       .model_type = "glm4_moe",
       .other_types = {"glm4v_moe_text"},
       .must_say = {"num_key_value_heads", "num_experts_per_tok", "first_k_dense_replace"},
       .reads = {"partial_rotary_factor", "use_qk_norm"},
       .norm = {.eps = 1e-5},
       .qk_norm = QkNorm::head,
       .bias_key = "attention_bias",
       .bias_of_o = false,
       .partial = 0.5,
       .experts = &kGlmExperts,
       .names = expert_names()},
      {.architecture = "Dots1ForCausalLM",
       .model_type = "dots1",
       .must_say = {"num_key_value_heads", "num_experts_per_tok"},
       .defaults = R"({"first_k_dense_replace": 0, "sliding_window": 4096,
                       "max_window_layers": 62})",
       .qk_norm = QkNorm::head,
       .bias_key = "attention_bias",
       .windows = Windows::behind,
       .experts = &kDotsExperts,
       .names = expert_names()},
      {.architecture = "SolarOpenForCausalLM",
       .model_type = "solar_open",
       .must_say = {"num_key_value_heads", "num_experts_per_tok"},
       .reads = {"partial_rotary_factor"},
       .norm = {.eps = 1e-5},
       .bias_key = "attention_bias",
       .bias_of_o = false,
       .theta = 1e6,
       .experts = &kSolarExperts,
       .names = expert_names()},
  };
}

}  // namespace baton
