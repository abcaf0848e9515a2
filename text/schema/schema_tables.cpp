#include "text/schema/schema_tables.h"

#include <algorithm>

#include "text/schema/keywords.h"

namespace baton::schema {
namespace {

constexpr std::size_t kMaxSchemas = 200'000;
constexpr std::size_t kMaxDepth = 600;  // of tables that need one another, and of the search
constexpr int kSoon = 4;                // levels that surely_empty() looks at

bool has(const std::vector<Schema>& sorted, Schema schema) {
  return std::binary_search(sorted.begin(), sorted.end(), schema);
}

}  // namespace

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    char32_t c = length == 1 ? lead : lead & (0x7FU >> length);
    for (std::size_t k = 1; k < length && i + k < text.size(); ++k) {
      c = (c << 6U) | (static_cast<unsigned char>(text[i + k]) & 0x3FU);
    }
    out += c;
    i += length;
  }
  return out;
}

SchemaTables::SchemaTables(Document& document, TextSets& text_sets)
    : document_(document), text_sets_(text_sets) {
  nodes_.emplace_back();
  nodes_[kFalse].table = Table();
  nodes_.emplace_back();
  nodes_[kTrue].kind = Kind::all;
  nodes_[kTrue].table = everything();
  const auto make_pattern = [&](std::string_view text) {
    return text_sets_.pattern(compile_pattern(text).value()[0][0].nfa);
  };
  integer_ = make_pattern("^-?\\d+(?:\\.0+)?$");
  integer_syntax_ = make_pattern("^-?(?:0|[1-9]\\d*)$");
  plain_syntax_ = make_pattern("^-?(?:0|[1-9]\\d*)(?:\\.\\d+)?$");
  full_syntax_ =
      make_pattern("^-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?(?:\\d{1,2}|[12]\\d\\d))?$");
}

Schema SchemaTables::make(Kind kind, const Json* json, std::vector<Schema> parts) {
  const auto key = std::make_pair(std::make_pair(kind, json), parts);
  const auto found = index_.find(key);
  if (found != index_.end()) return found->second;
  if (nodes_.size() >= kMaxSchemas) {
    throw LimitError("it combines more than " + std::to_string(kMaxSchemas) + " schemas");
  }
  const auto id = static_cast<Schema>(nodes_.size());
  bytes_ += sizeof(Node) + 2 * parts.size() * sizeof(Schema) + 96;
  Node& node = nodes_.emplace_back();
  node.kind = kind;
  node.json = json;
  node.parts = std::move(parts);
  index_.emplace(key, id);
  return id;
}

Schema SchemaTables::part(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? kTrue : kFalse;
  if (json.is_object() && json.empty()) return kTrue;
  return make(Kind::part, &json, {});
}

Schema SchemaTables::root() { return part(document_.root()); }
Schema SchemaTables::value(const Json& json) { return make(Kind::value, &json, {}); }

Schema SchemaTables::none_of(Schema schema) {
  if (schema <= kTrue) return kTrue - schema;
  if (nodes_[schema].kind == Kind::none_of) return nodes_[schema].parts[0];
  return make(Kind::none_of, nullptr, {schema});
}

Schema SchemaTables::all_of(std::vector<Schema> parts) {
  std::vector<Schema> flat;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == kFalse) return kFalse;
    if (parts[i] == kTrue) continue;
    const Node& node = nodes_[parts[i]];
    if (node.kind == Kind::all_of) {
      parts.insert(parts.end(), node.parts.begin(), node.parts.end());
    } else {
      flat.push_back(parts[i]);
    }
  }
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  for (const Schema one : flat) {
    if (nodes_[one].kind == Kind::none_of && has(flat, nodes_[one].parts[0])) return kFalse;
  }
  if (flat.empty()) return kTrue;
  return flat.size() == 1 ? flat[0] : make(Kind::all_of, nullptr, std::move(flat));
}

Schema SchemaTables::any_of(std::vector<Schema> parts) {
  std::vector<Schema> flat;
  for (const Schema one : parts) {
    if (one == kTrue) return kTrue;
    if (one != kFalse) flat.push_back(one);
  }
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kFalse;
  return flat.size() == 1 ? flat[0] : make(Kind::any_of, nullptr, std::move(flat));
}

std::uint32_t SchemaTables::name_id(std::string_view text) { return name_id(to_code_points(text)); }

