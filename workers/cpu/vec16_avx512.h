// Sixteen floats as one AVX-512 register; see vec16_avx2.h. Included by kernels_avx512.cpp only.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace {

struct V16 {
  __m512 v;
};

inline V16 zero() { return {_mm512_setzero_ps()}; }
inline V16 set1(float a) { return {_mm512_set1_ps(a)}; }
inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }

inline __mmask16 first(int n) {
  return n <= 0    ? static_cast<__mmask16>(0)
         : n >= 16 ? static_cast<__mmask16>(0xFFFF)
                   : static_cast<__mmask16>((1U << n) - 1U);
}
/// The first n floats, zeros behind them; memory behind them is not touched.
inline V16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store_n(float* p, V16 a, int n) { _mm512_mask_storeu_ps(p, first(n), a.v); }
/// a in the first n lanes, b behind them.
inline V16 select_first(int n, V16 a, V16 b) { return {_mm512_mask_blend_ps(first(n), b.v, a.v)}; }

inline V16 load(const std::uint16_t* p) {  // bf16, exact
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

inline V16 load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline V16 load_i8(const std::byte* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

/// Sixteen words of eight nibbles.
struct W16 {
  __m512i v;
};
inline W16 load_words(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
/// Nibble J of each word, from the lowest.
template <int J>
inline V16 nibble(W16 words) {
  const __m512i moved = J == 0 ? words.v : _mm512_srli_epi32(words.v, 4 * J);
  return {_mm512_cvtepi32_ps(_mm512_and_si512(moved, _mm512_set1_epi32(15)))};
}

/// The 4-bit float that nibble J of each word is.
template <int J>
inline V16 e2m1(W16 words) {
  const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F,
                                       -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F);
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(words.v, 4 * J), values)};
}

inline V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
/// a > b ? a : b, lane by lane; b where either is NaN.
inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
/// a * b + c, rounded once.
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
/// c - a * b, rounded once.
inline V16 fnma(V16 a, V16 b, V16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline V16 round(V16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// a * 2^n for whole n in [-126, 127].
inline V16 scale(V16 a, V16 n) {
  const __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23)))};
}
/// 0 where x < limit, else a.
inline V16 zero_below(V16 x, V16 limit, V16 a) {
  const __mmask16 below = _mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ);
  return {_mm512_mask_blend_ps(below, a.v, _mm512_setzero_ps())};
}
/// Bit i: x[i] >= limit[i] (false for NaN).
inline std::uint32_t mask_ge(V16 x, V16 limit) {
  return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ);
}

inline __m256 low_half(V16 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(V16 a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
}

/// Transposes 16 rows of 16 floats: in[r][c] -> out[c * stride + r].
void transpose16(const V16* in, float* out, int stride) {
  __m512 a[16];
  __m512 b[16];
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_ps(in[2 * i].v, in[2 * i + 1].v);
    a[2 * i + 1] = _mm512_unpackhi_ps(in[2 * i].v, in[2 * i + 1].v);
  }
  for (int i = 0; i < 4; ++i) {  // b[4 i + j]: column j of every 128-bit lane, rows 4 i .. 4 i + 3
    b[4 * i + 0] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
    b[4 * i + 1] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0xEE);
    b[4 * i + 2] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
    b[4 * i + 3] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xEE);
  }
  for (int j = 0; j < 4; ++j) {  // gather the lanes: lane l of the b's is column 4 l + j
    const __m512 lo01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x44);
    const __m512 hi01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xEE);
    const __m512 lo23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x44);
    const __m512 hi23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xEE);
    _mm512_storeu_ps(out + (0 + j) * stride, _mm512_shuffle_f32x4(lo01, lo23, 0x88));
    _mm512_storeu_ps(out + (4 + j) * stride, _mm512_shuffle_f32x4(lo01, lo23, 0xDD));
    _mm512_storeu_ps(out + (8 + j) * stride, _mm512_shuffle_f32x4(hi01, hi23, 0x88));
    _mm512_storeu_ps(out + (12 + j) * stride, _mm512_shuffle_f32x4(hi01, hi23, 0xDD));
  }
}

/// Registers: 32 of 16 floats. Accumulators of R rows by C half panels take R C of them.
constexpr int kMaxRows = 12;
constexpr int halves_for(int rows) { return rows <= 3 ? 8 : rows <= 6 ? 4 : 2; }
constexpr int kMaxQueries = 8;
constexpr int kKeyVectors = 2;

}  // namespace
