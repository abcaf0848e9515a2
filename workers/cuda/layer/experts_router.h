// The router of a layer of experts at few rows, where its product is too small to be anything but a
// wait. Part of experts.h.
#pragma once

#include "workers/cuda/types.h"

namespace baton::cuda {

/// normed = rms_norm(x), where there is a `gain`, and logits = normed w^T in fp32.
struct RouterCall {
  int rows = 0, count = 0, hidden = 0;  // hidden % 8 == 0
  const Bf16* x = nullptr;              // [rows, hidden]; without a gain x is normed already
  const Bf16* gain = nullptr;           // [hidden]
  float eps = 0;
  Bf16* normed = nullptr;   // [rows, hidden], with a gain alone
  const Bf16* w = nullptr;  // [count, hidden], 16-byte aligned
  float* logits = nullptr;  // [rows, count]
};

/// Up to eight rows, as many as shared memory holds. A row's bits depend on the row alone, but are
/// not those of Linears.
bool router_fits(int rows, int hidden);
/// Throws CudaError.
void run_router(const RouterCall& call, Stream stream);

}  // namespace baton::cuda
