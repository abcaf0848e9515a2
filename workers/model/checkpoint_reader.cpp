#include "workers/model/checkpoint_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "workers/model/error.h"
#include "workers/model/finite.h"

namespace baton {
namespace {

using cpu::ElementType;
using cpu::MatrixSource;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

ElementType element_type(const TensorView& view, const std::string& name) {
  if (view.dtype == "F32") return ElementType::f32;
  if (view.dtype == "F16") return ElementType::f16;
  if (view.dtype == "BF16") return ElementType::bf16;
  throw ModelError(view.file + ": tensor " + name + ": dtype " + view.dtype +
                   " is not supported, only F32, F16 and BF16 are");
}

}  // namespace

const TensorView& CheckpointReader::take(const std::string& name,
                                         const std::vector<std::int64_t>& shape) {
  const TensorView* view = checkpoint_.find(name);
  if (view == nullptr) throw ModelError(checkpoint_.folder() + ": tensor " + name + ": is missing");
  if (view->shape != shape) {
    throw ModelError(view->file + ": tensor " + name + ": has the shape " +
                     shape_text(view->shape) + ", config.json asks for " + shape_text(shape));
  }
  taken_.insert(name);
  if (progress_ != nullptr) {
    progress_->store(static_cast<int>(taken_.size() * 100 / checkpoint_.tensors().size()));
  }
  return *view;
}

MatrixSource CheckpointReader::matrix(const std::string& name, std::int64_t rows,
                                      std::int64_t columns) {
  const TensorView& view = take(name, {rows, columns});
  if (view.blocks != GgmlType::f32) {
    return dequantized({{}, std::nullopt, std::nullopt, block_weight(view, name, rows, columns)});
  }
  MatrixSource matrix = as_matrix(view, name, rows, columns);
  if (view.pair_rows == 0) return matrix;
  const auto row = static_cast<std::size_t>(columns * cpu::element_bytes(matrix.type));
  std::shared_ptr<std::byte[]> memory(new std::byte[static_cast<std::size_t>(rows) * row]);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto from = static_cast<std::size_t>(paired_row(r, view.pair_rows));
    std::memcpy(memory.get() + static_cast<std::size_t>(r) * row, matrix.data + from * row, row);
  }
  matrix.data = memory.get();
  matrix.owner = std::move(memory);
  return matrix;
}

MatrixSource CheckpointReader::as_matrix(const TensorView& view, const std::string& name,
                                         std::int64_t rows, std::int64_t columns) {
  return {view.data, element_type(view, name),      rows, columns,
          nullptr,   view.file + ": tensor " + name};
}

std::vector<float> CheckpointReader::vector(const std::string& name, std::int64_t size) {
  const TensorView* const found = checkpoint_.find(name);
  const std::vector<std::int64_t> as_row = {1, size};  // ERNIE's
  const bool is_row = found != nullptr && found->shape == as_row;
  const TensorView& view = take(name, is_row ? as_row : std::vector{size});
  const ElementType type = element_type(view, name);
  bytes_read_ += view.bytes;
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const float value = cpu::element(view.data, type, paired_row(i, view.pair_rows));
    if (!std::isfinite(value)) refuse_element(view.file + ": tensor " + name, i, value);
    values[static_cast<std::size_t>(i)] = value;
  }
  return values;
}

std::string decoder_root(const TensorNames& names, const Checkpoint& checkpoint) {
  for (const std::string& root : names.roots) {
    if (checkpoint.find(root + names.embedding + ".weight") != nullptr) return root;
  }
  // sentence-transformers writes the decoder alone.
  if (checkpoint.find(names.embedding + ".weight") != nullptr) return {};
  return names.roots.front();
}

bool experts_apart(const TensorNames& names, const Checkpoint* checkpoint,
                   const std::string& experts) {
  if (names.expert_storage != ExpertStorage::stacked || checkpoint == nullptr) {
    return names.expert_storage == ExpertStorage::each;
  }
  const std::string first = experts + "0.";  // quantised ones are not called `weight`
  const auto it = checkpoint->tensors().lower_bound(first);
  return it != checkpoint->tensors().end() && it->first.starts_with(first);
}

/// transformers 4 wrote the text half of a model as one of its own, with a head in it.
std::string head_name(const TensorNames& names, const Checkpoint& checkpoint) {
  const std::string root = decoder_root(names, checkpoint);
  const std::string inner = root.substr(0, root.find('.') + 1) + names.head;
  return checkpoint.find(inner + ".weight") != nullptr ? inner : names.head;
}

std::pair<LinearSource, LinearSource> gate_and_up(const FeedForwardSource& part) {
  if (part.up.rows() > 0) return {part.gate, part.up};
  const std::int64_t half = part.gate.plain.rows / 2;
  LinearSource gate = part.gate;
  LinearSource up = part.gate;
  gate.plain = rows_of(gate.plain, {0, half});
  up.plain = rows_of(up.plain, {half, half});
  return {gate, up};
}

