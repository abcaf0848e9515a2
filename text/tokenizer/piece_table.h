// What each token id is worth as text, and how the texts of many are put together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/types.h"

namespace baton {

/// What one id means to the detokeniser.
enum class PieceKind : std::uint8_t {
  text,     // its bytes are whole characters
  bytes,    // its bytes may be part of a character that goes on in the next piece
  special,  // a control symbol or a turn marker: not part of the text
};

/// How decoding treats spaces at the very start of a text.
enum class LeadingSpace : std::uint8_t {
  keep,
  drop_one,       // one, if the first piece begins with one
  drop_all,       // until some text exists
  drop_in_first,  // all those of the first piece
};

/// How bytes that form no character are replaced by U+FFFD.
enum class InvalidBytes : std::uint8_t {
  each,    // one for every byte
  run,     // one for every byte of the run of byte tokens, also for those of its characters
  prefix,  // one for the longest beginning of a character (the Unicode standard's practice)
};

struct DecodingRule {
  LeadingSpace leading_space = LeadingSpace::keep;
  InvalidBytes invalid = InvalidBytes::each;
  bool special_ends_character = true;  // a special token between two bytes keeps them apart
};

/// Bytes and kind of each id. Ids outside of the table are special and have no bytes.
class PieceTable {
 public:
  explicit PieceTable(DecodingRule decoding) : decoding_(decoding) {}

  /// The next id's piece; false when it is longer than 65,535 bytes. `space`: decoding may drop a
  /// space of it.
  bool add(PieceKind kind, std::string_view bytes, bool space);
  /// `text` stands for `id` where special tokens parse.
  void add_special(std::string_view text, Token id);

  std::size_t size() const { return entries_.size(); }
  const DecodingRule& decoding() const { return decoding_; }
  PieceKind kind(Token id) const {
    const Entry* entry = find(id);
    return entry != nullptr ? entry->kind : PieceKind::special;
  }
  std::string_view bytes(Token id) const {
    const Entry* entry = find(id);
    if (entry == nullptr) return {};
    return std::string_view(text_).substr(entry->offset, entry->length);
  }
  bool begins_with_space(Token id) const {
    const Entry* entry = find(id);
    return entry != nullptr && entry->space;
  }
  /// The longest special token that `text` begins with, or -1.
  Token special_at(std::string_view text, std::size_t* length) const;

 private:
  struct Entry {
    std::uint32_t offset = 0;  // into text_
    std::uint16_t length = 0;
    PieceKind kind = PieceKind::special;
    bool space = false;
  };
  const Entry* find(Token id) const {
    const auto index = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
    return index < entries_.size() ? &entries_[index] : nullptr;
  }

  DecodingRule decoding_;
  std::vector<Entry> entries_;
  std::string text_;
  std::vector<std::pair<std::string, Token>> specials_;  // longest first
};

}  // namespace baton
