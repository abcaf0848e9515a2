#include "workers/model/config.h"

#include <algorithm>
#include <filesystem>

#include "ipc/files.h"
#include "workers/model/error.h"
#include "workers/model/settings.h"

namespace baton {
namespace {

constexpr std::size_t kMaxConfigBytes = 4 << 20;

std::string read_text(const std::filesystem::path& path, bool required) {
  auto text = read_regular_file(path.string(), kMaxConfigBytes);
  if (!text.ok()) throw ModelError(text.status().message());
  if (!text.value() && required) throw ModelError(path.string() + ": is not there");
  return std::move(text).value().value_or("");
}

/// What `sliding_window` means to a family.
enum class Window : std::uint8_t {
  refused,   // the family has none
  all,       // a number is the window of every layer, null is none
  switched,  // it counts with use_sliding_window alone, which is refused: it mixes layers
};

/// How a family spells its experts.
struct ExpertStyle {
  const char* block;  // names in the checkpoint
  const char* gate;
  const char* up;
  const char* down;
  const char* intermediate;  // key of the size of one expert
  bool normalise;            // where norm_topk_prob is not set
};
constexpr ExpertStyle kMixtralExperts = {"block_sparse_moe.", "w1", "w3", "w2",
                                         "intermediate_size", true};
constexpr ExpertStyle kQwenExperts = {
    "mlp.", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size", false};

/// What the name of an architecture implies beyond the settings that config.json spells out.
struct Family {
  const char* architecture;
  const char* model_type;
  bool qkv_bias;
  bool qk_norm;
  Window window;
  const ExpertStyle* experts;  // null: dense
  double theta;                // of the angles, where config.json says none
  /// Keys whose absence means a number of the family's own: they must be there. Null may be one.
  std::vector<const char*> must_say;
};

constexpr const char* kKvHeads = "num_key_value_heads";
constexpr const char* kActive = "num_experts_per_tok";

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      // clang-format off
      // architecture, model_type, qkv_bias, qk_norm, sliding_window, experts, theta, must be there
      {"LlamaForCausalLM", "llama", false, false, Window::refused, nullptr, 1e4, {}},
      {"MistralForCausalLM", "mistral", false, false, Window::all, nullptr, 1e4,
       {kKvHeads, "sliding_window"}},
      {"MixtralForCausalLM", "mixtral", false, false, Window::all, &kMixtralExperts, 1e6,
       {kKvHeads, "rms_norm_eps", kActive}},
      {"Qwen2ForCausalLM", "qwen2", true, false, Window::switched, nullptr, 1e4, {kKvHeads}},
      {"Qwen3ForCausalLM", "qwen3", false, true, Window::switched, nullptr, 1e4,
       {kKvHeads, "head_dim"}},
      {"Qwen3MoeForCausalLM", "qwen3_moe", false, true, Window::switched, &kQwenExperts, 1e4,
       {kKvHeads, kActive}},
      // clang-format on
  };
  return kFamilies;
}

const Family& family_of(const Settings& s) {
  const Json& architectures = s.at("architectures");
  std::string known;
  for (const Family& family : families()) {
    if (architectures == Json::array({family.architecture})) {
      const auto type = s.text_or("model_type", family.model_type);
      if (type != family.model_type) {
        s.refuse("model_type", type + " does not fit " + family.architecture);
      }
      for (const char* key : family.must_say) {
        if (!s.json().contains(key)) s.refuse(key, "is missing");
      }
      return family;
    }
    known += std::string(known.empty() ? "" : ", ") + family.architecture;
  }
  s.refuse("architectures", architectures.dump() + " is not supported, only " + known + " are");
}

/// Settings that change the mathematics: whoever uses one of them is another architecture to us.
void refuse_other_mathematics(const Settings& s) {
  if (const auto act = s.text_or("hidden_act", "silu"); act != "silu") {
    s.refuse("hidden_act", act + " is not supported, only silu is");
  }
  // attention_bias is one on o, too, in every family that knows it.
  for (const char* key : {"attention_bias", "mlp_bias", "qkv_bias", "use_qk_norm",
                          "use_sliding_window", "use_mrope"}) {
    if (s.flag_or(key, false)) s.refuse(key, "true is not supported");
  }
  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier",
        "embedding_multiplier", "residual_multiplier", "logits_scaling", "query_pre_attn_scalar"}) {
    if (s.has(key)) s.refuse(key, "is not supported (it is set to " + s.at(key).dump() + ")");
  }
  if (s.positive_or("partial_rotary_factor", 1.0) != 1.0) {
    s.refuse("partial_rotary_factor", "only 1 is supported");
  }
}

