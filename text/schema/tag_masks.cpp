#include "text/schema/tag_masks.h"

#include <algorithm>
#include <utility>

namespace baton::schema {
namespace {

void unite(Mask& to, const Mask& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] |= from[i];
}

}  // namespace

TagMasks::TagMasks(const Vocabulary& vocabulary, TagAutomaton& automaton)
    : vocabulary_(vocabulary),
      automaton_(automaton),
      states_(std::max({vocabulary.all().deepest, vocabulary.with_quote().deepest,
                        vocabulary.without_quote().deepest}) +
              1) {
  for (std::uint32_t i = 0; i < automaton.grammars(); ++i) {
    SchemaGrammar& grammar = automaton.grammar(i);
    schemas_.push_back(
        std::make_unique<TokenMasks>(vocabulary, grammar.automaton(), grammar.text_sets()));
  }
}

std::size_t TagMasks::bytes() const {
  std::size_t bytes = (masks_.size() + texts_.size()) * (4 * vocabulary_.mask_words() + 64);
  for (const auto& schema : schemas_) bytes += schema->bytes();
  return bytes;
}

const Mask& TagMasks::mask(State state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  if ((masks_.size() + texts_.size()) * 4 * vocabulary_.mask_words() > kKeptBytes) {
    masks_.clear();
    texts_.clear();
  }
  const std::vector<Item> items = automaton_.items(state);
  if (items.size() == 1) {
    const TagNfa::Node& node = automaton_.nfa().node(items[0].node);
    if (node.schema != TagNfa::kNone) {
      const TokenMasks::Found& found = schemas_[node.schema]->find(items[0].inner);
      if (found.exits.empty()) return found.mask;
    }
  }
  Mask made(vocabulary_.mask_words(), 0);
  std::vector<Item> plain;  // neither schemas nor free text
  for (const Item& item : items) {
    const TagNfa::Node& node = automaton_.nfa().node(item.node);
    add_specials(node, made);
    if (node.schema != TagNfa::kNone) {
      add_schema(item, made);
    } else if (node.text_root != TagNfa::kNone) {
      add_text(item.node, made);
    } else if (!node.edges.empty()) {
      plain.push_back(item);
    }
  }
  if (!plain.empty()) {
    const TokenTrie& trie = vocabulary_.all();
    walk(trie, 0, static_cast<std::uint32_t>(trie.nodes.size() - 1), 0,
         automaton_.state_of(std::move(plain)), made);
  }
  return masks_[state] = std::move(made);
}

void TagMasks::add_specials(const TagNfa::Node& node, Mask& mask) {
  if (node.any_special != TagNfa::kNone) {
    for (const auto& [text, token] : vocabulary_.specials()) set_bit(mask.data(), token);
  }
  for (const auto& [token, to] : node.tokens) set_bit(mask.data(), token);
}

/// The tokens inside of the schema's text, and those that end it and go on behind it.
void TagMasks::add_schema(const Item& item, Mask& mask) {
  const TagNfa::Node& node = automaton_.nfa().node(item.node);
  const TokenMasks::Found& found = schemas_[node.schema]->find(item.inner);
  unite(mask, found.mask);
  if (found.exits.empty()) return;
  const State behind = automaton_.behind_schema(item.node);
  for (const TokenMasks::Exit& exit : found.exits) {
    const TokenTrie::Node& at = exit.trie->nodes[exit.node];
    walk(*exit.trie, exit.node + 1, at.skip, at.depth, behind, mask);
  }
}

/// Nodes from `first` up to `last`, all below one at `depth` that leads to `state`.
void TagMasks::walk(const TokenTrie& trie, std::uint32_t first, std::uint32_t last,
                    std::size_t depth, State state, Mask& mask) {
  states_[depth] = state;
  for (std::uint32_t i = first; i < last;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const State to = automaton_.step(states_[node.depth - 1U], node.byte);
    if (to == TagAutomaton::kDead) {
      i = node.skip;
      continue;
    }
    states_[node.depth] = to;
    for (std::uint32_t t = node.token; t < trie.nodes[i + 1].token; ++t) {
      set_bit(mask.data(), trie.tokens[t]);
    }
    ++i;
  }
}

bool TagMasks::allows(State state, std::string_view text) {
  for (const char c : text) {
    state = automaton_.step(state, static_cast<unsigned char>(c));
    if (state == TagAutomaton::kDead) return false;
  }
  return true;
}

/// All tokens, less those with the first byte of a mark that do not go on as the tag wants it.
const Mask& TagMasks::text_mask(std::uint32_t root) {
  const auto known = texts_.find(root);
  if (known != texts_.end()) return known->second;
  Mask mask = vocabulary_.with_text();
  const State state = automaton_.state_of({{root, Automaton::kDead}});
  std::array<bool, 256> same{};
  for (const TagNfa::Edge& edge : automaton_.nfa().node(root).edges) {
    for (unsigned byte = edge.first; byte <= edge.last; ++byte) same[byte] = edge.to == root;
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (same[byte]) continue;
    for (const std::uint32_t token : vocabulary_.all_holding(static_cast<unsigned char>(byte))) {
      if (!allows(state, vocabulary_.text(token))) clear_bit(mask.data(), token);
    }
  }
  return texts_[root] = std::move(mask);
}

/// Within a mark: the same, but for tokens whose bytes lead elsewhere than from the root.
void TagMasks::add_text(std::uint32_t node, Mask& mask) {
  const std::uint32_t root = automaton_.nfa().node(node).text_root;
  Mask made = text_mask(root);
  if (node != root) {
    const TokenTrie& trie = vocabulary_.all();
    std::vector<State> at_root(states_.size());
    states_[0] = automaton_.state_of({{node, Automaton::kDead}});
    at_root[0] = automaton_.state_of({{root, Automaton::kDead}});
    const auto last = static_cast<std::uint32_t>(trie.nodes.size() - 1);
    for (std::uint32_t i = 0; i < last;) {
      const TokenTrie::Node& of = trie.nodes[i];
      const State to = states_[of.depth] = automaton_.step(states_[of.depth - 1U], of.byte);
      at_root[of.depth] = automaton_.step(at_root[of.depth - 1U], of.byte);
      if (to == at_root[of.depth]) {
        i = of.skip;
      } else if (to == TagAutomaton::kDead) {
        for (std::uint32_t t = of.token; t < trie.nodes[of.skip].token; ++t) {
          clear_bit(made.data(), trie.tokens[t]);
        }
        i = of.skip;
      } else {
        for (std::uint32_t t = of.token; t < trie.nodes[i + 1].token; ++t) {
          set_bit(made.data(), trie.tokens[t]);
        }
        ++i;
      }
    }
  }
  unite(mask, made);
}

}  // namespace baton::schema
