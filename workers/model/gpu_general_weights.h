// The parameters of models that the fused kernels do not cover (has_fused_layers()): what place(),
// load_gpu_weights() and random_gpu_weights() do for the others. Inside of gpu_weights.cpp.
#pragma once

#include <atomic>

#include "workers/model/gpu_formats.h"
#include "workers/model/gpu_places.h"
#include "workers/model/gpu_weights.h"

namespace baton {

/// All but the ropes. Experts are in MXFP4 where the checkpoint has them so; without one, where the
/// configuration says so.
void place_general_weights(const ModelConfig& c, const GpuFormats& formats, GpuPlaces& places,
                           GpuWeights& w);

/// Likewise; as load_gpu_weights().
void load_general_weights(const ModelConfig& c, const Checkpoint& checkpoint, int ordinal,
                          std::atomic<int>& percent, GpuWeights& w);

/// Norms become ones, and what is read in fp32 numbers of about the size of the rest.
void randomise_general_weights(const ModelConfig& c, GpuWeights& w);

}  // namespace baton
