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
  TokenMasks(const Vocabulary& vocabulary, Automaton& automaton, Languages& languages)
      : vocabulary_(vocabulary), automaton_(automaton), languages_(languages) {}

  /// Without an end.
  const Mask& mask(Automaton::State state);
  std::size_t bytes() const;

 private:
  static constexpr std::size_t kKeptBytes = 24U << 20U;
  using Ascii = std::array<Lang, 128>;
  /// Where a token that started in a string is.
  struct Place {
    Lang set = kNothing;
    LexState lex = 0;
    bool alive = false;
  };
  /// Bytes after which a set of texts is what it was before.
  using Loops = std::bitset<256>;

  void walk(const TokenTrie& trie, Automaton::State state, std::uint32_t* mask);
  const Mask& inside(Lang set);
  Mask find_inside(Lang set);
  bool by_exceptions(Lang set, Mask& mask);
  void from_nothing(Lang set, Mask& mask);
  void from_base(Lang set, Lang base, Mask& mask);
  std::optional<Lang> base_of(Lang set);
  const Ascii& ascii(Lang set);
  Place next(Place place, unsigned char byte);
  Loops loops(Lang set);

  const Vocabulary& vocabulary_;
  Automaton& automaton_;
  Languages& languages_;
  std::unordered_map<Automaton::State, Mask> masks_;
  std::unordered_map<Lang, Mask> insides_;
  std::unordered_map<Lang, std::unique_ptr<Ascii>> ascii_;
  std::vector<Automaton::State> states_;  // of the nodes on the way, by depth
};

}  // namespace baton::schema
