#include "frontend/core/surrogates.h"

#include <charconv>
#include <cstdint>

namespace baton {
namespace {

constexpr std::size_t kEscape = 6;  // \uXXXX

/// The code unit of the escape at `at`; 0: there is none.
std::uint32_t code_unit(std::string_view json, std::size_t at) {
  if (json.size() - at < kEscape || json[at] != '\\' || json[at + 1] != 'u') return 0;
  std::uint32_t unit = 0;
  const char* end = json.data() + at + kEscape;
  const auto read = std::from_chars(json.data() + at + 2, end, unit, 16);
  return read.ec == std::errc() && read.ptr == end ? unit : 0;
}

bool is_high(std::uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(std::uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

}  // namespace

std::optional<std::string> without_lone_surrogates(std::string_view json) {
  std::optional<std::string> mended;
  std::size_t at = 0;
  while ((at = json.find('\\', at)) != std::string_view::npos) {
    const std::uint32_t unit = code_unit(json, at);
    if (is_high(unit) && is_low(code_unit(json, at + kEscape))) {
      at += 2 * kEscape;
    } else if (is_high(unit) || is_low(unit)) {
      if (!mended) mended.emplace(json);
      mended->replace(at + 2, 4, "fffd");
      at += kEscape;
    } else {
      at += 2;  // what is escaped may be a backslash
    }
  }
  return mended;
}

}  // namespace baton
