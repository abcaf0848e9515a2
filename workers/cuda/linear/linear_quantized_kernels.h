// The kernels behind linear_quantized.h that need Hopper. Their variants are ways to cut the work,
// numbered; the fastest is found by timing.
#pragma once

#include <vector>

#include "workers/cuda/linear/linear_quantized.h"
#include "workers/cuda/linear/linear_staged.h"

namespace baton::cuda {

constexpr int kMostRingRows = 8;
constexpr int kMostRingBytes = 208 << 10;  // of shared memory

/// Bound by the bytes of W: up to eight rows whose x fits into shared memory.
std::vector<int> ring_variants(int rows, const LinearWeight& w);
void ring_linear(int variant, const QuantizedCall& call, Stream stream);

/// Any row count; bound by the bytes of W up to about 100.
std::vector<int> tiles_variants(int rows, const LinearWeight& w);
void tiles_linear(int variant, const QuantizedCall& call, Stream stream);

/// Calls launch.operator()<format, parts>(); parts: scales of a feature within 128 inputs.
template <typename Launch>
void by_format(const QuantizedWeight& w, const Launch& launch) {
  if (w.format == WeightFormat::fp8) {
    return w.group_shift == 6 ? launch.template operator()<WeightFormat::fp8, 2>()
                              : launch.template operator()<WeightFormat::fp8, 1>();
  }
  switch (w.group_shift) {
    case 5:
      return launch.template operator()<WeightFormat::int4, 4>();
    case 6:
      return launch.template operator()<WeightFormat::int4, 2>();
    default:
      return launch.template operator()<WeightFormat::int4, 1>();
  }
}

}  // namespace baton::cuda
