#include "workers/model/gpu_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "workers/cuda/linear/quantized_load.h"
#include "workers/model/gpu_format.h"
#include "workers/model/gpu_general_weights.h"
#include "workers/model/gpu_limits.h"
#include "workers/model/gpu_places.h"
#include "workers/model/gpu_upload.h"
#include "workers/model/rope.h"

namespace baton {
namespace {

using cuda::Bf16;
using cuda::LinearWeight;
using cuda::PartRows;
using cuda::WeightFormat;
using Places = GpuPlaces;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Which layers of the checkpoint make which matrix.
class Formats {
 public:
  Formats(const ModelConfig& config, const Checkpoint* checkpoint)
      : config_(config), checkpoint_(checkpoint) {}
  LinearFormat qkv(int layer) const {
    return of(layer, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, config_.hidden);
  }
  LinearFormat o(int layer) const {
    return of(layer, {"self_attn.o_proj"}, config_.heads * config_.head_dim);
  }
  LinearFormat gate_up(int layer) const {
    return of(layer, {"mlp.gate_proj", "mlp.up_proj"}, config_.hidden);
  }
  LinearFormat down(int layer) const {
    return of(layer, {"mlp.down_proj"}, config_.intermediate());
  }
  /// Quantisers leave it plain as a rule.
  LinearFormat lm_head() const {
    if (checkpoint_ == nullptr) return {};
    LinearFormat found =
        gpu_linear_format(config_, checkpoint_, std::array{std::string("lm_head")}, config_.hidden);
    found.shared_scales = false;  // the layer kernel alone reads them
    return found;
  }

 private:
  LinearFormat of(int layer, std::initializer_list<const char*> names, int in) const {
    std::vector<std::string> parts;
    for (const char* name : names)
      parts.push_back("model.layers." + std::to_string(layer) + "." + name);
    return gpu_linear_format(config_, checkpoint_, parts, in);
  }

