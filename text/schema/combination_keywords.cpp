// Keywords that combine schemas.
#include <algorithm>

#include "text/schema/keywords.h"

namespace baton::schema {
namespace {

constexpr std::size_t kMaxBranches = 4;  // of anyOf, whose every subset is looked at

bool empty(const Table& table, TextSets& text_sets) {
  return !table.null && !table.yes && !table.no && table.objects.empty() && table.arrays.empty() &&
         !text_sets.live(table.string) && !text_sets.live(table.number);
}

}  // namespace

void KeywordReader::read_combinations() {
  if (const Json* all = find("allOf")) {
    if (!all->is_array()) {
      report("allOf", "its value is not a list");
    } else {
      for (const Json& one : *all) merge("allOf", tables_.table(tables_.part(one)));
    }
  }
  read_any_of();
  read_one_of();
  read_if();
  read_dependencies();
  read_not();
}

void KeywordReader::read_reference() {
  for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    const Json* reference = find(keyword);
    if (reference == nullptr) continue;
    if (!reference->is_string()) {
      report(keyword, "its value is not a string");
      continue;
    }
    const auto& text = reference->get_ref<const std::string&>();
    const Json* target = tables_.document_.target(json_, keyword, text);
    if (target == nullptr && text.starts_with("#") && keyword == std::string_view("$ref")) {
      throw WrongSchema("$ref at #" + tables_.document_.path_of(json_) + ": '" +
                        text.substr(0, 200) + "' is not in the schema");
    }
    if (target == nullptr) {
      report(keyword, "'" + text.substr(0, 200) + "' is not in the schema");
    } else {
      merge(keyword, tables_.table(tables_.part(*target)));
    }
  }
}

void KeywordReader::read_any_of() {
  const Json* list = find("anyOf");
  if (list == nullptr) return;
  if (!list->is_array() || list->empty()) return report("anyOf", "its value is not a list");
  std::vector<Schema> parts;
  for (const Json& one : *list) parts.push_back(tables_.part(one));
  if (tables_.document_.has_unevaluated() && parts.size() <= kMaxBranches) {
    // What several branches together have evaluated counts.
    const std::vector<Schema> alone = parts;
    for (std::size_t bits = 1; bits < (1U << alone.size()); ++bits) {
      std::vector<Schema> some;
      for (std::size_t i = 0; i < alone.size(); ++i) {
        if ((bits >> i & 1U) != 0) some.push_back(alone[i]);
      }
      if (some.size() > 1) parts.push_back(tables_.all_of(std::move(some)));
    }
  }
  Table any;
  for (const Schema one : parts) tables_.add(any, tables_.table(one));
  merge("anyOf", any);
}

/// Takes out of `from` what `what` allows, type by type, where both allow something.
void KeywordReader::exclude(Table& from, const Table& what) {
  const auto common = tables_.both(from, what);
  if (common && empty(*common, text_sets_)) return;
  if (!what.exact) return report("oneOf", "a branch of it is not enforced");
  from.null = from.null && !what.null;
  from.yes = from.yes && !what.yes;
  from.no = from.no && !what.no;
  from.string = text_sets_.minus(from.string, what.string);
  from.number = text_sets_.minus(from.number, what.number);
  if (common && common->objects.empty() && common->arrays.empty()) return;
  auto rest = tables_.negative(what);
  if (rest) {
    if (common && common->objects.empty()) rest->objects = tables_.everything().objects;
    if (common && common->arrays.empty()) rest->arrays = tables_.everything().arrays;
    auto merged = tables_.both(from, *rest);
    if (merged) {
      from = std::move(*merged);
      return;
    }
  }
  report("oneOf", "it has too many combinations");
}

void KeywordReader::read_one_of() {
  const Json* list = find("oneOf");
  if (list == nullptr) return;
  if (!list->is_array() || list->empty()) return report("oneOf", "its value is not a list");
  std::vector<const Table*> branches;
  for (const Json& one : *list) branches.push_back(&tables_.table(tables_.part(one)));
  Table out;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    auto mine = tables_.both(table_, *branches[i]);
    if (!mine) return report("oneOf", "it has too many combinations");
    for (std::size_t j = 0; j < branches.size(); ++j) {
      if (i != j) exclude(*mine, *branches[j]);
    }
    tables_.add(out, *mine);
  }
  out.exact = out.exact && table_.exact;
  table_ = std::move(out);
}

