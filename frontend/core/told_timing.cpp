#include "frontend/core/told_timing.h"

#include <cstdio>
#include <numeric>

namespace baton {
namespace {

/// Milliseconds to the microsecond. The C library's locale is the C one: nobody sets another.
std::string ms(TimeNs time) {
  char text[32];
  const TimeNs us = (time + 500) / 1000;
  std::snprintf(text, sizeof text, "%lld.%03d", static_cast<long long>(us / 1000),
                static_cast<int>(us % 1000));
  return text;
}

}  // namespace

TimeNs ToldTiming::total() const {
  return std::accumulate(spent.begin(), spent.end(), TimeNs{0});
}

std::string server_timing(const ToldTiming& timing) {
  std::string text;
  for (std::size_t i = 0; i < kParts; ++i) {
    if (timing.spent[i] < 500) continue;
    text += std::string(to_string(static_cast<Part>(i))) + ";dur=" + ms(timing.spent[i]) + ", ";
  }
  return text + "total;dur=" + ms(timing.total());
}

std::string timing_object(const ToldTiming& timing) {
  std::string text = "{\"total_ms\":" + ms(timing.total());
  for (std::size_t i = 0; i < kParts; ++i) {
    text += std::string(",\"") + to_string(static_cast<Part>(i)) + "_ms\":" + ms(timing.spent[i]);
  }
  return text + ",\"decode_steps\":" + std::to_string(timing.decode_steps) +
         ",\"median_gap_ms\":" + ms(timing.median_gap) + "}";
}

}  // namespace baton
