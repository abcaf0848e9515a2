#include "workers/model/llama.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "workers/cpu/step_ops.h"
#include "workers/model/cpu_step.h"
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

cpu::Activate activate_of(const MlpSpec& m) {
  if (m.limit > 0) {
    return {cpu::Gate::clamped, m.gated, static_cast<float>(m.limit), static_cast<float>(m.alpha)};
  }
  switch (m.activation) {
    case Activation::silu:
      return {cpu::Gate::silu, m.gated, 0, 1};
    case Activation::gelu:
      return {cpu::Gate::gelu, m.gated, 0, 1};
    case Activation::gelu_tanh:
      return {cpu::Gate::gelu_tanh, m.gated, 0, 1};
  }
  return {};
}

/// How heads look at the pool: latent keys are one head's, for all queries.
cpu::HeadShape shape_of(const ModelConfig& c) {
  if (c.latent.rank == 0) return {c.heads, c.kv_heads, c.head_dim};
  return {c.heads, 1, c.latent.rank + c.latent.rope};
}

cpu::LatentShape latent_shape(const ModelSpec& s) {
  return {s.latent.rank, s.latent.rope, s.latent.plain};
}

constexpr float kLatentEps = 1e-6F;  // transformers' default, whatever rms_norm_eps says

}  // namespace

struct LlamaModel::Impl {
  Impl(const ModelFiles& files, Weights w, std::shared_ptr<const SealedMemory> memory,
       const LoadOptions& options)
      : config(files.config),
        weights(std::move(w)),
        sealed(std::move(memory)),
        fingerprint(files.fingerprint),
        ops(options.threads, options.isa, shape_of(config)) {
    batch.latent = config.latent.rank > 0;
    for (const RopeConfig& rope : config.ropes) ropes.emplace_back(rope, config.max_context);
    const bool all_turn = std::all_of(config.parts.begin(), config.parts.end(),
                                      [](const LayerSpec& l) { return l.attention.rope >= 0; });
    batch.places.resize(ropes.size() + (all_turn ? 0 : 1));
  }

  ModelConfig config;
  Weights weights;
  std::shared_ptr<const SealedMemory> sealed;
  std::uint64_t fingerprint;
  std::vector<RopeTable> ropes;
  cpu::StepOps ops;
  StepWorkspace workspace;
  cpu::ExpertPlan expert_plan;
  std::vector<cpu::LinearGroup> gate_up_groups;
  std::vector<cpu::LinearGroup> down_groups;
  StepBatch batch;
  ActivationDump dump;

  void norm(const Rows& x, const NormVectors& w, const Rows& y) {
    ops.norm(x,
             {w.weight.data(), w.bias.empty() ? nullptr : w.bias.data(),
              static_cast<float>(config.norm.eps), config.norm.kind == NormKind::layer},
             y);
  }
  cpu::QkvFinish qkv_finish(const LayerSpec& spec, const LayerWeights& layer) const {
    const AttentionSpec& a = spec.attention;
    const RopeConfig& rope = config.ropes[static_cast<std::size_t>(std::max(a.rope, 0))];
    return {layer.qkv_bias.data(),
            layer.q_norm.data(),
            layer.k_norm.data(),
            static_cast<float>(config.norm.eps),
            a.qk_norm == QkNorm::whole,
            rope.dims,
            rope.interleaved};
  }
  static cpu::AttentionRule attention_rule(const LayerSpec& spec, const LayerWeights& layer) {
    const AttentionSpec& a = spec.attention;
    return {a.window, static_cast<float>(a.scale), static_cast<float>(a.soft_cap),
            layer.sinks.data(), !layer.latent.absorb.empty()};
  }
  const std::vector<RowPlace>& places_of(const LayerSpec& spec) const {
    const int rope = spec.attention.rope;
    return rope < 0 ? batch.places.back() : batch.places[static_cast<std::size_t>(rope)];
  }
  void attention(const LayerSpec& spec, const LayerWeights& layer, const Rows& attended,
                 const Rows& x);
  void project(const LayerSpec& spec, const LayerWeights& layer, const Rows& normed,
               const KvLayer& kv, const Rows& qkv);
  void project_latent(const LayerSpec& spec, const LatentWeights& w, const Rows& normed,
                      const KvLayer& kv, const Rows& wide);
  void look(const LayerSpec& spec, const LayerWeights& layer, std::span<const Segment> segments,
            const KvLayer& kv, const Rows& qkv, const Rows& attended);
  void through_heads(const Rows& from, const std::vector<PackedMatrix>& matrices, const Rows& to);
  void feed_forward(const LayerSpec& spec, const LayerWeights& layer, const Rows& normed,
                    const Rows& x);
  void dense(const MlpSpec& spec, const FeedForwardWeights& w, const Rows& normed,
             Epilogue epilogue, const Rows& y);
  void experts(const ExpertSpec& spec, const LayerWeights& layer, const Rows& normed,
               const Rows& x);
  void route(const ExpertSpec& spec, const LayerWeights& layer, const Rows& normed);
  void expert_parts(const ExpertSpec& spec, const LayerWeights& layer, const Rows& taken);
  void finish_part(const LayerSpec& spec, const NormVectors& after, const Rows& part,
                   const Rows& x);
  void show(const std::string& part, const Rows& x) const {
    if (dump) dump(part, x.data, x.rows, static_cast<int>(x.columns));
  }
  LogitsView logits_of(const Rows& x, const Rows& normed);
  LogitsView run(const KvPoolView& pool);
};

