// NCCL's all-reduce, for comparison, out of a library that is loaded at run time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// One communicator a rank, of one process.
class Nccl {
 public:
  /// `path`: of libnccl.so.2. Rank r has device r. Throws CudaError.
  Nccl(const std::string& path, int ranks);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  /// By each rank's thread: n bf16 are added up in place.
  void all_reduce(int rank, void* data, std::size_t n, Stream stream);

 private:
  void* library_ = nullptr;
  std::vector<void*> ranks_;
};

}  // namespace baton::cuda
