// `and` and `not` of tables.
#include <algorithm>

#include "text/schema/schema_tables.h"

namespace baton::schema {
namespace {

constexpr std::size_t kMaxShapes = 256;      // of objects, and of arrays, in one table
constexpr std::size_t kMaxMerges = 400'000;  // of shapes, for one grammar

template <typename Shape>
bool add_new(std::vector<Shape>& to, Shape shape) {
  if (std::find(to.begin(), to.end(), shape) == to.end()) to.push_back(std::move(shape));
  return to.size() <= kMaxShapes;
}

template <typename Entry>
void append(std::vector<Entry>& to, const std::vector<Entry>& from) {
  for (const Entry& entry : from) {
    if (std::find(to.begin(), to.end(), entry) == to.end()) to.push_back(entry);
  }
}

}  // namespace

std::optional<ObjectShape> SchemaTables::both(const ObjectShape& a, const ObjectShape& b) {
  if (++merges_ > kMaxMerges) throw LimitError("its combinations are too many");
  ObjectShape out = a;
  std::unordered_map<std::uint32_t, std::size_t> at;
  for (std::size_t i = 0; i < out.properties.size(); ++i) at[out.properties[i].first] = i;
  for (const auto& [name, schema] : b.properties) {
    const auto known = at.find(name);
    if (known == at.end()) {
      out.properties.emplace_back(name, schema);
    } else {
      Schema& own = out.properties[known->second].second;
      own = all_of({own, schema});
    }
  }
  append(out.rules, b.rules);
  append(out.exists, b.exists);
  append(out.patterns, b.patterns);
  out.required.insert(out.required.end(), b.required.begin(), b.required.end());
  std::sort(out.required.begin(), out.required.end());
  out.required.erase(std::unique(out.required.begin(), out.required.end()), out.required.end());
  out.least = std::max(a.least, b.least);
  out.most = std::min(a.most, b.most);
  out.named = a.named || b.named;
  out.others = a.others || b.others;
  out.evaluated = text_sets_.either(a.evaluated, b.evaluated);
  if (surely_empty(out, 0)) return std::nullopt;
  return out;
}

std::optional<ArrayShape> SchemaTables::both(const ArrayShape& a, const ArrayShape& b) {
  if (++merges_ > kMaxMerges) throw LimitError("its combinations are too many");
  ArrayShape out;
  const std::size_t prefix = std::max(a.prefix.size(), b.prefix.size());
  for (std::size_t i = 0; i < prefix; ++i) out.prefix.push_back(all_of({item(a, i), item(b, i)}));
  out.rest = all_of({a.rest, b.rest});
  out.contains = a.contains;
  append(out.contains, b.contains);
  out.least = std::max(a.least, b.least);
  out.most = std::min(a.most, b.most);
  out.evaluated = std::max(a.evaluated, b.evaluated);
  if (surely_empty(out, 0)) return std::nullopt;
  return out;
}

std::optional<Table> SchemaTables::both(const Table& a, const Table& b) {
  Table out;
  out.null = a.null && b.null;
  out.yes = a.yes && b.yes;
  out.no = a.no && b.no;
  out.string = text_sets_.both(a.string, b.string);
  out.number = text_sets_.both(a.number, b.number);
  out.exact = a.exact && b.exact;
  for (const ObjectShape& mine : a.objects) {
    for (const ObjectShape& theirs : b.objects) {
      auto shape = both(mine, theirs);
      if (shape && !add_new(out.objects, std::move(*shape))) return std::nullopt;
    }
  }
  for (const ArrayShape& mine : a.arrays) {
    for (const ArrayShape& theirs : b.arrays) {
      auto shape = both(mine, theirs);
      if (shape && !add_new(out.arrays, std::move(*shape))) return std::nullopt;
    }
  }
  return out;
}

std::vector<ObjectShape> SchemaTables::negative_shapes(const ObjectShape& of) {
  std::vector<ObjectShape> out;
  for (const std::uint32_t name : of.required) {
    out.emplace_back().properties.emplace_back(name, kFalse);
  }
  for (const auto& [name, schema] : of.properties) {
    if (schema == kTrue) continue;
    ObjectShape& shape = out.emplace_back();
    shape.properties.emplace_back(name, none_of(schema));
    shape.required.push_back(name);
  }
  for (const auto& [names, schema] : of.rules) {
    if (schema != kTrue) out.emplace_back().exists.emplace_back(names, none_of(schema));
  }
  for (const auto& [names, schema] : of.exists) {
    out.emplace_back().rules.emplace_back(names, none_of(schema));
  }
  if (of.least > 0) out.emplace_back().most = of.least - 1;
  if (of.most != kUnbounded) out.emplace_back().least = of.most + 1;
  return out;
}

std::vector<ArrayShape> SchemaTables::negative_shapes(const ArrayShape& of) {
  std::vector<ArrayShape> out;
  for (std::size_t i = 0; i < of.prefix.size(); ++i) {
    if (of.prefix[i] == kTrue) continue;
    ArrayShape& shape = out.emplace_back();
    shape.prefix.assign(i, kTrue);
    shape.prefix.push_back(none_of(of.prefix[i]));
    shape.least = i + 1;
  }
  if (of.rest != kTrue) {
    out.emplace_back().contains.push_back(
        {static_cast<std::uint32_t>(of.prefix.size()), none_of(of.rest), 1, kUnbounded});
  }
  for (const Contains& one : of.contains) {
    if (one.least > 0) {
      out.emplace_back().contains.push_back({one.from, one.schema, 0, one.least - 1});
    }
    if (one.most != kUnbounded) {
      out.emplace_back().contains.push_back({one.from, one.schema, one.most + 1, kUnbounded});
    }
  }
  if (of.least > 0) out.emplace_back().most = of.least - 1;
  if (of.most != kUnbounded) out.emplace_back().least = of.most + 1;
  return out;
}

std::optional<Table> SchemaTables::negative(const Table& of) {
  Table out = everything();
  out.null = !of.null;
  out.yes = !of.yes;
  out.no = !of.no;
  out.string = text_sets_.complement(of.string);
  out.number = text_sets_.complement(of.number);
  for (const ObjectShape& shape : of.objects) {
    std::vector<ObjectShape> next;
    const std::vector<ObjectShape> wrong = negative_shapes(shape);
    for (const ObjectShape& mine : out.objects) {
      for (const ObjectShape& theirs : wrong) {
        auto merged = both(mine, theirs);
        if (merged && !add_new(next, std::move(*merged))) return std::nullopt;
      }
    }
    out.objects = std::move(next);
  }
  for (const ArrayShape& shape : of.arrays) {
    std::vector<ArrayShape> next;
    const std::vector<ArrayShape> wrong = negative_shapes(shape);
    for (const ArrayShape& mine : out.arrays) {
      for (const ArrayShape& theirs : wrong) {
        auto merged = both(mine, theirs);
        if (merged && !add_new(next, std::move(*merged))) return std::nullopt;
      }
    }
    out.arrays = std::move(next);
  }
  return out;
}

}  // namespace baton::schema
