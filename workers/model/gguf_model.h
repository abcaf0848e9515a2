// A GGUF file as a checkpoint: its tensors under the names of the model folder that it was made
// from.
#pragma once

#include <map>
#include <string>

#include "text/gguf/gguf_file.h"
#include "workers/model/config.h"
#include "workers/model/safetensors.h"

namespace baton {

/// What the file's tensors say about the mathematics, and what its converter has changed: angles'
/// factors are tensors, Gemma's norms have their one added. Throws ModelError.
void finish_gguf_config(const GgufFile& file, const std::string& path, ModelConfig& config);

/// All tensors but those that finish_gguf_config() reads. Experts that lie in one tensor become one
/// each. What no folder has keeps its name, so that whoever reads the checkpoint refuses it.
std::map<std::string, TensorView> gguf_tensors(const GgufFile& file, const std::string& path,
                                               const ModelConfig& config);

}  // namespace baton
