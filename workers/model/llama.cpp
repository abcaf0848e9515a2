#include "workers/model/llama.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "workers/cpu/step_ops.h"
#include "workers/model/error.h"
#include "workers/model/fingerprint.h"
#include "workers/model/rope.h"
#include "workers/model/safetensors.h"
#include "workers/model/weights.h"

namespace baton {
namespace {

using cpu::Epilogue;
using cpu::KvLayer;
using cpu::RowPlace;
using cpu::Rows;
using cpu::Segment;

constexpr std::int64_t kMinWorkspaceRows = 64;

/// Activations of a step, [capacity, columns] of float each. Grows, never shrinks: the steady state
/// allocates nothing.
struct Workspace {
  at::Tensor hidden;        // x, the residual stream: [rows, hidden]
  at::Tensor normed;        // [rows, hidden]
  at::Tensor qkv;           // [rows, (heads + 2 kv_heads) * head_dim]
  at::Tensor attended;      // [rows, heads * head_dim]
  at::Tensor gated;         // [rows, intermediate]
  at::Tensor routed;        // [rows, experts]
  at::Tensor taken;         // [rows * active, hidden], the rows' copies grouped by expert
  at::Tensor expert_gated;  // [rows * active, intermediate of an expert]
  at::Tensor logits;        // [logit rows, vocab]
  std::int64_t capacity = 0;
  std::int64_t logit_capacity = 0;

  void reserve(const ModelConfig& c, std::int64_t rows, std::int64_t logit_rows) {
    const auto grown = [](std::int64_t n) {
      return static_cast<std::int64_t>(
          std::bit_ceil(static_cast<std::uint64_t>(std::max(n, kMinWorkspaceRows))));
    };
    if (rows > capacity) {
      capacity = grown(rows);
      const auto make = [this](std::int64_t n) { return at::empty({capacity, n}, at::kFloat); };
      hidden = make(c.hidden);
      normed = make(c.hidden);
      qkv = make(c.qkv_columns());
      attended = make(std::int64_t{c.heads} * c.head_dim);
      gated = make(c.intermediate);
      if (c.experts.count > 0) {
        const std::int64_t copies = capacity * c.experts.active;
        routed = make(c.experts.count);
        taken = at::empty({copies, c.hidden}, at::kFloat);
        expert_gated = at::empty({copies, c.experts.intermediate}, at::kFloat);
      }
    }
    if (logit_rows > logit_capacity) {
      logit_capacity = grown(logit_rows);
      logits = at::empty({logit_capacity, c.vocab}, at::kFloat);
    }
  }
};

Rows rows_of(const at::Tensor& tensor, int rows) {
  return {tensor.mutable_data_ptr<float>(), rows, tensor.size(1)};
}

/// A step's rows one after another, as the operations want them. Buffers are reused.
struct Batch {
  std::vector<Token> tokens;             // [rows]
  std::vector<RowPlace> places;          // [rows]
  std::vector<Segment> segments;         // one a StepRow
  std::vector<int> wanted;               // rows with logits, ascending
  std::vector<Segment> wanted_segments;  // the same rows, one each, numbered in order
  int rows() const { return static_cast<int>(tokens.size()); }

  void clear() {
    tokens.clear();
    places.clear();
    segments.clear();
    wanted.clear();
    wanted_segments.clear();
  }

  void add(const StepRow& row, const KvGeometry& g, RopeTable& rope) {
    const int first = rows();
    const int n = static_cast<int>(row.tokens.size());
    segments.push_back({first, n, row.position, row.block_table.data()});
    for (int i = 0; i < n; ++i) {
      const std::int64_t position = row.position + i;
      const auto at = static_cast<std::uint64_t>(position);
      const BlockId block = row.block_table[at / g.tokens_per_block];
      const auto slot = static_cast<std::uint32_t>(at % g.tokens_per_block);
      const RopeTable::Angles angles = rope.at(position);
      tokens.push_back(row.tokens[static_cast<std::size_t>(i)]);
      places.push_back({angles.cos, angles.sin, kv_offset(g, block, 0, KvPart::key, 0, slot)});
      if (row.logits == LogitsWanted::all || (row.logits == LogitsWanted::last && i == n - 1)) {
        wanted_segments.push_back(
            {static_cast<int>(wanted.size()), 1, position, row.block_table.data()});
        wanted.push_back(first + i);
      }
    }
  }
};

/// Moves the named rows, ascending, to the front.
void keep_rows(const std::vector<int>& kept, Rows x) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != static_cast<int>(i)) {
      std::copy_n(x.row(kept[i]), x.columns, x.row(static_cast<int>(i)));
    }
  }
}

}  // namespace

