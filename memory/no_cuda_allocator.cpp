#include "memory/cuda_allocator.h"

namespace baton {

Result<std::unique_ptr<DeviceAllocator>> make_cuda_allocator(const std::string& /*gpu*/) {
  return invalid("this build has no CUDA: `./baton build --cuda baton-memory` builds it");
}

}  // namespace baton
