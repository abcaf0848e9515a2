// The part of config.json that says what each layer computes.
#include <algorithm>
#include <cmath>
#include <utility>

#include "workers/model/families/family.h"
#include "workers/model/settings.h"

namespace baton {
namespace {

constexpr const char* kWindowed = "sliding_attention";
constexpr const char* kFull = "full_attention";

/// `layer_types`, each of them one of the two.
std::vector<std::string> layer_kinds(const Settings& s, int layers) {
  std::vector<std::string> kinds = s.texts("layer_types", layers);
  for (const std::string& kind : kinds) {
    if (kind != kWindowed && kind != kFull) {
      s.refuse("layer_types",
               kind + " is not supported, only " + kFull + " and " + kWindowed + " are");
    }
  }
  return kinds;
}

/// Of layers without `layer_types`: every n-th is full, or a word of L (local) and G (global), or
/// the first ones are.
bool windowed_by_pattern(const Settings& s, const Family& family, int layer) {
  if (family.windows == Windows::behind) return layer >= s.integer("max_window_layers", 0, 4096);
  if (!family.pattern_key || !s.has("sliding_window_pattern")) {
    const int counted = family.full_first ? layer : layer + 1;
    return family.window_pattern == 0 || counted % family.window_pattern != 0;
  }
  if (!s.at("sliding_window_pattern").is_string()) {
    return (layer + 1) % s.integer("sliding_window_pattern", 1, 4096) != 0;
  }
  const std::string word = s.text("sliding_window_pattern");
  if (word.empty() || word.find_first_not_of("LG") != std::string::npos) {
    s.refuse("sliding_window_pattern", word + " is no word of L and G");
  }
  return word[static_cast<std::size_t>(layer) % word.size()] == 'L';
}

/// The window of every layer, 0 where there is none.
std::vector<int> read_windows(const Settings& s, const Family& family, int layers) {
  int window = 0;
  const bool off = family.honours("use_sliding_window") && !s.flag_or("use_sliding_window", false);
  const Windows kind = off ? Windows::switched : family.windows;
  if (s.has("sliding_window") && kind != Windows::switched) {
    if (kind == Windows::refused) {
      s.refuse("sliding_window", "is not supported in " + family.name());
    }
    window = s.integer("sliding_window", 1, 1 << 27);
  }
  std::vector<int> windows(static_cast<std::size_t>(layers), window);
  if (kind != Windows::listed && kind != Windows::behind) {
    if (!s.has("layer_types")) return windows;
    const char* same = window > 0 ? kWindowed : kFull;
    for (const Json& type : s.at("layer_types")) {
      if (type != same && !(window == 0 && type == "attention")) {  // Granite's word
        s.refuse("layer_types",
                 type.dump() + " is not supported, only " + same + " is in " + family.name());
      }
    }
    return windows;
  }
  const bool listed = s.has("layer_types");
  const std::vector<std::string> kinds =
      listed ? layer_kinds(s, layers) : std::vector<std::string>();
  for (int i = 0; i < layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool windowed =
        listed ? kinds[at] == kWindowed : window > 0 && windowed_by_pattern(s, family, i);
    if (windowed && window == 0) s.refuse("sliding_window", "is missing");
    if (!windowed) windows[at] = 0;
  }
  return windows;
}

/// Which of the ropes a layer has.
std::vector<int> read_rope_places(const Settings& s, const Family& family,
                                  const std::vector<int>& windows) {
  const bool has_window = s.has("sliding_window");  // also if no layer has one
  std::vector<int> places;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const bool windowed = windows[i] > 0;
    bool turns = true;
    if (family.rope_places == RopePlaces::windowed) turns = windowed || !has_window;
    if (family.rope_places == RopePlaces::windowed_only) turns = windowed;
    if (family.rope_places == RopePlaces::listed) turns = (i + 1) % 4 != 0;
    const int kind = windowed && family.local_theta != 0 ? 1 : 0;
    places.push_back(turns ? kind : -1);
  }
  if (family.rope_places != RopePlaces::listed) return places;
  if (s.has("no_rope_layers")) {
    const std::vector<Token> turns = s.ids("no_rope_layers", 2);
    if (turns.size() != places.size()) s.refuse("no_rope_layers", "has not one entry a layer");
    for (std::size_t i = 0; i < turns.size(); ++i) places[i] = turns[i] == 1 ? 0 : -1;
  } else if (s.has("no_rope_layer_interval")) {
    const int n = s.integer("no_rope_layer_interval", 1, 4096);
    for (int i = 0; i < static_cast<int>(places.size()); ++i) {
      places[static_cast<std::size_t>(i)] = (i + 1) % n != 0 ? 0 : -1;
    }
  }
  return places;
}

Activation read_activation(const Settings& s, const Family& family) {
  static const std::vector<std::pair<std::string, Activation>> kNames = {
      {"silu", Activation::silu},
      {"swish", Activation::silu},
      {"gelu", Activation::gelu},
      {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"gelu_new", Activation::gelu_tanh}};
  if (!s.has(family.act_key)) return family.activation;
  std::string name = s.text(family.act_key);
  if (family.gelu_is_tanh && name == "gelu") name = "gelu_pytorch_tanh";
  std::string known;
  for (const auto& [text, activation] : kNames) {
    const auto& ours = family.activations;
    if (std::find(ours.begin(), ours.end(), activation) == ours.end()) continue;
    if (text == name) return activation;
    known += (known.empty() ? "" : ", ") + text;
  }
  s.refuse(family.act_key, name + " is not supported, only " + known + " here");
}

bool has_bias(const Settings& s, const Family& family) {
  return !family.bias_key.empty() && s.flag_or(family.bias_key, family.bias_default);
}

/// What yarn does to DeepSeek's scores beside its angles: (0.1 mscale_all_dim ln(factor) + 1)^2.
double latent_magnitude(const Settings& s) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!s.has(key) || s.at(key).empty()) continue;
    const Settings rope = s.object(key);
    const bool plain = rope.text_or("rope_type", rope.text_or("type", "default")) == "default";
    if (plain || !rope.has("mscale_all_dim")) return 1.0;
    const double factor = rope.positive_or("factor", 1.0);
    const double magnitude = yarn_magnitude(factor, rope.number("mscale_all_dim"));
    return magnitude * magnitude;
  }
  return 1.0;
}

