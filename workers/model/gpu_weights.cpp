#include "workers/model/gpu_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "workers/cuda/layer/experts_load.h"
#include "workers/cuda/linear/quantized_load.h"
#include "workers/model/gpu_bring.h"
#include "workers/model/gpu_cut.h"
#include "workers/model/gpu_expert_stage.h"
#include "workers/model/gpu_formats.h"
#include "workers/model/gpu_general_weights.h"
#include "workers/model/gpu_layer_cut.h"
#include "workers/model/gpu_limits.h"
#include "workers/model/gpu_places.h"
#include "workers/model/gpu_upload.h"
#include "workers/model/rope.h"

namespace baton {
namespace {

using cuda::Bf16;
using cuda::ExpertFormat;
using cuda::LinearWeight;
using cuda::WeightFormat;
using Places = GpuPlaces;

/// Of tables that are decoded before they are uploaded.
constexpr int kReaderThreads = 8;
/// Of the host's memory, for what does not lie in the checkpoint as it is uploaded.
constexpr std::uint64_t kMostHeld = std::uint64_t{1} << 30U;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

void place_ropes(const ModelConfig& c, Places& places, GpuWeights& w) {
  for (const RopeConfig& rope : c.ropes) {
    const std::size_t angles = size(c.max_context) * size(rope.dims / 2);
    GpuRope to;
    to.cos = places.take_as<float>(angles);
    to.sin = places.take_as<float>(angles);
    w.ropes.push_back(to);
  }
}

/// A rank's part of the vocabulary. All ranks place as many rows.
LinearWeight place_head(const ModelConfig& c, const GpuFormats& formats, const GpuCut& cut,
                        Places& places, const Bf16* embedding) {
  const Slice tokens = cut.part(c.vocab);
  if (c.tied_embeddings) {
    return {embedding + tokens.first * c.hidden, static_cast<int>(tokens.count), c.hidden};
  }
  LinearWeight head =
      places.matrix((c.vocab + cut.ranks - 1) / cut.ranks, c.hidden, formats.lm_head());
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
void place(const ModelConfig& c, const GpuFormats& formats, const GpuCut& cut, Places& places,
           GpuWeights& w) {
  if (!has_fused_layers(c)) {
    place_general_weights(c, formats, cut, places, w);
    w.lm_head = place_head(c, formats, cut, places, w.embedding);
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
      const int middle = e.expert.intermediate;
      l.expert_gate_up = places.experts(formats.experts(i), e.count, 2 * middle, c.hidden);
      l.expert_down = places.experts(formats.experts(i), e.count, c.hidden, middle);
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

/// The experts of a layer, quantised ones dequantised.
void bring_experts(const GpuBring& bring, CheckpointReader& reader, const ModelConfig& c,
                   const GpuCut& cut, int layer, const GpuLayer& to) {
  const MlpSpec& expert = c.experts().expert;
  const LayerCut parts(c, cut, expert.intermediate);
  const auto intermediate = static_cast<int>(parts.middle.count);
  const std::int64_t elements = std::int64_t{intermediate} * c.hidden;
  for (int e = 0; e < c.experts().count; ++e) {
    const FeedForwardSource from = reader.expert(layer, e);
    const LinearWeight gate_up{bf16_of(to.expert_gate_up) + 2 * elements * e, 2 * intermediate,
                               c.hidden};
    const LinearWeight down{bf16_of(to.expert_down) + elements * e, c.hidden, intermediate};
    bring.matrix(pieces_of_up(from, expert, parts), gate_up);
    bring.matrix({piece_behind(from.down, parts, parts.middle)}, down);
  }
}

void bring_layer(GpuUpload& upload, const GpuBring& bring, const ModelConfig& c,
                 const GpuCut& of_rank, int index, const LayerSource& from, const GpuLayer& to) {
  const MlpSpec& mlp = c.layer(index).mlp;
  const LayerCut cut(c, of_rank, mlp.intermediate);
  upload.vector(from.input_norm, to.input_norm);
  bring.matrix(pieces_of_qkv(from, c, cut), to.qkv);
  upload.vector(qkv_part(from.qkv_bias, c, cut), to.qkv_bias);
  upload.vector(from.q_norm, to.q_norm);
  upload.vector(from.k_norm, to.k_norm);
  bring.matrix({piece_behind(from.o, cut, cut.q)}, to.o);
  upload.vector(from.post_norm, to.post_norm);
  if (to.sparse()) return bring.all(from.router, to.router);
  bring.matrix(pieces_of_up(from.dense, mlp, cut), to.gate_up);
  bring.matrix({piece_behind(from.dense.down, cut, cut.middle)}, to.down);
}

/// Random numbers of about the size of an initialised model's weights.
void randomise(const LinearWeight& w, std::uint64_t seed, cuda::Stream stream) {
  const cuda::QuantizedWeight& q = w.quantized;
  if (!w.is_quantized()) return;
  constexpr float kDeviation = 0.02F;
  // Of 0..15 about 8, of eight bits, and of an E4M3 with random bits.
  const float scale = kDeviation / (q.format == WeightFormat::int4   ? 4.6F
                                    : q.format == WeightFormat::int8 ? 74.0F
                                                                     : 130.0F);
  const std::uint32_t zero = q.format == WeightFormat::int4 ? 8 : 0;
  cuda::fill_random(const_cast<std::uint32_t*>(q.words), cuda::weight_words(q.format, w.out, w.in),
                    seed, stream, q.format == WeightFormat::int4 ? cuda::kOddInt4 : 0);
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

void randomise_staged_experts(const ModelConfig& c, const GpuLayer& l, std::uint64_t& seed,
                              cuda::Stream stream) {
  if (!l.sparse() || !wants_stage(l.expert_down.format)) return;
  constexpr float kDeviation = 0.02F;
  const ExpertSpec& e = c.experts();
  const int middle = e.expert.intermediate;
  const auto fill = [&](const cuda::ExpertWeight& w, int out, int in) {
    const auto random = w.format == ExpertFormat::fp8 ? cuda::fill_fp8 : cuda::fill_int4;
    random(const_cast<std::byte*>(w.data), size(e.count) * cuda::expert_bytes(w.format, out, in),
           kDeviation, seed++, stream);
  };
  fill(l.expert_gate_up, 2 * middle, c.hidden);
  fill(l.expert_down, c.hidden, middle);
}

}  // namespace

std::uint64_t gpu_weight_bytes(const ModelConfig& config, const Checkpoint* checkpoint,
                               const GpuCut& cut) {
  Places places(nullptr);
  GpuWeights nowhere;
  const ModelConfig own = config_of_rank(config, cut);
  place(own, GpuFormats(config, checkpoint, cut), cut, places, nowhere);
  return places.used();
}

GpuWeights place_gpu_weights(const ModelConfig& config, const Checkpoint* checkpoint,
                             cuda::DeviceMemory memory, const GpuCut& cut) {
  check_gpu_limits(config);
  GpuWeights w;
  w.memory = std::move(memory);
  Places places(w.memory.data());
  const ModelConfig own = config_of_rank(config, cut);
  place(own, GpuFormats(config, checkpoint, cut), cut, places, w);
  return w;
}

void load_gpu_weights(const ModelConfig& config, const Checkpoint& checkpoint, int ordinal,
                      std::atomic<int>& percent, GpuWeights& w, const GpuCut& cut) {
  if (!has_fused_layers(config)) {
    load_general_weights(config, checkpoint, ordinal, percent, w, cut);
    upload_ropes(config, w);
    percent = 100;
    return;
  }
  CheckpointReader reader(config, checkpoint, nullptr, kReaderThreads);
  GpuUpload upload(config.quantization);
  const GpuBring bring(upload, config.quantization);
  upload.plain(reader.embedding(), w.embedding, false);
  std::optional<ExpertStage> stage;
  for (int i = 0; i < config.layers; ++i) {
    const GpuLayer& to = w.layers[size(i)];
    bring_layer(upload, bring, config, cut, i, reader.layer(i), to);
    if (to.sparse() && wants_stage(to.expert_down.format)) {
      const LayerCut parts(config, cut, config.experts().expert.intermediate);
      if (!stage) {
        stage.emplace(to.expert_down.format, gpu_expert_parts(config, &checkpoint, i, cut),
                      config.experts().count, config.hidden, static_cast<int>(parts.middle.count));
      }
      bring_by_stage(
          upload, bring, ordinal, config.experts(), parts,
          [&](int e) { return reader.expert(i, e); }, *stage, to);
      percent = (i + 1) * 99 / config.layers;
    } else if (to.sparse()) {
      bring_experts(bring, reader, config, cut, i, to);
    }
    if (upload.held_bytes() < kMostHeld) continue;
    std::atomic<int> ignored{0};
    upload.run(ordinal, ignored);
    percent = i * 99 / config.layers;
  }
  upload.vector(reader.final_norm(), w.final_norm);
  const LinearSource head = reader.lm_head();
  if (!config.tied_embeddings) {
    bring.matrix({{&head, cut.part(config.vocab), {0, head.columns()}}}, w.lm_head);
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
    for (const LinearWeight* matrix : {&l.qkv, &l.o, &l.gate_up, &l.down, &l.general.latent.q,
                                       &l.general.shared_gate_up, &l.general.shared_down}) {
      randomise(*matrix, seed++, stream.get());
      stream.synchronize();
    }
  }
  for (const GpuLayer& l : w.layers) randomise_staged_experts(config, l, seed, stream.get());
  ones(w.final_norm, config.hidden);
  if (!has_fused_layers(config)) randomise_general_weights(config, w);
  stream.synchronize();
  upload_ropes(config, w);
  percent = 100;
}

}  // namespace baton
