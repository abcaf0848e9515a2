// The kernels behind linear_quantized.h that need Hopper. Their variants are ways to cut the work,
// numbered; the fastest is found by timing.
#pragma once

#include <vector>

#include "workers/cuda/linear_few_rows.h"
#include "workers/cuda/linear_quantized.h"

namespace baton::cuda {

constexpr int kMostRingRows = 8;
constexpr int kMostRingBytes = 208 << 10;  // of shared memory

/// Bound by the bytes of W: up to eight rows whose x fits into shared memory.
std::vector<int> ring_variants(int rows, const LinearWeight& w);
void ring_linear(int variant, const QuantizedCall& call, Stream stream);

/// Any row count; bound by the bytes of W up to about 100.
std::vector<int> tiles_variants(int rows, const LinearWeight& w);
void tiles_linear(int variant, const QuantizedCall& call, Stream stream);

}  // namespace baton::cuda
