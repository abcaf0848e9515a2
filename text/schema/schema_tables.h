// What a schema allows, type by type: the normal form of its keywords, and of what `and`, `or` and
// `not` make of schemas. Derived when it is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/schema/document.h"
#include "text/schema/text_sets.h"

namespace baton::schema {

/// A schema, or a combination of some. Equal ids are equal.
using Schema = std::uint32_t;
inline constexpr Schema kFalse = 0;
inline constexpr Schema kTrue = 1;
inline constexpr std::uint64_t kUnbounded = UINT64_MAX;

/// Objects that hold all of this.
struct ObjectShape {
  std::vector<std::pair<std::uint32_t, Schema>> properties;  // by name, in the schema's order
  std::vector<std::pair<TextSet, Schema>> rules;   // every property of such a name matches
  std::vector<std::pair<TextSet, Schema>> exists;  // some property of such a name matches
  std::vector<std::uint32_t> required;             // names, in order of their ids
  std::uint64_t least = 0;
  std::uint64_t most = kUnbounded;
  std::vector<TextSet> patterns;  // names that the schema speaks of by a pattern
  bool named = false;             // the schema speaks of some names,
  bool others = false;            // and says that others may come
  TextSet evaluated = kNothing;   // names that `unevaluatedProperties` leaves alone
  bool operator==(const ObjectShape&) const = default;
};

/// So many items from the index `from` on match.
struct Contains {
  std::uint32_t from = 0;
  Schema schema = kTrue;
  std::uint64_t least = 1;
  std::uint64_t most = kUnbounded;
  bool operator==(const Contains&) const = default;
};

/// Arrays that hold all of this.
struct ArrayShape {
  std::vector<Schema> prefix;
  Schema rest = kTrue;
  std::vector<Contains> contains;
  std::uint64_t least = 0;
  std::uint64_t most = kUnbounded;
  std::uint64_t evaluated = 0;  // items from the first on that `unevaluatedItems` leaves alone
  bool operator==(const ArrayShape&) const = default;
};

/// The values that a schema allows: those of any of its shapes.
struct Table {
  bool null = false;
  bool yes = false;
  bool no = false;
  TextSet string = kNothing;
  TextSet number = kNothing;
  std::vector<ObjectShape> objects;
  std::vector<ArrayShape> arrays;
  bool exact = true;  // false: it allows more, since some keyword could not be enforced
};

/// A keyword that is not enforced.
struct Unenforced {
  std::string keyword;
  std::string path;  // a JSON pointer to the schema that has it
  std::string why;
  std::string name{};    // of the schema, where it is one of several
  bool refused = false;  // SchemaModes::refuse
};

/// Not thread-safe. LimitError where a schema needs more than is allowed.
class SchemaTables {
 public:
  SchemaTables(Document& document, TextSets& text_sets);

  Schema root();
  Schema all_of(std::vector<Schema> parts);
  Schema any_of(std::vector<Schema> parts);
  Schema none_of(Schema part);

  const Table& table(Schema schema);
  /// Some finite value matches.
  bool satisfiable(Schema schema);
  bool satisfiable(const ObjectShape& shape);
  bool satisfiable(const ArrayShape& shape);
  /// The schema of a property, by its name's id.
  Schema property(const ObjectShape& shape, std::uint32_t name);
  Schema item(const ArrayShape& shape, std::uint64_t index);
  bool has_name(TextSet names, std::uint32_t name);
  /// Texts of the numbers in `values`; `plain`: of whole numbers, without a point.
  TextSet number_texts(TextSet values, bool plain);

  std::uint32_t name_id(std::string_view text);
  std::uint32_t name_id(const std::u32string& text);
  const std::u32string& name(std::uint32_t id) const { return names_[id]; }
  const std::vector<Unenforced>& unenforced() const { return unenforced_; }
  /// From now on, a keyword that cannot be enforced is a LimitError.
  void freeze() { frozen_ = true; }
  std::size_t bytes() const { return bytes_; }

 private:
  friend class KeywordReader;
  enum class Kind : std::uint8_t { none, all, part, value, all_of, any_of, none_of };
  struct Node {
    Kind kind = Kind::none;
    const Json* json = nullptr;
    std::vector<Schema> parts;
    std::optional<Table> table;
    bool busy = false;
    std::int8_t satisfiable = -1;
    std::size_t depth = 0;   // in the search for a finite value, while it is looked at
    std::size_t lowest = 0;  // its answer stands while no schema from that depth on has one
  };

  Schema make(Kind kind, const Json* json, std::vector<Schema> parts);
  Schema part(const Json& json);
  Schema value(const Json& json);
  void report(const Json& at, std::string keyword, std::string why);

  Table everything() const;
  Table derive(const Node& node);
  Table value_table(const Json& json);
  /// Nothing where there would be too many shapes.
  std::optional<Table> both(const Table& a, const Table& b);
  void add(Table& to, const Table& from);
  std::optional<Table> negative(const Table& of);
  std::vector<ObjectShape> negative_shapes(const ObjectShape& of);
  std::vector<ArrayShape> negative_shapes(const ArrayShape& of);
  std::optional<ObjectShape> both(const ObjectShape& a, const ObjectShape& b);
  std::optional<ArrayShape> both(const ArrayShape& a, const ArrayShape& b);
  /// True where it is certain that nothing matches, and known soon.
  bool surely_empty(Schema schema, int depth);
  bool surely_empty(const ObjectShape& shape, int depth);
  bool surely_empty(const ArrayShape& shape, int depth);
  bool any_in(const Table& table);
  bool has_room(const ObjectShape& shape, TextSet forbidden);

  Document& document_;
  TextSets& text_sets_;
  std::deque<Node> nodes_;
  std::map<std::pair<std::pair<Kind, const Json*>, std::vector<Schema>>, Schema> index_;
  std::deque<std::u32string> names_;
  std::unordered_map<std::u32string, std::uint32_t> name_ids_;
  std::unordered_map<Schema, bool> empty_;
  std::map<std::pair<std::uint32_t, TextSet>, bool> in_;
  std::vector<Unenforced> unenforced_;
  TextSet integer_ = kNothing;         // by value
  TextSet full_syntax_ = kNothing;     // of numbers, with an exponent
  TextSet plain_syntax_ = kNothing;    // without
  TextSet integer_syntax_ = kNothing;  // without a point
  std::size_t merges_ = 0;
  std::size_t depth_ = 0;
  std::size_t search_depth_ = 0;
  std::size_t lowest_ = SIZE_MAX;
  std::vector<Schema> undecided_;
  std::size_t bytes_ = 0;
  bool frozen_ = false;
};

std::u32string to_code_points(std::string_view text);

}  // namespace baton::schema
