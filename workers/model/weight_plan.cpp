#include "workers/model/weight_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  size.vectors = l.rank + l.q_rank;
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
  size.vectors += norms * hidden * (s.norm.bias ? 2 : 1);
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

/// The layers of a checkpoint that stay whole numbers in memory.
class Grouped {
 public:
  Grouped(const ModelConfig& config, const Checkpoint& checkpoint, WeightChoice choice)
      : config_(config), checkpoint_(checkpoint), on_(choice == WeightChoice::stored) {}

  /// What `panels` panels of a matrix take, made of these layers; nothing where they become fp32 or
  /// bf16.
  std::optional<std::uint64_t> bytes(const std::vector<std::string>& parts, std::int64_t panels,
                                     std::int64_t in) {
    std::optional<cpu::GroupedType> type;
    for (const std::string& part : parts) {
      const auto one =
          on_ ? grouped_type(config_.quantization, checkpoint_, part, in) : std::nullopt;
      if (!one) return std::nullopt;
      if (!type) type = one;
      if (!cpu::join_types(*type, *one)) return std::nullopt;
    }
    if (!type) return std::nullopt;
    if (first_ == nullptr) first_ = type->type == cpu::WeightType::int4 ? "int4" : "int8";
    return static_cast<std::uint64_t>(panels * cpu::panel_bytes(in, type->type, type->format));
  }
  /// The first matrix's type; null if there was none.
  const char* first() const { return first_; }

 private:
  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  bool on_;
  const char* first_ = nullptr;
};

/// One matrix of a layer, as it is packed.
struct MatrixParts {
  std::vector<std::string> parts;  // names in the checkpoint
  std::int64_t panels = 0;
  std::int64_t in = 0;
};

void add_feed_forward(const std::string& prefix, const FeedForwardNames& n, const MlpSpec& m,
                      std::int64_t hidden, std::vector<MatrixParts>& found) {
  if (m.intermediate == 0) return;
  std::vector<std::string> up;
  if (!n.fused.empty()) {
    up = {prefix + n.fused};
  } else {
    if (m.gated) up.push_back(prefix + n.gate);
    up.push_back(prefix + n.up);
  }
  const std::int64_t wide = m.gated ? 2 : 1;
  const std::int64_t panels =
      m.plain() ? 2 * cpu::panels_for(m.intermediate) : cpu::panels_for(wide * m.intermediate);
  found.push_back({std::move(up), panels, hidden});
  found.push_back({{prefix + n.down}, cpu::panels_for(hidden), m.intermediate});
}

/// The matrices of a layer that may be stored quantised.
std::vector<MatrixParts> matrices_of(const ModelConfig& c, const Checkpoint& checkpoint,
                                     const std::string& root, int index) {
  const TensorNames& n = c.names;
  const LayerSpec& layer = c.layer(index);
  const std::string prefix = root + "layers." + std::to_string(index) + ".";
  std::vector<MatrixParts> found;
  if (const LatentSpec& l = c.latent; l.rank > 0) {  // kv_b is cut by heads, and never stays so
    const std::int64_t from = l.q_rank > 0 ? l.q_rank : c.hidden;
    if (l.q_rank > 0) found.push_back({{prefix + n.q_a}, cpu::panels_for(l.q_rank), c.hidden});
    found.push_back({{prefix + (l.q_rank > 0 ? n.q_b : n.q)},
                     cpu::panels_for(std::int64_t{c.heads} * c.head_dim),
                     from});
    found.push_back({{prefix + n.kv_a}, cpu::panels_for(l.rank + l.rope), c.hidden});
  } else {
    std::vector<std::string> qkv = {prefix + n.q, prefix + n.k, prefix + n.v};
    if (!n.qkv.empty()) qkv = {prefix + n.qkv};
    found.push_back({std::move(qkv), cpu::panels_for(c.qkv_columns()), c.hidden});
  }
  found.push_back({{prefix + n.o}, cpu::panels_for(c.hidden), c.attended_columns()});
  add_feed_forward(prefix, {n.gate_up, n.gate, n.up, n.down}, layer.mlp, c.hidden, found);
  const ExpertSpec& e = layer.experts;
  const bool each = experts_apart(n, &checkpoint, prefix + n.experts);
  for (int i = 0; i < (each ? 0 : e.count); ++i) {  // one tensor for all, gate and up in it
    add_feed_forward(prefix + n.experts, {n.stacked_up, "", "", n.stacked_down}, e.expert, c.hidden,
                     found);
  }
  for (int i = 0; i < (each ? e.count : 0); ++i) {
    add_feed_forward(prefix + n.experts + std::to_string(i) + ".",
                     {"", n.expert_gate, n.expert_up, n.expert_down}, e.expert, c.hidden, found);
  }
  add_feed_forward(prefix + n.shared, {n.shared_gate_up, "gate_proj", "up_proj", n.shared_down},
                   e.shared, c.hidden, found);
  return found;
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
    case QuantMethod::packed:
      return "packed integers";
    case QuantMethod::nvfp4:
      return "nvfp4";
  }
  return "none";
}

}  // namespace

