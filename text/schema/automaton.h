// All texts that a schema allows, as an automaton over bytes whose states are derived when they are
// visited. Every state can be completed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/schema/containers.h"
#include "text/schema/interned.h"
#include "text/schema/schema_tables.h"
#include "text/schema/string_lexer.h"

namespace baton::schema {

/// A run of whitespace between the parts of a JSON text may be so long.
inline constexpr std::uint32_t kMaxWhitespace = 32;

/// Not thread-safe.
class Automaton {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;

  Automaton(SchemaTables& tables, TextSets& text_sets, bool closed);

  /// kDead: nothing matches.
  State start();
  State step(State state, unsigned char byte);
  /// False: no text goes on with the byte; found without deriving anything.
  bool could(State state, unsigned char byte);
  bool may_end(State state) const;
  /// Nothing may come but the end.
  bool finished(State state) const {
    return state != kDead && static_cast<Phase>(states_[state][1]) == Phase::done;
  }
  /// In a string, or a key, between two characters: the sets of what may follow in it.
  bool in_string(State state, std::vector<TextSet>& sets) const;
  /// In a key: the same, as if only names that the schema names might come; kDead: none may.
  State named_only(State state);
  /// Derives the table of every schema that a value may have. LimitError.
  void visit_all();
  std::size_t bytes() const;

 private:
  enum class Phase : std::uint32_t {
    done,
    value,         // items: schema
    string,        // set
    number,        // set
    literal,       // lex: which, and how many bytes have come
    object_open,   // object state
    key,           // object state, key
    colon,         // object state after the value, schema
    object_after,  // object state
    object_next,   // after a comma: object state
    array_open,    // array state
    array_after,   // array state
  };
  /// Where one of the ways to read the text is: `parents` are those of the level below that it
  /// completes, as a set.
  struct Item {
    std::uint32_t a = 0;
    std::uint32_t b = 0;
    std::uint32_t parents = 0;
    auto operator<=>(const Item&) const = default;
  };
  /// The innermost value that has begun.
  struct Level {
    Phase phase = Phase::done;
    std::uint32_t blanks = 0;
    std::uint32_t lex = 0;
    std::vector<Item> items;
  };

  Level level(State state) const;
  State below(State state) const { return states_[state][0]; }
  State make(State below, Level level);
  State derive(State state, unsigned char byte);
  State complete(State state, const Level& at);
  State step_value(State below, const Level& at, unsigned char byte);
  State step_string(State state, const Level& at, unsigned char byte);
  State step_number(State state, const Level& at, unsigned char byte);
  State step_literal(State state, Level at, unsigned char byte);
  State step_key(State state, const Level& at, unsigned char byte);
  State step_object(State state, Level at, unsigned char byte);
  State step_array(State state, Level at, unsigned char byte);
  State begin_value(State state, const Level& at, Phase after);
  std::uint32_t united(const std::vector<Item>& items, std::size_t from, std::size_t to);

  SchemaTables& tables_;
  TextSets& text_sets_;
  const bool closed_;
  ObjectStates objects_;
  ArrayStates arrays_;
  Interned states_;   // [state below, phase, blanks, lex, items...]
  Interned parents_;  // sets of indices
  std::unordered_map<std::uint64_t, State> steps_;
};

}  // namespace baton::schema
