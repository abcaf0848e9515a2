#include "workers/model/config.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "workers/model/error.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxConfigBytes = 4 << 20;

std::string read_text(const std::filesystem::path& path, bool required) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) {
    if (!required && !std::filesystem::exists(path)) return {};
    throw ModelError(path.string() + ": " + error.message());
  }
  if (size > kMaxConfigBytes) throw ModelError(path.string() + ": larger than 4 MiB");
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) throw ModelError(path.string() + ": cannot be read");
  return text;
}

/// Settings of one JSON object, read by name with their type and bounds checked.
class Settings {
 public:
  Settings(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw ModelError(where_ + ": " + key + ": " + why);
  }

  /// Absent and null are the same: Hugging Face writes null for "not set".
  bool has(const std::string& key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }

  const Json& at(const std::string& key) const {
    if (!has(key)) refuse(key, "is missing");
    return object_.at(key);
  }

  int integer(const std::string& key, int low, int high) const {
    const Json& value = at(key);
    if (!value.is_number_integer()) refuse(key, "is not a whole number");
    // An unsigned value beyond the signed range would wrap in get<int64>.
    const bool huge = value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX;
    const std::int64_t number = huge ? INT64_MAX : value.get<std::int64_t>();
    if (number < low || number > high) {
      refuse(key, value.dump() + " is not in [" + std::to_string(low) + ", " +
                      std::to_string(high) + "]");
    }
    return static_cast<int>(number);
  }

  int integer_or(const std::string& key, int low, int high, int otherwise) const {
    return has(key) ? integer(key, low, high) : otherwise;
  }

  /// Finite and > 0.
  double positive(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_number()) refuse(key, "is not a number");
    const auto number = value.get<double>();
    if (!std::isfinite(number) || number <= 0) refuse(key, value.dump() + " is not above 0");
    return number;
  }

  double positive_or(const std::string& key, double otherwise) const {
    return has(key) ? positive(key) : otherwise;
  }

  bool flag_or(const std::string& key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_boolean()) refuse(key, "is not true or false");
    return at(key).get<bool>();
  }

  std::string text(const std::string& key) const {
    if (!at(key).is_string()) refuse(key, "is not a string");
    return at(key).get<std::string>();
  }

  std::string text_or(const std::string& key, const std::string& otherwise) const {
    return has(key) ? text(key) : otherwise;
  }

  Settings object(const std::string& key) const {
    if (!at(key).is_object()) refuse(key, "is not an object");
    return {at(key), where_ + ": " + key};
  }

  /// One id or a list of ids.
  std::vector<Token> ids(const std::string& key, int vocab) const {
    std::vector<Token> found;
    if (!has(key)) return found;
    const Json& value = at(key);
    const Json list = value.is_array() ? value : Json::array({value});
    if (list.size() > 1024) refuse(key, "names more than 1024 ids");
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
          id.get<std::int64_t>() >= vocab) {
        refuse(key, id.dump() + " is not an id of the vocabulary");
      }
      found.push_back(id.get<Token>());
    }
    return found;
  }

  const Json& json() const { return object_; }

 private:
  const Json& object_;
  std::string where_;
};

/// Settings that change the mathematics: whoever uses one of them is another architecture to us.
void refuse_other_mathematics(const Settings& s) {
  const Json& architectures = s.at("architectures");
  if (!architectures.is_array() || architectures.size() != 1 ||
      architectures[0] != "LlamaForCausalLM") {
    s.refuse("architectures", architectures.dump() + " is not supported, only LlamaForCausalLM is");
  }
  if (const auto type = s.text_or("model_type", "llama"); type != "llama") {
    s.refuse("model_type", type + " is not supported, only llama is");
  }
  if (const auto act = s.text_or("hidden_act", "silu"); act != "silu") {
    s.refuse("hidden_act", act + " is not supported, only silu is");
  }
  for (const char* key :
       {"attention_bias", "mlp_bias", "qkv_bias", "use_qk_norm", "use_sliding_window"}) {
    if (s.flag_or(key, false)) s.refuse(key, "true is not supported");
  }
  for (const char* key : {"quantization_config", "sliding_window", "attn_logit_softcapping",
                          "final_logit_softcapping", "attention_multiplier", "embedding_multiplier",
                          "residual_multiplier", "logits_scaling", "query_pre_attn_scalar",
                          "num_local_experts", "num_experts"}) {
    if (s.has(key)) s.refuse(key, "is not supported (it is set to " + s.at(key).dump() + ")");
  }
  if (s.has("layer_types")) {
    for (const Json& type : s.at("layer_types")) {
      if (type != "full_attention") s.refuse("layer_types", type.dump() + " is not supported");
    }
  }
  if (s.positive_or("partial_rotary_factor", 1.0) != 1.0) {
    s.refuse("partial_rotary_factor", "only 1 is supported");
  }
}

