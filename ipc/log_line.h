// One form for the log lines of all processes, as text or as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

enum class LogFormat { text, json };

/// "text" or "json" (configs/options.cpp lets nothing else through).
inline LogFormat log_format_of(std::string_view name) {
  return name == "json" ? LogFormat::json : LogFormat::text;
}

/// One line without its end. `wall_ns`: nanoseconds since 1970. `level`: trace, debug, info, warning,
/// error, critical; empty for what a process wrote past its log (a library's complaint).
///   text: 2026-11-25T01:02:03.456 info decode0 ready
///   json: {"time":"2026-11-25T01:02:03.456+00:00","level":"info","process":"decode0","message":"ready"}
/// Bytes that are not UTF-8 become U+FFFD in JSON.
std::string log_line(LogFormat format, std::int64_t wall_ns, std::string_view level,
                     std::string_view process, std::string_view text);

/// Whether a line of either form tells of less than a warning. What is no log line does not.
bool is_quiet_line(std::string_view line);

}  // namespace baton
