// The parameters of models that the fused kernels do not cover (has_fused_layers()): what place(),
// load_gpu_weights() and random_gpu_weights() do for the others. Inside of gpu_weights.cpp.
#pragma once

#include <atomic>

#include "workers/model/gpu_formats.h"
#include "workers/model/gpu_places.h"
#include "workers/model/gpu_weights.h"

namespace baton {

/// All but the head and the ropes. `c`: the rank's part of the model (gpu_cut.h).
void place_general_weights(const ModelConfig& c, const GpuFormats& formats, const GpuCut& cut,
                           GpuPlaces& places, GpuWeights& w);

/// All but the ropes; as load_gpu_weights(), with the whole model's configuration.
void load_general_weights(const ModelConfig& whole, const Checkpoint& checkpoint, int ordinal,
                          std::atomic<int>& percent, GpuWeights& w, const GpuCut& cut);

/// Norms become ones, and what is read in fp32 numbers of about the size of the rest. `c`: the
/// rank's part of the model.
void randomise_general_weights(const ModelConfig& c, GpuWeights& w);

}  // namespace baton
