// The marks of the families' replies, for those who read and who force them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace baton {

inline constexpr std::string_view kCallOpen = "<tool_call>";
inline constexpr std::string_view kCallClose = "</tool_call>";
inline constexpr std::string_view kCallsMark = "[TOOL_CALLS]";
inline constexpr std::string_view kArgumentsMark = "[ARGS]";
inline constexpr std::string_view kCallIdMark = "[CALL_ID]";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";
inline constexpr std::string_view kSpace = " \t\r\n";

inline std::string_view trimmed_front(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

inline std::string_view trimmed_back(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

}  // namespace baton
