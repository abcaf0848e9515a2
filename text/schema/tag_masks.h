// Which tokens may come in a state of a structural tag; a token may cross the border between two of
// its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "text/schema/tag_automaton.h"
#include "text/schema/token_masks.h"
#include "text/schema/vocabulary.h"

namespace baton::schema {

/// Keeps the masks of states. Not thread-safe.
class TagMasks {
 public:
  TagMasks(const Vocabulary& vocabulary, TagAutomaton& automaton);

  /// Without an end.
  const Mask& mask(TagAutomaton::State state);
  std::size_t bytes() const;

 private:
  using State = TagAutomaton::State;
  using Item = TagAutomaton::Item;
  static constexpr std::size_t kKeptBytes = 16U << 20U;

  void add_item(const Item& item, Mask& mask);
  void add_schema(const Item& item, Mask& mask);
  void add_specials(const TagNfa::Node& node, Mask& mask);
  void walk(const TokenTrie& trie, std::uint32_t first, std::uint32_t last, std::size_t depth,
            State state, Mask& mask);
  /// Of free text in which no mark has begun.
  const Mask& text_mask(std::uint32_t root);
  void add_text(std::uint32_t node, Mask& mask);
  bool allows(State state, std::string_view text);

  const Vocabulary& vocabulary_;
  TagAutomaton& automaton_;
  std::vector<std::unique_ptr<TokenMasks>> schemas_;
  std::unordered_map<State, Mask> masks_;
  std::unordered_map<std::uint32_t, Mask> texts_;  // by root
  std::vector<State> states_;                      // of the nodes on the way, by depth
};

}  // namespace baton::schema
