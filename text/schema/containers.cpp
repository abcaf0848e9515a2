#include "text/schema/containers.h"

#include <algorithm>

namespace baton::schema {
namespace {

constexpr std::uint32_t kCountLimit = 1'000'000;
constexpr std::size_t kMaxCounted = 256;  // characters of a name that is told apart
constexpr std::size_t kMaxListed = 64;    // names of a set that are listed one by one

bool bit(const std::vector<std::uint32_t>& words, std::size_t i) {
  return (words[i / 32] >> (i % 32) & 1U) != 0;
}

}  // namespace

ObjectStates::State ObjectStates::read(std::uint32_t state) const {
  const Interned::List& list = states_[state];
  return {list[0], list[1], list[2], list[3], list[4], words(list, kUsed)};
}

std::uint32_t ObjectStates::write(const State& state) {
  Interned::List list = {state.of, state.position, state.count, state.pending, state.others};
  list.insert(list.end(), state.used.begin(), state.used.end());
  const std::uint32_t id = states_.id(std::move(list));
  while (infos_.size() <= id) infos_.emplace_back();
  return id;
}

/// Names besides the named ones that may come at all.
TextSet ObjectStates::other_names(const ObjectShape& shape, const Class& made) {
  std::vector<std::u32string> named;
  for (const std::uint32_t name : made.names) named.push_back(tables_.name(name));
  TextSet others = text_sets_.complement(text_sets_.words(named));
  for (const auto& [names, schema] : shape.rules) {
    if (!tables_.satisfiable(schema)) others = text_sets_.minus(others, names);
  }
  if (!closed_ || shape.others || !shape.named) return others;
  const auto usable = std::count_if(made.names.begin(), made.names.end(), [&](std::uint32_t name) {
    return tables_.satisfiable(tables_.property(shape, name));
  });
  if (shape.least > static_cast<std::uint64_t>(usable)) return others;
  TextSet spoken = kNothing;
  for (const TextSet names : shape.patterns) spoken = text_sets_.either(spoken, names);
  for (const auto& [names, schema] : made.exists) {
    const bool met = std::any_of(made.names.begin(), made.names.end(), [&](std::uint32_t name) {
      return tables_.has_name(names, name) &&
             tables_.satisfiable(tables_.all_of({tables_.property(shape, name), schema}));
    });
    if (!met) spoken = text_sets_.either(spoken, names);
  }
  return text_sets_.both(others, spoken);
}

/// Where names are counted, few others are names like those that the schema names; of many, those
/// of a bounded length come.
void ObjectStates::list_others(Class& made) {
  const auto few = text_sets_.list(made.others, kMaxListed);
  if (!few) {
    if (made.distinct) made.others = text_sets_.both(made.others, text_sets_.at_most(kMaxCounted));
    return;
  }
  for (const std::u32string& text : *few) made.names.push_back(tables_.name_id(text));
  made.others = kNothing;
}

void ObjectStates::add_class(const ObjectShape& shape) {
  Class made;
  if (shape.exists.size() > kMaxExists) throw LimitError("it needs too many properties at once");
  made.least = shape.least > shape.required.size() ? shape.least : 0;
  made.most = shape.most;
  made.distinct = made.least > 1 || !shape.exists.empty();
  for (const auto& [name, schema] : shape.properties) made.names.push_back(name);
  for (const std::uint32_t name : shape.required) {
    if (std::find(made.names.begin(), made.names.end(), name) == made.names.end()) {
      made.names.push_back(name);
    }
  }
  made.exists = shape.exists;
  made.others = other_names(shape, made);
  if (!text_sets_.live(made.others)) made.others = kNothing;
  if ((made.distinct || made.most != kUnbounded) && made.others != kNothing) list_others(made);
  for (const auto& rule : shape.rules) {
    if (rule.second != kTrue && tables_.satisfiable(rule.second)) made.rules.push_back(rule);
  }
  for (const std::uint32_t name : made.names) {
    made.schemas.push_back(tables_.property(shape, name));
    made.required.push_back(std::binary_search(shape.required.begin(), shape.required.end(), name));
    std::uint32_t suits = 0;
    for (std::size_t e = 0; e < shape.exists.size(); ++e) {
      const auto& [names, schema] = shape.exists[e];
      if (tables_.has_name(names, name) &&
          tables_.satisfiable(tables_.all_of({made.schemas.back(), schema}))) {
        suits |= 1U << e;
      }
    }
    made.matches.push_back(suits);
  }
  for (std::uint32_t i = 0; i < made.names.size(); ++i) made.sorted.push_back(i);
  std::sort(made.sorted.begin(), made.sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
    return tables_.name(made.names[a]) < tables_.name(made.names[b]);
  });
  made.ordered = closed_;
  bytes_ += sizeof(Class) + 24 * made.names.size();
  classes_.push_back(std::move(made));
}

