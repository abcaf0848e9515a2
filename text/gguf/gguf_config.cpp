// The settings of a GGUF file as config.json.
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "text/gguf/gguf_folder.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// An architecture of these files, and whose config.json it becomes.
struct Architecture {
  const char* name;
  const char* architecture;
  const char* model_type;
};

constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama"},    {"qwen2", "Qwen2ForCausalLM", "qwen2"},
    {"qwen3", "Qwen3ForCausalLM", "qwen3"},    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe"},
    {"gemma2", "Gemma2ForCausalLM", "gemma2"}, {"gemma3", "Gemma3ForCausalLM", "gemma3_text"},
    {"olmo2", "Olmo2ForCausalLM", "olmo2"},    {"phi3", "Phi3ForCausalLM", "phi3"},
};

/// The number that somebody wrote before it was rounded to fp32: the shortest with that value.
double decimal(double stored) {
  if (!(std::fabs(stored) <= static_cast<double>(std::numeric_limits<float>::max()))) return stored;
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, static_cast<float>(stored));
  double value = stored;
  if (error == std::errc() && static_cast<double>(static_cast<float>(stored)) == stored) {
    std::from_chars(text, end, value);
  }
  return value;
}

/// Reads settings behind the architecture's name into JSON; the first thing wrong is remembered.
class Writer {
 public:
  Writer(const GgufHead& head, std::string architecture, const std::string& name)
      : head_(head), architecture_(std::move(architecture)), name_(name) {}

  std::string key(const char* setting) const { return architecture_ + "." + setting; }
  bool has(const char* setting) const { return head_.has(key(setting)); }

  void count(const char* setting, const char* to) {
    if (const auto value = head_.count(key(setting))) {
      json[to] = *value;
    } else {
      fail(setting, "is missing or no whole number");
    }
  }
  void count_or(const char* setting, const char* to, const Json& otherwise) {
    if (has(setting)) return count(setting, to);
    if (!otherwise.is_null()) json[to] = otherwise;
  }
  void number_or(const char* setting, const char* to, const Json& otherwise) {
    if (!has(setting)) {
      if (!otherwise.is_null()) json[to] = otherwise;
      return;
    }
    const auto value = head_.number(key(setting));
    if (!value || !std::isfinite(*value)) return fail(setting, "is no number");
    json[to] = decimal(*value);
  }
  void fail(const char* setting, const std::string& why) {
    if (status.ok()) status = invalid(name_ + ": " + key(setting) + ": " + why);
  }

  Json json = Json::object();
  Status status;

 private:
  const GgufHead& head_;
  std::string architecture_;
  const std::string& name_;
};

void write_ropes(const GgufHead& head, Writer& w) {
  w.number_or("rope.freq_base", "rope_theta", 10000.0);
  const auto type = head.text(w.key("rope.scaling.type"));
  // Very old files have a linear scale without a type.
  if (!type && w.has("rope.scale_linear")) return w.fail("rope.scale_linear", "is not supported");
  if (!type || *type == "none" || *type == "longrope") return;  // longrope: factors are tensors
  if (*type != "linear" && *type != "yarn") {
    return w.fail("rope.scaling.type", "'" + std::string(*type) +
                                           "' is not supported, only none, "
                                           "linear, yarn and longrope are");
  }
  const auto factor = head.number(w.key("rope.scaling.factor"));
  if (!factor) return w.fail("rope.scaling.factor", "is missing");
  Json scaling = {{"rope_type", std::string(*type)}, {"factor", decimal(*factor)}};
  if (*type == "yarn") {
    if (const auto original = head.count(w.key("rope.scaling.original_context_length"))) {
      scaling["original_max_position_embeddings"] = *original;
    }
    if (w.has("rope.scaling.yarn_log_multiplier")) {
      return w.fail("rope.scaling.yarn_log_multiplier", "is not supported");
    }
  }
  w.json["rope_scaling"] = scaling;
}

void write_experts(const std::string& architecture, Writer& w) {
  if (architecture == "llama") {
    w.json["architectures"] = {"MixtralForCausalLM"};
    w.json["model_type"] = "mixtral";
    w.json["sliding_window"] = nullptr;
    w.count("expert_count", "num_local_experts");
  } else {
    w.count("expert_count", "num_experts");
    w.count("expert_feed_forward_length", "moe_intermediate_size");
    w.json["norm_topk_prob"] = true;
    if (w.has("expert_shared_feed_forward_length")) {
      w.fail("expert_shared_feed_forward_length", "is not supported");
    }
  }
  w.count("expert_used_count", "num_experts_per_tok");
}

