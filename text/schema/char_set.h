// Sets of code points, as a pattern's classes write them.
#pragma once

#include "text/schema/regex_nfa.h"

namespace baton::schema {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

/// In order, joined, and without surrogates, which no JSON text can hold.
CharSet normal(CharSet set);
CharSet inverse(const CharSet& set);
CharSet digit_chars();
CharSet word_chars();
CharSet space_chars();
/// All but the ends of lines.
CharSet dot_chars();
inline CharSet all_chars() { return inverse({}); }

}  // namespace baton::schema
