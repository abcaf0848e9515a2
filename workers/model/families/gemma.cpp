// Gemma 2 and 3: norms around both parts with weights from 1, gates of GELU, an embedding scaled
// by the root of its width.
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

/// Of the text half in a folder that has the part for pictures, too.
TensorNames gemma_text_names() {
  TensorNames names = gemma_names();
  names.roots = {"language_model.model.", "model.language_model."};
  for (const char* outer : {"", "model."}) {
    names.other_parts.push_back(std::string(outer) + "vision_tower.");
    names.other_parts.push_back(std::string(outer) + "multi_modal_projector.");
  }
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
  gemma3.reads.push_back("rope_local_base_freq");
  gemma3.qk_norm = QkNorm::head;
  gemma3.window_pattern = 6;
  gemma3.theta = 1e6;
  gemma3.local_theta = 1e4;
  // The folders of Gemma 3 leave out much of their text_config.
  gemma3.defaults = R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                        "vocab_size": 262208, "max_position_embeddings": 131072,
                        "query_pre_attn_scalar": 256, "sliding_window": 4096})";
  Family pictures = {.architecture = "Gemma3ForConditionalGeneration",
                     .model_type = "gemma3",
                     .text_of = "gemma3_text",
                     .names = gemma_text_names()};
  return {gemma2, gemma3, pictures};
}

}  // namespace baton