/// y (op)= W_down act(W_gate normed) * (W_up normed), with the biases that there are.
void LlamaModel::Impl::dense(const MlpSpec& spec, const FeedForwardWeights& w, const Rows& normed,
                             Epilogue epilogue, const Rows& y) {
  const Rows gated = rows_of(workspace.gated, normed.rows, spec.intermediate);
  if (spec.plain()) {
    ops.linear(normed, w.gate_up, Epilogue::silu_mul, gated);
  } else {
    const Rows up = rows_of(workspace.up, normed.rows, w.gate_up.out);
    ops.linear(normed, w.gate_up, Epilogue::store, up);
    ops.activate(up, activate_of(spec), w.up_bias.data(), gated);
  }
  ops.linear(gated, w.down, epilogue, y);
  if (!w.down_bias.empty()) ops.add_bias(w.down_bias.data(), y);
}

/// Which experts each row takes.
void LlamaModel::Impl::route(const ExpertSpec& e, const LayerWeights& layer, const Rows& normed) {
  const Rows routed = rows_of(workspace.routed, normed.rows);  // [T, experts]
  ops.linear(normed, layer.router, Epilogue::store, routed);
  if (!layer.router_bias.empty()) ops.add_bias(layer.router_bias.data(), routed);
  if (e.router == RouterKind::softmax) {
    ops.softmax(routed);
  } else {
    ops.sigmoid(routed);
  }
  const auto n = static_cast<std::size_t>(normed.rows) * static_cast<std::size_t>(e.count);
  expert_plan.make({routed.data, n},
                   {e.count, e.active, e.normalise, static_cast<float>(e.scale),
                    layer.choice_bias.data(), e.groups, e.active_groups, e.group_pairs});
}

/// taken = each of its groups through its expert.
void LlamaModel::Impl::expert_parts(const ExpertSpec& e, const LayerWeights& layer,
                                    const Rows& taken) {
  const Rows gated = rows_of(workspace.expert_gated, taken.rows);
  gate_up_groups.clear();
  down_groups.clear();
  for (const cpu::ExpertPlan::Group& group : expert_plan.groups()) {
    const FeedForwardWeights& expert = layer.experts[static_cast<std::size_t>(group.expert)];
    gate_up_groups.push_back({&expert.gate_up, group.first, group.rows});
    down_groups.push_back({&expert.down, group.first, group.rows});
  }
  const auto lines_of = [](const Rows& all, const cpu::ExpertPlan::Group& group) {
    return Rows{all.row(group.first), group.rows, all.columns};
  };
  if (e.expert.plain()) {
    ops.linear_groups(taken, gate_up_groups, Epilogue::silu_mul, gated);
  } else {
    const Rows up = rows_of(workspace.expert_up, taken.rows);
    ops.linear_groups(taken, gate_up_groups, Epilogue::store, up);
    for (const cpu::ExpertPlan::Group& group : expert_plan.groups()) {
      const FeedForwardWeights& expert = layer.experts[static_cast<std::size_t>(group.expert)];
      ops.activate(lines_of(up, group), activate_of(e.expert), expert.up_bias.data(),
                   lines_of(gated, group));
    }
  }
  ops.linear_groups(gated, down_groups, Epilogue::store, taken);  // over the inputs, now done with
  if (!e.expert.bias) return;
  for (const cpu::ExpertPlan::Group& group : expert_plan.groups()) {
    const FeedForwardWeights& expert = layer.experts[static_cast<std::size_t>(group.expert)];
    ops.add_bias(expert.down_bias.data(), lines_of(taken, group));
  }
}

