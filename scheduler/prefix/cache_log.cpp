#include "scheduler/prefix/cache_log.h"

namespace baton {

ContentHash hash_content(std::optional<ContentHash> parent, std::string_view salt,
                         std::span<const Token> tokens) {
  ContentHash hash = 0x9E3779B97F4A7C15U;
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0xFF51AFD7ED558CCDU;
    hash ^= hash >> 32U;
  };
  if (parent) {
    mix(*parent);
  } else {
    mix(salt.size());
    for (const char c : salt) mix(static_cast<unsigned char>(c));
  }
  for (const Token token : tokens) mix(static_cast<std::uint32_t>(token));
  return hash;
}

void CacheLog::passed(Node node, Node parent, std::string_view salt,
                      std::span<const Token> tokens) {
  Content content;
  if (parent != kRoot) {
    const auto before = contents_.find(parent);
    if (before == contents_.end()) return;
    content.parent = before->second.hash;
  }
  content.hash = hash_content(content.parent, salt, tokens);
  contents_.emplace(node, content);
}

void CacheLog::stored(Node node, Node parent, std::string_view salt, std::span<const Token> tokens,
                      bool host) {
  if (!contents_.contains(node)) passed(node, parent, salt, tokens);
  const auto known = contents_.find(node);
  if (known == contents_.end()) return;
  const auto& [hash, behind] = known->second;
  if (++holders_[hash][host ? 1 : 0] > 1) return;
  add({CacheEvent::What::stored, host, hash, behind, {tokens.begin(), tokens.end()}});
}

void CacheLog::removed(Node node, bool host) {
  const auto known = contents_.find(node);
  if (known == contents_.end()) return;
  const ContentHash hash = known->second.hash;
  const auto holders = holders_.find(hash);
  if (holders == holders_.end() || holders->second[host ? 1 : 0] == 0) return;
  if (--holders->second[host ? 1 : 0] > 0) return;
  if (holders->second[host ? 0 : 1] == 0) holders_.erase(holders);
  add({CacheEvent::What::removed, host, hash, std::nullopt, {}});
}

void CacheLog::cleared() {
  const bool told = !holders_.empty();
  contents_.clear();
  holders_.clear();
  if (told) add({});
}

std::optional<ContentHash> CacheLog::hash_of(Node node) const {
  const auto known = contents_.find(node);
  return known == contents_.end() ? std::nullopt : std::optional(known->second.hash);
}

void CacheLog::add(CacheEvent&& event) {
  if (event.what == CacheEvent::What::cleared) events_.clear();
  if (events_.size() == kMostEvents) {
    contents_.clear();
    holders_.clear();
    events_.clear();
    event = {};
  }
  events_.push_back(std::move(event));
}

}  // namespace baton
