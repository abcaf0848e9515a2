#include "text/schema/text_sets.h"

#include <algorithm>
#include <map>
#include <utility>

namespace baton::schema {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ULL + (hash << 6U) + (hash >> 2U);
  return hash * 0xBF58476D1CE4E5B9ULL;
}

void push_move(std::vector<Move>& moves, char32_t last, TextSet next) {
  if (!moves.empty() && moves.back().next == next) {
    moves.back().last = last;
  } else {
    moves.push_back({last, next});
  }
}

constexpr char32_t kFirstSurrogate = 0xD800;
constexpr char32_t kLastSurrogate = 0xDFFF;

}  // namespace

TextSets::TextSets() : TextSets(Limits()) {}

TextSets::TextSets(Limits limits) : limits_(limits) {
  nodes_.emplace_back();
  nodes_[kNothing].live = Live::no;
  nodes_[kNothing].moves = {{kLastCodePoint, kNothing}};
  nodes_.emplace_back();
  nodes_[kAnything].kind = Kind::anything;
  nodes_[kAnything].live = Live::yes;
  nodes_[kAnything].ends = true;
  nodes_[kAnything].moves = {{kLastCodePoint, kAnything}};
}

TextSets::~TextSets() = default;

TextSet TextSets::make(Kind kind, std::vector<std::uint64_t> parts, bool ends) {
  std::uint64_t hash = mixed(1, static_cast<std::uint64_t>(kind));
  for (const std::uint64_t part : parts) hash = mixed(hash, part);
  const auto [from, to] = index_.equal_range(hash);
  for (auto it = from; it != to; ++it) {
    const Node& node = nodes_[it->second];
    if (node.kind == kind && node.parts == parts) return it->second;
  }
  if (nodes_.size() >= limits_.states) {
    throw LimitError("it needs more than " + std::to_string(limits_.states) + " states for texts");
  }
  const TextSet id = static_cast<TextSet>(nodes_.size());
  bytes_ += sizeof(Node) + parts.size() * 8 + 32;
  Node& node = nodes_.emplace_back();
  node.kind = kind;
  node.parts = std::move(parts);
  node.ends = ends;
  index_.emplace(hash, id);
  return id;
}

TextSet TextSets::make_pattern(std::uint64_t nfa, const NfaSet& set) {
  if (set.empty()) return kNothing;
  if (nfas_[nfa]->everything(set)) return kAnything;
  std::vector<std::uint64_t> parts = {nfa};
  parts.insert(parts.end(), set.begin(), set.end());
  const TextSet id = make(Kind::pattern, std::move(parts), nfas_[nfa]->ends(set));
  nodes_[id].live = Live::yes;  // states from which the end cannot be reached are left out
  return id;
}

TextSet TextSets::pattern(std::shared_ptr<const Nfa> nfa) {
  const NfaSet start = nfa->start();
  bytes_ += nfa->bytes();
  nfas_.push_back(std::move(nfa));
  return make_pattern(nfas_.size() - 1, start);
}

std::uint32_t TextSets::graph_node(bool ends) {
  if (graph_.size() >= 4 * limits_.states) throw LimitError("its enumerations are too large");
  graph_.emplace_back().ends = ends;
  bytes_ += sizeof(GraphNode) + 16;
  return static_cast<std::uint32_t>(graph_.size() - 1);
}

TextSet TextSets::make_graph(std::uint32_t node) {
  if (!graph_[node].ends && graph_[node].next.empty()) return kNothing;
  return make(Kind::graph, {node}, graph_[node].ends);
}

TextSet TextSets::words(const std::vector<std::u32string>& texts) {
  if (texts.empty()) return kNothing;
  const std::uint32_t root = graph_node(false);
  std::vector<std::u32string> sorted = texts;  // so that moves come in order
  std::sort(sorted.begin(), sorted.end());
  for (const std::u32string& text : sorted) {
    std::uint32_t at = root;
    for (const char32_t c : text) {
      if (graph_[at].next.empty() || graph_[at].next.back().first != c) {
        const std::uint32_t next = graph_node(false);
        graph_[at].next.emplace_back(c, next);
      }
      at = graph_[at].next.back().second;
    }
    graph_[at].ends = true;
  }
  return make_graph(root);
}

