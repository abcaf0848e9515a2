#include "workers/model/gpu_limits.h"

#include <cmath>
#include <string>

#include "workers/model/error.h"

namespace baton {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw ModelError(what + " not served on device cuda yet");
}

void check_attention(const ModelConfig& c, const AttentionSpec& a) {
  if (a.qk_norm == QkNorm::whole) refuse("norms over all of q and k are");
  if (a.o_bias) refuse("a bias on the attention's output is");
  if (a.sinks) refuse("attention sinks are");
  if (a.soft_cap > 0) refuse("capped attention scores are");
  if (a.rope != 0) refuse("layers whose angles differ or are missing are");
  if (a.scale != 1.0 / std::sqrt(static_cast<double>(c.head_dim))) {
    refuse("attention scales other than 1 / sqrt(head_dim) are");
  }
}

void check_experts(const ExpertSpec& e) {
  if (e.count == 0) return;
  if (!e.expert.plain()) refuse("experts with biases or gates other than SiLU are");
  if (e.shared.intermediate > 0) refuse("experts that every token takes are");
  const bool plain_router = e.router == RouterKind::softmax && !e.router_bias && !e.choice_bias &&
                            e.groups == 1 && e.scale == 1.0;
  if (!plain_router) refuse("routers other than a softmax are");
}

void check_layer(const ModelConfig& c, const LayerSpec& layer) {
  if (layer.norm != NormPlace::before) refuse("norms of what a layer's parts give are");
  if (layer.parallel) refuse("layers whose parts are parallel are");
  if (layer.residual != 1.0) refuse("residual multipliers are");
  if (!layer.sparse() && !layer.mlp.plain()) {
    refuse("feed-forward parts with biases or gates other than SiLU are");
  }
  check_attention(c, layer.attention);
  check_experts(layer.experts);
}

/// What no kernel there computes, by name.
void check_parts(const ModelConfig& c) {
  if (c.norm.kind != NormKind::rms || c.norm.offset) {
    refuse("norms other than RMS, or with weights from 1, are");
  }
  if (c.latent.rank > 0) refuse("latent keys and values are");
  if (!c.one_window()) refuse("windows that differ between layers are");
  for (const LayerSpec& layer : c.parts) {
    check_layer(c, layer);
    if (layer.attention.qkv_bias != c.layer(0).attention.qkv_bias ||
        layer.attention.qk_norm != c.layer(0).attention.qk_norm) {
      refuse("layers whose biases or norms differ are");
    }
  }
  const RopeConfig& rope = c.ropes.front();
  if (rope.interleaved) refuse("angles of neighbouring components are");
  if (rope.dims != c.head_dim) refuse("partial rotary embeddings are");
  if (c.embedding_scale != 1.0 || c.logits_scale != 1.0 || c.logits_cap > 0) {
    refuse("multipliers of embeddings and logits, and capped logits, are");
  }
  if (!c.names.qkv.empty() || !c.names.gate_up.empty()) {
    refuse("checkpoints that store q, k and v, or gate and up, as one tensor are");
  }
  const TensorNames plain;
  if (c.names.roots != plain.roots || c.names.attention_norm != plain.attention_norm) {
    refuse("checkpoints whose tensors are not named like Llama's are");
  }
}

}  // namespace

void check_gpu_limits(const ModelConfig& config) {
  if (config.gguf) refuse("GGUF files are");
  check_parts(config);
  if (config.experts().count > 0 && config.experts().expert.intermediate % 16 != 0) {
    throw ModelError("the intermediate size of an expert must be a multiple of 16 on device cuda");
  }
  if (config.hidden % 16 != 0 || config.intermediate() % 16 != 0 ||
      (config.heads * config.head_dim) % 16 != 0) {
    throw ModelError(
        "hidden_size, intermediate_size and heads * head_dim must be multiples of 16 on device "
        "cuda");
  }
}

}  // namespace baton
