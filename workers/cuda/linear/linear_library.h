// Linear layers through cuBLASLt: its candidates for a shape, and running one of them.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <vector>

#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

class LibraryLinear {
 public:
  using Algorithm = cublasLtMatmulAlgo_t;
  /// How a result is stored: Bf16 or float, added to what is there or not.
  struct Store {
    bool f32 = false;
    bool add = false;
  };

  LibraryLinear(void* workspace, std::size_t workspace_bytes);
  ~LibraryLinear();
  LibraryLinear(const LibraryLinear&) = delete;
  LibraryLinear& operator=(const LibraryLinear&) = delete;

  static std::size_t version();

  /// Up to `most` candidates, the likeliest first. `whole_sums`: none that splits the sum over k.
  /// Throws CudaError when there is none.
  std::vector<Algorithm> candidates(int rows, int out, int in, Store store, bool whole_sums,
                                    int most) const;

  /// Queues y = x W^T; false when the algorithm cannot do this row count (nothing is queued then).
  bool run(const Algorithm& algorithm, const Bf16* x, int rows, const LinearWeight& w, Store store,
           void* y, Stream stream) const;

 private:
  struct Problem;

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_;
  std::size_t workspace_bytes_;
};

}  // namespace baton::cuda