CheckpointReader::CheckpointReader(const ModelConfig& config, const Checkpoint& checkpoint,
                                   std::atomic<int>* progress, int threads)
    : config_(config),
      checkpoint_(checkpoint),
      root_(decoder_root(config.names, checkpoint)),
      head_(head_name(config.names, checkpoint)),
      progress_(progress),
      pool_(threads) {}

std::string CheckpointReader::prefix(int layer) const {
  return root_ + "layers." + std::to_string(layer) + ".";
}

MatrixSource CheckpointReader::embedding() {
  return matrix(root_ + config_.names.embedding + ".weight", config_.vocab, config_.hidden);
}

MatrixSource CheckpointReader::embedding_rows(Slice rows) {
  LinearSource table;
  table.plain = embedding();
  return dequantized(table, rows);
}

/// A norm's weights. Gemma's checkpoints have them less one.
std::vector<float> CheckpointReader::norm(const std::string& name, std::int64_t size) {
  std::vector<float> weight = vector(name + ".weight", size);
  if (config_.norm.offset) {
    for (float& w : weight) w += 1.0F;
  }
  return weight;
}

std::vector<float> CheckpointReader::final_norm() {
  return norm(root_ + config_.names.final_norm, config_.hidden);
}

std::vector<float> CheckpointReader::final_norm_bias() {
  if (!config_.norm.bias) return {};
  return vector(root_ + config_.names.final_norm + ".bias", config_.hidden);
}

/// Whoever says that the head is the embedding and stores another one means one of the two.
void CheckpointReader::refuse_other_head() const {
  const std::string embedding = root_ + config_.names.embedding + ".weight";
  const TensorView* const head = checkpoint_.find(head_ + ".weight");
  const TensorView* const table = checkpoint_.find(embedding);
  if (head == nullptr || table == nullptr) return;
  const bool same = head->dtype == table->dtype && head->bytes == table->bytes &&
                    std::memcmp(head->data, table->data, head->bytes) == 0;
  if (!same) {
    throw ModelError(head->file + ": tensor " + head_ + ".weight: is not " + embedding +
                     ", which tie_word_embeddings says that it is");
  }
}

LinearSource CheckpointReader::lm_head() {
  if (config_.tied_embeddings) {
    refuse_other_head();
    return linear(root_ + config_.names.embedding, config_.vocab, config_.hidden);
  }
  return linear(head_, config_.vocab, config_.hidden);
}

void CheckpointReader::read_attention(const std::string& prefix, const AttentionSpec& spec,
                                      LayerSource& layer) {
  const ModelConfig& c = config_;
  const TensorNames& n = c.names;
  const std::int64_t q = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t kv = std::int64_t{c.kv_heads} * c.head_dim;
  if (c.latent.rank > 0) {
    read_latent(prefix, layer.latent);
    layer.o = linear(prefix + n.o, c.hidden, c.attended_columns());
    return;
  }
  const auto biases = [&](const std::string& name, std::int64_t size) {
    const std::vector<float> bias = vector(prefix + name + ".bias", size);
    layer.qkv_bias.insert(layer.qkv_bias.end(), bias.begin(), bias.end());
  };
  if (!n.qkv.empty()) {
    layer.q = linear(prefix + n.qkv, q + 2 * kv, c.hidden);
    if (spec.qkv_bias) biases(n.qkv, q + 2 * kv);
  } else {
    layer.q = linear(prefix + n.q, q, c.hidden);
    layer.k = linear(prefix + n.k, kv, c.hidden);
    layer.v = linear(prefix + n.v, kv, c.hidden);
    if (spec.qkv_bias) {
      biases(n.q, q);
      biases(n.k, kv);
      biases(n.v, kv);
    }
  }
  if (spec.qk_norm != QkNorm::none) {
    const bool whole = spec.qk_norm == QkNorm::whole;
    layer.q_norm = norm(prefix + n.q_norm, whole ? q : c.head_dim);
    layer.k_norm = norm(prefix + n.k_norm, whole ? kv : c.head_dim);
  }
  if (spec.sinks) layer.sinks = vector(prefix + n.sinks, c.heads);
  layer.o = linear(prefix + n.o, c.hidden, q);
  if (spec.o_bias) layer.o_bias = vector(prefix + n.o + ".bias", c.hidden);
}

void CheckpointReader::read_latent(const std::string& prefix, LatentSource& latent) {
  const TensorNames& n = config_.names;
  const LatentSpec& l = config_.latent;
  const std::int64_t queries = std::int64_t{config_.heads} * config_.head_dim;
  if (l.q_rank > 0) {
    latent.q_a = linear(prefix + n.q_a, l.q_rank, config_.hidden);
    latent.q_norm = norm(prefix + n.q_a_norm, l.q_rank);
    latent.q = linear(prefix + n.q_b, queries, l.q_rank);
  } else {
    latent.q = linear(prefix + n.q, queries, config_.hidden);
  }
  latent.kv_a = linear(prefix + n.kv_a, l.rank + l.rope, config_.hidden);
  latent.kv_norm = norm(prefix + n.kv_a_norm, l.rank);
  latent.kv_b = linear(prefix + n.kv_b, std::int64_t{config_.heads} * (l.plain + l.value), l.rank);
}

