// The part of config.json that says how positions become angles.
#include <algorithm>
#include <cmath>

#include "workers/model/families/family.h"
#include "workers/model/settings.h"

namespace baton {
namespace {

constexpr double kMaxContext = 1 << 27;
constexpr const char* kOriginalContext = "original_max_position_embeddings";
constexpr const char* kQueryGrowth = "llama_4_scaling_beta";

/// A factor that stretches a context: at least 1.
double stretch(const Settings& s, const std::string& key) {
  const double factor = s.positive(key);
  if (factor < 1.0) s.refuse(key, "must be at least 1");
  return factor;
}

/// How far `tokens` reach when they are stretched.
int stretched_context(const Settings& s, double tokens, double factor) {
  const double context = std::floor(tokens * factor);
  if (context > kMaxContext) s.refuse("factor", "stretches the context beyond 2^27 tokens");
  return static_cast<int>(context);
}

void read_llama3(const Settings& s, RopeConfig& rope) {
  rope.factor = s.positive("factor");
  rope.low_freq_factor = s.positive("low_freq_factor");
  rope.high_freq_factor = s.positive("high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    s.refuse("high_freq_factor", "must be above low_freq_factor");
  }
}

/// The whole stretched context is served: its end is what the frequencies are made for.
void read_dynamic(const Settings& s, RopeConfig& rope, int& max_context) {
  rope.factor = stretch(s, "factor");
  rope.original_context = max_context;
  if (rope.dims == 2) s.refuse("rope_type", "dynamic has no meaning for heads of 2");
  max_context = stretched_context(s, max_context, rope.factor);
}

void read_yarn(const Settings& s, RopeConfig& rope, int& max_context) {
  rope.factor = s.has("factor") ? stretch(s, "factor") : max_context / rope.original_context;
  rope.beta_fast = s.positive_or("beta_fast", rope.beta_fast);
  rope.beta_slow = s.positive_or("beta_slow", rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) s.refuse("beta_fast", "must not be below beta_slow");
  rope.truncate = s.flag_or("truncate", true);
  // 0 is the same as none.
  const double m = s.has("mscale") ? s.not_negative("mscale") : 0;
  const double of_all = s.has("mscale_all_dim") ? s.not_negative("mscale_all_dim") : 0;
  const double inferred = m > 0 && of_all > 0
                              ? yarn_magnitude(rope.factor, m) / yarn_magnitude(rope.factor, of_all)
                              : yarn_magnitude(rope.factor, 1.0);
  rope.attention_factor = s.positive_or("attention_factor", inferred);
  if (rope.theta <= 1.0) s.refuse("rope_theta", "must be above 1 for yarn");
  max_context = std::max(max_context, stretched_context(s, rope.original_context, rope.factor));
}

/// One of the two lists holds for all positions: the long one where the model serves more than the
/// original context.
void read_longrope(const Settings& s, RopeConfig& rope, int max_context) {
  const bool is_long = max_context > rope.original_context;
  const std::string key = is_long ? "long_factor" : "short_factor";
  const Json& list = s.at(key);
  if (!list.is_array() || static_cast<int>(list.size()) != rope.dims / 2) {
    s.refuse(key, "is not a list of " + std::to_string(rope.dims / 2) + " numbers");
  }
  for (const Json& value : list) {
    if (!value.is_number() || value.get<double>() <= 0 || !std::isfinite(value.get<double>())) {
      s.refuse(key, value.dump() + " is not a number above 0");
    }
    rope.stretch.push_back(value.get<double>());
  }
  rope.factor = s.positive_or("factor", max_context / rope.original_context);
  const double inferred =
      rope.factor <= 1.0 ? 1.0
                         : std::sqrt(1.0 + std::log(rope.factor) / std::log(rope.original_context));
  rope.attention_factor = s.positive_or("attention_factor", inferred);
}

/// How queries grow. Types of angles that have an original context of their own take the outer key
/// first, and the longest context where there is none, as in transformers.
void read_query_growth(const Settings& top, const Settings& s, const Family& family,
                       const std::string& type, RopeConfig& rope, int max_context) {
  if (!s.has(kQueryGrowth) || s.number(kQueryGrowth) == 0) return;
  if (!family.honours(kQueryGrowth)) {
    s.refuse(kQueryGrowth, "is not supported in " + family.name());
  }
  rope.query_growth = s.positive(kQueryGrowth);
  const bool has_original = type == "yarn" || type == "llama3" || type == "longrope";
  rope.query_context =
      has_original ? top.positive_or(kOriginalContext, s.positive_or(kOriginalContext, max_context))
                   : s.positive(kOriginalContext);
}

/// The share of a head that turns, as a number of its components.
int rotary_dims(const Settings& s, double share, int head_dim) {
  const int dims = static_cast<int>(head_dim * share);
  if (share > 1.0 || dims < 2 || dims % 2 != 0) {
    s.refuse("partial_rotary_factor", "must leave an even number of components that turn");
  }
  return dims;
}

/// The size of what turns, if all of it does: latent queries have a part that does.
int turned_dims(const ModelConfig& c) { return c.latent.rank > 0 ? c.latent.rope : c.head_dim; }

void read_scaling(const Settings& top, const Settings& s, const Family& family, RopeConfig& rope,
                  ModelConfig& c) {
  for (const auto& [key, value] : s.json().items()) {
    if (value.is_object()) s.refuse(key, "angles that differ between layers are not supported");
  }
  rope.theta = s.positive_or("rope_theta", rope.theta);
  if (s.has("partial_rotary_factor")) {
    const double share = s.positive("partial_rotary_factor");
    // Of latent queries transformers says what share of the whole query turns.
    const bool of_query = c.latent.rank > 0 && std::lround(share * c.head_dim) == c.latent.rope;
    if (share != 1.0 && !of_query && !family.honours("partial_rotary_factor")) {
      s.refuse("partial_rotary_factor", "only 1 is supported in " + family.name());
    }
    if (!of_query) rope.dims = rotary_dims(s, share, turned_dims(c));
  }
  const std::string type = s.text_or("rope_type", s.text_or("type", "default"));
  read_query_growth(top, s, family, type, rope, c.max_context);
  // Of texts, tokens have one position for all parts of a head that pictures' have several for.
  if (type == "default" || type == "mrope") return;
  // The outer key comes first where a file has both, as in transformers.
  rope.original_context =
      top.positive_or(kOriginalContext, s.positive_or(kOriginalContext, c.max_context));
  if (type == "linear") {
    rope.type = RopeType::linear;
    rope.factor = s.positive("factor");
  } else if (type == "llama3") {
    rope.type = RopeType::llama3;
    read_llama3(s, rope);
  } else if (type == "dynamic") {
    rope.type = RopeType::dynamic;
    read_dynamic(s, rope, c.max_context);
  } else if (type == "yarn") {
    rope.type = RopeType::yarn;
    read_yarn(s, rope, c.max_context);
  } else if ((type == "longrope" || type == "su") && family.honours("long_factor")) {
    rope.type = RopeType::longrope;
    read_longrope(s, rope, c.max_context);
  } else {
    s.refuse("rope_type", type + " is not supported in " + family.name());
  }
}

/// The two kinds of layers' own angles, as transformers 5 writes them: {"full_attention": {...},
/// "sliding_attention": {...}}.
bool by_kind(const Json& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Json& value) { return value.is_object(); });
}