/// x = x + sum over the row's experts e of p_e * feed_forward_e(normed), and what all rows take.
/// Rows are gathered by expert, so that an expert's weights are read once a step.
void LlamaModel::Impl::experts(const ExpertSpec& e, const LayerWeights& layer, const Rows& normed,
                               const Rows& x) {
  route(e, layer, normed);
  const Rows taken = rows_of(workspace.taken, normed.rows * e.active);  // [T active, hidden]
  ops.gather(normed, expert_plan.sources(), taken);
  expert_parts(e, layer, taken);
  ops.add_experts(expert_plan, taken, x);
  if (e.shared.intermediate == 0) return;
  if (!e.shared_gate) return dense(e.shared, layer.shared, normed, Epilogue::add, x);
  const Rows shared = rows_of(workspace.shared, normed.rows);
  const Rows gate = rows_of(workspace.shared_gate, normed.rows);
  dense(e.shared, layer.shared, normed, Epilogue::store, shared);
  ops.linear(normed, layer.shared_gate, Epilogue::store, gate);
  ops.add_gated(shared, gate, x);
}

/// x = x + residual * norm(part), where the layer norms what its parts give.
void LlamaModel::Impl::finish_part(const LayerSpec& spec, const NormVectors& after,
                                   const Rows& part, const Rows& x) {
  if (spec.norm != NormPlace::before) norm(part, after, part);
  ops.add(part, nullptr, static_cast<float>(spec.residual), x);
}

/// x = x + W_o attended
void LlamaModel::Impl::attention(const LayerSpec& spec, const LayerWeights& layer,
                                 const Rows& attended, const Rows& x) {
  const bool at_once = adds_at_once(spec);
  const Rows to = at_once ? x : rows_of(workspace.part, x.rows);
  ops.linear(attended, layer.o, at_once ? Epilogue::add : Epilogue::store, to);
  if (!layer.o_bias.empty()) ops.add_bias(layer.o_bias.data(), to);
  if (!at_once) finish_part(spec, layer.attention_after, to, x);
}

/// x = x + feed_forward(normed)
void LlamaModel::Impl::feed_forward(const LayerSpec& spec, const LayerWeights& layer,
                                    const Rows& normed, const Rows& x) {
  const bool at_once = adds_at_once(spec);
  const Rows to = at_once ? x : rows_of(workspace.part, x.rows);
  if (spec.sparse()) {
    if (!at_once) std::fill_n(to.data, to.rows * to.columns, 0.0F);
    experts(spec.experts, layer, normed, to);
  } else {
    dense(spec.mlp, layer.dense, normed, at_once ? Epilogue::add : Epilogue::store, to);
  }
  if (!at_once) finish_part(spec, layer.mlp_after, to, x);
}

/// Rows of each head through its own matrix.
void LlamaModel::Impl::through_heads(const Rows& from, const std::vector<PackedMatrix>& matrices,
                                     const Rows& to) {
  const int rows = from.rows / config.heads;
  gate_up_groups.clear();
  for (int h = 0; h < config.heads && rows > 0; ++h) {
    gate_up_groups.push_back({&matrices[static_cast<std::size_t>(h)], h * rows, rows});
  }
  ops.linear_groups(from, gate_up_groups, Epilogue::store, to);
}

/// Each head's query in latent numbers: W_absorb of what does not turn, and what turns; the token's
/// latent vector goes into the pool.
void LlamaModel::Impl::project_latent(const LayerSpec& spec, const LatentWeights& w,
                                      const Rows& normed, const KvLayer& kv, const Rows& wide) {
  const cpu::LatentShape shape = latent_shape(config);
  const bool interleaved = config.ropes.front().interleaved;
  const Rows latent = rows_of(workspace.kv, normed.rows);
  ops.linear(normed, w.kv_a, Epilogue::store, latent);
  ops.latent_append(latent, shape, w.kv_norm.data(), kLatentEps, interleaved, places_of(spec), kv);

  Rows from = normed;
  if (config.latent.q_rank > 0) {
    from = rows_of(workspace.q_a, normed.rows);
    ops.linear(normed, w.q_a, Epilogue::store, from);
    ops.norm(from, {w.q_norm.data(), nullptr, kLatentEps, false}, from);
  }
  const Rows q = rows_of(workspace.q, normed.rows);
  const Rows plain = rows_of(workspace.by_head, normed.rows * config.heads, shape.plain);
  const Rows absorbed = rows_of(workspace.latent_by_head, normed.rows * config.heads);
  ops.linear(from, w.q, Epilogue::store, q);
  ops.latent_split(q, shape, interleaved, places_of(spec), plain, wide);
  through_heads(plain, w.absorb, absorbed);
  ops.heads_to_rows(absorbed, shape.rank, shape.width(), wide);
}

/// q, k, v = W_qkv normed (+ bias; q and k normed); q and k turned by their position; k and v
/// written to the pool
void LlamaModel::Impl::project(const LayerSpec& spec, const LayerWeights& layer, const Rows& normed,
                               const KvLayer& kv, const Rows& qkv) {
  if (config.latent.rank > 0) return project_latent(spec, layer.latent, normed, kv, qkv);
  ops.qkv_rope_append(normed, layer.qkv, qkv_finish(spec, layer), places_of(spec), kv, qkv);
}

