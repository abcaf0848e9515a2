// The "added_tokens" of a tokenizer.json: what is found in a text before its words are.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/text_normalizer.h"

namespace baton {

struct AddedToken {
  std::string content;
  std::string form;  // what is looked for: the content, normalised if `normalized`
  Token id = -1;
  bool single_word = false;  // not beside a word character
  bool lstrip = false;       // takes the white space on its left along
  bool rstrip = false;
  bool normalized = false;  // looked for in normalised text
  bool special = false;
};

/// Tokens to look for, all at once. Const and safe for several threads.
class AddedTokenSet {
 public:
  AddedTokenSet() = default;
  /// The tokens must outlive the set.
  explicit AddedTokenSet(std::vector<const AddedToken*> tokens);

  bool empty() const { return sorted_.empty(); }

  struct Match {
    const AddedToken* token = nullptr;  // null: none
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  /// The leftmost, of those the longest, at or behind `from`.
  Match find(std::string_view text, std::size_t from) const;

 private:
  std::vector<const AddedToken*> sorted_;  // by form
  std::array<bool, 256> begins_{};         // some form begins with this byte
};

class AddedTokens {
 public:
  /// Ids must be those that the tokenizers library would give: the vocab's, or the next free ones
  /// in order.
  static Result<AddedTokens> parse(const nlohmann::json& list, const Bpe& bpe,
                                   const TextNormalizer& normalizer, const std::string& where);
  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;

  const std::vector<AddedToken>& all() const { return tokens_; }
  /// To be looked for in a text as it came, and in a normalised one.
  const AddedTokenSet& in_raw_text() const { return raw_; }
  const AddedTokenSet& in_normalised_text() const { return normalised_; }
  /// -1: no such token.
  Token id_of(std::string_view content) const;

 private:
  AddedTokens() = default;
  std::vector<AddedToken> tokens_;
  AddedTokenSet raw_;
  AddedTokenSet normalised_;
};

/// Widens a match by the white space that its token takes along; the left side stays behind `from`.
/// False: its token must be a word of its own, and is not.
bool settle_match(std::string_view text, std::size_t from, AddedTokenSet::Match& match);

}  // namespace baton