TextSet TextSets::at_least(std::uint64_t characters) {
  if (characters == 0) return kAnything;
  const TextSet id = make(Kind::at_least, {characters}, false);
  nodes_[id].live = Live::yes;
  return id;
}

TextSet TextSets::at_most(std::uint64_t characters) {
  const TextSet id = make(Kind::at_most, {characters}, true);
  nodes_[id].live = Live::yes;
  return id;
}

TextSet TextSets::make_multiple(std::uint64_t which, std::uint64_t remainder,
                                std::uint64_t decimals) {
  // decimals: 0 before the point, then one more than the digits after it
  const Multiple& of = multiples_[which];
  std::uint64_t rest = remainder;
  for (std::uint64_t i = decimals == 0 ? 0 : decimals - 1; i < of.decimals; ++i) {
    rest = rest * 10 % of.step;
  }
  return make(Kind::multiple, {which, remainder, decimals}, rest == 0);
}

TextSet TextSets::complement(TextSet a) {
  if (a == kNothing) return kAnything;
  if (a == kAnything) return kNothing;
  const Node& node = nodes_[a];
  switch (node.kind) {
    case Kind::complement:
      return static_cast<TextSet>(node.parts[0]);
    case Kind::at_least:
      return at_most(node.parts[0] - 1);
    case Kind::at_most:
      return at_least(node.parts[0] + 1);
    case Kind::both:
    case Kind::either: {
      const Kind other = node.kind == Kind::both ? Kind::either : Kind::both;
      std::vector<TextSet> parts;
      for (const std::uint64_t part : std::vector<std::uint64_t>(node.parts)) {
        parts.push_back(complement(static_cast<TextSet>(part)));
      }
      return make_many(other, std::move(parts));
    }
    default:
      return make(Kind::complement, {a}, !node.ends);
  }
}

TextSet TextSets::both(TextSet a, TextSet b) { return make_many(Kind::both, {a, b}); }
TextSet TextSets::either(TextSet a, TextSet b) { return make_many(Kind::either, {a, b}); }

/// `parts` of `both`, or of `either`, whose rules are those of `both` with the roles exchanged.
TextSet TextSets::make_many(Kind kind, std::vector<TextSet> parts) {
  const bool all = kind == Kind::both;
  const TextSet zero = all ? kNothing : kAnything;
  const TextSet one = all ? kAnything : kNothing;
  std::vector<TextSet> flat;
  std::int64_t most = -1;
  std::int64_t least = -1;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TextSet part = parts[i];
    const Node& node = nodes_[part];
    if (part == zero) return zero;
    if (part == one) continue;
    if (node.kind == kind) {
      for (const std::uint64_t inside : node.parts) parts.push_back(static_cast<TextSet>(inside));
    } else if (node.kind == Kind::at_most || node.kind == Kind::at_least) {
      const auto bound = static_cast<std::int64_t>(node.parts[0]);
      std::int64_t& kept = node.kind == Kind::at_most ? most : least;
      const bool smaller = (node.kind == Kind::at_most) == all;
      kept = kept < 0 ? bound : smaller ? std::min(kept, bound) : std::max(kept, bound);
    } else {
      flat.push_back(part);
    }
  }
  if (most >= 0 && least >= 0) {
    if (all && least > most) return kNothing;
    if (!all && least <= most + 1) return kAnything;
  }
  if (most >= 0) flat.push_back(at_most(static_cast<std::uint64_t>(most)));
  if (least >= 0) flat.push_back(at_least(static_cast<std::uint64_t>(least)));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  bool ends = all;
  for (const TextSet part : flat) {
    const Node& node = nodes_[part];
    ends = all ? ends && node.ends : ends || node.ends;
    if (node.kind == Kind::complement &&
        std::binary_search(flat.begin(), flat.end(), static_cast<TextSet>(node.parts[0]))) {
      return zero;
    }
  }
  if (flat.empty()) return one;
  if (flat.size() == 1) return flat[0];
  return make(kind, std::vector<std::uint64_t>(flat.begin(), flat.end()), ends);
}

