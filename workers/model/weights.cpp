#include "workers/model/weights.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <set>
#include <span>
#include <string>

#include "workers/model/error.h"

namespace baton {
namespace {

using cpu::ElementType;
using cpu::MatrixSource;
using cpu::WeightType;

at::Tensor empty(at::IntArrayRef shape, WeightType type) {
  return at::empty(shape, type == WeightType::bf16 ? at::kBFloat16 : at::kFloat);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

/// Takes tensors out of a checkpoint by name, checks them, and remembers which were taken.
class Reader {
 public:
  Reader(const Checkpoint& checkpoint, std::atomic<int>* progress)
      : checkpoint_(checkpoint), progress_(progress) {}

  MatrixSource matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const TensorView& view = take(name, {rows, columns});
    return {view.data, element_type(view, name), rows, columns};
  }

  /// A norm's weight, in fp32.
  at::Tensor vector(const std::string& name, std::int64_t size) {
    const TensorView& view = take(name, {size});
    const ElementType type = element_type(view, name);
    at::Tensor tensor = empty({size}, WeightType::f32);
    auto* to = tensor.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < size; ++i) to[i] = cpu::element(view.data, type, i);
    return tensor;
  }

  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }

  /// A tensor that nobody takes would change the result in a model that has it.
  void expect_all_taken(const ModelConfig& config) const {
    for (const auto& [name, view] : checkpoint_.tensors()) {
      const bool buffer = name.ends_with("rotary_emb.inv_freq");  // old checkpoints store it
      const bool tied_head = config.tied_embeddings && name == "lm_head.weight";
      if (!taken_.contains(name) && !buffer && !tied_head) {
        throw ModelError(view.file + ": tensor " + name + ": no part of this architecture");
      }
    }
  }

 private:
  const TensorView& take(const std::string& name, const std::vector<std::int64_t>& shape) {
    const TensorView* view = checkpoint_.find(name);
    if (view == nullptr)
      throw ModelError(checkpoint_.folder() + ": tensor " + name + ": is missing");
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

  static ElementType element_type(const TensorView& view, const std::string& name) {
    if (view.dtype == "F32") return ElementType::f32;
    if (view.dtype == "F16") return ElementType::f16;
    if (view.dtype == "BF16") return ElementType::bf16;
    throw ModelError(view.file + ": tensor " + name + ": dtype " + view.dtype +
                     " is not supported, only F32, F16 and BF16 are");
  }

  const Checkpoint& checkpoint_;
  std::atomic<int>* progress_;
  std::set<std::string> taken_;
};

LinearWeight packed(std::span<const MatrixSource> parts, bool paired) {
  std::int64_t out = 0;
  std::int64_t panels = 0;
  for (const MatrixSource& part : parts) {
    out += part.rows;
    panels += cpu::panels_for(part.rows);
  }
  if (!paired) panels = cpu::panels_for(out);
  const std::int64_t in = parts.front().columns;
  const WeightType type = cpu::packed_type(parts);
  LinearWeight weight;
  weight.panels = empty({panels, in, cpu::kPanelColumns}, type);
  void* memory = weight.panels.mutable_data_ptr();
  if (paired) {
    cpu::pack_paired(parts[0], parts[1], memory);
  } else {
    cpu::pack_stacked(parts, memory);
  }
  const std::int64_t columns = paired ? parts.front().rows : out;
  weight.matrix = {
      memory, type, static_cast<int>(panels), static_cast<int>(in), static_cast<int>(columns),
      paired};
  return weight;
}

LinearWeight linear(const MatrixSource& source) { return packed({&source, 1}, false); }

LayerWeights load_layer(Reader& reader, const ModelConfig& c, int index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::int64_t q = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t kv = std::int64_t{c.kv_heads} * c.head_dim;
  LayerWeights layer;
  layer.input_norm = reader.vector(prefix + "input_layernorm.weight", c.hidden);
  const std::array<MatrixSource, 3> qkv = {
      reader.matrix(attention + "q_proj.weight", q, c.hidden),
      reader.matrix(attention + "k_proj.weight", kv, c.hidden),
      reader.matrix(attention + "v_proj.weight", kv, c.hidden)};
  layer.qkv = packed(qkv, false);
  layer.o = linear(reader.matrix(attention + "o_proj.weight", c.hidden, q));
  layer.post_norm = reader.vector(prefix + "post_attention_layernorm.weight", c.hidden);
  const std::array<MatrixSource, 2> gate_up = {
      reader.matrix(prefix + "mlp.gate_proj.weight", c.intermediate, c.hidden),
      reader.matrix(prefix + "mlp.up_proj.weight", c.intermediate, c.hidden)};
  layer.gate_up = packed(gate_up, true);
  layer.down = linear(reader.matrix(prefix + "mlp.down_proj.weight", c.hidden, c.intermediate));
  return layer;
}

/// The table as it is stored; f16 becomes f32, which the kernels read.
at::Tensor embedding_of(const MatrixSource& source, WeightType& type) {
  type = cpu::packed_type({&source, 1});
  at::Tensor table = empty({source.rows, source.columns}, type);
  const std::int64_t n = source.rows * source.columns;
  if (source.type == ElementType::f16) {
    auto* to = table.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < n; ++i) to[i] = cpu::element(source.data, source.type, i);
  } else {
    std::memcpy(table.mutable_data_ptr(), source.data,
                static_cast<std::size_t>(n * cpu::element_bytes(source.type)));
  }
  return table;
}

}  // namespace

std::uint64_t Weights::bytes() const {
  std::uint64_t total = embedding.nbytes() + final_norm.nbytes() + lm_head.panels.nbytes();
  for (const LayerWeights& layer : layers) {
    for (const at::Tensor* t : {&layer.input_norm, &layer.qkv.panels, &layer.o.panels,
                                &layer.post_norm, &layer.gate_up.panels, &layer.down.panels}) {
      total += t->nbytes();
    }
  }
  return total;
}

Weights load_weights(const ModelConfig& config, const Checkpoint& checkpoint,
                     std::atomic<int>* progress) {
  Reader reader(checkpoint, progress);
  Weights weights;
  const MatrixSource table =
      reader.matrix("model.embed_tokens.weight", config.vocab, config.hidden);
  weights.embedding = embedding_of(table, weights.embedding_type);
  for (int i = 0; i < config.layers; ++i) weights.layers.push_back(load_layer(reader, config, i));
  weights.final_norm = reader.vector("model.norm.weight", config.hidden);
  weights.lm_head =
      linear(config.tied_embeddings ? table
                                    : reader.matrix("lm_head.weight", config.vocab, config.hidden));
  reader.expect_all_taken(config);
  if (progress != nullptr) progress->store(100);
  return weights;
}

}  // namespace baton
