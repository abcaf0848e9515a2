// Memory of one device that outlives who uses it: what a memory process of a GPU needs of CUDA,
// and nothing else. Tests have one of plain memory.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/status.h"

namespace baton {

/// An allocation, owned by whoever asked for it until free().
struct DeviceBlock {
  std::string handle;  // how other processes map it
  void* address = nullptr;
  std::uint64_t bytes = 0;  // as asked for
};

/// Used by one thread.
class DeviceAllocator {
 public:
  virtual ~DeviceAllocator() = default;
  /// All bytes are zero. The error says what there is no room for.
  virtual Result<DeviceBlock> allocate(std::uint64_t bytes) = 0;
  /// Nobody has it mapped any more: its place may be another one's at once.
  virtual void free(const DeviceBlock& block) = 0;
};

}  // namespace baton
