#include "frontend/chat/special_guard.h"

#include <algorithm>

#include "ipc/utf8.h"

namespace baton {
namespace {

std::size_t first_character(std::string_view text) {
  return std::max<std::size_t>(1, scan_utf8(text.substr(0, 4)).length);
}

}  // namespace

SpecialGuard::SpecialGuard(const std::vector<std::string>& pieces) {
  for (const std::string& piece : pieces) {
    if (piece.empty() || first_character(piece) == piece.size()) continue;
    by_first_byte_[static_cast<unsigned char>(piece.front())].push_back(piece);
    longest_ = std::max(longest_, piece.size());
  }
}

bool SpecialGuard::begins_piece(std::string_view text) const {
  const Pieces& pieces = starting_with(text.front());
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const std::string& piece) { return text.starts_with(piece); });
}

/// Some end of the text is the beginning of a piece.
bool SpecialGuard::ends_unfinished(std::string_view text) const {
  const std::size_t from = text.size() - std::min(text.size(), longest_);
  for (std::size_t i = from; i < text.size(); ++i) {
    const std::string_view end = text.substr(i);
    for (const std::string& piece : starting_with(end.front())) {
      if (piece.size() > end.size() && piece.starts_with(end)) return true;
    }
  }
  return false;
}

std::string SpecialGuard::guard(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  const bool open_end = ends_unfinished(text);
  while (!text.empty()) {
    std::size_t length = 1;
    if (text.starts_with(kBreak)) {
      out += kReplacementCharacter;
      length = kBreak.size();
    } else if (begins_piece(text)) {
      length = first_character(text);
      out += text.substr(0, length);
      out += kBreak;
    } else {
      out.push_back(text.front());
    }
    text.remove_prefix(length);
  }
  if (open_end) out += kBreak;
  return out;
}

}  // namespace baton
