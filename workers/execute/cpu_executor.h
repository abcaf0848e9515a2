// The CPU backend as an Executor: LlamaModel, RowSampling and the pool in shared memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "workers/model/llama.h"
#include "workers/pool/host_memory.h"
#include "workers/pool/host_pool.h"
#include "workers/pool/weights_lease.h"
#include "workers/sampling/grammar_masks.h"
#include "workers/sampling/row_sampling.h"

namespace baton {

class CpuExecutor final : public HostExecutor {
 public:
  struct Options {
    std::string model_folder;
    int threads = 1;
    std::uint32_t tokens_per_block = 16;
    WeightChoice weights = WeightChoice::stored;
    std::uint32_t max_context = 0;  // 0: what the model allows
    std::string run_dir;
    std::string memory_socket;  // where a memory process may listen
    std::string name;
    std::vector<std::string> neighbours;  // the other workers on this host's CPUs
    MemoryAsk memory;                     // what the configuration says of it
  };
  explicit CpuExecutor(Options options);

  Result<ModelShape> load(std::atomic<int>& percent) override;
  bool prepare_grammar(std::uint64_t key, GrammarKind kind, const std::string& text,
                       bool awaited) override {
    grammars_->prepare(key, kind, text, awaited);
    return true;
  }
  void on_grammar(OnGrammar tell) override { on_grammar_ = std::move(tell); }
  Status dump_activations(ActivationDump dump) override {
    model_->set_dump(std::move(dump));
    return {};
  }

 private:
  void run_rows(const RunStep& step, StepOutput& output) override;
  ModelShape load_model(std::atomic<int>& percent);
  WeightsLease ask_for_weights(const ModelFiles& files, const WeightPlan& plan) const;
  WorkerFacts plan_memory(const ModelConfig& config, const WeightPlan& weights, bool shared);

  Options options_;
  UniqueFd weights_link_;  // says that this process uses shared weights
  std::unique_ptr<LlamaModel> model_;
  OnGrammar on_grammar_;
  std::unique_ptr<GrammarMasks> grammars_;
  std::unique_ptr<RowSampling> sampling_;
  std::vector<StepRow> rows_;  // reused
};

}  // namespace baton
