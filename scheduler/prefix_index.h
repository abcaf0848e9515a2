// Which blocks of one pool hold which tokens, so that a later sequence that begins with the same tokens
// can name them instead of computing them again (prefix caching, as in vLLM and SGLang).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ipc/types.h"

namespace baton {

/// A trie whose edges are whole blocks of tokens. A key is compared token by token, never by its hash
/// alone: what is found is what was asked for. Nodes are numbered and no number is used twice, so a child
/// whose parent has been forgotten is merely never found again.
class PrefixIndex {
 public:
  using Node = std::uint64_t;
  static constexpr Node kRoot = 0;
  struct Entry {
    Node node = kRoot;
    BlockId block = 0;
  };

  PrefixIndex() = default;
  PrefixIndex(PrefixIndex&&) = default;
  PrefixIndex& operator=(PrefixIndex&&) = default;

  /// The block that holds `tokens` behind `parent`; nullptr: none. `salt` keeps tenants apart: it is part
  /// of a chain's first edge.
  const Entry* find(Node parent, std::string_view salt, std::span<const Token> tokens) const;
  /// Enters a block, unless its content is there already; returns the node of that content.
  Node insert(Node parent, std::string_view salt, std::span<const Token> tokens, BlockId block);
  bool holds(BlockId block) const { return block < keys_.size() && keys_[block] != nullptr; }
  void forget(BlockId block);
  void clear();
  std::size_t size() const { return entries_.size(); }

 private:
  static std::string_view salt_at(Node parent, std::string_view salt) {
    return parent == kRoot ? salt : std::string_view();
  }

  struct KeyView {
    Node parent;
    std::string_view salt;
    std::span<const Token> tokens;
  };
  struct Key {
    Node parent;
    std::string salt;
    std::vector<Token> tokens;
    KeyView view() const { return {parent, salt, tokens}; }
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const KeyView& key) const;
    std::size_t operator()(const Key& key) const { return (*this)(key.view()); }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const KeyView& a, const KeyView& b) const;
    bool operator()(const Key& a, const Key& b) const { return (*this)(a.view(), b.view()); }
    bool operator()(const Key& a, const KeyView& b) const { return (*this)(a.view(), b); }
    bool operator()(const KeyView& a, const Key& b) const { return (*this)(a, b.view()); }
  };

  std::unordered_map<Key, Entry, Hash, Equal> entries_;
  std::vector<const Key*> keys_;  // of each block, into `entries_`; nullptr: it is not in the index
  Node last_ = kRoot;
};

}  // namespace baton
