#include <algorithm>

#include "text/schema/containers.h"

namespace baton::schema {
namespace {

constexpr std::size_t kMaxContains = 5;

}  // namespace

ArrayStates::State ArrayStates::read(std::uint32_t state) const {
  const Interned::List& list = states_[state];
  return {shapes_[list[0]], list[0], list[1], {list.begin() + 2, list.end()}};
}

/// Counts are kept as far as they matter. Nothing: no array goes on so.
std::optional<std::uint32_t> ArrayStates::write(State state) {
  const ArrayShape& shape = *state.shape;
  std::uint64_t matters = std::max<std::uint64_t>(shape.prefix.size(), shape.least);
  for (std::size_t i = 0; i < shape.contains.size(); ++i) {
    const Contains& one = shape.contains[i];
    matters = std::max<std::uint64_t>(matters, one.from);
    if (one.most == kUnbounded && state.counts[i] > one.least) {
      state.counts[i] = static_cast<std::uint32_t>(one.least);
    }
  }
  if (shape.most == kUnbounded && state.index > matters) {
    state.index = static_cast<std::uint32_t>(matters);
  }
  if (!live(state)) return std::nullopt;
  Interned::List list = {state.of, state.index};
  list.insert(list.end(), state.counts.begin(), state.counts.end());
  return states_.id(std::move(list));
}

std::optional<std::uint32_t> ArrayStates::start(const ArrayShape& shape) {
  if (shape.contains.size() > kMaxContains) throw LimitError("it has too many `contains`");
  const auto [it, added] = by_shape_.emplace(&shape, static_cast<std::uint32_t>(shapes_.size()));
  if (added) shapes_.push_back(&shape);
  State state;
  state.shape = &shape;
  state.of = it->second;
  state.counts.assign(shape.contains.size(), 0);
  return write(std::move(state));
}

bool ArrayStates::ended(const State& state) const {
  if (state.index < state.shape->least) return false;
  for (std::size_t i = 0; i < state.counts.size(); ++i) {
    if (state.counts[i] < state.shape->contains[i].least) return false;
  }
  return true;
}

bool ArrayStates::live(const State& state) {
  const ArrayShape& shape = *state.shape;
  std::uint64_t needed = std::max<std::uint64_t>(shape.least, state.index);
  for (std::size_t i = 0; i < state.counts.size(); ++i) {
    const Contains& one = shape.contains[i];
    if (state.counts[i] > one.most) return false;
    std::uint64_t missing = one.least > state.counts[i] ? one.least - state.counts[i] : 0;
    std::uint64_t at = std::max(state.index, one.from);
    for (; missing > 0 && at < shape.prefix.size(); ++at) {
      if (tables_.satisfiable(tables_.all_of({tables_.item(shape, at), one.schema}))) --missing;
    }
    const std::uint64_t behind = std::max<std::uint64_t>(at, shape.prefix.size());
    if (missing > 0 &&
        !tables_.satisfiable(tables_.all_of({tables_.item(shape, behind), one.schema}))) {
      return false;
    }
    if (one.least > state.counts[i]) needed = std::max(needed, at + missing);
  }
  if (needed > shape.most) return false;
  for (std::uint64_t i = state.index; i < needed && i <= shape.prefix.size(); ++i) {
    if (!tables_.satisfiable(tables_.item(shape, i))) return false;
  }
  return needed <= shape.prefix.size() + 1 || state.index > shape.prefix.size() ||
         tables_.satisfiable(tables_.item(shape, shape.prefix.size()));
}

void ArrayStates::item(std::uint32_t state, std::vector<Next>& out) {
  const State from = read(state);
  const ArrayShape& shape = *from.shape;
  if (shape.most != kUnbounded && from.index >= shape.most) return;
  const Schema base = tables_.item(shape, from.index);
  const std::size_t n = shape.contains.size();
  for (std::uint32_t met = 0; met < (1U << n); ++met) {
    State then = from;
    ++then.index;
    std::vector<Schema> parts = {base};
    bool possible = true;
    for (std::size_t i = 0; i < n && possible; ++i) {
      const Contains& one = shape.contains[i];
      const bool counts = (met >> i & 1U) != 0;
      const bool bounded = one.most != kUnbounded;
      if (counts) {
        // What has come often enough need not be counted.
        possible = from.index >= one.from && (bounded || from.counts[i] < one.least);
        ++then.counts[i];
        parts.push_back(one.schema);
      } else if (bounded && from.index >= one.from) {
        parts.push_back(tables_.none_of(one.schema));
      }
    }
    if (!possible) continue;
    const Schema value = tables_.all_of(std::move(parts));
    if (!tables_.satisfiable(value)) continue;
    if (const auto after = write(std::move(then))) out.push_back({value, *after});
  }
}

void ArrayStates::values(std::uint32_t state, std::vector<Schema>& out) {
  const ArrayShape& shape = *shapes_[states_[state][0]];
  const std::vector<Schema>& prefix = shape.prefix;
  out.insert(out.end(), prefix.begin(), prefix.end());
  out.push_back(shape.rest);
  for (const Contains& one : shape.contains) {
    out.push_back(tables_.all_of({shape.rest, one.schema}));
    if (one.most != kUnbounded) {
      out.push_back(tables_.all_of({shape.rest, tables_.none_of(one.schema)}));
    }
  }
}

}  // namespace baton::schema
