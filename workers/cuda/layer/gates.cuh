// What a feed-forward part does between its products, of one element.
#pragma once

#include "workers/cuda/layer/general.h"

namespace baton::cuda {

__device__ __forceinline__ float gate_of(const Activate& how, float g, float up) {
  switch (how.gate) {
    case Gate::silu:
      g = g / (1.0F + __expf(-g));
      break;
    case Gate::gelu:
      g = 0.5F * g * (1.0F + erff(g * 0.70710678118654752F));
      break;
    case Gate::gelu_tanh: {  // 1 + tanh(u) = 2 / (1 + exp(-2u))
      const float u = 0.79788456080286536F * fmaf(0.044715F, g * g * g, g);
      g = g / (1.0F + __expf(-2.0F * u));
      break;
    }
    case Gate::clamped:
      g = fminf(g, how.limit);
      g = g / (1.0F + __expf(-how.alpha * g));
      up = fminf(fmaxf(up, -how.limit), how.limit) + 1.0F;
      break;
  }
  return how.gated ? g * up : g;
}

}  // namespace baton::cuda
