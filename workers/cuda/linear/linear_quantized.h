// Linear layers over quantised weights, which stay quantised in device memory: bound by their bytes
// for few rows of x. Products of x with the stored numbers themselves (exact in bf16) are summed in
// fp32 and scaled there, a group at a time.
#pragma once

#include <cstdint>

#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

/// More rows are served in pieces of so many by the kernel that runs everywhere; from there on
/// dequantising is worth timing.
constexpr int kMostQuantizedRows = 64;

/// Queues y[r][i] = x[r][order[i]], rows of `columns`; x and y apart.
void gather_columns(const Bf16* x, const std::int32_t* order, int rows, int columns, Bf16* y,
                    Stream stream);

/// Queues the dequantising of the whole matrix to bf16 [out, in], row-major, inputs in the weight's
/// order.
void dequantize(const LinearWeight& w, Bf16* to, Stream stream);

}  // namespace baton::cuda
