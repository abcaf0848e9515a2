#include "text/schema/vocabulary.h"

#include <algorithm>
#include <utility>

#include "text/schema/string_lexer.h"

namespace baton::schema {

void TokenTrie::build(const std::vector<std::string>& texts, std::vector<std::uint32_t> ids) {
  std::sort(ids.begin(), ids.end(),
            [&](std::uint32_t a, std::uint32_t b) { return texts[a] < texts[b]; });
  tokens = std::move(ids);
  std::vector<std::uint32_t> open;  // nodes of the text before
  std::string_view before;
  for (std::uint32_t at = 0; at < tokens.size(); ++at) {
    const std::string_view text = texts[tokens[at]];
    std::size_t common = 0;
    while (common < text.size() && common < before.size() && text[common] == before[common]) {
      ++common;
    }
    for (; open.size() > common; open.pop_back()) {
      nodes[open.back()].skip = static_cast<std::uint32_t>(nodes.size());
    }
    for (std::size_t i = common; i < text.size(); ++i) {
      open.push_back(static_cast<std::uint32_t>(nodes.size()));
      nodes.push_back(
          {0, at, static_cast<std::uint16_t>(i + 1), static_cast<unsigned char>(text[i])});
    }
    deepest = std::max(deepest, text.size());
    before = text;
  }
  for (; !open.empty(); open.pop_back()) {
    nodes[open.back()].skip = static_cast<std::uint32_t>(nodes.size());
  }
  nodes.push_back(
      {static_cast<std::uint32_t>(nodes.size()), static_cast<std::uint32_t>(tokens.size()), 0, 0});
}

Vocabulary::Vocabulary(std::vector<std::string> texts, std::uint32_t size,
                       std::map<std::string, std::uint32_t, std::less<>> specials)
    : size_(size),
      texts_(std::move(texts)),
      specials_(std::move(specials)),
      with_text_((size + 31U) / 32U, 0),
      free_((size + 31U) / 32U, 0) {
  for (const auto& [text, token] : specials_) special_tokens_.insert(token);
  constexpr std::size_t kLongest = 60'000;  // bytes: a depth is 16 bits
  std::vector<std::uint32_t> ids;
  std::vector<std::uint32_t> quoted;
  std::vector<std::uint32_t> plain;
  lengths_.assign(texts_.size(), 0);
  for (std::uint32_t id = 0; id < texts_.size() && id < size; ++id) {
    const std::string& text = texts_[id];
    if (text.empty() || text.size() > kLongest) continue;
    ids.push_back(id);
    set_bit(with_text_.data(), id);
    std::array<bool, 256> held{};
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (!std::exchange(held[byte], true)) all_holding_[byte].push_back(id);
    }
    if (text.find('"') != text.npos) {
      quoted.push_back(id);
      continue;
    }
    plain.push_back(id);
    LexState state = 0;
    std::uint32_t characters = 0;
    bool fits = true;
    for (const char c : text) {
      const LexStep step = lex(state, static_cast<unsigned char>(c));
      fits = fits && (step.kind == LexStep::Kind::character || step.kind == LexStep::Kind::inside);
      if (step.kind == LexStep::Kind::character) ++characters;
      state = step.state;
    }
    if (!fits) continue;
    if (state != 0) ++characters;
    lengths_[id] = static_cast<std::uint16_t>(characters);
    longest_ = std::max(longest_, characters);
    set_bit(free_.data(), id);
    ++free_count_;
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (held[byte]) holding_[byte].push_back(id);
    }
  }
  all_.build(texts_, std::move(ids));
  with_quote_.build(texts_, std::move(quoted));
  without_quote_.build(texts_, std::move(plain));
}

std::function<std::optional<std::uint32_t>(std::string_view)> Vocabulary::special_ids() const {
  return [this](std::string_view text) -> std::optional<std::uint32_t> {
    const auto found = specials_.find(text);
    if (found == specials_.end()) return std::nullopt;
    return found->second;
  };
}

const Mask& Vocabulary::of_at_most(std::uint32_t characters) const {
  const std::lock_guard lock(mutex_);
  const auto [it, added] = short_.try_emplace(characters);
  if (added) {
    it->second.assign(mask_words(), 0);
    for (std::uint32_t id = 0; id < lengths_.size(); ++id) {
      if (lengths_[id] > 0 && lengths_[id] <= characters) set_bit(it->second.data(), id);
    }
  }
  return it->second;
}

}  // namespace baton::schema