std::uint32_t SchemaTables::name_id(const std::u32string& text) {
  const auto [it, added] = name_ids_.emplace(text, static_cast<std::uint32_t>(names_.size()));
  if (added) names_.push_back(text);
  return it->second;
}

void SchemaTables::report(const Json& at, std::string keyword, std::string why) {
  const std::string path = document_.path_of(at);
  for (const Unenforced& known : unenforced_) {
    if (known.keyword == keyword && known.path == path) return;
  }
  if (frozen_) {
    throw LimitError("'" + keyword + "' of " + (path.empty() ? "the schema" : path) + ": " + why);
  }
  unenforced_.push_back({std::move(keyword), path, std::move(why)});
}

Table SchemaTables::everything() const {
  Table table;
  table.null = table.yes = table.no = true;
  table.string = table.number = kAnything;
  table.objects.emplace_back();
  table.arrays.emplace_back();
  return table;
}

const Table& SchemaTables::table(Schema schema) {
  Node& node = nodes_[schema];
  if (node.table) return *node.table;
  if (node.busy) throw LimitError("a schema refers to itself before it says anything");
  if (depth_ >= kMaxDepth) {
    throw LimitError("more than " + std::to_string(kMaxDepth) + " schemas need one another");
  }
  node.busy = true;
  ++depth_;
  try {
    node.table = derive(node);
  } catch (...) {
    node.busy = false;
    --depth_;
    throw;
  }
  --depth_;
  node.busy = false;
  bytes_ += sizeof(Table);
  for (const ObjectShape& shape : node.table->objects) {
    bytes_ += sizeof shape + 8 * (shape.properties.size() + shape.rules.size());
  }
  return *node.table;
}

Table SchemaTables::derive(const Node& node) {
  switch (node.kind) {
    case Kind::none:
      return {};
    case Kind::all:
      return everything();
    case Kind::part:
      return KeywordReader(*this, *node.json).read();
    case Kind::value:
      return value_table(*node.json);
    case Kind::any_of: {
      Table out;
      for (const Schema one : node.parts) add(out, table(one));
      return out;
    }
    case Kind::all_of: {
      Table out = table(node.parts[0]);
      for (std::size_t i = 1; i < node.parts.size(); ++i) {
        const Table& next = table(node.parts[i]);
        if (auto merged = both(out, next)) {
          out = std::move(*merged);
        } else {
          const Json* at = nodes_[node.parts[i]].json;
          report(at == nullptr ? document_.root() : *at, "allOf", "it has too many combinations");
          out.exact = false;
        }
      }
      return out;
    }
    case Kind::none_of: {
      const Schema inner = node.parts[0];
      const Table& of = table(inner);
      std::optional<Table> out;
      if (of.exact) out = negative(of);
      if (out) return std::move(*out);
      const Json* at = nodes_[inner].json;
      report(at == nullptr ? document_.root() : *at, "not",
             of.exact ? "it has too many combinations" : "what it denies is not enforced");
      Table all = everything();
      all.exact = false;
      return all;
    }
  }
  return {};
}

void SchemaTables::add(Table& to, const Table& from) {
  to.null = to.null || from.null;
  to.yes = to.yes || from.yes;
  to.no = to.no || from.no;
  to.string = text_sets_.either(to.string, from.string);
  to.number = text_sets_.either(to.number, from.number);
  for (const ObjectShape& shape : from.objects) {
    if (std::find(to.objects.begin(), to.objects.end(), shape) == to.objects.end()) {
      to.objects.push_back(shape);
    }
  }
  for (const ArrayShape& shape : from.arrays) {
    if (std::find(to.arrays.begin(), to.arrays.end(), shape) == to.arrays.end()) {
      to.arrays.push_back(shape);
    }
  }
  to.exact = to.exact && from.exact;
}

bool SchemaTables::surely_empty(Schema schema, int depth) {
  if (schema <= kTrue) return schema == kFalse;
  const Node& node = nodes_[schema];
  if (node.busy || depth > kSoon) return false;
  const auto known = empty_.find(schema);
  if (known != empty_.end()) return known->second;
  bool empty = false;
  try {
    const Table& of = table(schema);
    empty = !of.null && !of.yes && !of.no && !text_sets_.live(of.string) &&
            !text_sets_.live(number_texts(of.number, false)) &&
            std::all_of(of.objects.begin(), of.objects.end(),
                        [&](const auto& shape) { return surely_empty(shape, depth + 1); }) &&
            std::all_of(of.arrays.begin(), of.arrays.end(),
                        [&](const auto& shape) { return surely_empty(shape, depth + 1); });
  } catch (const LimitError&) {
    return false;  // whoever needs it will meet the limit
  }
  empty_[schema] = empty;
  return empty;
}

