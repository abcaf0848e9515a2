// What a server says of its load in a reply's head, for balancers that go by it: the header
// endpoint-load-metrics of ORCA, in the forms that Envoy and gRPC read. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/types.h"

namespace baton {

inline constexpr const char* kLoadHeader = "endpoint-load-metrics";
inline constexpr const char* kLoadFormatHeader = "endpoint-load-metrics-format";

/// As the request's header asks.
enum class LoadFormat : std::uint8_t { none, json, text };
/// Of any case; what is no form that we write asks for nothing.
LoadFormat load_format(std::string_view asked);

struct LoadReport {
  double utilization = 0;  // 1: everything that fits is there; more: requests wait
  double rate = 0;         // requests a second
  double kv_used = 0;      // 0 to 1
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
};
/// The header's value; empty for `none`.
std::string load_text(LoadFormat format, const LoadReport& report);

/// How many a second, over the last ten seconds or since the first one.
class EventRate {
 public:
  void count(TimeNs now);
  double per_second(TimeNs now) const;

 private:
  static constexpr TimeNs kSeconds = 10;
  std::array<std::uint32_t, kSeconds> counts_{};  // by second, modulo
  std::array<TimeNs, kSeconds> seconds_{};        // which one is counted there
  TimeNs first_ = 0;
};

}  // namespace baton
