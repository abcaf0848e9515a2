// JSON strings and server-sent events as bytes.
#pragma once

#include <string>
#include <string_view>

namespace baton {

/// Appends `text` as the inside of a JSON string (without the quotes). The result is always valid
/// UTF-8 and never holds a line break: bytes that are no character become U+FFFD.
void append_json_escaped(std::string& out, std::string_view text);

/// `text` as a JSON string, quotes included.
std::string json_string(std::string_view text);

/// "data: " + `data` + two line breaks. `data` holds no line break.
std::string sse_event(std::string_view data);

/// The last event of an OpenAI stream.
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

/// A comment line; keeps proxies from closing a silent stream. Clients ignore it.
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

}  // namespace baton
