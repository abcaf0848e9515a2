#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>
#include <span>
#include <utility>

#include "text/tokenizer/space_symbol.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/word_cache.h"

namespace baton {
namespace {

constexpr std::size_t kShort = 64;  // symbols; longer words get a heap

/// Where the next part of `text` begins: the first space symbol behind something else than one.
std::size_t next_part(std::string_view text) {
  std::size_t from = 0;
  while (text.substr(from, kSpaceSymbol.size()) == kSpaceSymbol) from += kSpaceSymbol.size();
  return std::min(text.find(kSpaceSymbol, from), text.size());
}

}  // namespace

void Bpe::encode(std::string_view word, std::vector<Token>& ids) const {
  while (cuts_before_spaces_ && !word.empty()) {
    const std::size_t part = next_part(word);
    encode_part(word.substr(0, part), ids);
    word.remove_prefix(part);
  }
  if (!word.empty()) encode_part(word, ids);
}

void Bpe::encode_part(std::string_view part, std::vector<Token>& ids) const {
  thread_local WordCache cache;
  const bool cached = part.size() <= WordCache::kMaxBytes;
  if (cached) {
    cache.use_for(instance_);
    const auto known = cache.find(part);
    if (!known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
  }
  const std::size_t before = ids.size();
  const Token whole = ignore_merges_ ? word_id(part) : -1;
  if (whole >= 0) {
    ids.push_back(whole);
  } else {
    thread_local std::vector<Token> symbols;
    symbols.clear();
    first_symbols(part, symbols);
    if (symbols.size() <= kShort) {
      merge_short(symbols);
      ids.insert(ids.end(), symbols.begin(), symbols.end());
    } else {
      merge_long(symbols, ids);
    }
  }
  if (cached) cache.put(part, std::span(ids).subspan(before));
}

// The symbols that a word begins with, before any merge. What has no symbol becomes the unknown
// token, one for each character or one for a run of them; without an unknown token it is lost. All
// of this, with its order, is what the tokenizers library does.
void Bpe::first_symbols(std::string_view part, std::vector<Token>& symbols) const {
  bool unknown = false;  // an unknown token waits to be written
  const auto take = [&](Token id) {
    if (id >= 0) {
      if (unknown) symbols.push_back(unk_);
      unknown = false;
      symbols.push_back(id);
    } else if (unk_ >= 0) {
      if (unknown && !fuse_unk_) symbols.push_back(unk_);
      unknown = true;
    }
  };
  if (byte_level_) {
    for (const char c : part) take(byte_ids_[static_cast<unsigned char>(c)]);
  } else {
    while (!part.empty()) {
      std::string_view rest = part;
      const char32_t character = take_character(rest);
      const std::string_view bytes = part.substr(0, part.size() - rest.size());
      part = rest;
      const Token id = character_id(character, bytes);
      if (id < 0 && byte_fallback_ && std::all_of(bytes.begin(), bytes.end(), [this](char c) {
            return byte_ids_[static_cast<unsigned char>(c)] >= 0;
          })) {
        for (const char c : bytes) symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      } else {
        take(id);
      }
    }
  }
  if (unknown) symbols.push_back(unk_);
}

Token Bpe::character_id(char32_t character, std::string_view bytes) const {
  return character < character_ids_.size() ? character_ids_[character] : id_of(bytes);
}

Token Bpe::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

Token Bpe::word_id(std::string_view word) const {
  if (!byte_level_) return id_of(word);
  const auto found = byte_words_.find(word);
  return found == byte_words_.end() ? -1 : found->second;
}

std::uint32_t Bpe::rank_of(Token left, Token right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t i = slot_of(pair);; i = (i + 1) & (merges_.size() - 1)) {
    if (merges_[i].pair == pair) return merges_[i].rank;
    if (merges_[i].pair == kNoPair) return kNoRank;
  }
}

/// Looks for the best pair again after each merge.
void Bpe::merge_short(std::vector<Token>& symbols) const {
  std::uint32_t ranks[kShort];
  std::size_t size = symbols.size();
  for (std::size_t i = 0; i + 1 < size; ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
  while (size > 1) {
    const auto* best = std::min_element(ranks, ranks + size - 1);
    if (*best == kNoRank) break;
    const auto at = static_cast<std::size_t>(best - ranks);
    symbols[at] = merged_[*best];
    --size;
    std::move(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(size) + 1,
              symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    std::memmove(ranks + at, ranks + at + 1, (size - at) * sizeof(ranks[0]));
    if (at > 0) ranks[at - 1] = rank_of(symbols[at - 1], symbols[at]);
    if (at + 1 < size) ranks[at] = rank_of(symbols[at], symbols[at + 1]);
  }
  symbols.resize(size);
}

/// Neighbours are linked, pairs wait in a heap; one whose rank is no longer that of its place is
/// out of date.
void Bpe::merge_long(const std::vector<Token>& symbols, std::vector<Token>& ids) const {
  struct Node {
    Token id = -1;
    std::uint32_t previous = 0;
    std::uint32_t next = 0;
    std::uint32_t rank = kNoRank;  // of the pair with the next one
  };
  const auto size = static_cast<std::uint32_t>(symbols.size());
  std::vector<Node> nodes(size);
  std::vector<std::uint64_t> waiting;  // rank << 32 | place
  const auto look = [&](std::uint32_t at) {
    Node& node = nodes[at];
    node.rank = node.next < size ? rank_of(node.id, nodes[node.next].id) : kNoRank;
    return node.rank != kNoRank;
  };
  for (std::uint32_t i = 0; i < size; ++i) nodes[i] = {symbols[i], i - 1, i + 1, kNoRank};
  for (std::uint32_t i = 0; i < size; ++i) {
    if (look(i)) waiting.push_back(std::uint64_t{nodes[i].rank} << 32 | i);
  }
  std::priority_queue heap(std::greater<>(), std::move(waiting));
  while (!heap.empty()) {
    const auto rank = static_cast<std::uint32_t>(heap.top() >> 32);
    const auto at = static_cast<std::uint32_t>(heap.top());
    heap.pop();
    Node& node = nodes[at];
    if (node.rank != rank) continue;
    Node& eaten = nodes[node.next];
    node.id = merged_[rank];
    node.next = eaten.next;
    eaten.id = -1;
    eaten.rank = kNoRank;
    if (node.next < size) nodes[node.next].previous = at;
    if (look(at)) heap.push(std::uint64_t{node.rank} << 32 | at);
    if (at > 0 && look(node.previous)) {
      heap.push(std::uint64_t{nodes[node.previous].rank} << 32 | node.previous);
    }
  }
  for (const Node& node : nodes) {
    if (node.id >= 0) ids.push_back(node.id);
  }
}

}  // namespace baton
