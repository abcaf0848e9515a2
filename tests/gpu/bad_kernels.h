// Kernels that no worker runs: one that does not end by itself and writes all the time, for what
// becomes of it when its process dies, and one that makes the device fail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// Queues it: word i of the first `words` of `memory` counts up, for ever. `words` is a multiple of
/// 256.
void write_endlessly(std::uint32_t* memory, std::size_t words, Stream stream);

/// Queues a write to an address that is nobody's: an error of the process's context, for good.
void write_nowhere(Stream stream);

}  // namespace baton::cuda
