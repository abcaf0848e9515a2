// How experts' weights lie on the device. In bf16 as a matrix [out, in], row by row. In MXFP4 (four
// bits a number, e2m1, and a power of two for 32 inputs of a feature) in the order in which a warp
// multiplies them, scales among them, so that any run of units is one run of bytes; likewise in FP8
// (E4M3, with fp32 scales) and int4 ((q - zero) * scale, as linear/quantized_layout.h has it).
// Plain C++: the kernels, what packs, and tests share it.
//
// A tile is 16 features, a unit 64 inputs of it, which are four instructions of 16. A feature has a
// scale for each half of a unit in MXFP4, and one for all of it in FP8 and int4. Lane 4 g + t holds
// rows g and g + 8 of a tile, and of 16 inputs 2 t, 2 t + 1, 2 t + 8, 2 t + 9: the left operand of
// mma.m16n8k16, and a warp's part of wgmma.m64k16's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::cuda {

enum class ExpertFormat : std::uint8_t {
  bf16,
  mxfp4,  // inputs a multiple of 32, features one of 16
  fp8,    // likewise
  int4,   // likewise
};

/// run.operator()<kFormat>() of the format: what is compiled for each is chosen here.
template <typename Run>
auto with_format(ExpertFormat format, const Run& run) {
  switch (format) {
    case ExpertFormat::mxfp4:
      return run.template operator()<ExpertFormat::mxfp4>();
    case ExpertFormat::fp8:
      return run.template operator()<ExpertFormat::fp8>();
    case ExpertFormat::int4:
      return run.template operator()<ExpertFormat::int4>();
    default:
      return run.template operator()<ExpertFormat::bf16>();
  }
}

constexpr int kExpertTile = 16;
constexpr int kExpertUnit = 64;
constexpr int kMxfp4Inputs = 32;      // that share a scale
constexpr int kMxfp4WordBytes = 512;  // of a unit: a lane's four words behind each other
constexpr int kMxfp4UnitBytes = kMxfp4WordBytes + 32;

/// A stored exponent e, of the scale 2^(e - 127), is kept as e + 126: the bits of 2^(e - 1) in
/// bf16. e2m1 numbers whose bits are moved to their places in bf16 are 2^-126 of their values, so
/// that one exact product makes them weights. Scales above 2 do not fit.
constexpr int kMxfp4ScaleOffset = 126;
constexpr int kMxfp4LargestScale = 128;

constexpr int kFp8WordBytes = 1024;  // of a unit: a lane's four words of the first half, then of
                                     // the other
constexpr int kFp8UnitBytes = kFp8WordBytes + kExpertTile * 4;  // and a scale a feature

// Words and scales lie as place_of() and scale_at() of linear/quantized_layout.h say, for one unit.
constexpr int kInt4WordBytes = 512;
constexpr int kInt4UnitBytes = kInt4WordBytes + kExpertTile * 4;  // and a word of scale a feature

/// The experts of a layer: [count][out, in], densely.
struct ExpertWeight {
  ExpertFormat format = ExpertFormat::bf16;
  const std::byte* data = nullptr;  // 256-byte aligned
};

constexpr int expert_tiles(int out) { return out / kExpertTile; }
constexpr int expert_units(int in) { return (in + kExpertUnit - 1) / kExpertUnit; }

/// Of a unit, where there are units.
constexpr int expert_unit_bytes(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::mxfp4:
      return kMxfp4UnitBytes;
    case ExpertFormat::fp8:
      return kFp8UnitBytes;
    case ExpertFormat::int4:
      return kInt4UnitBytes;
    default:
      return 2 * kExpertTile * kExpertUnit;
  }
}

/// Of one expert.
constexpr std::size_t expert_bytes(ExpertFormat format, int out, int in) {
  if (format == ExpertFormat::bf16)
    return 2 * static_cast<std::size_t>(out) * static_cast<std::size_t>(in);
  return static_cast<std::size_t>(expert_tiles(out)) * static_cast<std::size_t>(expert_units(in)) *
         static_cast<std::size_t>(expert_unit_bytes(format));
}

/// How many units lie before that of a row and an input.
constexpr std::size_t expert_units_before(int in, int row, int input) {
  return static_cast<std::size_t>(row / kExpertTile) * static_cast<std::size_t>(expert_units(in)) +
         static_cast<std::size_t>(input / kExpertUnit);
}
/// Where the unit of a row and an input begins.
constexpr std::size_t mxfp4_unit_at(int in, int row, int input) {
  return expert_units_before(in, row, input) * kMxfp4UnitBytes;
}

/// Which of the unit's words a number is in, and the bits that it sets there.
struct ExpertPlace {
  int word = 0;
  std::uint32_t bits = 0;
};

/// A word is the four registers of an instruction: rows, then pairs of inputs, the even input in
/// the register's lower half. Each register's bits lie so that a shift and a mask bring them to
/// their places (mxfp4_numbers.cuh has the other side of this).
constexpr ExpertPlace mxfp4_place(int row, int input, std::uint32_t code) {
  // From which bits sign, exponent and fraction come; of an odd input 16 on, round the word's end.
  constexpr int kBits[4][4] = {{9, 2, 1, 0}, {13, 6, 5, 4}, {19, 12, 11, 10}, {15, 8, 7, 14}};
  const int within = input % kExpertUnit;
  const int lane = row % 8 * 4 + within % 8 / 2;
  const int which = row % kExpertTile / 8 + within % 16 / 8 * 2;
  std::uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    const int bit = (kBits[which][i] + within % 2 * 16) % 32;
    bits |= (code >> (3 - i) & 1U) << bit;
  }
  return {lane * 4 + within / 16, bits};
}

/// The same in FP8. A word is two registers of an instruction, of rows g and g + 8, an input in
/// each half. Row g's number lies at its place in bf16: sign, then four bits of exponent and three
/// of fraction below three that are nought. Row g + 8's has what is left: a turn by four bits
/// brings its sign, from the other half, and its exponent there, a shift by four its fraction.
constexpr ExpertPlace fp8_place(int row, int input, std::uint32_t code) {
  const int within = input % kExpertUnit;
  const int lane = row % 8 * 4 + within % 8 / 2;
  const int step = within / 16;
  const int word = step / 2 * (kFp8WordBytes / 8) + lane * 4 + step % 2 * 2 + within % 16 / 8;
  const int half = within % 2 * 16;
  const std::uint32_t sign = code >> 7 & 1U;
  if (row % kExpertTile < 8) return {word, (sign << 15 | (code & 0x7FU) << 4) << half};
  return {word, ((code >> 3 & 15U) << 11 | (code & 7U)) << half | sign << (3 + 16 - half)};
}

/// Where in a unit the scale of a row and an input lies: a lane's four bytes behind each other.
constexpr int mxfp4_scale_at(int row, int input) {
  return kMxfp4WordBytes + row % 8 * 4 + input % kExpertUnit / kMxfp4Inputs * 2 +
         row % kExpertTile / 8;
}

}  // namespace baton::cuda