std::optional<std::uint32_t> ObjectStates::start(const ObjectShape& shape) {
  const auto [it, added] = by_shape_.emplace(&shape, static_cast<std::uint32_t>(classes_.size()));
  if (added) {
    try {
      add_class(shape);
    } catch (...) {
      by_shape_.erase(it);
      throw;
    }
  }
  const Class& of = classes_[it->second];
  State state;
  state.of = it->second;
  state.others = of.others;
  state.pending = (1U << of.exists.size()) - 1;
  if (!of.ordered) state.used.assign((of.names.size() + 31) / 32, 0);
  const std::uint32_t id = write(state);
  if (!info(id).live) return std::nullopt;
  return id;
}

const ObjectStates::Info& ObjectStates::info(std::uint32_t state) {
  if (!infos_[state]) {
    Info found = find_info(read(state));
    bytes_ += sizeof(Info) + 4 * found.candidates.size();
    infos_[state] = std::move(found);
  }
  return *infos_[state];
}

bool ObjectStates::can_be_met(const State& state, const std::vector<bool>& usable) {
  const Class& of = classes_[state.of];
  for (std::size_t e = 0; e < of.exists.size(); ++e) {
    if ((state.pending >> e & 1U) == 0) continue;
    bool met = false;
    for (std::size_t i = 0; i < of.names.size() && !met; ++i) {
      met = usable[i] && (of.matches[i] >> e & 1U) != 0;
    }
    if (!met) {
      const auto& [names, schema] = of.exists[e];
      met = tables_.satisfiable(schema) && text_sets_.live(text_sets_.both(state.others, names));
    }
    if (!met) return false;
  }
  return true;
}

/// How many names besides the required ones it takes to meet what is pending, at least.
std::uint64_t ObjectStates::names_to_meet(const State& state, const std::vector<bool>& usable) {
  const Class& of = classes_[state.of];
  if (state.pending == 0 || of.most == kUnbounded) return 0;
  std::uint32_t left = state.pending;
  for (std::size_t i = 0; i < of.names.size(); ++i) {
    if (usable[i] && of.required[i]) left &= ~of.matches[i];
  }
  std::uint64_t count = 0;
  std::vector<bool> reached(std::size_t{1} << of.exists.size());
  reached[left] = true;
  for (; !reached[0]; ++count) {
    std::vector<bool> next = reached;
    for (std::uint32_t bits = 0; bits < reached.size(); ++bits) {
      if (!reached[bits]) continue;
      for (std::size_t i = 0; i < of.names.size(); ++i) {
        if (usable[i] && !of.required[i]) next[bits & ~of.matches[i]] = true;
      }
      for (std::size_t e = 0; state.others != kNothing && e < of.exists.size(); ++e) {
        next[bits & ~(1U << e)] = true;
      }
    }
    if (next == reached) return kUnbounded;
    reached = std::move(next);
  }
  return count;
}