bool SchemaTables::surely_empty(const ObjectShape& shape, int depth) {
  if (shape.least > shape.most || shape.required.size() > shape.most) return true;
  return std::any_of(shape.required.begin(), shape.required.end(), [&](std::uint32_t name) {
    return surely_empty(property(shape, name), depth);
  });
}

bool SchemaTables::surely_empty(const ArrayShape& shape, int depth) {
  if (shape.least > shape.most) return true;
  const std::uint64_t looked_at = std::min<std::uint64_t>(shape.least, shape.prefix.size() + 1);
  for (std::uint64_t i = 0; i < looked_at; ++i) {
    if (surely_empty(item(shape, i), depth)) return true;
  }
  return std::any_of(shape.contains.begin(), shape.contains.end(), [&](const Contains& one) {
    return one.least > one.most || (one.least > 0 && surely_empty(one.schema, depth));
  });
}

bool SchemaTables::has_name(TextSet names, std::uint32_t name) {
  const auto [it, added] = in_.emplace(std::make_pair(name, names), false);
  if (added) it->second = text_sets_.contains(names, names_[name]);
  return it->second;
}

Schema SchemaTables::property(const ObjectShape& shape, std::uint32_t name) {
  std::vector<Schema> parts;
  for (const auto& [own, schema] : shape.properties) {
    if (own == name) parts.push_back(schema);
  }
  for (const auto& [names, schema] : shape.rules) {
    if (has_name(names, name)) parts.push_back(schema);
  }
  return all_of(std::move(parts));
}

Schema SchemaTables::item(const ArrayShape& shape, std::uint64_t index) {
  std::vector<Schema> parts = {index < shape.prefix.size() ? shape.prefix[index] : shape.rest};
  for (const Contains& one : shape.contains) {
    if (one.most == 0 && index >= one.from) parts.push_back(none_of(one.schema));
  }
  return parts.size() == 1 ? parts[0] : all_of(std::move(parts));
}

TextSet SchemaTables::number_texts(TextSet values, bool plain) {
  if (values == kAnything) return full_syntax_;
  const TextSet texts = text_sets_.both(values, plain_syntax_);
  if (!plain || text_sets_.live(text_sets_.minus(texts, integer_))) return texts;
  return text_sets_.both(values, integer_syntax_);
}

bool SchemaTables::satisfiable(Schema schema) {
  Node& node = nodes_[schema];
  if (schema <= kTrue) return schema == kTrue;
  if (node.satisfiable >= 0) {
    if (node.lowest > 0) lowest_ = std::min(lowest_, node.lowest);
    return node.satisfiable == 1;
  }
  if (node.depth > 0) {
    lowest_ = std::min(lowest_, node.depth);
    return false;
  }
  if (search_depth_ >= kMaxDepth) {
    throw LimitError("it needs values nested more than " + std::to_string(kMaxDepth) + " deep");
  }
  node.depth = ++search_depth_;
  const std::size_t before = lowest_;
  const std::size_t first = undecided_.size();
  lowest_ = SIZE_MAX;
  const bool found = any_in(table(schema));
  const std::size_t depth = node.depth;
  node.depth = 0;
  --search_depth_;
  node.satisfiable = found ? 1 : 0;
  if (!found && lowest_ < depth) {  // it may follow from a schema that is being looked at
    node.lowest = lowest_;
    undecided_.push_back(schema);
    lowest_ = std::min(before, lowest_);
    return false;
  }
  for (std::size_t i = first; i < undecided_.size(); ++i) {
    nodes_[undecided_[i]].lowest = 0;
    if (found) nodes_[undecided_[i]].satisfiable = -1;
  }
  undecided_.resize(first);
  lowest_ = before;
  return found;
}

bool SchemaTables::any_in(const Table& of) {
  return of.null || of.yes || of.no || text_sets_.live(of.string) ||
         text_sets_.live(number_texts(of.number, false)) ||
         std::any_of(of.arrays.begin(), of.arrays.end(),
                     [&](const auto& shape) { return satisfiable(shape); }) ||
         std::any_of(of.objects.begin(), of.objects.end(),
                     [&](const auto& shape) { return satisfiable(shape); });
}

