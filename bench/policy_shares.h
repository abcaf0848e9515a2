// What a key with a hundred times the load costs another one: a table of baton-bench-policies.
#pragma once

#include <cstdint>

#include "planning/step_times.h"

namespace baton {

/// Prints it; false if somebody did not get what it asked for. `requests`: of the heavy key.
bool print_shares(std::uint64_t seed, std::uint32_t requests, const MeasuredDevice& device);

}  // namespace baton
