#include "workers/model/gpu_cut.h"

#include <string>

#include "ipc/max_ranks.h"
#include "workers/cuda/layer/expert_layout.h"
#include "workers/model/error.h"

namespace baton {

namespace {

/// The kernels' tiles.
constexpr int kFeatures = 16;

/// Numbers of a model that ranks share in tiles.
struct Shared {
  int features = 0;
  const char* what = nullptr;  // has them
  int tile = kFeatures;
};

bool in_blocks(const ModelConfig& whole, int total) {
  return whole.quantization.mxfp4 && total % cuda::kMxfp4Inputs == 0;
}

/// The first that so many ranks cannot share; no `what`: there is none.
Shared unshared(const ModelConfig& whole, const GpuCut& cut) {
  const auto uneven = [&cut](int n) { return n % (kFeatures * cut.ranks) != 0; };
  const auto of_part = [&](int features, const char* what) -> Shared {
    const bool blocks = in_blocks(whole, features);
    const bool too_few = features > 0 && features / cuda::kMxfp4Inputs < cut.ranks;
    if (blocks ? !too_few : !uneven(features)) return {};
    return {features, what, blocks ? cuda::kMxfp4Inputs : kFeatures};
  };
  if (uneven(whole.heads * whole.head_dim)) return {whole.heads * whole.head_dim, "all heads"};
  if (uneven(whole.attended_columns())) return {whole.attended_columns(), "all heads' values"};
  if (cut.by_outputs && uneven(whole.hidden)) return {whole.hidden, "hidden_size"};
  for (const LayerSpec& layer : whole.parts) {
    const int dense = layer.sparse() ? 0 : layer.mlp.intermediate;
    if (const Shared part = of_part(dense, "a layer"); part.what != nullptr) return part;
  }
  const ExpertSpec& experts = whole.experts();
  const Shared part = of_part(experts.expert.intermediate, "an expert");
  if (part.what != nullptr) return part;
  return of_part(experts.shared.intermediate, "the expert that every token takes");
}

bool shareable(const ModelConfig& whole, const GpuCut& cut) {
  return can_cut(whole, cut.ranks).ok() && unshared(whole, cut).what == nullptr;
}

}  // namespace

Slice features_of(const ModelConfig& whole, const ModelCut& cut, int total) {
  if (!in_blocks(whole, total)) return cut.part(total);
  const Slice blocks = cut.part(total / cuda::kMxfp4Inputs);
  return {blocks.first * cuda::kMxfp4Inputs, blocks.count * cuda::kMxfp4Inputs};
}

ModelConfig config_of_rank(const ModelConfig& whole, const ModelCut& cut) {
  ModelConfig c = whole;
  c.heads = static_cast<int>(cut.heads(whole).count);
  c.kv_heads = static_cast<int>(cut.kv_heads(whole).count);
  for (LayerSpec& layer : c.parts) {
    for (MlpSpec* part : {&layer.mlp, &layer.experts.expert, &layer.experts.shared}) {
      part->intermediate = static_cast<int>(features_of(whole, cut, part->intermediate).count);
    }
  }
  return c;
}

int kv_repeats(const ModelConfig& whole, const ModelCut& cut) {
  return cut.repeats_kv(whole) ? cut.ranks / whole.pool_heads() : 1;
}

void check_gpu_ranks(const ModelConfig& whole, const GpuCut& cut) {
  const int ranks = cut.ranks;
  if (cut.whole()) return;
  if (const Status status = can_cut(whole, ranks); !status.ok()) throw ModelError(status.message());
  if (cut.by_outputs && whole.experts().count > 0) {
    throw ModelError(
        "worker.ranks: experts in deterministic steps are not served by several GPUs yet");
  }
  const Shared uneven = unshared(whole, cut);
  if (uneven.what == nullptr) return;
  std::string possible;
  for (int n = 1; n <= kMaxRanks; ++n) {
    const GpuCut other{{0, n}, cut.by_outputs};
    if (shareable(whole, other)) possible += (possible.empty() ? "" : ", ") + std::to_string(n);
  }
  throw ModelError("worker.ranks: " + std::to_string(ranks) + " GPUs cannot share the " +
                   std::to_string(uneven.features) + " features of " + uneven.what +
                   " in multiples of " + std::to_string(uneven.tile) + "; " +
                   (possible.empty() ? "no number can" : "it can have " + possible));
}

}  // namespace baton