struct LlamaModel::Impl {
  Impl(const ModelFiles& files, Weights w, std::shared_ptr<const SealedMemory> memory,
       const LoadOptions& options)
      : config(files.config),
        weights(std::move(w)),
        sealed(std::move(memory)),
        fingerprint(files.fingerprint),
        rope(config.rope, config.head_dim, config.max_context),
        ops(options.threads, options.isa,
            {config.heads, config.kv_heads, config.head_dim, config.window}) {}

  ModelConfig config;
  Weights weights;
  std::shared_ptr<const SealedMemory> sealed;
  std::uint64_t fingerprint;
  RopeTable rope;
  cpu::StepOps ops;
  Workspace workspace;
  cpu::ExpertPlan expert_plan;
  std::vector<cpu::LinearGroup> gate_up_groups;
  std::vector<cpu::LinearGroup> down_groups;
  Batch batch;
  ActivationDump dump;

  void norm(const Rows& x, WeightVector weight, const Rows& y) {
    ops.rms_norm(x, weight.data(), static_cast<float>(config.rms_eps), y);
  }
  cpu::QkvFinish qkv_finish(const LayerWeights& layer) const {
    return {layer.qkv_bias.data(), layer.q_norm.data(), layer.k_norm.data(),
            static_cast<float>(config.rms_eps)};
  }
  void feed_forward(const LayerWeights& layer, const Rows& normed, const Rows& x);
  void experts(const LayerWeights& layer, const Rows& normed, const Rows& x);
  void show(const std::string& part, const Rows& x) const {
    if (dump) dump(part, x.data, x.rows, static_cast<int>(x.columns));
  }
  LogitsView run(const KvPoolView& pool);
};

/// x = x + W_down (silu(W_gate normed) * (W_up normed))
void LlamaModel::Impl::feed_forward(const LayerWeights& layer, const Rows& normed, const Rows& x) {
  if (!layer.experts.empty()) return experts(layer, normed, x);
  const Rows gated = rows_of(workspace.gated, x.rows);  // [T, intermediate]
  ops.linear(normed, layer.dense.gate_up, Epilogue::silu_mul, gated);
  ops.linear(gated, layer.dense.down, Epilogue::add, x);
}

/// x = x + sum over the row's experts e of p_e * feed_forward_e(normed), p = softmax(W_router
/// normed). Rows are gathered by expert, so that an expert's weights are read once a step.
void LlamaModel::Impl::experts(const LayerWeights& layer, const Rows& normed, const Rows& x) {
  const ExpertConfig& e = config.experts;
  const int copies = x.rows * e.active;
  const Rows routed = rows_of(workspace.routed, x.rows);       // [T, experts]
  const Rows taken = rows_of(workspace.taken, copies);         // [T active, hidden]
  const Rows gated = rows_of(workspace.expert_gated, copies);  // [T active, intermediate]
  ops.linear(normed, layer.router, Epilogue::store, routed);
  ops.softmax(routed);
  const auto n = static_cast<std::size_t>(x.rows) * static_cast<std::size_t>(e.count);
  expert_plan.make({routed.data, n}, e.count, e.active, e.normalise);
  gate_up_groups.clear();
  down_groups.clear();
  for (const cpu::ExpertPlan::Group& group : expert_plan.groups()) {
    const FeedForwardWeights& expert = layer.experts[static_cast<std::size_t>(group.expert)];
    gate_up_groups.push_back({&expert.gate_up, group.first, group.rows});
    down_groups.push_back({&expert.down, group.first, group.rows});
  }
  ops.gather(normed, expert_plan.sources(), taken);
  ops.linear_groups(taken, gate_up_groups, Epilogue::silu_mul, gated);
  ops.linear_groups(gated, down_groups, Epilogue::store, taken);  // over the inputs, now done with
  ops.add_experts(expert_plan, taken, x);
}

