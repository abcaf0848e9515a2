#include "workers/cpu_executor.h"

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
                                              GrammarMasks::Options());
  return shape;
}

/// Before anything is loaded: what does not fit is refused, and the pool gets its size. Neighbours that
/// have their pools have their weights as well: what they take is no longer free.
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
  // The protocol core has checked every number; this catches a mistake there before it is a wild write.
  if (const Status status = model_->check(rows_, view); !status.ok()) {
    throw std::logic_error(status.message());
  }
  grammars_->begin(step);  // goes on while the forward pass runs
  const LogitsView logits = model_->forward(rows_, view);
  int line = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (row.logits == LogitsWanted::none) continue;
    if (row.logits == LogitsWanted::all) {
      prompt_logprobs(step, row, logits, line, output.prompt_logprobs);
      line += static_cast<int>(row.tokens.size()) - 1;
    }
    const std::span<float> values = logits.row(line++);
    if (row.ranks) {
      const Status status =
          sampler_.rank(values, *row.sampling, {row.choice, row.n_generated},
                        {row.history, row.n_prompt}, static_cast<std::uint32_t>(i), output.candidates);
      if (!status.ok()) output.failed.push_back({static_cast<std::uint32_t>(i), status.message()});
      continue;
    }
    if (!row.samples()) continue;
    const Result<Token> token = draw(row, i, values);
    if (!token.ok()) {
      output.failed.push_back({static_cast<std::uint32_t>(i), token.status().message()});
      continue;
    }
    output.tokens[i] = token.value();
    if (row.sampling->logprobs >= 0) {
      sampler_.log_probabilities(values, token.value(), row.sampling->logprobs,
                                 static_cast<std::uint32_t>(i), output.logprobs);
    }
  }
}

/// What the grammar excludes stays excluded in `logits`: the log probabilities are those of what is left.
Result<Token> CpuExecutor::draw(const BatchRow& row, std::size_t index, std::span<float> logits) {
  const SampleKey key{row.choice, row.n_generated};
  const SampleHistory history{row.history, row.n_prompt};
  if (row.sampling->grammar_kind == GrammarKind::none) {
    return sampler_.sample(logits, *row.sampling, key, history);
  }
  const Result<RowMask> mask = grammars_->wait(index);
  if (!mask.ok()) return mask.status();
  mask_logits(logits, mask.value().allowed);
  Result<Token> token = Status();
  if (mask.value().must_end && row.n_generated < row.sampling->min_tokens) {
    SamplingParams ending = *row.sampling;
    ending.min_tokens = 0;  // there is nothing more to say
    token = sampler_.sample(logits, ending, key, history);
  } else {
    token = sampler_.sample(logits, *row.sampling, key, history);
  }
  if (token.ok()) return token;
  return Status(token.status().code(),
                token.status().message() + "; the request has a grammar, which may allow nothing that "
                                           "its other fields (allowed_token_ids, bad_words) leave");
}

/// Of the known tokens that follow each of the row's; their logits begin at `line`.
void CpuExecutor::prompt_logprobs(const RunStep& step, const BatchRow& row,
                                  const LogitsView& logits, int line, Logprobs& out) {
  const auto first = static_cast<std::uint32_t>(row.tokens.data() - step.tokens.data());
  for (std::size_t t = 0; t < row.tokens.size(); ++t) {
    const Token next = t + 1 < row.tokens.size() ? row.tokens[t + 1] : row.next;
    if (next == kNoToken) continue;
    sampler_.log_probabilities(logits.row(line + static_cast<int>(t)), next,
                               row.sampling->prompt_logprobs,
                               first + static_cast<std::uint32_t>(t), out);
  }
}

}  // namespace baton
