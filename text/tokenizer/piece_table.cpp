#include "text/tokenizer/piece_table.h"

#include <algorithm>
#include <limits>

namespace baton {

bool PieceTable::add(PieceKind kind, std::string_view bytes, bool space) {
  if (bytes.size() > std::numeric_limits<std::uint16_t>::max()) return false;
  entries_.push_back({static_cast<std::uint32_t>(text_.size()),
                      static_cast<std::uint16_t>(bytes.size()), kind, space});
  text_ += bytes;
  return true;
}

void PieceTable::add_special(std::string_view text, Token id) {
  const auto shorter =
      std::find_if(specials_.begin(), specials_.end(),
                   [text](const auto& special) { return special.first.size() < text.size(); });
  specials_.emplace(shorter, text, id);
}

Token PieceTable::special_at(std::string_view text, std::size_t* length) const {
  for (const auto& [special, id] : specials_) {
    if (text.substr(0, special.size()) == special) {
      *length = special.size();
      return id;
    }
  }
  return -1;
}

}  // namespace baton
