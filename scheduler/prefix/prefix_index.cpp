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

bool PrefixIndex::Entry::bare() const {
  return none() &&
         std::all_of(others.begin(), others.end(), [](const Place& p) { return p.none(); });
}

PrefixIndex::Place& PrefixIndex::place_of(Entry& entry, BlockId block) {
  const auto has = [&](const Place& p) { return p.has(block); };
  if (entry.has(block)) return entry;
  return *std::find_if(entry.others.begin(), entry.others.end(), has);
}

void PrefixIndex::keep_paths(std::size_t most_bare) { most_bare_ = most_bare; }

/// The entry of that content, a bare one if there is none yet.
PrefixIndex::Item& PrefixIndex::enter(Node parent, std::string_view salt,
                                      std::span<const Token> tokens) {
  const auto it = entries_.find(KeyView{parent, salt_at(parent, salt), tokens});
  if (it != entries_.end()) return *it;
  Key key{parent, std::string(salt_at(parent, salt)), {tokens.begin(), tokens.end()}};
  Entry fresh;
  fresh.node = ++last_;
  Item& item = *entries_.emplace(std::move(key), std::move(fresh)).first;
  if (log_ != nullptr) {
    log_->passed(item.second.node, parent, item.first.salt, item.first.tokens);
  }
  if (most_bare_ == 0) return item;
  ++bare_;
  nodes_.emplace(item.second.node, &item);
  const auto above = nodes_.find(parent);
  if (above != nodes_.end()) ++above->second->second.children;
  return item;
}

PrefixIndex::Node PrefixIndex::insert(Node parent, std::string_view salt,
                                      std::span<const Token> tokens, BlockId block,
                                      std::uint32_t group) {
  Item& item = enter(parent, salt, tokens);
  Entry& entry = item.second;
  if (entry.at(group).block != kNoBlock) return entry.node;
  // It may be entered behind a parent that has been forgotten and has come again under another
  // number: what nobody can find any more makes way, and does not take this entry along.
  ++entry.children;
  forget(block);
  --entry.children;
  if (most_bare_ != 0 && entry.bare()) --bare_;
  Place& place = entry.make(group);
  place.block = block;
  item_of(block) = &item;
  told_stored(item, place, /*host=*/false);
  return entry.node;
}

PrefixIndex::Node PrefixIndex::pass(Node parent, std::string_view salt,
                                    std::span<const Token> tokens) {
  if (const Entry* known = find(parent, salt, tokens)) return known->node;
  if (bare_ >= most_bare_ && last_ >= sweep_at_) {
    sweep();
    sweep_at_ = last_ + most_bare_ / 4;  // one that found little is not tried for each column
  }
  if (bare_ >= most_bare_) return ++last_;  // what follows is found by nobody
  return enter(parent, salt, tokens).second.node;
}

void PrefixIndex::told_stored(const Item& item, const Place& place, bool host) {
  if (log_ == nullptr || &place != &item.second) return;  // a router hears of the first group alone
  log_->stored(item.second.node, item.first.parent, item.first.salt, item.first.tokens, host);
}

void PrefixIndex::copy_to_host(BlockId of, BlockId host) {
  Item* item = items_[of];
  Place& place = place_of(item->second, of);
  place.host = host;
  item_of(host) = item;
  told_stored(*item, place, /*host=*/true);
}

void PrefixIndex::copy_from_host(BlockId host, BlockId block) {
  Item* item = items_[host];
  Place& place = place_of(item->second, host);
  place.block = block;
  item_of(block) = item;
  told_stored(*item, place, /*host=*/false);
}

void PrefixIndex::forget(BlockId block) {
  if (!holds(block)) return;
  Item* item = std::exchange(items_[block], nullptr);
  Entry& entry = item->second;
  Place& place = place_of(entry, block);
  const bool host = place.block != block;
  (host ? place.host : place.block) = kNoBlock;
  if (log_ != nullptr && &place == &entry) log_->removed(entry.node, host);
  if (!entry.bare()) return;
  if (most_bare_ != 0) ++bare_;
  if (most_bare_ == 0 || entry.children == 0 || bare_ > most_bare_) erase(item);
}

/// A bare entry goes, and with it those before it that lead nowhere else.
void PrefixIndex::erase(Item* item) {
  while (item != nullptr) {
    const Node parent = item->first.parent;
    if (log_ != nullptr) log_->forgotten(item->second.node);
    if (most_bare_ != 0) {
      --bare_;
      nodes_.erase(item->second.node);
    }
    entries_.erase(entries_.find(item->first.view()));
    const auto above = nodes_.find(parent);
    if (above == nodes_.end()) return;
    Entry& entry = above->second->second;
    item = --entry.children == 0 && entry.bare() ? above->second : nullptr;
  }
}

/// Entries that have led to nothing in the end: whoever passed them entered no block behind them.
void PrefixIndex::sweep() {
  std::vector<Item*> ends;
  for (Item& item : entries_) {
    if (item.second.children == 0 && item.second.bare()) ends.push_back(&item);
  }
  for (Item* item : ends) erase(item);
}

void PrefixIndex::clear() {
  entries_.clear();
  items_.clear();
  nodes_.clear();
  bare_ = 0;
  if (log_ != nullptr) log_->cleared();
}

}  // namespace baton
