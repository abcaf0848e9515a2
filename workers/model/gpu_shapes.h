// A model's sizes as the kernels are told them.
#pragma once

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/layer/experts.h"
#include "workers/model/config.h"

namespace baton {

inline cuda::HeadShape heads_of(const ModelConfig& c) { return {c.heads, c.kv_heads, c.head_dim}; }
/// The key and value of a token in one layer.
inline std::size_t key_bytes(const ModelConfig& c) {
  return 2 * sizeof(cuda::Bf16) * static_cast<std::size_t>(c.kv_heads) * c.head_dim;
}

inline cuda::ExpertShape experts_of(const ModelConfig& c) {
  const ExpertSpec& e = c.experts();
  return {e.count, e.active, c.hidden, e.expert.intermediate, e.normalise};
}

}  // namespace baton
