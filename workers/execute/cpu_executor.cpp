#include "workers/execute/cpu_executor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "ipc/shm_region.h"
#include "workers/execute/rank_process.h"
#include "workers/execute/rank_pulls.h"
#include "workers/execute/rank_step.h"
#include "workers/model/error.h"
#include "workers/model/weight_plan.h"

namespace baton {

CpuExecutor::CpuExecutor(Options options) : options_(std::move(options)) {}

Result<ModelShape> CpuExecutor::load(std::atomic<int>& percent) {
  try {
    return load_model(percent);
  } catch (const ModelError& e) {
    return invalid(e.what());
  } catch (const ModelChanged& e) {
    return Status(ErrorCode::unavailable, e.what());
  }
}

RankGroupOptions CpuExecutor::Options::group_options(int rank) const {
  RankGroupOptions group;
  group.run_dir = run_dir;
  group.worker = name;
  group.rank = rank;
  group.ranks = ranks;
  group.collective.patience = rank_timeout;
  // Rank 0 copies alone: the others' share is to map a pool, which takes no time.
  group.pull_patience = std::min(rank_timeout, kPullPatience);
  return group;
}

CpuModelAsk CpuExecutor::Options::model_ask(int rank, Collective* group) const {
  CpuModelAsk ask;
  ask.process = name;
  ask.memory_socket = memory_socket;
  ask.threads = threads;
  ask.weights = weights;
  ask.cut = {rank, ranks};
  ask.group = group;
  ask.kv_groups_for = kv_groups_for();
  return ask;
}

ModelShape CpuExecutor::load_model(std::atomic<int>& percent) {
  const ModelFiles files(options_.model_folder, options_.weights, options_.activations,
                         {options_.run_dir, options_.threads});
  spdlog::info("{}", to_text(files.content));
  if (const Status status = can_cut(files.config, options_.ranks); !status.ok()) {
    throw ModelError(status.message());
  }
  // Before anything is read, so that the ranks read at the same time.
  if (options_.ranks > 1) group_ = &ranks_.lead(options_.group_options(0));
  const WeightPlan plan = plan_weights(files.config, files.checkpoint, options_.weights);
  CpuModelAsk ask = options_.model_ask(0, group_ != nullptr ? &group_->collective() : nullptr);
  if (group_ != nullptr) ask.process += ".0";
  WeightsLease lease = ask_for_weights(ask, files, plan);
  ModelShape shape;
  shape.facts = plan_memory(files.config, plan, lease.packed != nullptr);
  loaded_ = load_cpu_model(ask, files, std::move(lease), percent);
  model_ = loaded_.model.get();
  if (group_ != nullptr) ranks_.wait_loaded(packing_patience(plan.bytes));
  percent = 100;
  shape.facts.weight_copy = loaded_.weight_copy;
  shape.facts.weight_bytes = model_->weight_bytes();
  shape.geometry = model_->kv_geometry(0, options_.tokens_per_block);
  shape.max_context = static_cast<std::uint32_t>(model_->config().max_context);
  shape.vocab_size = static_cast<std::uint32_t>(model_->config().vocab);
  for (const KvPlan::Place& place : model_->kv_plan().places)
    shape.layer_groups.push_back(place.group);
  set_shape(shape.geometry, shape.facts.weights);
  grammars_ = std::make_unique<GrammarMasks>(options_.model_folder, shape.vocab_size,
                                             GrammarMasks::Options(), on_grammar_);
  sampling_ =
      std::make_unique<RowSampling>([this](std::size_t row) { return grammars_->wait(row); });
  return shape;
}

/// The pool of a group is one, which all ranks map: it is there when they have.
Result<PoolExport> CpuExecutor::allocate(const PoolRequest& request) {
  auto exported = HostExecutor::allocate(request);
  if (exported.ok()) model_->set_layer_hooks(layer_hooks());
  if (!exported.ok() || group_ == nullptr) return exported;
  constexpr TimeNs kMapping = 30 * kSecond;  // of all its pages
  group_->offer_pool({pool().handle(), pool().geometry().blocks, pool().allocation()});
  if (const Status status = group_->wait_for(RankState::mapped, kMapping); !status.ok()) {
    ranks_.tell_lost(status.message());  // no step has run: the pool is as it was
    return Status(ErrorCode::unavailable, status.message());
  }
  exported.value().ranks.resize(static_cast<std::size_t>(options_.ranks),
                                exported.value().ranks.front());
  return exported;
}

/// Rank 0 alone waits for other workers and tells them how far its group is. Where it waits, the
/// others meet it before the layer's attention: none of them reads what is not there yet, and
/// whether a wait was in vain is decided once for all.
LayerHooks CpuExecutor::layer_hooks() {
  LayerHooks hooks;
  hooks.written = [this](std::uint32_t layers) { layers_written(layers); };
  if (group_ == nullptr) {
    hooks.before_attention = [this](std::uint32_t layers) { await_layers(layers); };
    return hooks;
  }
  Collective& all = group_->collective();
  hooks.before_attention = [this, &all](std::uint32_t layers) {
    if (!awaits()) return;
    await_layers(layers);
    all.barrier();
  };
  // To the others it gets on: a wait for another worker has an end of its own.
  while_waiting([&all] { all.progress().fetch_add(1, std::memory_order_relaxed); });
  return hooks;
}

std::unique_ptr<BlockReader> CpuExecutor::block_reader() {
  auto own = HostExecutor::block_reader();
  if (group_ == nullptr) return own;
  return std::make_unique<RankBlockReader>(std::move(own), group_->pulls(),
                                           RankBlockReader::Copies::by_rank_0,
                                           [this](const RankLost& lost) { ranks_.lose(lost); });
}

/// The step of all ranks.
LogitsView CpuExecutor::forward(const RunStep& step, const KvPoolView& view) {
  if (group_ == nullptr) return model_->forward(rows_, view);
  try {
    encode_rank_step(step, step_bytes_);
    group_->collective().broadcast(step_bytes_, kMostStepBytes);
    return model_->forward(rows_, view);
  } catch (const RankLost& lost) {
    ranks_.tell_lost(lost.what());
    throw;
  }
}

/// Before anything is loaded: what does not fit is refused, and the pool gets its size. Neighbours
/// that have their pools have their weights as well: what they take is no longer free. Weights that
/// are there already (`shared`) cost nothing.
WorkerFacts CpuExecutor::plan_memory(const ModelConfig& config, const WeightPlan& weights,
                                     bool shared) {
  MemoryAsk ask = options_.memory;
  ask.dtype = weights.dtype;
  ask.weights = shared ? 0 : weights.bytes;
  ask.loading = shared ? 0 : weights.loading_bytes;
  KvGeometry g;
  const KvPlan plan = kv_plan_of(config, options_.kv_groups_for());
  g.layers = plan.layers_in_block;
  g.kv_heads = static_cast<std::uint32_t>(config.pool_heads());
  g.head_dim = static_cast<std::uint32_t>(config.pool_dim());
  g.tokens_per_block = options_.tokens_per_block;
  ask.block_bytes = kv_block_bytes(g).value_or(0);
  auto context = static_cast<std::uint64_t>(config.max_context);
  if (options_.max_context > 0) context = std::min<std::uint64_t>(context, options_.max_context);
  ask.context_bytes =
      TableShape(g.tokens_per_block, plan.groups).live_blocks(static_cast<std::uint32_t>(context)) *
      ask.block_bytes;
  const std::vector<RegionName> pools = list_regions(options_.run_dir);
  ask.sharers = 1;
  for (const std::string& name : options_.neighbours) {
    const bool loaded = std::any_of(pools.begin(), pools.end(),
                                    [&](const RegionName& pool) { return pool.worker == name; });
    if (!loaded) ++ask.sharers;
  }
  // Our own last pool is kept for us, or about to go.
  std::uint64_t own = 0;
  for (const RegionName& pool : pools) {
    if (pool.worker == options_.name)
      own += region_bytes(region_name(options_.run_dir, pool)).value_or(0);
  }
  ask.free = free_host_memory() + own;
  ask.shared_free = free_shared_memory() + own;
  const auto pool = plan_host_pool(ask);
  if (!pool.ok()) throw ModelError(pool.status().message());
  set_planned_pool(pool.value() >> 20U);
  WorkerFacts facts;
  facts.weights = weights.dtype + (config.text_half ? ", text only" : "");
  if (weights.whole_numbers) {
    facts.weights +=
        options_.activations == Activations::int8 ? ", activations int8" : ", activations exact";
  }
  facts.free_bytes = ask.free;
  facts.threads = static_cast<std::uint32_t>(options_.threads);
  return facts;
}

void CpuExecutor::run_rows(const RunStep& step, StepOutput& output) {
  rows_.clear();
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    rows_.push_back({row.tokens, row.position, table(step, i), row.logits, row.wants_hidden()});
  }
  KvPoolView view{base(), pool().geometry()};
  view.geometry.blocks = ids();
  // The protocol core has checked every number; this catches a mistake there before it is a wild
  // write.
  if (const Status status = model_->check(rows_, view); !status.ok()) {
    throw std::logic_error(status.message());
  }
  grammars_->begin(step);  // goes on while the forward pass runs
  const LogitsView logits = forward(step, view);
  int line = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (row.logits == LogitsWanted::none) continue;
    if (row.wants_hidden()) {
      tell_vector(static_cast<std::uint32_t>(i), logits.hidden(line++), output);
      continue;
    }
    for (std::size_t t = row.first_logits(); t < row.tokens.size(); ++t) {
      sampling_->finish(step, {i, t}, logits.row(line++), output);
    }
  }
}

}  // namespace baton
