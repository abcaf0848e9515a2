// config.json and generation_config.json of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/types.h"
#include "workers/model/families/tensor_names.h"
#include "workers/model/spec.h"

namespace baton {

enum class QuantMethod : std::uint8_t { none, gptq, awq, fp8, packed, nvfp4 };

/// How the weights of linear layers are stored; dequantize.h has the formats. A layer whose tensors
/// are plain is read plainly, whatever this says: quantisers leave some out.
struct Quantization {
  QuantMethod method = QuantMethod::none;
  int bits = 4;            // gptq, packed: 4 or 8
  int group = 0;           // gptq, awq, packed: inputs that share a scale; 0: all of them
  int zero_offset = 0;     // gptq: what stored zero points lack
  bool act_order = false;  // gptq: the inputs' groups are in no order; g_idx must be there
  int block_rows = 0;      // fp8: outputs that share a scale; 0: all of them
  int block_columns = 0;   // fp8: inputs that share a scale; 0: all of them
  std::string scale;       // fp8: name of the scales, behind the layer's
  bool symmetric = true;   // packed: there are no zero points
  bool mxfp4 = false;      // the experts alone are in MXFP4, whatever the method
  bool divides =
      false;  // nvfp4: the whole layer's scale divides (compressed-tensors), else it is a factor
};

/// What a model folder says: the mathematics (spec.h), where its tensors are, and how they are
/// stored.
struct ModelConfig : ModelSpec {
  TensorNames names;
  int max_context = 0;  // max_position_embeddings, or how far dynamic or yarn stretch it
  Quantization quantization;
  std::vector<Token> eos_ids;  // generation_config.json's if it names any, else config.json's
  Token bos_id = -1;           // -1: none
  bool gguf = false;           // a GGUF file, not a folder
  bool text_half = false;      // of a model that sees pictures, too: these are not served
};

/// Reads the two files of `folder` (or what a GGUF file becomes, text/gguf/gguf_folder.h), and
/// quantize_config.json where config.json has no quantization_config. Throws ModelError for a file
/// that is missing or malformed, for a size out of bounds, for an architecture that is not served
/// (families/ has those that are), and for every setting that would change the mathematics and is
/// not implemented: such a model is refused by the setting's name rather than served wrong.
ModelConfig load_model_config(const std::string& folder);

/// The same from text; `generation` and `quantize` may be empty (no such file). `name` is used in
/// messages.
ModelConfig parse_model_config(const std::string& config, const std::string& generation,
                               const std::string& name, const std::string& quantize = "");

}  // namespace baton
