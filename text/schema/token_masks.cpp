#include "text/schema/token_masks.h"

#include <algorithm>

namespace baton::schema {
namespace {

constexpr unsigned char kFirstLead = 0xC2;
constexpr unsigned char kLastLead = 0xF4;

void unite(Mask& to, const Mask& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] |= from[i];
}

bool printable(unsigned char byte) {
  return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

}  // namespace

std::size_t TokenMasks::bytes() const {
  return (masks_.size() + insides_.size()) * (4 * vocabulary_.mask_words() + 64) +
         ascii_.size() * sizeof(Ascii) + exits_ * sizeof(Exit);
}

const TokenMasks::Found& TokenMasks::find(Automaton::State state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  if (bytes() > kKeptBytes) {
    masks_.clear();
    insides_.clear();
    ascii_.clear();
    exits_ = 0;
  }
  Found made{Mask(vocabulary_.mask_words(), 0), {}};
  std::vector<TextSet> sets;
  if (automaton_.in_string(state, sets)) {
    for (const TextSet set : sets) unite(made.mask, inside(set));
    const Automaton::State named = automaton_.named_only(state);
    if (named != Automaton::kDead) walk(vocabulary_.without_quote(), named, made);
    walk(vocabulary_.with_quote(), state, made);
  } else {
    walk(vocabulary_.all(), state, made);
  }
  exits_ += made.exits.size();
  return masks_[state] = std::move(made);
}

void TokenMasks::walk(const TokenTrie& trie, Automaton::State state, Found& found) {
  states_.resize(trie.deepest + 1);
  states_[0] = state;
  const std::uint32_t end = static_cast<std::uint32_t>(trie.nodes.size() - 1);
  for (std::uint32_t i = 0; i < end;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const Automaton::State from = states_[node.depth - 1U];
    const Automaton::State to =
        automaton_.could(from, node.byte) ? automaton_.step(from, node.byte) : Automaton::kDead;
    if (to == Automaton::kDead) {
      i = node.skip;
      continue;
    }
    states_[node.depth] = to;
    // Its own tokens come before those of the nodes below it.
    const TokenTrie::Node& below = trie.nodes[i + 1];
    for (std::uint32_t t = node.token; t < below.token; ++t) {
      set_bit(found.mask.data(), trie.tokens[t]);
    }
    if (node.skip != i + 1 && automaton_.may_end(to)) found.exits.push_back({&trie, i});
    ++i;
  }
}

const TokenMasks::Ascii& TokenMasks::ascii(TextSet set) {
  std::unique_ptr<Ascii>& table = ascii_[set];
  if (!table) {
    table = std::make_unique<Ascii>();
    for (unsigned char byte = 0; byte < 128; ++byte) {
      const TextSet to = printable(byte) ? text_sets_.next(set, byte) : kNothing;
      (*table)[byte] = text_sets_.live(to) ? to : kNothing;
    }
  }
  return *table;
}

TokenMasks::Place TokenMasks::next(Place place, unsigned char byte) {
  if (place.lex == 0 && printable(byte)) {
    place.set = ascii(place.set)[byte];
    place.alive = place.set != kNothing;
    return place;
  }
  const LexStep step = lex(place.lex, byte);
  place.alive = false;
  if (step.kind == LexStep::Kind::character) {
    place.set = text_sets_.next(place.set, step.character);
    place.alive = text_sets_.live(place.set);
  } else if (step.kind == LexStep::Kind::inside) {
    place.alive = text_sets_.live_between(place.set, step.first, step.last) ||
                  (step.first_more <= step.last_more &&
                   text_sets_.live_between(place.set, step.first_more, step.last_more));
  }
  place.lex = step.state;
  return place;
}

TokenMasks::Loops TokenMasks::loops(TextSet set) {
  Loops out;
  const Ascii& table = ascii(set);
  for (unsigned byte = 0; byte < 128; ++byte) out[byte] = table[byte] == set;
  char32_t first = 0;
  std::vector<std::pair<char32_t, char32_t>> same;
  for (const Move& move : text_sets_.moves(set)) {
    if (move.next == set) same.emplace_back(first, move.last);
    first = move.last + 1;
  }
  for (unsigned byte = kFirstLead; byte <= kLastLead; ++byte) {
    const LexStep step = lex(0, static_cast<unsigned char>(byte));
    out[byte] = std::any_of(same.begin(), same.end(), [&](const auto& range) {
      return range.first <= step.first && step.last <= range.second;
    });
    // Bytes within a character go with the first one.
  }
  for (unsigned byte = 0x80; byte < 0xC0; ++byte) out[byte] = true;
  return out;
}

/// Of a set that most characters do not change: all tokens but those with another character, which
/// are looked at one by one. False: there are too many of these.
bool TokenMasks::by_exceptions(TextSet set, Mask& mask) {
  const Loops same = loops(set);
  std::size_t others = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!same[byte]) others += vocabulary_.holding(static_cast<unsigned char>(byte)).size();
  }
  if (others > vocabulary_.free_count() / 3) return false;
  mask = vocabulary_.free();
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (same[byte]) continue;
    for (const std::uint32_t token : vocabulary_.holding(static_cast<unsigned char>(byte))) {
      Place place{set, 0, true};
      for (const char c : vocabulary_.text(token)) {
        place = next(place, static_cast<unsigned char>(c));
        if (!place.alive) break;
      }
      place.alive ? set_bit(mask.data(), token) : clear_bit(mask.data(), token);
    }
  }
  return true;
}

