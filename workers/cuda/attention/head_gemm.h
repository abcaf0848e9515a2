// Rows through each head's matrix by cuBLASLt, for many rows; head_product() (latent.h) is for few.
#pragma once

#include <memory>

#include "workers/cuda/attention/latent.h"

namespace baton::cuda {

class HeadGemm {
 public:
  /// On the calling thread's device. Throws CudaError.
  HeadGemm();
  ~HeadGemm();
  HeadGemm(const HeadGemm&) = delete;
  HeadGemm& operator=(const HeadGemm&) = delete;
  /// As head_product(), but inputs_first, which it does not do. Queues work, of one thread at a
  /// time; throws CudaError.
  void run(const HeadProduct& a, Stream stream) const;
  /// Chooses for such products, of up to a.rows rows. Throws CudaError where none is known.
  void prepare(const HeadProduct& a) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::cuda