ObjectStates::Info ObjectStates::find_info(const State& state) {
  const Class& of = classes_[state.of];
  Info out;
  std::vector<bool> usable(of.names.size());
  std::uint64_t required = 0;
  std::uint64_t usable_count = 0;
  bool possible = true;
  for (std::size_t i = 0; i < of.names.size(); ++i) {
    if (of.ordered ? i < state.position : bit(state.used, i)) continue;
    usable[i] = tables_.satisfiable(of.schemas[i]);
    if (usable[i]) ++usable_count;
    if (of.required[i]) {
      ++required;
      possible = possible && usable[i];
    }
  }
  const std::uint64_t needed = required + names_to_meet(state, usable);
  const std::uint64_t left = of.most == kUnbounded ? kUnbounded : of.most - state.count;
  possible = possible && needed <= left && can_be_met(state, usable);
  if (possible && of.least > state.count + usable_count) {
    const std::uint64_t missing = of.least - state.count - usable_count;
    possible = missing > 10'000 ? state.others != kNothing
                                : text_sets_.count(state.others, missing) >= missing;
  }
  if (!possible) return out;
  out.live = true;
  out.may_end = required == 0 && state.pending == 0 && state.count >= of.least;
  if (left == 0) return out;
  // Where only those that must come fit, no others do.
  const bool only_required = required >= left;
  out.others = state.others != kNothing && !only_required && (!of.ordered || required == 0) &&
               (needed < left || state.pending != 0) && text_sets_.live(state.others);
  std::vector<bool> candidate(of.names.size());
  for (std::size_t i = 0; i < of.names.size(); ++i) {
    candidate[i] = usable[i] && (of.required[i] || !only_required);
    if (of.ordered && i >= state.position && of.required[i]) break;
  }
  std::vector<std::uint64_t> after_count(of.names.size());  // usable ones, with this one
  for (std::size_t i = of.names.size(), n = 0; i-- > 0;) after_count[i] = n += usable[i] ? 1 : 0;
  for (std::uint32_t at = 0; at < of.sorted.size(); ++at) {
    const std::uint32_t i = of.sorted[at];
    if (!candidate[i]) continue;
    // In an order, names that are passed over do not come any more.
    if (of.ordered && of.least > state.count + after_count[i] && state.others == kNothing) continue;
    if ((state.pending & ~of.matches[i]) != 0) {
      State then = state;
      then.pending &= ~of.matches[i];
      std::vector<bool> later = usable;
      later[i] = false;
      if (of.ordered) std::fill(later.begin(), later.begin() + i, false);
      if (!can_be_met(then, later)) continue;
      const std::uint64_t more = names_to_meet(then, later) + (of.required[i] ? 0 : 1);
      if (more == kUnbounded || required + more > left) continue;
    }
    out.candidates.push_back(at);
  }
  return out;
}

bool ObjectStates::may_go_on(std::uint32_t state) {
  const Info& found = info(state);
  return found.others || !found.candidates.empty();
}

std::uint32_t ObjectStates::key(std::uint32_t state) {
  const State of = read(state);
  const Class& made = classes_[of.of];
  Interned::List list = {0, static_cast<std::uint32_t>(made.sorted.size()), 0};
  if (info(state).others) {
    list.push_back(of.others);
    for (const auto& [names, schema] : made.rules) list.push_back(names);
    for (const auto& [names, schema] : made.exists) list.push_back(names);
  }
  return keys_.id(std::move(list));
}

std::uint32_t ObjectStates::key_named(std::uint32_t key) {
  Interned::List list = keys_[key];
  list.resize(kTextSets);
  return keys_.id(std::move(list));
}

bool ObjectStates::key_may_hold(std::uint32_t state, std::uint32_t key, char32_t first,
                                char32_t last) {
  if (first > last) return false;
  const Interned::List list = keys_[key];
  if (list.size() > kTextSets && text_sets_.live_between(list[kTextSets], first, last)) return true;
  const Class& of = classes_[states_[state][0]];
  const std::vector<std::uint32_t>& all = info(state).candidates;
  for (auto it = std::lower_bound(all.begin(), all.end(), list[0]);
       it != all.end() && *it < list[1]; ++it) {
    const std::u32string& name = tables_.name(of.names[of.sorted[*it]]);
    if (name.size() > list[2] && name[list[2]] >= first && name[list[2]] <= last) return true;
  }
  return false;
}

std::optional<std::uint32_t> ObjectStates::key_next(std::uint32_t state, std::uint32_t key,
                                                    char32_t c) {
  Interned::List list = keys_[key];
  const Class& of = classes_[states_[state][0]];
  const std::uint32_t depth = list[2];
  // Names from `low` to `high` have all that came; those with `c` next are in a row.
  std::uint32_t low = list[0];
  std::uint32_t high = list[1];
  const auto letter = [&](std::uint32_t at) -> std::int64_t {
    const std::u32string& name = tables_.name(of.names[of.sorted[at]]);
    return name.size() > depth ? static_cast<std::int64_t>(name[depth]) : -1;
  };
  while (low < high && letter(low) < static_cast<std::int64_t>(c)) ++low;
  std::uint32_t end = low;
  while (end < high && letter(end) == static_cast<std::int64_t>(c)) ++end;
  const std::vector<std::uint32_t>& all = info(state).candidates;
  const auto first = std::lower_bound(all.begin(), all.end(), low);
  const bool named = first != all.end() && *first < end;
  list[0] = named ? low : 0;
  list[1] = named ? end : 0;
  list[2] = named ? depth + 1 : 0;
  if (list.size() > kTextSets) {
    const std::size_t text_sets = kTextSets + 1 + of.rules.size() + of.exists.size();
    for (std::size_t i = kTextSets; i < text_sets; ++i) list[i] = text_sets_.next(list[i], c);
    if (of.distinct) list.push_back(c);
    if (!text_sets_.live(list[kTextSets])) list.resize(kTextSets);
  }
  if (!named && list.size() == kTextSets) return std::nullopt;
  return keys_.id(std::move(list));
}

