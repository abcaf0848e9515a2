#include "workers/model/weight_plan.h"

#include <algorithm>

#include "workers/cpu/packing.h"
#include "workers/model/checkpoint_reader.h"

namespace baton {
namespace {

/// Elements of a packed matrix: its last panel is filled up.
std::int64_t packed(std::int64_t out, std::int64_t in) {
  return cpu::panels_for(out) * cpu::kPanelColumns * in;
}

bool stored_bf16(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView* view = checkpoint.find(name);
  return view != nullptr && view->dtype == "BF16";
}

std::uint64_t element_bytes(WeightChoice choice, bool stored_as_bf16) {
  if (choice == WeightChoice::stored) return stored_as_bf16 ? 2 : 4;
  return choice == WeightChoice::bf16 ? 2 : 4;
}

/// Elements of one layer's linear layers, packed, and of its vectors, which are f32.
struct LayerSize {
  std::int64_t linear = 0;
  std::int64_t vectors = 0;
  std::int64_t latent_vectors = 0;
  std::int64_t widest = 0;  // what one quantised reading holds at a time
};

void add_part(std::int64_t hidden, const MlpSpec& m, std::int64_t times, LayerSize& size) {
  if (m.intermediate == 0) return;
  const std::int64_t wide = m.gated ? 2 : 1;
  const std::int64_t up =
      m.plain() ? 2 * packed(m.intermediate, hidden) : packed(wide * m.intermediate, hidden);
  size.linear += times * (up + packed(hidden, m.intermediate));
  if (m.bias) size.vectors += times * (wide * m.intermediate + hidden);
}

/// Instead of q, k and v of their own.
void add_latent(const ModelSpec& s, LayerSize& size) {
  const LatentSpec& l = s.latent;
  const std::int64_t hidden = s.hidden;
  const std::int64_t queries = std::int64_t{s.heads} * s.head_dim;
  const std::int64_t from = l.q_rank > 0 ? l.q_rank : hidden;
  size.linear = packed(queries, from) + packed(l.rank + l.rope, hidden) +
                s.heads * (packed(l.rank, l.plain) + packed(l.value, l.rank)) +
                packed(hidden, s.attended_columns());
  if (l.q_rank > 0) size.linear += packed(l.q_rank, hidden);
  size.widest = queries * from + hidden * (l.rank + l.rope + l.q_rank + s.attended_columns()) +
                2 * std::int64_t{s.heads} * (l.plain + l.value) * l.rank;
  size.latent_vectors = l.rank + l.q_rank;
}

LayerSize layer_size(const ModelSpec& s, int index) {
  const LayerSpec& layer = s.layer(index);
  const AttentionSpec& a = layer.attention;
  LayerSize size;
  const std::int64_t hidden = s.hidden;
  const std::int64_t heads = std::int64_t{s.heads} * s.head_dim;
  size.linear = packed(s.qkv_columns(), hidden) + packed(hidden, heads);
  size.widest = hidden * (s.qkv_columns() + heads);
  if (s.latent.rank > 0) add_latent(s, size);
  const int norms = layer.parallel ? 1 : layer.norm == NormPlace::both ? 4 : 2;
  size.vectors = norms * hidden * (s.norm.bias ? 2 : 1) + size.latent_vectors;
  if (a.qkv_bias) size.vectors += s.qkv_columns();
  if (a.o_bias) size.vectors += hidden;
  if (a.sinks) size.vectors += s.heads;
  if (a.qk_norm == QkNorm::head) size.vectors += 2 * s.head_dim;
  if (a.qk_norm == QkNorm::whole) size.vectors += (s.heads + s.kv_heads) * s.head_dim;
  add_part(hidden, layer.mlp, 1, size);
  const ExpertSpec& e = layer.experts;
  add_part(hidden, e.expert, e.count, size);
  add_part(hidden, e.shared, 1, size);
  if (e.shared_gate) size.linear += packed(1, hidden);
  if (e.router_bias) size.vectors += e.count;
  if (e.choice_bias) size.vectors += e.count;
  const std::int64_t middle = std::max(layer.mlp.intermediate, e.expert.intermediate);
  size.widest += 3 * hidden * std::max<std::int64_t>(middle, e.shared.intermediate);
  return size;
}

const char* method_name(QuantMethod method) {
  switch (method) {
    case QuantMethod::none:
      break;
    case QuantMethod::gptq:
      return "gptq";
    case QuantMethod::awq:
      return "awq";
    case QuantMethod::fp8:
      return "fp8";
  }
  return "none";
}

}  // namespace

WeightPlan plan_weights(const ModelConfig& config, const Checkpoint& checkpoint,
                        WeightChoice choice) {
  const QuantMethod method = config.quantization.method;
  const bool quantised = method != QuantMethod::none;
  const TensorNames& names = config.names;
  const std::string root = decoder_root(names, checkpoint);
  const std::string first = root + "layers.0." +
                            (config.latent.rank > 0 ? names.kv_a
                             : names.qkv.empty()    ? names.q
                                                    : names.qkv);
  const bool bf16 = !quantised && stored_bf16(checkpoint, first + ".weight");
  const std::uint64_t each = element_bytes(choice, bf16);
  WeightPlan plan;
  for (int i = 0; i < config.layers; ++i) {
    const LayerSize size = layer_size(config, i);
    if (config.sparse(i)) {  // the router of a quantised model is stored plain
      const std::string router =
          root + "layers." + std::to_string(i) + "." + names.router + ".weight";
      plan.bytes += static_cast<std::uint64_t>(packed(config.experts().count, config.hidden)) *
                    element_bytes(choice, stored_bf16(checkpoint, router));
    }
    plan.bytes += static_cast<std::uint64_t>(size.linear) * each +
                  static_cast<std::uint64_t>(size.vectors) * 4;
    if (quantised) {
      plan.loading_bytes =
          std::max(plan.loading_bytes, static_cast<std::uint64_t>(size.widest) * 4);
    }
  }
  const std::string table = root + names.embedding + ".weight";
  const std::string head =
      config.tied_embeddings ? table : head_name(names, checkpoint) + ".weight";
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  plan.bytes += static_cast<std::uint64_t>(config.vocab) * hidden *
                element_bytes(choice, stored_bf16(checkpoint, table));
  plan.bytes += static_cast<std::uint64_t>(packed(config.vocab, config.hidden)) *
                element_bytes(choice, stored_bf16(checkpoint, head));
  plan.bytes += hidden * (config.norm.bias ? 8 : 4);  // the final norm
  plan.dtype = each == 2 ? "bf16" : "f32";
  if (quantised) plan.dtype += std::string(" (stored as ") + method_name(method) + ")";
  return plan;
}

std::uint64_t most_weight_bytes(const ModelConfig& config) {
  constexpr std::uint64_t kBeside =
      128;  // of each weight: what alignment wastes, its table's entry
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  std::uint64_t elements = static_cast<std::uint64_t>(config.vocab) * hidden + 2 * hidden +
                           static_cast<std::uint64_t>(packed(config.vocab, config.hidden));
  std::uint64_t weights = 4;
  for (int i = 0; i < config.layers; ++i) {
    const LayerSize size = layer_size(config, i);
    elements += static_cast<std::uint64_t>(size.linear + size.vectors +
                                           packed(config.experts().count, config.hidden));
    weights += 33 + 2 * static_cast<std::uint64_t>(config.latent.rank > 0 ? config.heads : 0);
    weights += 4 * static_cast<std::uint64_t>(config.experts().count);
  }
  return elements * 4 + weights * kBeside;
}

bool rounds(const Checkpoint& checkpoint, WeightChoice choice) {
  const auto& tensors = checkpoint.tensors();
  return choice == WeightChoice::bf16 &&
         std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) {
           return entry.second.shape.size() >= 2 && entry.second.dtype != "BF16";
         });
}

}  // namespace baton
