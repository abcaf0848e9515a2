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
  cpu::ThreadPool& pool;
  WeightMemory& memory;
};

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
std::optional<cpu::GroupedType> common_type(std::span<const LinearSource* const> sources,
                                            const Packing& how) {
  if (how.choice != WeightChoice::stored || !sources.front()->grouped) return std::nullopt;
  cpu::GroupedType type = *sources.front()->grouped;
  for (const LinearSource* source : sources.subspan(1)) {
    if (!source->grouped || !cpu::join_types(type, *source->grouped)) return std::nullopt;
  }
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

/// Layers stacked along their outputs, or (`paired`) gate and up with alternating panels.
PackedMatrix stacked(CheckpointReader& reader, std::initializer_list<const LinearSource*> sources,
                     bool paired, const Packing& how) {
  if (const auto type = common_type({sources.begin(), sources.size()}, how)) {
    std::vector<cpu::GroupedMatrix> parts;
    for (const LinearSource* source : sources) parts.push_back(reader.grouped(*source));
    return packed_grouped(parts, paired, *type, how);
  }
  std::vector<MatrixSource> parts;
  for (const LinearSource* source : sources) parts.push_back(reader.dequantized(*source));
  return packed(parts, paired, how);
}

/// One that is made of others', in no form of the checkpoint's own.
PackedMatrix linear(const MatrixSource& source, const Packing& how) {
  return packed({&source, 1}, false, how);
}

PackedMatrix linear(CheckpointReader& reader, const LinearSource& source, const Packing& how) {
  return stacked(reader, {&source}, false, how);
}

/// Rows [first, first + rows) of a matrix.
MatrixSource rows_of(const MatrixSource& source, std::int64_t first, std::int64_t rows) {
  MatrixSource part = source;
  part.data += first * source.columns * cpu::element_bytes(source.type);
  part.rows = rows;
  return part;
}

/// The upper and the lower half of the rows.
std::array<cpu::GroupedMatrix, 2> halves_of(const cpu::GroupedMatrix& both) {
  std::array<cpu::GroupedMatrix, 2> halves;
  const auto half_of = [](const auto& list, std::size_t half) {
    const auto size = static_cast<std::ptrdiff_t>(list.size() / 2);
    const auto begin = list.begin() + static_cast<std::ptrdiff_t>(half) * size;
    return std::remove_cvref_t<decltype(list)>(begin, begin + size);
  };
  for (std::size_t i = 0; i < 2; ++i) {
    halves[i].out = both.out / 2;
    halves[i].in = both.in;
    halves[i].type = both.type;
    halves[i].q = half_of(both.q, i);
    halves[i].scale = half_of(both.scale, i);
    halves[i].second = half_of(both.second, i);
    halves[i].name = both.name;
  }
  return halves;
}

FeedForwardWeights pack_feed_forward(CheckpointReader& reader, const FeedForwardSource& source,
                                     const MlpSpec& spec, const Packing& how) {
  FeedForwardWeights weights;
  const bool fused = spec.gated && source.up.rows() == 0;
  if (!spec.gated) {
    weights.gate_up = linear(reader, source.up, how);
  } else if (fused && !spec.plain()) {
    weights.gate_up = linear(reader, source.gate, how);
  } else if (const LinearSource* one = &source.gate; fused && common_type({&one, 1}, how)) {
    weights.gate_up = packed_grouped(halves_of(reader.grouped(*one)), true, *one->grouped, how);
  } else if (fused) {
    const MatrixSource both = reader.dequantized(source.gate);
    const std::int64_t half = both.rows / 2;
    weights.gate_up =
        packed(std::array{rows_of(both, 0, half), rows_of(both, half, half)}, true, how);
  } else {
    weights.gate_up = stacked(reader, {&source.gate, &source.up}, spec.plain(), how);
  }
  weights.down = linear(reader, source.down, how);
  weights.up_bias = stored(source.up_bias, how);
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
  weights.q = linear(reader, source.q, how);
  weights.kv_a = linear(reader, source.kv_a, how);
  weights.kv_norm = stored(source.kv_norm, how);
  const MatrixSource all = reader.dequantized(source.kv_b);
  for (int h = 0; h < config.heads; ++h) {
    const std::int64_t first = std::int64_t{h} * (l.plain + l.value);
    weights.absorb.push_back(linear(transposed(rows_of(all, first, l.plain)), how));
    weights.value.push_back(linear(rows_of(all, first + l.plain, l.value), how));
  }
  return weights;
}

PackedMatrix pack_qkv(CheckpointReader& reader, const LayerSource& source, const Packing& how) {
  if (source.k.rows() == 0) return linear(reader, source.q, how);
  return stacked(reader, {&source.q, &source.k, &source.v}, false, how);
}

LayerWeights pack_layer(CheckpointReader& reader, const ModelConfig& config, int index,
                        const Packing& how) {
  const LayerSource source = reader.layer(index);
  LayerWeights layer;
  layer.input_norm = {stored(source.input_norm, how), stored(source.norm_biases[0], how)};
  layer.attention_after = {stored(source.attention_after, how), stored(source.norm_biases[1], how)};
  if (config.latent.rank > 0) {
    layer.latent = pack_latent(reader, source.latent, config, how);
  } else {
    layer.qkv = pack_qkv(reader, source, how);
  }
  layer.qkv_bias = stored(source.qkv_bias, how);
  layer.q_norm = stored(source.q_norm, how);
  layer.k_norm = stored(source.k_norm, how);
  layer.sinks = stored(source.sinks, how);
  layer.o = linear(reader, source.o, how);
  layer.o_bias = stored(source.o_bias, how);
  layer.post_norm = {stored(source.post_norm, how), stored(source.norm_biases[2], how)};
  layer.mlp_after = {stored(source.mlp_after, how), stored(source.norm_biases[3], how)};
  if (!config.sparse(index)) {
    layer.dense = pack_feed_forward(reader, source.dense, config.layer(index).mlp, how);
    return layer;
  }
  const ExpertSpec& e = config.layer(index).experts;
  layer.router = linear(reader, source.router, how);
  layer.router_bias = stored(source.router_bias, how);
  layer.choice_bias = stored(source.choice_bias, how);
  if (e.shared.intermediate > 0) {
    layer.shared = pack_feed_forward(reader, source.shared, e.shared, how);
  }
  if (e.shared_gate) layer.shared_gate = linear(reader, source.shared_gate, how);
  for (int i = 0; i < e.count; ++i) {
    layer.experts.push_back(pack_feed_forward(reader, reader.expert(index, i), e.expert, how));
  }
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
                     int threads, std::atomic<int>* progress,
                     std::shared_ptr<WeightMemory> memory) {
  CheckpointReader reader(config, checkpoint, progress, threads);
  cpu::ThreadPool pool(threads);
  const Packing how{choice, pool, *memory};
  Weights weights;
  const LinearSource head = reader.lm_head();
  const LinearSource* const only = &head;
  if (!config.tied_embeddings || !common_type({&only, 1}, how)) {
    const MatrixSource table = reader.embedding();
    check_finite(table);
    weights.embedding = embedding_of(table, how);
  }
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(pack_layer(reader, config, i, how));
  }
  weights.final_norm = {stored(reader.final_norm(), how), stored(reader.final_norm_bias(), how)};
  weights.lm_head = linear(reader, head, how);
  reader.expect_all_taken();
  weights.memory = std::move(memory);
  if (progress != nullptr) progress->store(100);
  return weights;
}

}  // namespace baton