  const ModelConfig& config_;
  const Checkpoint* checkpoint_;
};

void place_ropes(const ModelConfig& c, Places& places, GpuWeights& w) {
  for (const RopeConfig& rope : c.ropes) {
    const std::size_t angles = size(c.max_context) * size(rope.dims / 2);
    GpuRope to;
    to.cos = places.take_as<float>(angles);
    to.sin = places.take_as<float>(angles);
    w.ropes.push_back(to);
  }
}

/// The same walk plans the size, and gives every tensor its place.
void place(const ModelConfig& c, const Formats& formats, Places& places, GpuWeights& w) {
  if (!has_fused_layers(c)) {
    place_general_weights(c, places, w);
    return place_ropes(c, places, w);
  }
  const std::size_t hidden = size(c.hidden);
  const std::size_t head_dim = size(c.head_dim);
  w.embedding = places.take(size(c.vocab) * hidden);
  w.layers.resize(size(c.layers));
  for (int i = 0; i < c.layers; ++i) {
    GpuLayer& l = w.layers[size(i)];
    l.input_norm = places.take(hidden);
    l.qkv = places.matrix(c.qkv_columns(), c.hidden, formats.qkv(i));
    if (c.layer(i).attention.qkv_bias) l.qkv_bias = places.take(size(c.qkv_columns()));
    if (c.layer(i).attention.qk_norm != QkNorm::none) l.q_norm = places.take(head_dim);
    if (c.layer(i).attention.qk_norm != QkNorm::none) l.k_norm = places.take(head_dim);
    l.o = places.matrix(c.hidden, std::int64_t{c.heads} * c.head_dim, formats.o(i));
    l.post_norm = places.take(hidden);
    if (c.sparse(i)) {
      const ExpertSpec& e = c.experts();
      l.router = places.matrix(e.count, c.hidden);
      l.expert_gate_up = places.take(size(e.count) * size(2 * e.expert.intermediate) * hidden);
      l.expert_down = places.take(size(e.count) * size(e.expert.intermediate) * hidden);
      continue;
    }
    l.gate_up = places.matrix(2 * std::int64_t{c.intermediate()}, c.hidden, formats.gate_up(i));
    l.down = places.matrix(c.hidden, c.intermediate(), formats.down(i));
  }
  w.final_norm = places.take(hidden);
  w.lm_head = {w.embedding, c.vocab, c.hidden};
  if (!c.tied_embeddings) w.lm_head = places.matrix(c.vocab, c.hidden, formats.lm_head());
  place_ropes(c, places, w);
}

/// position * frequency in fp32, as the models were trained; see RopeTable.
void upload_rope(const ModelConfig& c, const RopeConfig& rope, const GpuRope& to) {
  const std::vector<float> frequencies = rope_frequencies(rope);
  const auto factor = static_cast<float>(rope.attention_factor);
  const std::size_t half = frequencies.size();
  std::vector<float> cosines(size(c.max_context) * half);
  std::vector<float> sines(cosines.size());
  for (std::size_t p = 0; p < size(c.max_context); ++p) {
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies[i];
      cosines[p * half + i] = std::cos(angle) * factor;
      sines[p * half + i] = std::sin(angle) * factor;
    }
  }
  const cuda::OwnedStream stream;
  const std::size_t bytes = cosines.size() * sizeof(float);
  cuda::copy_to_device(const_cast<float*>(to.cos), cosines.data(), bytes, stream.get());
  cuda::copy_to_device(const_cast<float*>(to.sin), sines.data(), bytes, stream.get());
  stream.synchronize();
}

void upload_ropes(const ModelConfig& c, const GpuWeights& w) {
  for (std::size_t i = 0; i < c.ropes.size(); ++i) upload_rope(c, c.ropes[i], w.ropes[i]);
}

/// Where the order of a quantised matrix's inputs goes, from the groups of one of its parts.
void upload_order(const LinearSource& part, const LinearWeight& to) {
  if (to.quantized.order == nullptr) return;
  const auto order = order_by_group(part.int4->group, to.quantized.group_shift);
  const cuda::OwnedStream stream;
  cuda::copy_to_device(const_cast<std::int32_t*>(to.quantized.order), order->data(),
                       order->size() * sizeof(std::int32_t), stream.get());
  stream.synchronize();
}

/// One layer of the checkpoint becomes some rows of a matrix.
void bring(GpuUpload& upload, const LinearSource& part, PartRows rows, const LinearWeight& to) {
  if (to.is_quantized()) {
    upload.packed(part, rows, to.quantized);
  } else if (part.quantized()) {
    upload.dequantized(part, rows, to.data);
  } else {
    upload.plain(part.plain, to.data + std::int64_t{rows.first} * to.in, rows.interleaved);
  }
}

/// The experts of a layer, quantised ones dequantised.
void bring_experts(GpuUpload& upload, CheckpointReader& reader, const ModelConfig& c, int layer,
                   const GpuLayer& to) {
  const int intermediate = c.experts().expert.intermediate;
  const std::int64_t elements = std::int64_t{intermediate} * c.hidden;
  for (int e = 0; e < c.experts().count; ++e) {
    const FeedForwardSource from = reader.expert(layer, e);
    const LinearWeight gate_up{to.expert_gate_up + 2 * elements * e, 2 * intermediate, c.hidden};
    const LinearWeight down{to.expert_down + elements * e, c.hidden, intermediate};
    bring(upload, from.gate, {0, true}, gate_up);
    bring(upload, from.up, {8, true}, gate_up);
    bring(upload, from.down, {0, false}, down);
  }
}

void bring_layer(GpuUpload& upload, const LayerSource& from, const GpuLayer& to) {
  upload.vector(from.input_norm, to.input_norm);
  upload_order(from.q, to.qkv);
  int row = 0;
  for (const LinearSource* part : {&from.q, &from.k, &from.v}) {
    bring(upload, *part, {row, false}, to.qkv);
    row += static_cast<int>(part->rows());
  }
  upload.vector(from.qkv_bias, to.qkv_bias);
  upload.vector(from.q_norm, to.q_norm);
  upload.vector(from.k_norm, to.k_norm);
  upload_order(from.o, to.o);
  bring(upload, from.o, {0, false}, to.o);
  upload.vector(from.post_norm, to.post_norm);
  if (to.sparse()) return bring(upload, from.router, {0, false}, to.router);
  upload_order(from.dense.gate, to.gate_up);
  const auto [gate, up] = gate_and_up(from.dense);
  bring(upload, gate, {0, true}, to.gate_up);
  bring(upload, up, {8, true}, to.gate_up);
  upload_order(from.dense.down, to.down);
  bring(upload, from.dense.down, {0, false}, to.down);
}

/// Random numbers of about the size of an initialised model's weights.
void randomise(const LinearWeight& w, std::uint64_t seed, cuda::Stream stream) {
  const cuda::QuantizedWeight& q = w.quantized;
  if (!w.is_quantized()) return;
  constexpr float kDeviation = 0.02F;
  // Of 0..15 about 8, and of an E4M3 with random bits.
  const float scale = kDeviation / (q.format == WeightFormat::int4 ? 4.6F : 130.0F);
  const std::uint32_t zero = q.format == WeightFormat::int4 ? 8 : 0;
  cuda::fill_random(const_cast<std::uint32_t*>(q.words), cuda::weight_words(q.format, w.out, w.in),
                    seed, stream);
  const std::uint32_t word = (std::bit_cast<std::uint32_t>(scale) & ~15U) | zero;
  cuda::fill_words(const_cast<std::uint32_t*>(q.scales), cuda::scale_words(w.out, q.groups), word,
                   stream);
  if (q.shared_scales != nullptr) {
    cuda::fill_words(const_cast<std::uint32_t*>(q.shared_scales),
                     cuda::shared_scale_words(w.out, q.groups), word, stream);
  }
  if (q.order == nullptr) return;
  std::vector<std::int32_t> order(size(w.in));
  for (int i = 0; i < w.in; ++i) order[size(i)] = w.in - 1 - i;
  cuda::copy_to_device(const_cast<std::int32_t*>(q.order), order.data(),
                       order.size() * sizeof order[0], stream);
}

}  // namespace

