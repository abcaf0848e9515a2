// Products of inputs rounded to eight bits with weights that are whole numbers: sums of integer
// products, exact inside of a piece. What a GroupFormat that rounds_inputs goes through.
//
// A row is rounded by 32 inputs: scale = max |x| / 127, n = x * (127 / max |x|) to the nearest,
// ties to even. A piece is what shares the scale of the inputs and that of the weights:
// gcd(32, group) inputs. A result is one chain over pieces ascending that starts at +0:
//   sum = fma(float(sum of n (q - zero)), scale of the row * scale of the weights, sum)
//   sum = fma(offset, scale of the row * float(sum of n), sum)   with offsets
// (of e2m1, q are twice the values and scales half of theirs: exact), whatever runs beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "workers/cpu/kernels.h"

namespace baton::cpu {

/// Inputs of a row that share a scale.
constexpr int kRoundedTogether = 32;
/// A row whose 32 inputs are all smaller is 0 there: 127 / max would not be finite.
constexpr float kSmallestRounded = 0x1p-100F;

/// Of one piece.
struct RoundedPiece {
  float scale = 0;    // NaN where one of the 32 inputs is no number
  float sum = 0;      // of its whole numbers
  float product = 0;  // scale * sum
};

/// A rounded row: [in] bytes, each eight inputs in the order 0, 2, 4, 6, 1, 3, 5, 7; the pieces;
/// and where AVX2 multiplies it with bytes, the same numbers in 16 bits, 0, 4, 2, 6, 1, 5, 3, 7.
struct RoundedRow {
  int in = 0;
  int piece = 0;
  bool wide = false;

  static constexpr RoundedRow of(int in, WeightType type, const GroupFormat& format) {
    return {in, std::gcd(kRoundedTogether, format.group), type == WeightType::int8};
  }
  std::int64_t pieces_at() const { return (in + 63) / 64 * 64; }
  std::int64_t wide_at() const {
    const std::int64_t all = pieces_at() + in / piece * static_cast<int>(sizeof(RoundedPiece));
    return (all + 63) / 64 * 64;
  }
  std::int64_t bytes() const { return wide_at() + (wide ? (in + 31) / 32 * 64 : 0); }
};

struct IntegerKernels {
  const char* name;
  /// Writes RoundedRow::bytes() at `to`, aligned to 64 bytes.
  void (*round_row)(const float* x, const RoundedRow& row, std::byte* to);
  /// As Kernels::linear, of formats that rounds_inputs alone.
  void (*linear)(const LinearTask& task);
};

/// Those of the CPU that go with kernels(isa): AVX-512 VNNI where the CPU has it, else AVX2. All
/// give the same bits.
const IntegerKernels& integer_kernels(Isa isa = Isa::best);

namespace detail {
extern const IntegerKernels kAvx2Integers;
extern const IntegerKernels kVnniIntegers;
}  // namespace detail

}  // namespace baton::cpu
