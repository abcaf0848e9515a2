// The marks of the families' replies, for those who read and who force them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace baton {

inline constexpr std::string_view kCallOpen = "<tool_call>";
inline constexpr std::string_view kCallClose = "</tool_call>";
inline constexpr std::string_view kFunctionOpen = "<function=";
inline constexpr std::string_view kFunctionClose = "</function>";
inline constexpr std::string_view kParameterOpen = "<parameter=";
inline constexpr std::string_view kParameterClose = "</parameter>";
inline constexpr std::string_view kCallsMark = "[TOOL_CALLS]";
inline constexpr std::string_view kArgumentsMark = "[ARGS]";
inline constexpr std::string_view kCallIdMark = "[CALL_ID]";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";
// Of the harmony format.
inline constexpr std::string_view kStartMark = "<|start|>";
inline constexpr std::string_view kChannelMark = "<|channel|>";
inline constexpr std::string_view kConstrainMark = "<|constrain|>";
inline constexpr std::string_view kMessageMark = "<|message|>";
inline constexpr std::string_view kEndMark = "<|end|>";
inline constexpr std::string_view kCallMark = "<|call|>";
inline constexpr std::string_view kReturnMark = "<|return|>";
inline constexpr std::string_view kFunctions = "functions.";
inline constexpr std::string_view kSpace = " \t\r\n";

inline bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

inline std::string_view trimmed_front(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

inline std::string_view trimmed_back(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
inline std::size_t open_end(std::string_view text, std::string_view mark) {
  for (std::size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace baton
