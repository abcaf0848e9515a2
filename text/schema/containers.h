// Objects and arrays that have begun: which keys and items may come next.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/schema/interned.h"
#include "text/schema/schema_tables.h"
#include "text/schema/string_lexer.h"

namespace baton::schema {

/// What comes after a key, or in an array: a value of a schema, and then the container's state.
struct Next {
  Schema value = kFalse;
  std::uint32_t after = 0;
  auto operator<=>(const Next&) const = default;
};

/// States of objects, by number. Each that is given out can be completed.
class ObjectStates {
 public:
  /// `closed`: names come in the schema's order, and those that it does not name do not come.
  ObjectStates(SchemaTables& tables, TextSets& text_sets, bool closed)
      : tables_(tables), text_sets_(text_sets), closed_(closed) {}

  /// Nothing: no object matches.
  std::optional<std::uint32_t> start(const ObjectShape& shape);
  bool may_end(std::uint32_t state) { return info(state).may_end; }
  bool may_go_on(std::uint32_t state);

  /// A key that has begun.
  std::uint32_t key(std::uint32_t state);
  /// After a character of it; nothing: no key goes on so.
  std::optional<std::uint32_t> key_next(std::uint32_t state, std::uint32_t key, char32_t c);
  bool key_may_hold(std::uint32_t state, std::uint32_t key, char32_t first, char32_t last);
  /// The key ends here.
  void key_end(std::uint32_t state, std::uint32_t key, std::vector<Next>& out);
  /// Names besides those that the schema names; kNothing: none.
  TextSet key_others(std::uint32_t key) const {
    return keys_[key].size() > kTextSets ? keys_[key][kTextSets] : kNothing;
  }
  /// The same key without them.
  std::uint32_t key_named(std::uint32_t key);
  std::size_t bytes() const { return states_.bytes() + keys_.bytes() + bytes_; }
  /// Schemas that values of these objects may have.
  void values(std::uint32_t state, std::vector<Schema>& out);

 private:
  static constexpr std::size_t kTextSets = 3;  // where a key's sets of names begin
  static constexpr std::size_t kUsed = 5;      // where a state's used names begin
  static constexpr std::size_t kMaxExists = 6;

  struct Class {
    std::vector<std::uint32_t> names;  // in order
    std::vector<Schema> schemas;       // of each
    std::vector<bool> required;
    std::vector<std::uint32_t> matches;  // bits: which of `exists` each name suits
    std::vector<std::uint32_t> sorted;   // indices, by name
    std::vector<std::pair<TextSet, Schema>> rules;
    std::vector<std::pair<TextSet, Schema>> exists;
    std::uint64_t least = 0;
    std::uint64_t most = kUnbounded;
    TextSet others = kNothing;
    bool ordered = false;
    bool distinct = false;  // other names are told apart, since they are counted
  };
  struct Info {
    bool live = false;
    bool may_end = false;
    bool others = false;
    std::vector<std::uint32_t> candidates;  // positions in Class::sorted, in order
  };
  struct State {
    std::uint32_t of = 0;        // class
    std::uint32_t position = 0;  // ordered: names before it do not come any more
    std::uint32_t count = 0;
    std::uint32_t pending = 0;  // bits: which of `exists` has not been met
    TextSet others = kNothing;
    std::vector<std::uint32_t> used;  // bits by index; not ordered
  };

  State read(std::uint32_t state) const;
  std::uint32_t write(const State& state);
  const Info& info(std::uint32_t state);
  Info find_info(const State& state);
  bool can_be_met(const State& state, const std::vector<bool>& usable);
  void add_class(const ObjectShape& shape);
  void list_others(Class& made);
  std::uint64_t names_to_meet(const State& state, const std::vector<bool>& usable);
  TextSet other_names(const ObjectShape& shape, const Class& made);
  std::uint32_t after(const State& state, std::int64_t name, std::u32string_view text,
                      std::uint32_t met);
  void add_next(const State& state, std::int64_t name, Schema schema, std::uint32_t suits,
                std::vector<Next>& out, TextSet other_after);
  static std::vector<std::uint32_t> words(const std::vector<std::uint32_t>& list,
                                          std::size_t from) {
    return {list.begin() + static_cast<std::ptrdiff_t>(from), list.end()};
  }

  SchemaTables& tables_;
  TextSets& text_sets_;
  const bool closed_;
  std::deque<Class> classes_;
  std::map<const ObjectShape*, std::uint32_t> by_shape_;
  Interned states_;
  Interned keys_;
  std::deque<std::optional<Info>> infos_;
  std::size_t bytes_ = 0;
};

/// Likewise, of arrays.
class ArrayStates {
 public:
  ArrayStates(SchemaTables& tables) : tables_(tables) {}

  std::optional<std::uint32_t> start(const ArrayShape& shape);
  bool may_end(std::uint32_t state) { return ended(read(state)); }
  /// The next item, if there may be one.
  void item(std::uint32_t state, std::vector<Next>& out);
  std::size_t bytes() const { return states_.bytes(); }
  void values(std::uint32_t state, std::vector<Schema>& out);

 private:
  struct State {
    const ArrayShape* shape = nullptr;
    std::uint32_t of = 0;
    std::uint32_t index = 0;
    std::vector<std::uint32_t> counts;  // of each `contains`
  };
  State read(std::uint32_t state) const;
  std::optional<std::uint32_t> write(State state);
  bool ended(const State& state) const;
  bool live(const State& state);

  SchemaTables& tables_;
  std::vector<const ArrayShape*> shapes_;
  std::map<const ArrayShape*, std::uint32_t> by_shape_;
  Interned states_;
};

}  // namespace baton::schema
