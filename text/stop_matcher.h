// Finds the first of several strings in a text that arrives byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

/// Knuth-Morris-Pratt for each string side by side: no memory beyond the strings' own lengths, at
/// most two comparisons a byte and string on average. The match that is complete first wins; of two
/// that are complete at the same byte, the longer one.
class StopMatcher {
 public:
  /// Every string has at least one byte.
  explicit StopMatcher(const std::vector<std::string>& strings);

  bool empty() const { return patterns_.empty(); }

  /// Takes bytes up to and including the one that completes a match. `end` is then the number of
  /// bytes taken, `length` the size of the matched string; without a match `length` is 0.
  struct Match {
    std::size_t end = 0;
    std::size_t length = 0;
    std::size_t which = 0;  // index among the strings
  };
  Match feed(std::string_view text);

  /// Bytes at the end of everything taken so far that may be the beginning of a match.
  std::size_t pending() const;

  /// How many bytes of each string are matched, to come back to with restore().
  std::vector<std::uint32_t> state() const;
  void restore(const std::vector<std::uint32_t>& state);

 private:
  struct Pattern {
    std::string text;
    std::vector<std::uint32_t> border;  // border[k]: longest proper border of the first k bytes
    std::uint32_t matched = 0;
  };
  std::vector<Pattern> patterns_;
};

}  // namespace baton
