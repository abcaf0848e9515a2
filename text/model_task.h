// What a checkpoint is served for, and what its folder says about that.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/status.h"

namespace baton {

enum class ModelTask : std::uint8_t {
  generate = 0,  // text
  embed = 1,     // a vector of a text: what the final norm gives for its last token, of length 1
  rerank = 2,    // how well a document fits a query: "yes" against "no" as the next token
};

inline const char* to_string(ModelTask task) {
  switch (task) {
    case ModelTask::generate:
      return "generate";
    case ModelTask::embed:
      return "embed";
    case ModelTask::rerank:
      return "rerank";
  }
  return "unknown";
}

/// `asked`: model_task of the configuration. "auto" is embed for a folder of sentence-transformers
/// (one with modules.json), else generate. Errors: a folder that pools or goes on in another way
/// than by the last token and a length of 1, where it is asked for vectors.
Result<ModelTask> find_task(const std::string& folder, const std::string& asked);

/// Values of a vector: hidden_size of config.json, 1 to SamplingParams::kMaxPooled.
Result<std::uint32_t> vector_size(const std::string& folder);

}  // namespace baton
