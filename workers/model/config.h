// config.json and generation_config.json of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/types.h"

namespace baton {

enum class RopeType : std::uint8_t { none, linear, dynamic, yarn, llama3 };

/// How positions become angles; rope.h has the formulas. `factor` and below are used by scaled
/// types only.
struct RopeConfig {
  RopeType type = RopeType::none;
  double theta = 10000.0;
  double factor = 1.0;
  double original_context = 8192.0;  // dynamic, yarn, llama3: positions before scaling
  double low_freq_factor = 1.0;      // llama3
  double high_freq_factor = 4.0;     // llama3
  double beta_fast = 32.0;           // yarn: turns in the original context; more are kept
  double beta_slow = 1.0;            // yarn: fewer are stretched by the whole factor
  double attention_factor = 1.0;     // yarn: cos and sin are multiplied by it
  bool truncate = true;  // yarn: the ramp between the two begins and ends at whole pairs
};

/// A feed-forward part cut into experts, of which each token takes a few: the sum of their results,
/// weighted by the router's softmax.
struct ExpertConfig {
  int count = 0;                  // experts of a sparse layer; 0: every layer is dense
  int active = 0;                 // of them that a token takes
  int intermediate = 0;           // of one expert
  bool normalise = false;         // the weights of a token's experts are made to sum to 1
  int step = 1;                   // every step-th layer is sparse: (layer + 1) % step == 0
  std::vector<int> dense_layers;  // but not these
  std::string block;              // names in the checkpoint: <block>gate, <block>experts.N.<part>
  std::string gate, up, down;
};

enum class QuantMethod : std::uint8_t { none, gptq, awq, fp8 };

/// How the weights of linear layers are stored; dequantize.h has the formats. A layer whose tensors
/// are plain is read plainly, whatever this says: quantisers leave some out.
struct Quantization {
  QuantMethod method = QuantMethod::none;
  int group = 0;           // gptq, awq: inputs that share a scale; 0: all of them
  int zero_offset = 0;     // gptq: what stored zero points lack
  bool act_order = false;  // gptq: the inputs' groups are in no order; g_idx must be there
  int block_rows = 0;      // fp8: outputs that share a scale; 0: all of them
  int block_columns = 0;   // fp8: inputs that share a scale; 0: all of them
  std::string scale;       // fp8: name of the scales, behind the layer's
};

/// What the forward pass and the front end need to know about a model: one decoder (pre-norm,
/// rotary grouped-query attention, gated SiLU), whose families differ in these settings alone.
struct ModelConfig {
  int hidden = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int intermediate = 0;
  int vocab = 0;
  int max_context = 0;  // max_position_embeddings, or how far dynamic or yarn stretch it
  double rms_eps = 1e-6;
  bool tied_embeddings = false;  // lm_head is the embedding table
  bool qkv_bias = false;         // q, k and v have a bias each, [heads * head_dim]; o has none
  bool qk_norm = false;          // RMS norm of every q and k head before RoPE; weights [head_dim]
  int window = 0;  // sliding window in tokens, 0: none. Of every layer: the query at position p
                   // sees the keys at p + 1 - window .. p
  RopeConfig rope;
  ExpertConfig experts;
  Quantization quantization;
  std::vector<Token> eos_ids;  // generation_config.json's if it names any, else config.json's
  Token bos_id = -1;           // -1: none

  int group() const { return heads / kv_heads; }
  int qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Whether the layer's feed-forward part is one of experts.
  bool sparse(int layer) const;
};

/// Reads the two files of `folder`, and quantize_config.json where config.json has no
/// quantization_config. Throws ModelError for a file that is missing or malformed, for
/// a size out of bounds, for an architecture that is not served (families() in config.cpp has those
/// that are), and for every setting that would change the mathematics and is not implemented: such
/// a model is refused by the setting's name rather than served wrong.
ModelConfig load_model_config(const std::string& folder);

/// The same from text; `generation` and `quantize` may be empty (no such file). `name` is used in
/// messages.
ModelConfig parse_model_config(const std::string& config, const std::string& generation,
                               const std::string& name, const std::string& quantize = "");

}  // namespace baton
