// The forward pass on CPUs: an interpreter of the model's spec, layer by layer.
#include <algorithm>
#include <string>

#include "workers/model/llama_impl.h"

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

cpu::LatentShape latent_shape(const ModelSpec& s) {
  return {s.latent.rank, s.latent.rope, s.latent.plain};
}

}  // namespace

/// y (op)= W_down act(W_gate normed) * (W_up normed), with the biases that there are.
void LlamaModel::Impl::dense(const MlpSpec& spec, const FeedForwardWeights& w, const Rows& normed,
                             Epilogue epilogue, const Rows& y) {
  const Rows gated = rows_of(workspace.gated, normed.rows, spec.intermediate);
  const Rows mine = own_columns(gated, cut.part(spec.intermediate));
  if (spec.plain()) {
    ops.linear(normed, w.gate_up, Epilogue::silu_mul, mine);
  } else {
    const Rows up = rows_of(workspace.up, normed.rows, w.gate_up.out);
    ops.linear(normed, w.gate_up, Epilogue::store, up);
    ops.activate(up, activate_of(spec), w.up_bias.data(), mine);
  }
  gather(gated);
  ops.linear(gated, w.down, epilogue, own_columns(y, hidden));
  gather(y);
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

/// taken = each of its groups through its expert. A rank computes the lines of its own experts.
void LlamaModel::Impl::expert_parts(const ExpertSpec& e, const LayerWeights& layer,
                                    const Rows& taken) {
  const Rows gated = rows_of(workspace.expert_gated, taken.rows);
  const Slice own = cut.part(e.count);
  gate_up_groups.clear();
  down_groups.clear();
  own_groups.clear();
  for (const cpu::ExpertPlan::Group& each : expert_plan.groups()) {
    if (!own.holds(each.expert)) continue;
    const FeedForwardWeights& expert = layer.experts[static_cast<std::size_t>(each.expert)];
    gate_up_groups.push_back({&expert.gate_up, each.first, each.rows});
    down_groups.push_back({&expert.down, each.first, each.rows});
    own_groups.push_back(each);
  }
  const auto lines_of = [](const Rows& all, const cpu::ExpertPlan::Group& each) {
    return Rows{all.row(each.first), each.rows, all.columns};
  };
  if (e.expert.plain()) {
    ops.linear_groups(taken, gate_up_groups, Epilogue::silu_mul, gated);
  } else {
    const Rows up = rows_of(workspace.expert_up, taken.rows);
    ops.linear_groups(taken, gate_up_groups, Epilogue::store, up);
    for (const cpu::ExpertPlan::Group& each : own_groups) {
      const FeedForwardWeights& expert = layer.experts[static_cast<std::size_t>(each.expert)];
      ops.activate(lines_of(up, each), activate_of(e.expert), expert.up_bias.data(),
                   lines_of(gated, each));
    }
  }
  ops.linear_groups(gated, down_groups, Epilogue::store, taken);  // over the inputs, now done with
  if (e.expert.bias) {
    for (const cpu::ExpertPlan::Group& each : own_groups) {
      const FeedForwardWeights& expert = layer.experts[static_cast<std::size_t>(each.expert)];
      ops.add_bias(expert.down_bias.data(), lines_of(taken, each));
    }
  }
  if (group == nullptr) return;
  line_owners.resize(static_cast<std::size_t>(taken.rows));
  for (const cpu::ExpertPlan::Group& each : expert_plan.groups()) {
    std::fill_n(line_owners.begin() + each.first, each.rows, cut.owner(e.count, each.expert));
  }
  group->gather_rows(taken.data, taken.rows, taken.columns,
                     [this](int line) { return line_owners[static_cast<std::size_t>(line)]; });
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
  ops.linear(attended, layer.o, at_once ? Epilogue::add : Epilogue::store, own_columns(to, hidden));
  gather(to);
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
  const int rows = from.rows / heads;
  gate_up_groups.clear();
  for (int h = 0; h < heads && rows > 0; ++h) {
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
  ops.latent_append(latent, shape, w.kv_norm.data(), LatentSpec::kEps, interleaved,
                    places_of(spec, kv), kv);

  Rows from = normed;
  if (config.latent.q_rank > 0) {
    from = rows_of(workspace.q_a, normed.rows);
    ops.linear(normed, w.q_a, Epilogue::store, from);
    ops.norm(from, {w.q_norm.data(), nullptr, LatentSpec::kEps, false}, from);
  }
  const Rows q = rows_of(workspace.q, normed.rows);
  const Rows plain = rows_of(workspace.by_head, normed.rows * heads, shape.plain);
  const Rows absorbed = rows_of(workspace.latent_by_head, normed.rows * heads);
  ops.linear(from, w.q, Epilogue::store, q);
  ops.latent_split(q, shape, interleaved, places_of(spec, kv), plain, wide);
  through_heads(plain, w.absorb, absorbed);
  ops.heads_to_rows(absorbed, shape.rank, shape.width(), wide);
}

/// attended = attention(q, pool), of latent values through each head's matrix
void LlamaModel::Impl::look(const LayerSpec& spec, const LayerWeights& layer,
                            std::span<const Segment> segments, const KvLayer& kv, const Rows& qkv,
                            const Rows& attended) {
  const Rows mine = own_columns(attended, cut.part(attended.columns));
  if (config.latent.rank == 0) {
    ops.attention(qkv, segments, attention_rule(spec, layer), kv, mine);
    return gather(attended);
  }
  const cpu::LatentShape shape = latent_shape(config);
  const int value = config.latent.value;
  const Rows looked = rows_of(workspace.looked, qkv.rows);
  const Rows latent = rows_of(workspace.latent_by_head, qkv.rows * heads);
  const Rows values = rows_of(workspace.by_head, qkv.rows * heads, value);
  ops.attention(qkv, segments, attention_rule(spec, layer), kv, looked);
  ops.rows_to_heads(looked, shape.rank, shape.width(), latent);
  through_heads(latent, layer.latent.value, values);
  ops.heads_to_rows(values, value, value, mine);
  gather(attended);
}

/// logits = W_head norm(x)
LogitsView LlamaModel::Impl::logits_of(const Rows& x, const Rows& normed) {
  norm(x, weights.final_norm, normed);
  const int width = static_cast<int>(normed.columns);
  if (!batch.wants_logits) return {nullptr, x.rows, config.vocab, normed.data, width};
  const Rows logits = rows_of(workspace.logits, x.rows);  // [W, vocab]
  ops.linear(normed, weights.lm_head, Epilogue::store, own_columns(logits, cut.part(config.vocab)));
  gather(logits, 0);
  const LogitsView view{logits.data, x.rows, config.vocab, normed.data, width};
  if (cut.rank != 0) return view;
  if (config.logits_scale != 1.0) ops.scale(static_cast<float>(config.logits_scale), logits);
  if (config.logits_cap > 0) ops.soft_cap(static_cast<float>(config.logits_cap), logits);
  show("logits", logits);
  return view;
}

/// The model: an interpreter of its spec, layer by layer. T = rows of the step, W = rows whose
/// logits are wanted; x is the residual stream.
LogitsView LlamaModel::Impl::run(const KvPoolView& pool) {
  const int wanted = static_cast<int>(batch.wanted.size());
  workspace.reserve(config, cut, batch.rows(), batch.wants_logits ? wanted : 0);
  Rows x = rows_of(workspace.hidden, batch.rows());           // [T, hidden]
  Rows normed = rows_of(workspace.normed, batch.rows());      // [T, hidden]
  Rows qkv = rows_of(workspace.qkv, batch.rows());            // [T, (heads + 2 kv_heads) head_dim]
  Rows attended = rows_of(workspace.attended, batch.rows());  // [T, heads head_dim]
  std::span<const Segment> segments = batch.segments;

  embed(x);
  if (config.embedding_scale != 1.0) ops.scale(static_cast<float>(config.embedding_scale), x);
  show("embed", x);

  for (std::uint32_t i = 0; i < weights.layers.size(); ++i) {
    const LayerSpec& spec = config.parts[i];
    const LayerWeights& layer = weights.layers[i];
    const std::string name = dump ? "layer" + std::to_string(i) : std::string();
    const KvLayer kv{pool.base,
                     &pool.geometry,
                     plan.places[i].layer,
                     plan.places[i].group,
                     static_cast<std::uint32_t>(cut.kv_heads(config).first),
                     cut.writes_kv(config)};
    const bool normed_before = spec.norm != NormPlace::after;

    if (normed_before) norm(x, layer.input_norm, normed);
    project(spec, layer, normed_before ? normed : x, kv, qkv);
    if (hooks.before_attention) hooks.before_attention(i + 1);
    if (group == nullptr) tell_written(i + 1);

    // Nothing but the wanted rows is needed behind the last keys and values: T becomes W.
    const bool last = i + 1 == weights.layers.size();
    if (last) {
      keep_rows(batch.wanted, x);
      keep_rows(batch.wanted, qkv);
      if (spec.parallel) keep_rows(batch.wanted, normed);
      segments = batch.wanted_segments;
      x.rows = normed.rows = qkv.rows = attended.rows = wanted;
    }

    // x = x + W_o attention(q, pool)
    look(spec, layer, segments, kv, qkv, attended);
    // What each rank gives to the exchange that ends look() comes behind its keys and values. In
    // the last layer there may be no row, and no exchange.
    if (group != nullptr && !last) tell_written(i + 1);
    show(name + ".attended", attended);
    attention(spec, layer, attended, x);

    // x = x + feed_forward(norm(x))
    if (normed_before && !spec.parallel) norm(x, layer.post_norm, normed);
    feed_forward(spec, layer, normed_before ? normed : x, x);
    show(name, x);
  }
  const LogitsView logits = wanted == 0 ? LogitsView{.vocab = config.vocab} : logits_of(x, normed);
  end_step(rows_of(workspace.normed, wanted));
  if (group != nullptr) tell_written(static_cast<std::uint32_t>(weights.layers.size()));
  return logits;
}

}  // namespace baton