bool TextSets::ends(TextSet a) const { return nodes_[a].ends; }

void TextSets::derive_many(const Node& node, std::vector<Move>& out) {
  const std::vector<std::uint64_t> parts = node.parts;
  const Kind kind = node.kind;
  std::vector<const std::vector<Move>*> all;
  std::vector<std::size_t> at(parts.size(), 0);
  for (const std::uint64_t part : parts) all.push_back(&moves(static_cast<TextSet>(part)));
  std::vector<TextSet> nexts(parts.size());
  while (true) {
    char32_t last = kLastCodePoint;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      nexts[i] = (*all[i])[at[i]].next;
      last = std::min(last, (*all[i])[at[i]].last);
    }
    push_move(out, last, make_many(kind, nexts));
    if (last == kLastCodePoint) return;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if ((*all[i])[at[i]].last == last) ++at[i];
    }
  }
}

void TextSets::derive_multiple(const Node& node, std::vector<Move>& out) {
  const std::uint64_t which = node.parts[0];
  const std::uint64_t remainder = node.parts[1];
  const std::uint64_t decimals = node.parts[2];
  const Multiple of = multiples_[which];
  if (decimals == 0) {
    push_move(out, '-' - 1, kNothing);
    push_move(out, '-', make_multiple(which, remainder, 0));
    push_move(out, '.', make_multiple(which, remainder, 1));
  }
  push_move(out, '0' - 1, kNothing);
  for (std::uint64_t digit = 0; digit < 10; ++digit) {
    TextSet next = kNothing;
    if (decimals == 0 || decimals - 1 < of.decimals) {
      next = make_multiple(which, (remainder * 10 + digit) % of.step,
                           decimals == 0 ? 0 : decimals + 1);
    } else if (digit == 0) {
      next = make_multiple(which, remainder, decimals);
    }
    push_move(out, static_cast<char32_t>('0' + digit), next);
  }
  push_move(out, kLastCodePoint, kNothing);
}

void TextSets::derive(TextSet a, std::vector<Move>& out) {
  const Node& node = nodes_[a];
  switch (node.kind) {
    case Kind::nothing:
    case Kind::anything:
      break;
    case Kind::pattern: {
      const std::uint64_t nfa = node.parts[0];
      const NfaSet set(node.parts.begin() + 1, node.parts.end());
      for (const Nfa::Step& step : nfas_[nfa]->steps(set)) {
        push_move(out, step.last, make_pattern(nfa, step.set));
      }
      break;
    }
    case Kind::graph: {
      const auto next = graph_[node.parts[0]].next;
      for (const auto& [c, to] : next) {
        if (c > 0) push_move(out, c - 1, kNothing);
        push_move(out, c, make_graph(to));
      }
      if (out.empty() || out.back().last != kLastCodePoint) {
        push_move(out, kLastCodePoint, kNothing);
      }
      break;
    }
    case Kind::at_least:
      push_move(out, kLastCodePoint, at_least(node.parts[0] - 1));
      break;
    case Kind::at_most:
      push_move(out, kLastCodePoint, node.parts[0] == 0 ? kNothing : at_most(node.parts[0] - 1));
      break;
    case Kind::multiple:
      derive_multiple(node, out);
      break;
    case Kind::both:
    case Kind::either:
      derive_many(node, out);
      break;
    case Kind::complement: {
      const std::vector<Move> inside = moves(static_cast<TextSet>(node.parts[0]));
      for (const Move& move : inside) push_move(out, move.last, complement(move.next));
      break;
    }
  }
}

