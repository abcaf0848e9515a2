// Sixteen floats as two AVX2 registers. The same names and the same arithmetic as vec16_avx512.h: a
// kernel written on V16 gives the same bits on both. Included by kernels_avx2.cpp only.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace {

struct V16 {
  __m256 lo, hi;
};

inline V16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V16 set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}

/// Lane masks of the first n of 16 lanes.
struct Mask16 {
  __m256i lo, hi;
};
inline Mask16 first(int n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes),
          _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes)};
}
/// The first n floats, zeros behind them; memory behind them is not touched.
inline V16 load_n(const float* p, int n) {
  const Mask16 m = first(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
inline void store_n(float* p, V16 a, int n) {
  const Mask16 m = first(n);
  _mm256_maskstore_ps(p, m.lo, a.lo);
  _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}
/// a in the first n lanes, b behind them.
inline V16 select_first(int n, V16 a, V16 b) {
  const Mask16 m = first(n);
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}

inline __m256 widen8(const std::uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline V16 load(const std::uint16_t* p) { return {widen8(p), widen8(p + 8)}; }  // bf16, exact

inline __m256 widen_half8(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline V16 load_f16(const std::uint16_t* p) { return {widen_half8(p), widen_half8(p + 8)}; }
inline __m256 widen_i8(const std::byte* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline V16 load_i8(const std::byte* p) { return {widen_i8(p), widen_i8(p + 8)}; }

/// Sixteen words of eight nibbles.
struct W16 {
  __m256i lo, hi;
};
inline W16 load_words(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
template <int J>
inline __m256 nibble8(__m256i words) {
  if constexpr (J == 0) return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15)));
  const __m256i moved = _mm256_srli_epi32(words, 4 * J);
  if constexpr (J == 7) return _mm256_cvtepi32_ps(moved);
  return _mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(15)));
}
/// Nibble J of each word, from the lowest.
template <int J>
inline V16 nibble(W16 words) {
  return {nibble8<J>(words.lo), nibble8<J>(words.hi)};
}

template <int J>
inline __m256 e2m1_8(__m256i words) {
  const __m256 sizes = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
  // The lookup takes the lowest three bits of each lane; the fourth is the sign.
  const __m256 size = _mm256_permutevar8x32_ps(sizes, _mm256_srli_epi32(words, 4 * J));
  const __m256i sign =
      _mm256_and_si256(_mm256_slli_epi32(words, 28 - 4 * J), _mm256_set1_epi32(INT32_MIN));
  return _mm256_xor_ps(size, _mm256_castsi256_ps(sign));
}
/// The 4-bit float that nibble J of each word is.
template <int J>
inline V16 e2m1(W16 words) {
  return {e2m1_8<J>(words.lo), e2m1_8<J>(words.hi)};
}

inline V16 add(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline V16 sub(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline V16 mul(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline V16 div(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
/// a > b ? a : b, lane by lane; b where either is NaN.
inline V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline V16 min(V16 a, V16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
/// a * b + c, rounded once.
inline V16 fma(V16 a, V16 b, V16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
/// c - a * b, rounded once.
inline V16 fnma(V16 a, V16 b, V16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline __m256 round8(__m256 a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V16 round(V16 a) { return {round8(a.lo), round8(a.hi)}; }
inline __m256 scale8(__m256 a, __m256 n) {
  const __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23)));
}
/// a * 2^n for whole n in [-126, 127].
inline V16 scale(V16 a, V16 n) { return {scale8(a.lo, n.lo), scale8(a.hi, n.hi)}; }
/// 0 where x < limit, else a.
inline V16 zero_below(V16 x, V16 limit, V16 a) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ), a.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ), a.hi)};
}
/// Bit i: x[i] >= limit[i] (false for NaN).
inline std::uint32_t mask_ge(V16 x, V16 limit) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_GE_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_GE_OQ));
  return static_cast<std::uint32_t>(lo) | (static_cast<std::uint32_t>(hi) << 8);
}

inline __m256 low_half(V16 a) { return a.lo; }
inline __m256 high_half(V16 a) { return a.hi; }

inline __m256 interleave(__m256 a, __m256 b, bool high) {
  return high ? _mm256_unpackhi_ps(a, b) : _mm256_unpacklo_ps(a, b);
}

/// Transposes 8 rows of 8 floats: in[r][c] -> out[c * stride + r].
inline void transpose8(const __m256* in, float* out, int stride) {
  __m256 a[8];
  __m256 b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = interleave(in[2 * i], in[2 * i + 1], false);
    a[2 * i + 1] = interleave(in[2 * i], in[2 * i + 1], true);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i + 0] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
    b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xEE);
    b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
    b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
  }
}

void transpose16(const V16* in, float* out, int stride) {
  __m256 part[8];
  for (int rows = 0; rows < 16; rows += 8) {
    for (int i = 0; i < 8; ++i) part[i] = in[rows + i].lo;
    transpose8(part, out + rows, stride);
    for (int i = 0; i < 8; ++i) part[i] = in[rows + i].hi;
    transpose8(part, out + 8 * stride + rows, stride);
  }
}

/// Registers: 16 of 8 floats. Accumulators of R rows by C half panels take 2 R C of them.
constexpr int kMaxRows = 6;
constexpr int halves_for(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
constexpr int kMaxQueries = 4;
constexpr int kKeyVectors = 1;

}  // namespace
