#include "workers/model/gpu_formats.h"

#include <algorithm>
#include <array>
#include <utility>

#include "workers/model/checkpoint_reader.h"

namespace baton {

using cuda::WeightFormat;

GpuFormats::GpuFormats(const ModelConfig& config, const Checkpoint* checkpoint, const GpuCut& cut)
    : config_(config),
      checkpoint_(checkpoint),
      cut_(cut),
      layers_((checkpoint == nullptr ? config.names.roots.front()
                                     : decoder_root(config.names, *checkpoint)) +
              "layers.") {}

GpuFormats::Names GpuFormats::of_layer(int layer, Names names) const {
  for (std::string& name : names) name.insert(0, layers_ + std::to_string(layer) + ".");
  return names;
}

GpuFormats::Names GpuFormats::qkv_names(int layer) const {
  const TensorNames& n = config_.names;
  if (config_.latent.rank > 0) {
    return of_layer(layer, {config_.latent.q_rank > 0 ? n.q_a : n.q, n.kv_a});
  }
  return of_layer(layer, n.qkv.empty() ? Names{n.q, n.k, n.v} : Names{n.qkv});
}

GpuFormats::Names GpuFormats::gate_up_names(int layer) const {
  const TensorNames& n = config_.names;
  if (!n.gate_up.empty()) return of_layer(layer, {n.gate_up});
  if (!config_.layer(layer).mlp.gated) return of_layer(layer, {n.up});
  return of_layer(layer, {n.gate, n.up});
}

GpuFormats::Names GpuFormats::shared_up_names(int layer) const {
  Names names = config_.names.shared_up_parts();
  for (std::string& name : names) name.insert(0, config_.names.shared);
  return of_layer(layer, std::move(names));
}

LinearFormat GpuFormats::of(const Names& parts, int in) const {
  return gpu_linear_format(config_, checkpoint_, parts, in);
}

LinearFormat GpuFormats::of_inputs(const Names& parts, int in) const {
  return gpu_linear_format(config_, checkpoint_, parts, in,
                           cut_.by_outputs ? Slice{0, in} : cut_.part(in));
}

bool GpuFormats::halves(const std::string& fused, int intermediate) const {
  const Quantization& q = config_.quantization;
  if (fused.empty() || q.method != QuantMethod::fp8) return true;
  return q.block_rows != 0 && intermediate % q.block_rows == 0;
}

LinearFormat GpuFormats::qkv(int layer) const { return of(qkv_names(layer), config_.hidden); }

LinearFormat GpuFormats::o(int layer) const {
  return of_inputs(of_layer(layer, {config_.names.o}), config_.attended_columns());
}

LinearFormat GpuFormats::latent_q(int layer) const {
  return of(of_layer(layer, {config_.names.q_b}), config_.latent.q_rank);
}

LinearFormat GpuFormats::gate_up(int layer) const {
  const Names parts = gate_up_names(layer);
  if (!halves(config_.names.gate_up, config_.layer(layer).mlp.intermediate)) return {};
  return of(parts, config_.hidden);
}

LinearFormat GpuFormats::down(int layer) const {
  return of_inputs(of_layer(layer, {config_.names.down}), config_.layer(layer).mlp.intermediate);
}

LinearFormat GpuFormats::shared_gate_up(int layer) const {
  const Names parts = shared_up_names(layer);
  if (!halves(config_.names.shared_gate_up, config_.layer(layer).experts.shared.intermediate)) {
    return {};
  }
  return of(parts, config_.hidden);
}

LinearFormat GpuFormats::shared_down(int layer) const {
  return of_inputs(of_layer(layer, {config_.names.shared + config_.names.shared_down}),
                   config_.layer(layer).experts.shared.intermediate);
}

cuda::ExpertFormat GpuFormats::experts(int layer) const {
  return gpu_expert_format(config_, checkpoint_, layer, cut_);
}

LinearFormat GpuFormats::lm_head() const {
  if (checkpoint_ == nullptr) return {};
  LinearFormat found = of({head_name(config_.names, *checkpoint_)}, config_.hidden);
  found.shared_scales = false;  // the layer kernel alone reads them
  return found;
}

void GpuFormats::count(const Names& parts, const LinearFormat& format, Summary& summary) const {
  const auto quantized = [this](const std::string& part) {
    return checkpoint_ == nullptr ? config_.quantization.method != QuantMethod::none
                                  : stored_quantized(config_.quantization, *checkpoint_, part);
  };
  if (!std::any_of(parts.begin(), parts.end(), quantized)) return;
  summary.int4 += format.format == WeightFormat::int4 ? 1 : 0;
  summary.int8 += format.format == WeightFormat::int8 ? 1 : 0;
  summary.fp8 += format.format == WeightFormat::fp8 ? 1 : 0;
  summary.widened += format.format == WeightFormat::bf16 ? 1 : 0;
}

GpuFormats::Summary GpuFormats::summary() const {
  const TensorNames& n = config_.names;
  Summary found;
  for (int i = 0; i < config_.layers; ++i) {
    count(qkv_names(i), qkv(i), found);
    count(of_layer(i, {n.o}), o(i), found);
    if (config_.latent.q_rank > 0) count(of_layer(i, {n.q_b}), latent_q(i), found);
    if (!config_.sparse(i)) {
      count(gate_up_names(i), gate_up(i), found);
      count(of_layer(i, {n.down}), down(i), found);
    } else if (config_.layer(i).experts.shared.intermediate > 0) {
      count(shared_up_names(i), shared_gate_up(i), found);
      count(of_layer(i, {n.shared + n.shared_down}), shared_down(i), found);
    }
  }
  if (checkpoint_ != nullptr && !config_.tied_embeddings) {
    count({head_name(n, *checkpoint_)}, lm_head(), found);
  }
  return found;
}

std::string GpuFormats::Summary::most() const {
  const std::array<std::pair<int, const char*>, 4> all = {
      std::pair{widened, "bf16"}, {fp8, "fp8"}, {int8, "int8"}, {int4, "int4"}};
  return std::max_element(all.begin(), all.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

std::string GpuFormats::Summary::text() const {
  std::string text;
  const auto add = [&text](const char* what, int n) {
    if (n == 0) return;
    text += (text.empty() ? "" : ", ") + std::string(what) + ": " + std::to_string(n) +
            (n == 1 ? " matrix" : " matrices");
  };
  add("kept int4", int4);
  add("kept int8", int8);
  add("kept fp8", fp8);
  add("widened to bf16", widened);
  return text;
}

}  // namespace baton
