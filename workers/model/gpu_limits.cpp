#include "workers/model/gpu_limits.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "workers/model/error.h"

namespace baton {

namespace {

/// Kernels place a row's experts in shared memory, and a router's groups.
constexpr int kMostGroups = 64;
constexpr int kMostExperts = 1024;
constexpr int kMostActive = 64;
/// As workers/cuda/attention/latent.h has them.
constexpr int kMostLatentRank = 512;
constexpr int kMostLatentRope = 128;
/// Of norm_rows() (workers/cuda/layer/general.h).
constexpr int kMostNormed = 16384;

[[noreturn]] void refuse(const std::string& what) {
  throw ModelError(what + " not served on device cuda yet");
}

bool fused_attention(const ModelConfig& c, const AttentionSpec& a) {
  const AttentionSpec& first = c.layer(0).attention;
  return a.qk_norm != QkNorm::whole && !a.o_bias && !a.sinks && a.soft_cap == 0 && a.rope == 0 &&
         c.ropes.front().query_growth == 0 &&
         a.scale == 1.0 / std::sqrt(static_cast<double>(c.head_dim)) && a.window == first.window &&
         a.qkv_bias == first.qkv_bias && a.qk_norm == first.qk_norm;
}

bool fused_experts(const ExpertSpec& e) {
  return e.expert.plain() && e.shared.intermediate == 0 && e.router == RouterKind::softmax &&
         !e.router_bias && !e.choice_bias && e.groups == 1 && e.scale == 1.0;
}

bool fused_layer(const ModelConfig& c, const LayerSpec& layer) {
  return layer.norm == NormPlace::before && !layer.parallel && layer.residual == 1.0 &&
         (layer.sparse() ? fused_experts(layer.experts) : layer.mlp.plain()) &&
         fused_attention(c, layer.attention);
}

void check_mlp(const MlpSpec& m, const char* what) {
  if (m.intermediate % 16 != 0) {
    throw ModelError(std::string("the intermediate size of ") + what +
                     " must be a multiple of 16 on device cuda");
  }
}

void check_experts(const ExpertSpec& e) {
  check_mlp(e.expert, "an expert");
  check_mlp(e.shared, "the expert that every token takes");
  if (!e.expert.gated) refuse("experts without a gate are");
  if (e.count > kMostExperts || e.active > kMostActive) {
    refuse("more than " + std::to_string(kMostExperts) + " experts, or " +
           std::to_string(kMostActive) + " of a token, are");
  }
  if (e.groups > kMostGroups) {
    refuse("more than " + std::to_string(kMostGroups) + " groups of experts are");
  }
}

void check_latent(const ModelConfig& c) {
  const LatentSpec& l = c.latent;
  if (l.rank % 8 != 0 || l.rope % 8 != 0 || l.plain % 8 != 0 || l.value % 8 != 0) {
    refuse("latent keys and values whose sizes are no multiples of 8 are");
  }
  if (l.q_rank % 16 != 0 || l.q_rank > kMostNormed || c.attended_columns() % 16 != 0) {
    refuse(
        "latent queries (q_lora_rank) or all heads' values of no multiple of 16 numbers, or more "
        "than " +
        std::to_string(kMostNormed) + " of the first, are");
  }
  if (l.rank > kMostLatentRank || l.rope > kMostLatentRope) {
    refuse("latent keys and values of more than " + std::to_string(kMostLatentRank) + " and " +
           std::to_string(kMostLatentRope) + " numbers are");
  }
}

/// What no kernel there computes, by name. A model of latent keys has heads of other sizes, which
/// check_latent() knows.
void check_heads(const ModelConfig& c) {
  if (c.head_dim % 8 != 0 || c.head_dim > 256) {
    refuse("heads whose head_dim is no multiple of 8 up to 256 are");
  }
}

}  // namespace

bool has_fused_layers(const ModelConfig& c) {
  const RopeConfig& rope = c.ropes.front();
  return c.latent.rank == 0 && c.norm.kind == NormKind::rms && !c.norm.offset &&
         !rope.interleaved && rope.dims == c.head_dim && c.embedding_scale == 1.0 &&
         c.logits_scale == 1.0 && c.logits_cap == 0 &&
         std::all_of(c.parts.begin(), c.parts.end(),
                     [&c](const LayerSpec& layer) { return fused_layer(c, layer); });
}

std::set<int> windows_of(const ModelConfig& c) {
  std::set<int> windows;
  for (const LayerSpec& layer : c.parts) windows.insert(layer.attention.window);
  return windows;
}

void check_gpu_limits(const ModelConfig& c) {
  if (c.latent.rank > 0) check_latent(c);
  check_heads(c);
  if (c.experts().count > 0) check_experts(c.experts());
  if (c.hidden % 16 != 0 || c.intermediate() % 16 != 0 || (c.heads * c.head_dim) % 16 != 0) {
    throw ModelError(
        "hidden_size, intermediate_size and heads * head_dim must be multiples of 16 on device "
        "cuda");
  }
}

}  // namespace baton
