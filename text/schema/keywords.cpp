#include "text/schema/keywords.h"

#include <algorithm>
#include <cmath>

#include "text/schema/formats.h"

namespace baton::schema {

Result<TextSet> pattern_set(TextSets& text_sets, std::string_view pattern) {
  auto compiled = compile_pattern(pattern);
  if (!compiled.ok()) return compiled.status();
  TextSet out = kNothing;
  for (const auto& alternative : compiled.value()) {
    TextSet all = kAnything;
    for (const Condition& condition : alternative) {
      const TextSet one = text_sets.pattern(condition.nfa);
      all = text_sets.both(all, condition.negated ? text_sets.complement(one) : one);
    }
    out = text_sets.either(out, all);
  }
  return out;
}

std::string decimal_text(const Json& number) { return number.dump(); }

const Json* KeywordReader::find(const char* keyword) const {
  const auto found = json_.find(keyword);
  return found == json_.end() ? nullptr : &*found;
}

void KeywordReader::report(const char* keyword, std::string why) {
  tables_.report(json_, keyword, std::move(why));
  table_.exact = false;
}

void KeywordReader::merge(const char* keyword, const std::optional<Table>& with) {
  auto merged = with ? tables_.both(table_, *with) : std::nullopt;
  if (!merged) return report(keyword, "it has too many combinations");
  table_ = std::move(*merged);
}

bool KeywordReader::count(const char* keyword, std::uint64_t* out) {
  const Json* value = find(keyword);
  if (value == nullptr) return false;
  if (value->is_number_unsigned()) {
    *out = value->get<std::uint64_t>();
  } else if (value->is_number_float() && value->get<double>() >= 0 && value->get<double>() < 1e15 &&
             std::floor(value->get<double>()) == value->get<double>()) {
    *out = static_cast<std::uint64_t>(value->get<double>());
  } else {
    report(keyword, "its value is not a count");
    return false;
  }
  return true;
}

std::vector<std::string> KeywordReader::strings(const char* keyword, const Json& list) {
  std::vector<std::string> out;
  if (!list.is_array()) {
    report(keyword, "its value is not a list of names");
    return out;
  }
  for (const Json& entry : list) {
    if (entry.is_string()) {
      out.push_back(entry.get<std::string>());
    } else {
      report(keyword, "its value is not a list of names");
    }
  }
  return out;
}

Table KeywordReader::read() {
  table_ = tables_.everything();
  if (!json_.is_object()) {
    tables_.report(json_, "", "it is not a schema");
    table_.exact = false;
    return std::move(table_);
  }
  if (tables_.document_.ref_stands_alone() && find("$ref") != nullptr) {
    read_reference();
    return std::move(table_);
  }
  read_type();
  read_string();
  read_number();
  if (!table_.arrays.empty()) read_array();
  if (!table_.objects.empty()) read_object();
  read_enum();
  read_reference();
  read_combinations();
  read_unevaluated();
  return std::move(table_);
}

void KeywordReader::read_type() {
  const Json* type = find("type");
  if (type == nullptr) return;
  Table allowed;
  const Table all = tables_.everything();
  const auto wrong = [&](const std::string& name) {
    return WrongSchema("type at #" + tables_.document_.path_of(json_) + ": '" +
                       name.substr(0, 100) + "' is no type of JSON Schema");
  };
  const auto allow = [&](const std::string& name) {
    if (name == "null") {
      allowed.null = true;
    } else if (name == "boolean") {
      allowed.yes = allowed.no = true;
    } else if (name == "string") {
      allowed.string = kAnything;
    } else if (name == "number") {
      allowed.number = kAnything;
    } else if (name == "integer") {
      allowed.number = text_sets_.either(allowed.number, tables_.integer_);
    } else if (name == "object") {
      allowed.objects = all.objects;
    } else if (name == "array") {
      allowed.arrays = all.arrays;
    } else if (name == "any") {
      allowed = all;
    } else {
      return false;
    }
    return true;
  };
  if (type->is_string()) {
    if (allow(type->get_ref<const std::string&>())) {
      table_ = allowed;
    } else {
      throw wrong(type->get<std::string>());
    }
    return;
  }
  for (const std::string& name : strings("type", *type)) {
    if (!allow(name)) throw wrong(name);
  }
  if (type->is_array() && table_.exact) table_ = allowed;
}

void KeywordReader::read_enum() {
  if (const Json* value = find("const")) merge("const", tables_.table(tables_.value(*value)));
  const Json* list = find("enum");
  if (list == nullptr) return;
  if (!list->is_array()) return report("enum", "its value is not a list");
  Table out;
  std::vector<std::u32string> words;
  std::string numbers;
  for (const Json& value : *list) {
    if (value.is_string()) {
      words.push_back(to_code_points(value.get_ref<const std::string&>()));
    } else {
      tables_.add(out, tables_.table(tables_.value(value)));
    }
  }
  out.string = text_sets_.words(words);
  merge("enum", out);
}

Table SchemaTables::value_table(const Json& json) {
  Table out;
  if (json.is_null()) out.null = true;
  if (json.is_boolean()) (json.get<bool>() ? out.yes : out.no) = true;
  if (json.is_string()) {
    out.string = text_sets_.words({to_code_points(json.get_ref<const std::string&>())});
  }
  if (json.is_number()) out.number = text_sets_.number_equal(decimal_text(json));
  if (json.is_array()) {
    ArrayShape& shape = out.arrays.emplace_back();
    for (const Json& inside : json) shape.prefix.push_back(value(inside));
    shape.rest = kFalse;
    shape.least = shape.most = json.size();
  }
  if (json.is_object()) {
    ObjectShape& shape = out.objects.emplace_back();
    std::vector<std::u32string> words;
    for (const auto& [key, inside] : json.items()) {
      const std::uint32_t name = name_id(key);
      shape.properties.emplace_back(name, value(inside));
      shape.required.push_back(name);
      words.push_back(names_[name]);
    }
    std::sort(shape.required.begin(), shape.required.end());
    shape.rules.emplace_back(text_sets_.complement(text_sets_.words(words)), kFalse);
    shape.named = true;
  }
  return out;
}

void KeywordReader::read_string() {
  std::uint64_t n = 0;
  if (table_.string == kNothing) return;
  if (count("minLength", &n))
    table_.string = text_sets_.both(table_.string, text_sets_.at_least(n));
  if (count("maxLength", &n)) table_.string = text_sets_.both(table_.string, text_sets_.at_most(n));
  read_pattern();
  const Json* format = find("format");
  if (format == nullptr || !format->is_string()) return;
  bool known = false;
  const auto allowed = format_of(format->get_ref<const std::string&>(), &known);
  if (!allowed) {
    if (known) report("format", "'" + format->get<std::string>() + "' is not enforced");
    return;
  }
  TextSet set = pattern_set(text_sets_, "^(?:" + allowed->pattern + ")$").value();
  if (!allowed->excluded.empty()) {
    set = text_sets_.minus(set, pattern_set(text_sets_, allowed->excluded).value());
  }
  if (allowed->longest > 0) set = text_sets_.both(set, text_sets_.at_most(allowed->longest));
  table_.string = text_sets_.both(table_.string, set);
}

void KeywordReader::read_pattern() {
  const Json* pattern = find("pattern");
  if (pattern == nullptr) return;
  if (!pattern->is_string()) return report("pattern", "its value is not a string");
  const auto set = pattern_set(text_sets_, pattern->get_ref<const std::string&>());
  if (!set.ok()) return report("pattern", set.status().message());
  table_.string = text_sets_.both(table_.string, set.value());
}

void KeywordReader::read_number() {
  if (table_.number == kNothing) return;
  const auto bound = [&](const char* keyword) -> const Json* {
    const Json* value = find(keyword);
    if (value == nullptr || value->is_number()) return value;
    if (!value->is_boolean() || keyword[0] != 'e') report(keyword, "its value is not a number");
    return nullptr;
  };
  const auto strict = [&](const char* keyword) {
    const Json* value = find(keyword);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  };
  const auto restrict_to = [&](TextSet set) {
    table_.number = text_sets_.both(table_.number, set);
  };
  if (const Json* most = bound("maximum")) {
    restrict_to(text_sets_.number_at_most(decimal_text(*most), !strict("exclusiveMaximum")));
  }
  if (const Json* most = bound("exclusiveMaximum")) {
    restrict_to(text_sets_.number_at_most(decimal_text(*most), false));
  }
  if (const Json* least = bound("minimum")) {
    restrict_to(text_sets_.complement(
        text_sets_.number_at_most(decimal_text(*least), strict("exclusiveMinimum"))));
  }
  if (const Json* least = bound("exclusiveMinimum")) {
    restrict_to(text_sets_.complement(text_sets_.number_at_most(decimal_text(*least), true)));
  }
  for (const char* keyword : {"multipleOf", "divisibleBy"}) {
    const Json* step = bound(keyword);
    if (step == nullptr) continue;
    try {
      restrict_to(text_sets_.multiple_of(decimal_text(*step)));
      if (!text_sets_.live(tables_.number_texts(table_.number, false))) continue;
    } catch (const LimitError& error) {
      report(keyword, error.what());
    }
  }
}

void KeywordReader::read_array() {
  ArrayShape shape = table_.arrays[0];
  read_items(shape);
  std::uint64_t n = 0;
  if (count("minItems", &n)) shape.least = n;
  if (count("maxItems", &n)) shape.most = n;
  if (const Json* contains = find("contains")) {
    Contains one;
    one.schema = tables_.part(*contains);
    if (count("minContains", &n)) one.least = n;
    if (count("maxContains", &n)) one.most = n;
    if (one.least > 0 || one.most != kUnbounded) shape.contains.push_back(one);
  }
  read_unique(shape);
  table_.arrays[0] = std::move(shape);
  if (table_.arrays[0].least > table_.arrays[0].most) table_.arrays.clear();
}

void KeywordReader::read_items(ArrayShape& shape) {
  const Json* prefix = find("prefixItems");
  const Json* items = find("items");
  const Json* rest = items;
  if (prefix == nullptr && items != nullptr && items->is_array()) {
    prefix = items;
    rest = find("additionalItems");
  }
  if (prefix != nullptr && prefix->is_array()) {
    for (const Json& inside : *prefix) shape.prefix.push_back(tables_.part(inside));
    shape.evaluated = prefix->size();
  }
  if (rest != nullptr && (rest->is_object() || rest->is_boolean())) {
    shape.rest = tables_.part(*rest);
    shape.evaluated = kUnbounded;
  } else if (rest != nullptr) {
    report(rest == items ? "items" : "additionalItems", "its value is not a schema");
  }
}

void KeywordReader::read_unique(const ArrayShape& shape) {
  const Json* unique = find("uniqueItems");
  if (unique == nullptr || !unique->is_boolean()) {
    if (unique != nullptr) report("uniqueItems", "its value is not a boolean");
    return;
  }
  if (!unique->get<bool>() || shape.most <= 1) return;
  report("uniqueItems", "items are not compared");
}

void KeywordReader::read_object() {
  ObjectShape shape = table_.objects[0];
  read_names(shape);
  std::uint64_t n = 0;
  if (count("minProperties", &n)) shape.least = n;
  if (count("maxProperties", &n)) shape.most = n;
  if (const Json* names = find("propertyNames")) {
    const Table& of = tables_.table(tables_.part(*names));
    table_.exact = table_.exact && of.exact;
    if (of.string != kAnything) shape.rules.emplace_back(text_sets_.complement(of.string), kFalse);
  }
  const Json* required = find("required");
  if (required != nullptr && !required->is_boolean()) {
    for (const std::string& name : strings("required", *required)) {
      shape.required.push_back(tables_.name_id(name));
      shape.named = true;
    }
    std::sort(shape.required.begin(), shape.required.end());
    shape.required.erase(std::unique(shape.required.begin(), shape.required.end()),
                         shape.required.end());
  }
  table_.objects[0] = std::move(shape);
}

/// properties, patternProperties and additionalProperties.
void KeywordReader::read_names(ObjectShape& shape) {
  std::vector<std::u32string> words;
  const Json* properties = find("properties");
  if (properties != nullptr && !properties->is_object()) {
    report("properties", "its value is not an object");
  } else if (properties != nullptr) {
    for (const auto& [key, inside] : properties->items()) {
      const std::uint32_t name = tables_.name_id(key);
      shape.properties.emplace_back(name, tables_.part(inside));
      words.push_back(tables_.name(name));
    }
    shape.named = true;  // also where it names none: then a closed object is empty
  }
  TextSet known = text_sets_.words(words);
  bool all_known = true;
  const Json* patterns = find("patternProperties");
  if (patterns != nullptr && !patterns->is_object()) {
    report("patternProperties", "its value is not an object");
  } else if (patterns != nullptr) {
    for (const auto& [pattern, inside] : patterns->items()) {
      const auto set = pattern_set(text_sets_, pattern);
      if (!set.ok()) {
        all_known = false;
        report("patternProperties", set.status().message());
        continue;
      }
      const Schema schema = tables_.part(inside);
      shape.rules.emplace_back(set.value(), schema);
      if (schema != kFalse) shape.patterns.push_back(set.value());
      known = text_sets_.either(known, set.value());
      shape.named = true;
    }
  }
  shape.evaluated = known;
  const Json* others = find("additionalProperties");
  if (others == nullptr) return;
  if (!others->is_object() && !others->is_boolean()) {
    return report("additionalProperties", "its value is not a schema");
  }
  if (!all_known) return report("additionalProperties", "a pattern beside it is not enforced");
  const Schema schema = tables_.part(*others);
  shape.named = shape.named || schema == kFalse;
  shape.others = schema != kFalse;
  shape.evaluated = kAnything;
  if (schema != kTrue) shape.rules.emplace_back(text_sets_.complement(known), schema);
}

}  // namespace baton::schema
