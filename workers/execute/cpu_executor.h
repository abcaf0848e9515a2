// The CPU backend as an Executor: LlamaModel, RowSampling and the pool in shared memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "workers/collective/rank_group.h"
#include "workers/execute/cpu_weights.h"
#include "workers/execute/led_ranks.h"
#include "workers/model/llama.h"
#include "workers/pool/host_memory.h"
#include "workers/pool/host_pool.h"
#include "workers/sampling/grammar_masks.h"
#include "workers/sampling/row_sampling.h"

namespace baton {

class CpuExecutor final : public HostExecutor {
 public:
  struct Options {
    std::string model_folder;
    int threads = 1;
    std::uint32_t tokens_per_block = 16;
    bool kv_groups = true;  // layers that see equally far share blocks, which windows give back
    WeightChoice weights = WeightChoice::stored;
    Activations activations = Activations::exact;
    std::uint32_t max_context = 0;  // 0: what the model allows
    std::string run_dir;
    std::string memory_socket;  // where a memory process may listen
    std::string name;
    std::vector<std::string> neighbours;  // the other workers on this host's CPUs
    MemoryAsk memory;                     // what the configuration says of it
    int ranks = 1;                        // processes that share the model; this is rank 0
    TimeNs rank_timeout = 5 * kSecond;    // for a rank that does not get on

    RankGroupOptions group_options(int rank) const;
    std::uint32_t kv_groups_for() const { return kv_groups ? tokens_per_block : 0; }
    CpuModelAsk model_ask(int rank, Collective* group) const;
  };
  explicit CpuExecutor(Options options);

  Result<ModelShape> load(std::atomic<int>& percent) override;
  Result<PoolExport> allocate(const PoolRequest& request) override;
  bool prepare_grammar(std::uint64_t key, GrammarKind kind, const std::string& text,
                       bool awaited) override {
    grammars_->prepare(key, kind, text, awaited);
    return true;
  }
  void on_grammar(OnGrammar tell) override { on_grammar_ = std::move(tell); }
  std::unique_ptr<BlockReader> block_reader() override;
  void on_lost(OnLost tell) override { ranks_.on_lost(std::move(tell)); }
  void leaving(bool in_order) override { ranks_.leaving(in_order); }
  Status dump_activations(ActivationDump dump) override {
    model_->set_dump(std::move(dump));
    return {};
  }

 private:
  void run_rows(const RunStep& step, StepOutput& output) override;
  ModelShape load_model(std::atomic<int>& percent);
  LogitsView forward(const RunStep& step, const KvPoolView& view);
  LayerHooks layer_hooks();
  WorkerFacts plan_memory(const ModelConfig& config, const WeightPlan& weights, bool shared);

  Options options_;
  LedRanks ranks_;
  RankGroup* group_ = nullptr;            // of `ranks_`; null: there are no other ranks
  std::string step_bytes_;                // reused
  CpuModel loaded_;
  LlamaModel* model_ = nullptr;  // of `loaded_`
  OnGrammar on_grammar_;
  std::unique_ptr<GrammarMasks> grammars_;
  std::unique_ptr<RowSampling> sampling_;
  std::vector<StepRow> rows_;  // reused
};

}  // namespace baton
