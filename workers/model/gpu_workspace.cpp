// What a GpuDecoder is made with: the options of its parts, and its memory beside the weights.
#include <algorithm>
#include <set>
#include <utility>

#include "workers/model/gpu_decoder.h"
#include "workers/model/gpu_limits.h"
#include "workers/model/gpu_shapes.h"

namespace baton {
namespace {

using cuda::Bf16;
using cuda::Linears;

constexpr std::size_t kAlign = 256;
/// In deterministic mode every row's keys are cut into pieces of this many, whoever its neighbours
/// are.
constexpr int kFixedSplit = 256;

cuda::DecodeAttention::Options decode_options(const ModelConfig& c, const GpuDecoder::Options& o) {
  cuda::DecodeAttention::Options d;
  d.shape = heads_of(c);
  d.tokens_per_block = o.tokens_per_block;
  d.max_rows = o.max_rows;
  const std::set<int> windows = windows_of(c);
  d.window = windows.count(0) > 0 ? 0 : *windows.rbegin();
  d.capped = std::any_of(c.parts.begin(), c.parts.end(),
                         [](const LayerSpec& l) { return l.attention.soft_cap > 0; });
  d.fixed_split = o.deterministic ? kFixedSplit : 0;
  d.whole_rows = c.latent.rank > 0;
  return d;
}

/// The nearer of two windows; 0: there is one.
int near_window(const ModelConfig& c) {
  const std::set<int> windows = windows_of(c);
  return windows.size() < 2 ? 0 : windows.count(0) > 0 ? *windows.rbegin() : *windows.begin();
}

cuda::PrefillAttention::Options prefill_options(const ModelConfig& c,
                                                const GpuDecoder::Options& o) {
  cuda::PrefillAttention::Options p;
  p.shape = heads_of(c);
  p.tokens_per_block = o.tokens_per_block;
  p.max_rows = o.max_rows;
  p.max_chunks = o.max_rows / 2 + 1;
  p.max_table = o.max_table;
  p.window = decode_options(c, o).window;
  if (c.latent.rank > 0) {
    p.latent = latent_of(c);
    p.value = c.latent.value;
    p.max_chunks = o.max_rows / cuda::PrefillAttention::kLeastLatentRows + 1;
  }
  if (p.window != 0 || near_window(c) != 0) return p;
  constexpr std::int64_t kTail = 16 * std::int64_t{cuda::PrefillAttention::kGatherTile};
  p.gather_bytes = std::max(
      p.gather_bytes, static_cast<std::size_t>(o.gathered_keys + kTail) * gathered_key_bytes(c));
  return p;
}

/// Whether single tokens have the tiled kernel, which wants a plan for each window.
bool has_tiles(const ModelConfig& c, const GpuDecoder::Options& o) {
  if (c.latent.rank > 0) return false;  // whatever its heads' size: latent_ computes all rows
  return cuda::has_attention_tiles(heads_of(c), decode_options(c, o).capped);
}

/// Whether chunks have a kernel.
bool has_chunks(const ModelConfig& c, const GpuDecoder::Options& o) {
  if (o.deterministic) return false;
  if (c.latent.rank > 0) {
    return cuda::PrefillAttention::expands(latent_of(c), c.latent.value, o.tokens_per_block);
  }
  return has_tiles(c, o);
}

std::unique_ptr<cuda::LatentAttention> make_latent(const ModelConfig& c,
                                                   const GpuDecoder::Options& o) {
  if (c.latent.rank == 0) return nullptr;
  return std::make_unique<cuda::LatentAttention>(
      cuda::LatentAttention::Options{latent_of(c), o.deterministic});
}

bool has_whole_norms(const ModelConfig& c) {
  return std::any_of(c.parts.begin(), c.parts.end(),
                     [](const LayerSpec& l) { return l.attention.qk_norm == QkNorm::whole; });
}

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Larger matrices are multiplied as they are quantised, however many the rows.
constexpr std::size_t kMostDequantizedBytes = std::size_t{1} << 30U;

/// Columns between a feed-forward part's products, where gate and up are not one.
int widest_up(const ModelConfig& c) {
  const auto columns = [](const MlpSpec& m) {
    return m.plain() ? 0 : m.intermediate * (m.gated ? 2 : 1);
  };
  int widest = columns(c.experts().shared);
  for (const LayerSpec& l : c.parts) widest = std::max(widest, columns(l.mlp));
  return widest;
}

Linears::Options linear_options(const ModelConfig& c, const GpuWeights& weights,
                                const GpuDecoder::Options& o) {
  Linears::Options l;
  l.max_rows = o.max_rows;
  l.deterministic = o.deterministic;
  const auto room_for = [&](const cuda::LinearWeight& w) {
    const std::size_t in = static_cast<std::size_t>(w.in) * sizeof(Bf16);
    const std::size_t dequantized = aligned(static_cast<std::size_t>(w.out) * in);
    if (w.is_quantized() && !o.deterministic && dequantized <= kMostDequantizedBytes) {
      l.dequantized_bytes = std::max(l.dequantized_bytes, dequantized);
    }
    if (w.quantized.order != nullptr) {
      l.ordered_bytes =
          std::max(l.ordered_bytes, aligned(static_cast<std::size_t>(o.max_rows) * in));
    }
  };
  int widest = 2 * c.intermediate();
  for (const GpuLayer& layer : weights.layers) {
    widest = std::max(widest, layer.general.shared_gate_up.out);
    for (const auto* w :
         {&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &layer.general.latent.q,
          &layer.general.shared_gate_up, &layer.general.shared_down}) {
      room_for(*w);
    }
  }
  room_for(weights.lm_head);
  l.workspace_bytes =
      Linears::workspace_bytes(o.max_rows, widest) + l.dequantized_bytes + l.ordered_bytes;
  return l;
}

}  // namespace

GpuDecoder::GpuDecoder(ModelConfig config, GpuWeights weights, const Options& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      options_(options),
      kv_plan_(kv_plan_of(
          config_, options.kv_groups ? static_cast<std::uint32_t>(options.tokens_per_block) : 0)),
      decode_(decode_options(config_, options)),
      prefill_(has_chunks(config_, options)
                   ? std::make_unique<cuda::PrefillAttention>(prefill_options(config_, options))
                   : nullptr),
      latent_(make_latent(config_, options)),
      fused_(make_near_attention()),
      linears_(linear_options(config_, weights_, options), (carve_workspace(), linear_workspace_)) {
}

/// Returns has_fused_layers().
bool GpuDecoder::make_near_attention() {
  const int window = near_window(config_);
  if (window > 0 && has_tiles(config_, options_)) {
    cuda::DecodeAttention::Options d = decode_options(config_, options_);
    d.window = near_window_ = window;
    near_decode_ = std::make_unique<cuda::DecodeAttention>(d);
    if (prefill_) {
      cuda::PrefillAttention::Options p = prefill_options(config_, options_);
      p.window = window;
      p.gather_pairs = -1;
      near_prefill_ = std::make_unique<cuda::PrefillAttention>(p);
    }
  }
  return has_fused_layers(config_);
}

/// The same walk counts the bytes first and then hands out the places.
void GpuDecoder::carve_workspace() {
  const ModelConfig& c = config_;
  const auto rows = static_cast<std::size_t>(options_.max_rows);
  const auto wanted = static_cast<std::size_t>(options_.max_wanted);
  const int chain_rows = find_layer_kernels();
  const auto walk = [&](std::byte* base) {
    std::size_t used = 0;
    const auto take = [&]<typename T>(T*& to, std::size_t bytes) {
      to = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
      used += (bytes + kAlign - 1) / kAlign * kAlign;
    };
    const auto matrix = [&](Bf16*& to, std::size_t n_rows, int columns) {
      take(to, n_rows * static_cast<std::size_t>(columns) * sizeof(Bf16));
    };
    const auto bytes = [&](void*& to, std::size_t n) {
      std::byte* place = nullptr;
      take(place, n);
      to = place;
    };
    matrix(x_, rows, c.hidden);
    matrix(normed_, rows, c.hidden);
    matrix(qkv_, rows, projected_columns(c));
    matrix(attended_, rows, c.attended_columns());
    matrix(gated_, rows, std::max(c.intermediate(), c.experts().shared.intermediate));
    if (options_.cut.by_outputs && options_.exchange != nullptr) {
      matrix(all_attended_, rows, c.attended_columns() * options_.cut.ranks);
      matrix(all_gated_, rows, c.intermediate() * options_.cut.ranks);
      matrix(own_x_, rows, static_cast<int>(options_.cut.part(c.hidden).count));
    }
    if (!fused_ || sums_over_ranks()) matrix(part_, rows, c.hidden);
    if (!fused_) {
      matrix(up_, rows, widest_up(c));
      matrix(wanted_normed_, rows, c.hidden);
      const bool apart = c.experts().shared_gate || c.experts().shared.bias;
      matrix(shared_, apart ? rows : 0, c.hidden);
      const bool sinks = std::any_of(c.parts.begin(), c.parts.end(),
                                     [](const LayerSpec& l) { return l.attention.sinks; });
      if (sinks && prefill_) take(lse_, rows * static_cast<std::size_t>(c.heads) * sizeof(float));
      if (const LatentSpec& l = c.latent; l.rank > 0) {
        matrix(latent_q_, l.q_rank > 0 ? rows : 0, l.q_rank);
        matrix(queries_, l.q_rank > 0 ? rows : 0, c.heads * c.head_dim);
        matrix(wide_, rows, c.heads * (l.rank + l.rope));
        matrix(looked_, rows, c.heads * l.rank);
        bytes(latent_workspace_, latent_->workspace_bytes());
      }
      if (sums_over_ranks()) matrix(sum_, rows, c.hidden);
      if (has_whole_norms(c)) {
        const bool alone = options_.exchange == nullptr;
        const std::size_t own = rows * static_cast<std::size_t>(c.heads + c.kv_heads);
        take(squares_, own * static_cast<std::size_t>(options_.cut.ranks) * sizeof(float));
        take(own_squares_, alone ? 0 : own * sizeof(float));
      }
    }
    const bool sparse = c.experts().count > 0;
    const int expert_rows = sparse ? std::min(options_.max_rows, cuda::kMostExpertRows) : 0;
    take(routed_, static_cast<std::size_t>(expert_rows) *
                      static_cast<std::size_t>(c.experts().count) * sizeof(float));
    matrix(wanted_x_, rows, c.hidden);
    matrix(wanted_attended_, rows, c.attended_columns());
    take(logits_, wanted * static_cast<std::size_t>(c.vocab) * sizeof(float));
    const auto own_tokens = static_cast<std::size_t>(weights_.lm_head.out);
    if (options_.exchange != nullptr) take(own_logits_, wanted * own_tokens * sizeof(float));
    take(sampled_, rows * sizeof(std::int32_t));
    take(logprobs_, rows * sizeof(cuda::TokenLogprobs));
    bytes(decode_workspace_, decode_.workspace_bytes());
    bytes(prefill_float_, prefill_ ? prefill_->float_workspace_bytes() : 0);
    bytes(prefill_int_, prefill_ ? prefill_->int_workspace_bytes() : 0);
    bytes(near_prefill_float_, near_prefill_ ? near_prefill_->float_workspace_bytes() : 0);
    bytes(near_prefill_int_, near_prefill_ ? near_prefill_->int_workspace_bytes() : 0);
    bytes(sample_workspace_, cuda::sample_workspace_bytes(options_.max_wanted, c.vocab));
    bytes(experts_workspace_,
          sparse ? cuda::experts_workspace_bytes(experts_of(c), expert_rows) : 0);
    linear_workspace_bytes_ = linear_options(c, weights_, options_).workspace_bytes;
    bytes(linear_workspace_, linear_workspace_bytes_);
    const auto chains = static_cast<std::size_t>(chain_rows > 0 ? c.layers : 0);
    take(chain_states_, chains * layer_state_bytes());
    take(chain_workspace_, chain_rows > 0 ? cuda::chain_workspace_bytes(chain_rows) : 0);
    return used;
  };
  workspace_ = cuda::DeviceMemory(walk(nullptr));
  walk(workspace_.data());
  const cuda::OwnedStream stream;
  cuda::fill_bytes(workspace_.data(), 0, workspace_.bytes(), stream.get());
  stream.synchronize();
}

}  // namespace baton
