// gpt-oss: sinks, every other layer with a window, biases everywhere, experts with clamped gates.
#include "workers/model/families/family.h"

namespace baton {
namespace {

const ExpertStyle kExperts = {.count = {"num_local_experts", "num_experts"},
                              .intermediate = "intermediate_size",
                              .normalise = true,
                              .always_normalises = true,
                              .router_bias = true,
                              .sparse_step = false,
                              .clamped = true};

TensorNames names_of_gpt_oss() {
  TensorNames names;
  names.router = "mlp.router";
  names.expert_storage = ExpertStorage::interleaved;
  return names;
}

}  // namespace

std::vector<Family> gpt_oss_families() {
  return {{.architecture = "GptOssForCausalLM",
           .model_type = "gpt_oss",
           .must_say = {"num_key_value_heads", "head_dim", "num_experts_per_tok", "sliding_window"},
           .defaults = R"({"rope_parameters": {
                             "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                             "beta_slow": 1.0, "truncate": false,
                             "original_max_position_embeddings": 4096}})",
           .norm = {.eps = 1e-5},
           .bias_key = "attention_bias",
           .bias_default = true,
           .sinks = true,
           .windows = Windows::listed,
           .window_pattern = 2,
           .theta = 1.5e5,
           .experts = &kExperts,
           .names = names_of_gpt_oss()}};
}

}  // namespace baton
