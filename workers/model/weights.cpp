#include "workers/model/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
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

PackedMatrix linear(const MatrixSource& source, const Packing& how) {
  return packed({&source, 1}, false, how);
}

/// Rows [first, first + rows) of a matrix.
MatrixSource rows_of(const MatrixSource& source, std::int64_t first, std::int64_t rows) {
  MatrixSource part = source;
  part.data += first * source.columns * cpu::element_bytes(source.type);
  part.rows = rows;
  return part;
}

FeedForwardWeights pack_feed_forward(CheckpointReader& reader, const FeedForwardSource& source,
                                     const MlpSpec& spec, const Packing& how) {
  FeedForwardWeights weights;
  const bool fused = spec.gated && source.up.rows() == 0;
  if (!spec.gated) {
    weights.gate_up = linear(reader.dequantized(source.up), how);
  } else if (fused && !spec.plain()) {
    weights.gate_up = linear(reader.dequantized(source.gate), how);
  } else if (fused) {
    const MatrixSource both = reader.dequantized(source.gate);
    const std::int64_t half = both.rows / 2;
    weights.gate_up =
        packed(std::array{rows_of(both, 0, half), rows_of(both, half, half)}, true, how);
  } else {
    weights.gate_up =
        packed(std::array{reader.dequantized(source.gate), reader.dequantized(source.up)},
               spec.plain(), how);
  }
  weights.down = linear(reader.dequantized(source.down), how);
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
  if (l.q_rank > 0) weights.q_a = linear(reader.dequantized(source.q_a), how);
  weights.q_norm = stored(source.q_norm, how);
  weights.q = linear(reader.dequantized(source.q), how);
  weights.kv_a = linear(reader.dequantized(source.kv_a), how);
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
  if (source.k.rows() == 0) return linear(reader.dequantized(source.q), how);
  return packed(std::array{reader.dequantized(source.q), reader.dequantized(source.k),
                           reader.dequantized(source.v)},
                false, how);
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
  layer.o = linear(reader.dequantized(source.o), how);
  layer.o_bias = stored(source.o_bias, how);
  layer.post_norm = {stored(source.post_norm, how), stored(source.norm_biases[2], how)};
  layer.mlp_after = {stored(source.mlp_after, how), stored(source.norm_biases[3], how)};
  if (!config.sparse(index)) {
    layer.dense = pack_feed_forward(reader, source.dense, config.layer(index).mlp, how);
    return layer;
  }
  const ExpertSpec& e = config.layer(index).experts;
  layer.router = linear(reader.dequantized(source.router), how);
  layer.router_bias = stored(source.router_bias, how);
  layer.choice_bias = stored(source.choice_bias, how);
  if (e.shared.intermediate > 0) {
    layer.shared = pack_feed_forward(reader, source.shared, e.shared, how);
  }
  if (e.shared_gate) layer.shared_gate = linear(reader.dequantized(source.shared_gate), how);
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
  const MatrixSource table = reader.embedding();
  check_finite(table);
  weights.embedding = embedding_of(table, how);
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(pack_layer(reader, config, i, how));
  }
  weights.final_norm = {stored(reader.final_norm(), how), stored(reader.final_norm_bias(), how)};
  weights.lm_head = linear(reader.dequantized(reader.lm_head()), how);
  reader.expect_all_taken();
  weights.memory = std::move(memory);
  if (progress != nullptr) progress->store(100);
  return weights;
}

}  // namespace baton