void TokenMasks::from_nothing(TextSet set, Mask& mask) {
  const TokenTrie& trie = vocabulary_.without_quote();
  std::vector<Place> places(trie.deepest + 1);
  places[0] = {set, 0, true};
  const std::uint32_t end = static_cast<std::uint32_t>(trie.nodes.size() - 1);
  for (std::uint32_t i = 0; i < end;) {
    const TokenTrie::Node& node = trie.nodes[i];
    places[node.depth] = next(places[node.depth - 1U], node.byte);
    if (!places[node.depth].alive) {
      i = node.skip;
      continue;
    }
    for (std::uint32_t t = node.token; t < trie.nodes[i + 1].token; ++t) {
      set_bit(mask.data(), trie.tokens[t]);
    }
    ++i;
  }
}

/// The set that most first characters lead to, if it has a mask by exceptions.
std::optional<TextSet> TokenMasks::base_of(TextSet set) {
  std::unordered_map<TextSet, std::size_t> weights;
  const Ascii& table = ascii(set);
  for (unsigned char byte = 0x20; byte < 128; ++byte) {
    if (table[byte] != kNothing) weights[table[byte]] += vocabulary_.holding(byte).size();
  }
  TextSet best = kNothing;
  for (const auto& [to, weight] : weights) {
    if (best == kNothing || weight > weights[best]) best = to;
  }
  if (best == kNothing || best == set) return std::nullopt;
  std::size_t all = 0;
  for (unsigned char byte = 0x20; byte < 128; ++byte) all += vocabulary_.holding(byte).size();
  if (weights[best] < all / 2) return std::nullopt;
  if (best == kAnything) return best;
  Mask mask;
  if (insides_.find(best) != insides_.end()) return best;
  if (!by_exceptions(best, mask)) return std::nullopt;
  insides_[best] = std::move(mask);
  return best;
}

/// The mask of `base`, and what differs: where only characters that do not change `base` have led
/// to it, a token may come if it may come at `base`.
void TokenMasks::from_base(TextSet set, TextSet base, Mask& mask) {
  mask = base == kAnything ? vocabulary_.free() : insides_[base];
  const Loops same = base == kAnything ? Loops().set() : loops(base);
  const TokenTrie& trie = vocabulary_.without_quote();
  std::vector<Place> places(trie.deepest + 1);
  std::vector<bool> looped(trie.deepest + 1);
  places[0] = {set, 0, true};
  looped[0] = true;
  const std::uint32_t end = static_cast<std::uint32_t>(trie.nodes.size() - 1);
  for (std::uint32_t i = 0; i < end;) {
    const TokenTrie::Node& node = trie.nodes[i];
    Place& place = places[node.depth] = next(places[node.depth - 1U], node.byte);
    looped[node.depth] = looped[node.depth - 1U] && same[node.byte];
    if (!place.alive) {
      const std::uint32_t last = trie.nodes[node.skip].token;
      for (std::uint32_t t = node.token; t < last; ++t) clear_bit(mask.data(), trie.tokens[t]);
      i = node.skip;
    } else if (place.lex == 0 && place.set == base && looped[node.depth]) {
      i = node.skip;
    } else {
      for (std::uint32_t t = node.token; t < trie.nodes[i + 1].token; ++t) {
        set_bit(mask.data(), trie.tokens[t]);
      }
      ++i;
    }
  }
}

Mask TokenMasks::find_inside(TextSet set) {
  const std::int64_t length = text_sets_.only_length(set);
  if (length >= 0) {
    return static_cast<std::uint32_t>(length) >= vocabulary_.longest()
               ? vocabulary_.free()
               : vocabulary_.of_at_most(static_cast<std::uint32_t>(length));
  }
  Mask mask(vocabulary_.mask_words(), 0);
  if (by_exceptions(set, mask)) return mask;
  if (const auto base = base_of(set)) {
    from_base(set, *base, mask);
  } else {
    from_nothing(set, mask);
  }
  return mask;
}

const Mask& TokenMasks::inside(TextSet set) {
  set = text_sets_.without_length(set, vocabulary_.longest());
  if (set == kAnything) return vocabulary_.free();
  const auto known = insides_.find(set);
  if (known != insides_.end()) return known->second;
  return insides_[set] = find_inside(set);
}

}  // namespace baton::schema
