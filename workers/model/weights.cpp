#include "workers/model/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/finite.h"

namespace baton {
namespace {

using cpu::ElementType;
using cpu::MatrixSource;
using cpu::WeightType;

WeightType chosen(WeightChoice choice, std::span<const MatrixSource> parts) {
  if (choice == WeightChoice::stored) return cpu::packed_type(parts);
  return choice == WeightChoice::bf16 ? WeightType::bf16 : WeightType::f32;
}

/// How all weights are packed.
struct Packing {
  WeightChoice choice;
  Activations activations;
  cpu::ThreadPool& pool;
  WeightMemory& memory;
  const ModelCut& cut;
};

/// The rows of a layer that are wanted.
struct LinearRows {
  const LinearSource* source;
  Slice rows;
};

LinearRows all_of(const LinearSource& source) { return {&source, {0, source.rows()}}; }

std::int64_t bytes_of(WeightType type) { return type == WeightType::bf16 ? 2 : 4; }

WeightVector stored(const std::vector<float>& values, const Packing& how) {
  if (values.empty()) return {};
  auto* to = reinterpret_cast<float*>(how.memory.take(values.size() * sizeof(float)));
  std::copy(values.begin(), values.end(), to);
  return {to, values.size()};
}

PackedMatrix packed(std::span<const MatrixSource> parts, bool paired, const Packing& how) {
  std::int64_t out = 0;
  std::int64_t panels = 0;
  for (const MatrixSource& part : parts) {
    out += part.rows;
    panels += cpu::panels_for(part.rows);
  }
  if (!paired) panels = cpu::panels_for(out);
  const std::int64_t in = parts.front().columns;
  const WeightType type = chosen(how.choice, parts);
  void* memory =
      how.memory.take(static_cast<std::size_t>(panels * in * cpu::kPanelColumns * bytes_of(type)));
  if (paired) {
    check_finite(cpu::pack_paired(parts[0], parts[1], type, how.pool, memory));
  } else {
    check_finite(cpu::pack_stacked(parts, type, how.pool, memory));
  }
  const std::int64_t columns = paired ? parts.front().rows : out;
  return {memory, type, static_cast<int>(panels), static_cast<int>(in), static_cast<int>(columns),
          paired};
}

/// The type that all of these layers have as whole numbers; nothing if one has none, or if weights
/// are asked for in another form.
std::optional<cpu::GroupedType> common_type(std::span<const LinearRows> parts, const Packing& how) {
  const auto& first = parts.front().source->grouped;
  if (how.choice != WeightChoice::stored || !first) return std::nullopt;
  cpu::GroupedType type = *first;
  for (const LinearRows& part : parts.subspan(1)) {
    const auto& other = part.source->grouped;
    if (!other || !cpu::join_types(type, *other)) return std::nullopt;
  }
  type.format.rounds_inputs = how.activations == Activations::int8;
  return type;
}

PackedMatrix packed_grouped(std::span<const cpu::GroupedMatrix> parts, bool paired,
                            const cpu::GroupedType& type, const Packing& how) {
  std::int64_t out = 0;
  for (const cpu::GroupedMatrix& part : parts) out += part.out;
  const std::int64_t columns = paired ? parts.front().out : out;
  const std::int64_t panels = paired ? 2 * cpu::panels_for(columns) : cpu::panels_for(out);
  const std::int64_t in = parts.front().in;
  void* memory = how.memory.take(
      static_cast<std::size_t>(panels * cpu::panel_bytes(in, type.type, type.format)));
  cpu::pack_grouped(parts, paired, type, how.pool, memory);
  return {
      memory, type.type,  static_cast<int>(panels), static_cast<int>(in), static_cast<int>(columns),
      paired, type.format};
}

cpu::GroupedMatrix grouped_rows(const cpu::GroupedMatrix& all, const Slice& rows) {
  const auto of = [&](const auto& list) {
    const auto each = static_cast<std::ptrdiff_t>(list.size()) / all.out;
    const auto begin = list.begin() + rows.first * each;
    return std::remove_cvref_t<decltype(list)>(begin, begin + rows.count * each);
  };
  cpu::GroupedMatrix part{rows.count, all.in, all.type, of(all.q), of(all.scale), of(all.second)};
  part.name = all.name;
  return part;
}

/// Rows of layers stacked along their outputs, or (`paired`) gate's and up's with alternating
/// panels. A layer that is named twice in turn is read once.
PackedMatrix stacked(CheckpointReader& reader, std::span<const LinearRows> wanted, bool paired,
                     const Packing& how) {
  const LinearSource* last = nullptr;
  if (const auto type = common_type(wanted, how)) {
    std::vector<cpu::GroupedMatrix> parts;
    cpu::GroupedMatrix whole;
    for (const LinearRows& part : wanted) {
      if (part.source != last) whole = reader.grouped(*part.source);
      last = part.source;
      parts.push_back(grouped_rows(whole, part.rows));
    }
    return packed_grouped(parts, paired, *type, how);
  }
  std::vector<MatrixSource> parts;
  MatrixSource whole;
  for (const LinearRows& part : wanted) {
    if (!part.source->lazy) {
      parts.push_back(reader.dequantized(*part.source, part.rows));
      continue;
    }
    if (part.source != last) whole = reader.dequantized(*part.source);
    last = part.source;
    parts.push_back(rows_of(whole, part.rows));
  }
  return packed(parts, paired, how);
}

/// One that is made of others', in no form of the checkpoint's own.
PackedMatrix linear(const MatrixSource& source, const Packing& how) {
  return packed({&source, 1}, false, how);
}

PackedMatrix linear(CheckpointReader& reader, const LinearSource& source, const Slice& rows,
                    const Packing& how) {
  return stacked(reader, std::array{LinearRows{&source, rows}}, false, how);
}

PackedMatrix linear(CheckpointReader& reader, const LinearSource& source, const Packing& how) {
  return stacked(reader, std::array{all_of(source)}, false, how);
}

/// The values at `slices`, one slice after the other.
std::vector<float> values_at(const std::vector<float>& all, std::initializer_list<Slice> slices) {
  std::vector<float> some;
  if (all.empty()) return some;
  for (const Slice& slice : slices) {
    some.insert(some.end(), all.begin() + slice.first, all.begin() + slice.end());
  }
  return some;
}

Slice behind(std::int64_t first, const Slice& slice) { return {first + slice.first, slice.count}; }

/// `middle`: the outputs of gate and up that are wanted; `out`: those of down.
FeedForwardWeights pack_feed_forward(CheckpointReader& reader, const FeedForwardSource& source,
                                     const MlpSpec& spec, const Slice& middle, const Slice& out,
                                     const Packing& how) {
  FeedForwardWeights weights;
  const bool fused = spec.gated && source.up.rows() == 0;
  const Slice second = behind(spec.intermediate, middle);  // where up follows gate
  if (!spec.gated) {
    weights.gate_up = linear(reader, source.up, middle, how);
  } else {
    const LinearRows up = fused ? LinearRows{&source.gate, second} : LinearRows{&source.up, middle};
    weights.gate_up =
        stacked(reader, std::array{LinearRows{&source.gate, middle}, up}, spec.plain(), how);
  }
  weights.down = linear(reader, source.down, out, how);
  weights.up_bias = stored(spec.gated ? values_at(source.up_bias, {middle, second})
                                      : values_at(source.up_bias, {middle}),
                           how);
  weights.down_bias = stored(source.down_bias, how);
  return weights;
}

/// Columns become rows, in memory of its own.
MatrixSource transposed(const MatrixSource& source) {
  const auto each = static_cast<std::size_t>(cpu::element_bytes(source.type));
  const auto rows = static_cast<std::size_t>(source.rows);
  const auto columns = static_cast<std::size_t>(source.columns);
  std::shared_ptr<std::byte[]> memory(new std::byte[rows * columns * each]);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      std::memcpy(&memory[(c * rows + r) * each], source.data + (r * columns + c) * each, each);
    }
  }
  MatrixSource turned = source;
  turned.data = memory.get();
  turned.rows = source.columns;
  turned.columns = source.rows;
  turned.owner = std::move(memory);
  return turned;
}

