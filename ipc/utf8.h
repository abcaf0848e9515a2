// One character of UTF-8 at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State : std::uint8_t {
  valid,       // `length` bytes are one character
  invalid,     // no character; `length` bytes begin one that the next byte does not go on with, or
               // 1, if the first byte begins none
  unfinished,  // more bytes may make it one; `length` is 0
};

struct Utf8Scan {
  Utf8State state = Utf8State::unfinished;
  std::uint8_t length = 0;
};

/// Looks at the first character of `bytes` (RFC 3629: no surrogates, no overlong forms, at most
/// U+10FFFF). Empty input is unfinished.
Utf8Scan scan_utf8(std::string_view bytes);

/// Where the first byte lies that belongs to no character; the size of `bytes` if there is none.
std::size_t first_non_utf8(std::string_view bytes);

}  // namespace baton
