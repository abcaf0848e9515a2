// The part of GpuDecoder that runs what lies between two attentions as one kernel, for steps of few
// rows, and that chooses at start whether it does: linear_chain.h for dense layers,
// experts_layer.h for layers of experts.
#include <algorithm>
#include <vector>

#include "workers/cuda/device.h"
#include "workers/cuda/layer/experts_layer.h"
#include "workers/cuda/linear/linear_chain.h"
#include "workers/cuda/stopwatch.h"
#include "workers/model/gpu_decoder.h"
#include "workers/model/gpu_rules.h"
#include "workers/model/gpu_shapes.h"

namespace baton {

using cuda::Bf16;
using cuda::LinearOutput;
using cuda::LinearWeight;

bool GpuDecoder::chains_parts() const {
  if (config_.norm.kind != NormKind::rms || config_.latent.rank > 0) return false;
  return std::all_of(config_.parts.begin(), config_.parts.end(), [](const LayerSpec& l) {
    const MlpSpec& m = l.mlp;
    return !l.sparse() && !l.parallel && m.gated && !m.bias && m.limit == 0 && !l.attention.o_bias;
  });
}

std::vector<cuda::ChainGemm> GpuDecoder::general_gemms_behind(int index) const {
  const auto layer_of = [&](int i) -> const GpuLayer& {
    return weights_.layers[static_cast<std::size_t>(i)];
  };
  const LayerSpec& spec = config_.layer(index);
  const GpuLayer& w = layer_of(index);
  const auto joins = [&](const LinearWeight& product, const Bf16* from, const GpuNorm& norm,
                         const GpuNorm* next) {
    cuda::ChainGemm gemm{.w = product, .output = LinearOutput::bf16, .x = from, .y = part_};
    gemm.joins = true;
    gemm.join.part = part_;
    gemm.join.norm = weights_of(config_.norm, norm);
    gemm.join.factor = static_cast<float>(spec.residual);
    gemm.join.hidden = config_.hidden;
    gemm.join.x = x_;
    if (next == nullptr) return gemm;
    gemm.join.next = weights_of(config_.norm, *next);
    gemm.join.normed = normed_;
    return gemm;
  };
  const bool before = spec.norm != NormPlace::after;
  std::vector<cuda::ChainGemm> gemms;
  gemms.push_back(
      joins(w.o, attended_, w.general.after_attention, before ? &w.general.before_mlp : nullptr));
  gemms.push_back(
      {.w = w.gate_up, .output = LinearOutput::silu_mul, .x = before ? normed_ : x_, .y = gated_});
  gemms.back().gate = activate_of(spec.mlp).gate;
  const bool last = index + 1 == config_.layers;
  const bool next_before = !last && config_.layer(index + 1).norm != NormPlace::after;
  gemms.push_back(joins(w.down, gated_, w.general.after_mlp,
                        next_before ? &layer_of(index + 1).general.before_attention : nullptr));
  if (last) return gemms;
  gemms.push_back({.w = layer_of(index + 1).qkv,
                   .output = LinearOutput::bf16,
                   .x = next_before ? normed_ : x_,
                   .y = qkv_});
  return gemms;
}

std::vector<cuda::ChainGemm> GpuDecoder::gemms_behind(int index) const {
  if (!fused_) return general_gemms_behind(index);
  const auto eps = static_cast<float>(config_.norm.eps);
  const GpuLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
  const GpuLayer* next =
      index + 1 < config_.layers ? &weights_.layers[static_cast<std::size_t>(index) + 1] : nullptr;
  std::vector<cuda::ChainGemm> gemms;
  const auto add = [&](const cuda::LinearWeight& w, LinearOutput output, const Bf16* x, void* y) {
    gemms.push_back({.w = w, .output = output, .x = x, .y = y});
  };
  const auto then_norm = [&](const Bf16* weight) {
    gemms.back().gain = weight;
    gemms.back().scaled = normed_;
  };
  const auto after_norm = [&] {
    gemms.back().normed = true;
    gemms.back().eps = eps;
  };
  add(layer.o, LinearOutput::residual, attended_, x_);
  then_norm(layer.post_norm);
  add(layer.gate_up, LinearOutput::silu_mul, normed_, gated_);
  after_norm();
  add(layer.down, LinearOutput::residual, gated_, x_);
  if (next != nullptr) {
    then_norm(next->input_norm);
    add(next->qkv, LinearOutput::bf16, normed_, qkv_);
    after_norm();
  }
  return gemms;
}

bool GpuDecoder::has_expert_layer(const LayerSpec& spec) const {
  const ExpertSpec& e = spec.experts;
  if (!adds_at_once(spec) || spec.parallel || config_.norm.kind != NormKind::rms) return false;
  if (!e.expert.gated) return false;
  const MlpSpec& shared = e.shared;
  if (shared.intermediate == 0) return true;
  return shared.gated && !shared.bias && shared.activation == e.expert.activation &&
         shared.limit == e.expert.limit && shared.alpha == e.expert.alpha;
}

cuda::ExpertLayerCall GpuDecoder::expert_layer_behind(int index, int rows) const {
  const LayerSpec& spec = config_.layer(index);
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const GpuGeneralLayer& g = w.general;
  const auto eps = static_cast<float>(config_.norm.eps);
  cuda::ExpertLayerCall call;
  call.experts.shape = experts_of(config_);
  call.experts.rows = rows;
  call.experts.gate_up = w.expert_gate_up;
  call.experts.down = w.expert_down;
  call.experts.x = x_;
  call.experts.workspace = experts_workspace_;
  if (!fused_) call.experts.rule = rule_of(spec.experts, g);
  call.logits = routed_;
  if (!w.o.is_quantized()) {
    call.o = w.o;
    call.attended = attended_;
    call.o_bias = g.o_bias;
  }
  call.norm = {w.post_norm, g.before_mlp.weight, eps};
  call.router = w.router;
  call.shared_gate_up = g.shared_gate_up;
  call.shared_down = g.shared_down;
  call.shared_gate = g.shared_gate;
  call.shared = gated_;
  if (index + 1 == config_.layers) return call;
  const GpuLayer& next = weights_.layers[static_cast<std::size_t>(index) + 1];
  const LayerSpec& behind = config_.layer(index + 1);
  if (next.qkv.is_quantized() || behind.norm == NormPlace::after || behind.parallel) return call;
  call.next_norm = {next.input_norm, next.general.before_attention.weight, eps};
  call.next_w = next.qkv;
  call.next = qkv_;
  return call;
}

int GpuDecoder::layer_kernel_rows(int index) const {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  if (w.sparse()) {
    if (!has_expert_layer(config_.layer(index))) return 0;
    if (w.o.is_quantized() && w.general.o_bias != nullptr) return 0;
    return cuda::expert_layer_rows(expert_layer_behind(index, 1));
  }
  // The few dense layers of a model with experts have none, so that all kernels are of one kind,
  // with states of one kind.
  if (config_.experts().count > 0 || (!fused_ && !chains_parts())) return 0;
  const auto gemms = gemms_behind(index);
  return cuda::chain_rows(gemms.data(), static_cast<int>(gemms.size()));
}

int GpuDecoder::find_layer_kernels() {
  layer_kernels_.assign(static_cast<std::size_t>(config_.layers), false);
  if (options_.deterministic || options_.chain == Options::Chain::never ||
      options_.exchange != nullptr || config_.layers < 2) {
    return 0;
  }
  int most_rows = options_.max_rows;
  int kernels = 0;
  for (int i = 0; i < config_.layers; ++i) {
    const int rows = layer_kernel_rows(i);
    if (rows == 0) continue;
    layer_kernels_[static_cast<std::size_t>(i)] = true;
    most_rows = std::min(most_rows, rows);
    ++kernels;
  }
  // A kernel clears the state of the next one, which must not be its own.
  if (kernels > 1) return most_rows;
  layer_kernels_.assign(static_cast<std::size_t>(config_.layers), false);
  return 0;
}

int GpuDecoder::timed_layers() const {
  // Several, so that no weights come from the L2 cache. Of layers by parts all: a graph's beginning
  // costs a chain more than several kernels (of eight layers of Gemma 3 12B, on one H200, 14 us a
  // layer against 3).
  if (!fused_) return config_.layers;
  int kernels = 0;
  int layers = 0;
  while (layers < config_.layers && kernels < 8) kernels += has_layer_kernel(layers++) ? 1 : 0;
  return layers;
}

std::size_t GpuDecoder::layer_state_bytes() {
  return std::max(cuda::chain_state_bytes(), cuda::expert_layer_state_bytes());
}

void GpuDecoder::run_layer_kernel(int index, int layers, int rows, cuda::Stream stream) {
  int next = index;
  do next = (next + 1) % layers;
  while (!has_layer_kernel(next));
  const auto state = [&](int layer) {
    return chain_states_ + static_cast<std::size_t>(layer) * layer_state_bytes();
  };
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const bool last = index + 1 == config_.layers;
  if (!w.sparse()) {
    const cuda::ChainBuffers buffers{state(index), state(next), chain_workspace_};
    const auto gemms = gemms_behind(index);
    return cuda::linear_chain(gemms.data(), static_cast<int>(gemms.size()), rows, buffers, stream);
  }
  const cuda::ExpertLayerCall call = expert_layer_behind(index, rows);
  if (call.o.data == nullptr) {
    linears_.run(attended_, rows, w.o, LinearOutput::residual, x_, stream);
  }
  cuda::expert_layer(call, state(index), state(next), stream);
  if (last) return;
  if (call.next == nullptr) return project_next(index + 1, rows, /*is_normed=*/false, stream);
  if (latent_ != nullptr) latent_project(index + 1, rows, stream);
}

void GpuDecoder::project_next(int index, int rows, bool is_normed, cuda::Stream stream) {
  if (fused_) return project(index, rows, stream);
  general_project(index, rows, is_normed, stream);
}

void GpuDecoder::run_several_kernels(int index, int rows, cuda::Stream stream) {
  bool is_normed = false;
  if (fused_) {
    const GpuLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
    linears_.run(attended_, rows, layer.o, LinearOutput::residual, x_, stream);
    feed_forward(layer, x_, rows, stream);
  } else {
    is_normed = general_behind(index, attended_, normed_, x_, rows, stream);
  }
  if (index + 1 < config_.layers) project_next(index + 1, rows, is_normed, stream);
}

/// Times whole layers: kernels that are quick one by one need not be so in a row.
void GpuDecoder::tune_layer_kernels(cuda::Stream stream) {
  chain_choices_.clear();
  const int most_rows = find_layer_kernels();
  if (most_rows == 0) return;
  const int layers = timed_layers();
  // Rows that differ choose different experts.
  const auto rows_differ = [&](int rows) {
    const auto fill = [&](Bf16* to, int columns, std::uint64_t seed) {
      const auto n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
      cuda::fill_normal(to, n, 1.0F, seed, stream);
    };
    fill(x_, config_.hidden, 1);
    fill(attended_, config_.attended_columns(), 2);
  };
  const auto chained_us = [&](int rows) {
    rows_differ(rows);
    return cuda::graph_us(stream, layers, [&](int i) {
      if (has_layer_kernel(i)) return run_layer_kernel(i, layers, rows, stream);
      run_several_kernels(i, rows, stream);
    });
  };
  // The first ones are slower than all that follow.
  for (const int rows : {64, 32, 16, 8, 4, 2, 1}) {
    if (!fused_ && rows <= most_rows) chained_us(rows);
  }
  for (int rows : {1, 2, 4, 8, 16, 32, 64, 96, 128}) {
    const int before = chain_choices_.empty() ? 0 : chain_choices_.back().rows;
    rows = std::min(rows, most_rows);
    if (rows == before) break;
    cuda::ChainChoice choice;
    choice.rows = rows;
    choice.chained_us = chained_us(rows);
    rows_differ(rows);
    choice.single_us =
        cuda::graph_us(stream, layers, [&](int i) { run_several_kernels(i, rows, stream); });
    // Behind attention, which is not timed here, the first of several kernels starts earlier: of
    // eight fused layers a quarter of what is gained and one microsecond more are lost again
    // (measured on one H200 with the 8B); the same of layers of experts, the quarter only where W_o
    // is not a kernel of its own either way (Qwen3-30B-A3B in FP8). Of dense layers by parts some
    // two microseconds more are gained (Gemma 3 12B, layers of 115 us, 1 to 32 rows).
    const double gained = choice.single_us - choice.chained_us;
    const bool sparse = config_.experts().count > 0;
    const double kept = sparse && weights_.layers.back().o.is_quantized() ? 1.0 : 0.75;
    const bool quicker = fused_ || sparse ? kept * gained > 1 : gained > -0.015 * choice.single_us;
    choice.chained = options_.chain == Options::Chain::wherever_possible || quicker;
    chain_choices_.push_back(choice);
  }
}

bool GpuDecoder::as_one_kernel(const GpuBatch& batch) const {
  if (batch.chunks != nullptr || batch.wanted_rows != nullptr) return false;
  for (const cuda::ChainChoice& c : chain_choices_) {
    if (batch.rows <= c.rows) return c.chained;
  }
  return false;
}

}  // namespace baton
