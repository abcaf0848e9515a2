// The part of GpuDecoder that interprets a ModelSpec part by part: for models of which the fused
// kernels do not cover some layer (has_fused_layers()). llama.cpp is the same on CPUs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/general.h"
#include "workers/cuda/layer/rowwise.h"
#include "workers/model/gpu_decoder.h"
#include "workers/model/gpu_rules.h"
#include "workers/model/gpu_shapes.h"

namespace baton {
namespace {

using cuda::Bf16;
using cuda::LinearOutput;
using cuda::LinearWeight;

void norm_into(const NormSpec& spec, const GpuNorm& norm, const Bf16* x, int rows, int hidden,
               Bf16* y, cuda::Stream stream) {
  cuda::NormCall call;
  call.x = x;
  call.x_stride = call.y_stride = hidden;
  call.norm = weights_of(spec, norm);
  call.rows = rows;
  call.columns = hidden;
  call.y = y;
  cuda::norm_rows(call, stream);
}

}  // namespace

/// T = rows of the step, W = rows whose logits are wanted; x is the residual stream.
void GpuDecoder::run_general(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use) {
  // x = E[tokens]
  cuda::embed(weights_.embedding, config_.vocab, batch.tokens, sampled_, batch.rows, config_.hidden,
              x_, stream);
  if (config_.embedding_scale != 1.0) {
    cuda::scale_rows(static_cast<float>(config_.embedding_scale), batch.rows, config_.hidden, x_,
                     stream);
  }
  show("embed", -1, "", x_, batch.rows, config_.hidden);
  bool is_normed = false;
  const bool chain = as_one_kernel(batch);
  bool projected = false;
  for (int i = 0; i < config_.layers; ++i) {
    if (!projected) general_project(i, batch.rows, is_normed, stream);
    general_attend(i, batch, stream);
    projected = chain && has_layer_kernel(i);
    if (projected) {
      run_layer_kernel(i, config_.layers, batch.rows, stream);
      show("layer", i, "", x_, batch.rows, config_.hidden);
      continue;
    }
    // Nothing but the wanted rows is needed behind the last keys and values: T becomes W.
    Bf16* x = x_;
    Bf16* normed = normed_;
    const Bf16* attended = attended_;
    int rows = batch.rows;
    if (i + 1 == config_.layers && batch.wanted_rows != nullptr) {
      rows = batch.wanted;
      if (rows == 0) return meet(stream);
      cuda::gather_rows(x_, batch.wanted_rows, rows, config_.hidden, wanted_x_, stream);
      cuda::gather_rows(attended_, batch.wanted_rows, rows, config_.attended_columns(),
                        wanted_attended_, stream);
      if (config_.layer(i).parallel) {
        cuda::gather_rows(normed_, batch.wanted_rows, rows, config_.hidden, wanted_normed_, stream);
      }
      x = wanted_x_;
      normed = wanted_normed_;
      attended = wanted_attended_;
    }
    is_normed = general_behind(i, attended, normed, x, rows, stream);
    show("layer", i, "", x, rows, config_.hidden);
  }
  if (batch.wanted == 0) return meet(stream);
  general_head(batch, stream, use);
}

/// q, k, v = W_qkv norm(x)
void GpuDecoder::general_project(int index, int rows, bool is_normed, cuda::Stream stream) {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const Bf16* x = x_;
  if (config_.layer(index).norm != NormPlace::after) {
    x = normed_;
    if (!is_normed) {
      norm_into(config_.norm, w.general.before_attention, x_, rows, config_.hidden, normed_,
                stream);
    }
  }
  linears_.run(x, rows, w.qkv, LinearOutput::bf16, qkv_, stream);
  if (latent_ != nullptr) latent_project(index, rows, stream);
}

/// q, k, v (+ b; q and k normed); q and k turned by their position; k and v written to the pool;
/// attention.
void GpuDecoder::general_attend(int index, const GpuBatch& batch, cuda::Stream stream) {
  if (latent_ != nullptr) return latent_attend(index, batch, stream);
  const AttentionSpec& spec = config_.layer(index).attention;
  const GpuGeneralLayer& w = weights_.layers[static_cast<std::size_t>(index)].general;
  cuda::HeadAppend append;
  append.qkv = qkv_;
  append.rows = batch.rows;
  append.shape = heads_of(config_);
  append.finish.bias = w.qkv_bias;
  append.finish.q_norm = w.q_norm;
  append.finish.k_norm = w.k_norm;
  append.finish.whole = spec.qk_norm == QkNorm::whole;
  append.finish.eps = static_cast<float>(config_.norm.eps);
  if (spec.rope >= 0) {
    const RopeConfig& rope = config_.ropes[static_cast<std::size_t>(spec.rope)];
    const GpuRope& table = weights_.ropes[static_cast<std::size_t>(spec.rope)];
    append.finish.cos = table.cos;
    append.finish.sin = table.sin;
    append.finish.dims = rope.dims;
    append.finish.interleaved = rope.interleaved;
    append.finish.query_growth = static_cast<float>(rope.query_growth);
    append.finish.query_context = static_cast<float>(rope.query_context);
  }
  append.positions = batch.positions;
  append.slots = slots_of(index, batch);
  append.kv = kv_layer(index, batch);
  if (append.finish.whole) whole_squares(append, stream);
  cuda::finish_heads(append, stream);
  if (batch.on_keys != nullptr) (*batch.on_keys)(index);

  const cuda::AttentionRule rule{spec.window, static_cast<float>(spec.soft_cap), w.sinks};
  const auto scale = static_cast<float>(spec.scale);
  const bool near = near_decode_ != nullptr && spec.window == near_window_;
  if (batch.travel != nullptr) cuda::let_devices_begin(*batch.travel, stream);
  if (batch.chunks != nullptr) {
    const cuda::PrefillAttention& prefill = near ? *near_prefill_ : *prefill_;
    prefill.run(near ? *batch.near_chunks : *batch.chunks, qkv_, attended_, append.kv,
                table_of(index, batch), scale, stream, rule, lse_);
  }
  const cuda::DecodeAttention& decode = near ? *near_decode_ : decode_;
  if (batch.travel != nullptr) {
    cuda::attend_over_devices(
        decode_, {qkv_, attended_, append.kv, batch.block_table, batch.singles, scale, rule},
        *batch.travel, stream);
  } else {
    decode.run(qkv_, attended_, append.kv, batch.block_table,
               near ? batch.near_singles : batch.singles, scale, decode_workspace_, stream, nullptr,
               rule);
  }
  show("layer", index, ".attended", attended_, batch.rows, config_.attended_columns());
}

/// x = x + residual * norm(W_o attended + b), and the same with the feed-forward part; each norm
/// where the layer has it. Of several ranks' parts the sum comes first. Whether the next layer's
/// norm of x is in `normed` already.
bool GpuDecoder::general_behind(int index, const Bf16* attended, Bf16* normed, Bf16* x, int rows,
                                cuda::Stream stream) {
  const LayerSpec& spec = config_.layer(index);
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const GpuGeneralLayer& g = w.general;
  const bool at_once = adds_at_once(spec);
  const bool norms_between = spec.norm != NormPlace::after && !spec.parallel;
  const bool one_sum = sums_once(index);
  cuda::PartCall join;
  join.factor = static_cast<float>(spec.residual);
  join.rows = rows;
  join.hidden = config_.hidden;
  join.x = x;
  if (one_sum) {
    linears_.run(attended, rows, w.o, LinearOutput::bf16, part_, stream);
  } else if (at_once && g.o_bias == nullptr) {
    add_product(attended, all_attended_, w.o, x, rows, stream);
    if (norms_between) {
      norm_into(config_.norm, g.before_mlp, x, rows, config_.hidden, normed, stream);
    }
  } else {
    join.part = product(attended, all_attended_, w.o, rows, stream);
    join.bias = g.o_bias;
    join.norm = weights_of(config_.norm, g.after_attention);
    join.next = weights_of(config_.norm, g.before_mlp);
    join.normed = norms_between ? normed : nullptr;
    cuda::add_part(join, stream);
  }

  join.part =
      general_feed_forward(index, spec.norm == NormPlace::after ? x : normed, x, rows, stream);
  if (join.part == nullptr) return false;
  join.bias = spec.sparse() ? nullptr : g.down_bias;
  join.norm = weights_of(config_.norm, g.after_mlp);
  join.normed = nullptr;
  const bool next =
      x == x_ && index + 1 < config_.layers && config_.layer(index + 1).norm != NormPlace::after;
  if (next) {
    const GpuLayer& behind = weights_.layers[static_cast<std::size_t>(index) + 1];
    join.next = weights_of(config_.norm, behind.general.before_attention);
    join.normed = normed_;
  }
  cuda::add_part(join, stream);
  return next;
}

const Bf16* GpuDecoder::general_feed_forward(int index, const Bf16* n, Bf16* x, int rows,
                                             cuda::Stream stream) {
  const LayerSpec& spec = config_.layer(index);
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const GpuGeneralLayer& g = w.general;
  const bool at_once = adds_at_once(spec);
  const bool one_sum = sums_once(index);
  if (spec.sparse()) {
    const bool apart = !at_once || sums_over_ranks();
    if (apart && !one_sum) {
      const std::size_t row = static_cast<std::size_t>(config_.hidden) * sizeof(Bf16);
      cuda::fill_bytes(part_, 0, static_cast<std::size_t>(rows) * row, stream);
    }
    general_experts(index, n, apart ? part_ : x, rows, stream);
    if (!at_once) return sum_of_parts(rows, stream);
    if (apart) add_parts(x, rows, stream);
    return nullptr;
  }
  general_gated(spec.mlp, w.gate_up, g.up_bias, n, rows, stream);
  if (one_sum) {
    linears_.run(gated_, rows, w.down, LinearOutput::residual, part_, stream);
    add_parts(x, rows, stream);
    return nullptr;
  }
  if (!at_once || g.down_bias != nullptr) {
    return product(gated_, all_gated_, w.down, rows, stream);
  }
  add_product(gated_, all_gated_, w.down, x, rows, stream);
  return nullptr;
}

bool GpuDecoder::sums_once(int index) const {
  const LayerSpec& spec = config_.layer(index);
  const GpuGeneralLayer& g = weights_.layers[static_cast<std::size_t>(index)].general;
  return sums_over_ranks() && spec.parallel && adds_at_once(spec) && g.o_bias == nullptr &&
         (spec.sparse() || g.down_bias == nullptr);
}

void GpuDecoder::general_gated(const MlpSpec& spec, const LinearWeight& up, const float* up_bias,
                               const Bf16* normed, int rows, cuda::Stream stream) {
  if (spec.plain()) {
    return linears_.run(normed, rows, up, LinearOutput::silu_mul, gated_, stream);
  }
  linears_.run(normed, rows, up, LinearOutput::bf16, up_, stream);
  cuda::activate(up_, up_bias, activate_of(spec), rows, spec.intermediate, gated_, stream);
}

/// x = x + sum over the row's experts e of p_e * feed_forward_e(n), and what all rows take. Of
/// several ranks each has some features of every expert: what comes out are parts of a sum, in
/// which rank 0's alone have the biases behind the features.
void GpuDecoder::general_experts(int index, const Bf16* normed, Bf16* x, int rows,
                                 cuda::Stream stream) {
  const ExpertSpec& e = config_.layer(index).experts;
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const GpuGeneralLayer& g = w.general;
  cuda::ExpertCall call;
  call.shape = experts_of(config_);
  call.logits = routed_;
  call.gate_up = w.expert_gate_up;
  call.down = w.expert_down;
  call.workspace = experts_workspace_;
  call.deterministic = options_.deterministic;
  call.rule = rule_of(e, g);
  const bool first = options_.cut.rank == 0;
  if (!first) call.rule.down_bias = nullptr;
  for (int done = 0; done < rows; done += cuda::kMostExpertRows) {
    call.rows = std::min(rows - done, cuda::kMostExpertRows);
    call.normed = normed + std::int64_t{done} * config_.hidden;
    call.x = x + std::int64_t{done} * config_.hidden;
    route(w.router, call.normed, call.rows, nullptr, stream);
    cuda::experts(call, stream);
  }
  if (e.shared.intermediate == 0) return;
  general_gated(e.shared, g.shared_gate_up, g.shared_up_bias, normed, rows, stream);
  if (!e.shared_gate && g.shared_down_bias == nullptr) {
    return linears_.run(gated_, rows, g.shared_down, LinearOutput::residual, x, stream);
  }
  linears_.run(gated_, rows, g.shared_down, LinearOutput::bf16, shared_, stream);
  const float* const bias = first ? g.shared_down_bias : nullptr;
  if (e.shared_gate) {
    cuda::add_gated_part(shared_, bias, normed, g.shared_gate, rows, config_.hidden, x, stream);
  } else {
    cuda::PartCall join;
    join.part = shared_;
    join.bias = bias;
    join.rows = rows;
    join.hidden = config_.hidden;
    join.x = x;
    cuda::add_part(join, stream);
  }
}

/// logits = W_head norm(x), and a token of each row; max_wanted rows at a time. Of several ranks
/// the first one draws and tells the others.
void GpuDecoder::general_head(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use) {
  const Bf16* x = batch.wanted_rows == nullptr ? x_ : wanted_x_;
  for (int first = 0; first < batch.wanted; first += options_.max_wanted) {
    const int rows = std::min(options_.max_wanted, batch.wanted - first);
    norm_into(config_.norm, weights_.general_final_norm, x + std::int64_t{first} * config_.hidden,
              rows, config_.hidden, normed_, stream);
    if (!product_of_head(normed_, rows, stream)) continue;
    if (config_.logits_scale != 1.0 || config_.logits_cap > 0) {
      cuda::finish_logits(static_cast<float>(config_.logits_scale),
                          static_cast<float>(config_.logits_cap), rows, config_.vocab, logits_,
                          stream);
    }
    sample(batch.samples + first, rows, batch.words, stream);
    if (use) use(first, rows, logits_);
  }
  if (options_.exchange != nullptr) {
    options_.exchange->broadcast_from_first(sampled_, batch.outputs, stream);
  }
}

void GpuDecoder::tune_general(void* scratch, std::size_t scratch_bytes, cuda::Stream stream) {
  const LayerSpec& dense = *std::find_if(config_.parts.begin(), config_.parts.end() - 1,
                                         [](const LayerSpec& l) { return !l.sparse(); });
  const ExpertSpec& e = config_.experts();
  std::vector<LinearWeight> qkv, latent_q, o, up, down, router, shared_up, shared_down;
  for (const GpuLayer& l : weights_.layers) {
    qkv.push_back(l.qkv);
    if (config_.latent.q_rank > 0) latent_q.push_back(l.general.latent.q);
    o.push_back(l.o);
    if (!l.sparse()) {
      up.push_back(l.gate_up);
      down.push_back(l.down);
      continue;
    }
    router.push_back(l.router);
    if (e.shared.intermediate == 0) continue;
    shared_up.push_back(l.general.shared_gate_up);
    shared_down.push_back(l.general.shared_down);
  }
  const auto tune = [&](const std::vector<LinearWeight>& w, LinearOutput output) {
    tune_alike(w, output, scratch, scratch_bytes, stream);
  };
  const GpuGeneralLayer& g = weights_.layers.front().general;
  const auto joins = [](bool at_once) {
    return at_once ? LinearOutput::residual : LinearOutput::bf16;
  };
  const auto middle = [](const MlpSpec& m) {
    return m.plain() ? LinearOutput::silu_mul : LinearOutput::bf16;
  };
  // What ranks sum up joins the residual stream when it has been, but for parallel parts' second.
  const bool at_once = adds_at_once(config_.layer(0)) && !sums_over_ranks();
  tune(qkv, LinearOutput::bf16);
  tune(latent_q, LinearOutput::bf16);
  tune(o, joins(at_once && g.o_bias == nullptr));
  tune(up, middle(dense.mlp));
  tune(down, joins(sums_once(0) || (at_once && !dense.mlp.bias)));
  tune(router, LinearOutput::f32);
  tune(shared_up, middle(e.shared));
  tune(shared_down, joins(!e.shared_gate && !e.shared.bias));
  tune({weights_.lm_head}, LinearOutput::f32);
  tune_layer_kernels(stream);
}

}  // namespace baton
