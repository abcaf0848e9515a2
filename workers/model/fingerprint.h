// A number that tells models apart.
#pragma once

#include <cstdint>

#include "workers/model/config.h"
#include "workers/model/safetensors.h"

namespace baton {

/// Over everything in the configuration that the forward pass uses, every tensor's name, type and
/// shape, and samples of every tensor's bytes. Never 0.
std::uint64_t model_fingerprint(const ModelConfig& config, const Checkpoint& checkpoint);
/// Of random weights, which follow from the configuration.
std::uint64_t model_fingerprint(const ModelConfig& config);

}  // namespace baton
