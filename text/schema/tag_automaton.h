// The texts of a structural tag as an automaton over bytes and special tokens, whose states are
// derived when they are visited. Every state can be completed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ipc/status.h"
#include "text/schema/interned.h"
#include "text/schema/schema_grammar.h"
#include "text/schema/tag_nfa.h"

namespace baton::schema {

/// A state is a set of nodes of a TagNfa, each inside of a schema with a state of that. Not
/// thread-safe. LimitError where a text needs more than a limit allows.
class TagAutomaton {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;
  struct Item {
    std::uint32_t node = 0;
    Automaton::State inner = Automaton::kDead;
    auto operator<=>(const Item&) const = default;
  };

  /// invalid_argument: a schema is wrong, is matched by nothing, or needs more than a limit allows.
  static Result<std::shared_ptr<TagAutomaton>> make(std::shared_ptr<const TagNfa> nfa);

  State start() const { return start_; }
  State step(State state, unsigned char byte);
  /// After a special token.
  State step_special(State state, std::uint32_t token);
  bool may_end(State state) const;

  /// The parts of a state, in order; and the state of some.
  std::vector<Item> items(State state) const;
  State state_of(std::vector<Item> items);
  /// Where a text goes on that completes the schema of the node.
  State behind_schema(std::uint32_t node);
  const TagNfa& nfa() const { return *nfa_; }
  SchemaGrammar& grammar(std::uint32_t schema) { return *grammars_[schema]; }
  std::size_t grammars() const { return grammars_.size(); }

  /// Keywords that are not enforced, in the order of the schemas.
  const std::vector<Unenforced>& unenforced() const { return unenforced_; }
  std::size_t bytes() const;

 private:
  explicit TagAutomaton(std::shared_ptr<const TagNfa> nfa);
  Status add_grammar(const TagSchema& schema);
  /// The nodes that can be reached from one without a byte.
  void reach(std::uint32_t node, std::vector<Item>& out);
  State derive(State state, unsigned char byte);

  const std::shared_ptr<const TagNfa> nfa_;
  std::vector<std::shared_ptr<SchemaGrammar>> grammars_;
  std::vector<Unenforced> unenforced_;
  Interned states_;  // [node, inner, ...]
  std::unordered_map<std::uint64_t, State> steps_;
  std::unordered_map<std::uint32_t, State> behind_;
  std::vector<std::uint32_t> seen_;  // by node: the search that came by
  std::uint32_t search_ = 0;
  std::vector<std::uint32_t> open_;
  State start_ = kDead;
};

}  // namespace baton::schema