AttentionSpec read_attention(const Settings& s, const Family& family, int head_dim) {
  AttentionSpec a;
  a.qk_norm = family.qk_norm;
  if (family.honours("use_qk_norm") && !s.flag_or("use_qk_norm", false)) {
    a.qk_norm = QkNorm::none;
  }
  const bool bias = has_bias(s, family);
  a.qkv_bias = family.qkv_bias || bias;
  if (family.honours("qkv_bias")) a.qkv_bias = s.flag_or("qkv_bias", true);
  a.o_bias = bias && family.bias_of_o;
  a.sinks = family.sinks;
  a.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  if (family.latent) a.scale *= latent_magnitude(s);
  if (family.honours("query_pre_attn_scalar")) {
    a.scale = 1.0 / std::sqrt(s.positive("query_pre_attn_scalar"));
  }
  if (family.honours("attention_multiplier")) {
    const bool may_lack = family.scale_by_head && !s.has("attention_multiplier");
    if (!may_lack) a.scale = s.positive("attention_multiplier");
  }
  if (family.honours("attn_logit_softcapping")) {
    a.soft_cap = s.positive_or("attn_logit_softcapping", 0);
  }
  return a;
}

MlpSpec read_mlp(const Settings& s, const Family& family, const std::string& size_key) {
  MlpSpec m;
  m.intermediate = s.integer(size_key, 1, 1 << 20);
  m.activation = read_activation(s, family);
  m.gated = family.gated;
  m.bias = family.bias_of_mlp && has_bias(s, family);
  if (family.honours("mlp_bias")) m.bias = s.flag_or("mlp_bias", false);
  return m;
}

/// Which layers have experts.
std::vector<bool> sparse_layers(const Settings& s, const ExpertStyle& style, int layers) {
  std::vector<bool> sparse(static_cast<std::size_t>(layers), true);
  if (style.sparse_step) {
    const int step = s.integer_or("decoder_sparse_step", 1, 4096, 1);
    for (int i = 0; i < layers; ++i) sparse[static_cast<std::size_t>(i)] = (i + 1) % step == 0;
    for (const Token i : s.ids("mlp_only_layers", layers))
      sparse[static_cast<std::size_t>(i)] = false;
  }
  if (style.span) {
    const int first = s.integer_or("moe_layer_start_index", 0, 4096, 0);
    int last = layers - 1;  // -1 means this
    if (!s.has("moe_layer_end_index") || s.at("moe_layer_end_index") != -1) {
      last = s.integer_or("moe_layer_end_index", 0, 4096, last);
    }
    const int step = s.integer_or("moe_layer_interval", 1, 4096, 1);
    for (int i = 0; i < layers; ++i) {
      sparse[static_cast<std::size_t>(i)] = (i + 1) % step == 0 && i >= first && i <= last;
    }
  }
  if (style.leading_dense) {
    const int dense =
        style.leading >= 0 ? style.leading : s.integer_or("first_k_dense_replace", 0, 4096, 0);
    for (int i = 0; i < std::min(dense, layers); ++i) sparse[static_cast<std::size_t>(i)] = false;
    if (!s.has("mlp_layer_types")) return sparse;
    const std::vector<std::string> kinds = s.texts("mlp_layer_types", layers);
    for (std::size_t i = 0; i < sparse.size(); ++i) {
      if (kinds[i] != "dense" && kinds[i] != "sparse") {
        s.refuse("mlp_layer_types", kinds[i] + " is not supported, only dense and sparse are");
      }
      sparse[i] = kinds[i] == "sparse";
    }
  }
  return sparse;
}

