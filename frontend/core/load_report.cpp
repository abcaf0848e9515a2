#include "frontend/core/load_report.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace baton {
namespace {

std::string load_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

LoadFormat load_format(std::string_view asked) {
  std::string word(asked);
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (word == "json") return LoadFormat::json;
  return word == "text" ? LoadFormat::text : LoadFormat::none;
}

std::string load_text(LoadFormat format, const LoadReport& report) {
  const std::string utilization = load_number(report.utilization);
  const std::string rate = load_number(report.rate);
  const std::string kv = load_number(report.kv_used);
  const std::string running = std::to_string(report.running);
  const std::string waiting = std::to_string(report.waiting);
  switch (format) {
    case LoadFormat::none:
      return {};
    case LoadFormat::json:
      return "JSON {\"application_utilization\":" + utilization + ",\"rps_fractional\":" + rate +
             ",\"named_metrics\":{\"kv_cache_usage_perc\":" + kv +
             ",\"num_requests_running\":" + running + ",\"num_requests_waiting\":" + waiting + "}}";
    case LoadFormat::text:
      return "TEXT application_utilization=" + utilization + ", rps_fractional=" + rate +
             ", named_metrics.kv_cache_usage_perc=" + kv +
             ", named_metrics.num_requests_running=" + running +
             ", named_metrics.num_requests_waiting=" + waiting;
  }
  return {};
}

void EventRate::count(TimeNs now) {
  const TimeNs second = now / kSecond;
  if (first_ == 0) first_ = now;
  const auto at = static_cast<std::size_t>(second % kSeconds);
  if (seconds_[at] != second) {
    seconds_[at] = second;
    counts_[at] = 0;
  }
  ++counts_[at];
}

double EventRate::per_second(TimeNs now) const {
  if (first_ == 0) return 0;
  const TimeNs second = now / kSecond;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (seconds_[i] > second - kSeconds) total += counts_[i];
  }
  // The second that runs is counted as far as it has come.
  const TimeNs window = (kSeconds - 1) * kSecond + now % kSecond;
  const TimeNs over = std::clamp<TimeNs>(now - first_, kSecond, std::max(window, kSecond));
  return static_cast<double>(total) / (static_cast<double>(over) * 1e-9);
}

}  // namespace baton