void read_both_kinds(const Settings& s, const Family& family, ModelConfig& c) {
  const std::vector<std::string> kinds = {"full_attention", "sliding_attention"};
  for (const auto& [key, value] : s.json().items()) {
    if (std::find(kinds.begin(), kinds.end(), key) == kinds.end()) {
      s.refuse(key, "is not supported, only full_attention and sliding_attention are");
    }
  }
  const int said = c.max_context;
  int longest = said;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!s.has(kinds[i])) continue;
    c.max_context = said;  // not what the other kind has made of it
    const Settings kind = s.object(kinds[i]);
    // transformers looks for `truncate` beside the kinds, where nobody writes it.
    if (!kind.flag_or("truncate", true)) kind.refuse("truncate", "false is not supported here");
    read_scaling(kind, kind, family, c.ropes[i], c);
    longest = std::max(longest, c.max_context);
  }
  c.max_context = longest;
}

}  // namespace

double yarn_magnitude(double factor, double m) {
  return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

void read_ropes(const Settings& s, const Family& family, ModelConfig& c) {
  RopeConfig rope;
  rope.theta = s.positive_or("rope_theta", family.theta);
  rope.interleaved = family.interleaved;
  if (family.honours("rope_interleave")) {
    rope.interleaved = !s.says_null("rope_interleave") && s.flag_or("rope_interleave", true);
  }
  double share = 1;
  if (family.honours("partial_rotary_factor")) {
    share = s.positive_or("partial_rotary_factor", family.partial);
    if (family.honours("rotary_dim") && s.has("rotary_dim")) {
      share = static_cast<double>(s.integer("rotary_dim", 2, 1024)) / turned_dims(c);
    }
  }
  rope.dims = rotary_dims(s, share, turned_dims(c));
  c.ropes = {rope};
  // Of the same theta for both kinds, transformers gives what is said here to one of them.
  if (family.local_theta < 0 && rope.theta != family.theta) {
    s.refuse("rope_theta", "is only supported within rope_parameters, for each kind of layers");
  }
  if (family.local_theta != 0) {
    const double theta = family.local_theta > 0 ? family.local_theta : rope.theta;
    rope.theta = family.honours("rope_local_base_freq")
                     ? s.positive_or("rope_local_base_freq", theta)
                     : theta;
    c.ropes.push_back(rope);
  }
  // transformers 5 takes rope_scaling where a file has both; of two kinds of layers it mixes them.
  const bool both = s.has("rope_scaling") && s.has("rope_parameters");
  if (both && c.ropes.size() > 1) s.refuse("rope_scaling", "rope_parameters are there, too");
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    if (!s.has(key) || s.at(key).empty()) continue;
    const Settings scaling = s.object(key);
    const bool kinds = by_kind(scaling.json());
    if (c.ropes.size() > 1 && !kinds && key == "rope_parameters") {
      s.refuse(key, "do not say of which kind of layers they are");
    }
    if (c.ropes.size() > 1 && kinds) {
      read_both_kinds(scaling, family, c);
    } else {
      // Of two kinds of angles none knows the outer keys, as in transformers.
      read_scaling(c.ropes.size() > 1 ? scaling : s, scaling, family, c.ropes.front(), c);
    }
    return;
  }
}

}  // namespace baton
