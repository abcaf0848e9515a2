#include "workers/model/gpu_cut.h"

#include <algorithm>
#include <string>

#include "ipc/max_ranks.h"
#include "workers/model/error.h"
#include "workers/model/gpu_limits.h"

namespace baton {

namespace {

/// The kernels' tiles.
constexpr int kFeatures = 16;

void check_features(int features, int ranks, const char* what) {
  if (features % (kFeatures * ranks) == 0) return;
  std::string possible;
  for (int n = 1; n <= kMaxRanks; ++n) {
    if (features % (kFeatures * n) == 0)
      possible += (possible.empty() ? "" : ", ") + std::to_string(n);
  }
  throw ModelError("worker.ranks: " + std::to_string(ranks) + " GPUs cannot share the " +
                   std::to_string(features) + " features of " + what + " in multiples of " +
                   std::to_string(kFeatures) + "; " +
                   (possible.empty() ? "no number can" : "it can have " + possible));
}

[[noreturn]] void not_over_ranks(const std::string& what) {
  throw ModelError("worker.ranks: " + what + " not served by several GPUs yet");
}

}  // namespace

ModelConfig config_of_rank(const ModelConfig& whole, const ModelCut& cut) {
  ModelConfig c = whole;
  c.heads = static_cast<int>(cut.heads(whole).count);
  c.kv_heads = static_cast<int>(cut.kv_heads(whole).count);
  for (LayerSpec& layer : c.parts) {
    layer.mlp.intermediate = static_cast<int>(cut.part(layer.mlp.intermediate).count);
    MlpSpec& expert = layer.experts.expert;
    expert.intermediate = static_cast<int>(cut.part(expert.intermediate).count);
  }
  return c;
}

void check_gpu_ranks(const ModelConfig& whole, const GpuCut& cut) {
  const int ranks = cut.ranks;
  if (cut.whole()) return;
  if (const Status status = can_cut(whole, ranks); !status.ok()) throw ModelError(status.message());
  if (cut.by_outputs && whole.experts().count > 0)
    not_over_ranks("experts in deterministic steps are");
  if (!has_fused_layers(whole)) not_over_ranks("models outside of Llama's pattern are");
  if ((whole.heads / ranks * whole.head_dim) % kFeatures != 0) {
    throw ModelError("worker.ranks: a rank's heads must be a multiple of 16 wide on device cuda");
  }
  if (cut.by_outputs) check_features(whole.hidden, ranks, "hidden_size");
  if (whole.intermediate() > 0) check_features(whole.intermediate(), ranks, "a layer");
  if (whole.experts().count > 0) {
    check_features(whole.experts().expert.intermediate, ranks, "an expert");
  }
}

}  // namespace baton
