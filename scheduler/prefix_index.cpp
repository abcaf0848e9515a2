#include "scheduler/prefix_index.h"

#include <algorithm>

namespace baton {

std::size_t PrefixIndex::Hash::operator()(const KeyView& key) const {
  std::uint64_t hash = 0x9E3779B97F4A7C15U ^ key.parent;
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0xFF51AFD7ED558CCDU;
    hash ^= hash >> 32U;
  };
  for (const Token token : key.tokens) mix(static_cast<std::uint32_t>(token));
  mix(std::hash<std::string_view>()(key.salt));
  return hash;
}

bool PrefixIndex::Equal::operator()(const KeyView& a, const KeyView& b) const {
  return a.parent == b.parent && a.salt == b.salt &&
         std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
}

const PrefixIndex::Entry* PrefixIndex::find(Node parent, std::string_view salt,
                                            std::span<const Token> tokens) const {
  const auto it = entries_.find(KeyView{parent, salt_at(parent, salt), tokens});
  return it == entries_.end() ? nullptr : &it->second;
}

PrefixIndex::Node PrefixIndex::insert(Node parent, std::string_view salt,
                                      std::span<const Token> tokens, BlockId block) {
  if (const Entry* entry = find(parent, salt, tokens)) return entry->node;
  if (keys_.size() <= block) keys_.resize(std::size_t{block} + 1, nullptr);
  const auto it =
      entries_
          .emplace(Key{parent, std::string(salt_at(parent, salt)), {tokens.begin(), tokens.end()}},
                   Entry{++last_, block})
          .first;
  keys_[block] = &it->first;
  return it->second.node;
}

void PrefixIndex::forget(BlockId block) {
  if (!holds(block)) return;
  entries_.erase(entries_.find(keys_[block]->view()));
  keys_[block] = nullptr;
}

void PrefixIndex::clear() {
  entries_.clear();
  keys_.clear();
}

}  // namespace baton
