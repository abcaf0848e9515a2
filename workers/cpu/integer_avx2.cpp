// Integer dot products by AVX2. Nibbles: pairs of products of an unsigned and a signed byte, summed
// in 16 bits, which nothing here fills. Bytes would fill them: those are multiplied as 16 bits.
// clang-format off
#include "workers/cpu/vec16_avx2.h"
// clang-format on
#include <cstring>

#include "workers/cpu/kernels.h"

namespace {

constexpr int kIntegerRows = 3;
constexpr int integer_halves(int rows) { return rows == 1 ? 2 : 1; }
constexpr bool kWideBytes = true;

/// Four of eight inputs of 16 columns, unsigned, 8 columns in each register: the even ones or (Odd)
/// the others.
template <int Bits, baton::cpu::Second S, bool Odd>
struct Numbers {
  __m256i lo, hi;

  Numbers(const std::byte* at, int half) {
    const auto* words =
        reinterpret_cast<const __m256i*>(at + half * 64 + (Bits == 8 && Odd ? 128 : 0));
    lo = number(_mm256_loadu_si256(words));
    hi = number(_mm256_loadu_si256(words + 1));
  }

  static __m256i number(__m256i stored) {
    if constexpr (Bits == 8) return stored;
    const __m256i moved = Odd ? _mm256_srli_epi32(stored, 4) : stored;
    const __m256i codes = _mm256_and_si256(moved, _mm256_set1_epi8(15));
    if constexpr (S != baton::cpu::Second::e2m1) return codes;
    const __m256i twice = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm256_shuffle_epi8(twice, codes);
  }
};

/// Sums of 16 columns.
template <int Bits, baton::cpu::Second S>
struct Dots {
  /// Nibbles stay in 16 bits for a piece: 16 products of at most 15 * 127. Of e2m1's, up to 24, no
  /// more than two do.
  static constexpr bool kNarrow = Bits == 4 && S != baton::cpu::Second::e2m1;
  static constexpr int kInputBytes = Bits == 8 ? 2 : 1;
  __m256i lo = _mm256_setzero_si256();
  __m256i hi = _mm256_setzero_si256();

  template <bool Odd>
  void add(const Numbers<Bits, S, Odd>& numbers, const std::byte* x) {
    std::int32_t words[kInputBytes];
    std::memcpy(words, x, sizeof words);
    __m256i four[kInputBytes];
    for (int i = 0; i < kInputBytes; ++i) four[i] = _mm256_set1_epi32(words[i]);
    lo = sum(lo, numbers.lo, four);
    hi = sum(hi, numbers.hi, four);
  }
  V16 value() const { return {_mm256_cvtepi32_ps(whole(lo)), _mm256_cvtepi32_ps(whole(hi))}; }

 private:
  static __m256i sum(__m256i sums, __m256i numbers, const __m256i* four) {
    if constexpr (Bits == 8) {
      const __m256i first = _mm256_and_si256(numbers, _mm256_set1_epi16(255));
      const __m256i second = _mm256_srli_epi16(numbers, 8);
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(first, four[0]));
      return _mm256_add_epi32(sums, _mm256_madd_epi16(second, four[1]));
    }
    const __m256i pairs = _mm256_maddubs_epi16(numbers, four[0]);
    if constexpr (kNarrow) return _mm256_add_epi16(sums, pairs);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static __m256i whole(__m256i sums) {
    if constexpr (!kNarrow) return sums;
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
  }
};

}  // namespace

#include "workers/cpu/integer_impl.h"

namespace baton::cpu::detail {

const IntegerKernels kAvx2Integers = {"avx2", round_row, integer_linear};

}  // namespace baton::cpu::detail
