// What the CPU serves and `device: cuda` does not yet. Free of CUDA, so that every build can tell.
#pragma once

#include "workers/model/config.h"

namespace baton {

/// Throws ModelError that names the setting if a GPU worker cannot serve the model. Every scaling
/// of the angles works there: its table comes from rope_frequencies(), too.
void check_gpu_limits(const ModelConfig& config);

}  // namespace baton