void write_own(const GgufHead& head, const std::string& architecture, Writer& w) {
  if (architecture == "gemma2" || architecture == "gemma3") {
    w.json["hidden_activation"] = "gelu_pytorch_tanh";
    w.count("attention.sliding_window", "sliding_window");
    w.number_or("attn_logit_softcapping", "attn_logit_softcapping", nullptr);
    w.number_or("final_logit_softcapping", "final_logit_softcapping", nullptr);
    // The files do not say what scores are divided by; of the published models those of 27B alone
    // take a width that is not a head's.
    const std::uint64_t layers = head.count(w.key("block_count")).value_or(0);
    const std::uint64_t heads =
        std::max<std::uint64_t>(head.count(w.key("attention.head_count")).value_or(1), 1);
    const std::uint64_t hidden = head.count(w.key("embedding_length")).value_or(0);
    const bool large = layers == (architecture == "gemma2" ? 46 : 62);
    w.json["query_pre_attn_scalar"] =
        large ? Json(hidden / heads)
              : Json(head.count(w.key("attention.key_length")).value_or(256));
    if (architecture == "gemma2" && !w.has("attn_logit_softcapping")) {
      w.json["attn_logit_softcapping"] = nullptr;
    }
  } else if (architecture == "phi3") {
    w.count_or("attention.sliding_window", "sliding_window", nullptr);
    if (!w.json.contains("sliding_window") || w.json["sliding_window"] == 0)
      w.json["sliding_window"] = nullptr;
  } else if (w.has("attention.sliding_window")) {
    w.fail("attention.sliding_window", "is not supported in " + architecture);
  }
}

/// The share of a head that turns.
void write_dims(const GgufHead& head, const std::string& architecture, Writer& w) {
  const auto hidden = head.count(w.key("embedding_length")).value_or(0);
  const auto heads = head.count(w.key("attention.head_count")).value_or(0);
  const auto each = heads == 0 ? 0 : hidden / heads;
  const auto dim = head.count(w.key("attention.key_length")).value_or(each);
  const auto value = head.count(w.key("attention.value_length")).value_or(dim);
  const auto turned = head.count(w.key("rope.dimension_count")).value_or(dim);
  if (value != dim) return w.fail("attention.value_length", "differs from attention.key_length");
  w.json["head_dim"] = dim;
  if (turned == dim || dim == 0) return;
  if (architecture != "phi3") return w.fail("rope.dimension_count", "is not that of a whole head");
  w.json["partial_rotary_factor"] = static_cast<double>(turned) / static_cast<double>(dim);
}

void write_tensors(const GgufHead& head, Writer& w) {
  const auto& tensors = head.tensors();
  const auto table = tensors.find("token_embd.weight");
  if (table == tensors.end() || table->second.shape.size() != 2) {
    return w.fail("vocab_size", "there is no token_embd.weight of two dimensions");
  }
  w.json["vocab_size"] = table->second.shape.front();
  w.json["tie_word_embeddings"] = !tensors.contains("output.weight");
}

void write_ids(const GgufHead& head, Json& json) {
  const auto ids = gguf_end_ids(head);
  if (!ids.empty()) json["eos_token_id"] = ids;
  if (const auto bos = head.count("tokenizer.ggml.bos_token_id")) json["bos_token_id"] = *bos;
}

}  // namespace

Result<std::string> gguf_config(const GgufHead& head, const std::string& name) {
  const std::string said(head.text("general.architecture").value_or(""));
  const Architecture* found = nullptr;
  std::string known;
  for (const Architecture& one : kArchitectures) {
    if (said == one.name) found = &one;
    known += std::string(known.empty() ? "" : ", ") + one.name;
  }
  if (found == nullptr) {
    return invalid(name + ": general.architecture: '" + said.substr(0, 100) +
                   "' is not supported, only " + known + " are");
  }
  if (head.has("split.count") && head.count("split.count") != 1) {
    return invalid(name +
                   ": split.count: files in several parts are not supported; join them first");
  }
  Writer w(head, said, name);
  w.json["architectures"] = {found->architecture};
  w.json["model_type"] = found->model_type;
  w.count("embedding_length", "hidden_size");
  w.count("block_count", "num_hidden_layers");
  w.count("feed_forward_length", "intermediate_size");
  w.count("context_length", "max_position_embeddings");
  w.count("attention.head_count", "num_attention_heads");
  w.count_or("attention.head_count_kv", "num_key_value_heads",
             w.json.value("num_attention_heads", Json(1)));
  w.number_or("attention.layer_norm_rms_epsilon", "rms_norm_eps", nullptr);
  if (!w.json.contains("rms_norm_eps")) w.fail("attention.layer_norm_rms_epsilon", "is missing");
  if (said == "llama") w.json["attention_bias"] = head.tensors().contains("blk.0.attn_q.bias");
  write_dims(head, said, w);
  write_ropes(head, w);
  if (head.count(w.key("expert_count")).value_or(0) > 0) write_experts(said, w);
  write_own(head, said, w);
  write_tensors(head, w);
  write_ids(head, w.json);
  if (!w.status.ok()) return w.status;
  return w.json.dump(1);
}

}  // namespace baton