/// attended = attention(q, pool), of latent values through each head's matrix
void LlamaModel::Impl::look(const LayerSpec& spec, const LayerWeights& layer,
                            std::span<const Segment> segments, const KvLayer& kv, const Rows& qkv,
                            const Rows& attended) {
  if (config.latent.rank == 0) {
    return ops.attention(qkv, segments, attention_rule(spec, layer), kv, attended);
  }
  const cpu::LatentShape shape = latent_shape(config);
  const int value = config.latent.value;
  const Rows looked = rows_of(workspace.looked, qkv.rows);
  const Rows latent = rows_of(workspace.latent_by_head, qkv.rows * config.heads);
  const Rows values = rows_of(workspace.by_head, qkv.rows * config.heads, value);
  ops.attention(qkv, segments, attention_rule(spec, layer), kv, looked);
  ops.rows_to_heads(looked, shape.rank, shape.width(), latent);
  through_heads(latent, layer.latent.value, values);
  ops.heads_to_rows(values, value, value, attended);
}

/// logits = W_head norm(x)
LogitsView LlamaModel::Impl::logits_of(const Rows& x, const Rows& normed) {
  norm(x, weights.final_norm, normed);
  const int width = static_cast<int>(normed.columns);
  if (!batch.wants_logits) return {nullptr, x.rows, config.vocab, normed.data, width};
  const Rows logits = rows_of(workspace.logits, x.rows);  // [W, vocab]
  ops.linear(normed, weights.lm_head, Epilogue::store, logits);
  if (config.logits_scale != 1.0) ops.scale(static_cast<float>(config.logits_scale), logits);
  if (config.logits_cap > 0) ops.soft_cap(static_cast<float>(config.logits_cap), logits);
  show("logits", logits);
  return {logits.data, x.rows, config.vocab, normed.data, width};
}

/// The model: an interpreter of its spec, layer by layer. T = rows of the step, W = rows whose
/// logits are wanted; x is the residual stream.
LogitsView LlamaModel::Impl::run(const KvPoolView& pool) {
  const int wanted = static_cast<int>(batch.wanted.size());
  workspace.reserve(config, batch.rows(), batch.wants_logits ? wanted : 0);
  Rows x = rows_of(workspace.hidden, batch.rows());           // [T, hidden]
  Rows normed = rows_of(workspace.normed, batch.rows());      // [T, hidden]
  Rows qkv = rows_of(workspace.qkv, batch.rows());            // [T, (heads + 2 kv_heads) head_dim]
  Rows attended = rows_of(workspace.attended, batch.rows());  // [T, heads head_dim]
  std::span<const Segment> segments = batch.segments;

  // x = E[tokens]
  if (weights.embedding.data == nullptr) {
    ops.embed(weights.lm_head, batch.tokens, x);
  } else {
    ops.embed(weights.embedding.data, weights.embedding.type, batch.tokens, x);
  }
  if (config.embedding_scale != 1.0) ops.scale(static_cast<float>(config.embedding_scale), x);
  show("embed", x);

  for (std::uint32_t i = 0; i < weights.layers.size(); ++i) {
    const LayerSpec& spec = config.parts[i];
    const LayerWeights& layer = weights.layers[i];
    const std::string name = dump ? "layer" + std::to_string(i) : std::string();
    const KvLayer kv{pool.base, &pool.geometry, i};
    const bool normed_before = spec.norm != NormPlace::after;

    // q, k, v = W_qkv norm(x) (+ bias; q and k normed); q and k turned by their position; k and v
    // written to the pool
    if (normed_before) norm(x, layer.input_norm, normed);
    project(spec, layer, normed_before ? normed : x, kv, qkv);

    // Nothing but the wanted rows is needed behind the last keys and values: T becomes W.
    if (i + 1 == weights.layers.size()) {
      keep_rows(batch.wanted, x);
      keep_rows(batch.wanted, qkv);
      if (spec.parallel) keep_rows(batch.wanted, normed);
      segments = batch.wanted_segments;
      x.rows = normed.rows = qkv.rows = attended.rows = wanted;
    }

    // x = x + W_o attention(q, pool)
    look(spec, layer, segments, kv, qkv, attended);
    show(name + ".attended", attended);
    attention(spec, layer, attended, x);

    // x = x + feed_forward(norm(x))
    if (normed_before && !spec.parallel) norm(x, layer.post_norm, normed);
    feed_forward(spec, layer, normed_before ? normed : x, x);
    show(name, x);
  }
  if (wanted == 0) return {.vocab = config.vocab};
  return logits_of(x, normed);
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
  for (const StepRow& row : rows) impl_->batch.add(row, pool.geometry, impl_->ropes);
  return impl_->run(pool);
}

}  // namespace baton
