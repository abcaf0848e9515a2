// The tokenizer of a folder with a sentencepiece model.
#pragma once

#include <memory>
#include <string>

#include "ipc/status.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// Reads tokenizer.model of `dir` and the settings beside it.
Result<std::unique_ptr<Tokenizer>> load_sentencepiece_tokenizer(const std::string& dir);

}  // namespace baton
