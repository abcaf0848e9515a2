#include "workers/model/spec.h"

#include <algorithm>
#include <charconv>

namespace baton {
namespace {

/// The shortest text that reads back as the same number.
std::string exact(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::string text_of(const RopeConfig& r) {
  static constexpr const char* kNames[] = {"plain", "linear", "dynamic",
                                           "yarn",  "llama3", "longrope"};
  std::string text = std::string(kNames[static_cast<int>(r.type)]) + ", theta " + exact(r.theta) +
                     ", " + number(r.dims) + (r.interleaved ? " interleaved dims" : " dims");
  if (r.query_growth != 0) {
    text += ", query growth " + exact(r.query_growth) + " every " + exact(r.query_context);
  }
  if (r.attention_factor != 1.0) text += ", attention factor " + exact(r.attention_factor);
  if (r.type == RopeType::none) return text;
  text += ", factor " + exact(r.factor) + " of " + exact(r.original_context);
  if (r.type == RopeType::llama3) {
    text += ", frequencies " + exact(r.low_freq_factor) + " to " + exact(r.high_freq_factor);
  }
  if (r.type == RopeType::yarn) {
    text += ", turns " + exact(r.beta_fast) + " to " + exact(r.beta_slow) +
            (r.truncate ? "" : " not truncated");
  }
  for (std::size_t i = 0; i < r.stretch.size(); ++i) {
    text += (i == 0 ? ", stretched by " : " ") + exact(r.stretch[i]);
  }
  return text;
}

std::string text_of(const NormSpec& n) {
  return std::string(n.kind == NormKind::rms ? "rms" : "layer") + " norms, eps " + exact(n.eps) +
         (n.offset ? ", weights from 1" : "") + (n.bias ? ", biases" : "");
}

std::string text_of(const AttentionSpec& a) {
  std::string text = "attention scale " + exact(a.scale);
  if (a.rope != 0) text += a.rope < 0 ? ", no rope" : ", rope " + number(a.rope);
  if (a.window > 0) text += ", window " + number(a.window);
  if (a.qk_norm != QkNorm::none) {
    text += a.qk_norm == QkNorm::head ? ", q and k heads normed" : ", q and k normed";
  }
  if (a.qkv_bias) text += ", q k v biases";
  if (a.o_bias) text += ", o bias";
  if (a.sinks) text += ", sinks";
  if (a.soft_cap > 0) text += ", scores capped at " + exact(a.soft_cap);
  return text;
}

std::string text_of(const MlpSpec& m) {
  static constexpr const char* kNames[] = {"silu", "gelu", "gelu_tanh"};
  std::string text = number(m.intermediate) + " " + kNames[static_cast<int>(m.activation)];
  if (!m.gated) text += " without gate";
  if (m.bias) text += " with biases";
  if (m.limit > 0) text += " clamped at " + exact(m.limit) + " alpha " + exact(m.alpha);
  return text;
}

std::string text_of(const ExpertSpec& e) {
  std::string text = number(e.active) + " of " + number(e.count) + " experts (" +
                     text_of(e.expert) + ") by " +
                     (e.router == RouterKind::softmax ? "softmax" : "sigmoid");
  if (e.router_bias) text += ", router bias";
  if (e.choice_bias) text += ", choice bias";
  if (e.groups > 1) {
    text += ", " + number(e.active_groups) + " of " + number(e.groups) + " groups by " +
            (e.group_pairs ? "pairs" : "the best");
  }
  if (e.normalise) text += ", normalised";
  if (e.scale != 1) text += ", times " + exact(e.scale);
  if (e.shared.intermediate > 0) {
    text += std::string(e.shared_gate ? ", gated" : ",") + " shared (" + text_of(e.shared) + ")";
  }
  return text;
}

std::string text_of(const LayerSpec& l) {
  static constexpr const char* kPlaces[] = {"before", "after", "before and after"};
  std::string text = text_of(l.attention) + "; " +
                     (l.sparse() ? text_of(l.experts) : "mlp " + text_of(l.mlp)) + "; norms " +
                     kPlaces[static_cast<int>(l.norm)];
  if (l.parallel) text += "; parallel";
  if (l.residual != 1) text += "; residual times " + exact(l.residual);
  return text;
}

}  // namespace

const ExpertSpec& ModelSpec::experts() const {
  static const ExpertSpec kNone;
  const auto found =
      std::find_if(parts.begin(), parts.end(), [](const LayerSpec& l) { return l.sparse(); });
  return found == parts.end() ? kNone : found->experts;
}

int ModelSpec::intermediate() const {
  int widest = 0;
  for (const LayerSpec& l : parts) {
    if (!l.sparse()) widest = std::max(widest, l.mlp.intermediate);
  }
  return widest;
}

bool ModelSpec::one_window() const {
  return std::all_of(parts.begin(), parts.end(), [this](const LayerSpec& l) {
    return l.attention.window == parts.front().attention.window;
  });
}

std::string describe(const ModelSpec& s) {
  std::string text = "hidden " + number(s.hidden) + ", " + number(s.heads) + " heads, " +
                     number(s.kv_heads) + " of keys and values, of " + number(s.head_dim) +
                     ", vocabulary " + number(s.vocab) + "; " + text_of(s.norm) + "\n";
  if (s.latent.rank > 0) {
    const LatentSpec& l = s.latent;
    text += "keys and values latent, " + number(l.rank) + "; queries " +
            (l.q_rank > 0 ? "through " + number(l.q_rank) + ", " : "") + number(l.plain) + " + " +
            number(l.rope) + " that turn; values " + number(l.value) + "\n";
  }
  for (std::size_t i = 0; i < s.ropes.size(); ++i) {
    text += "rope " + number(static_cast<std::int64_t>(i)) + ": " + text_of(s.ropes[i]) + "\n";
  }
  if (s.embedding_scale != 1) text += "embedding times " + exact(s.embedding_scale) + "\n";
  for (std::size_t first = 0; first < s.parts.size();) {
    std::size_t end = first + 1;
    while (end < s.parts.size() && s.parts[end] == s.parts[first]) ++end;
    text += "layer " + number(static_cast<std::int64_t>(first));
    if (end > first + 1) text += " to " + number(static_cast<std::int64_t>(end) - 1);
    text += ": " + text_of(s.parts[first]) + "\n";
    first = end;
  }
  text += std::string("head ") + (s.tied_embeddings ? "tied" : "of its own");
  if (s.logits_scale != 1) text += ", logits times " + exact(s.logits_scale);
  if (s.logits_cap > 0) text += ", logits capped at " + exact(s.logits_cap);
  return text + "\n";
}

std::string flaw(const ModelSpec& s) {
  const auto layers = static_cast<int>(s.parts.size());
  if (layers != s.layers || layers == 0) return "as many parts as layers, and at least one";
  if (s.ropes.empty()) return "at least one way to turn positions";
  for (const RopeConfig& r : s.ropes) {
    if (r.dims < 2 || r.dims % 2 != 0 || r.dims > s.head_dim) {
      return "rope: dims " + number(r.dims) + " are not an even number up to head_dim";
    }
    if (!r.stretch.empty() && static_cast<int>(r.stretch.size()) != r.dims / 2) {
      return "rope: one stretch for every pair";
    }
  }
  const LatentSpec& latent = s.latent;
  if (latent.rank > 0 &&
      (s.head_dim != latent.plain + latent.rope || s.kv_heads != s.heads || latent.value < 1 ||
       (latent.rank + latent.rope) % 2 != 0 || s.ropes.front().dims != latent.rope)) {
    return "latent keys and values whose sizes do not fit one another";
  }
  for (const LayerSpec& l : s.parts) {
    const AttentionSpec& a = l.attention;
    if (latent.rank > 0 && (a.rope != 0 || a.qk_norm != QkNorm::none || a.qkv_bias || a.sinks)) {
      return "latent keys and values with norms, biases or sinks of plain ones";
    }
    if (l.attention.rope >= static_cast<int>(s.ropes.size())) return "a rope that is not there";
    if (l.attention.scale <= 0) return "attention: the scale must be above 0";
    if (l.parallel && l.norm != NormPlace::before) return "parallel parts are normed before";
    if (!l.sparse() && l.mlp.intermediate <= 0) return "a layer without a feed-forward part";
    if (l.sparse() && !(l.experts == s.experts())) return "experts that differ between layers";
    const ExpertSpec& e = l.experts;
    if (l.sparse() && (e.groups < 1 || e.count % e.groups != 0 || e.active_groups > e.groups ||
                       e.active_groups < 1 || e.active > e.count / e.groups * e.active_groups)) {
      return "experts: groups do not divide them, or hold fewer than a token takes";
    }
  }
  return "";
}

}  // namespace baton
