// Sets of texts, as automata over code points that are derived when they are visited: patterns,
// enumerations, lengths and numbers, and what `and`, `or` and `not` make of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/schema/regex_nfa.h"

namespace baton::schema {

/// What a schema needs is more than a limit allows.
class LimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A schema is wrong.
class WrongSchema : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A set of texts: what may follow. Equal ids are equal sets; different ids may be.
using TextSet = std::uint32_t;
inline constexpr TextSet kNothing = 0;   // the empty set
inline constexpr TextSet kAnything = 1;  // every text

/// After a code point of (`last` of the move before, `last`], `next` may follow.
struct Move {
  char32_t last = 0;
  TextSet next = kNothing;
};

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

/// Makes and keeps sets. Not thread-safe. LimitError where there would be too many states.
class TextSets {
 public:
  struct Limits {
    std::size_t states = 400'000;  // kept at all
    std::size_t search = 60'000;   // visited to find out whether a set is empty
  };

  TextSets();
  explicit TextSets(Limits limits);
  ~TextSets();
  TextSets(const TextSets&) = delete;
  TextSets& operator=(const TextSets&) = delete;

  TextSet pattern(std::shared_ptr<const Nfa> nfa);
  TextSet words(const std::vector<std::u32string>& texts);
  TextSet at_least(std::uint64_t characters);
  TextSet at_most(std::uint64_t characters);
  /// Texts of JSON numbers without an exponent, by value.
  TextSet number_at_most(std::string_view decimal, bool inclusive);
  TextSet number_equal(std::string_view decimal);
  /// `step`: a decimal above 0; of at most nine digits but for zeros around.
  TextSet multiple_of(std::string_view step);

  TextSet both(TextSet a, TextSet b);
  TextSet either(TextSet a, TextSet b);
  TextSet complement(TextSet a);
  TextSet minus(TextSet a, TextSet b) { return both(a, complement(b)); }

  /// The empty text is in the set.
  bool ends(TextSet a) const;
  /// Moves for every code point, in order.
  const std::vector<Move>& moves(TextSet a);
  TextSet next(TextSet a, char32_t c);
  /// After one of [first, last], some text is in the set.
  bool live_between(TextSet a, char32_t first, char32_t last);
  /// Some text is in the set.
  bool live(TextSet a);
  bool contains(TextSet a, std::u32string_view text);
  /// How many texts the set has, if that is less than `most`; else `most`.
  std::size_t count(TextSet a, std::size_t most);
  /// All texts of the set, if there are at most so many, of at most 64 characters.
  std::optional<std::vector<std::u32string>> list(TextSet a, std::size_t most);
  /// `a` without a bound on the length, where no `characters` further ones reach it; else `a`.
  TextSet without_length(TextSet a, std::uint64_t characters);
  /// at_most(n): n; else -1.
  std::int64_t only_length(TextSet a) const;
  /// From now on, a set whose texts take too long to find counts as empty. What was found not to be
  /// empty before stays so, and so does a way to one of its texts.
  void give_up_silently() { silent_ = true; }
  std::size_t bytes() const { return bytes_; }

 private:
  enum class Kind : std::uint8_t {
    nothing,
    anything,
    pattern,
    graph,
    at_least,
    at_most,
    multiple,
    both,
    either,
    complement
  };
  enum class Live : std::uint8_t { unknown, yes, no };
  struct Node {
    Kind kind = Kind::nothing;
    Live live = Live::unknown;
    bool ends = false;
    std::vector<std::uint64_t> parts;  // by kind: see make_*
    std::vector<Move> moves;           // empty: not derived yet
  };
  struct GraphNode {
    bool ends = false;
    std::vector<std::pair<char32_t, std::uint32_t>> next;  // in order
  };
  struct Multiple {
    std::uint64_t step = 1;
    std::uint32_t decimals = 0;
  };

  TextSet make(Kind kind, std::vector<std::uint64_t> parts, bool ends);
  TextSet make_pattern(std::uint64_t nfa, const NfaSet& set);
  TextSet make_graph(std::uint32_t node);
  TextSet make_many(Kind kind, std::vector<TextSet> parts);
  TextSet make_multiple(std::uint64_t which, std::uint64_t remainder, std::uint64_t decimals);
  void derive(TextSet a, std::vector<Move>& out);
  void derive_many(const Node& node, std::vector<Move>& out);
  void derive_multiple(const Node& node, std::vector<Move>& out);
  bool search(TextSet a);
  /// How many characters any beginning of a text of the set needs at most to be one; nothing: too
  /// many sets follow from it.
  std::optional<std::uint64_t> farthest(TextSet a);
  bool part_is_empty(TextSet a);
  std::uint32_t graph_node(bool ends);
  std::uint32_t magnitude(std::string_view whole, std::string_view fraction, bool less, bool equal,
                          bool greater);
  std::uint32_t all_digits();
  void prune(std::uint32_t first);

  const Limits limits_;
  std::deque<Node> nodes_;
  std::unordered_multimap<std::uint64_t, TextSet> index_;
  std::vector<std::shared_ptr<const Nfa>> nfas_;
  std::deque<GraphNode> graph_;
  std::vector<Multiple> multiples_;
  std::unordered_map<TextSet, std::optional<std::uint64_t>> farthest_;
  std::size_t bytes_ = 0;
  bool silent_ = false;
};

}  // namespace baton::schema
