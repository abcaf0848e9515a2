#include "ipc/log_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

namespace baton {
namespace {

constexpr std::string_view kQuiet[] = {"trace", "debug", "info"};
constexpr std::size_t kTimeLength = sizeof("2026-11-25T01:02:03.456") - 1;

std::string time_text(std::int64_t wall_ns, bool with_zone) {
  const std::time_t seconds = wall_ns / 1'000'000'000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char date[32], zone[48] = "", text[96];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  if (with_zone) {
    const long minutes = std::labs(parts.tm_gmtoff) / 60;
    std::snprintf(zone, sizeof zone, "%c%02ld:%02ld", parts.tm_gmtoff < 0 ? '-' : '+', minutes / 60,
                  minutes % 60);
  }
  std::snprintf(text, sizeof text, "%s.%03d%s", date,
                static_cast<int>(wall_ns / 1'000'000 % 1000), zone);
  return text;
}

}  // namespace

std::string log_line(LogFormat format, std::int64_t wall_ns, std::string_view level,
                     std::string_view process, std::string_view text) {
  if (format == LogFormat::json) {
    nlohmann::ordered_json line;
    line["time"] = time_text(wall_ns, true);
    if (!level.empty()) line["level"] = level;
    line["process"] = process;
    line["message"] = text;
    return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  if (level.empty()) return std::string(text);
  std::string line = time_text(wall_ns, false);
  for (const std::string_view part : {level, process, text}) {
    line += ' ';
    line += part;
  }
  return line;
}

bool is_quiet_line(std::string_view line) {
  const auto says = [&](std::string_view before, std::string_view after) {
    return std::any_of(std::begin(kQuiet), std::end(kQuiet), [&](std::string_view level) {
      return line.starts_with(std::string(before) + std::string(level) + std::string(after));
    });
  };
  if (line.starts_with('{')) {
    const auto level = line.find("\"level\":");
    if (level == std::string_view::npos) return false;
    line.remove_prefix(level);
    return says("\"level\":\"", "\"");
  }
  if (line.size() <= kTimeLength || line[4] != '-' || line[10] != 'T') return false;
  line.remove_prefix(kTimeLength);
  return says(" ", " ");
}

}  // namespace baton
