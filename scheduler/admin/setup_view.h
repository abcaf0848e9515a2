// What was chosen for a model, and which key of the configuration overrides it. Pure.
#pragma once

#include <string>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton {

struct SetupLine {
  std::string what;
  std::string chosen;
  std::string option;  // as it stands on the command line; empty: nothing overrides it
};

/// The context, what each front end reads text with, and each worker's device, weights and pool. Of
/// workers and front ends that are there.
std::vector<SetupLine> setup_lines(const State& state);

}  // namespace baton
