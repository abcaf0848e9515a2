// What a run of baton-bench-policies was worth.
#pragma once

#include <string>

#include "bench/policy_loads.h"

namespace baton {

/// Plays requests of which nobody is turned away for the queue's length, nor given up soon.
VirtualRun play(Settings settings, const std::vector<VirtualWorker>& workers,
                const StepTimes& times, const Requests& requests);

/// What clients saw: times from arrival.
struct Figures {
  double ttft_p50 = 0, ttft_p99 = 0, itl_p50 = 0, itl_p99 = 0;  // ms
  double tokens_per_s = 0;                                      // until the last one
  double latency_sum = 0;                                       // s
};

Figures figures_of(const Requests& requests, const VirtualRun& run);

/// ... and those alone whose tenant is `tenant`. Their latencies are to the last token.
Figures figures_of(const Requests& requests, const VirtualRun& run, const std::string& tenant);

}  // namespace baton
