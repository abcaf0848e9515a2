// The bytes between the quotes of a JSON string, to its characters.
#pragma once

#include <cstdint>

namespace baton::schema {

/// Where the bytes are inside a character; 0: between two of them.
using LexState = std::uint32_t;

struct LexStep {
  enum class Kind : std::uint8_t { wrong, quote, character, inside };
  Kind kind = Kind::wrong;
  LexState state = 0;      // inside
  char32_t character = 0;  // character
  char32_t first = 1;      // inside: the characters that it may become,
  char32_t last = 0;
  char32_t first_more = 1;  // and these
  char32_t last_more = 0;
};

LexStep lex(LexState state, unsigned char byte);

}  // namespace baton::schema
