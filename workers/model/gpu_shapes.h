// A model's sizes as the kernels are told them. Inside of the decoder's sources.
#pragma once

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/layer/experts.h"
#include "workers/model/config.h"

namespace baton {

inline cuda::HeadShape heads_of(const ModelConfig& c) { return {c.heads, c.kv_heads, c.head_dim}; }

inline cuda::ExpertShape experts_of(const ModelConfig& c) {
  const ExpertSpec& e = c.experts();
  return {e.count, e.active, c.hidden, e.expert.intermediate, e.normalise};
}

}  // namespace baton