/// The window of all layers, 0 if there is none.
int read_window(const Settings& s, const Family& family) {
  int window = 0;
  if (s.has("sliding_window") && family.window != Window::switched) {
    if (family.window == Window::refused) {
      s.refuse("sliding_window", "is not supported in " + std::string(family.architecture));
    }
    window = s.integer("sliding_window", 1, 1 << 27);
  }
  if (s.has("layer_types")) {
    const char* same = window > 0 ? "sliding_attention" : "full_attention";
    for (const Json& type : s.at("layer_types")) {
      if (type != same) {
        s.refuse("layer_types", type.dump() + " is not supported, only " + same + " is here");
      }
    }
  }
  return window;
}

/// transformers 5 writes num_local_experts for every family, 4 wrote num_experts for some.
ExpertConfig read_experts(const Settings& s, const Family& family, int layers) {
  const std::string key = s.has("num_experts") ? "num_experts" : "num_local_experts";
  ExpertConfig e;
  if (family.experts == nullptr) {
    if (s.has(key)) s.refuse(key, "is not supported in " + std::string(family.architecture));
    return e;
  }
  e.count = s.integer(key, 1, 1024);
  e.active = s.integer(kActive, 1, std::min(e.count, 64));
  e.intermediate = s.integer(family.experts->intermediate, 1, 1 << 20);
  e.normalise = s.flag_or("norm_topk_prob", family.experts->normalise);
  e.step = s.integer_or("decoder_sparse_step", 1, 4096, 1);
  e.dense_layers = s.ids("mlp_only_layers", layers);
  e.block = family.experts->block;
  e.gate = family.experts->gate;
  e.up = family.experts->up;
  e.down = family.experts->down;
  return e;
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
  if (!json_depth_within(text, kMaxJsonDepth)) {
    throw ModelError(name + ": the JSON is nested more than " + std::to_string(kMaxJsonDepth) +
                     " deep");
  }
  Json json = Json::parse(quote_bare_constants(text), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw ModelError(name + ": not a JSON object");
  return json;
}

}  // namespace

bool ModelConfig::sparse(int layer) const {
  const std::vector<int>& dense = experts.dense_layers;
  return experts.count > 0 && (layer + 1) % experts.step == 0 &&
         std::find(dense.begin(), dense.end(), layer) == dense.end();
}

ModelConfig parse_model_config(const std::string& config, const std::string& generation,
                               const std::string& name, const std::string& quantize) {
  const Json json = parse_object(config, name);
  const Settings s(json, name);
  const Family& family = family_of(s);
  refuse_other_mathematics(s);
  ModelConfig c = read_sizes(s);
  c.qkv_bias = family.qkv_bias;
  c.qk_norm = family.qk_norm;
  c.window = read_window(s, family);
  c.experts = read_experts(s, family, c.layers);
  c.rope.theta = family.theta;
  c.rms_eps = s.positive_or("rms_norm_eps", 1e-6);
  c.tied_embeddings = s.flag_or("tie_word_embeddings", false);
  read_rope(s, c);
  if (s.has("quantization_config")) {
    c.quantization = read_quantization(s.object("quantization_config"), "");
  } else if (!quantize.empty()) {
    const std::string quantize_name = name + " (quantize_config.json)";
    const Json quantize_json = parse_object(quantize, quantize_name);
    c.quantization = read_quantization(Settings(quantize_json, quantize_name), "gptq");
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
  return parse_model_config(
      read_text(path / "config.json", true), read_text(path / "generation_config.json", false),
      (path / "config.json").string(), read_text(path / "quantize_config.json", false));
}

}  // namespace baton