/// The model. T = rows of the step, W = rows whose logits are wanted; x is the residual stream.
LogitsView LlamaModel::Impl::run(const KvPoolView& pool) {
  const int wanted = static_cast<int>(batch.wanted.size());
  workspace.reserve(config, batch.rows(), wanted);
  Rows x = rows_of(workspace.hidden, batch.rows());           // [T, hidden]
  Rows normed = rows_of(workspace.normed, batch.rows());      // [T, hidden]
  Rows qkv = rows_of(workspace.qkv, batch.rows());            // [T, (heads + 2 kv_heads) head_dim]
  Rows attended = rows_of(workspace.attended, batch.rows());  // [T, heads head_dim]
  std::span<const Segment> segments = batch.segments;

  // x = E[tokens]
  ops.embed(weights.embedding.data, weights.embedding.type, batch.tokens, x);
  show("embed", x);

  for (std::uint32_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string name = dump ? "layer" + std::to_string(i) : std::string();
    const KvLayer kv{pool.base, &pool.geometry, i};

    // q, k, v = W_qkv norm(x) (+ bias; q and k normed head by head); q and k turned by their
    // position; k and v written to the pool
    norm(x, layer.input_norm, normed);
    ops.qkv_rope_append(normed, layer.qkv, qkv_finish(layer), batch.places, kv, qkv);

    // Nothing but the wanted rows is needed behind the last keys and values: T becomes W.
    if (i + 1 == weights.layers.size()) {
      keep_rows(batch.wanted, x);
      keep_rows(batch.wanted, qkv);
      segments = batch.wanted_segments;
      x.rows = normed.rows = qkv.rows = attended.rows = wanted;
    }

    // x = x + W_o attention(q, pool)
    ops.attention(qkv, segments, kv, attended);
    show(name + ".attended", attended);
    ops.linear(attended, layer.o, Epilogue::add, x);

    // x = x + feed_forward(norm(x))
    norm(x, layer.post_norm, normed);
    feed_forward(layer, normed, x);
    show(name, x);
  }
  if (wanted == 0) return {nullptr, 0, config.vocab};

  // logits = W_head norm(x)
  const Rows logits = rows_of(workspace.logits, wanted);  // [W, vocab]
  norm(x, weights.final_norm, normed);
  ops.linear(normed, weights.lm_head, Epilogue::store, logits);
  show("logits", logits);
  return {logits.data, wanted, config.vocab};
}

LlamaModel::LlamaModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LlamaModel::~LlamaModel() = default;

ModelFiles::ModelFiles(const std::string& folder, WeightChoice choice)
    : config(load_model_config(folder)),
      checkpoint(folder),
      weights(choice),
      fingerprint(model_fingerprint(config, checkpoint)) {
  // Rounded weights are another model: its keys and values are of no use to one that did not round.
  if (rounds(checkpoint, choice)) fingerprint ^= 0xBF16;
}

std::unique_ptr<LlamaModel> LlamaModel::load(const std::string& folder, const LoadOptions& options,
                                             std::atomic<int>* progress) {
  return load(ModelFiles(folder, options.weights), options, progress);
}

std::unique_ptr<LlamaModel> LlamaModel::load(const ModelFiles& files, const LoadOptions& options,
                                             std::atomic<int>* progress) {
  if (!cpu::isa_supported(options.isa)) {
    throw ModelError(
        "this CPU lacks the instructions needed: AVX2 and FMA (x86-64-v3), or AVX-512 where it was "
        "asked for");
  }
  if (options.packed != nullptr) {
    auto view = view_weights(files.config, options.packed);
    if (view.ok()) {
      if (progress != nullptr) progress->store(100);
      return std::unique_ptr<LlamaModel>(new LlamaModel(
          std::make_unique<Impl>(files, std::move(view).value(), options.packed, options)));
    }
  }
  auto memory = options.seal ? std::make_shared<WeightMemory>(most_weight_bytes(files.config))
                             : std::make_shared<WeightMemory>();
  Weights weights = pack_weights(files.config, files.checkpoint, files.weights, options.threads,
                                 progress, memory);
  std::shared_ptr<const SealedMemory> sealed;
  if (memory->shared()) {
    sealed = seal_weights(std::exchange(weights, {}), *memory);
    weights = view_weights(files.config, sealed).value();
  }
  auto impl = std::make_unique<Impl>(files, std::move(weights), std::move(sealed), options);
  return std::unique_ptr<LlamaModel>(new LlamaModel(std::move(impl)));
}

const ModelConfig& LlamaModel::config() const { return impl_->config; }
std::uint64_t LlamaModel::fingerprint() const { return impl_->fingerprint; }
const char* LlamaModel::isa_name() const { return impl_->ops.isa_name(); }
std::uint64_t LlamaModel::weight_bytes() const { return impl_->weights.bytes(); }
const std::shared_ptr<const SealedMemory>& LlamaModel::sealed_weights() const {
  return impl_->sealed;
}

KvGeometry LlamaModel::kv_geometry(std::uint32_t blocks, std::uint32_t tokens_per_block) const {
  KvGeometry g;
  g.model_fingerprint = impl_->fingerprint;
  g.dtype = KvDtype::f32;
  g.layers = static_cast<std::uint32_t>(impl_->config.layers);
  g.kv_heads = static_cast<std::uint32_t>(impl_->config.kv_heads);
  g.head_dim = static_cast<std::uint32_t>(impl_->config.head_dim);
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
    const std::uint64_t blocks = kv_blocks_for(g, static_cast<std::uint64_t>(row.position + n));
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

void LlamaModel::set_dump(ActivationDump dump) { impl_->dump = std::move(dump); }

LogitsView LlamaModel::forward(std::span<const StepRow> rows, const KvPoolView& pool) {
  impl_->batch.clear();
  for (const StepRow& row : rows) impl_->batch.add(row, pool.geometry, impl_->rope);
  return impl_->run(pool);
}

}  // namespace baton