/// The scaling part: `rope_scaling` of transformers 4, `rope_parameters` of transformers 5.
void read_rope_scaling(const Settings& s, int max_context, RopeConfig& rope) {
  for (const auto& [key, value] : s.json().items()) {
    if (value.is_object()) s.refuse(key, "angles that differ between layers are not supported");
  }
  rope.theta = s.positive_or("rope_theta", rope.theta);
  if (s.positive_or("partial_rotary_factor", 1.0) != 1.0) {
    s.refuse("partial_rotary_factor", "only 1 is supported");
  }
  const std::string type = s.text_or("rope_type", s.text_or("type", "default"));
  if (type == "default") return;
  if (type == "linear") {
    rope.type = RopeType::linear;
    rope.factor = s.positive("factor");
    return;
  }
  if (type != "llama3") {
    s.refuse("rope_type", type + " is not supported, only default, linear and llama3 are");
  }
  rope.type = RopeType::llama3;
  rope.factor = s.positive("factor");
  rope.low_freq_factor = s.positive("low_freq_factor");
  rope.high_freq_factor = s.positive("high_freq_factor");
  rope.original_context = s.positive_or("original_max_position_embeddings", max_context);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    s.refuse("high_freq_factor", "must be above low_freq_factor");
  }
}

ModelConfig read_sizes(const Settings& s) {
  ModelConfig c;
  c.hidden = s.integer("hidden_size", 1, 1 << 17);
  c.layers = s.integer("num_hidden_layers", 1, 4096);
  c.heads = s.integer("num_attention_heads", 1, 4096);
  c.kv_heads = s.integer_or("num_key_value_heads", 1, 4096, c.heads);
  c.intermediate = s.integer("intermediate_size", 1, 1 << 20);
  c.vocab = s.integer("vocab_size", 1, 1 << 24);
  c.max_context = s.integer("max_position_embeddings", 1, 1 << 27);
  if (c.heads % c.kv_heads != 0) {
    s.refuse("num_key_value_heads", "does not divide num_attention_heads");
  }
  if (s.has("head_dim")) {
    c.head_dim = s.integer("head_dim", 2, 1024);
  } else if (c.hidden % c.heads != 0 || c.hidden / c.heads > 1024 || c.hidden / c.heads < 2) {
    s.refuse("num_attention_heads", "does not divide hidden_size into heads of 2 to 1024");
  } else {
    c.head_dim = c.hidden / c.heads;
  }
  if (c.head_dim % 2 != 0) s.refuse("head_dim", "must be even (rotary embeddings turn pairs)");
  return c;
}

Json parse_object(const std::string& text, const std::string& name) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw ModelError(name + ": not a JSON object");
  return json;
}

}  // namespace

ModelConfig parse_model_config(const std::string& config, const std::string& generation,
                               const std::string& name) {
  const Json json = parse_object(config, name);
  const Settings s(json, name);
  refuse_other_mathematics(s);
  ModelConfig c = read_sizes(s);
  c.rms_eps = s.positive_or("rms_norm_eps", 1e-6);
  c.tied_embeddings = s.flag_or("tie_word_embeddings", false);
  c.rope.theta = s.positive_or("rope_theta", c.rope.theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (s.has(key)) read_rope_scaling(s.object(key), c.max_context, c.rope);
  }
  c.eos_ids = s.ids("eos_token_id", c.vocab);
  const std::vector<Token> bos = s.ids("bos_token_id", c.vocab);
  if (!bos.empty()) c.bos_id = bos.front();
  if (!generation.empty()) {
    const std::string generation_name = name + " (generation_config.json)";
    const Json generation_json = parse_object(generation, generation_name);
    const Settings g(generation_json, generation_name);
    if (g.has("eos_token_id")) c.eos_ids = g.ids("eos_token_id", c.vocab);
  }
  return c;
}

ModelConfig load_model_config(const std::string& folder) {
  const std::filesystem::path path(folder);
  return parse_model_config(read_text(path / "config.json", true),
                            read_text(path / "generation_config.json", false),
                            (path / "config.json").string());
}

}  // namespace baton
