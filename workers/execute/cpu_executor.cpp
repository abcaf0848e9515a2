#include "workers/execute/cpu_executor.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "ipc/shm_region.h"
#include "workers/model/error.h"
#include "workers/model/weight_plan.h"

namespace baton {

CpuExecutor::CpuExecutor(Options options) : options_(std::move(options)) {}

Result<ModelShape> CpuExecutor::load(std::atomic<int>& percent) {
  try {
    return load_model(percent);
  } catch (const ModelError& e) {
    return invalid(e.what());
  }
}

ModelShape CpuExecutor::load_model(std::atomic<int>& percent) {
  ModelShape shape;
  shape.facts = plan_memory();
  LoadOptions options;
  options.threads = options_.threads;
  options.weights = options_.weights;
  model_ = LlamaModel::load(options_.model_folder, options, &percent);
  percent = 100;
  shape.facts.weight_bytes = model_->weight_bytes();
  shape.geometry = model_->kv_geometry(0, options_.tokens_per_block);
  shape.max_context = static_cast<std::uint32_t>(model_->config().max_context);
  shape.vocab_size = static_cast<std::uint32_t>(model_->config().vocab);
  set_shape(shape.geometry);
  grammars_ = std::make_unique<GrammarMasks>(options_.model_folder, shape.vocab_size,
                                             GrammarMasks::Options(), on_grammar_);
  sampling_ =
      std::make_unique<RowSampling>([this](std::size_t row) { return grammars_->wait(row); });
  return shape;
}

/// Before anything is loaded: what does not fit is refused, and the pool gets its size. Neighbours
/// that have their pools have their weights as well: what they take is no longer free.
WorkerFacts CpuExecutor::plan_memory() {
  const ModelConfig config = load_model_config(options_.model_folder);
  const WeightPlan weights =
      plan_weights(config, Checkpoint(options_.model_folder), options_.weights);
  MemoryAsk ask = options_.memory;
  ask.dtype = weights.dtype;
  ask.weights = weights.bytes;
  ask.loading = weights.loading_bytes;
  KvGeometry g;
  g.layers = static_cast<std::uint32_t>(config.layers);
  g.kv_heads = static_cast<std::uint32_t>(config.kv_heads);
  g.head_dim = static_cast<std::uint32_t>(config.head_dim);
  g.tokens_per_block = options_.tokens_per_block;
  ask.block_bytes = kv_block_bytes(g).value_or(0);
  auto context = static_cast<std::uint64_t>(config.max_context);
  if (options_.max_context > 0) context = std::min<std::uint64_t>(context, options_.max_context);
  ask.context_bytes = kv_blocks_for(g, context) * ask.block_bytes;
  const std::vector<RegionName> pools = list_regions(options_.run_dir);
  ask.sharers = 1;
  for (const std::string& name : options_.neighbours) {
    const bool loaded = std::any_of(pools.begin(), pools.end(),
                                    [&](const RegionName& pool) { return pool.worker == name; });
    if (!loaded) ++ask.sharers;
  }
  ask.free = free_host_memory();
  ask.shared_free = free_shared_memory();
  const auto pool = plan_host_pool(ask);
  if (!pool.ok()) throw ModelError(pool.status().message());
  set_planned_pool(pool.value() >> 20U);
  WorkerFacts facts;
  facts.weights = weights.dtype;
  facts.free_bytes = ask.free;
  facts.threads = static_cast<std::uint32_t>(options_.threads);
  return facts;
}

void CpuExecutor::run_rows(const RunStep& step, StepOutput& output) {
  rows_.clear();
  for (const BatchRow& row : step.rows) {
    rows_.push_back({row.tokens, row.position, row.blocks, row.logits});
  }
  const KvPoolView view{pool().data(), pool().geometry()};
  // The protocol core has checked every number; this catches a mistake there before it is a wild
  // write.
  if (const Status status = model_->check(rows_, view); !status.ok()) {
    throw std::logic_error(status.message());
  }
  grammars_->begin(step);  // goes on while the forward pass runs
  const LogitsView logits = model_->forward(rows_, view);
  int line = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (row.logits == LogitsWanted::none) continue;
    for (std::size_t t = row.first_logits(); t < row.tokens.size(); ++t) {
      sampling_->finish(step, {i, t}, logits.row(line++), output);
    }
  }
}

}  // namespace baton