LatentWeights pack_latent(CheckpointReader& reader, const LatentSource& source,
                          const ModelConfig& config, const Packing& how) {
  const LatentSpec& l = config.latent;
  LatentWeights weights;
  if (l.q_rank > 0) weights.q_a = linear(reader, source.q_a, how);
  weights.q_norm = stored(source.q_norm, how);
  const Slice heads = how.cut.heads(config);
  const int query = l.plain + l.rope;
  weights.q = linear(reader, source.q, {heads.first * query, heads.count * query}, how);
  weights.kv_a = linear(reader, source.kv_a, how);
  weights.kv_norm = stored(source.kv_norm, how);
  const std::int64_t each = l.plain + l.value;
  const MatrixSource all =
      reader.dequantized(source.kv_b, {heads.first * each, heads.count * each});
  for (std::int64_t h = 0; h < heads.count; ++h) {
    const std::int64_t first = h * each;
    weights.absorb.push_back(linear(transposed(rows_of(all, {first, l.plain})), how));
    weights.value.push_back(linear(rows_of(all, {first + l.plain, l.value}), how));
  }
  return weights;
}

/// The outputs of q, k and v that belong to the rank's heads.
struct QkvRows {
  QkvRows(const ModelSpec& s, const ModelCut& cut)
      : q(of_heads(s, cut.heads(s))),
        kv(of_heads(s, cut.kv_heads(s))),
        k_in_all(behind(std::int64_t{s.heads} * s.head_dim, kv)),
        v_in_all(behind(std::int64_t{s.heads + s.kv_heads} * s.head_dim, kv)) {}
  static Slice of_heads(const ModelSpec& s, const Slice& heads) {
    return {heads.first * s.head_dim, heads.count * s.head_dim};
  }
  Slice q, kv;
  Slice k_in_all, v_in_all;  // where all three are one layer
};

