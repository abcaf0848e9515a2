#include "workers/model/gpu_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "workers/cuda/linear/quantized_load.h"
#include "workers/model/gpu_cut.h"
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
  /// `config`: the whole model's.
  Formats(const ModelConfig& config, const Checkpoint* checkpoint, const GpuCut& cut)
      : config_(config), checkpoint_(checkpoint), cut_(cut) {}
  LinearFormat qkv(int layer) const {
    return of(layer, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, config_.hidden);
  }
  LinearFormat o(int layer) const {
    return of_inputs(layer, {"self_attn.o_proj"}, config_.heads * config_.head_dim);
  }
  LinearFormat gate_up(int layer) const {
    return of(layer, {"mlp.gate_proj", "mlp.up_proj"}, config_.hidden);
  }
  LinearFormat down(int layer) const {
    return of_inputs(layer, {"mlp.down_proj"}, config_.intermediate());
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
  /// Of what a rank has some inputs of, unless it has some outputs.
  LinearFormat of_inputs(int layer, std::initializer_list<const char*> names, int in) const {
    return of(layer, names, in, cut_.by_outputs ? Slice{0, in} : cut_.part(in));
  }
  LinearFormat of(int layer, std::initializer_list<const char*> names, int in) const {
    return of(layer, names, in, {0, in});
  }
  LinearFormat of(int layer, std::initializer_list<const char*> names, int in,
                  const Slice& inputs) const {
    std::vector<std::string> parts;
    for (const char* name : names)
      parts.push_back("model.layers." + std::to_string(layer) + "." + name);
    return gpu_linear_format(config_, checkpoint_, parts, in, inputs);
  }

  const ModelConfig& config_;
  const Checkpoint* checkpoint_;
  const GpuCut& cut_;
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

/// A rank's part of the vocabulary. All ranks place as many rows, so that their weights are equally
/// large.
LinearWeight place_head(const ModelConfig& c, const Formats& formats, const GpuCut& cut,
                        Places& places, const Bf16* embedding) {
  const Slice tokens = cut.part(c.vocab);
  if (c.tied_embeddings) {
    return {embedding + tokens.first * c.hidden, static_cast<int>(tokens.count), c.hidden};
  }
  const LinearFormat format = formats.lm_head();
  if (format.format != WeightFormat::bf16) return places.matrix(tokens.count, c.hidden, format);
  LinearWeight head = places.matrix((c.vocab + cut.ranks - 1) / cut.ranks, c.hidden);
  head.out = static_cast<int>(tokens.count);
  return head;
}

/// Of the matrices behind attention and behind the features, which are cut by inputs or outputs.
struct BehindShape {
  std::int64_t out, attended, features;
  /// `own`: of this rank.
  BehindShape(const ModelConfig& own, const GpuCut& cut)
      : out(own.hidden),
        attended(std::int64_t{own.heads} * own.head_dim),
        features(own.intermediate()) {
    if (!cut.by_outputs) return;
    out = cut.part(own.hidden).count;
    attended *= cut.ranks;
    features *= cut.ranks;
  }
};

/// The same walk plans the size, and gives every tensor its place.
void place(const ModelConfig& c, const Formats& formats, const GpuCut& cut, Places& places,
           GpuWeights& w) {
  if (!has_fused_layers(c)) {
    place_general_weights(c, places, w);
    return place_ropes(c, places, w);
  }
  const std::size_t hidden = size(c.hidden);
  const std::size_t head_dim = size(c.head_dim);
  const BehindShape behind(c, cut);
  w.embedding = places.take(size(c.vocab) * hidden);
  w.layers.resize(size(c.layers));
  for (int i = 0; i < c.layers; ++i) {
    GpuLayer& l = w.layers[size(i)];
    l.input_norm = places.take(hidden);
    l.qkv = places.matrix(c.qkv_columns(), c.hidden, formats.qkv(i));
    if (c.layer(i).attention.qkv_bias) l.qkv_bias = places.take(size(c.qkv_columns()));
    if (c.layer(i).attention.qk_norm != QkNorm::none) l.q_norm = places.take(head_dim);
    if (c.layer(i).attention.qk_norm != QkNorm::none) l.k_norm = places.take(head_dim);
    l.o = places.matrix(behind.out, behind.attended, formats.o(i));
    l.post_norm = places.take(hidden);
    if (c.sparse(i)) {
      const ExpertSpec& e = c.experts();
      l.router = places.matrix(e.count, c.hidden);
      l.expert_gate_up = places.take(size(e.count) * size(2 * e.expert.intermediate) * hidden);
      l.expert_down = places.take(size(e.count) * size(e.expert.intermediate) * hidden);
      continue;
    }
    l.gate_up = places.matrix(2 * std::int64_t{c.intermediate()}, c.hidden, formats.gate_up(i));
    l.down = places.matrix(behind.out, behind.features, formats.down(i));
  }
  w.final_norm = places.take(hidden);
  w.lm_head = place_head(c, formats, cut, places, w.embedding);
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
void upload_order(const LinearSource& part, const LinearWeight& to, const Slice& inputs) {
  if (to.quantized.order == nullptr) return;
  const auto order =
      order_by_group(groups_within(part.int4->group, inputs), to.quantized.group_shift);
  const cuda::OwnedStream stream;
  cuda::copy_to_device(const_cast<std::int32_t*>(to.quantized.order), order->data(),
                       order->size() * sizeof(std::int32_t), stream.get());
  stream.synchronize();
}

/// Which of a layer's rows and columns a rank has, in the checkpoint's order.
struct LayerCut {
  Slice q, kv;   // rows of q; of k and of v
  Slice middle;  // features of a feed-forward part, or of each expert
  Slice hidden;  // where what they lead to is cut by outputs
  bool whole = true;
  bool by_outputs = false;
  LayerCut(const ModelConfig& c, const GpuCut& cut, int intermediate)
      : hidden(cut.part(c.hidden)), whole(cut.whole()), by_outputs(cut.by_outputs) {
    const auto dims = [&c](const Slice& heads) {
      return Slice{heads.first * c.head_dim, heads.count * c.head_dim};
    };
    q = dims(cut.heads(c));
    kv = dims(cut.kv_heads(c));
    middle = cut.part(intermediate);
  }
};

/// The biases of a rank's rows of q, k and v.
std::vector<float> biases_of(const std::vector<float>& all, const ModelConfig& c,
                             const LayerCut& cut) {
  if (all.empty() || cut.whole) return all;
  const std::int64_t k_first = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t v_first = k_first + std::int64_t{c.kv_heads} * c.head_dim;
  std::vector<float> mine;
  const auto add = [&](std::int64_t from, const Slice& slice) {
    const auto begin = all.begin() + from + slice.first;
    mine.insert(mine.end(), begin, begin + slice.count);
  };
  add(0, cut.q);
  add(k_first, cut.kv);
  add(v_first, cut.kv);
  return mine;
}

/// Some rows and columns of a layer of the checkpoint become some rows of a matrix.
class Bring {
 public:
  Bring(GpuUpload& upload, QuantMethod method) : upload_(upload), method_(method) {}

  void operator()(const LinearSource& part, PartRows at, const LinearWeight& to, const Slice& rows,
                  const Slice& columns) const {
    if (to.is_quantized()) {
      upload_.packed(stored_part(part, method_, rows, columns), at, to.quantized);
    } else if (part.quantized()) {
      upload_.dequantized(stored_part(part, method_, rows, columns), at, to.data);
    } else if (columns.count == part.columns()) {
      upload_.plain(rows_of(part.plain, rows), to.data + std::int64_t{at.first} * to.in,
                    at.interleaved);
    } else {
      upload_.columns(part.plain, columns, to.data);  // of what is cut by inputs: all of `to`
    }
  }
  void rows(const LinearSource& part, PartRows at, const LinearWeight& to,
            const Slice& rows) const {
    (*this)(part, at, to, rows, {0, part.columns()});
  }
  void all(const LinearSource& part, PartRows at, const LinearWeight& to) const {
    rows(part, at, to, {0, part.rows()});
  }
  /// A matrix that is cut by its inputs, or by outputs.
  void behind(const LinearSource& part, const LayerCut& cut, const Slice& columns,
              const LinearWeight& to) const {
    if (cut.by_outputs) return rows(part, {0, false}, to, cut.hidden);
    (*this)(part, {0, false}, to, {0, part.rows()}, columns);
  }

 private:
  GpuUpload& upload_;
  const QuantMethod method_;
};

/// The experts of a layer, quantised ones dequantised.
void bring_experts(const Bring& bring, CheckpointReader& reader, const ModelConfig& c,
                   const GpuCut& cut, int layer, const GpuLayer& to) {
  const Slice middle = cut.part(c.experts().expert.intermediate);
  const auto intermediate = static_cast<int>(middle.count);
  const std::int64_t elements = std::int64_t{intermediate} * c.hidden;
  for (int e = 0; e < c.experts().count; ++e) {
    const FeedForwardSource from = reader.expert(layer, e);
    const LinearWeight gate_up{to.expert_gate_up + 2 * elements * e, 2 * intermediate, c.hidden};
    const LinearWeight down{to.expert_down + elements * e, c.hidden, intermediate};
    bring.rows(from.gate, {0, true}, gate_up, middle);
    bring.rows(from.up, {8, true}, gate_up, middle);
    bring(from.down, {0, false}, down, {0, c.hidden}, middle);
  }
}

void bring_layer(GpuUpload& upload, const Bring& bring, const ModelConfig& c, const LayerCut& cut,
                 const LayerSource& from, const GpuLayer& to) {
  upload.vector(from.input_norm, to.input_norm);
  upload_order(from.q, to.qkv, {0, from.q.columns()});
  int row = 0;
  for (const auto& [part, rows] :
       {std::pair{&from.q, cut.q}, std::pair{&from.k, cut.kv}, std::pair{&from.v, cut.kv}}) {
    bring.rows(*part, {row, false}, to.qkv, rows);
    row += static_cast<int>(rows.count);
  }
  upload.vector(biases_of(from.qkv_bias, c, cut), to.qkv_bias);
  upload.vector(from.q_norm, to.q_norm);
  upload.vector(from.k_norm, to.k_norm);
  upload_order(from.o, to.o, cut.by_outputs ? Slice{0, from.o.columns()} : cut.q);
  bring.behind(from.o, cut, cut.q, to.o);
  upload.vector(from.post_norm, to.post_norm);
  if (to.sparse()) return bring.all(from.router, {0, false}, to.router);
  upload_order(from.dense.gate, to.gate_up, {0, from.dense.gate.columns()});
  const auto [gate, up] = gate_and_up(from.dense);
  bring.rows(gate, {0, true}, to.gate_up, cut.middle);
  bring.rows(up, {8, true}, to.gate_up, cut.middle);
  const Slice features = cut.by_outputs ? Slice{0, from.dense.down.columns()} : cut.middle;
  upload_order(from.dense.down, to.down, features);
  bring.behind(from.dense.down, cut, cut.middle, to.down);
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

std::uint64_t gpu_weight_bytes(const ModelConfig& config, const Checkpoint* checkpoint,
                               const GpuCut& cut) {
  Places places(nullptr);
  GpuWeights nowhere;
  const ModelConfig own = config_of_rank(config, cut);
  place(own, Formats(config, checkpoint, cut), cut, places, nowhere);
  return places.used();
}

GpuWeights place_gpu_weights(const ModelConfig& config, const Checkpoint* checkpoint,
                             cuda::DeviceMemory memory, const GpuCut& cut) {
  check_gpu_limits(config);
  GpuWeights w;
  w.memory = std::move(memory);
  Places places(w.memory.data());
  const ModelConfig own = config_of_rank(config, cut);
  place(own, Formats(config, checkpoint, cut), cut, places, w);
  return w;
}

void load_gpu_weights(const ModelConfig& config, const Checkpoint& checkpoint, int ordinal,
                      std::atomic<int>& percent, GpuWeights& w, const GpuCut& cut) {
  if (!has_fused_layers(config)) {
    load_general_weights(config, checkpoint, ordinal, percent, w);
    upload_ropes(config, w);
    percent = 100;
    return;
  }
  CheckpointReader reader(config, checkpoint);
  GpuUpload upload(config.quantization);
  const Bring bring(upload, config.quantization.method);
  upload.plain(reader.embedding(), w.embedding, false);
  for (int i = 0; i < config.layers; ++i) {
    const GpuLayer& to = w.layers[size(i)];
    bring_layer(upload, bring, config, LayerCut(config, cut, config.layer(i).mlp.intermediate),
                reader.layer(i), to);
    if (to.sparse()) bring_experts(bring, reader, config, cut, i, to);
  }
  upload.vector(reader.final_norm(), w.final_norm);
  const LinearSource head = reader.lm_head();
  if (!config.tied_embeddings) {
    upload_order(head, w.lm_head, {0, config.hidden});
    bring.rows(head, {0, false}, w.lm_head, cut.part(config.vocab));
  }
  reader.expect_all_taken();
  upload.run(ordinal, percent);
  upload_ropes(config, w);
  percent = 100;
}

void random_gpu_weights(const ModelConfig& whole, std::atomic<int>& percent, GpuWeights& w,
                        const GpuCut& cut) {
  const ModelConfig config = config_of_rank(whole, cut);
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
