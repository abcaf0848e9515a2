// Patterns of JSON Schema (ECMA-262) as automata over code points.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"

namespace baton::schema {

/// Inclusive ranges of code points, in order and apart.
struct CharRange {
  char32_t first = 0;
  char32_t last = 0;
  bool operator==(const CharRange&) const = default;
};
using CharSet = std::vector<CharRange>;

/// States that a text may lead to, in order.
using NfaSet = std::vector<std::uint32_t>;

/// An automaton. Of a set of states: `everything` means that every text may follow.
class Nfa {
 public:
  enum class Op : std::uint8_t { split, chars, begin, end, accept };
  struct State {
    Op op = Op::split;
    std::uint32_t out = kNone;
    std::uint32_t other = kNone;  // split
    std::uint32_t chars = kNone;  // an index of sets
    bool live = false;            // the end can be reached
    bool may_end = false;         // without a further character
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kMaxStates = 30'000;

  std::uint32_t add(State state);
  std::uint32_t add_chars(CharSet set, std::uint32_t out);
  /// Called once, when it is complete. `everything`: its accepting state takes any further text.
  void finish(std::uint32_t start, bool everything);

  const NfaSet& start() const { return start_; }
  bool ends(const NfaSet& set) const;
  bool everything(const NfaSet& set) const;
  /// The states after one character, by ranges that cover all of them.
  struct Step {
    char32_t last = 0;
    NfaSet set;
  };
  std::vector<Step> steps(const NfaSet& set) const;
  std::size_t size() const { return states_.size(); }
  std::size_t bytes() const;

 private:
  friend class PatternCompiler;
  void close(std::uint32_t state, bool at_start, NfaSet& out, std::vector<bool>& seen) const;
  void find_live();

  std::vector<State> states_;
  std::vector<CharSet> sets_;
  NfaSet start_;
  bool everything_ = false;
};

/// One part of a pattern: of an alternative, lookaheads at its start are conditions besides.
struct Condition {
  std::shared_ptr<const Nfa> nfa;
  bool negated = false;
};
/// Every condition of one of the alternatives holds.
using Pattern = std::vector<std::vector<Condition>>;

/// `pattern` is searched for anywhere in a text, unless it has anchors. An error says what is not
/// supported: back references, lookbehinds, word boundaries, lookaheads but at the start.
Result<Pattern> compile_pattern(std::string_view pattern);

}  // namespace baton::schema
