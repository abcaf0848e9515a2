#include "workers/model/gpu_cut.h"

#include <string>

#include "ipc/max_ranks.h"
#include "workers/model/error.h"

namespace baton {

namespace {

/// The kernels' tiles.
constexpr int kFeatures = 16;

/// Numbers of a model that ranks share evenly, in tiles.
struct Shared {
  int features = 0;
  const char* what = nullptr;  // has them
};

/// The first that so many ranks cannot share; no `what`: there is none.
Shared unshared(const ModelConfig& whole, const GpuCut& cut) {
  const auto uneven = [&cut](int features) { return features % (kFeatures * cut.ranks) != 0; };
  if (uneven(whole.heads * whole.head_dim)) return {whole.heads * whole.head_dim, "all heads"};
  if (uneven(whole.attended_columns())) return {whole.attended_columns(), "all heads' values"};
  if (cut.by_outputs && uneven(whole.hidden)) return {whole.hidden, "hidden_size"};
  for (const LayerSpec& layer : whole.parts) {
    const int dense = layer.sparse() ? 0 : layer.mlp.intermediate;
    if (uneven(dense)) return {dense, "a layer"};
  }
  const ExpertSpec& experts = whole.experts();
  if (uneven(experts.expert.intermediate)) return {experts.expert.intermediate, "an expert"};
  if (uneven(experts.shared.intermediate)) {
    return {experts.shared.intermediate, "the expert that every token takes"};
  }
  return {};
}

bool shareable(const ModelConfig& whole, const GpuCut& cut) {
  return can_cut(whole, cut.ranks).ok() && unshared(whole, cut).what == nullptr;
}

}  // namespace

ModelConfig config_of_rank(const ModelConfig& whole, const ModelCut& cut) {
  ModelConfig c = whole;
  c.heads = static_cast<int>(cut.heads(whole).count);
  c.kv_heads = static_cast<int>(cut.kv_heads(whole).count);
  for (LayerSpec& layer : c.parts) {
    for (MlpSpec* part : {&layer.mlp, &layer.experts.expert, &layer.experts.shared}) {
      part->intermediate = static_cast<int>(cut.part(part->intermediate).count);
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
                   " in multiples of " + std::to_string(kFeatures) + "; " +
                   (possible.empty() ? "no number can" : "it can have " + possible));
}

}  // namespace baton
