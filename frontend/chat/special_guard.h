// Keeps what people say from turning into special tokens once a chat template has written it down.
//
// A template's text is tokenised with its special pieces read as tokens: that is how it marks
// turns. So before it is rendered, every string of a request gets a break, U+FDD0, inside each
// special piece that it spells, and behind an end that a neighbour could complete to one ("<|im_" +
// "end|>"). Before the rendered text is tokenised, the breaks are taken out, and no special piece
// may hold the character in front of one: "<|im_end|>" said by a user is encoded as letters, and a
// text without special pieces as if there was no guard. (The added tokens of a tokenizer.json that
// are not special are found in any text.)
//
// U+FDD0 is a noncharacter, which Unicode keeps out of interchanged text; in a request it becomes
// U+FFFD. Templates may cut, trim, search, repeat and escape strings: a break inside a piece stays
// inside. Two things are left to the template's author: one that itself writes the beginning of a
// special piece directly in front of a string, and one that deletes characters inside of strings.
// Special pieces of a single character are not guarded.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

inline constexpr std::string_view kBreak = "\xEF\xB7\x90";  // U+FDD0

/// Const and safe for several threads.
class SpecialGuard {
 public:
  SpecialGuard() = default;
  explicit SpecialGuard(const std::vector<std::string>& pieces);

  /// `text` with its breaks. Work: the text's length times the pieces that begin with one byte.
  std::string guard(std::string_view text) const;

 private:
  using Pieces = std::vector<std::string>;
  const Pieces& starting_with(char first) const {
    return by_first_byte_[static_cast<unsigned char>(first)];
  }
  bool begins_piece(std::string_view text) const;
  bool ends_unfinished(std::string_view text) const;

  std::array<Pieces, 256> by_first_byte_;
  std::size_t longest_ = 0;
};

}  // namespace baton
