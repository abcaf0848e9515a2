#include "text/schema/regex_nfa.h"

#include <algorithm>

namespace baton::schema {

std::uint32_t Nfa::add(State state) {
  states_.push_back(state);
  return static_cast<std::uint32_t>(states_.size() - 1);
}

std::uint32_t Nfa::add_chars(CharSet set, std::uint32_t out) {
  State state;
  state.op = Op::chars;
  state.out = out;
  constexpr std::size_t kLookedAt = 32;  // the same class is often repeated
  for (std::size_t i = sets_.size(); i-- > 0 && i + kLookedAt >= sets_.size();) {
    if (sets_[i] != set) continue;
    state.chars = static_cast<std::uint32_t>(i);
    return add(state);
  }
  state.chars = static_cast<std::uint32_t>(sets_.size());
  sets_.push_back(std::move(set));
  return add(state);
}

/// Marks states from which the end is reached: first without a character, then at all.
void Nfa::find_live() {
  std::vector<std::vector<std::uint32_t>> back(states_.size());
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].out != kNone) back[states_[i].out].push_back(i);
    if (states_[i].other != kNone) back[states_[i].other].push_back(i);
  }
  std::vector<std::uint32_t> todo;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].op != Op::accept) continue;
    states_[i].may_end = true;
    todo.push_back(i);
  }
  while (!todo.empty()) {
    const std::uint32_t at = todo.back();
    todo.pop_back();
    for (const std::uint32_t from : back[at]) {
      State& state = states_[from];
      // `begin` after the start holds nowhere, but the start of an empty text is its end.
      if (state.may_end || (state.op != Op::split && state.op != Op::end)) continue;
      state.may_end = true;
      todo.push_back(from);
    }
  }
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (state.op == Op::accept || (state.op == Op::end && state.may_end)) {
      state.live = true;
      todo.push_back(i);
    }
  }
  while (!todo.empty()) {
    const std::uint32_t at = todo.back();
    todo.pop_back();
    for (const std::uint32_t from : back[at]) {
      State& state = states_[from];
      if (state.live || state.op == Op::begin || state.op == Op::end) continue;
      if (state.op == Op::chars && sets_[state.chars].empty()) continue;
      state.live = true;
      todo.push_back(from);
    }
  }
}

void Nfa::close(std::uint32_t state, bool at_start, NfaSet& out, std::vector<bool>& seen) const {
  std::vector<std::uint32_t> todo = {state};
  while (!todo.empty()) {
    const std::uint32_t at = todo.back();
    todo.pop_back();
    if (at == kNone || seen[at]) continue;
    seen[at] = true;
    const State& s = states_[at];
    if (s.op == Op::split) {
      todo.push_back(s.out);
      todo.push_back(s.other);
    } else if (s.op == Op::begin) {
      if (at_start) todo.push_back(s.out);
    } else if (s.live) {
      out.push_back(at);
    }
    // At the start of an empty text, what follows `$` may begin with `^`.
    if (s.op == Op::end && at_start) {
      NfaSet inside;
      std::vector<std::uint32_t> after = {s.out};
      std::vector<bool> found(states_.size());
      bool ends = false;
      while (!after.empty() && !ends) {
        const std::uint32_t next = after.back();
        after.pop_back();
        if (next == kNone || found[next]) continue;
        found[next] = true;
        if (states_[next].op == Op::accept) ends = true;
        if (states_[next].op == Op::chars || states_[next].op == Op::accept) continue;
        after.push_back(states_[next].out);
        after.push_back(states_[next].other);
      }
      if (ends && !s.live) out.push_back(at);
    }
  }
}

void Nfa::finish(std::uint32_t start, bool everything) {
  everything_ = everything;
  find_live();
  std::vector<bool> seen(states_.size());
  close(start, true, start_, seen);
  std::sort(start_.begin(), start_.end());
}

bool Nfa::ends(const NfaSet& set) const {
  return std::any_of(set.begin(), set.end(),
                     [&](std::uint32_t s) { return states_[s].op != Op::chars; });
}

bool Nfa::everything(const NfaSet& set) const {
  return everything_ && std::any_of(set.begin(), set.end(),
                                    [&](std::uint32_t s) { return states_[s].op == Op::accept; });
}

std::vector<Nfa::Step> Nfa::steps(const NfaSet& set) const {
  std::vector<char32_t> lasts = {0x10FFFF};
  for (const std::uint32_t at : set) {
    if (states_[at].op != Op::chars) continue;
    for (const CharRange& range : sets_[states_[at].chars]) {
      if (range.first > 0) lasts.push_back(range.first - 1);
      lasts.push_back(range.last);
    }
  }
  std::sort(lasts.begin(), lasts.end());
  lasts.erase(std::unique(lasts.begin(), lasts.end()), lasts.end());
  std::vector<std::vector<std::uint32_t>> outs(lasts.size());
  for (const std::uint32_t at : set) {
    if (states_[at].op != Op::chars) continue;
    for (const CharRange& range : sets_[states_[at].chars]) {
      auto i = static_cast<std::size_t>(std::lower_bound(lasts.begin(), lasts.end(), range.first) -
                                        lasts.begin());
      for (; i < lasts.size() && lasts[i] <= range.last; ++i) outs[i].push_back(states_[at].out);
    }
  }
  std::vector<Step> steps;
  std::vector<std::pair<std::vector<std::uint32_t>, NfaSet>> known;
  std::vector<bool> seen(states_.size());
  for (std::size_t i = 0; i < lasts.size(); ++i) {
    NfaSet next;
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const auto& entry) { return entry.first == outs[i]; });
    if (found != known.end()) {
      next = found->second;
    } else if (!outs[i].empty()) {
      std::fill(seen.begin(), seen.end(), false);
      for (const std::uint32_t out : outs[i]) close(out, false, next, seen);
      std::sort(next.begin(), next.end());
      next.erase(std::unique(next.begin(), next.end()), next.end());
      known.emplace_back(outs[i], next);
    }
    if (!steps.empty() && steps.back().set == next) {
      steps.back().last = lasts[i];
    } else {
      steps.push_back({lasts[i], std::move(next)});
    }
  }
  return steps;
}

std::size_t Nfa::bytes() const {
  std::size_t bytes = states_.size() * sizeof(State);
  for (const CharSet& set : sets_) bytes += set.size() * sizeof(CharRange);
  return bytes;
}

}  // namespace baton::schema
