#include "workers/model/gpu_general_weights.h"

#include <optional>
#include <utility>
#include <vector>

#include "workers/cuda/layer/experts_load.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/error.h"
#include "workers/model/gpu_bring.h"
#include "workers/model/gpu_expert_stage.h"
#include "workers/model/gpu_layer_cut.h"
#include "workers/model/gpu_shapes.h"
#include "workers/model/gpu_upload.h"

namespace baton {
namespace {

using cuda::Bf16;
using cuda::LinearWeight;

/// Of tables and experts that are decoded before they are uploaded.
constexpr int kGeneralReaderThreads = 8;

std::size_t count_of(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Two rows of gate and up a column of the part, or one without a gate.
std::int64_t up_rows(const MlpSpec& m) { return std::int64_t{m.intermediate} * (m.gated ? 2 : 1); }

std::int64_t kv_b_rows(const ModelConfig& c) {
  return std::int64_t{c.heads} * (c.latent.plain + c.latent.value);
}

class Placer {
 public:
  Placer(const ModelConfig& c, const GpuFormats& formats, const GpuCut& cut, GpuPlaces& places)
      : c_(c), formats_(formats), cut_(cut), places_(places) {}

  void layer(int index, GpuLayer& l) {
    const LayerSpec& spec = c_.layer(index);
    GpuGeneralLayer& g = l.general;
    const bool before = spec.norm != NormPlace::after;
    const bool after = spec.norm != NormPlace::before;
    if (before) g.before_attention = norm();
    attention(index, spec.attention, l);
    if (after) g.after_attention = norm();
    if (before && !spec.parallel) g.before_mlp = norm();
    if (after) g.after_mlp = norm();
    if (spec.sparse()) return experts(index, spec.experts, l);
    l.gate_up = places_.matrix(up_rows(spec.mlp), c_.hidden, formats_.gate_up(index));
    l.down = behind(spec.mlp.intermediate, formats_.down(index));
    if (spec.mlp.bias) g.up_bias = floats(up_rows(spec.mlp));
    if (spec.mlp.bias) g.down_bias = floats(c_.hidden);
  }
  GpuNorm norm() {
    GpuNorm n;
    n.weight = floats(c_.hidden);
    if (c_.norm.bias) n.bias = floats(c_.hidden);
    return n;
  }

 private:
  const float* floats(std::int64_t n) { return places_.take_as<float>(count_of(n)); }
  /// What leads back to [hidden], from so many numbers of this rank.
  LinearWeight behind(std::int64_t in, const LinearFormat& format) {
    if (!cut_.by_outputs) return places_.matrix(c_.hidden, in, format);
    return places_.matrix(cut_.part(c_.hidden).count, in * cut_.ranks, format);
  }

  void latent(int index, GpuLayer& l) {
    const LatentSpec& spec = c_.latent;
    GpuLatent& to = l.general.latent;
    l.qkv = places_.matrix(projected_columns(c_), c_.hidden, formats_.qkv(index));
    if (spec.q_rank > 0) {
      to.q_norm = floats(spec.q_rank);
      to.q = places_.matrix(std::int64_t{c_.heads} * c_.head_dim, spec.q_rank,
                            formats_.latent_q(index));
    }
    to.kv_norm = floats(spec.rank);
    to.kv_b = places_.take(count_of(kv_b_rows(c_)) * count_of(spec.rank));
    l.o = behind(c_.attended_columns(), formats_.o(index));
  }

  void attention(int index, const AttentionSpec& a, GpuLayer& l) {
    if (c_.latent.rank > 0) return latent(index, l);
    GpuGeneralLayer& g = l.general;
    const std::int64_t q = std::int64_t{c_.heads} * c_.head_dim;
    l.qkv = places_.matrix(c_.qkv_columns(), c_.hidden, formats_.qkv(index));
    if (a.qkv_bias) g.qkv_bias = floats(c_.qkv_columns());
    if (a.qk_norm != QkNorm::none) {
      const bool whole = a.qk_norm == QkNorm::whole;
      g.q_norm = floats(whole ? q : c_.head_dim);
      g.k_norm = floats(whole ? std::int64_t{c_.kv_heads} * c_.head_dim : c_.head_dim);
    }
    if (a.sinks) g.sinks = floats(c_.heads);
    l.o = behind(q, formats_.o(index));
    if (a.o_bias) g.o_bias = floats(c_.hidden);
  }

  void experts(int index, const ExpertSpec& e, GpuLayer& l) {
    GpuGeneralLayer& g = l.general;
    const std::int64_t middle = e.expert.intermediate;
    l.router = places_.matrix(e.count, c_.hidden);
    const cuda::ExpertFormat format = formats_.experts(index);
    l.expert_gate_up = places_.experts(format, e.count, 2 * e.expert.intermediate, c_.hidden);
    l.expert_down = places_.experts(format, e.count, c_.hidden, e.expert.intermediate);
    if (e.expert.bias) g.up_bias = floats(e.count * 2 * middle);
    if (e.expert.bias) g.down_bias = floats(std::int64_t{e.count} * c_.hidden);
    if (e.router_bias) g.router_bias = floats(e.count);
    if (e.choice_bias) g.choice_bias = floats(e.count);
    if (e.shared.intermediate == 0) return;
    g.shared_gate_up = places_.matrix(up_rows(e.shared), c_.hidden, formats_.shared_gate_up(index));
    g.shared_down = places_.matrix(c_.hidden, e.shared.intermediate, formats_.shared_down(index));
    if (e.shared.bias) g.shared_up_bias = floats(up_rows(e.shared));
    if (e.shared.bias) g.shared_down_bias = floats(c_.hidden);
    if (e.shared_gate) g.shared_gate = floats(c_.hidden);
  }

  const ModelConfig& c_;
  const GpuFormats& formats_;
  const GpuCut& cut_;
  GpuPlaces& places_;
};

void put(const std::vector<float>& values, const float* to) {
  if (values.empty()) return;
  const cuda::OwnedStream stream;
  cuda::copy_to_device(const_cast<float*>(to), values.data(), values.size() * sizeof(float),
                       stream.get());
  stream.synchronize();
}

void put(const std::vector<float>& weight, const std::vector<float>& bias, const GpuNorm& to) {
  put(weight, to.weight);
  put(bias, to.bias);
}

class Loader {
 public:
  Loader(const ModelConfig& c, const Checkpoint& checkpoint, const GpuCut& cut)
      : c_(c),
        cut_(cut),
        checkpoint_(checkpoint),
        reader_(c, checkpoint, nullptr, kGeneralReaderThreads),
        upload_(c.quantization),
        bring_(upload_, c.quantization) {}

  void everything(int ordinal, std::atomic<int>& percent, GpuWeights& w) {
    ordinal_ = ordinal;
    plain(reader_.embedding(), w.embedding, false);
    put(reader_.final_norm(), reader_.final_norm_bias(), w.general_final_norm);
    const LinearSource head = reader_.lm_head();
    if (!c_.tied_embeddings) {
      bring_.matrix({{&head, cut_.part(c_.vocab), {0, head.columns()}}}, w.lm_head);
    }
    for (int i = 0; i < c_.layers; ++i) {
      layer(i, w.layers[count_of(i)]);
      // Experts that are stored otherwise have been copied: a layer of them at a time. Those of
      // other layers, too: they are most of the work, and `percent` shows how far they are.
      if (upload_.held_bytes() > 0 || w.layers[count_of(i)].sparse()) flush(ordinal);
      percent = (i + 1) * 99 / c_.layers;
    }
    flush(ordinal);
    reader_.expect_all_taken();
  }

 private:
  void flush(int ordinal) {
    std::atomic<int> ignored{0};
    upload_.run(ordinal, ignored);
  }
  void plain(const cpu::MatrixSource& source, const Bf16* to, bool interleaved) {
    if (source.rows == 0) throw ModelError("a matrix without rows is to be uploaded");
    upload_.plain(source, to, interleaved);
  }

  void layer(int index, const GpuLayer& to) {
    const LayerSource from = reader_.layer(index);
    const GpuGeneralLayer& g = to.general;
    put(from.input_norm, from.norm_biases[0], g.before_attention);
    put(from.attention_after, from.norm_biases[1], g.after_attention);
    put(from.post_norm, from.norm_biases[2], g.before_mlp);
    put(from.mlp_after, from.norm_biases[3], g.after_mlp);
    const LayerSpec& spec = c_.layer(index);
    const LayerCut cut(c_, cut_, spec.mlp.intermediate);
    if (c_.latent.rank > 0) {
      latent(from, cut, to);
    } else {
      attention(spec.attention, from, cut, to);
    }
    if (!spec.sparse()) {
      dense(spec.mlp, from.dense, to.gate_up, to.down, g.up_bias, g.down_bias);
      return;
    }
    const ExpertSpec& e = spec.experts;
    bring_.all(from.router, to.router);
    put(from.router_bias, g.router_bias);
    put(from.choice_bias, g.choice_bias);
    experts(index, e, to);
    if (e.shared.intermediate == 0) return;
    dense(e.shared, from.shared, g.shared_gate_up, g.shared_down, g.shared_up_bias,
          g.shared_down_bias);
    if (e.shared_gate) put(values_of(reader_.dequantized(from.shared_gate)), g.shared_gate);
  }

  void attention(const AttentionSpec& spec, const LayerSource& from, const LayerCut& cut,
                 const GpuLayer& to) {
    const GpuGeneralLayer& g = to.general;
    bring_.matrix(pieces_of_qkv(from, c_, cut), to.qkv);
    put(qkv_part(from.qkv_bias, c_, cut), g.qkv_bias);
    const bool whole = spec.qk_norm == QkNorm::whole;
    put(whole ? numbers_of(from.q_norm, cut.q) : from.q_norm, g.q_norm);
    put(whole ? numbers_of(from.k_norm, cut.kv) : from.k_norm, g.k_norm);
    put(numbers_of(from.sinks, cut_.heads(c_)), g.sinks);
    bring_.matrix({piece_behind(from.o, cut, cut.q)}, to.o);
    put(from.o_bias, g.o_bias);
  }

  /// A rank has its heads' queries and matrices, and all of what leads to latent numbers.
  void latent(const LayerSource& layer, const LayerCut& cut, const GpuLayer& to) {
    const LatentSource& from = layer.latent;
    const LatentSpec& spec = c_.latent;
    const GpuLatent& l = to.general.latent;
    const Slice heads = cut_.heads(c_);
    const auto of_heads = [&heads](std::int64_t each) {
      return Slice{heads.first * each, heads.count * each};
    };
    const bool at_once = spec.q_rank == 0;
    const LinearSource& first = at_once ? from.q : from.q_a;
    const Slice first_rows = at_once ? cut.q : Slice{0, spec.q_rank};
    const Slice columns{0, c_.hidden};
    bring_.matrix({{&first, first_rows, columns, 0, false},
                   {&from.kv_a, {0, from.kv_a.rows()}, columns, first_rows.count, false}},
                  to.qkv);
    put(from.q_norm, l.q_norm);
    if (!at_once) bring_.matrix({{&from.q, cut.q, {0, spec.q_rank}, 0, false}}, l.q);
    put(from.kv_norm, l.kv_norm);
    plain(reader_.dequantized(from.kv_b, of_heads(spec.plain + spec.value)), l.kv_b, false);
    bring_.matrix({piece_behind(layer.o, cut, of_heads(spec.value))}, to.o);
  }

  void dense(const MlpSpec& m, const FeedForwardSource& from, const LinearWeight& up,
             const LinearWeight& down, const float* up_bias, const float* down_bias) {
    const LayerCut cut(c_, cut_, m.intermediate);
    bring_.matrix(pieces_of_up(from, m, cut), up);
    bring_.matrix({piece_behind(from.down, cut, cut.middle)}, down);
    put(up_part(from.up_bias, m, cut), up_bias);
    put(from.down_bias, down_bias);
  }

  /// A rank's features of each. In bf16 they are brought as a dense part is, which widens them.
  void experts(int layer, const ExpertSpec& e, const GpuLayer& to) {
    const LayerCut cut(c_, cut_, e.expert.intermediate);
    const std::int64_t middle = cut.middle.count;
    const std::int64_t elements = middle * c_.hidden;
    if (wants_stage(to.expert_down.format)) return staged_experts(layer, e, to);
    const auto at = [](const float* first, std::int64_t i) {
      return first == nullptr ? nullptr : first + i;
    };
    for (int i = 0; i < e.count; ++i) {
      const FeedForwardSource from = reader_.expert(layer, i);
      const float* up_bias = at(to.general.up_bias, 2 * middle * i);
      const float* down_bias = at(to.general.down_bias, std::int64_t{c_.hidden} * i);
      if (to.expert_down.format == cuda::ExpertFormat::mxfp4) {
        mxfp4(from.gate, {2 * cut.middle.first, 2 * middle}, {0, c_.hidden}, i, to.expert_gate_up);
        mxfp4(from.down, {0, c_.hidden}, cut.middle, i, to.expert_down);
        put(up_part(from.up_bias, e.expert, cut), up_bias);
        put(from.down_bias, down_bias);
        continue;
      }
      const auto features = static_cast<int>(middle);
      dense(e.expert, from,
            {bf16_of(to.expert_gate_up) + 2 * elements * i, 2 * features, c_.hidden},
            {bf16_of(to.expert_down) + elements * i, c_.hidden, features}, up_bias, down_bias);
    }
  }

  /// Of families without biases on them; the layer's jobs are done then.
  void staged_experts(int layer, const ExpertSpec& e, const GpuLayer& to) {
    const LayerCut cut(c_, cut_, e.expert.intermediate);
    if (!stage_) {
      stage_.emplace(to.expert_down.format, gpu_expert_parts(c_, &checkpoint_, layer, cut_),
                     e.count, c_.hidden, static_cast<int>(cut.middle.count));
    }
    bring_by_stage(
        upload_, bring_, ordinal_, e, cut, [&](int i) { return reader_.expert(layer, i); }, *stage_,
        to);
  }

  void mxfp4(const LinearSource& from, const Slice& rows, const Slice& columns, int expert,
             const cuda::ExpertWeight& to) {
    const std::size_t each = cuda::expert_bytes(to.format, static_cast<int>(rows.count),
                                                static_cast<int>(columns.count));
    upload_.mxfp4(*from.mxfp4, from.columns(), rows, columns, to.data + count_of(expert) * each);
  }

  static std::vector<float> values_of(const cpu::MatrixSource& m) {
    std::vector<float> values(count_of(m.rows * m.columns));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = cpu::element(m.data, m.type, static_cast<std::int64_t>(i));
    }
    return values;
  }

  const ModelConfig& c_;  // the whole model
  const GpuCut& cut_;
  const Checkpoint& checkpoint_;
  CheckpointReader reader_;
  GpuUpload upload_;
  GpuBring bring_;
  int ordinal_ = 0;
  std::optional<ExpertStage> stage_;
};

void randomise(const cuda::ExpertWeight& w, int count, int out, int in, std::uint64_t seed,
               cuda::Stream stream) {
  constexpr float kDeviation = 0.02F;
  cuda::fill_mxfp4(const_cast<std::byte*>(w.data),
                   count_of(count) * cuda::expert_bytes(w.format, out, in), kDeviation, seed,
                   stream);
}

}  // namespace

void place_general_weights(const ModelConfig& c, const GpuFormats& formats, const GpuCut& cut,
                           GpuPlaces& places, GpuWeights& w) {
  Placer placer(c, formats, cut, places);
  w.embedding = places.take(count_of(c.vocab) * count_of(c.hidden));
  w.layers.resize(count_of(c.layers));
  for (int i = 0; i < c.layers; ++i) placer.layer(i, w.layers[count_of(i)]);
  w.general_final_norm = placer.norm();
}

void load_general_weights(const ModelConfig& whole, const Checkpoint& checkpoint, int ordinal,
                          std::atomic<int>& percent, GpuWeights& w, const GpuCut& cut) {
  Loader(whole, checkpoint, cut).everything(ordinal, percent, w);
}

void randomise_general_weights(const ModelConfig& c, GpuWeights& w) {
  const auto norm = [&](const float* to, std::int64_t n) {
    if (to != nullptr) put(std::vector<float>(count_of(n), 1.0F), to);
  };
  // All other vectors keep what they were filled with: of two random bf16 the second is a float's
  // upper half.
  for (int i = 0; i < c.layers; ++i) {
    const GpuGeneralLayer& g = w.layers[count_of(i)].general;
    const bool whole = c.layer(i).attention.qk_norm == QkNorm::whole;
    for (const GpuNorm& n : {g.before_attention, g.after_attention, g.before_mlp, g.after_mlp}) {
      norm(n.weight, c.hidden);
    }
    norm(g.q_norm, std::int64_t{whole ? c.heads : 1} * c.head_dim);
    norm(g.latent.q_norm, c.latent.q_rank);
    norm(g.latent.kv_norm, c.latent.rank);
    norm(g.k_norm, std::int64_t{whole ? c.kv_heads : 1} * c.head_dim);
  }
  norm(w.general_final_norm.weight, c.hidden);
  const cuda::OwnedStream stream;
  std::uint64_t seed = 1;
  for (int i = 0; i < c.layers; ++i) {
    const GpuLayer& l = w.layers[count_of(i)];
    if (!l.sparse() || l.expert_down.format != cuda::ExpertFormat::mxfp4) continue;
    const ExpertSpec& e = c.layer(i).experts;
    const int middle = e.expert.intermediate;
    randomise(l.expert_gate_up, e.count, 2 * middle, c.hidden, seed++, stream.get());
    randomise(l.expert_down, e.count, c.hidden, middle, seed++, stream.get());
  }
  stream.synchronize();
}

}  // namespace baton
