#include "workers/model/weight_plan.h"

#include <algorithm>

#include "workers/cpu/packing.h"

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

LayerSize layer_size(const ModelConfig& c, int layer) {
  LayerSize size;
  const std::int64_t heads = std::int64_t{c.heads} * c.head_dim;
  size.linear = packed(c.qkv_columns(), c.hidden) + packed(c.hidden, heads);
  size.widest = std::int64_t{c.hidden} * (c.qkv_columns() + heads);
  size.vectors = 2 * std::int64_t{c.hidden} + (c.qkv_bias ? c.qkv_columns() : 0) +
                 (c.qk_norm ? 2 * c.head_dim : 0);
  const auto feed_forward = [&c](std::int64_t intermediate) {
    return 2 * packed(intermediate, c.hidden) + packed(c.hidden, intermediate);
  };
  if (c.sparse(layer)) {
    size.linear += c.experts.count * feed_forward(c.experts.intermediate);
    size.widest += 3 * std::int64_t{c.hidden} * c.experts.intermediate;
  } else {
    size.linear += feed_forward(c.intermediate);
    size.widest += 3 * std::int64_t{c.hidden} * c.intermediate;
  }
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
  const bool bf16 = !quantised && stored_bf16(checkpoint, "model.layers.0.self_attn.q_proj.weight");
  const std::uint64_t each = element_bytes(choice, bf16);
  WeightPlan plan;
  for (int i = 0; i < config.layers; ++i) {
    const LayerSize size = layer_size(config, i);
    if (config.sparse(i)) {  // the router of a quantised model is stored plain
      const std::string router =
          "model.layers." + std::to_string(i) + "." + config.experts.block + "gate.weight";
      plan.bytes += static_cast<std::uint64_t>(packed(config.experts.count, config.hidden)) *
                    element_bytes(choice, stored_bf16(checkpoint, router));
    }
    plan.bytes += static_cast<std::uint64_t>(size.linear) * each +
                  static_cast<std::uint64_t>(size.vectors) * 4;
    if (quantised) {
      plan.loading_bytes =
          std::max(plan.loading_bytes, static_cast<std::uint64_t>(size.widest) * 4);
    }
  }
  const std::string table = "model.embed_tokens.weight";
  const std::string head = config.tied_embeddings ? table : "lm_head.weight";
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  plan.bytes += static_cast<std::uint64_t>(config.vocab) * hidden *
                element_bytes(choice, stored_bf16(checkpoint, table));
  plan.bytes += static_cast<std::uint64_t>(packed(config.vocab, config.hidden)) *
                element_bytes(choice, stored_bf16(checkpoint, head));
  plan.bytes += hidden * 4;  // the final norm
  plan.dtype = each == 2 ? "bf16" : "f32";
  if (quantised) plan.dtype += std::string(" (stored as ") + method_name(method) + ")";
  return plan;
}

std::uint64_t most_weight_bytes(const ModelConfig& config) {
  constexpr std::uint64_t kBeside =
      128;  // of each weight: what alignment wastes, its table's entry
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  std::uint64_t elements = static_cast<std::uint64_t>(config.vocab) * hidden + hidden +
                           static_cast<std::uint64_t>(packed(config.vocab, config.hidden));
  std::uint64_t weights = 4;
  for (int i = 0; i < config.layers; ++i) {
    const LayerSize size = layer_size(config, i);
    elements += static_cast<std::uint64_t>(size.linear + size.vectors +
                                           packed(config.experts.count, config.hidden));
    weights += 10 + 2 * static_cast<std::uint64_t>(config.experts.count);
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
