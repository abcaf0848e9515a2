// Where a quantised weight lies on the device. Weights are stored in the order in which the lanes
// of a matrix instruction hold them, so that one 16-byte load a lane brings what four instructions
// need. Plain C++: the kernels that pack, those that multiply, and tests share it.
//
// A tile is 16 output features, a unit 64 inputs of it: four instructions of 16 inputs each, in
// order. Lane 4 g + t holds rows g and g + 8 of a tile, and of the 16 inputs 2 t, 2 t + 1, 2 t + 8,
// 2 t + 9. That is the left operand of mma.m16n8k16, and a warp's part of wgmma.m64k16's, when that
// one is in registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::cuda {

enum class WeightFormat : std::uint8_t {
  bf16,
  int4,  // (q - zero) * scale, zero and scale of a group of inputs and an output feature
  fp8,   // E4M3 * scale, likewise
  int8,  // q * scale, q signed
};

constexpr int kTileRows = 16;
constexpr int kUnitInputs = 64;
constexpr int kLanes = 32;
constexpr int kSharedInputs = 128;
/// Of a tile and a group; 16 bytes are the least that is copied to shared memory, two words count.
constexpr int kSharedScaleWords = 4;

/// One quantised matrix [out, in] in device memory of the caller's. `in` is filled up to whole
/// units, `out` to whole tiles: with scales of 0.
struct QuantizedWeight {
  WeightFormat format = WeightFormat::bf16;  // bf16: not quantised, nothing below counts
  const std::uint32_t* words = nullptr;      // packed as place_of() says, 16-byte aligned
  /// The bits of an fp32 scale, whose lowest four are the zero point (int4) or 0; scale_at() says
  /// where.
  const std::uint32_t* scales = nullptr;
  /// Where eight rows from a multiple of 8 on share their scales, and groups have kSharedInputs
  /// (FP8 in blocks): these once more, shared_scale_at() says where. Else null.
  const std::uint32_t* shared_scales = nullptr;
  /// Input i of the matrix is input order[i] of x: GPTQ's act-order makes groups contiguous. Null:
  /// is i.
  const std::int32_t* order = nullptr;
  int groups = 1;
  int group_shift = 31;  // input i belongs to group i >> group_shift; at least 5, of fp8 6
};

constexpr int tiles_of(int out) { return (out + kTileRows - 1) / kTileRows; }
constexpr int units_of(int in) { return (in + kUnitInputs - 1) / kUnitInputs; }

/// 32-bit words of a matrix.
constexpr std::size_t weight_words(WeightFormat format, int out, int in) {
  const std::size_t of_lane = format == WeightFormat::int4 ? 4 : 8;
  return static_cast<std::size_t>(tiles_of(out)) * static_cast<std::size_t>(units_of(in)) * kLanes *
         of_lane;
}
constexpr std::size_t scale_words(int out, int groups) {
  return static_cast<std::size_t>(tiles_of(out)) * kTileRows * static_cast<std::size_t>(groups);
}
constexpr std::size_t shared_scale_words(int out, int groups) {
  return scale_words(out, groups) / kTileRows * kSharedScaleWords;
}

/// Where the weight of one output feature and input is: in which word, from which bit on.
struct WeightPlace {
  std::size_t word = 0;
  int bit = 0;
};

/// `units` is units_of(in). A pair of inputs (from an even one on) shares a word, and so do rows g
/// and g + 8; int4 also has the pair eight inputs on in the same word.
constexpr WeightPlace place_of(WeightFormat format, int units, int row, int input) {
  const int high = row % kTileRows / 8;
  const int within = input % kUnitInputs;
  const int step = within / 16;  // which instruction
  const int lane = row % 8 * 4 + within % 8 / 2;
  const int pair = within % 16 / 8;
  const int odd = within % 2;
  const std::size_t unit =
      static_cast<std::size_t>(row / kTileRows) * static_cast<std::size_t>(units) +
      static_cast<std::size_t>(input / kUnitInputs);
  if (format == WeightFormat::int4) {
    // The word's nibbles i and i + 4 are register i of the instruction: rows, then pairs.
    return {(unit * kLanes + static_cast<std::size_t>(lane)) * 4 + static_cast<std::size_t>(step),
            4 * (high + 2 * pair + 4 * odd)};
  }
  // The word's bytes 0 and 2 are the register of row g, bytes 1 and 3 that of row g + 8.
  return {
      ((unit * 2 + static_cast<std::size_t>(step / 2)) * kLanes + static_cast<std::size_t>(lane)) *
              4 +
          static_cast<std::size_t>(step % 2 * 2 + pair),
      8 * (high + 2 * odd)};
}

/// Of a row's tile and a group, in [tiles, groups].
constexpr std::size_t scale_line(int groups, int row, int group) {
  return static_cast<std::size_t>(row / kTileRows) * static_cast<std::size_t>(groups) +
         static_cast<std::size_t>(group);
}
/// Rows g and g + 8 of a tile lie beside each other.
constexpr std::size_t scale_at(int groups, int row, int group) {
  return scale_line(groups, row, group) * kTileRows +
         static_cast<std::size_t>(row % 8 * 2 + row % kTileRows / 8);
}
/// [tiles, groups, kSharedScaleWords]: of the tile's first eight rows, then of the other eight.
constexpr std::size_t shared_scale_at(int groups, int row, int group) {
  return scale_line(groups, row, group) * kSharedScaleWords +
         static_cast<std::size_t>(row % kTileRows / 8);
}

/// Calls launch.operator()<format, parts>(); parts: scales of a feature within 128 inputs.
template <typename Launch>
void by_format(const QuantizedWeight& w, const Launch& launch) {
  const auto by_group = [&]<WeightFormat kFormat>() {
    switch (w.group_shift) {
      case 5:
        return launch.template operator()<kFormat, 4>();
      case 6:
        return launch.template operator()<kFormat, 2>();
      default:
        return launch.template operator()<kFormat, 1>();
    }
  };
  if (w.format == WeightFormat::fp8) {
    return w.group_shift == 6 ? launch.template operator()<WeightFormat::fp8, 2>()
                              : launch.template operator()<WeightFormat::fp8, 1>();
  }
  if (w.format == WeightFormat::int8) return by_group.template operator()<WeightFormat::int8>();
  by_group.template operator()<WeightFormat::int4>();
}

}  // namespace baton::cuda
