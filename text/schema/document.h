// A JSON Schema as it was written: its references, and where its parts are.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ipc/status.h"

namespace baton::schema {

using Json = nlohmann::ordered_json;  // the order of a schema's keys is that of the text

/// Immutable but for lookups. Not thread-safe.
class Document {
 public:
  static constexpr int kMaxDepth = 200;

  /// An error: it is no JSON, no object or boolean, or nested more than kMaxDepth deep.
  static Result<std::unique_ptr<Document>> read(std::string_view text);

  const Json& root() const { return root_; }
  /// What `$ref`, `$dynamicRef` or `$recursiveRef` of `from` names; null: it is not here, or is not
  /// the same for every reader.
  const Json* target(const Json& from, std::string_view keyword, std::string_view reference);
  /// A JSON pointer to a part of the document.
  std::string path_of(const Json& part) const;
  /// Of drafts up to 7, a `$ref` makes what is beside it void.
  bool ref_stands_alone() const { return old_refs_; }
  bool has_unevaluated() const { return has_unevaluated_; }

 private:
  struct Place {
    const Json* parent = nullptr;
    std::string step;
    std::size_t base = 0;
  };

  void index(const Json& schema, const Json* parent, std::string step, std::size_t base);
  void index_inside(const Json& schema, std::size_t base);
  const Json* follow(const Json& start, std::string_view pointer, std::size_t base);

  Json root_;
  std::unordered_map<const Json*, Place> places_;
  std::vector<std::string> bases_ = {""};
  std::map<std::string, const Json*, std::less<>> resources_;  // by URI without a fragment
  std::map<std::string, const Json*, std::less<>> anchors_;    // by URI with one
  std::map<std::string, int, std::less<>> dynamic_;            // how many parts have that name
  bool old_refs_ = false;
  bool has_unevaluated_ = false;
};

}  // namespace baton::schema
