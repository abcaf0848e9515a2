#include "workers/model/checkpoint_reader.h"

#include <cmath>
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
  return as_matrix(take(name, {rows, columns}), name, rows, columns);
}

MatrixSource CheckpointReader::as_matrix(const TensorView& view, const std::string& name,
                                         std::int64_t rows, std::int64_t columns) {
  return {view.data, element_type(view, name),      rows, columns,
          nullptr,   view.file + ": tensor " + name};
}

std::vector<float> CheckpointReader::vector(const std::string& name, std::int64_t size) {
  const TensorView& view = take(name, {size});
  const ElementType type = element_type(view, name);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const float value = cpu::element(view.data, type, i);
    if (!std::isfinite(value)) refuse_element(view.file + ": tensor " + name, i, value);
    values[static_cast<std::size_t>(i)] = value;
  }
  return values;
}

MatrixSource CheckpointReader::embedding() {
  return matrix("model.embed_tokens.weight", config_.vocab, config_.hidden);
}

std::vector<float> CheckpointReader::final_norm() {
  return vector("model.norm.weight", config_.hidden);
}

LinearSource CheckpointReader::lm_head() {
  if (config_.tied_embeddings) return {embedding(), std::nullopt, std::nullopt};
  return linear("lm_head", config_.vocab, config_.hidden);
}

LayerSource CheckpointReader::layer(int index) {
  const ModelConfig& c = config_;
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::int64_t q = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t kv = std::int64_t{c.kv_heads} * c.head_dim;
  LayerSource layer;
  layer.input_norm = vector(prefix + "input_layernorm.weight", c.hidden);
  layer.q = linear(attention + "q_proj", q, c.hidden);
  layer.k = linear(attention + "k_proj", kv, c.hidden);
  layer.v = linear(attention + "v_proj", kv, c.hidden);
  if (c.qkv_bias) {
    for (const auto& [name, size] : {std::pair{"q", q}, {"k", kv}, {"v", kv}}) {
      const std::vector<float> bias = vector(attention + name + "_proj.bias", size);
      layer.qkv_bias.insert(layer.qkv_bias.end(), bias.begin(), bias.end());
    }
  }
  if (c.qk_norm) {
    layer.q_norm = vector(attention + "q_norm.weight", c.head_dim);
    layer.k_norm = vector(attention + "k_norm.weight", c.head_dim);
  }
  layer.o = linear(attention + "o_proj", c.hidden, q);
  layer.post_norm = vector(prefix + "post_attention_layernorm.weight", c.hidden);
  if (c.sparse(index)) {
    layer.router = linear(prefix + c.experts.block + "gate", c.experts.count, c.hidden);
  } else {
    layer.dense.gate = linear(prefix + "mlp.gate_proj", c.intermediate, c.hidden);
    layer.dense.up = linear(prefix + "mlp.up_proj", c.intermediate, c.hidden);
    layer.dense.down = linear(prefix + "mlp.down_proj", c.hidden, c.intermediate);
  }
  return layer;
}

FeedForwardSource CheckpointReader::expert(int layer, int index) {
  const ExpertConfig& e = config_.experts;
  const std::string prefix = "model.layers." + std::to_string(layer) + "." + e.block + "experts." +
                             std::to_string(index) + ".";
  FeedForwardSource expert;
  expert.gate = linear(prefix + e.gate, e.intermediate, config_.hidden);
  expert.up = linear(prefix + e.up, e.intermediate, config_.hidden);
  expert.down = linear(prefix + e.down, config_.hidden, e.intermediate);
  return expert;
}

void CheckpointReader::expect_all_taken() const {
  for (const auto& [name, view] : checkpoint_.tensors()) {
    const bool buffer = name.ends_with("rotary_emb.inv_freq");  // old checkpoints store it
    const bool tied_head = config_.tied_embeddings && name == "lm_head.weight";
    if (!taken_.contains(name) && !buffer && !tied_head && !idle_bias(name, view)) {
      throw ModelError(view.file + ": tensor " + name + ": no part of this architecture");
    }
  }
}

}  // namespace baton
