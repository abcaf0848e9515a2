// Regular expressions of tokenizer.json. They are written for Oniguruma; PCRE2 runs them. PCRE2
// stays inside regex.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ipc/status.h"

namespace baton {

/// `pattern` with the same meaning for PCRE2 (UTF, UCP, multi-line): where the two differ (\s, \w,
/// \d, \v, \u, scripts), it is spelled out; what cannot be said the same way is an error that names
/// it. Errors are ErrorCode::unavailable.
Result<std::string> translate_regex(std::string_view pattern);

/// `text` as a pattern that matches only itself.
std::string escape_regex(std::string_view text);

/// Members of a character class.
inline constexpr std::string_view kSpaceMembers =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
inline constexpr std::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

/// A compiled expression; const and safe for several threads. Work on one text is bounded by
/// PCRE2's match limits.
class Regex {
 public:
  /// `pattern` is in PCRE2's syntax. One that can match an empty text is refused.
  static Result<Regex> compile(const std::string& pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  enum class Found : std::uint8_t { match, none, gave_up };
  /// The first match in `text` (valid UTF-8) at or behind `from`; the bounds of a match are set.
  Found find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace baton