void KeywordReader::read_not() {
  const Json* denied = find("not");
  if (denied == nullptr) return;
  const Table& what = tables_.table(tables_.part(*denied));
  const auto common = tables_.both(table_, what);
  if (common && empty(*common, text_sets_)) return;
  if (!what.exact) return report("not", "what it denies is not enforced");
  merge("not", tables_.negative(what));
}

void KeywordReader::read_if() {
  const Json* condition = find("if");
  const Json* then = find("then");
  const Json* otherwise = find("else");
  if (condition == nullptr || (then == nullptr && otherwise == nullptr)) {
    // Its annotations count all the same.
    if (condition == nullptr || !tables_.document_.has_unevaluated()) return;
  }
  const Table& when = tables_.table(tables_.part(*condition));
  std::optional<Table> yes = tables_.both(table_, when);
  if (yes && then != nullptr) yes = tables_.both(*yes, tables_.table(tables_.part(*then)));
  std::optional<Table> no = table_;
  if (when.exact) {
    no = tables_.negative(when);
    if (no) no = tables_.both(table_, *no);
  } else {
    report("if", "it is not enforced");
  }
  if (no && otherwise != nullptr) no = tables_.both(*no, tables_.table(tables_.part(*otherwise)));
  if (!yes || !no) return report("if", "it has too many combinations");
  const bool exact = table_.exact;
  tables_.add(*yes, *no);
  table_ = std::move(*yes);
  table_.exact = table_.exact && exact;
}

void KeywordReader::depend(const char* keyword, const std::string& name, const Json& on) {
  Table either = tables_.everything();
  const std::uint32_t id = tables_.name_id(name);
  either.objects[0].properties.emplace_back(id, kFalse);
  if (on.is_array()) {
    ObjectShape& with = either.objects.emplace_back();
    for (const std::string& needed : strings(keyword, on)) {
      with.required.push_back(tables_.name_id(needed));
    }
    std::sort(with.required.begin(), with.required.end());
    with.required.erase(std::unique(with.required.begin(), with.required.end()),
                        with.required.end());
    if (with.required.empty()) return;
  } else if (on.is_object() || on.is_boolean()) {
    const Table& then = tables_.table(tables_.part(on));
    either.exact = then.exact;
    for (ObjectShape shape : then.objects) {
      if (tables_.document_.has_unevaluated()) {  // its annotations count where it applies
        shape.required.push_back(id);
        std::sort(shape.required.begin(), shape.required.end());
        shape.required.erase(std::unique(shape.required.begin(), shape.required.end()),
                             shape.required.end());
      }
      either.objects.push_back(std::move(shape));
    }
  } else if (on.is_string()) {
    either.objects.emplace_back().required.push_back(tables_.name_id(on.get<std::string>()));
  } else {
    return report(keyword, "its value is neither a schema nor a list of names");
  }
  merge(keyword, either);
}

void KeywordReader::read_dependencies() {
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* map = find(keyword);
    if (map == nullptr) continue;
    if (!map->is_object()) {
      report(keyword, "its value is not an object");
      continue;
    }
    for (const auto& [name, on] : map->items()) depend(keyword, name, on);
  }
}

void KeywordReader::read_unevaluated() {
  if (const Json* others = find("unevaluatedProperties")) {
    const Schema schema = tables_.part(*others);
    for (ObjectShape& shape : table_.objects) {
      const TextSet names = text_sets_.complement(shape.evaluated);
      if (schema != kTrue && names != kNothing) shape.rules.emplace_back(names, schema);
      shape.others = shape.others || schema != kFalse;
      shape.named = shape.named || schema == kFalse;
      shape.evaluated = kAnything;
    }
  }
  const Json* others = find("unevaluatedItems");
  if (others == nullptr) return;
  const Schema schema = tables_.part(*others);
  for (ArrayShape& shape : table_.arrays) {
    if (schema != kTrue && shape.evaluated != kUnbounded) {
      if (!shape.contains.empty()) {
        report("unevaluatedItems", "`contains` is beside it");
        break;
      }
      while (shape.prefix.size() < shape.evaluated) shape.prefix.push_back(shape.rest);
      for (std::size_t i = shape.evaluated; i < shape.prefix.size(); ++i) {
        shape.prefix[i] = tables_.all_of({shape.prefix[i], schema});
      }
      shape.rest = tables_.all_of({shape.rest, schema});
    }
    shape.evaluated = kUnbounded;
  }
}

}  // namespace baton::schema
