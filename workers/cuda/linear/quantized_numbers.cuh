// How quantised numbers become bf16, exactly (the tricks are folklore; FasterTransformer and Marlin
// describe them):
//   int4  128 + q is 0x4300 | q, since a bf16 of that size counts ones in its lowest bit; then 128
//   + zero
//         is taken off, which is exact. Where a kernel is bound by instructions it multiplies 128 +
//         q as it is and takes (128 + zero) times the sum of x off the sum, which costs digits, but
//         of fp32.
//         Or, with fewer instructions: a bf16 whose bits are q is q times 2^-133, also with q from
//         bit 4 on (16 times that, up into the exponent), so that a product with a power of two and
//         a sum make it (q - zero) / 64.
//   int8  the lower seven bits as int4's: 128 + them; then 128 is taken off, or 256 where the sign
//   is
//         set, whose bit lies where -128 becomes -256.
//   E4M3  sign, exponent and fraction moved to their places in bf16 are the value times 2^-120,
//   subnormal
//         ones too; times 2^120, which is exact.
#pragma once

#include <cstdint>

#include "workers/cuda/linear/quantized_layout.h"

namespace baton::cuda {

/// Word i of what 16-byte loads brought; i is known when this is compiled.
__device__ __forceinline__ std::uint32_t word_of(const uint4* loads, int i) {
  const uint4& v = loads[i / 4];
  return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
}

/// a * b + c of two bf16 each.
__device__ __forceinline__ std::uint32_t fma2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ float scale_of(std::uint32_t word) {
  return __uint_as_float(word & ~15U);
}

/// -(128 + zero), twice.
__device__ __forceinline__ std::uint32_t offset_of(std::uint32_t word) {
  return (word & 15U) * 0x00010001U + 0xC300C300U;
}

/// 128 + zero.
__device__ __forceinline__ float offset_sum(std::uint32_t word) {
  return __uint_as_float((word & 15U) << 16 | 0x43000000U);
}

/// (a & mask) | c in one instruction: of two constants in C++ the compiler makes two.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t a, std::uint32_t mask,
                                                std::uint32_t c) {
  std::uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(c));
  return d;
}

/// A word of int4 as the four registers of an instruction: 128 + q.
__device__ __forceinline__ void dequantize_int4(std::uint32_t word, std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = and_or(word >> (4 * i), 0x000F000FU, 0x43004300U);
}

/// The same, q - zero; `low` and `high` are rows g's and g + 8's offset.
__device__ __forceinline__ void dequantize_int4(std::uint32_t word, std::uint32_t low,
                                                std::uint32_t high, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kOnes = 0x3F803F80;
  dequantize_int4(word, a);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = fma2(a[i], kOnes, i % 2 == 0 ? low : high);
}

/// What dequantize_int4_small() gives times this is q - zero.
constexpr float kSmallInt4 = 64;

/// -zero / 64, twice.
__device__ __forceinline__ std::uint32_t small_offset_of(std::uint32_t word) {
  return fma2((word & 15U) * 0x00010001U, 0xFF00FF00U, 0x80008000U);  // -2^127, minus nought
}

/// A word of int4 as the four registers of an instruction: (q - zero) / 64.
__device__ __forceinline__ void dequantize_int4_small(std::uint32_t word, std::uint32_t low,
                                                      std::uint32_t high, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kFirst = 0x7F007F00;   // 2^127
  constexpr std::uint32_t kSecond = 0x7D007D00;  // 2^123
  const std::uint32_t behind = word >> 8;
  a[0] = fma2(word & 0x000F000FU, kFirst, low);
  a[1] = fma2(word & 0x00F000F0U, kSecond, high);
  a[2] = fma2(behind & 0x000F000FU, kFirst, low);
  a[3] = fma2(behind & 0x00F000F0U, kSecond, high);
}

/// Two words of E4M3 likewise.
__device__ __forceinline__ void dequantize_fp8(std::uint32_t first, std::uint32_t second,
                                               std::uint32_t (&a)[4]) {
  const auto wide = [](std::uint32_t word) {  // its bytes 1 and 3
    const std::uint32_t moved = and_or(word, 0x80008000U, word >> 4 & 0x07F007F0U);
    return fma2(moved, 0x7B807B80U, 0x80008000U);  // 2^120, minus nought
  };
  a[0] = wide(first << 8);
  a[1] = wide(first);
  a[2] = wide(second << 8);
  a[3] = wide(second);
}

/// Two words of int8 likewise.
__device__ __forceinline__ void dequantize_int8(std::uint32_t first, std::uint32_t second,
                                                std::uint32_t (&a)[4]) {
  const auto wide = [](std::uint32_t word) {  // its bytes 0 and 2
    constexpr std::uint32_t kOnes = 0x3F803F80;
    return fma2(and_or(word, 0x007F007FU, 0x43004300U), kOnes,
                and_or(word, 0x00800080U, 0xC300C300U));
  };
  a[0] = wide(first);
  a[1] = wide(first >> 8);
  a[2] = wide(second);
  a[3] = wide(second >> 8);
}

/// Two words of a format whose weights are bytes.
template <WeightFormat kFormat>
__device__ __forceinline__ void dequantize_bytes(std::uint32_t first, std::uint32_t second,
                                                 std::uint32_t (&a)[4]) {
  if constexpr (kFormat == WeightFormat::int8) {
    dequantize_int8(first, second, a);
  } else {
    dequantize_fp8(first, second, a);
  }
}

}  // namespace baton::cuda
