// Which blocks of one worker hold which tokens, so that a later sequence that begins with the same
// tokens can name them instead of computing them again (prefix caching, as in vLLM and SGLang). One
// content may lie in the worker's pool, in its host part, or in both. Where layers have several
// groups, a content has a block for each, and any of them may be missing.
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

/// A trie whose edges are whole blocks of tokens. A key is compared token by token, never by its
/// hash alone: what is found is what was asked for. Nodes are numbered and no number is used twice,
/// so a child whose parent has been forgotten is merely never found again. Both parts share the
/// numbers: of a chain, the beginning may lie in the pool and the end in the host part.
class PrefixIndex {
 public:
  using Node = std::uint64_t;
  static constexpr Node kRoot = 0;
  /// Where one group's part of a content lies.
  struct Place {
    BlockId block = kNoBlock;  // of the pool
    BlockId host = kNoBlock;   // of the host part
    bool none() const { return block == kNoBlock && host == kNoBlock; }
    bool has(BlockId which) const { return block == which || host == which; }
  };
  /// A content that at least one block holds; or, with keep_paths(), that leads to one. What is
  /// said of group 0 is said here, of the others behind it.
  struct Entry : Place {
    Node node = kRoot;
    std::uint32_t children = 0;  // counted with keep_paths() alone
    std::vector<Place> others;

    const Place& at(std::uint32_t group) const {
      static constexpr Place kNowhere;
      return group == 0 ? *this : group <= others.size() ? others[group - 1] : kNowhere;
    }
    Place& make(std::uint32_t group) {
      if (group == 0) return *this;
      if (others.size() < group) others.resize(group);
      return others[group - 1];
    }
    bool bare() const;
  };
  /// Entries without a block that are kept at the most, beside some for each block.
  static constexpr std::size_t kMostBare = 1U << 16U;

  PrefixIndex() = default;
  PrefixIndex(PrefixIndex&&) = default;
  PrefixIndex& operator=(PrefixIndex&&) = default;

  /// What holds `tokens` behind `parent`; nullptr: nothing. `salt` keeps tenants apart: it is part
  /// of a chain's first edge.
  const Entry* find(Node parent, std::string_view salt, std::span<const Token> tokens) const;
  /// Enters a block of the pool, unless one has that content already; returns the node of that
  /// content.
  Node insert(Node parent, std::string_view salt, std::span<const Token> tokens, BlockId block,
              std::uint32_t group = 0);
  /// The node of a content that no block need hold.
  Node pass(Node parent, std::string_view salt, std::span<const Token> tokens);
  /// From now on (nothing is entered yet) a content whose blocks have gone stays as long as others
  /// follow behind it: windows may look at those alone. Too many of them are forgotten all the
  /// same.
  void keep_paths(std::size_t most_bare);
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
  /// Where it and its copy lie, of an entered block.
  const Place& place(BlockId block) const { return place_of(items_[block]->second, block); }
  void forget(BlockId block);
  void clear();
  std::size_t size() const { return entries_.size(); }
  std::size_t bare() const { return bare_; }
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

  static Place& place_of(Entry& entry, BlockId block);
  Item*& item_of(BlockId block);
  Item& enter(Node parent, std::string_view salt, std::span<const Token> tokens);
  void erase(Item* item);
  void sweep();
  void told_stored(const Item& item, const Place& place, bool host);

  Entries entries_;
  std::vector<Item*> items_;  // of each block, into `entries_`; nullptr: it is not in the index
  std::unordered_map<Node, Item*> nodes_;  // with keep_paths()
  std::size_t most_bare_ = 0;              // 0: without
  Node sweep_at_ = 0;                      // no sweep before that many nodes
  std::size_t bare_ = 0;
  Node last_ = kRoot;
  CacheLog* log_ = nullptr;  // null: nobody asks
};

}  // namespace baton
