#include "frontend/core/told_timing.h"

#include <numeric>

namespace baton {
namespace {

/// Milliseconds to the microsecond.
std::string ms(TimeNs time) {
  const TimeNs us = (time + 500) / 1000;
  const std::string rest = std::to_string(1000 + us % 1000);
  return std::to_string(us / 1000).append(".").append(rest, 1, 3);
}

}  // namespace

TimeNs ToldTiming::total() const { return std::accumulate(spent.begin(), spent.end(), TimeNs{0}); }

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
