// Granite and what has its multipliers: Llama with factors for embedding, scores, what a layer adds
// and logits; also with experts in one tensor for all, and HyperCLOVA X.
#include "workers/model/families/family.h"

namespace baton {
namespace {

const ExpertStyle kGraniteExperts = {.count = {"num_local_experts"},
                                     .intermediate = "intermediate_size",
                                     .normalise = true,
                                     .always_normalises = true,
                                     .sparse_step = false};

ExpertStyle granite_shared_experts() {
  ExpertStyle style = kGraniteExperts;
  style.shared = "shared_intermediate_size";
  style.may_lack_shared = true;
  return style;
}
const ExpertStyle kGraniteSharedExperts = granite_shared_experts();

TensorNames granite_names() {
  TensorNames names;
  names.router = "block_sparse_moe.router.layer";
  names.expert_storage = ExpertStorage::stacked;
  names.experts = "block_sparse_moe.";
  names.stacked_up = "input_linear.weight";
  names.stacked_down = "output_linear.weight";
  names.shared = "shared_mlp.";
  names.shared_gate_up = "input_linear";
  names.shared_down = "output_linear";
  return names;
}

TensorNames granite_dense_names() {
  TensorNames names;
  names.gate_up = "shared_mlp.input_linear";
  names.down = "shared_mlp.output_linear";
  return names;
}

Family granite(const std::string& architecture, const std::string& type) {
  return {.architecture = architecture,
          .model_type = type,
          .defaults = R"({"attention_multiplier": 1.0})",
          .reads = {"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                    "logits_scaling"},
          .bias_key = "attention_bias"};
}

}  // namespace

std::vector<Family> granite_families() {
  Family dense = granite("GraniteForCausalLM", "granite");
  dense.reads.emplace_back("mlp_bias");
  Family experts = granite("GraniteMoeForCausalLM", "granitemoe");
  experts.must_say = {"num_local_experts", "num_experts_per_tok"};
  experts.experts = &kGraniteExperts;
  experts.names = granite_names();
  Family shared = experts;
  shared.architecture = "GraniteMoeSharedForCausalLM";
  shared.model_type = "granitemoeshared";
  shared.experts = &kGraniteSharedExperts;
  // Granite 4 without recurrent layers and experts.
  Family hybrid = granite("GraniteMoeHybridForCausalLM", "granitemoehybrid");
  hybrid.must_say = {"layer_types", "position_embedding_type", "num_local_experts",
                     "shared_intermediate_size"};
  hybrid.must_be = {{"position_embedding_type", "\"rope\""}, {"num_local_experts", "0"}};
  hybrid.mlp_key = "shared_intermediate_size";
  hybrid.names = granite_dense_names();
  // Norms around both parts, and another sense of a factor.
  Family clova = granite("HyperCLOVAXForCausalLM", "hyperclovax");
  clova.must_be = {{"use_post_norm", "true"}};
  clova.norm_place = NormPlace::both;
  clova.logits_times_scaling = true;
  clova.defaults = "{}";
  clova.scale_by_head = true;
  clova.names.attention_after = "post_norm1";
  clova.names.mlp_after = "post_norm2";
  return {dense, experts, shared, hybrid, clova};
}

}  // namespace baton
