#include "workers/model/weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/finite.h"

namespace baton {
namespace {

using cpu::ElementType;
using cpu::MatrixSource;
using cpu::WeightType;

at::Tensor empty(at::IntArrayRef shape, WeightType type) {
  return at::empty(shape, type == WeightType::bf16 ? at::kBFloat16 : at::kFloat);
}

at::Tensor tensor_of(const std::vector<float>& values) {
  at::Tensor tensor = empty({static_cast<std::int64_t>(values.size())}, WeightType::f32);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

WeightType chosen(WeightChoice choice, std::span<const MatrixSource> parts) {
  if (choice == WeightChoice::stored) return cpu::packed_type(parts);
  return choice == WeightChoice::bf16 ? WeightType::bf16 : WeightType::f32;
}

/// How all weights are packed.
struct Packing {
  WeightChoice choice;
  cpu::ThreadPool& pool;
};

LinearWeight packed(std::span<const MatrixSource> parts, bool paired, const Packing& how) {
  std::int64_t out = 0;
  std::int64_t panels = 0;
  for (const MatrixSource& part : parts) {
    out += part.rows;
    panels += cpu::panels_for(part.rows);
  }
  if (!paired) panels = cpu::panels_for(out);
  const std::int64_t in = parts.front().columns;
  const WeightType type = chosen(how.choice, parts);
  LinearWeight weight;
  weight.panels = empty({panels, in, cpu::kPanelColumns}, type);
  void* memory = weight.panels.mutable_data_ptr();
  if (paired) {
    check_finite(cpu::pack_paired(parts[0], parts[1], type, how.pool, memory));
  } else {
    check_finite(cpu::pack_stacked(parts, type, how.pool, memory));
  }
  const std::int64_t columns = paired ? parts.front().rows : out;
  weight.matrix = {
      memory, type, static_cast<int>(panels), static_cast<int>(in), static_cast<int>(columns),
      paired};
  return weight;
}

LinearWeight linear(const MatrixSource& source, const Packing& how) {
  return packed({&source, 1}, false, how);
}

FeedForwardWeights pack_feed_forward(CheckpointReader& reader, const FeedForwardSource& source,
                                     const Packing& how) {
  return {
      packed(std::array{reader.dequantized(source.gate), reader.dequantized(source.up)}, true, how),
      linear(reader.dequantized(source.down), how)};
}

LayerWeights pack_layer(CheckpointReader& reader, const ModelConfig& config, int index,
                        const Packing& how) {
  const LayerSource source = reader.layer(index);
  LayerWeights layer;
  layer.input_norm = tensor_of(source.input_norm);
  layer.qkv = packed(std::array{reader.dequantized(source.q), reader.dequantized(source.k),
                                reader.dequantized(source.v)},
                     false, how);
  layer.qkv_bias = tensor_of(source.qkv_bias);
  layer.q_norm = tensor_of(source.q_norm);
  layer.k_norm = tensor_of(source.k_norm);
  layer.o = linear(reader.dequantized(source.o), how);
  layer.post_norm = tensor_of(source.post_norm);
  if (!config.sparse(index)) {
    layer.dense = pack_feed_forward(reader, source.dense, how);
    return layer;
  }
  layer.router = linear(reader.dequantized(source.router), how);
  for (int e = 0; e < config.experts.count; ++e) {
    layer.experts.push_back(pack_feed_forward(reader, reader.expert(index, e), how));
  }
  return layer;
}

/// The table, row by row as it is stored.
at::Tensor embedding_of(const MatrixSource& source, WeightChoice choice, WeightType& type) {
  type = chosen(choice, {&source, 1});
  at::Tensor table = empty({source.rows, source.columns}, type);
  const std::int64_t n = source.rows * source.columns;
  const bool as_stored =
      source.type == (type == WeightType::bf16 ? ElementType::bf16 : ElementType::f32);
  if (as_stored) {
    std::memcpy(table.mutable_data_ptr(), source.data,
                static_cast<std::size_t>(n * cpu::element_bytes(source.type)));
  } else if (type == WeightType::bf16) {
    auto* to = static_cast<std::uint16_t*>(table.mutable_data_ptr());
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = cpu::round_to_bf16(cpu::element(source.data, source.type, i));
    }
  } else {
    auto* to = table.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = cpu::element(source.data, source.type, i);
  }
  return table;
}

}  // namespace

std::uint64_t Weights::bytes() const {
  std::uint64_t total = embedding.nbytes() + final_norm.nbytes() + lm_head.panels.nbytes();
  for (const LayerWeights& layer : layers) {
    for (const at::Tensor* t :
         {&layer.input_norm, &layer.qkv.panels, &layer.qkv_bias, &layer.q_norm, &layer.k_norm,
          &layer.o.panels, &layer.post_norm, &layer.router.panels, &layer.dense.gate_up.panels,
          &layer.dense.down.panels}) {
      if (t->defined()) total += t->nbytes();
    }
    for (const FeedForwardWeights& expert : layer.experts) {
      total += expert.gate_up.panels.nbytes() + expert.down.panels.nbytes();
    }
  }
  return total;
}

Weights load_weights(const ModelConfig& config, const Checkpoint& checkpoint, WeightChoice choice,
                     int threads, std::atomic<int>* progress) {
  CheckpointReader reader(config, checkpoint, progress, threads);
  cpu::ThreadPool pool(threads);
  const Packing how{choice, pool};
  Weights weights;
  const MatrixSource table = reader.embedding();
  check_finite(table);
  weights.embedding = embedding_of(table, choice, weights.embedding_type);
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(pack_layer(reader, config, i, how));
  }
  weights.final_norm = tensor_of(reader.final_norm());
  weights.lm_head = linear(reader.dequantized(reader.lm_head()), how);
  reader.expect_all_taken();
  if (progress != nullptr) progress->store(100);
  return weights;
}

}  // namespace baton
