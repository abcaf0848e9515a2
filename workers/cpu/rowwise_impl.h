// Row-wise kernels on V16. Included once by each kernels_*.cpp, behind its vec16_*.h: everything
// here has internal linkage, so that no wide instruction can leak into code that runs everywhere.
#pragma once

#include "workers/cpu/kernels.h"

namespace {

using baton::cpu::kExpBlock;
using baton::cpu::RowMax;

constexpr float kInfinity = __builtin_inff();

/// Lanes i and i + 8, then i and i + 4, i + 2, i + 1: one fixed tree.
inline float reduce_add(V16 a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

inline float reduce_max(V16 a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

/// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; Taylor's polynomial of degree 7 there
/// is off by less than 6e-9. Below -87.3 (the last normal result) the answer is 0; NaN stays NaN.
inline V16 exp16(V16 x) {
  const V16 lowest = set1(-87.3F);
  const V16 clamped = min(set1(88.3F), max(lowest, x));
  const V16 n = round(mul(clamped, set1(1.44269504088896F)));
  V16 r = fnma(n, set1(0.693145751953125F), clamped);  // ln 2 in two parts, the first exact
  r = fnma(n, set1(1.428606820309417e-6F), r);
  V16 p = set1(1.0F / 5040.0F);
  p = fma(p, r, set1(1.0F / 720.0F));
  p = fma(p, r, set1(1.0F / 120.0F));
  p = fma(p, r, set1(1.0F / 24.0F));
  p = fma(p, r, set1(1.0F / 6.0F));
  p = fma(p, r, set1(0.5F));
  p = fma(p, r, set1(1.0F));
  p = fma(p, r, set1(1.0F));
  return zero_below(x, lowest, scale(p, n));
}

/// g / (1 + exp(-g)).
inline V16 silu16(V16 g) { return div(g, add(set1(1.0F), exp16(sub(zero(), g)))); }

void exp(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, exp16(load(x + i)));
  const int rest = static_cast<int>(n - i);
  if (rest > 0) store_n(y + i, exp16(load_n(x + i, rest)), rest);
}

void widen_bf16(const std::uint16_t* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, load(x + i));
  for (; i < n; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x[i]) << 16;
    __builtin_memcpy(y + i, &bits, sizeof(bits));
  }
}

void rms_norm(const float* x, const float* weight, float* y, int n, float eps) {
  V16 squares = zero();
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {
    const V16 v = load_n(x + i, n - i);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(n);
  const V16 inverse = set1(1.0F / __builtin_sqrtf(mean + eps));
  for (i = 0; i + 16 <= n; i += 16) {
    store(y + i, mul(load(weight + i), mul(load(x + i), inverse)));
  }
  if (i < n) {
    const int rest = n - i;
    store_n(y + i, mul(load_n(weight + i, rest), mul(load_n(x + i, rest), inverse)), rest);
  }
}

/// (a, b) -> (a cos - b sin, b cos + a sin).
void rope(float* x, int heads, int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2;
  for (int head = 0; head < heads; ++head) {
    float* first_half = x + static_cast<std::int64_t>(head) * head_dim;
    float* second_half = first_half + half;
    for (int i = 0; i < half; i += 16) {
      const int n = half - i < 16 ? half - i : 16;
      const V16 a = load_n(first_half + i, n);
      const V16 b = load_n(second_half + i, n);
      const V16 c = load_n(cos + i, n);
      const V16 s = load_n(sin + i, n);
      store_n(first_half + i, fnma(b, s, mul(a, c)), n);
      store_n(second_half + i, fma(a, s, mul(b, c)), n);
    }
  }
}

RowMax row_max(const float* x, std::int64_t n) {
  const V16 least = set1(-kInfinity);
  V16 best = least;
  std::uint32_t ordered = 0xFFFF;  // loses a bit where a NaN was
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 v = load(x + i);
    ordered &= mask_ge(v, least);
    best = max(v, best);
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const V16 v = select_first(rest, load_n(x + i, rest), least);
    ordered &= mask_ge(v, least);
    best = max(v, best);
  }
  RowMax result;
  result.value = reduce_max(best);
  result.bad = ordered != 0xFFFF || result.value == kInfinity || result.value == -kInfinity;
  if (result.bad) return result;
  for (i = 0; i + 16 <= n; i += 16) {
    const std::uint32_t found = mask_ge(load(x + i), set1(result.value));
    if (found != 0) {
      result.index = static_cast<std::int32_t>(i + __builtin_ctz(found));
      return result;
    }
  }
  while (i < n && x[i] < result.value) ++i;
  result.index = static_cast<std::int32_t>(i);
  return result;
}

void exp_sums(const float* x, std::int64_t n, float shift, float factor, float* y, float* sums) {
  for (std::int64_t begin = 0; begin < n; begin += kExpBlock) {
    const std::int64_t end = n - begin < kExpBlock ? n : begin + kExpBlock;
    V16 sum = zero();
    std::int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      const V16 e = exp16(mul(sub(load(x + i), set1(shift)), set1(factor)));
      store(y + i, e);
      sum = add(sum, e);
    }
    if (i < end) {
      const int rest = static_cast<int>(end - i);
      const V16 e = exp16(mul(sub(load_n(x + i, rest), set1(shift)), set1(factor)));
      store_n(y + i, e, rest);
      sum = add(sum, select_first(rest, e, zero()));
    }
    *sums++ = reduce_add(sum);
  }
}

std::int64_t collect_ge(const float* x, std::int64_t n, float limit, std::int32_t* indices,
                        std::int64_t capacity) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; i += 16) {
    const int rest = n - i < 16 ? static_cast<int>(n - i) : 16;
    const V16 v = rest == 16 ? load(x + i) : load_n(x + i, rest);
    std::uint32_t found = mask_ge(v, set1(limit)) & ((1U << rest) - 1U);
    for (; found != 0; found &= found - 1) {
      if (count < capacity) indices[count] = static_cast<std::int32_t>(i + __builtin_ctz(found));
      ++count;
    }
  }
  return count;
}

}  // namespace
