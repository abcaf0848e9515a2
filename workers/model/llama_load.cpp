#include "workers/model/llama.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "workers/model/error.h"
#include "workers/model/fingerprint.h"
#include "workers/model/llama_impl.h"
#include "workers/model/safetensors.h"

namespace baton {

LlamaModel::LlamaModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LlamaModel::~LlamaModel() = default;

namespace {

Activations activations_of(const ModelConfig& config, const Checkpoint& checkpoint,
                           WeightChoice choice, Activations wanted) {
  if (wanted == Activations::exact) return wanted;
  return plan_weights(config, checkpoint, choice).whole_numbers ? wanted : Activations::exact;
}

}  // namespace

ModelFiles::ModelFiles(const std::string& folder, WeightChoice choice, Activations wanted,
                       const DigestCache& cache)
    : config(load_model_config(folder)),
      checkpoint(folder),
      weights(choice),
      activations(activations_of(config, checkpoint, choice, wanted)),
      content(content_digest(checkpoint, cache)),
      fingerprint(model_fingerprint(config, checkpoint, content)) {
  // Rounded weights are another model: its keys and values are of no use to one that did not round.
  if (rounds(checkpoint, choice)) fingerprint ^= 0xBF16;
  if (activations == Activations::int8) fingerprint ^= 0x18000000;  // likewise
}

std::unique_ptr<LlamaModel> LlamaModel::load(const std::string& folder, const LoadOptions& options,
                                             std::atomic<int>* progress) {
  return load(ModelFiles(folder, options.weights, options.activations), options, progress);
}

std::unique_ptr<LlamaModel> LlamaModel::load(const ModelFiles& files, const LoadOptions& options,
                                             std::atomic<int>* progress) {
  if (!cpu::isa_supported(options.isa)) {
    throw ModelError(
        "this CPU lacks the instructions needed: AVX2 and FMA (x86-64-v3), or AVX-512 where it was "
        "asked for");
  }
  if (const Status status = can_cut(files.config, options.cut.ranks); !status.ok()) {
    throw ModelError(status.message());
  }
  if (options.packed != nullptr) {
    auto view = view_weights(files.config, options.cut, options.packed);
    if (view.ok()) {
      if (progress != nullptr) progress->store(100);
      return std::unique_ptr<LlamaModel>(new LlamaModel(
          std::make_unique<Impl>(files, std::move(view).value(), options.packed, options)));
    }
  }
  auto memory = options.seal ? std::make_shared<WeightMemory>(most_weight_bytes(files.config))
                             : std::make_shared<WeightMemory>();
  Weights weights = pack_weights(files.config, files.checkpoint, files.weights, options.threads,
                                 progress, memory, options.cut, files.activations);
  const std::uint64_t bytes_read = weights.bytes_read;
  std::shared_ptr<const SealedMemory> sealed;
  if (memory->shared()) {
    sealed = seal_weights(std::exchange(weights, {}), *memory);
    weights = view_weights(files.config, options.cut, sealed).value();
    weights.bytes_read = bytes_read;
  }
  auto impl = std::make_unique<Impl>(files, std::move(weights), std::move(sealed), options);
  return std::unique_ptr<LlamaModel>(new LlamaModel(std::move(impl)));
}

const ModelConfig& LlamaModel::config() const { return impl_->config; }
std::uint64_t LlamaModel::fingerprint() const { return impl_->fingerprint; }
const char* LlamaModel::isa_name() const { return impl_->ops.isa_name(); }
std::uint64_t LlamaModel::weight_bytes() const { return impl_->weights.bytes(); }
std::uint64_t LlamaModel::bytes_read() const { return impl_->weights.bytes_read; }
const std::shared_ptr<const SealedMemory>& LlamaModel::sealed_weights() const {
  return impl_->sealed;
}

const KvPlan& LlamaModel::kv_plan() const { return impl_->plan; }

KvGeometry LlamaModel::kv_geometry(std::uint32_t blocks, std::uint32_t tokens_per_block) const {
  KvGeometry g;
  g.model_fingerprint = impl_->fingerprint;
  g.dtype = KvDtype::f32;
  g.layers = impl_->plan.layers_in_block;
  g.groups = impl_->plan.groups;
  g.kv_heads = static_cast<std::uint32_t>(impl_->config.pool_heads());
  g.head_dim = static_cast<std::uint32_t>(impl_->config.pool_dim());
  g.tokens_per_block = tokens_per_block;
  g.blocks = blocks;
  g.block_bytes = kv_block_bytes(g).value_or(0);
  return g;
}

Status LlamaModel::check(std::span<const StepRow> rows, const KvPoolView& pool) const {
  const KvGeometry& g = pool.geometry;
  if (Status status = kv_check(g); !status.ok()) return status;
  if (!(g == kv_geometry(g.blocks, g.tokens_per_block))) {
    return invalid("the pool is not one of this model");
  }
  if (pool.base == nullptr) return invalid("the pool has no memory");
  for (const StepRow& row : rows) {
    const auto n = static_cast<std::int64_t>(row.tokens.size());
    if (n == 0) return invalid("a row without tokens");
    if (row.position < 0 || n > impl_->config.max_context ||
        row.position > impl_->config.max_context - n) {
      return invalid("position " + std::to_string(row.position) + " + " + std::to_string(n) +
                     " lies outside of the context of " +
                     std::to_string(impl_->config.max_context));
    }
    const std::uint64_t blocks =
        kv_blocks_for(g, static_cast<std::uint64_t>(row.position + n)) * g.groups.count;
    if (row.block_table.size() < blocks) {
      return invalid("a block table of " + std::to_string(row.block_table.size()) +
                     " blocks where " + std::to_string(blocks) + " are needed");
    }
    for (const BlockId block : row.block_table.first(blocks)) {
      if (block >= g.blocks)
        return invalid("block " + std::to_string(block) + " is not in the pool");
    }
    for (const Token token : row.tokens) {
      if (token < 0 || token >= impl_->config.vocab) {
        return invalid("token " + std::to_string(token) + " is not in the vocabulary");
      }
    }
  }
  return {};
}

void LlamaModel::set_layer_hooks(LayerHooks hooks) { impl_->hooks = std::move(hooks); }

void LlamaModel::set_dump(ActivationDump dump) { impl_->dump = std::move(dump); }

LogitsView LlamaModel::forward(std::span<const StepRow> rows, const KvPoolView& pool) {
  if (!impl_->cut.whole() && impl_->group == nullptr) {
    throw std::logic_error("a rank without its group");
  }
  impl_->batch.clear();
  for (const StepRow& row : rows) impl_->batch.add(row, pool.geometry, impl_->ropes);
  return impl_->run(pool);
}

}  // namespace baton
