// What a supervisor shows while it runs: lines, and at a terminal one live line below them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

/// Standard output. A terminal or pipe that does not take what is written costs what was written,
/// never a wait: the supervisor must not freeze with its reader.
class Terminal {
 public:
  /// `live`: the last row is a line that is written anew again and again.
  explicit Terminal(bool live) : live_(live) {}
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool live() const { return live_; }

  /// Writes whole lines above the live one. False if they were not taken.
  bool write(std::string_view lines);

  /// Sets the live line, cut to the terminal's width. Does nothing where none is shown.
  void set_live_line(std::string text);

  /// Takes the live line away, for whoever writes next.
  void clear();

 private:
  std::string drawn() const;

  bool live_;
  std::string text_;
};

/// As many bytes of UTF-8 text as fill `columns` (a code point a column), never half a code point.
std::string_view cut_to_columns(std::string_view text, std::size_t columns);

}  // namespace baton
