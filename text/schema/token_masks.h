// Which tokens may come in a state of an automaton.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/schema/automaton.h"
#include "text/schema/vocabulary.h"

namespace baton::schema {

/// Keeps the masks of states. Not thread-safe.
class TokenMasks {
 public:
  TokenMasks(const Vocabulary& vocabulary, Automaton& automaton, TextSets& text_sets)
      : vocabulary_(vocabulary), automaton_(automaton), text_sets_(text_sets) {}

  /// A node of a trie behind whose text the schema's text may be complete, with nodes below it.
  struct Exit {
    const TokenTrie* trie = nullptr;
    std::uint32_t node = 0;
  };
  struct Found {
    Mask mask;  // without an end
    std::vector<Exit> exits;
  };
  const Found& find(Automaton::State state);
  std::size_t bytes() const;

 private:
  static constexpr std::size_t kKeptBytes = 24U << 20U;
  using Ascii = std::array<TextSet, 128>;
  /// Where a token that started in a string is.
  struct Place {
    TextSet set = kNothing;
    LexState lex = 0;
    bool alive = false;
  };
  /// Bytes after which a set of texts is what it was before.
  using Loops = std::bitset<256>;

  void walk(const TokenTrie& trie, Automaton::State state, Found& found);
  const Mask& inside(TextSet set);
  Mask find_inside(TextSet set);
  bool by_exceptions(TextSet set, Mask& mask);
  void from_nothing(TextSet set, Mask& mask);
  void from_base(TextSet set, TextSet base, Mask& mask);
  std::optional<TextSet> base_of(TextSet set);
  const Ascii& ascii(TextSet set);
  Place next(Place place, unsigned char byte);
  Loops loops(TextSet set);

  const Vocabulary& vocabulary_;
  Automaton& automaton_;
  TextSets& text_sets_;
  std::unordered_map<Automaton::State, Found> masks_;
  std::size_t exits_ = 0;  // of all masks
  std::unordered_map<TextSet, Mask> insides_;
  std::unordered_map<TextSet, std::unique_ptr<Ascii>> ascii_;
  std::vector<Automaton::State> states_;  // of the nodes on the way, by depth
};

}  // namespace baton::schema
