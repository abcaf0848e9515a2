// The part of config.json that says how positions become angles.
#include <algorithm>
#include <cmath>

#include "workers/model/settings.h"

namespace baton {
namespace {

constexpr double kMaxContext = 1 << 27;

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
void read_dynamic(const Settings& s, ModelConfig& c) {
  c.rope.factor = stretch(s, "factor");
  c.rope.original_context = c.max_context;
  if (c.head_dim == 2) s.refuse("rope_type", "dynamic has no meaning for heads of 2");
  c.max_context = stretched_context(s, c.max_context, c.rope.factor);
}

/// 0.1 m ln(factor) + 1, from the paper's section 3.4; m is 1 there.
double magnitude(double factor, double m) {
  return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

void read_yarn(const Settings& s, ModelConfig& c) {
  RopeConfig& rope = c.rope;
  rope.factor = s.has("factor") ? stretch(s, "factor") : c.max_context / rope.original_context;
  rope.beta_fast = s.positive_or("beta_fast", rope.beta_fast);
  rope.beta_slow = s.positive_or("beta_slow", rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) s.refuse("beta_fast", "must not be below beta_slow");
  rope.truncate = s.flag_or("truncate", true);
  const bool both = s.has("mscale") && s.has("mscale_all_dim");
  const double inferred = both ? magnitude(rope.factor, s.positive("mscale")) /
                                     magnitude(rope.factor, s.positive("mscale_all_dim"))
                               : magnitude(rope.factor, 1.0);
  rope.attention_factor = s.positive_or("attention_factor", inferred);
  if (rope.theta <= 1.0) s.refuse("rope_theta", "must be above 1 for yarn");
  c.max_context = std::max(c.max_context, stretched_context(s, rope.original_context, rope.factor));
}

void read_scaling(const Settings& top, const Settings& s, ModelConfig& c) {
  for (const auto& [key, value] : s.json().items()) {
    if (value.is_object()) s.refuse(key, "angles that differ between layers are not supported");
  }
  RopeConfig& rope = c.rope;
  rope.theta = s.positive_or("rope_theta", rope.theta);
  if (s.positive_or("partial_rotary_factor", 1.0) != 1.0) {
    s.refuse("partial_rotary_factor", "only 1 is supported");
  }
  const std::string type = s.text_or("rope_type", s.text_or("type", "default"));
  if (type == "default") return;
  // The outer key comes first where a file has both, as in transformers.
  rope.original_context =
      top.positive_or("original_max_position_embeddings",
                      s.positive_or("original_max_position_embeddings", c.max_context));
  if (type == "linear") {
    rope.type = RopeType::linear;
    rope.factor = s.positive("factor");
  } else if (type == "llama3") {
    rope.type = RopeType::llama3;
    read_llama3(s, rope);
  } else if (type == "dynamic") {
    rope.type = RopeType::dynamic;
    read_dynamic(s, c);
  } else if (type == "yarn") {
    rope.type = RopeType::yarn;
    read_yarn(s, c);
  } else {
    s.refuse("rope_type",
             type + " is not supported, only default, linear, dynamic, yarn and " + "llama3 are");
  }
}

}  // namespace

void read_rope(const Settings& s, ModelConfig& config) {
  config.rope.theta = s.positive_or("rope_theta", config.rope.theta);
  // transformers 5 takes rope_scaling where a file has both.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!s.has(key) || s.at(key).empty()) continue;
    read_scaling(s, s.object(key), config);
    return;
  }
}

}  // namespace baton
