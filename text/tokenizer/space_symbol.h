// The sign that stands for a space in SentencePiece's vocabularies and those made after them.
#pragma once

#include <string_view>

namespace baton {

inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

/// A space symbol behind something else than one.
inline bool has_inner_space(std::string_view piece) {
  while (piece.substr(0, kSpaceSymbol.size()) == kSpaceSymbol) {
    piece.remove_prefix(kSpaceSymbol.size());
  }
  return piece.find(kSpaceSymbol) != std::string_view::npos;
}

}  // namespace baton
