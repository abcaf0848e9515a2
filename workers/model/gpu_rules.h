// A layer's rules as the kernels are told them.
#pragma once

#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/general.h"
#include "workers/model/gpu_weights.h"
#include "workers/model/spec.h"

namespace baton {

/// What a layer's parts give goes straight into the residual stream.
inline bool adds_at_once(const LayerSpec& spec) {
  return spec.norm == NormPlace::before && spec.residual == 1.0;
}

inline cuda::Activate activate_of(const MlpSpec& m) {
  cuda::Activate how;
  how.gated = m.gated;
  switch (m.activation) {
    case Activation::silu:
      how.gate = cuda::Gate::silu;
      break;
    case Activation::gelu:
      how.gate = cuda::Gate::gelu;
      break;
    case Activation::gelu_tanh:
      how.gate = cuda::Gate::gelu_tanh;
      break;
  }
  if (m.limit > 0) {
    how.gate = cuda::Gate::clamped;
    how.limit = static_cast<float>(m.limit);
    how.alpha = static_cast<float>(m.alpha);
  }
  return how;
}

inline cuda::NormWeights weights_of(const NormSpec& spec, const GpuNorm& norm) {
  return {norm.weight, norm.bias, static_cast<float>(spec.eps), spec.kind == NormKind::layer};
}

inline cuda::ExpertRule rule_of(const ExpertSpec& e, const GpuGeneralLayer& g) {
  cuda::ExpertRule rule;
  rule.act = activate_of(e.expert);
  rule.up_bias = g.up_bias;
  rule.down_bias = g.down_bias;
  rule.sigmoid = e.router == RouterKind::sigmoid;
  rule.router_bias = g.router_bias;
  rule.choice_bias = g.choice_bias;
  rule.groups = e.groups;
  rule.active_groups = e.active_groups;
  rule.group_pairs = e.group_pairs;
  rule.scale = static_cast<float>(e.scale);
  return rule;
}

}  // namespace baton
