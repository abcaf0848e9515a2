// Phi 3 and 4 (fused tensors, longrope), StarCoder 2 (layer norms, biases, no gate) and Cohere's
// Command R, R7B and A (parallel parts, layer norms).
#include "workers/model/families/family.h"

namespace baton {
namespace {

TensorNames phi_names() {
  TensorNames names;
  names.qkv = "self_attn.qkv_proj";
  names.gate_up = "mlp.gate_up_proj";
  return names;
}

TensorNames starcoder_names() {
  TensorNames names;
  names.up = "mlp.c_fc";
  names.down = "mlp.c_proj";
  return names;
}

Family cohere(const std::string& architecture, const std::string& type) {
  return {.architecture = architecture,
          .model_type = type,
          .defaults = R"({"logit_scale": 0.0625})",
          .reads = {"logit_scale"},
          .norm = {.kind = NormKind::layer, .eps = 1e-5},
          .eps_key = "layer_norm_eps",
          .parallel = true,
          .bias_key = "attention_bias",
          .interleaved = true,
          .tied = true};
}

}  // namespace

std::vector<Family> phi_families() {
  Family cohere1 = cohere("CohereForCausalLM", "cohere");
  cohere1.theta = 5e5;
  Family cohere2 = cohere("Cohere2ForCausalLM", "cohere2");
  cohere2.must_say = {"sliding_window"};
  cohere2.windows = Windows::listed;
  cohere2.window_pattern = 4;
  cohere2.pattern_key = true;
  cohere2.rope_places = RopePlaces::windowed_only;
  return {
      {.architecture = "Phi3ForCausalLM",
       .model_type = "phi3",
       .must_say = {"sliding_window"},
       .defaults = R"({"original_max_position_embeddings": 4096})",
       .reads = {"partial_rotary_factor", "long_factor"},
       .norm = {.eps = 1e-5},
       .windows = Windows::all,
       .names = phi_names()},
      {.architecture = "Starcoder2ForCausalLM",
       .model_type = "starcoder2",
       .must_say = {"num_key_value_heads", "sliding_window"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5, .bias = true},
       .eps_key = "norm_epsilon",
       .bias_key = "use_bias",
       .bias_default = true,
       .bias_of_mlp = true,
       .windows = Windows::all,
       .activation = Activation::gelu_tanh,
       .activations = {Activation::gelu_tanh, Activation::gelu},
       .gated = false,
       .tied = true,
       .names = starcoder_names()},
      cohere1,
      cohere2,
  };
}

}  // namespace baton
