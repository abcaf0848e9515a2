// A family of models as data: what its config.json may say and what that means. A table of them is
// all that a new family needs (docs/adding-a-family.md); the words of the tables stand here.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "workers/model/families/tensor_names.h"
#include "workers/model/spec.h"

namespace baton {

/// Which layers have a sliding window.
/// With `use_sliding_window` among `reads`: if that says so, else none.
enum class Windows : std::uint8_t {
  refused,   // the family has none
  all,       // `sliding_window` is that of every layer, null is none
  switched,  // `sliding_window` is passed over; `use_sliding_window`: true is refused
  listed,    // `layer_types` says which; without it, each but every `window_pattern`-th
  behind,    // likewise, but without it each from layer `max_window_layers` on
};

/// Which layers turn q and k by their position.
enum class RopePlaces : std::uint8_t {
  all,
  windowed,       // those with a window, if `sliding_window` says one; else all
  windowed_only,  // those with a window
  listed,         // `no_rope_layers`: 1 for each that does; without it, each but every fourth
};

/// How a family spells its experts.
struct ExpertStyle {
  std::vector<std::string> count = {"num_experts", "num_local_experts"};  // all that are there
  std::vector<std::string> active = {"num_experts_per_tok"};              // likewise
  std::string intermediate = "moe_intermediate_size";                     // of one expert
  bool normalise = false;  // where norm_topk_prob is not set
  bool may_normalise = true;
  bool always_normalises = false;  // norm_topk_prob: false is refused, null passed over
  RouterKind router = RouterKind::softmax;
  std::string other_scores = {};  // what `scoring_func` may call the router's scores, too
  bool router_bias = false;
  bool choice_bias = false;
  bool groups = false;     // `n_group`, `topk_group`
  std::string scale = {};  // key of a factor of all weights
  bool greedy = false;     // or none, if `topk_method` says "greedy"
  bool group_pairs = true;
  bool sparse_step = true;     // `decoder_sparse_step`, `mlp_only_layers`
  bool leading_dense = false;  // `first_k_dense_replace`; `mlp_layer_types` comes first
  int leading = -1;            // or so many layers, if it is not -1
  bool span = false;        // `moe_layer_start_index`, `moe_layer_end_index`, `moe_layer_interval`
  std::string shared = {};  // key of the size of what every token takes beside
  bool may_lack_shared = false;   // by a size of 0
  std::string shared_count = {};  // or of how many experts' size it has
  bool shared_gate = false;
  bool clamped = false;  // gpt-oss's gate: `swiglu_limit`, `swiglu_alpha`; biases
};

/// DeepSeek V3's, which several makers have: sigmoids with a bias, in groups, behind dense layers,
/// and experts that every token takes.
ExpertStyle v3_experts();

struct Family {
  std::string architecture = {};        // the only one of `architectures`; empty: a text half alone
  std::string other_architecture = {};  // likewise, of the same
  std::string model_type = {};
  std::vector<std::string> other_types =
      {};  // of folders that compute the same under their own name
  /// A model of several kinds of input: the model type of its text half where `text_config` says
  /// none, or where there is none and the settings stand outside. Of this table count, then, what
  /// stands above, `ties_inside`, `text_defaults` and, of `names`, roots, other parts and how
  /// experts are stored.
  std::string text_of = {};
  bool ties_inside = false;  // a text_config that says that lm_head is tied is right in any case

  /// Keys whose absence means a number of the family's own: they must be there. Null may be one.
  std::vector<std::string> must_say = {};
  /// Keys that have this value, as JSON, or are not there.
  std::vector<std::pair<std::string, std::string>> must_be = {};
  /// A JSON object: what transformers takes for keys that are not there.
  std::string defaults = "{}";
  /// Likewise of a text half, whose `text_config` may leave out whatever is a default; a folder's
  /// own come before those of its text half's family.
  std::string text_defaults = "{}";
  /// Keys that the family honours; those of mathematics_keys() that are not here are refused where
  /// they are set.
  std::vector<std::string> reads = {};

  NormSpec norm = {};
  std::string eps_key = "rms_norm_eps";
  NormPlace norm_place = NormPlace::before;
  QkNorm qk_norm = QkNorm::none;  // with `use_qk_norm` among `reads`: if that says so
  bool parallel = false;

  bool qkv_bias = false;      // always
  std::string bias_key = {};  // what says whether there are biases
  bool bias_default = false;  // where the key is not there
  bool bias_of_o = true;      // o has one, too
  bool bias_of_mlp = false;   // and so has the feed-forward part
  bool sinks = false;

  Windows windows = Windows::refused;
  int window_pattern = 0;    // every n-th layer has none (`sliding_window_pattern` may say another
                             // n); 0: all have one
  bool full_first = false;   // the first of each n has none, not the last
  bool pattern_key = false;  // `sliding_window_pattern` is read
  RopePlaces rope_places = RopePlaces::all;
  bool interleaved = false;  // with `rope_interleave` among `reads`: or as that says
  double theta = 1e4;        // of the angles, where config.json says none
  double partial = 1;        // share of a head that turns, likewise
  /// Layers with a window have angles of their own: `rope_local_base_freq` or this theta, scaled
  /// only by an entry `sliding_attention` of `rope_parameters`. 0: one kind of angles for all
  /// layers. -1: the same theta for both kinds.
  double local_theta = 0;
  std::string next_layers =
      "num_nextn_predict_layers";  // so many layers behind the last are unused

  bool latent = false;  // keys and values are latent: `kv_lora_rank` and the sizes beside it

  std::string mlp_key = "intermediate_size";  // of a dense layer
  std::string act_key = "hidden_act";
  Activation activation = Activation::silu;                  // where config.json says none
  std::vector<Activation> activations = {Activation::silu};  // those that it may say
  bool gelu_is_tanh = false;  // whichever of the two config.json says
  bool gated = true;
  const ExpertStyle* experts = nullptr;  // null: dense

  bool scale_by_head = false;         // scores, where `attention_multiplier` is not said
  bool logits_times_scaling = false;  // `logits_scaling` is no divisor
  bool embedding_times_root = false;  // the embedding is multiplied by sqrt(hidden)
  bool tied = false;                  // where config.json does not say
  TensorNames names = {};

  /// Whether `key` is one of `reads`.
  bool honours(const std::string& key) const {
    return std::find(reads.begin(), reads.end(), key) != reads.end();
  }
  /// For messages.
  const std::string& name() const { return architecture.empty() ? model_type : architecture; }
};

/// All of them, in the order in which they are named in messages.
const std::vector<Family>& families();

/// Settings that change the mathematics in some family, and what they are where they change
/// nothing, as JSON. Whoever sets one that his family does not read is refused by its name.
struct MathematicsKey {
  std::string key = {};
  std::string neutral = {};
};
const std::vector<MathematicsKey>& mathematics_keys();

// The tables, one a file of this folder.
std::vector<Family> gemma_families();
std::vector<Family> glm_families();
std::vector<Family> gpt_oss_families();
std::vector<Family> granite_families();
std::vector<Family> llama_families();
std::vector<Family> deepseek_families();
std::vector<Family> olmo_families();
std::vector<Family> phi_families();
std::vector<Family> picture_families();

}  // namespace baton
