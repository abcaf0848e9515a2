#include "scheduler/prefix/prefix_index.h"

#include <algorithm>
#include <utility>

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

PrefixIndex::Item*& PrefixIndex::item_of(BlockId block) {
  if (items_.size() <= block) items_.resize(std::size_t{block} + 1, nullptr);
  return items_[block];
}

PrefixIndex::Node PrefixIndex::insert(Node parent, std::string_view salt,
                                      std::span<const Token> tokens, BlockId block) {
  auto it = entries_.find(KeyView{parent, salt_at(parent, salt), tokens});
  if (it == entries_.end()) {
    Key key{parent, std::string(salt_at(parent, salt)), {tokens.begin(), tokens.end()}};
    it = entries_.emplace(std::move(key), Entry{++last_, kNoBlock, kNoBlock}).first;
  }
  if (it->second.block == kNoBlock) {
    // It may be entered behind a parent that has been forgotten and has come again under another
    // number: what nobody can find any more makes way.
    forget(block);
    it->second.block = block;
    item_of(block) = &*it;
    told_stored(*it, /*host=*/false);
  }
  return it->second.node;
}

void PrefixIndex::told_stored(const Item& item, bool host) {
  if (log_ == nullptr) return;
  log_->stored(item.second.node, item.first.parent, item.first.salt, item.first.tokens, host);
}

void PrefixIndex::copy_to_host(BlockId of, BlockId host) {
  Item* item = items_[of];
  item->second.host = host;
  item_of(host) = item;
  told_stored(*item, /*host=*/true);
}

void PrefixIndex::copy_from_host(BlockId host, BlockId block) {
  Item* item = items_[host];
  item->second.block = block;
  item_of(block) = item;
  told_stored(*item, /*host=*/false);
}

void PrefixIndex::forget(BlockId block) {
  if (!holds(block)) return;
  Item* item = std::exchange(items_[block], nullptr);
  Entry& entry = item->second;
  const bool host = entry.block != block;
  (host ? entry.host : entry.block) = kNoBlock;
  if (log_ != nullptr) log_->removed(entry.node, host);
  if (entry.block != kNoBlock || entry.host != kNoBlock) return;
  if (log_ != nullptr) log_->forgotten(entry.node);
  entries_.erase(entries_.find(item->first.view()));
}

void PrefixIndex::clear() {
  entries_.clear();
  items_.clear();
  if (log_ != nullptr) log_->cleared();
}

}  // namespace baton
