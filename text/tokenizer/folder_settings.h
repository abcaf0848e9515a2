// What the JSON files beside a tokenizer say about it: config.json, generation_config.json and
// tokenizer_config.json of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// What the tokenizer's own file says, where the folder says nothing.
struct TokenizerDefaults {
  std::string file;  // for messages: "tokenizer.model"
  std::uint32_t piece_count = 0;
  Token bos = -1;
  Token eos = -1;
  /// The id of a token; null when tokenizer_config.json's bos_token and eos_token do not count.
  std::function<Token(std::string_view)> id_of;
};

struct FolderSettings {
  TokenFacts facts;                   // add_bos is left to the tokenizer
  bool legacy = true;                 // a dummy prefix after special tokens, too
  std::optional<bool> add_bos_token;  // of tokenizer_config.json, as the next ones
  std::optional<bool> add_eos_token;
  std::string tokenizer_class;  // likewise; empty: not said
  Token bos_token = -1;
  Token eos_token = -1;
};

/// Files that are missing change nothing; ids outside of the vocabulary, or a vocabulary smaller
/// than the tokenizer's, are errors that name the file.
Result<FolderSettings> read_folder_settings(const std::string& dir,
                                            const TokenizerDefaults& defaults);

}  // namespace baton
