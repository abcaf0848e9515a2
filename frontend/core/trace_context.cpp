#include "frontend/core/trace_context.h"

#include <algorithm>

namespace baton {
namespace {

constexpr std::size_t kVersion00 = 55;   // 00-<32>-<16>-<2>
constexpr std::size_t kLongest = 512;    // of a version to come
constexpr std::size_t kMostState = 512;  // bytes of tracestate that must be handed on

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;  // upper case is not allowed
}

/// False: some of it is no digit.
bool read_hex(std::string_view text, std::uint8_t* bytes) {
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int first = digit(text[i]);
    const int second = digit(text[i + 1]);
    if (first < 0 || second < 0) return false;
    *bytes++ = static_cast<std::uint8_t>(first * 16 + second);
  }
  return true;
}

template <std::size_t N>
bool all_zero(const std::array<std::uint8_t, N>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool good_state(std::string_view state) {
  return state.size() <= kMostState && std::all_of(state.begin(), state.end(), [](char c) {
           return (c >= ' ' && c <= '~') || c == '\t';
         });
}

}  // namespace

std::optional<TraceContext> parse_trace_context(std::string_view parent, std::string_view state) {
  parent = trimmed(parent);
  if (parent.size() < kVersion00 || parent.size() > kLongest) return std::nullopt;
  if (parent[2] != '-' || parent[35] != '-' || parent[52] != '-') return std::nullopt;
  std::uint8_t version = 0;
  std::uint8_t flags = 0;
  TraceContext context;
  if (!read_hex(parent.substr(0, 2), &version) || version == 0xff ||
      !read_hex(parent.substr(3, 32), context.trace.data()) ||
      !read_hex(parent.substr(36, 16), context.span.data()) ||
      !read_hex(parent.substr(53, 2), &flags))
    return std::nullopt;
  if (all_zero(context.trace) || all_zero(context.span)) return std::nullopt;
  if (parent.size() > kVersion00 && (version == 0 || parent[kVersion00] != '-'))
    return std::nullopt;
  context.sampled = (flags & 1U) != 0;
  state = trimmed(state);
  if (good_state(state)) context.state = state;
  return context;
}

std::string hex_text(const std::uint8_t* bytes, std::size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4U];
    text += kDigits[bytes[i] & 15U];
  }
  return text;
}

}  // namespace baton
