// What a checkpoint calls the parts of a model.
#pragma once

#include <string>
#include <vector>

namespace baton {

/// How the tensors of experts are stored.
enum class ExpertStorage : std::uint8_t {
  each,         // <experts>N.<gate>.weight and so on, like dense parts
  interleaved,  // gpt-oss: <experts>gate_up_proj [count, in, 2 * out], a column of gate, one of up,
                // and so on, and down_proj [count, in, out]; or as MXFP4
  stacked,  // the same tensors, all columns of gate before those of up; or each matrix [out, in];
            // or like `each`, as some checkpoints have them
};

/// Names without ".weight" and ".bias"; those of a layer stand behind "<root>layers.N.". An empty
/// one: the family has no such tensor. The defaults are Llama's.
struct TensorNames {
  /// The first one that has an embedding is taken.
  std::vector<std::string> roots = {"model."};
  std::string head = "lm_head";  // behind the root's first part, "language_model.", if it has one
  std::string embedding = "embed_tokens";
  std::string final_norm = "norm";

  std::string attention_norm = "input_layernorm";
  std::string attention_after;  // the norm of what attention gives
  std::string mlp_norm = "post_attention_layernorm";
  std::string mlp_after;

  std::string qkv;  // one tensor for the three, one behind the other
  std::string q = "self_attn.q_proj";
  std::string k = "self_attn.k_proj";
  std::string v = "self_attn.v_proj";
  std::string o = "self_attn.o_proj";
  std::string q_norm = "self_attn.q_norm";
  std::string k_norm = "self_attn.k_norm";
  std::string sinks = "self_attn.sinks";  // without ".weight"

  // Of latent keys and values, instead of k and v; q is that of models whose queries go straight.
  std::string q_a = "self_attn.q_a_proj";
  std::string q_a_norm = "self_attn.q_a_layernorm";
  std::string q_b = "self_attn.q_b_proj";
  std::string kv_a = "self_attn.kv_a_proj_with_mqa";
  std::string kv_a_norm = "self_attn.kv_a_layernorm";
  std::string kv_b = "self_attn.kv_b_proj";

  std::string gate_up;  // one tensor for the two
  std::string gate = "mlp.gate_proj";
  std::string up = "mlp.up_proj";
  std::string down = "mlp.down_proj";

  std::string router = "mlp.gate";
  std::string choice_bias = "mlp.gate.e_score_correction_bias";  // without ".weight"
  ExpertStorage expert_storage = ExpertStorage::each;
  std::string experts = "mlp.experts.";
  std::string expert_gate = "gate_proj";
  std::string expert_up = "up_proj";
  std::string expert_down = "down_proj";
  std::string stacked_up = "gate_up_proj";  // of all experts in one tensor, its whole name
  std::string stacked_down = "down_proj";
  std::string shared = "mlp.shared_expert.";  // gate_proj and so on behind it
  std::string shared_gate_up;                 // one tensor for the two
  std::string shared_down = "down_proj";
  std::string shared_gate = "mlp.shared_expert_gate";

  /// Of what every token takes, behind `shared`.
  std::vector<std::string> shared_up_parts() const {
    if (!shared_gate_up.empty()) return {shared_gate_up};
    return {"gate_proj", "up_proj"};
  }

  /// Tensors whose names begin like this belong to parts that are not served: pictures, sound.
  std::vector<std::string> other_parts;
};

}  // namespace baton