const std::vector<Move>& TextSets::moves(TextSet a) {
  if (nodes_[a].moves.empty()) {
    std::vector<Move> out;
    derive(a, out);
    bytes_ += out.size() * sizeof(Move);
    nodes_[a].moves = std::move(out);
  }
  return nodes_[a].moves;
}

TextSet TextSets::next(TextSet a, char32_t c) {
  const std::vector<Move>& all = moves(a);
  return std::lower_bound(all.begin(), all.end(), c,
                          [](const Move& move, char32_t wanted) { return move.last < wanted; })
      ->next;
}

bool TextSets::live_between(TextSet a, char32_t first, char32_t last) {
  const std::vector<Move>& all = moves(a);
  auto it = std::lower_bound(all.begin(), all.end(), first,
                             [](const Move& move, char32_t c) { return move.last < c; });
  for (; it != all.end(); ++it) {
    if (live(it->next)) return true;
    if (it->last >= last) break;
  }
  return false;
}

bool TextSets::live(TextSet a) {
  Node& node = nodes_[a];
  if (node.live == Live::unknown) {
    if (node.ends) {
      node.live = Live::yes;
    } else {
      search(a);
    }
  }
  return node.live == Live::yes;
}

/// One of the sets that all have the texts in common is empty.
bool TextSets::part_is_empty(TextSet a) {
  Node& node = nodes_[a];
  if (node.kind != Kind::both) return false;
  for (const std::uint64_t part : node.parts) {
    if (live(static_cast<TextSet>(part))) continue;
    node.live = Live::no;
    return true;
  }
  return false;
}

/// Breadth first: the shortest text is found soonest. All on the way to it are live; where there is
/// none, all that were visited are not.
bool TextSets::search(TextSet a) {
  std::vector<std::pair<TextSet, std::size_t>> visited = {{a, 0}};
  std::unordered_map<TextSet, bool> seen = {{a, true}};
  for (std::size_t i = 0; i < visited.size(); ++i) {
    const TextSet at = visited[i].first;
    if (nodes_[at].ends || nodes_[at].live == Live::yes) {
      for (std::size_t back = i;; back = visited[back].second) {
        nodes_[visited[back].first].live = Live::yes;
        if (back == 0) return true;
      }
    }
    if (visited.size() > limits_.search) {
      if (silent_) {
        nodes_[a].live = Live::no;
        return false;
      }
      throw LimitError("what its texts have in common takes more than " +
                       std::to_string(limits_.search) + " steps to find");
    }
    char32_t first = 0;
    for (const Move& move : moves(at)) {
      const bool surrogates = first >= kFirstSurrogate && move.last <= kLastSurrogate;
      first = move.last + 1;
      if (surrogates || nodes_[move.next].live == Live::no || part_is_empty(move.next)) continue;
      if (seen.emplace(move.next, true).second) visited.emplace_back(move.next, i);
    }
  }
  for (const auto& [dead, from] : visited) nodes_[dead].live = Live::no;
  return false;
}

bool TextSets::contains(TextSet a, std::u32string_view text) {
  for (const char32_t c : text) {
    a = next(a, c);
    if (a == kNothing) return false;
  }
  return ends(a);
}

std::size_t TextSets::count(TextSet a, std::size_t most) {
  // Texts by length, until there are enough or no state is left.
  std::map<TextSet, std::size_t> now = {{a, 1}};
  std::size_t found = 0;
  for (std::size_t length = 0; length < 64 && !now.empty(); ++length) {
    std::map<TextSet, std::size_t> then;
    for (const auto& [at, ways] : now) {
      if (ends(at)) found += ways;
      char32_t first = 0;
      for (const Move& move : moves(at)) {
        const std::size_t width = std::min<std::size_t>(move.last - first + 1, most);
        first = move.last + 1;
        if (!live(move.next)) continue;
        std::size_t& sum = then[move.next];
        sum = std::min(sum + ways * width, most);
      }
      if (found >= most) return most;
    }
    now = std::move(then);
  }
  return now.empty() ? std::min(found, most) : most;
}

