#include "workers/execute/cpu_weights.h"

#include <utility>

namespace baton {

WeightsLease ask_for_weights(const CpuModelAsk& ask, const ModelFiles& files,
                             const WeightPlan& plan) {
  WeightsAsk wanted;
  wanted.worker = ask.process;
  wanted.key.model_fingerprint = files.fingerprint;
  wanted.key.files = files.checkpoint.stamp();
  wanted.key.format = ask.weights == WeightChoice::f32    ? "f32"
                      : ask.weights == WeightChoice::bf16 ? "bf16"
                                                          : "stored";
  if (files.activations == Activations::int8) wanted.key.format += ", rounded inputs";
  if (!ask.cut.whole()) {
    wanted.key.format +=
        ", rank " + std::to_string(ask.cut.rank) + " of " + std::to_string(ask.cut.ranks);
  }
  wanted.key.layout = kWeightLayoutVersion;
  LeaseWaits waits;
  waits.answer = packing_patience(plan.bytes);
  return lease_weights(ask.memory_socket, wanted, waits);
}

CpuModel load_cpu_model(const CpuModelAsk& ask, const ModelFiles& files, WeightsLease lease,
                        std::atomic<int>& percent) {
  LoadOptions options;
  options.threads = ask.threads;
  options.weights = ask.weights;
  options.packed = lease.packed;
  options.seal = lease.fill;
  options.cut = ask.cut;
  options.group = ask.group;
  options.kv_groups_for = ask.kv_groups_for;
  CpuModel loaded;
  loaded.model = LlamaModel::load(files, options, &percent);
  expect_unchanged(files.checkpoint);  // before other workers are given what was packed
  if (const auto& sealed = loaded.model->sealed_weights();
      sealed != nullptr && (!lease.fill || give_weights(lease, *sealed))) {
    loaded.weight_copy = sealed->id();
    loaded.weights_link = std::move(lease.link);
  }
  return loaded;
}

}  // namespace baton