void read_groups(const Settings& s, const ExpertStyle& style, ExpertSpec& e) {
  // How groups are rated is the table's group_pairs: topk_method may only say the same.
  const std::string method = s.text_or("topk_method", "");
  if (style.greedy && method == "greedy") return;
  if (!method.empty() && method != (style.greedy ? "group_limited_greedy" : "noaux_tc")) {
    s.refuse("topk_method", method + " is not supported");
  }
  e.groups = s.integer_or("n_group", 1, e.count, 1);
  e.active_groups = s.integer_or("topk_group", 1, e.groups, 1);
  if (e.count % e.groups != 0) s.refuse("n_group", "does not divide the number of experts");
  if (e.active > e.count / e.groups * e.active_groups) {
    s.refuse("topk_group", "leaves fewer experts than a token takes");
  }
}

ExpertSpec read_experts(const Settings& s, const Family& family) {
  const ExpertStyle& style = *family.experts;
  ExpertSpec e;
  e.count = s.integer(style.count, 1, 1024);
  e.active = s.integer(style.active, 1, std::min(e.count, 64));
  e.expert = read_mlp(s, family, style.intermediate);
  e.router = style.router;
  e.router_bias = style.router_bias;
  e.choice_bias = style.choice_bias;
  e.normalise = s.flag_or("norm_topk_prob", style.normalise);
  if (s.says_null("norm_topk_prob")) e.normalise = style.always_normalises;
  if (e.normalise ? !style.may_normalise : style.always_normalises) {
    s.refuse("norm_topk_prob",
             std::string(e.normalise ? "true" : "false") + " is not supported in " + family.name());
  }
  // The weights of a token's experts are divided by their sum, or by this if it is more: sums are
  // never so small.
  if (s.has("moe_norm_min") && s.not_negative("moe_norm_min") > 1e-9) {
    s.refuse("moe_norm_min", "is only supported up to 1e-9");
  }
  const std::string scores = style.router == RouterKind::sigmoid ? "sigmoid" : "softmax";
  const std::string said = s.text_or("scoring_func", scores);
  if (said != scores && (said.empty() || said != style.other_scores)) {
    s.refuse("scoring_func", said + " is not supported in " + family.name());
  }
  if (style.groups) {
    e.group_pairs = style.group_pairs;
    read_groups(s, style, e);
  }
  if (!style.scale.empty()) e.scale = s.positive_or(style.scale, 1.0);
  if (style.clamped) {
    e.expert.bias = true;
    e.expert.limit = s.positive_or("swiglu_limit", 7.0);
    e.expert.alpha = s.positive_or("swiglu_alpha", 1.702);
  }
  const bool lacks = style.may_lack_shared && s.integer_or(style.shared, 0, 1 << 20, 0) == 0;
  if (!style.shared.empty() && !lacks) e.shared = read_mlp(s, family, style.shared);
  if (!style.shared_count.empty()) {
    const int shared = s.integer_or(style.shared_count, 0, 64, 1);
    e.shared = e.expert;
    e.shared.intermediate *= shared;
  }
  e.shared_gate = style.shared_gate && e.shared.intermediate > 0;
  return e;
}

void refuse_experts(const Settings& s, const Family& family) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (s.has(key) && s.at(key) != 0) s.refuse(key, "is not supported in " + family.name());
  }
}

}  // namespace

void read_layers(const Settings& s, const Family& family, ModelConfig& c) {
  const std::vector<int> windows = read_windows(s, family, c.layers);
  const std::vector<int> ropes = read_rope_places(s, family, windows);
  LayerSpec layer;
  layer.norm = family.norm_place;
  layer.parallel = family.parallel;
  layer.attention = read_attention(s, family, c.head_dim);
  if (family.honours("residual_multiplier")) {
    layer.residual = s.positive_or("residual_multiplier", 1.0);
  }
  const MlpSpec dense = read_mlp(s, family, family.mlp_key);
  std::vector<bool> sparse(static_cast<std::size_t>(c.layers), false);
  ExpertSpec experts;
  if (family.experts != nullptr) {
    experts = read_experts(s, family);
    sparse = sparse_layers(s, *family.experts, c.layers);
  } else {
    refuse_experts(s, family);
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    layer.attention.window = windows[i];
    layer.attention.rope = ropes[i];
    layer.mlp = sparse[i] ? MlpSpec() : dense;
    layer.experts = sparse[i] ? experts : ExpertSpec();
    c.parts.push_back(layer);
  }
}

void read_head(const Settings& s, const Family& family, ModelConfig& c) {
  if (family.embedding_times_root) c.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  if (family.honours("embedding_multiplier")) {
    c.embedding_scale = s.positive_or("embedding_multiplier", 1.0);
  }
  if (family.honours("logits_scaling")) {
    const double scaling = s.positive_or("logits_scaling", 1.0);
    c.logits_scale = family.logits_times_scaling ? scaling : 1.0 / scaling;
  }
  if (family.honours("logit_scale")) c.logits_scale = s.positive("logit_scale");
  if (family.honours("final_logit_softcapping")) {
    c.logits_cap = s.positive_or("final_logit_softcapping", 0);
  }
}

}  // namespace baton
