// The tokenizer of a folder with a tokenizer.json, the format of Hugging Face's tokenizers library.
#pragma once

#include <memory>
#include <string>

#include "ipc/status.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// Reads tokenizer.json of `dir` and the settings beside it: BPE models, byte-level or with byte
/// fallback. ErrorCode::unavailable: the file is sound, but a kind that is not served; the message
/// names what. `truncation` and `padding` are not applied, nor does transformers unless it is
/// asked.
Result<std::unique_ptr<Tokenizer>> load_hf_tokenizer(const std::string& dir);

/// Every added token of `dir`'s tokenizer.json has an id below `count`.
bool hf_tokens_are_below(const std::string& dir, std::size_t count);

}  // namespace baton
