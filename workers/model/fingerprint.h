// A number that tells models apart.
#pragma once

#include <cstdint>

#include "workers/model/config.h"
#include "workers/model/content_digest.h"
#include "workers/model/safetensors.h"

namespace baton {

/// Over everything in the configuration that the forward pass uses, every tensor's name, type and
/// shape, and all of every tensor's bytes (`content`). Never 0.
std::uint64_t model_fingerprint(const ModelConfig& config, const Checkpoint& checkpoint,
                                const ContentDigest& content);
/// Of random weights, which follow from the configuration.
std::uint64_t model_fingerprint(const ModelConfig& config);

}  // namespace baton
