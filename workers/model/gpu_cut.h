// How a model is cut over the ranks of a worker on GPUs: attention by heads, feed-forward parts and
// experts by their features, the vocabulary by tokens. What follows attention and what follows the
// features is cut by its inputs, so that a layer needs two sums over the ranks and nothing else
// (Shoeybi et al., Megatron-LM, arXiv:1909.08053). Pure.
//
// In deterministic mode everything is cut by outputs, as on CPUs (cut.h): four gathers a layer, and
// the bits of one GPU.
#pragma once

#include "workers/model/config.h"
#include "workers/model/cut.h"

namespace baton {

struct GpuCut : ModelCut {
  bool by_outputs = false;
  bool operator==(const GpuCut&) const = default;
};

/// A rank's of `total` features of a feed-forward part or of an expert, as evenly as they can be:
/// in models whose experts are in MXFP4 in blocks of 32, which share a scale.
Slice features_of(const ModelConfig& whole, const ModelCut& cut, int total);

/// What one rank computes, as a model of its own: its heads and features. Hidden size, vocabulary
/// and whatever is not cut stay as they are.
ModelConfig config_of_rank(const ModelConfig& whole, const ModelCut& cut);

/// So many ranks, one behind the other, have the same KV heads.
int kv_repeats(const ModelConfig& whole, const ModelCut& cut);

/// Throws ModelError that names the setting if this model cannot be served by so many GPUs, and the
/// numbers of them by which it can.
void check_gpu_ranks(const ModelConfig& whole, const GpuCut& cut);

}  // namespace baton
