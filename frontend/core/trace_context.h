// A client's place in a trace of its own, as the W3C's Trace Context has it: the headers
// traceparent and tracestate. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

struct TraceContext {
  std::array<std::uint8_t, 16> trace{};
  std::array<std::uint8_t, 8> span{};  // the client's, which is the parent of ours
  bool sampled = false;
  std::string state;  // tracestate, to be handed on as it is; empty: there was none

  bool operator==(const TraceContext&) const = default;
};

/// Nothing if `parent` is no valid traceparent; such a client is served as one without. Of versions
/// to come, what version 00 says is read. A `state` that is too long or has strange bytes is left
/// out.
std::optional<TraceContext> parse_trace_context(std::string_view parent, std::string_view state);

/// In lower case.
std::string hex_text(const std::uint8_t* bytes, std::size_t count);
template <std::size_t N>
std::string hex_text(const std::array<std::uint8_t, N>& bytes) {
  return hex_text(bytes.data(), N);
}

}  // namespace baton