std::optional<std::vector<std::u32string>> TextSets::list(TextSet a, std::size_t most) {
  if (count(a, most + 1) > most) return std::nullopt;
  std::vector<std::u32string> out;
  std::vector<std::pair<TextSet, std::u32string>> todo = {{a, U""}};
  while (!todo.empty()) {
    const auto [at, text] = std::move(todo.back());
    todo.pop_back();
    if (ends(at)) out.push_back(text);
    char32_t first = 0;
    for (const Move& move : moves(at)) {
      for (char32_t c = first; live(move.next) && c <= move.last; ++c) {
        todo.emplace_back(move.next, text + c);
      }
      first = move.last + 1;
    }
  }
  return out;
}

TextSet TextSets::without_length(TextSet a, std::uint64_t characters) {
  const Node& node = nodes_[a];
  if (node.kind == Kind::at_most) return node.parts[0] >= characters ? kAnything : a;
  if (node.kind == Kind::at_least) return kAnything;
  if (node.kind != Kind::both) return a;
  std::vector<TextSet> rest;
  bool shorter = false;
  bool longer = false;
  std::uint64_t most = kLastCodePoint;
  for (const std::uint64_t part : node.parts) {
    const Node& inside = nodes_[part];
    if (inside.kind == Kind::at_most && inside.parts[0] >= characters) {
      shorter = true;
      most = inside.parts[0];
    } else if (inside.kind == Kind::at_least) {
      longer = true;
      rest.push_back(static_cast<TextSet>(part));
    } else {
      rest.push_back(static_cast<TextSet>(part));
    }
  }
  if (!shorter || (longer && rest.size() > 1)) return a;
  if (longer) return kAnything;
  const TextSet without = make_many(Kind::both, std::move(rest));
  // Behind so many characters there must be room for whatever the rest still needs.
  const auto needed = farthest(without);
  return needed && most >= characters + *needed ? without : a;
}

std::optional<std::uint64_t> TextSets::farthest(TextSet a) {
  constexpr std::size_t kMaxSets = 256;
  const auto known = farthest_.find(a);
  if (known != farthest_.end()) return known->second;
  std::vector<TextSet> sets = {a};
  std::unordered_map<TextSet, std::vector<TextSet>> before;  // sets that lead to one
  before[a];
  for (std::size_t i = 0; i < sets.size() && sets.size() <= kMaxSets; ++i) {
    for (const Move& move : std::vector<Move>(moves(sets[i]))) {
      if (!live(move.next)) continue;
      if (!before.contains(move.next)) sets.push_back(move.next);
      before[move.next].push_back(sets[i]);
    }
  }
  if (sets.size() > kMaxSets) return farthest_[a] = std::nullopt;
  std::unordered_map<TextSet, std::uint64_t> distance;
  std::vector<TextSet> queue;
  for (const TextSet set : sets) {
    if (ends(set) && distance.emplace(set, 0).second) queue.push_back(set);
  }
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    most = distance[queue[i]];
    for (const TextSet from : before[queue[i]]) {
      if (distance.emplace(from, most + 1).second) queue.push_back(from);
    }
  }
  return farthest_[a] = most;
}

std::int64_t TextSets::only_length(TextSet a) const {
  const Node& node = nodes_[a];
  if (node.kind == Kind::at_most) return static_cast<std::int64_t>(node.parts[0]);
  if (node.kind != Kind::both || node.parts.size() != 2) return -1;
  // both bounds: the lower one never forbids a character
  std::int64_t most = -1;
  for (const std::uint64_t part : node.parts) {
    if (nodes_[part].kind == Kind::at_most) {
      most = static_cast<std::int64_t>(nodes_[part].parts[0]);
    } else if (nodes_[part].kind != Kind::at_least) {
      return -1;
    }
  }
  return most;
}

}  // namespace baton::schema
