#include "workers/model/config.h"

#include <algorithm>
#include <filesystem>

#include "ipc/files.h"
#include "text/gguf/gguf_folder.h"
#include "workers/model/error.h"
#include "workers/model/families/family.h"
#include "workers/model/gguf_model.h"
#include "workers/model/settings.h"

namespace baton {
namespace {

constexpr std::size_t kMaxConfigBytes = 4 << 20;

std::string read_text(const std::filesystem::path& path, bool required) {
  auto text = read_model_file(path.string(), kMaxConfigBytes);
  if (!text.ok()) throw ModelError(text.status().message());
  if (!text.value() && required) throw ModelError(path.string() + ": is not there");
  return std::move(text).value().value_or("");
}

bool is_type(const Family& family, const std::string& type) {
  const auto& others = family.other_types;
  return family.model_type == type || std::find(others.begin(), others.end(), type) != others.end();
}

const Family& family_of(const Settings& s) {
  const Json& architectures = s.at("architectures");
  std::string known;
  for (const Family& family : families()) {
    if (family.architecture.empty()) continue;
    const std::string& other = family.other_architecture;
    if (architectures == Json::array({family.architecture}) ||
        (!other.empty() && architectures == Json::array({other}))) {
      const auto type = s.text_or("model_type", family.model_type);
      if (!is_type(family, type)) {
        s.refuse("model_type", type + " does not fit " + family.architecture);
      }
      return family;
    }
    known += std::string(known.empty() ? "" : ", ") + family.architecture;
  }
  s.refuse("architectures", architectures.dump() + " is not supported, only " + known + " are");
}

const Family& text_family(const Settings& s, const std::string& type) {
  for (const Family& family : families()) {
    if (family.text_of.empty() && is_type(family, type)) return family;
  }
  s.refuse("model_type", type + " is not supported as the text half of a model");
}

/// Settings that change the mathematics: whoever uses one of them is another architecture to us.
void refuse_other_mathematics(const Settings& s, const Family& family) {
  for (const std::string& key : family.must_say) {
    if (!s.json().contains(key)) s.refuse(key, "is missing");
  }
  for (const auto& [key, value] : family.must_be) {
    if (s.json().contains(key) && s.json().at(key) != Json::parse(value)) {
      s.refuse(key, s.json().at(key).dump() + " is not supported in " + family.name() + ", only " +
                        value + " is");
    }
  }
  for (const MathematicsKey& setting : mathematics_keys()) {
    if (family.honours(setting.key) || setting.key == family.bias_key) continue;
    if (!s.has(setting.key) || s.at(setting.key) == Json::parse(setting.neutral)) continue;
    const std::string value = s.at(setting.key).dump();
    s.refuse(setting.key, value + " is not supported in " + family.name());
  }
}

void read_sizes(const Settings& s, ModelConfig& c) {
  c.hidden = s.integer("hidden_size", 1, 1 << 17);
  c.layers = s.integer("num_hidden_layers", 1, 4096);
  c.heads = s.integer("num_attention_heads", 1, 4096);
  c.kv_heads = s.integer_or("num_key_value_heads", 1, 4096, c.heads);
  c.vocab = s.integer("vocab_size", 1, 1 << 24);
  c.max_context = s.integer("max_position_embeddings", 1, 1 << 27);
  if (c.heads % c.kv_heads != 0) {
    s.refuse("num_key_value_heads", "does not divide num_attention_heads");
  }
}

/// Latent queries have sizes of their own (read_latent()).
void read_head_dim(const Settings& s, ModelConfig& c) {
  if (s.has("head_dim")) {
    c.head_dim = s.integer("head_dim", 2, 1024);
  } else if (c.hidden % c.heads != 0 || c.hidden / c.heads > 1024 || c.hidden / c.heads < 2) {
    s.refuse("num_attention_heads", "does not divide hidden_size into heads of 2 to 1024");
  } else {
    c.head_dim = c.hidden / c.heads;
  }
  if (c.head_dim % 2 != 0) s.refuse("head_dim", "must be even (rotary embeddings turn pairs)");
}

void read_latent(const Settings& s, ModelConfig& c) {
  LatentSpec& l = c.latent;
  l.rank = s.integer("kv_lora_rank", 1, 1 << 12);
  l.q_rank = s.integer_or("q_lora_rank", 1, 1 << 16, 0);
  l.plain = s.integer("qk_nope_head_dim", 1, 512);
  l.rope = s.integer("qk_rope_head_dim", 2, 512);
  l.value = s.integer("v_head_dim", 1, 1024);
  if (l.rope % 2 != 0) s.refuse("qk_rope_head_dim", "must be even (it turns in pairs)");
  if ((l.rank + l.rope) % 2 != 0) s.refuse("kv_lora_rank", "must be even");
  c.head_dim = l.plain + l.rope;
  c.kv_heads = c.heads;
}

/// What a file says, and a family's defaults where it says nothing. Null is something: no window,
/// for one. Of angles transformers takes its own where a file has null.
Json with_defaults(Json defaults, const Json& said) {
  for (const auto& [key, value] : said.items()) {
    const bool default_angles = key == "rope_parameters" && value.is_null();
    if (!default_angles || !defaults.contains(key)) defaults[key] = value;
  }
  return defaults;
}

/// All of the mathematics, out of the settings of one decoder.
void read_spec(const Settings& said, const Family& family, ModelConfig& c) {
  refuse_other_mathematics(said, family);
  const Json json = with_defaults(Json::parse(family.defaults), said.json());
  const Settings s(json, said.where());
  read_sizes(s, c);
  family.latent ? read_latent(s, c) : read_head_dim(s, c);
  c.names = family.names;
  c.norm = family.norm;
  c.norm.eps = s.positive_or(family.eps_key, family.norm.eps);
  c.tied_embeddings = s.flag_or("tie_word_embeddings", family.tied);
  read_ropes(s, family, c);
  read_layers(s, family, c);
  read_head(s, family, c);
  if (const std::string wrong = flaw(c); !wrong.empty()) s.refuse("architectures", wrong);
}

/// Layers behind the last one guess tokens further ahead; nothing here asks for that.
void pass_over_next_layers(const Settings& s, const Family& family, ModelConfig& c) {
  const int next = s.integer_or(family.next_layers, 0, 64, 0);
  for (const std::string& root : c.names.roots) {
    for (int i = 0; i < next; ++i) {
      c.names.other_parts.push_back(root + "layers." + std::to_string(c.layers + i) + ".");
    }
  }
}

/// The ids that begin and end a text, where the file says some.
void read_ids(const Settings& s, ModelConfig& c) {
  if (s.has("eos_token_id")) c.eos_ids = s.ids("eos_token_id", c.vocab);
  const std::vector<Token> bos = s.ids("bos_token_id", c.vocab);
  if (!bos.empty()) c.bos_id = bos.front();
}

/// The text half of a folder whose other parts are not served. `s`: the whole file.
void read_text_half(const Settings& s, const Family& folder, ModelConfig& c) {
  if (!s.flag_or("is_causal", true)) s.refuse("is_causal", "false is not supported");
  const bool inside = s.has("text_config");
  const Settings said = inside ? s.object("text_config") : s;
  const Family& family =
      text_family(said, inside ? said.text_or("model_type", folder.text_of) : folder.text_of);
  Json json = Json::parse(family.text_defaults);
  json.update(Json::parse(folder.text_defaults));
  json = with_defaults(std::move(json), said.json());
  const Settings text(json, said.where());
  read_spec(text, family, c);
  if (c.logits_cap != 0) text.refuse("final_logit_softcapping", "is not supported beside pictures");
  // lm_head lies outside of the text half, so that the outer object says whether it is tied, where
  // it says so; older files of some folders said it inside alone.
  const bool inside_ties =
      folder.ties_inside && said.has("tie_word_embeddings") && c.tied_embeddings;
  c.tied_embeddings = inside_ties || s.flag_or("tie_word_embeddings", c.tied_embeddings);
  c.names.roots = folder.names.roots;
  if (folder.names.expert_storage != ExpertStorage::each)
    c.names.expert_storage = folder.names.expert_storage;
  c.names.other_parts.insert(c.names.other_parts.end(), folder.names.other_parts.begin(),
                             folder.names.other_parts.end());
  pass_over_next_layers(text, family, c);
  read_ids(said, c);
  c.text_half = true;
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

ModelConfig parse_model_config(const std::string& config, const std::string& generation,
                               const std::string& name, const std::string& quantize) {
  const Json json = parse_object(config, name);
  const Settings s(json, name);
  ModelConfig c;
  const Family& family = family_of(s);
  if (family.text_of.empty()) {
    read_spec(s, family, c);
    pass_over_next_layers(s, family, c);
  } else {
    read_text_half(s, family, c);
  }
  if (s.has("quantization_config")) {
    const bool mxfp4 = c.names.expert_storage == ExpertStorage::interleaved;
    c.quantization = read_quantization(s.object("quantization_config"), "", mxfp4);
  } else if (!quantize.empty()) {
    const std::string quantize_name = name + " (quantize_config.json)";
    const Json quantize_json = parse_object(quantize, quantize_name);
    c.quantization = read_quantization(Settings(quantize_json, quantize_name), "gptq");
  }
  read_ids(s, c);
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
  ModelConfig config = parse_model_config(
      read_text(path / "config.json", true), read_text(path / "generation_config.json", false),
      (path / "config.json").string(), read_text(path / "quantize_config.json", false));
  if (names_gguf(folder)) {
    const auto file = GgufFile::open(folder);
    if (!file.ok()) throw ModelError(file.status().message());
    finish_gguf_config(*file.value(), folder, config);
  }
  return config;
}

}  // namespace baton
