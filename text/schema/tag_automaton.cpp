#include "text/schema/tag_automaton.h"

#include <algorithm>
#include <utility>

namespace baton::schema {
namespace {

constexpr std::size_t kMaxItems = 20'000;  // ways to read a text

}  // namespace

TagAutomaton::TagAutomaton(std::shared_ptr<const TagNfa> nfa)
    : nfa_(std::move(nfa)), seen_(nfa_->size(), 0) {
  states_.id({});  // kDead
}

Result<std::shared_ptr<TagAutomaton>> TagAutomaton::make(std::shared_ptr<const TagNfa> nfa) {
  std::shared_ptr<TagAutomaton> made(new TagAutomaton(std::move(nfa)));
  for (const TagSchema& schema : made->nfa_->schemas()) {
    if (Status status = made->add_grammar(schema); !status.ok()) return status;
  }
  std::vector<Item> items;
  ++made->search_;
  made->reach(made->nfa_->start(), items);
  made->start_ = made->state_of(std::move(items));
  return made;
}

Status TagAutomaton::add_grammar(const TagSchema& schema) {
  auto compiled = SchemaGrammar::compile(schema.text, {schema.modes.closed});
  if (!compiled.ok()) {
    const std::string why = compiled.status().message();
    if (schema.fallback.empty())
      return invalid(schema.name.empty() ? why : schema.name + ": " + why);
    unenforced_.push_back({"", "", why, schema.name, schema.modes.refuse});
    compiled = SchemaGrammar::compile(schema.fallback, {schema.modes.closed});
    if (!compiled.ok()) return compiled.status();
  }
  grammars_.push_back(std::move(compiled).value());
  for (Unenforced one : grammars_.back()->unenforced()) {
    one.name = schema.name;
    one.refused = schema.modes.refuse;
    unenforced_.push_back(std::move(one));
  }
  return {};
}

void TagAutomaton::reach(std::uint32_t node, std::vector<Item>& out) {
  open_.assign(1, node);
  while (!open_.empty()) {
    const std::uint32_t id = open_.back();
    open_.pop_back();
    if (std::exchange(seen_[id], search_) == search_) continue;
    const TagNfa::Node& of = nfa_->node(id);
    open_.insert(open_.end(), of.jumps.begin(), of.jumps.end());
    if (of.schema != TagNfa::kNone) {
      out.push_back({id, grammars_[of.schema]->start()});
    } else if (id == nfa_->accepting() || !of.edges.empty() || !of.tokens.empty() ||
               of.any_special != TagNfa::kNone) {
      out.push_back({id, Automaton::kDead});
    }
  }
}

TagAutomaton::State TagAutomaton::state_of(std::vector<Item> items) {
  if (items.size() > kMaxItems) throw LimitError("its alternatives are too many");
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  Interned::List list;
  list.reserve(2 * items.size());
  for (const Item& item : items) list.insert(list.end(), {item.node, item.inner});
  return states_.id(std::move(list));
}

std::vector<TagAutomaton::Item> TagAutomaton::items(State state) const {
  const Interned::List& list = states_[state];
  std::vector<Item> out;
  out.reserve(list.size() / 2);
  for (std::size_t i = 0; i < list.size(); i += 2) out.push_back({list[i], list[i + 1]});
  return out;
}

bool TagAutomaton::may_end(State state) const {
  const Interned::List& list = states_[state];
  for (std::size_t i = 0; i < list.size(); i += 2) {
    if (list[i] == nfa_->accepting()) return true;
  }
  return false;
}

TagAutomaton::State TagAutomaton::step(State state, unsigned char byte) {
  if (state == kDead) return kDead;
  const std::uint64_t key = (static_cast<std::uint64_t>(state) << 8U) | byte;
  const auto found = steps_.find(key);
  if (found != steps_.end()) return found->second;
  const State next = derive(state, byte);
  // Most bytes lead nowhere, which is found out as soon as it is looked up.
  constexpr std::size_t kFew = 16;
  if (next != kDead || states_[state].size() > kFew) steps_.emplace(key, next);
  return next;
}

TagAutomaton::State TagAutomaton::derive(State state, unsigned char byte) {
  std::vector<Item> next;
  ++search_;
  const Interned::List& list = states_[state];
  for (std::size_t i = 0; i < list.size(); i += 2) {
    const TagNfa::Node& of = nfa_->node(list[i]);
    if (of.schema == TagNfa::kNone) {
      for (const TagNfa::Edge& edge : of.edges) {
        if (edge.first <= byte && byte <= edge.last) reach(edge.to, next);
      }
      continue;
    }
    Automaton& automaton = grammars_[of.schema]->automaton();
    if (!automaton.could(list[i + 1], byte)) continue;
    const Automaton::State inner = automaton.step(list[i + 1], byte);
    if (inner == Automaton::kDead) continue;
    if (!automaton.finished(inner)) next.push_back({list[i], inner});
    if (automaton.may_end(inner)) reach(of.after, next);
  }
  return state_of(std::move(next));
}

TagAutomaton::State TagAutomaton::step_special(State state, std::uint32_t token) {
  std::vector<Item> next;
  ++search_;
  const Interned::List& list = states_[state];
  for (std::size_t i = 0; i < list.size(); i += 2) {
    const TagNfa::Node& of = nfa_->node(list[i]);
    bool known = false;
    for (const auto& [id, to] : of.tokens) {
      if (id != token) continue;
      known = true;
      reach(to, next);
    }
    if (!known && of.any_special != TagNfa::kNone) reach(of.any_special, next);
  }
  return state_of(std::move(next));
}

TagAutomaton::State TagAutomaton::behind_schema(std::uint32_t node) {
  const auto known = behind_.find(node);
  if (known != behind_.end()) return known->second;
  std::vector<Item> items;
  ++search_;
  reach(nfa_->node(node).after, items);
  return behind_[node] = state_of(std::move(items));
}

std::size_t TagAutomaton::bytes() const {
  std::size_t bytes = nfa_->bytes() + states_.bytes() + 40 * steps_.size() + 4 * seen_.size();
  for (const auto& grammar : grammars_) bytes += grammar->bytes();
  return bytes;
}

}  // namespace baton::schema
