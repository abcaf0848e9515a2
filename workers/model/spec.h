// What a model computes, as data: pure, comparable, printable. The forward pass on CPUs is an
// interpreter of it (llama.cpp); a family (families/) is a table that leads from a config.json to
// one of these. docs/adding-a-family.md has an example.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton {

enum class RopeType : std::uint8_t { none, linear, dynamic, yarn, llama3, longrope };

/// How positions become angles; rope.h has the formulas. `factor` and below are used by scaled
/// types only.
struct RopeConfig {
  RopeType type = RopeType::none;
  double theta = 10000.0;
  int dims = 0;              // components of a head that turn, the first ones; even
  bool interleaved = false;  // pairs are (2i, 2i + 1), else (i, i + dims / 2)
  double factor = 1.0;
  double original_context = 8192.0;  // dynamic, yarn, llama3: positions before scaling
  double low_freq_factor = 1.0;      // llama3
  double high_freq_factor = 4.0;     // llama3
  double beta_fast = 32.0;           // yarn: turns in the original context; more are kept
  double beta_slow = 1.0;            // yarn: fewer are stretched by the whole factor
  double attention_factor = 1.0;     // yarn, longrope: cos and sin are multiplied by it
  bool truncate = true;  // yarn: the ramp between the two begins and ends at whole pairs
  std::vector<double> stretch = {};  // longrope: how far each pair is stretched
  /// Above 0 (Llama 4): a query at position p is multiplied by
  /// 1 + query_growth * ln(1 + floor(p / query_context)).
  double query_growth = 0;
  double query_context = 0;

  bool operator==(const RopeConfig&) const = default;
};

enum class NormKind : std::uint8_t {
  rms,    // x / sqrt(mean(x^2) + eps) * weight
  layer,  // (x - mean) / sqrt(variance + eps) * weight (+ bias)
};

struct NormSpec {
  NormKind kind = NormKind::rms;
  double eps = 1e-6;
  bool offset = false;  // the checkpoint has weight - 1
  bool bias = false;    // layer

  bool operator==(const NormSpec&) const = default;
};

/// Where a layer norms, of its attention and of its feed-forward part: x + f(norm(x)),
/// x + norm(f(x)), x + norm(f(norm(x))).
enum class NormPlace : std::uint8_t { before, after, both };

/// A norm of q and k in front of the rotation: over each head, or over all of q and all of k.
enum class QkNorm : std::uint8_t { none, head, whole };

struct AttentionSpec {
  int window = 0;  // sliding window in tokens, 0: none. The query at position p sees the keys at
                   // p + 1 - window .. p
  int rope = 0;    // of ModelSpec::ropes; -1: positions turn nothing
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false;
  bool o_bias = false;
  bool sinks = false;   // each head has one more score in its softmax, without a value
  double scale = 0;     // scores are scale * (q . k)
  double soft_cap = 0;  // above 0: then soft_cap * tanh(score / soft_cap)

  bool operator==(const AttentionSpec&) const = default;
};

/// Keys and values as one latent vector a token, the same for all heads (DeepSeek's MLA). Each head
/// has matrices of its own that lead from there to its key and its value.
struct LatentSpec {
  static constexpr float kEps = 1e-6F;  // of its norms: transformers' default, whatever
                                        // rms_norm_eps says
  int rank = 0;                         // of the latent vector; 0: keys and values are plain
  int q_rank = 0;                       // queries go through so many numbers, too; 0: at once
  int plain = 0;                        // components of a query that do not turn
  int value = 0;                        // of a head's value
  int rope = 0;                         // components that turn; their key is one for all heads
  bool operator==(const LatentSpec&) const = default;
};

enum class Activation : std::uint8_t {
  silu,       // x / (1 + exp(-x))
  gelu,       // x / 2 * (1 + erf(x / sqrt 2))
  gelu_tanh,  // its approximation by a tanh
};