PackedMatrix pack_qkv(CheckpointReader& reader, const LayerSource& source, const QkvRows& rows,
                      const Packing& how) {
  const bool fused = source.k.rows() == 0;
  const LinearSource& k = fused ? source.q : source.k;
  const LinearSource& v = fused ? source.q : source.v;
  return stacked(
      reader,
      std::array{LinearRows{&source.q, rows.q}, LinearRows{&k, fused ? rows.k_in_all : rows.kv},
                 LinearRows{&v, fused ? rows.v_in_all : rows.kv}},
      false, how);
}

/// The feed-forward part of a layer: of its experts those that belong to this rank.
void pack_experts(CheckpointReader& reader, const LayerSource& source, const ModelConfig& config,
                  int index, const Packing& how, LayerWeights& layer) {
  const ExpertSpec& e = config.layer(index).experts;
  const Slice hidden = how.cut.part(config.hidden);
  layer.router = linear(reader, source.router, how);
  layer.router_bias = stored(source.router_bias, how);
  layer.choice_bias = stored(source.choice_bias, how);
  if (e.shared.intermediate > 0) {
    layer.shared = pack_feed_forward(reader, source.shared, e.shared,
                                     how.cut.part(e.shared.intermediate), hidden, how);
  }
  if (e.shared_gate) layer.shared_gate = linear(reader, source.shared_gate, how);
  const Slice experts = how.cut.part(e.count);
  for (int i = 0; i < e.count; ++i) {
    if (!experts.holds(i)) {
      reader.leave_expert(index, i);
      layer.experts.emplace_back();
      continue;
    }
    layer.experts.push_back(pack_feed_forward(reader, reader.expert(index, i), e.expert,
                                              {0, e.expert.intermediate}, {0, config.hidden}, how));
  }
}

