// Integer dot products by AVX-512 VNNI: four products of an unsigned and a signed byte at a time.
// clang-format off
#include "workers/cpu/vec16_avx512.h"
// clang-format on
#include <cstring>

#include "workers/cpu/kernels.h"

namespace {

constexpr int kIntegerRows = 4;
constexpr int integer_halves(int) { return 2; }
constexpr bool kWideBytes = false;

/// Four of eight inputs of 16 columns, unsigned: the even ones or (Odd) the others.
template <int Bits, baton::cpu::Second S, bool Odd>
struct Numbers {
  __m512i words;

  Numbers(const std::byte* at, int half)
      : words(number(_mm512_loadu_si512(at + half * 64 + (Bits == 8 && Odd ? 128 : 0)))) {}

  static __m512i number(__m512i stored) {
    if constexpr (Bits == 8) return stored;
    const __m512i moved = Odd ? _mm512_srli_epi32(stored, 4) : stored;
    const __m512i codes = _mm512_and_si512(moved, _mm512_set1_epi8(15));
    if constexpr (S != baton::cpu::Second::e2m1) return codes;
    const __m512i twice = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm512_shuffle_epi8(twice, codes);
  }
};

/// Sums of 16 columns.
template <int Bits, baton::cpu::Second S>
struct Dots {
  static constexpr int kInputBytes = 1;
  __m512i sums = _mm512_setzero_si512();

  template <bool Odd>
  void add(const Numbers<Bits, S, Odd>& numbers, const std::byte* x) {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    sums = _mm512_dpbusd_epi32(sums, numbers.words, _mm512_set1_epi32(four));
  }
  V16 value() const { return {_mm512_cvtepi32_ps(sums)}; }
};

}  // namespace

#include "workers/cpu/integer_impl.h"

namespace baton::cpu::detail {

const IntegerKernels kVnniIntegers = {"avx512-vnni", round_row, integer_linear};

}  // namespace baton::cpu::detail
