// What a run of baton-bench-policies was worth.
#pragma once

#include "bench/policy_loads.h"

namespace baton {

/// What clients saw: times from arrival.
struct Figures {
  double ttft_p50 = 0, ttft_p99 = 0, itl_p50 = 0, itl_p99 = 0;  // ms
  double tokens_per_s = 0;                                      // until the last one
  double latency_sum = 0;                                       // s
};

Figures figures_of(const Requests& requests, const VirtualRun& run);

}  // namespace baton
