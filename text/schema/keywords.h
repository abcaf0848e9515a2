// The keywords of one JSON Schema, to what they allow.
#pragma once

#include <string>
#include <vector>

#include "text/schema/schema_tables.h"

namespace baton::schema {

/// Reads one schema object, of any draft from 4 to 2020-12.
class KeywordReader {
 public:
  KeywordReader(SchemaTables& tables, const Json& json)
      : tables_(tables), text_sets_(tables.text_sets_), json_(json) {}

  Table read();

 private:
  const Json* find(const char* keyword) const;
  void report(const char* keyword, std::string why);
  bool count(const char* keyword, std::uint64_t* out);
  std::vector<std::string> strings(const char* keyword, const Json& list);
  void merge(const char* keyword, const std::optional<Table>& with);

  void read_type();
  void read_enum();
  void read_string();
  void read_pattern();
  void read_number();
  void read_array();
  void read_items(ArrayShape& shape);
  void read_unique(const ArrayShape& shape);
  void read_object();
  void read_names(ObjectShape& shape);
  void read_combinations();
  void read_reference();
  void read_any_of();
  void read_one_of();
  void exclude(Table& from, const Table& what);
  void read_not();
  void read_if();
  void read_dependencies();
  void depend(const char* keyword, const std::string& name, const Json& on);
  void read_unevaluated();

  SchemaTables& tables_;
  TextSets& text_sets_;
  const Json& json_;
  Table table_;
};

/// The set of a pattern's texts; an error says what is not supported.
Result<TextSet> pattern_set(TextSets& text_sets, std::string_view pattern);
/// The text of a JSON number, as a decimal.
std::string decimal_text(const Json& number);

}  // namespace baton::schema
