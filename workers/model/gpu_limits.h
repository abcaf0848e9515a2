// What `device: cuda` computes, and how. Free of CUDA, so that every build can tell.
#pragma once

#include <set>

#include "workers/model/config.h"

namespace baton {

/// Whether all layers are of the pattern that the fused kernels compute (a layer's products in one
/// kernel, norms of bf16 weights on the way, RoPE inside attention): Llama's, with biases of q, k
/// and v, norms of their heads, one window and plain experts. What is not is computed part by part
/// (gpu_general.cpp).
bool has_fused_layers(const ModelConfig& config);

/// The windows of the layers, 0 where there is none: as many plans of attention a step.
std::set<int> windows_of(const ModelConfig& config);

/// Throws ModelError that names the setting if a GPU worker cannot serve the model. Every scaling
/// of the angles works there: its table comes from rope_frequencies(), too.
void check_gpu_limits(const ModelConfig& config);

}  // namespace baton
