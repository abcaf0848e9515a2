// A structural tag (xgrammar's format of sequences, alternatives, tags and free text) as a
// nondeterministic automaton over bytes and special tokens, with whole JSON Schemas as edges.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ipc/status.h"

namespace baton::schema {

/// The id of a special token, by its text.
using SpecialIds = std::function<std::optional<std::uint32_t>(std::string_view text)>;

/// How the schemas of a text are taken where they do not say it themselves.
struct SchemaModes {
  /// Objects hold no keys that their schema does not name, unless it says so, and keys come in the
  /// schema's order. False: any keys that the standard allows, in any order.
  bool closed = true;
  /// A keyword that cannot be enforced is an error.
  bool refuse = false;
};

/// A JSON Schema inside of a structural tag.
struct TagSchema {
  std::string text;
  SchemaModes modes;
  std::string fallback{};  // the schema that it is where it cannot be compiled; empty: an error
  std::string name{};      // for messages: a function's name, or where in the tag it is
  auto key() const { return std::tie(text, modes.closed, modes.refuse, fallback, name); }
};

/// Built once, then read. Every node can reach the accepting one.
class TagNfa {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kMaxNodes = 400'000;

  struct Edge {
    unsigned char first = 0;
    unsigned char last = 0;
    std::uint32_t to = kNone;
  };
  struct Node {
    std::vector<Edge> edges;                                      // in order and apart
    std::vector<std::uint32_t> jumps;                             // without a byte
    std::vector<std::pair<std::uint32_t, std::uint32_t>> tokens;  // special tokens, where to
    std::uint32_t any_special = kNone;  // where every other special token leads
    std::uint32_t schema = kNone;       // a text of this schema leads to `after`
    std::uint32_t after = kNone;
    std::uint32_t text_root = kNone;  // of free text: the node at which no mark has begun
  };

  /// Of a tag that supports() takes. invalid_argument: it is too large, or not consistent.
  static Result<TagNfa> build(const nlohmann::ordered_json& tag, SchemaModes modes,
                              const SpecialIds& specials);
  /// One schema and nothing else.
  static TagNfa of_schema(TagSchema schema);

  std::uint32_t start() const { return 0; }
  std::uint32_t accepting() const { return 1; }
  const Node& node(std::uint32_t id) const { return nodes_[id]; }
  std::size_t size() const { return nodes_.size(); }
  const std::vector<TagSchema>& schemas() const { return schemas_; }
  std::size_t bytes() const;

 private:
  friend class TagBuilder;
  std::vector<Node> nodes_;
  std::vector<TagSchema> schemas_;
};

/// The tag consists of formats that build() knows, and holds a JSON Schema or says "held": true.
bool supports_tag(const nlohmann::ordered_json& tag, const SpecialIds& specials);
/// JSON pointers to the JSON Schemas of a tag.
std::vector<std::string> schemas_of_tag(const nlohmann::ordered_json& tag);

}  // namespace baton::schema
