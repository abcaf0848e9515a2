// What requests over several workers are worth on loads of short and long prompts, after
// LoongServe's comparison (SOSP'24): a table of baton-bench-policies.
#pragma once

#include <cstdint>

#include "planning/step_times.h"

namespace baton {

/// Prints it. `requests`: of each run, at least.
void print_elastic(std::uint64_t seed, std::uint32_t requests, const MeasuredDevice& device);

}  // namespace baton
