// The kernels of integer.h on V16 and on the integer dot products (Dots, Numbers) of
// integer_avx2.cpp and integer_vnni.cpp, each of which includes this once.
#pragma once

#include <cstring>
#include <limits>

#include "workers/cpu/grouped_tiles_impl.h"
#include "workers/cpu/integer.h"

namespace {

using baton::cpu::kRoundedTogether;
using baton::cpu::RoundedPiece;
using baton::cpu::RoundedRow;

/// Where inputs 0 to 7 are among a row's wide numbers.
constexpr int kWidePlaces[kGroupStep] = {0, 4, 2, 6, 1, 5, 3, 7};

/// Up to 32 inputs, zeros behind the last one: their whole numbers in the rounded row's order, and
/// `wide` unless it is null. Returns their scale.
float round_together(const float* x, int n, std::int8_t* to, std::int16_t* wide) {
  alignas(64) float values[kRoundedTogether] = {};
  std::memcpy(values, x, static_cast<std::size_t>(n) * sizeof(float));
  std::uint32_t bits[kRoundedTogether];
  std::memcpy(bits, values, sizeof bits);
  std::uint32_t most = 0;  // numbers without their signs are ordered as their bits are
  for (const std::uint32_t each : bits) {
    const std::uint32_t size = each & 0x7FFFFFFFU;
    most = most < size ? size : most;
  }
  float largest;
  std::memcpy(&largest, &most, sizeof largest);
  const bool finite = most < 0x7F800000U;
  if (!finite || largest < baton::cpu::kSmallestRounded) {
    std::memset(to, 0, static_cast<std::size_t>(n));
    if (wide != nullptr) std::memset(wide, 0, static_cast<std::size_t>(n) * sizeof *wide);
    return finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  const V16 factor = set1(127.0F / largest);
  for (int i = 0; i < kRoundedTogether; i += 16) {
    store(values + i, round(mul(load(values + i), factor)));
  }
  std::int8_t whole[kRoundedTogether];
  for (int i = 0; i < kRoundedTogether; ++i) whole[i] = static_cast<std::int8_t>(values[i]);
  for (int i = 0; i < n; i += kGroupStep) {
    for (int j = 0; j < kGroupStep; ++j) to[i + j / 2 + j % 2 * 4] = whole[i + j];
    if (wide == nullptr) continue;
    for (int j = 0; j < kGroupStep; ++j) wide[i + kWidePlaces[j]] = whole[i + j];
  }
  return largest / 127.0F;
}

void round_row(const float* x, const RoundedRow& row, std::byte* to) {
  auto* numbers = reinterpret_cast<std::int8_t*>(to);
  auto* piece = reinterpret_cast<RoundedPiece*>(to + row.pieces_at());
  auto* wide =
      kWideBytes && row.wide ? reinterpret_cast<std::int16_t*>(to + row.wide_at()) : nullptr;
  for (int first = 0; first < row.in; first += kRoundedTogether) {
    const int n = row.in - first < kRoundedTogether ? row.in - first : kRoundedTogether;
    const float scale =
        round_together(x + first, n, numbers + first, wide == nullptr ? nullptr : wide + first);
    for (int i = 0; i < n; i += row.piece, ++piece) {
      int sum = 0;
      for (int j = 0; j < row.piece; ++j) sum += numbers[first + i + j];
      const auto whole = static_cast<float>(sum);
      *piece = {scale, whole, scale * whole};
    }
  }
}

/// What C half panels' weights are made of, from a group's head.
template <int C>
struct Heads {
  V16 scale[C];
  V16 zero[C];  // of the numbers that dot products take
  V16 offset[C];
};

/// The head of a group, of half panels [half, half + C), which is stepped over.
template <int C, int Bits, Second S>
[[gnu::always_inline]] inline Heads<C> read_heads(const std::byte*& at, const GroupFormat& format,
                                                  int half) {
  const bool none = S == Second::zero && format.second == Second::none;
  const GroupScales<C> scales = none ? read_scales<C, Second::none>(at, format.half_scales, half)
                                     : read_scales<C, S>(at, format.half_scales, half);
  // Bytes are stored plus 128, and twice a 4-bit float is taken plus 12.
  const V16 more = set1(S == Second::e2m1 ? 12.0F : Bits == 8 ? 128.0F : 0.0F);
  Heads<C> g{};
#pragma GCC unroll 2
  for (int c = 0; c < C; ++c) {
    g.scale[c] = S == Second::e2m1 ? mul(scales.scale[c], set1(0.5F)) : scales.scale[c];
    g.zero[c] = S == Second::zero ? add(scales.second[c], more) : more;
    if constexpr (S == Second::offset) g.offset[c] = scales.second[c];
  }
  return g;
}

/// One piece of `steps` times eight inputs: R rows times half panels [half, half + C).
template <int R, int C, int Bits, Second S>
[[gnu::always_inline]] inline void piece_dots(const std::byte*& at, int half, int steps,
                                              const std::byte* x, std::int64_t stride,
                                              std::int64_t ahead, Dots<Bits, S> (&dots)[R][C]) {
  constexpr int kFour = 4 * Dots<Bits, S>::kInputBytes;
#pragma GCC unroll 4
  for (int step = 0; step < steps; ++step, x += 2 * kFour) {
#pragma GCC unroll 4
    for (int line = 0; line < kStepBytes<Bits>; line += 64)
      __builtin_prefetch(at + ahead + line, 0, 2);
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      const Numbers<Bits, S, false> even(at, half + c);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) dots[r][c].add(even, x + r * stride);
      const Numbers<Bits, S, true> odd(at, half + c);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) dots[r][c].add(odd, x + r * stride + kFour);
    }
    at += kStepBytes<Bits>;
  }
}

