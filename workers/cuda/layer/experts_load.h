// MXFP4, FP8 and int4 experts from a checkpoint's layout to that of the kernels (expert_layout.h),
// on the device, at load time. All pointers are device memory; every call queues on `stream` and
// throws CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/linear/quantized_layout.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// One matrix [out, in] of one expert as it is stored.
struct Mxfp4Part {
  int out = 0;                        // a multiple of 16
  int in = 0;                         // a multiple of 32
  const std::byte* codes = nullptr;   // [out, in / 2], two numbers a byte, the lower half first
  const std::byte* scales = nullptr;  // [out, in / 32], 127 more than a power of two
  /// Rows are gate's and up's in turns; kept are eight of gate, eight of up, and so on.
  bool alternating = false;
};

/// Writes expert_bytes() at `to`, which are zeroed first by the caller. `bad` is set to
/// kBadMxfp4Scale if there is a scale that the layout cannot keep.
constexpr int kBadMxfp4Scale = 2;
void pack_mxfp4(const Mxfp4Part& part, std::byte* to, int* bad, Stream stream);

/// One matrix [out, in] of one expert in bf16, in the order of rows in which it is kept, that
/// stands for FP8 numbers times scales: `scales` [out, ceil(in / 64)], fp32. Neighbouring FP8
/// numbers are further apart than bf16 rounds, so dividing by the scale and rounding finds the
/// stored ones.
struct Fp8Part {
  int out = 0;  // a multiple of 16
  int in = 0;   // a multiple of 32
  const Bf16* values = nullptr;
  const float* scales = nullptr;
};
/// Writes expert_bytes() at `to`, which are zeroed first by the caller.
void pack_fp8(const Fp8Part& part, std::byte* to, Stream stream);

/// One matrix [out, in] of one expert as a linear layer in int4 has it: `out` a multiple of 16,
/// groups of whole units or one for all inputs, no order of its own. Writes expert_bytes() at `to`.
void pack_int4(const QuantizedWeight& part, int out, int in, std::byte* to, Stream stream);

/// For benchmarks: random numbers of about this deviation; of MXFP4 a power of two.
void fill_fp8(std::byte* to, std::size_t bytes, float deviation, std::uint64_t seed, Stream stream);
void fill_int4(std::byte* to, std::size_t bytes, float deviation, std::uint64_t seed,
               Stream stream);
void fill_mxfp4(std::byte* to, std::size_t bytes, float deviation, std::uint64_t seed,
                Stream stream);

}  // namespace baton::cuda
