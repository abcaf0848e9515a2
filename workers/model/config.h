// config.json and generation_config.json of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/types.h"

namespace baton {

enum class RopeType : std::uint8_t { none, linear, llama3 };

/// How positions become angles. `factor` and below are used by scaled types only.
struct RopeConfig {
  RopeType type = RopeType::none;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;      // llama3
  double high_freq_factor = 4.0;     // llama3
  double original_context = 8192.0;  // llama3: positions of the model before scaling
};

/// What the forward pass and the front end need to know about a Llama-architecture model.
struct ModelConfig {
  int hidden = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int intermediate = 0;
  int vocab = 0;
  int max_context = 0;  // max_position_embeddings
  double rms_eps = 1e-6;
  bool tied_embeddings = false;  // lm_head is the embedding table
  RopeConfig rope;
  std::vector<Token> eos_ids;  // generation_config.json's if it names any, else config.json's
  Token bos_id = -1;           // -1: none

  int group() const { return heads / kv_heads; }
  int qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// Reads the two files of `folder`. Throws ModelError for a file that is missing or malformed, for
/// a size out of bounds, and for every setting that would change the mathematics and is not
/// implemented: such a model is refused by the setting's name rather than served wrong.
ModelConfig load_model_config(const std::string& folder);

/// The same from text; `generation` may be empty (no such file). `name` is used in messages.
ModelConfig parse_model_config(const std::string& config, const std::string& generation,
                               const std::string& name);

}  // namespace baton