/// R rows times half panels [half, half + C) of one panel. S is `zero` also where there is none.
template <int R, int C, int Bits, Second S>
void integer_block(const LinearTask& t, const std::byte* x, const std::byte* panel, int half,
                   std::int64_t ahead, float* tile, int tile_stride) {
  V16 sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) sum[r][c] = zero();
  }
  const RoundedRow row = RoundedRow::of(t.k, t.type, t.format);
  constexpr int kInputBytes = Dots<Bits, S>::kInputBytes;
  const std::byte* at = panel;
  const std::byte* numbers = x + (kInputBytes == 2 ? row.wide_at() : 0);
  const std::byte* pieces = x + row.pieces_at();
  const int steps = row.piece / kGroupStep;
  for (int first = 0; first < t.k; first += t.format.group) {
    const Heads<C> g = read_heads<C, Bits, S>(at, t.format, half);
    for (int i = 0; i < t.format.group; i += row.piece) {
      Dots<Bits, S> dots[R][C];
      if (steps == 4) {  // nearly always: without a loop
        piece_dots<R, C, Bits, S>(at, half, 4, numbers, t.rounded_stride, ahead, dots);
      } else {
        piece_dots<R, C, Bits, S>(at, half, steps, numbers, t.rounded_stride, ahead, dots);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto& piece = *reinterpret_cast<const RoundedPiece*>(pieces + r * t.rounded_stride);
        const V16 scale = set1(piece.scale);
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
          // Whole numbers below 2^24: exact.
          const V16 whole = fnma(g.zero[c], set1(piece.sum), dots[r][c].value());
          sum[r][c] = fma(whole, mul(scale, g.scale[c]), sum[r][c]);
          if constexpr (S == Second::offset)
            sum[r][c] = fma(g.offset[c], set1(piece.product), sum[r][c]);
        }
      }
      numbers += row.piece * kInputBytes;
      pieces += sizeof(RoundedPiece);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store(tile + r * tile_stride + (half + c) * 16, sum[r][c]);
  }
}

template <int Bits, Second S, int R = kIntegerRows>
void integer_rows(int rows, const LinearTask& t, const std::byte* x, const std::byte* panel,
                  std::int64_t ahead, float* tile, int tile_stride) {
  if constexpr (R > 1) {
    if (rows < R) return integer_rows<Bits, S, R - 1>(rows, t, x, panel, ahead, tile, tile_stride);
  }
  constexpr int kHalves = integer_halves(R);
  for (int half = 0; half < 2; half += kHalves) {
    integer_block<R, kHalves, Bits, S>(t, x, panel, half, half == 0 ? ahead : 0, tile, tile_stride);
  }
}

template <int Bits, Second S>
void integer_of(const LinearTask& t) {
  each_tile(t, [&](int row, int rows, const std::byte* panel, std::int64_t bytes, float* tile,
                   int tile_stride) {
    const int blocks = (rows + kIntegerRows - 1) / kIntegerRows;
    for (int block = 0; block < blocks; ++block) {
      const int first = rows * block / blocks;
      // The first block loads this panel and asks for the next one.
      integer_rows<Bits, S>(
          rows * (block + 1) / blocks - first, t, t.rounded + (row + first) * t.rounded_stride,
          panel, row == 0 && block == 0 ? bytes : 0, tile + first * tile_stride, tile_stride);
    }
  });
}

void integer_linear(const LinearTask& t) {
  const bool four = t.type == WeightType::int4;
  if (t.rows == 0) return;
  switch (t.format.second) {
    case Second::none:
    case Second::zero:
      return four ? integer_of<4, Second::zero>(t) : integer_of<8, Second::zero>(t);
    case Second::offset:
      return four ? integer_of<4, Second::offset>(t) : integer_of<8, Second::offset>(t);
    case Second::e2m1:
      return integer_of<4, Second::e2m1>(t);
  }
}

}  // namespace