WeightPlan plan_weights(const ModelConfig& config, const Checkpoint& checkpoint,
                        WeightChoice choice) {
  const QuantMethod method = config.quantization.method;
  const TensorNames& names = config.names;
  const std::string root = decoder_root(names, checkpoint);
  const std::string first = root + "layers.0." +
                            (config.latent.rank > 0 ? names.kv_a
                             : names.qkv.empty()    ? names.q
                                                    : names.qkv);
  const TensorView* stored = checkpoint.find(first + ".weight");
  const bool blocks = stored != nullptr && stored->blocks != GgmlType::f32;
  const bool quantised = method != QuantMethod::none || blocks;
  Grouped grouped(config, checkpoint, choice);
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
    for (const MatrixParts& m : matrices_of(config, checkpoint, root, i)) {
      const auto less = grouped.bytes(m.parts, m.panels, m.in);
      if (less)
        plan.bytes -=
            static_cast<std::uint64_t>(m.panels * cpu::kPanelColumns * m.in) * each - *less;
    }
    if (quantised) {
      plan.loading_bytes =
          std::max(plan.loading_bytes, static_cast<std::uint64_t>(size.widest) * 4);
    }
  }
  const std::string table = root + names.embedding + ".weight";
  const std::string head =
      config.tied_embeddings ? table : head_name(names, checkpoint) + ".weight";
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  const std::string head_layer = head.substr(0, head.size() - 7);  // without ".weight"
  const auto less = grouped.bytes({head_layer}, cpu::panels_for(config.vocab), config.hidden);
  if (!less || !config.tied_embeddings) {  // else one matrix serves as both
    plan.bytes += static_cast<std::uint64_t>(config.vocab) * hidden *
                  element_bytes(choice, stored_bf16(checkpoint, table));
  }
  plan.bytes += less ? *less
                     : static_cast<std::uint64_t>(packed(config.vocab, config.hidden)) *
                           element_bytes(choice, stored_bf16(checkpoint, head));
  const TensorView* rows = checkpoint.find(table);
  if (rows != nullptr && rows->blocks != GgmlType::f32 && !(less && config.tied_embeddings)) {
    // Widened before it is copied.
    plan.loading_bytes =
        std::max(plan.loading_bytes, static_cast<std::uint64_t>(config.vocab) * hidden * 4);
  }
  plan.bytes += hidden * (config.norm.bias ? 8 : 4);  // the final norm
  plan.dtype = each == 2 ? "bf16" : "f32";
  plan.whole_numbers = grouped.first() != nullptr;
  if (plan.whole_numbers && each == 4) plan.dtype = grouped.first();
  if (blocks) {
    plan.dtype += " (stored as " + stored->dtype + ")";
  } else if (quantised)
    plan.dtype += std::string(" (stored as ") + method_name(method) + ")";
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
