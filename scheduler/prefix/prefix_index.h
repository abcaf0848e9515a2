// Which blocks of one worker hold which tokens, so that a later sequence that begins with the same
// tokens can name them instead of computing them again (prefix caching, as in vLLM and SGLang). One
// content may lie in the worker's pool, in its host part, or in both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ipc/types.h"
#include "scheduler/prefix/cache_log.h"

namespace baton {

constexpr BlockId kNoBlock = 0xFFFFFFFF;

/// A trie whose edges are whole blocks of tokens. A key is compared token by token, never by its
/// hash alone: what is found is what was asked for. Nodes are numbered and no number is used twice,
/// so a child whose parent has been forgotten is merely never found again. Both parts share the
/// numbers: of a chain, the beginning may lie in the pool and the end in the host part.
class PrefixIndex {
 public:
  using Node = std::uint64_t;
  static constexpr Node kRoot = 0;
  /// A content that at least one block holds.
  struct Entry {
    Node node = kRoot;
    BlockId block = kNoBlock;  // of the pool
    BlockId host = kNoBlock;   // of the host part
  };

  PrefixIndex() = default;
  PrefixIndex(PrefixIndex&&) = default;
  PrefixIndex& operator=(PrefixIndex&&) = default;

  /// What holds `tokens` behind `parent`; nullptr: nothing. `salt` keeps tenants apart: it is part
  /// of a chain's first edge.
  const Entry* find(Node parent, std::string_view salt, std::span<const Token> tokens) const;
  /// Enters a block of the pool, unless one has that content already; returns the node of that
  /// content.
  Node insert(Node parent, std::string_view salt, std::span<const Token> tokens, BlockId block);
  /// `host`, a block of the host part that is not entered, gets the content of the entered block
  /// `of`.
  void copy_to_host(BlockId of, BlockId host);
  /// `block`, one of the pool that is not entered, gets the content of the entered block `host`.
  void copy_from_host(BlockId host, BlockId block);
  bool holds(BlockId block) const { return entry(block) != nullptr; }
  /// What `block`, of either part, is entered for; nullptr: nothing.
  const Entry* entry(BlockId block) const {
    return block < items_.size() && items_[block] != nullptr ? &items_[block]->second : nullptr;
  }
  void forget(BlockId block);
  void clear();
  std::size_t size() const { return entries_.size(); }
  /// From now on `log`, which must outlive the index, is told what it holds. It holds nothing yet.
  void tell(CacheLog* log) { log_ = log; }

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

  using Entries = std::unordered_map<Key, Entry, Hash, Equal>;
  using Item = Entries::value_type;

  Item*& item_of(BlockId block);
  void told_stored(const Item& item, bool host);

  Entries entries_;
  std::vector<Item*> items_;  // of each block, into `entries_`; nullptr: it is not in the index
  Node last_ = kRoot;
  CacheLog* log_ = nullptr;  // null: nobody asks
};

}  // namespace baton
