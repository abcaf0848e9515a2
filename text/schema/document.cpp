#include "text/schema/document.h"

#include <algorithm>
#include <array>
#include <utility>

namespace baton::schema {
namespace {

constexpr std::array kOne = {"additionalProperties",
                             "additionalItems",
                             "propertyNames",
                             "contains",
                             "not",
                             "if",
                             "then",
                             "else",
                             "unevaluatedItems",
                             "unevaluatedProperties",
                             "items",
                             "contentSchema"};
constexpr std::array kLists = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
constexpr std::array kMaps = {"properties",  "patternProperties", "$defs",
                              "definitions", "dependentSchemas",  "dependencies"};

/// Nesting, by the brackets outside strings: what is too deep is not parsed.
int depth_of(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

std::string without_fragment(std::string_view uri) {
  return std::string(uri.substr(0, uri.find('#')));
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() &&
        std::isxdigit(static_cast<unsigned char>(text[i + 1])) != 0 &&
        std::isxdigit(static_cast<unsigned char>(text[i + 2])) != 0) {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string unescaped(std::string_view step) {
  std::string out;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1')) {
      out += step[++i] == '0' ? '~' : '/';
    } else {
      out += step[i];
    }
  }
  return out;
}

std::string escaped(std::string_view step) {
  std::string out;
  for (const char c : step) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

bool has_scheme(std::string_view uri) {
  const std::size_t colon = uri.find(':');
  return colon != uri.npos && colon > 0 && uri.substr(0, colon).find_first_of("/?#") == uri.npos;
}

std::string without_dots(std::string_view path) {
  std::vector<std::string_view> kept;
  bool folder = false;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view step = path.substr(at, end - at);
    folder = step == "." || step == "..";
    if (step == ".." && kept.size() > 1) kept.pop_back();
    if (!folder) kept.push_back(step);
    at = end + 1;
  }
  std::string out;
  for (std::size_t i = 0; i < kept.size(); ++i) out += (i > 0 ? "/" : "") + std::string(kept[i]);
  return folder ? out + "/" : out;
}

/// RFC 3986, section 5.2, for the references that schemas have.
std::string resolved(std::string_view base, std::string_view reference) {
  if (has_scheme(reference)) return std::string(reference);
  const std::string start = without_fragment(base);
  if (reference.empty() || reference[0] == '#') return start + std::string(reference);
  const std::size_t scheme = has_scheme(start) ? start.find(':') + 1 : 0;
  if (reference.starts_with("//")) return start.substr(0, scheme) + std::string(reference);
  std::size_t root = scheme;
  if (std::string_view(start).substr(scheme).starts_with("//")) {
    root = std::min(start.find('/', scheme + 2), start.size());
  }
  const std::size_t tail = std::min(reference.find_first_of("?#"), reference.size());
  std::string path(reference.substr(0, tail));
  if (reference[0] != '/') {
    const std::string old = start.substr(root, start.find('?') - root);
    const std::size_t slash = old.rfind('/');
    path = (slash == old.npos ? (root > scheme ? "/" : "") : old.substr(0, slash + 1)) + path;
  }
  return start.substr(0, root) + without_dots(path) + std::string(reference.substr(tail));
}

}  // namespace

Result<std::unique_ptr<Document>> Document::read(std::string_view text) {
  if (const int depth = depth_of(text); depth > kMaxDepth) {
    return invalid("the schema is nested " + std::to_string(depth) + " deep; at most " +
                   std::to_string(kMaxDepth) + " levels are allowed");
  }
  auto document = std::make_unique<Document>();
  document->root_ = Json::parse(text, nullptr, false);
  const Json& root = document->root_;
  if (root.is_discarded()) return invalid("the schema is not valid JSON");
  if (!root.is_object() && !root.is_boolean()) {
    return invalid("the schema must be an object or a boolean");
  }
  if (root.is_object() && root.contains("$schema") && root["$schema"].is_string()) {
    const auto& draft = root["$schema"].get_ref<const std::string&>();
    for (const char* old : {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"}) {
      if (draft.find(old) != draft.npos) document->old_refs_ = true;
    }
  }
  document->has_unevaluated_ = text.find("\"unevaluated") != text.npos;
  document->resources_.emplace("", &root);
  document->index(root, nullptr, "", 0);
  return document;
}

void Document::index(const Json& schema, const Json* parent, std::string step, std::size_t base) {
  if (!places_.emplace(&schema, Place{parent, std::move(step), base}).second) return;
  if (!schema.is_object()) return;
  for (const char* name : {"$id", "id"}) {
    const auto id = schema.find(name);
    if (id == schema.end() || !id->is_string()) continue;
    if (old_refs_ && schema.contains("$ref")) continue;
    const std::string uri = resolved(bases_[base], id->get_ref<const std::string&>());
    if (id->get_ref<const std::string&>().starts_with("#")) {
      anchors_.emplace(uri, &schema);
      continue;
    }
    bases_.push_back(without_fragment(uri));
    base = bases_.size() - 1;
    resources_.emplace(bases_[base], &schema);
    places_[&schema].base = base;
  }
  for (const char* name : {"$anchor", "$dynamicAnchor"}) {
    const auto anchor = schema.find(name);
    if (anchor == schema.end() || !anchor->is_string()) continue;
    const auto& text = anchor->get_ref<const std::string&>();
    anchors_.emplace(bases_[base] + "#" + text, &schema);
    if (name[1] == 'd') ++dynamic_[text];
  }
  index_inside(schema, base);
}

void Document::index_inside(const Json& schema, std::size_t base) {
  for (const char* name : kOne) {
    const auto inside = schema.find(name);
    if (inside != schema.end() && !inside->is_array()) index(*inside, &schema, name, base);
  }
  for (const char* name : kLists) {
    const auto list = schema.find(name);
    if (list == schema.end() || !list->is_array()) continue;
    places_.emplace(&*list, Place{&schema, name, base});
    std::size_t i = 0;
    for (const Json& inside : *list) index(inside, &*list, std::to_string(i++), base);
  }
  for (const char* name : kMaps) {
    const auto map = schema.find(name);
    if (map == schema.end() || !map->is_object()) continue;
    places_.emplace(&*map, Place{&schema, name, base});
    for (const auto& [key, inside] : map->items()) index(inside, &*map, key, base);
  }
}

const Json* Document::follow(const Json& start, std::string_view pointer, std::size_t base) {
  const Json* at = &start;
  while (!pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    pointer.remove_prefix(1);
    const std::size_t end = std::min(pointer.find('/'), pointer.size());
    const std::string step = unescaped(pointer.substr(0, end));
    pointer.remove_prefix(end);
    const Json* next = nullptr;
    if (at->is_object()) {
      const auto found = at->find(step);
      if (found != at->end()) next = &*found;
    } else if (at->is_array() && !step.empty() && step.size() < 7 &&
               step.find_first_not_of("0123456789") == step.npos) {
      const auto i = static_cast<std::size_t>(std::stoul(step));
      if (i < at->size()) next = &(*at)[i];
    }
    if (next == nullptr) return nullptr;
    const auto known = places_.find(at);
    if (known != places_.end()) base = known->second.base;
    places_.emplace(next, Place{at, step, base});
    at = next;
  }
  if (at->is_object()) index_inside(*at, places_[at].base);
  return at;
}

const Json* Document::target(const Json& from, std::string_view keyword,
                             std::string_view reference) {
  const auto place = places_.find(&from);
  const std::size_t base = place == places_.end() ? 0 : place->second.base;
  const std::string uri = resolved(bases_[base], reference);
  const std::string resource = without_fragment(uri);
  const std::size_t hash = uri.find('#');
  const std::string fragment = hash == uri.npos ? "" : percent_decoded(uri.substr(hash + 1));
  if (keyword != "$ref" && !fragment.empty() && fragment[0] != '/') {
    const auto many = dynamic_.find(fragment);
    if (many != dynamic_.end() && many->second > 1) return nullptr;
  }
  if (!fragment.empty() && fragment[0] != '/') {
    const auto anchor = anchors_.find(resource + "#" + fragment);
    return anchor == anchors_.end() ? nullptr : anchor->second;
  }
  const auto found = resources_.find(resource);
  if (found == resources_.end()) return nullptr;
  return follow(*found->second, fragment, places_[found->second].base);
}

std::string Document::path_of(const Json& part) const {
  std::vector<std::string_view> steps;
  const Json* at = &part;
  for (auto it = places_.find(at); it != places_.end() && it->second.parent != nullptr;
       it = places_.find(at)) {
    steps.push_back(it->second.step);
    at = it->second.parent;
  }
  std::string path;
  for (std::size_t i = steps.size(); i-- > 0;) path += "/" + escaped(steps[i]);
  return path;
}

}  // namespace baton::schema
