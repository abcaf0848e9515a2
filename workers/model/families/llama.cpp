// Llama and what differs from it in few settings: norms in front of both parts, gated SiLU.
#include "workers/model/families/family.h"

namespace baton {
namespace {

const ExpertStyle kMixtralExperts = {
    .intermediate = "intermediate_size", .normalise = true, .always_normalises = true};
const ExpertStyle kQwenExperts = {};
const ExpertStyle kQwenVlExperts = {.normalise = true, .always_normalises = true};
const ExpertStyle kMiniMaxExperts = {.intermediate = "intermediate_size",
                                     .normalise = true,
                                     .always_normalises = true,
                                     .router = RouterKind::sigmoid,
                                     .choice_bias = true};
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

TensorNames minimax_names() {
  TensorNames names = mixtral_names();
  names.choice_bias = "block_sparse_moe.e_score_correction_bias";
  return names;
}

const ExpertStyle kHyExperts = {.normalise = true,
                                .always_normalises = true,
                                .router = RouterKind::sigmoid,
                                .choice_bias = true,
                                .scale = "router_scaling_factor",
                                .sparse_step = false,
                                .leading_dense = true,
                                .leading = 1,
                                .shared_count = "num_shared_experts"};

TensorNames hy_names() {
  TensorNames names;
  names.router = "mlp.router.gate";
  names.choice_bias = "mlp.expert_bias";
  names.shared = "mlp.shared_mlp.";
  return names;
}

const ExpertStyle kMellumExperts = {
    .normalise = true, .sparse_step = false, .leading_dense = true, .leading = 0};

const ExpertStyle kErnieExperts = {.count = {"num_experts", "moe_num_experts"},
                                   .active = {"num_experts_per_tok", "moe_k"},
                                   .normalise = true,
                                   .always_normalises = true,
                                   .choice_bias = true,
                                   .sparse_step = false,
                                   .span = true,
                                   .shared_count = "moe_num_shared_experts"};

TensorNames ernie_names() {
  TensorNames names;
  names.choice_bias = "mlp.moe_statics.e_score_correction_bias";
  names.shared = "mlp.shared_experts.";
  names.other_parts = {"model.mtp_"};  // layers that guess ahead
  return names;
}

}  // namespace

std::vector<Family> llama_families() {
  const std::string kv = "num_key_value_heads";
  return {
      {.architecture = "LlamaForCausalLM",
       .model_type = "llama",
       .text_defaults = R"({"hidden_size": 4096, "intermediate_size": 11008,
                            "num_hidden_layers": 32, "num_attention_heads": 32,
                            "vocab_size": 32000, "max_position_embeddings": 2048})",
       .reads = {"mlp_bias"},
       .bias_key = "attention_bias"},
      {.architecture = "MistralForCausalLM",
       .model_type = "mistral",
       .must_say = {kv, "sliding_window"},
       .text_defaults = R"({"hidden_size": 4096, "intermediate_size": 14336,
                            "num_hidden_layers": 32, "num_attention_heads": 32,
                            "num_key_value_heads": 8, "vocab_size": 32000,
                            "max_position_embeddings": 131072, "sliding_window": 4096})",
       .bias_key = "attention_bias",
       .windows = Windows::all},
      {.architecture = "MinistralForCausalLM",
       .model_type = "ministral",
       .must_say = {kv, "sliding_window"},
       .windows = Windows::listed},
      {.architecture = "Ministral3ForCausalLM",
       .model_type = "ministral3",
       .must_say = {kv},
       .defaults = R"({"rms_norm_eps": 1e-5, "rope_parameters": {
                         "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                         "original_max_position_embeddings": 16384, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "llama_4_scaling_beta": 0.1}})",
       .text_defaults = R"({"hidden_size": 4096, "intermediate_size": 14336,
                            "num_hidden_layers": 34, "num_attention_heads": 32,
                            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
                            "max_position_embeddings": 262144})",
       .reads = {"llama_4_scaling_beta"},
       .windows = Windows::all},
      {.architecture = "MixtralForCausalLM",
       .model_type = "mixtral",
       .must_say = {kv, "rms_norm_eps", "num_experts_per_tok"},
       .windows = Windows::all,
       .theta = 1e6,
       .experts = &kMixtralExperts,
       .names = mixtral_names()},
      {.architecture = "Qwen2ForCausalLM",
       .model_type = "qwen2",
       .other_types = {"qwen2_vl_text", "qwen2_5_vl_text"},
       .must_say = {kv},
       .defaults = R"({"max_window_layers": 28, "sliding_window": 4096})",
       .text_defaults = R"({"hidden_size": 4096, "intermediate_size": 22016,
                            "num_hidden_layers": 32, "num_attention_heads": 32,
                            "num_key_value_heads": 32, "vocab_size": 151936,
                            "max_position_embeddings": 32768})",
       .reads = {"use_sliding_window"},
       .qkv_bias = true,
       .windows = Windows::behind},
      {.architecture = "Qwen3ForCausalLM",
       .model_type = "qwen3",
       .other_types = {"qwen3_vl_text"},
       .must_say = {kv, "head_dim"},
       .defaults = R"({"max_window_layers": 28, "sliding_window": 4096})",
       .reads = {"use_sliding_window"},
       .qk_norm = QkNorm::head,
       .windows = Windows::behind},
      {.architecture = "Qwen3MoeForCausalLM",
       .model_type = "qwen3_moe",
       .must_say = {kv, "num_experts_per_tok"},
       .defaults = R"({"sliding_window": 4096})",
       .reads = {"use_sliding_window"},
       .qk_norm = QkNorm::head,
       .windows = Windows::all,
       .experts = &kQwenExperts},
      {.model_type = "qwen3_vl_moe_text",
       .must_say = {kv, "num_experts_per_tok"},
       .defaults = R"({"sliding_window": 4096})",
       .reads = {"use_sliding_window"},
       .qk_norm = QkNorm::head,
       .windows = Windows::all,
       .experts = &kQwenVlExperts},
      {.architecture = "Qwen2MoeForCausalLM",
       .model_type = "qwen2_moe",
       .must_say = {kv, "num_experts_per_tok", "shared_expert_intermediate_size"},
       .reads = {"qkv_bias"},
       .windows = Windows::switched,
       .experts = &kQwen2Experts},
      {.architecture = "CwmForCausalLM",
       .model_type = "cwm",
       .must_say = {kv, "sliding_window"},
       .defaults = R"({"head_dim": 128, "rope_parameters": {
                         "rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192}})",
       .reads = {"mlp_bias"},
       .norm = {.eps = 1e-5},
       .windows = Windows::listed,
       .window_pattern = 4,
       .full_first = true,
       .theta = 1e6},
      {.architecture = "HYV3ForCausalLM",
       .model_type = "hy_v3",
       .must_say = {kv, "head_dim", "num_experts_per_tok"},
       .defaults = R"({"router_scaling_factor": 2.826})",
       .reads = {"mlp_bias"},
       .norm = {.eps = 1e-5},
       .qk_norm = QkNorm::head,
       .bias_key = "attention_bias",
       .theta = 11158840.0,
       .experts = &kHyExperts,
       .names = hy_names()},
      {.architecture = "MellumForCausalLM",
       .model_type = "mellum",
       .must_say = {kv, "num_experts_per_tok", "sliding_window"},
       .must_be = {{"rope_theta", "null"}, {"rope_scaling", "null"}},
       .defaults = R"({"head_dim": 128})",
       .qk_norm = QkNorm::head,
       .bias_key = "attention_bias",
       .windows = Windows::listed,
       .window_pattern = 1,
       .theta = 5e5,
       .local_theta = 1e4,
       .experts = &kMellumExperts},
      {.architecture = "MiniMaxM2ForCausalLM",
       .model_type = "minimax_m2",
       .must_say = {kv, "head_dim", "num_experts_per_tok"},
       .defaults = R"({"use_qk_norm": true})",
       .reads = {"partial_rotary_factor", "rotary_dim", "use_qk_norm"},
       .qk_norm = QkNorm::whole,
       .theta = 5e6,
       .next_layers = "num_mtp_modules",
       .experts = &kMiniMaxExperts,
       .names = minimax_names()},
      {.architecture = "SeedOssForCausalLM",
       .model_type = "seed_oss",
       .must_say = {kv, "head_dim"},
       .reads = {"mlp_bias"},
       .bias_key = "attention_bias",
       .bias_default = true,
       .bias_of_o = false},
      {.architecture = "Ernie4_5ForCausalLM",
       .model_type = "ernie4_5",
       .must_say = {kv, "head_dim"},
       .norm = {.eps = 1e-5},
       .bias_key = "use_bias",
       .bias_of_mlp = true,
       .interleaved = true,
       .theta = 5e5,
       .tied = true},
      {.architecture = "Ernie4_5_MoeForCausalLM",
       .model_type = "ernie4_5_moe",
       .must_say = {kv, "moe_k", "moe_num_experts", "moe_num_shared_experts",
                    "moe_layer_start_index"},
       .norm = {.eps = 1e-5},
       .interleaved = true,
       .theta = 5e5,
       .experts = &kErnieExperts,
       .tied = true,
       .names = ernie_names()},
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
