// Numbers as options write and read them. Private to configs/.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include "ipc/status.h"

namespace baton {

inline Status is(const std::string& text, const std::string& wanted) {
  return invalid("is " + (text.empty() ? std::string("empty") : text) + "; it may be " + wanted);
}

inline std::string number_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.15g", value);
  return buffer;
}

inline std::string range_text(double min, double max) {
  return number_text(min) + " to " + number_text(max);
}

inline std::string trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string(text);
}

/// The error says what the value is and what it may be, as set_option's does.
template <typename T>
Status set_number(T& value, const std::string& text, bool quoted, double min, double max) {
  const char* kind = std::is_integral_v<T> ? "an integer, " : "a number, ";
  T parsed{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, parsed);
  // Too large for the type is no other mistake than too large for the option.
  const bool range = error == std::errc::result_out_of_range && at == end;
  if (quoted || (error != std::errc() && !range) || at != end || text.empty()) {
    return is("'" + text + "'", kind + range_text(min, max));
  }
  if (range || !std::isfinite(static_cast<double>(parsed)) || static_cast<double>(parsed) < min ||
      static_cast<double>(parsed) > max) {
    return is(text, range_text(min, max));
  }
  value = parsed;
  return {};
}

}  // namespace baton
