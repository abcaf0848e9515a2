// A GPU's memory by cudaMalloc, exported as cudaIpcMemHandle. This process runs no kernel of ours:
// it allocates, sets to zero, and frees.
#pragma once

#include <memory>
#include <string>

#include "memory/device_allocator.h"

namespace baton {

/// `gpu`: an ordinal or a UUID. Makes it this thread's, with a context (some hundred MB of its
/// memory). The error: there is no such GPU, or no driver, or this build has no CUDA.
Result<std::unique_ptr<DeviceAllocator>> make_cuda_allocator(const std::string& gpu);

}  // namespace baton
