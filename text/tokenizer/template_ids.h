// The "post_processor" of a tokenizer.json: what is put around a prompt.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

struct TemplateIds {
  std::vector<Token> before;
  std::vector<Token> behind;
};

/// TemplateProcessing (of a single text), ByteLevel (which only moves offsets) and Sequence.
Result<TemplateIds> read_template(const nlohmann::json& spec, const std::string& where);

}  // namespace baton
