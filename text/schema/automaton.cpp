#include "text/schema/automaton.h"

#include <algorithm>
#include <array>

namespace baton::schema {
namespace {

constexpr std::size_t kMaxItems = 512;  // ways to read a text
constexpr std::size_t kMaxVisited = 20'000;
constexpr std::array<std::string_view, 3> kLiterals = {"null", "true", "false"};

bool blank(unsigned char byte) {
  return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

}  // namespace

Automaton::Automaton(SchemaTables& tables, TextSets& text_sets, bool closed)
    : tables_(tables),
      text_sets_(text_sets),
      closed_(closed),
      objects_(tables, text_sets, closed),
      arrays_(tables) {
  states_.id({});  // kDead
  parents_.id({0});
}

Automaton::Level Automaton::level(State state) const {
  const Interned::List& list = states_[state];
  Level at;
  at.phase = static_cast<Phase>(list[1]);
  at.blanks = list[2];
  at.lex = list[3];
  for (std::size_t i = 4; i < list.size(); i += 3) {
    at.items.push_back({list[i], list[i + 1], list[i + 2]});
  }
  return at;
}

/// Parents of all items from `from` up to `to`.
std::uint32_t Automaton::united(const std::vector<Item>& items, std::size_t from, std::size_t to) {
  if (to == from + 1) return items[from].parents;
  Interned::List all;
  for (std::size_t i = from; i < to; ++i) {
    const Interned::List& one = parents_[items[i].parents];
    all.insert(all.end(), one.begin(), one.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return parents_.id(std::move(all));
}

Automaton::State Automaton::make(State below, Level at) {
  if (at.items.empty() && at.phase != Phase::done) return kDead;
  std::sort(at.items.begin(), at.items.end());
  Interned::List list = {below, static_cast<std::uint32_t>(at.phase), at.blanks, at.lex};
  std::size_t kept = 0;
  for (std::size_t i = 0; i < at.items.size();) {
    std::size_t end = i + 1;
    while (end < at.items.size() && at.items[end].a == at.items[i].a &&
           at.items[end].b == at.items[i].b) {
      ++end;
    }
    const std::uint32_t parents = united(at.items, i, end);
    list.insert(list.end(), {at.items[i].a, at.items[i].b, parents});
    i = end;
    if (++kept > kMaxItems) throw LimitError("its alternatives are too many");
  }
  return states_.id(std::move(list));
}

Automaton::State Automaton::start() {
  if (!tables_.satisfiable(tables_.root())) return kDead;
  Level at;
  at.phase = Phase::value;
  at.blanks = kMaxWhitespace;  // none before the value
  at.items.push_back({tables_.root(), 0, 0});
  return make(kDead, std::move(at));
}

bool Automaton::may_end(State state) const {
  if (state == kDead) return false;
  const Interned::List& list = states_[state];
  const auto phase = static_cast<Phase>(list[1]);
  if (phase == Phase::done) return true;
  if (phase != Phase::number || list[0] != kDead) return false;
  for (std::size_t i = 4; i < list.size(); i += 3) {
    if (text_sets_.ends(list[i])) return true;
  }
  return false;
}

bool Automaton::in_string(State state, std::vector<TextSet>& sets) const {
  const Interned::List& list = states_[state];
  const auto phase = static_cast<Phase>(list[1]);
  if (list[3] != 0 || (phase != Phase::string && phase != Phase::key)) return false;
  for (std::size_t i = 4; i < list.size(); i += 3) {
    const TextSet set = phase == Phase::string ? list[i] : objects_.key_others(list[i + 1]);
    if (set != kNothing) sets.push_back(set);
  }
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  return true;
}

Automaton::State Automaton::named_only(State state) {
  Level at = level(state);
  if (at.phase != Phase::key) return kDead;
  for (Item& item : at.items) item.b = objects_.key_named(item.b);
  return make(below(state), std::move(at));
}

bool Automaton::could(State state, unsigned char byte) {
  const Interned::List& list = states_[state];
  const auto phase = static_cast<Phase>(list[1]);
  const bool white = blank(byte) && list[2] < kMaxWhitespace;
  switch (phase) {
    case Phase::done:
      return false;
    case Phase::value:
    case Phase::array_open:
      return white || byte == '"' || byte == '{' || byte == '[' || byte == '-' || byte == 't' ||
             byte == 'f' || byte == 'n' || (byte >= '0' && byte <= '9') ||
             (byte == ']' && phase == Phase::array_open);
    case Phase::number:
      return blank(byte) || (byte >= '0' && byte <= '9') || byte == '.' || byte == '-' ||
             byte == '+' || byte == 'e' || byte == 'E' || byte == ',' || byte == '}' || byte == ']';
    case Phase::literal:
      return static_cast<unsigned char>(kLiterals[list[3] >> 8U][list[3] & 0xFFU]) == byte;
    case Phase::object_open:
      return white || byte == '"' || byte == '}';
    case Phase::object_next:
      return white || byte == '"';
    case Phase::colon:
      return white || byte == ':';
    case Phase::object_after:
      return white || byte == ',' || byte == '}';
    case Phase::array_after:
      return white || byte == ',' || byte == ']';
    case Phase::key:
      break;
    case Phase::string:
      if (list[3] != 0 || byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\') return true;
      for (std::size_t i = 4; i < list.size(); i += 3) {
        if (text_sets_.next(list[i], byte) != kNothing) return true;
      }
      return false;
  }
  if (list[3] != 0 || byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\') return true;
  for (std::size_t i = 4; i < list.size(); i += 3) {
    if (objects_.key_may_hold(list[i], list[i + 1], byte, byte)) return true;
  }
  return false;
}

Automaton::State Automaton::step(State state, unsigned char byte) {
  if (state == kDead) return kDead;
  const std::uint64_t key = (static_cast<std::uint64_t>(state) << 8U) | byte;
  const auto found = steps_.find(key);
  if (found != steps_.end()) return found->second;
  const State next = derive(state, byte);
  steps_.emplace(key, next);
  return next;
}

Automaton::State Automaton::derive(State state, unsigned char byte) {
  Level at = level(state);
  switch (at.phase) {
    case Phase::done:
      return kDead;
    case Phase::string:
      return step_string(state, at, byte);
    case Phase::key:
      return step_key(state, at, byte);
    case Phase::number:
      return step_number(state, at, byte);
    case Phase::literal:
      return step_literal(state, std::move(at), byte);
    default:
      break;
  }
  if (blank(byte)) {
    if (at.blanks >= kMaxWhitespace) return kDead;
    ++at.blanks;
    return make(below(state), std::move(at));
  }
  if (at.phase == Phase::value) return step_value(below(state), at, byte);
  if (at.phase == Phase::array_open || at.phase == Phase::array_after) {
    return step_array(state, std::move(at), byte);
  }
  return step_object(state, std::move(at), byte);
}

/// The value of `at` has ended: those ways to read the level below go on that its items complete.
Automaton::State Automaton::complete(State state, const Level& at) {
  if (at.items.empty()) return kDead;
  const State under = below(state);
  if (under == kDead) return make(kDead, Level{});
  Level parent = level(under);
  std::vector<bool> alive(parent.items.size());
  for (const Item& item : at.items) {
    for (const std::uint32_t i : parents_[item.parents]) alive[i] = true;
  }
  std::vector<Item> kept;
  for (std::size_t i = 0; i < alive.size(); ++i) {
    if (alive[i]) kept.push_back(parent.items[i]);
  }
  parent.items = std::move(kept);
  return make(below(under), std::move(parent));
}

Automaton::State Automaton::step_value(State below, const Level& at, unsigned char byte) {
  Level next;
  const bool number = byte == '-' || (byte >= '0' && byte <= '9');
  for (std::size_t i = 0; i < kLiterals.size(); ++i) {
    if (static_cast<unsigned char>(kLiterals[i][0]) == byte) {
      next.phase = Phase::literal;
      next.lex = static_cast<std::uint32_t>(i << 8U) | 1U;
    }
  }
  if (byte == '"') next.phase = Phase::string;
  if (number) next.phase = Phase::number;
  if (byte == '{') next.phase = Phase::object_open;
  if (byte == '[') next.phase = Phase::array_open;
  if (next.phase == Phase::done) return kDead;
  for (const Item& item : at.items) {
    const Table& of = tables_.table(item.a);
    if (byte == '"') {
      if (text_sets_.live(of.string)) next.items.push_back({of.string, 0, item.parents});
    } else if (number) {
      const TextSet rest = text_sets_.next(tables_.number_texts(of.number, closed_), byte);
      if (text_sets_.live(rest)) next.items.push_back({rest, 0, item.parents});
    } else if (byte == '{') {
      for (const ObjectShape& shape : of.objects) {
        if (const auto id = objects_.start(shape)) next.items.push_back({*id, 0, item.parents});
      }
    } else if (byte == '[') {
      for (const ArrayShape& shape : of.arrays) {
        if (const auto id = arrays_.start(shape)) next.items.push_back({*id, 0, item.parents});
      }
    } else if (byte == 'n' ? of.null : byte == 't' ? of.yes : of.no) {
      next.items.push_back({0, 0, item.parents});
    }
  }
  return make(below, std::move(next));
}

Automaton::State Automaton::step_string(State state, const Level& at, unsigned char byte) {
  const LexStep step = lex(at.lex, byte);
  if (step.kind == LexStep::Kind::wrong) return kDead;
  Level next;
  next.phase = Phase::string;
  next.lex = step.state;
  for (const Item& item : at.items) {
    Item then = item;
    bool kept = false;
    if (step.kind == LexStep::Kind::quote) {
      kept = text_sets_.ends(item.a);
    } else if (step.kind == LexStep::Kind::character) {
      then.a = text_sets_.next(item.a, step.character);
      kept = text_sets_.live(then.a);
    } else {
      kept = text_sets_.live_between(item.a, step.first, step.last) ||
             (step.first_more <= step.last_more &&
              text_sets_.live_between(item.a, step.first_more, step.last_more));
    }
    if (kept) next.items.push_back(then);
  }
  return step.kind == LexStep::Kind::quote ? complete(state, next)
                                           : make(below(state), std::move(next));
}

Automaton::State Automaton::step_key(State state, const Level& at, unsigned char byte) {
  const LexStep step = lex(at.lex, byte);
  if (step.kind == LexStep::Kind::wrong) return kDead;
  Level next;
  next.phase = step.kind == LexStep::Kind::quote ? Phase::colon : Phase::key;
  next.lex = step.state;
  std::vector<Next> values;
  for (const Item& item : at.items) {
    if (step.kind == LexStep::Kind::quote) {
      values.clear();
      objects_.key_end(item.a, item.b, values);
      for (const Next& one : values) next.items.push_back({one.after, one.value, item.parents});
    } else if (step.kind == LexStep::Kind::character) {
      const auto key = objects_.key_next(item.a, item.b, step.character);
      if (key) next.items.push_back({item.a, *key, item.parents});
    } else if (objects_.key_may_hold(item.a, item.b, step.first, step.last) ||
               objects_.key_may_hold(item.a, item.b, step.first_more, step.last_more)) {
      next.items.push_back(item);
    }
  }
  return make(below(state), std::move(next));
}

Automaton::State Automaton::step_number(State state, const Level& at, unsigned char byte) {
  Level next;
  next.phase = Phase::number;
  const bool goes_on = (byte >= '0' && byte <= '9') || byte == '.' || byte == 'e' || byte == 'E' ||
                       byte == '+' || byte == '-';
  for (const Item& item : at.items) {
    if (!goes_on) {
      if (text_sets_.ends(item.a)) next.items.push_back(item);
      continue;
    }
    const TextSet rest = text_sets_.next(item.a, byte);
    if (text_sets_.live(rest)) next.items.push_back({rest, 0, item.parents});
  }
  if (goes_on) return make(below(state), std::move(next));
  if (below(state) == kDead) return kDead;
  return step(complete(state, next), byte);
}

Automaton::State Automaton::step_literal(State state, Level at, unsigned char byte) {
  const std::string_view text = kLiterals[at.lex >> 8U];
  const std::uint32_t count = at.lex & 0xFFU;
  if (static_cast<unsigned char>(text[count]) != byte) return kDead;
  ++at.lex;
  return count + 1 == text.size() ? complete(state, at) : make(below(state), std::move(at));
}

/// Puts values of the items of `at` (a state after it, a schema) above a level of those states.
Automaton::State Automaton::begin_value(State state, const Level& at, Phase after) {
  Level parent;
  parent.phase = after;
  for (const Item& item : at.items) parent.items.push_back({item.a, 0, item.parents});
  const State under = make(below(state), std::move(parent));
  if (under == kDead) return kDead;
  const std::vector<Item> kept = level(under).items;
  Level value;
  value.phase = Phase::value;
  for (const Item& item : at.items) {
    const auto own =
        std::find_if(kept.begin(), kept.end(), [&](const Item& one) { return one.a == item.a; });
    value.items.push_back(
        {item.b, 0, parents_.id({static_cast<std::uint32_t>(own - kept.begin())})});
  }
  return make(under, std::move(value));
}

Automaton::State Automaton::step_object(State state, Level at, unsigned char byte) {
  if (at.phase == Phase::colon) {
    return byte == ':' ? begin_value(state, at, Phase::object_after) : kDead;
  }
  Level next;
  const bool open = at.phase == Phase::object_open;
  if (byte == '}' && at.phase != Phase::object_next) {
    for (const Item& item : at.items) {
      if (objects_.may_end(item.a)) next.items.push_back(item);
    }
    return complete(state, next);
  }
  if (byte == ',' && at.phase == Phase::object_after) {
    next.phase = Phase::object_next;
    for (const Item& item : at.items) {
      if (objects_.may_go_on(item.a)) next.items.push_back(item);
    }
    return make(below(state), std::move(next));
  }
  if (byte != '"' || (!open && at.phase != Phase::object_next)) return kDead;
  next.phase = Phase::key;
  for (const Item& item : at.items) {
    if (objects_.may_go_on(item.a)) {
      next.items.push_back({item.a, objects_.key(item.a), item.parents});
    }
  }
  return make(below(state), std::move(next));
}

Automaton::State Automaton::step_array(State state, Level at, unsigned char byte) {
  if (byte == ']') {
    Level next;
    for (const Item& item : at.items) {
      if (arrays_.may_end(item.a)) next.items.push_back(item);
    }
    return complete(state, next);
  }
  if (at.phase == Phase::array_after && byte != ',') return kDead;
  Level next;
  std::vector<Next> values;
  for (const Item& item : at.items) {
    values.clear();
    arrays_.item(item.a, values);
    for (const Next& one : values) next.items.push_back({one.after, one.value, item.parents});
  }
  const State begun = begin_value(state, next, Phase::array_after);
  return at.phase == Phase::array_after ? begun : step(begun, byte);
}

void Automaton::visit_all() {
  std::vector<Schema> todo = {tables_.root()};
  std::unordered_map<Schema, bool> seen;
  for (std::size_t i = 0; i < todo.size(); ++i) {
    if (!seen.emplace(todo[i], true).second) continue;
    if (seen.size() > kMaxVisited) throw LimitError("it combines too many schemas");
    if (!tables_.satisfiable(todo[i])) continue;
    const Table& of = tables_.table(todo[i]);
    for (const ObjectShape& shape : of.objects) {
      if (const auto id = objects_.start(shape)) objects_.values(*id, todo);
    }
    for (const ArrayShape& shape : of.arrays) {
      if (const auto id = arrays_.start(shape)) arrays_.values(*id, todo);
    }
  }
}

std::size_t Automaton::bytes() const {
  return states_.bytes() + parents_.bytes() + objects_.bytes() + arrays_.bytes() +
         40 * steps_.size() + tables_.bytes() + text_sets_.bytes();
}

}  // namespace baton::schema