bool SchemaTables::satisfiable(const ArrayShape& shape) {
  if (shape.least > shape.most) return false;
  std::uint64_t needed = shape.least;
  for (const Contains& one : shape.contains) {
    if (one.least > one.most) return false;
    if (one.least == 0) continue;
    // Witnesses come after the prefix where the rest allows them, else wherever one fits.
    std::uint64_t fits = 0;
    for (std::size_t i = one.from; i < shape.prefix.size(); ++i) {
      if (satisfiable(all_of({item(shape, i), one.schema}))) ++fits;
    }
    const std::uint64_t behind = std::max<std::uint64_t>(shape.prefix.size(), one.from);
    const bool endless = satisfiable(all_of({item(shape, behind), one.schema}));
    if (!endless && fits < one.least) return false;
    const std::uint64_t last =
        endless && fits < one.least
            ? std::max<std::uint64_t>(one.from, shape.prefix.size()) + one.least - fits
            : one.from + one.least;
    needed = std::max(needed, last);
  }
  if (needed > shape.most) return false;
  const std::uint64_t looked_at = std::min<std::uint64_t>(needed, shape.prefix.size() + 1);
  for (std::uint64_t i = 0; i < looked_at; ++i) {
    if (!satisfiable(item(shape, i))) return false;
  }
  return true;
}

/// Names besides the required ones fit that meet what the required ones leave of `exists`.
bool SchemaTables::has_room(const ObjectShape& shape, TextSet forbidden) {
  constexpr std::size_t kMaxExists = 6;
  if (shape.exists.size() > kMaxExists) return true;
  const auto meets = [&](std::uint32_t name) {
    std::uint32_t met = 0;
    for (std::size_t e = 0; e < shape.exists.size(); ++e) {
      const auto& [names, schema] = shape.exists[e];
      if (has_name(names, name) && satisfiable(all_of({property(shape, name), schema}))) {
        met |= 1U << e;
      }
    }
    return met;
  };
  std::uint32_t left = (1U << shape.exists.size()) - 1;
  for (const std::uint32_t name : shape.required) left &= ~meets(name);
  std::vector<std::uint32_t> others;  // what one further name meets
  for (const auto& [name, schema] : shape.properties) {
    if (std::binary_search(shape.required.begin(), shape.required.end(), name)) continue;
    if (satisfiable(property(shape, name))) others.push_back(meets(name));
  }
  std::vector<std::u32string> named;
  for (const auto& [name, schema] : shape.properties) named.push_back(names_[name]);
  for (const std::uint32_t name : shape.required) named.push_back(names_[name]);
  forbidden = text_sets_.either(forbidden, text_sets_.words(named));
  for (std::size_t e = 0; e < shape.exists.size(); ++e) {
    if (text_sets_.live(text_sets_.minus(shape.exists[e].first, forbidden))) {
      others.push_back(1U << e);
    }
  }
  std::vector<bool> reached(std::size_t{1} << shape.exists.size());
  reached[left] = true;
  const std::uint64_t most =
      shape.most == kUnbounded ? kMaxExists + 1 : shape.most - shape.required.size();
  for (std::uint64_t room = most; !reached[0] && room > 0; --room) {
    const std::vector<bool> now = reached;
    for (std::uint32_t bits = 0; bits < now.size(); ++bits) {
      if (!now[bits]) continue;
      for (const std::uint32_t met : others) reached[bits & ~met] = true;
    }
    if (now == reached) return false;
  }
  return reached[0];
}

bool SchemaTables::satisfiable(const ObjectShape& shape) {
  if (shape.least > shape.most || shape.required.size() > shape.most) return false;
  for (const std::uint32_t name : shape.required) {
    if (!satisfiable(property(shape, name))) return false;
  }
  TextSet forbidden = kNothing;
  for (const auto& [names, schema] : shape.rules) {
    if (!satisfiable(schema)) forbidden = text_sets_.either(forbidden, names);
  }
  for (const auto& [names, schema] : shape.exists) {
    if (!satisfiable(schema)) return false;
    if (!text_sets_.live(text_sets_.minus(names, forbidden))) return false;
  }
  if (!shape.exists.empty() && !has_room(shape, forbidden)) return false;
  if (shape.least <= shape.required.size()) return true;
  if (shape.least - shape.required.size() > 10'000) return forbidden == kNothing;
  return text_sets_.count(text_sets_.complement(forbidden), shape.least) >= shape.least;
}

}  // namespace baton::schema
