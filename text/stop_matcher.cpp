#include "text/stop_matcher.h"

#include <algorithm>

namespace baton {
namespace {

std::vector<std::uint32_t> borders(const std::string& text) {
  std::vector<std::uint32_t> border(text.size() + 1, 0);
  std::uint32_t length = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length];
    if (text[i] == text[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& strings) {
  patterns_.reserve(strings.size());
  for (const std::string& text : strings) {
    if (!text.empty()) patterns_.push_back({text, borders(text), 0});
  }
}

StopMatcher::Match StopMatcher::feed(std::string_view text) {
  Match match;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (std::size_t which = 0; which < patterns_.size(); ++which) {
      Pattern& pattern = patterns_[which];
      std::uint32_t matched = pattern.matched;
      while (matched > 0 && text[i] != pattern.text[matched]) matched = pattern.border[matched];
      if (text[i] == pattern.text[matched]) ++matched;
      if (matched == pattern.text.size()) {
        match.end = i + 1;
        if (pattern.text.size() > match.length) {
          match.length = pattern.text.size();
          match.which = which;
        }
        matched = pattern.border[matched];
      }
      pattern.matched = matched;
    }
    if (match.length > 0) return match;
  }
  return match;
}

std::size_t StopMatcher::pending() const {
  std::size_t longest = 0;
  for (const Pattern& pattern : patterns_) {
    longest = std::max<std::size_t>(longest, pattern.matched);
  }
  return longest;
}

std::vector<std::uint32_t> StopMatcher::state() const {
  std::vector<std::uint32_t> state;
  state.reserve(patterns_.size());
  for (const Pattern& pattern : patterns_) state.push_back(pattern.matched);
  return state;
}

void StopMatcher::restore(const std::vector<std::uint32_t>& state) {
  for (std::size_t i = 0; i < patterns_.size(); ++i) patterns_[i].matched = state[i];
}

}  // namespace baton