LayerWeights pack_layer(CheckpointReader& reader, const ModelConfig& config, int index,
                        const Packing& how) {
  const LayerSource source = reader.layer(index);
  const ModelCut& cut = how.cut;
  const AttentionSpec& attention = config.layer(index).attention;
  const QkvRows qkv_rows(config, cut);
  const Slice hidden = cut.part(config.hidden);
  LayerWeights layer;
  layer.input_norm = {stored(source.input_norm, how), stored(source.norm_biases[0], how)};
  layer.attention_after = {stored(source.attention_after, how), stored(source.norm_biases[1], how)};
  if (config.latent.rank > 0) {
    layer.latent = pack_latent(reader, source.latent, config, how);
  } else {
    layer.qkv = pack_qkv(reader, source, qkv_rows, how);
  }
  // A norm of all of q and of all of k needs all of their biases.
  layer.qkv_bias =
      stored(attention.qk_norm == QkNorm::whole
                 ? source.qkv_bias
                 : values_at(source.qkv_bias, {qkv_rows.q, qkv_rows.k_in_all, qkv_rows.v_in_all}),
             how);
  layer.q_norm = stored(source.q_norm, how);
  layer.k_norm = stored(source.k_norm, how);
  layer.sinks = stored(values_at(source.sinks, {cut.heads(config)}), how);
  layer.o = linear(reader, source.o, hidden, how);
  layer.o_bias = stored(source.o_bias, how);
  layer.post_norm = {stored(source.post_norm, how), stored(source.norm_biases[2], how)};
  layer.mlp_after = {stored(source.mlp_after, how), stored(source.norm_biases[3], how)};
  if (config.sparse(index)) {
    pack_experts(reader, source, config, index, how, layer);
    return layer;
  }
  const MlpSpec& mlp = config.layer(index).mlp;
  layer.dense =
      pack_feed_forward(reader, source.dense, mlp, cut.part(mlp.intermediate), hidden, how);
  return layer;
}

/// The table, row by row as it is stored.
EmbeddingTable embedding_of(const MatrixSource& source, const Packing& how) {
  const WeightType type = chosen(how.choice, {&source, 1});
  const std::int64_t n = source.rows * source.columns;
  std::byte* memory = how.memory.take(static_cast<std::size_t>(n * bytes_of(type)));
  const bool as_stored =
      source.type == (type == WeightType::bf16 ? ElementType::bf16 : ElementType::f32);
  if (as_stored) {
    std::memcpy(memory, source.data, static_cast<std::size_t>(n * bytes_of(type)));
  } else if (type == WeightType::bf16) {
    auto* to = reinterpret_cast<std::uint16_t*>(memory);
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = cpu::round_to_bf16(cpu::element(source.data, source.type, i));
    }
  } else {
    auto* to = reinterpret_cast<float*>(memory);
    for (std::int64_t i = 0; i < n; ++i) to[i] = cpu::element(source.data, source.type, i);
  }
  return {memory, type, source.rows, source.columns};
}

}  // namespace

Weights pack_weights(const ModelConfig& config, const Checkpoint& checkpoint, WeightChoice choice,
                     int threads, std::atomic<int>* progress, std::shared_ptr<WeightMemory> memory,
                     const ModelCut& cut, Activations activations) {
  CheckpointReader reader(config, checkpoint, progress, threads);
  cpu::ThreadPool pool(threads);
  const Packing how{choice, activations, pool, *memory, cut};
  Weights weights;
  const LinearSource head = reader.lm_head();
  const Slice tokens = cut.part(config.vocab);
  if (!config.tied_embeddings || !common_type(std::array{all_of(head)}, how)) {
    const MatrixSource table = reader.embedding_rows(tokens);
    check_finite(table);
    weights.embedding = embedding_of(table, how);
  }
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(pack_layer(reader, config, i, how));
  }
  weights.final_norm = {stored(reader.final_norm(), how), stored(reader.final_norm_bias(), how)};
  const std::uint64_t read = reader.bytes_read();
  weights.lm_head = linear(reader, head, tokens, how);
  reader.expect_all_taken();
  // A tied head's rows are those of the embedding, which have been read.
  const bool again = config.tied_embeddings && weights.embedding.data != nullptr;
  weights.bytes_read = again ? read : reader.bytes_read();
  weights.memory = std::move(memory);
  if (progress != nullptr) progress->store(100);
  return weights;
}

}  // namespace baton
