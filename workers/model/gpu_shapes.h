// A model's sizes as the kernels are told them.
#pragma once

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/latent.h"
#include "workers/cuda/layer/experts.h"
#include "workers/model/config.h"

namespace baton {

inline cuda::HeadShape heads_of(const ModelConfig& c) { return {c.heads, c.kv_heads, c.head_dim}; }
/// The key and value of a token in one layer.
inline std::size_t key_bytes(const ModelConfig& c) {
  return 2 * sizeof(cuda::Bf16) * static_cast<std::size_t>(c.pool_heads()) * c.pool_dim();
}

inline cuda::LatentShape latent_of(const ModelConfig& c) {
  return {c.heads, c.latent.rank, c.latent.rope, c.latent.plain};
}
/// Of a token in one layer, while a step's chunks have their keys gathered: as it is in the pool,
/// or expanded for the fewest heads.
inline std::size_t gathered_key_bytes(const ModelConfig& c) {
  using Prefill = cuda::PrefillAttention;
  if (c.latent.rank == 0) return key_bytes(c);
  return Prefill::expanded_bytes(latent_of(c), c.latent.value, Prefill::least_heads(c.heads));
}
/// Columns of the first product of a layer with latent keys and values: queries, or what leads to
/// them, and behind these the latent vector.
inline int latent_queries(const ModelConfig& c) {
  return c.latent.q_rank > 0 ? c.latent.q_rank : c.heads * c.head_dim;
}
inline int projected_columns(const ModelConfig& c) {
  if (c.latent.rank == 0) return c.qkv_columns();
  return latent_queries(c) + c.latent.rank + c.latent.rope;
}

inline cuda::ExpertShape experts_of(const ModelConfig& c) {
  const ExpertSpec& e = c.experts();
  return {e.count, e.active, c.hidden, e.expert.intermediate, e.normalise};
}

}  // namespace baton