void ObjectStates::add_next(const State& state, std::int64_t name, Schema schema,
                            std::uint32_t suits, std::vector<Next>& out, TextSet other_after) {
  const Class& of = classes_[state.of];
  suits &= state.pending;
  for (std::uint32_t met = suits;; met = (met - 1) & suits) {
    State then = state;
    then.count =
        of.least == 0 && of.most == kUnbounded ? 0 : std::min(state.count + 1, kCountLimit);
    if (of.most == kUnbounded && then.count > of.least) {
      then.count = static_cast<std::uint32_t>(of.least);
    }
    then.pending = state.pending & ~met;
    then.others = other_after;
    if (name >= 0 && of.ordered) then.position = static_cast<std::uint32_t>(name) + 1;
    if (name < 0 && of.ordered) then.position = static_cast<std::uint32_t>(of.names.size());
    if (name >= 0 && !of.ordered) {
      then.used[static_cast<std::size_t>(name) / 32] |= 1U << (static_cast<std::size_t>(name) % 32);
    }
    std::vector<Schema> parts = {schema};
    for (std::size_t e = 0; e < of.exists.size(); ++e) {
      if ((met >> e & 1U) != 0) parts.push_back(of.exists[e].second);
    }
    const Schema value = tables_.all_of(std::move(parts));
    const std::uint32_t id = write(then);
    if (tables_.satisfiable(value) && info(id).live) out.push_back({value, id});
    if (met == 0) break;
  }
}

void ObjectStates::key_end(std::uint32_t state, std::uint32_t key, std::vector<Next>& out) {
  const State from = read(state);
  const Class& of = classes_[from.of];
  const Interned::List list = keys_[key];
  const std::vector<std::uint32_t> all = info(state).candidates;
  for (auto it = std::lower_bound(all.begin(), all.end(), list[0]);
       it != all.end() && *it < list[1]; ++it) {
    const std::uint32_t i = of.sorted[*it];
    if (tables_.name(of.names[i]).size() != list[2]) continue;
    add_next(from, i, of.schemas[i], of.matches[i], out, from.others);
    break;
  }
  if (list.size() == kTextSets || !text_sets_.ends(list[kTextSets])) return;
  const auto rules = static_cast<std::ptrdiff_t>(of.rules.size());
  const auto text_set = list.begin() + static_cast<std::ptrdiff_t>(kTextSets) + 1;
  std::vector<Schema> parts;
  for (std::ptrdiff_t r = 0; r < rules; ++r) {
    if (text_sets_.ends(text_set[r])) parts.push_back(of.rules[static_cast<std::size_t>(r)].second);
  }
  std::uint32_t suits = 0;
  const auto exists = static_cast<std::ptrdiff_t>(of.exists.size());
  for (std::ptrdiff_t e = 0; e < exists; ++e) {
    if (text_sets_.ends(text_set[rules + e])) suits |= 1U << static_cast<std::uint32_t>(e);
  }
  TextSet other_after = from.others;
  if (of.distinct && (!of.exists.empty() || from.count + 1 < of.least)) {
    const std::u32string text(text_set + rules + exists, list.end());
    other_after = text_sets_.minus(from.others, text_sets_.words({text}));
    if (!text_sets_.live(other_after)) other_after = kNothing;
  }
  add_next(from, -1, tables_.all_of(std::move(parts)), suits, out, other_after);
}

void ObjectStates::values(std::uint32_t state, std::vector<Schema>& out) {
  const Class& of = classes_[states_[state][0]];
  out.insert(out.end(), of.schemas.begin(), of.schemas.end());
  if (of.others == kNothing) return;
  std::vector<Schema> all;
  for (const auto& [names, schema] : of.rules) {
    if (text_sets_.live(text_sets_.both(names, of.others))) {
      out.push_back(schema);
      all.push_back(schema);
    }
  }
  out.push_back(tables_.all_of(std::move(all)));
}

}  // namespace baton::schema