/// A feed-forward part: down(act(gate x) * up x), or without a gate down(act(up x)).
struct MlpSpec {
  int intermediate = 0;  // 0: there is none
  Activation activation = Activation::silu;
  bool gated = true;
  bool bias = false;  // on all of its linear layers
  /// Above 0 (gpt-oss): g = min(gate x, limit), u = clamp(up x, -limit, limit); what goes down is
  /// g / (1 + exp(-alpha g)) * (u + 1).
  double limit = 0;
  double alpha = 1;

  bool plain() const { return activation == Activation::silu && gated && !bias && limit == 0; }
  bool operator==(const MlpSpec&) const = default;
};

enum class RouterKind : std::uint8_t { softmax, sigmoid };

/// A feed-forward part cut into experts, of which each token takes a few: the sum of their results,
/// weighted by what the router says of them.
struct ExpertSpec {
  int count = 0;   // 0: the layer is dense
  int active = 0;  // of them that a token takes
  MlpSpec expert = {};
  RouterKind router = RouterKind::softmax;
  bool router_bias = false;  // added to the router's logits
  bool choice_bias = false;  // added to weights where experts are chosen, and there alone
  int groups = 1;            // experts are chosen in the best groups alone
  int active_groups = 1;
  bool group_pairs = true;   // a group is as good as its two best experts together, else its best
  bool normalise = false;    // the weights of a token's experts are made to sum to 1
  double scale = 1;          // and then multiplied
  MlpSpec shared = {};       // what every token takes beside its experts
  bool shared_gate = false;  // times sigmoid(w x)

  bool operator==(const ExpertSpec&) const = default;
};

struct LayerSpec {
  NormPlace norm = NormPlace::before;
  AttentionSpec attention = {};
  MlpSpec mlp = {};         // of a dense layer
  ExpertSpec experts = {};  // of a sparse one
  bool parallel = false;    // both parts read the same normed x: x + attention(n) + mlp(n)
  double residual = 1;      // what both parts give is multiplied by it before it is added

  bool sparse() const { return experts.count > 0; }
  bool operator==(const LayerSpec&) const = default;
};

/// One decoder. Heads have one shape in all layers: the pool of keys and values has.
struct ModelSpec {
  int hidden = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  LatentSpec latent = {};  // then kv_heads = heads, head_dim = latent.plain + latent.rope
  NormSpec norm = {};      // of all norms
  std::vector<RopeConfig> ropes = {};  // at least one
  std::vector<LayerSpec> parts = {};   // [layers]
  double embedding_scale = 1;          // the embedding's rows are multiplied by it
  bool tied_embeddings = false;        // lm_head is the embedding table
  double logits_scale = 1;             // logits are multiplied by it
  double logits_cap = 0;               // above 0: and become cap * tanh(logit / cap)

  int group() const { return heads / kv_heads; }
  int qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Of what attention leaves.
  int attended_columns() const { return heads * (latent.rank > 0 ? latent.value : head_dim); }
  /// The shape of a token's keys and values in the pool: a latent vector lies in a key and a value.
  int pool_heads() const { return latent.rank > 0 ? 1 : kv_heads; }
  int pool_dim() const { return latent.rank > 0 ? (latent.rank + latent.rope) / 2 : head_dim; }
  const LayerSpec& layer(int index) const { return parts[static_cast<std::size_t>(index)]; }
  bool sparse(int index) const { return layer(index).sparse(); }
  /// The experts of the first sparse layer; `count` is 0 if there is none. All sparse layers have
  /// the same.
  const ExpertSpec& experts() const;
  /// Of the widest dense layer, 0 if there is none.
  int intermediate() const;
  /// Whether all layers see as far as `layer(0)`.
  bool one_window() const;

  bool operator==(const ModelSpec&) const = default;
};

/// In words and exact numbers, equal neighbours among the layers as one line: two specs with the
/// same text are equal. For logs, for tests, and for the fingerprint.
std::string describe(const ModelSpec& spec);

/// What is wrong with it, or nothing: the interpreter's and the loaders' assumptions.
std::string flaw(const ModelSpec& spec);

}  // namespace baton