std::uint64_t gpu_weight_bytes(const ModelConfig& config, const Checkpoint* checkpoint) {
  Places places(nullptr);
  GpuWeights nowhere;
  place(config, Formats(config, checkpoint), places, nowhere);
  return places.used();
}

GpuWeights place_gpu_weights(const ModelConfig& config, const Checkpoint* checkpoint,
                             cuda::DeviceMemory memory) {
  check_gpu_limits(config);
  GpuWeights w;
  w.memory = std::move(memory);
  Places places(w.memory.data());
  place(config, Formats(config, checkpoint), places, w);
  return w;
}

void load_gpu_weights(const ModelConfig& config, const Checkpoint& checkpoint, int ordinal,
                      std::atomic<int>& percent, GpuWeights& w) {
  if (!has_fused_layers(config)) {
    load_general_weights(config, checkpoint, ordinal, percent, w);
    upload_ropes(config, w);
    percent = 100;
    return;
  }
  CheckpointReader reader(config, checkpoint);
  GpuUpload upload(config.quantization);
  upload.plain(reader.embedding(), w.embedding, false);
  for (int i = 0; i < config.layers; ++i) {
    const GpuLayer& to = w.layers[size(i)];
    bring_layer(upload, reader.layer(i), to);
    if (to.sparse()) bring_experts(upload, reader, config, i, to);
  }
  upload.vector(reader.final_norm(), w.final_norm);
  const LinearSource head = reader.lm_head();
  if (!config.tied_embeddings) {
    upload_order(head, w.lm_head);
    bring(upload, head, {0, false}, w.lm_head);
  }
  reader.expect_all_taken();
  upload.run(ordinal, percent);
  upload_ropes(config, w);
  percent = 100;
}

void random_gpu_weights(const ModelConfig& config, std::atomic<int>& percent, GpuWeights& w) {
  const cuda::OwnedStream stream;
  // About what an initialised model has; the norms are ones, so that activations stay in range.
  cuda::fill_normal(w.memory.as<Bf16>(), w.memory.bytes() / sizeof(Bf16), 0.02F, 1, stream.get());
  const auto ones = [&](const Bf16* to, int n) {
    if (to == nullptr) return;
    const std::vector<Bf16> values(size(n), to_bf16(1.0F));
    cuda::copy_to_device(const_cast<Bf16*>(to), values.data(), values.size() * sizeof(Bf16),
                         stream.get());
    stream.synchronize();
  };
  std::uint64_t seed = 2;
  for (const GpuLayer& l : w.layers) {
    ones(l.input_norm, config.hidden);
    ones(l.post_norm, config.hidden);
    ones(l.q_norm, config.head_dim);
    ones(l.k_norm, config.head_dim);
    for (const LinearWeight* matrix : {&l.qkv, &l.o, &l.gate_up, &l.down}) {
      randomise(*matrix, seed++, stream.get());
      stream.synchronize();
    }
  }
  ones(w.final_norm, config.hidden);
  if (!has_fused_layers(config)) randomise_general_weights(config, w);
  stream.synchronize();
  upload_ropes(config, w);
  percent = 100;
}

}  // namespace baton