LayerSource CheckpointReader::layer(int index) {
  const ModelConfig& c = config_;
  const TensorNames& n = c.names;
  const LayerSpec& spec = c.layer(index);
  const std::string prefix = this->prefix(index);
  const bool before = spec.norm != NormPlace::after;
  const bool after = spec.norm != NormPlace::before;
  LayerSource layer;
  const auto take_norm = [&](const std::string& name, std::vector<float>& weight,
                             std::vector<float>& bias) {
    weight = norm(prefix + name, c.hidden);
    if (c.norm.bias) bias = vector(prefix + name + ".bias", c.hidden);
  };
  if (before) take_norm(n.attention_norm, layer.input_norm, layer.norm_biases[0]);
  read_attention(prefix, spec.attention, layer);
  if (after) take_norm(n.attention_after, layer.attention_after, layer.norm_biases[1]);
  if (before && !spec.parallel) take_norm(n.mlp_norm, layer.post_norm, layer.norm_biases[2]);
  if (after) take_norm(n.mlp_after, layer.mlp_after, layer.norm_biases[3]);
  if (!spec.sparse()) {
    layer.dense = feed_forward(prefix, spec.mlp, {n.gate_up, n.gate, n.up, n.down});
    return layer;
  }
  const ExpertSpec& e = spec.experts;
  layer.router = linear(prefix + n.router, e.count, c.hidden);
  if (e.router_bias) layer.router_bias = vector(prefix + n.router + ".bias", e.count);
  if (e.choice_bias) layer.choice_bias = vector(prefix + n.choice_bias, e.count);
  if (e.shared.intermediate > 0) {
    layer.shared = feed_forward(prefix + n.shared, e.shared,
                                {n.shared_gate_up, "gate_proj", "up_proj", n.shared_down});
  }
  if (e.shared_gate) layer.shared_gate = linear(prefix + n.shared_gate, 1, c.hidden);
  return layer;
}

FeedForwardSource CheckpointReader::feed_forward(const std::string& prefix, const MlpSpec& spec,
                                                 const FeedForwardNames& names) {
  const std::int64_t middle = spec.intermediate;
  FeedForwardSource part;
  const auto take_up = [&](const std::string& name, std::int64_t rows) {
    LinearSource source = linear(prefix + name, rows, config_.hidden);
    if (spec.bias) {
      const std::vector<float> bias = vector(prefix + name + ".bias", rows);
      part.up_bias.insert(part.up_bias.end(), bias.begin(), bias.end());
    }
    return source;
  };
  if (!names.fused.empty()) {
    part.gate = take_up(names.fused, 2 * middle);
  } else {
    if (spec.gated) part.gate = take_up(names.gate, middle);
    part.up = take_up(names.up, middle);
  }
  part.down = linear(prefix + names.down, config_.hidden, middle);
  if (spec.bias) part.down_bias = vector(prefix + names.down + ".bias", config_.hidden);
  return part;
}

FeedForwardSource CheckpointReader::expert(int layer, int index) {
  const TensorNames& n = config_.names;
  const std::string experts = this->prefix(layer) + n.experts;
  if (!experts_apart(n, &checkpoint_, experts)) return stacked_expert(layer, index);
  const std::string prefix = experts + std::to_string(index) + ".";
  return feed_forward(prefix, config_.layer(layer).experts.expert,
                      {"", n.expert_gate, n.expert_up, n.expert_down});
}

void CheckpointReader::leave_expert(int layer, int index) {
  const TensorNames& n = config_.names;
  // One tensor for all experts is taken by whoever reads one of them.
  const std::string experts = this->prefix(layer) + n.experts;
  const bool apart = experts_apart(n, &checkpoint_, experts);
  const std::string prefix = experts + (apart ? std::to_string(index) + "." : "");
  const auto& tensors = checkpoint_.tensors();
  for (auto it = tensors.lower_bound(prefix); it != tensors.end(); ++it) {
    if (!it->first.starts_with(prefix)) break;
    taken_.insert(it->first);
  }
}

void CheckpointReader::expect_all_taken() const {
  for (const auto& [name, view] : checkpoint_.tensors()) {
    const bool buffer = name.ends_with("rotary_emb.inv_freq");  // old checkpoints store it
    const bool tied_head = config_.tied_embeddings && name == head_ + ".weight";
    const auto& others = config_.names.other_parts;
    const bool other = std::any_of(others.begin(), others.end(), [&name](const std::string& part) {
      return name.starts_with(part);
    });
    if (!taken_.contains(name) && !buffer && !tied_head && !other && !idle_bias(name, view)) {
      throw ModelError(view.file + ": tensor " + name + ": no part of this architecture");
    }
  }
}

}  // namespace baton
