#include "workers/model/gpu_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/experts_router.h"
#include "workers/cuda/layer/rowwise.h"
#include "workers/cuda/stopwatch.h"
#include "workers/model/error.h"
#include "workers/model/gpu_shapes.h"

namespace baton {
namespace {

using cuda::Bf16;
using cuda::LinearOutput;
using cuda::Linears;

}  // namespace

/// By what Linears tells apart.
void GpuDecoder::tune_alike(const std::vector<cuda::LinearWeight>& all, LinearOutput output,
                            void* scratch, std::size_t bytes, cuda::Stream stream) {
  std::map<std::pair<cuda::WeightFormat, int>, std::vector<cuda::LinearWeight>> sorted;
  for (const cuda::LinearWeight& w : all) {
    sorted[{w.quantized.format, w.quantized.groups}].push_back(w);
  }
  for (const auto& [key, list] : sorted) {
    linears_.tune(list.data(), static_cast<int>(list.size()), output, scratch, bytes, stream);
  }
}

void GpuDecoder::tune(cuda::Stream stream) {
  // The activations are free until the first step: timing may write there.
  auto* scratch = reinterpret_cast<std::byte*>(x_);
  const auto bytes = static_cast<std::size_t>(static_cast<std::byte*>(decode_workspace_) - scratch);
  if (!fused_) return tune_general(scratch, bytes, stream);
  std::vector<cuda::LinearWeight> qkv;
  std::vector<cuda::LinearWeight> o;
  std::vector<cuda::LinearWeight> gate_up;
  std::vector<cuda::LinearWeight> down;
  std::vector<cuda::LinearWeight> router;
  for (const GpuLayer& l : weights_.layers) {
    qkv.push_back(l.qkv);
    o.push_back(l.o);
    if (l.sparse()) {
      router.push_back(l.router);
    } else {
      gate_up.push_back(l.gate_up);
      down.push_back(l.down);
    }
  }
  // What is summed over ranks is added to the residual stream when it has been.
  const LinearOutput added = sums_over_ranks() ? LinearOutput::bf16 : LinearOutput::residual;
  const auto tune = [&](const std::vector<cuda::LinearWeight>& w, LinearOutput output) {
    tune_alike(w, output, scratch, bytes, stream);
  };
  tune(qkv, LinearOutput::bf16);
  tune(o, added);
  tune(gate_up, LinearOutput::silu_mul);
  tune(down, added);
  tune(router, LinearOutput::f32);
  tune({weights_.lm_head}, LinearOutput::f32);
  tune_layer_kernels(stream);
}

cuda::KernelChoices GpuDecoder::choices() const { return {linears_.choices(), chain_choices_}; }

bool GpuDecoder::take(const cuda::KernelChoices& kept) {
  const int most_rows = find_layer_kernels();
  for (const cuda::ChainChoice& choice : kept.chains) {
    if (choice.rows > most_rows) return false;
  }
  if (!linears_.take(kept.linears)) return false;
  chain_choices_ = kept.chains;
  return true;
}

std::string GpuDecoder::linears_report() const {
  std::string text = linears_.report();
  int from = 1;
  for (const cuda::ChainChoice& c : chain_choices_) {
    char line[120];
    std::snprintf(
        line, sizeof line,
        "a layer behind attention, %2d..%2d rows: %.1f us as one kernel, %.1f as several%s\n", from,
        c.rows, c.chained_us, c.single_us, c.chained ? ": one" : "");
    text += line;
    from = c.rows + 1;
  }
  return text;
}

void GpuDecoder::set_pool(std::byte* pool, const KvGeometry& geometry) {
  pool_ = reinterpret_cast<Bf16*>(pool);
  geometry_ = geometry;
}

cuda::KvLayerView GpuDecoder::kv_layer(int index, const GpuBatch& batch) const {
  const auto elements = [](std::uint64_t bytes) {
    return static_cast<std::int64_t>(bytes / sizeof(Bf16));
  };
  const KvPlan::Place& place = place_of(index);
  cuda::KvLayerView kv;
  kv.pool = pool_;
  kv.layer_offset = elements(kv_layer_stride(geometry_)) * place.layer;
  kv.part_stride = elements(kv_part_stride(geometry_));
  kv.head_stride = elements(kv_head_stride(geometry_));
  kv.block_stride = elements(geometry_.block_bytes);
  kv.tokens_per_block = static_cast<int>(geometry_.tokens_per_block);
  if (place.group > 0) kv.table_shift = batch.table_shifts + place.group;
  kv.pool_offsets = batch.pool_offsets;
  return kv;
}

/// The model. T = rows of the step, W = rows whose logits are wanted; x is the residual stream.
void GpuDecoder::run(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use) {
  if (!fused_) return run_general(batch, stream, use);
  // x = E[tokens]
  cuda::embed(weights_.embedding, config_.vocab, batch.tokens, sampled_, batch.rows, config_.hidden,
              x_, stream);
  show("embed", -1, "", x_, batch.rows, config_.hidden);
  const bool chain = as_one_kernel(batch);
  bool projected = false;
  for (int i = 0; i < config_.layers; ++i) {
    if (!projected) project(i, batch.rows, stream);
    attend(i, batch, stream);
    projected = chain && has_layer_kernel(i);
    if (!projected) {
      behind_attention(i, batch, stream);
      continue;
    }
    run_layer_kernel(i, config_.layers, batch.rows, stream);
    show("layer", i, "", x_, batch.rows, config_.hidden);
  }
  if (batch.wanted == 0) return meet(stream);
  if (options_.exchange != nullptr) return head_of_ranks(batch, stream, use);
  head(batch, stream, use);
}

/// q, k, v = W_qkv norm(x)
void GpuDecoder::project(int index, int rows, cuda::Stream stream) {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const Linears::Norm norm{w.input_norm, static_cast<float>(config_.norm.eps), normed_};
  if (sums_over_ranks() && index > 0) {  // normed with the last layer's sum
    return linears_.run(normed_, rows, w.qkv, LinearOutput::bf16, qkv_, stream);
  }
  linears_.run(x_, rows, w.qkv, LinearOutput::bf16, qkv_, stream, &norm);
}

/// q, k, v (+ b); q and k turned by their position; k and v written to the pool; attention.
void GpuDecoder::attend(int index, const GpuBatch& batch, cuda::Stream stream) {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const cuda::KvLayerView kv = kv_layer(index, batch);
  cuda::RopeAppend append;
  append.qkv = qkv_;
  append.rows = batch.rows;
  append.shape = heads_of(config_);
  append.rope = {w.qkv_bias,
                 w.q_norm,
                 w.k_norm,
                 static_cast<float>(config_.norm.eps),
                 weights_.ropes.front().cos,
                 weights_.ropes.front().sin};
  append.positions = batch.positions;
  append.slots = slots_of(index, batch);
  append.kv = kv;
  // Rows are sequences of their own where prompts have a kernel of their own, and the step has
  // none. Over several pools prompts may be computed as single rows.
  const bool inside = prefill_ && batch.chunks == nullptr && batch.pool_offsets == nullptr &&
                      decode_.applies_rope();
  if (!inside) cuda::rope_append(append, stream);
  if (batch.on_keys != nullptr) (*batch.on_keys)(index);
  attention(index, batch, kv, inside ? &append.rope : nullptr, stream);
  show("layer", index, ".attended", attended_, batch.rows, config_.heads * config_.head_dim);
}

void GpuDecoder::behind_attention(int index, const GpuBatch& batch, cuda::Stream stream) {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  // Nothing but the wanted rows is needed behind the last keys and values: T becomes W.
  Bf16* x = x_;
  const Bf16* attended = attended_;
  int rows = batch.rows;
  if (index + 1 == config_.layers && batch.wanted_rows != nullptr) {
    rows = batch.wanted;
    if (rows == 0) return;
    cuda::gather_rows(x_, batch.wanted_rows, rows, config_.hidden, wanted_x_, stream);
    cuda::gather_rows(attended_, batch.wanted_rows, rows, config_.heads * config_.head_dim,
                      wanted_attended_, stream);
    x = wanted_x_;
    attended = wanted_attended_;
  }

  if (options_.exchange != nullptr) {
    return options_.cut.by_outputs ? behind_attention_by_outputs(index, attended, x, rows, stream)
                                   : behind_attention_of_ranks(index, attended, x, rows, stream);
  }
  // x = x + W_o attended
  linears_.run(attended, rows, w.o, LinearOutput::residual, x, stream);

  feed_forward(w, x, rows, stream);
  show("layer", index, "", x, rows, config_.hidden);
}

/// x = x + W_down (silu(W_gate norm(x)) * (W_up norm(x)))
void GpuDecoder::feed_forward(const GpuLayer& layer, Bf16* x, int rows, cuda::Stream stream) {
  if (layer.sparse()) return experts(layer, x, rows, /*normed=*/false, stream);
  const Linears::Norm norm{layer.post_norm, static_cast<float>(config_.norm.eps), normed_};
  linears_.run(x, rows, layer.gate_up, LinearOutput::silu_mul, gated_, stream, &norm);
  linears_.run(gated_, rows, layer.down, LinearOutput::residual, x, stream);
}

/// x = x + sum over the row's experts e of p_e * feed_forward_e(norm(x)), p = softmax(W_router
/// norm(x))
void GpuDecoder::experts(const GpuLayer& layer, Bf16* x, int rows, bool normed,
                         cuda::Stream stream) {
  cuda::ExpertCall call;
  call.shape = experts_of(config_);
  call.logits = routed_;
  call.gate_up = layer.expert_gate_up;
  call.down = layer.expert_down;
  call.workspace = experts_workspace_;
  call.deterministic = options_.deterministic;
  for (int done = 0; done < rows; done += cuda::kMostExpertRows) {
    const std::int64_t at = std::int64_t{done} * config_.hidden;
    call.rows = std::min(rows - done, cuda::kMostExpertRows);
    call.x = x + at;
    call.normed = normed ? normed_ + at : normed_;
    const Linears::Norm norm{layer.post_norm, static_cast<float>(config_.norm.eps), normed_};
    route(layer.router, normed ? call.normed : call.x, call.rows, normed ? nullptr : &norm, stream);
    cuda::experts(call, stream);
  }
}

void GpuDecoder::route(const cuda::LinearWeight& router, const Bf16* x, int rows,
                       const Linears::Norm* norm, cuda::Stream stream) {
  if (options_.deterministic || router.is_quantized() || !cuda::router_fits(rows, router.in)) {
    return linears_.run(x, rows, router, LinearOutput::f32, routed_, stream, norm);
  }
  cuda::RouterCall call{rows, router.out, router.in, x};
  if (norm != nullptr) {
    call.gain = norm->weight;
    call.eps = norm->eps;
    call.normed = norm->normed;
  }
  call.w = router.data;
  call.logits = routed_;
  cuda::run_router(call, stream);
}

void GpuDecoder::attention(int index, const GpuBatch& batch, const cuda::KvLayerView& kv,
                           const cuda::Rope* rope, cuda::Stream stream) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  if (batch.travel != nullptr) cuda::let_devices_begin(*batch.travel, stream);
  if (batch.chunks != nullptr) {
    prefill_->run(*batch.chunks, qkv_, attended_, kv, table_of(index, batch), scale, stream);
  }
  if (batch.travel != nullptr) {
    return cuda::attend_over_devices(decode_,
                                     {qkv_, attended_, kv, batch.block_table, batch.singles, scale},
                                     *batch.travel, stream);
  }
  decode_.run(qkv_, attended_, kv, batch.block_table, batch.singles, scale, decode_workspace_,
              stream, rope);
}

/// logits = W_head norm(x), and a token of each row; max_wanted rows at a time.
void GpuDecoder::head(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use) {
  const Bf16* x = batch.wanted_rows == nullptr ? x_ : wanted_x_;
  const Linears::Norm final_norm{weights_.final_norm, static_cast<float>(config_.norm.eps),
                                 normed_};
  for (int first = 0; first < batch.wanted; first += options_.max_wanted) {
    const int rows = std::min(options_.max_wanted, batch.wanted - first);
    linears_.run(x + std::int64_t{first} * config_.hidden, rows, weights_.lm_head,
                 LinearOutput::f32, logits_, stream, &final_norm);
    sample(batch.samples + first, rows, batch.words, stream);
    if (use) use(first, rows, logits_);
  }
}

void GpuDecoder::sample(const cuda::SampleRow* samples, int n, const std::int32_t* words,
                        cuda::Stream stream) {
  cuda::sample(logits_, config_.vocab, samples, n, words, sampled_, logprobs_, sample_workspace_,
               stream);
}

}  // namespace baton
