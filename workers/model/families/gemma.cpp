// Gemma: weights of norms count from 1, gates of GELU, an embedding scaled by the root of its
// width; 2 and 3 have norms around both parts, the first and VaultGemma in front of them.
#include "workers/model/families/family.h"

namespace baton {
namespace {

TensorNames gemma_names() {
  TensorNames names;
  names.attention_after = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_after = "post_feedforward_layernorm";
  return names;
}

Family gemma(const std::string& architecture, const std::string& type) {
  return {.architecture = architecture,
          .model_type = type,
          .reads = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"},
          .norm = {.offset = true},
          .norm_place = NormPlace::both,
          .bias_key = "attention_bias",
          .windows = Windows::listed,
          .act_key = "hidden_activation",
          .activation = Activation::gelu_tanh,
          .activations = {Activation::gelu_tanh},
          .embedding_times_root = true,
          .tied = true,
          .names = gemma_names()};
}

}  // namespace

std::vector<Family> gemma_families() {
  Family gemma2 = gemma("Gemma2ForCausalLM", "gemma2");
  gemma2.window_pattern = 2;
  gemma2.defaults = R"({"num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
                        "sliding_window": 4096, "attn_logit_softcapping": 50.0,
                        "final_logit_softcapping": 30.0})";
  Family gemma3 = gemma("Gemma3ForCausalLM", "gemma3_text");
  gemma3.reads = {"query_pre_attn_scalar", "final_logit_softcapping", "rope_local_base_freq"};
  gemma3.qk_norm = QkNorm::head;
  gemma3.window_pattern = 6;
  gemma3.pattern_key = true;
  gemma3.theta = 1e6;
  gemma3.local_theta = 1e4;
  // The folders of Gemma 3 leave out much of their text_config.
  gemma3.defaults = R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                        "vocab_size": 262208, "max_position_embeddings": 131072,
                        "query_pre_attn_scalar": 256, "sliding_window": 4096})";
  const Family gemma1 = {.architecture = "GemmaForCausalLM",
                         .model_type = "gemma",
                         .must_say = {"num_key_value_heads", "head_dim"},
                         .norm = {.offset = true},
                         .bias_key = "attention_bias",
                         .activation = Activation::gelu_tanh,
                         .activations = {Activation::gelu_tanh},
                         .gelu_is_tanh = true,
                         .embedding_times_root = true,
                         .tied = true};
  Family vault = gemma2;
  vault.architecture = "VaultGemmaForCausalLM";
  vault.model_type = "vaultgemma";
  vault.norm_place = NormPlace::before;
  vault.names = {};
  vault.names.mlp_norm = "pre_feedforward_layernorm";
  return {gemma1, gemma2, gemma3, vault};
}

}  // namespace baton
