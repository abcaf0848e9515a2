// Row-wise kernels on V16. Included once by each kernels_*.cpp, behind its vec16_*.h: everything
// here has internal linkage, so that no wide instruction can leak into code that runs everywhere.
#pragma once

#include "workers/cpu/kernels.h"

namespace {

using baton::cpu::Activate;
using baton::cpu::Gate;
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
void rope(float* x, int heads, int head_dim, int dims, const float* cos, const float* sin) {
  const int half = dims / 2;
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

/// Plain code: its fused operations are written out, so that it rounds like rope().
void rope_interleaved(float* x, int heads, int head_dim, int dims, const float* cos,
                      const float* sin) {
  for (int head = 0; head < heads; ++head) {
    float* pair = x + static_cast<std::int64_t>(head) * head_dim;
    for (int i = 0; i < dims / 2; ++i, pair += 2) {
      const float a = pair[0];
      const float b = pair[1];
      pair[0] = __builtin_fmaf(-b, sin[i], a * cos[i]);
      pair[1] = __builtin_fmaf(a, sin[i], b * cos[i]);
    }
  }
}

/// The first n of 16 floats, or all of them.
inline V16 load_some(const float* p, int n) { return n >= 16 ? load(p) : load_n(p, n); }
inline void store_some(float* p, V16 a, int n) {
  if (n >= 16) {
    store(p, a);
  } else {
    store_n(p, a, n);
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, float* y, int n,
                float eps) {
  V16 sum = zero();
  for (int i = 0; i < n; i += 16) sum = add(sum, load_some(x + i, n - i));
  const V16 mean = set1(reduce_add(sum) / static_cast<float>(n));
  V16 squares = zero();
  for (int i = 0; i < n; i += 16) {
    const V16 v = select_first(n - i, sub(load_some(x + i, n - i), mean), zero());
    squares = fma(v, v, squares);
  }
  const float variance = reduce_add(squares) / static_cast<float>(n);
  const V16 inverse = set1(1.0F / __builtin_sqrtf(variance + eps));
  for (int i = 0; i < n; i += 16) {
    const V16 v = mul(sub(load_some(x + i, n - i), mean), inverse);
    V16 result = mul(load_some(weight + i, n - i), v);
    if (bias != nullptr) result = add(result, load_some(bias + i, n - i));
    store_some(y + i, result, n - i);
  }
}

/// 2 / (1 + exp(-2x)) - 1; exp16 bounds its argument, so that nothing overflows.
inline V16 tanh16(V16 x) {
  const V16 e = exp16(mul(set1(-2.0F), x));
  return sub(div(set1(2.0F), add(set1(1.0F), e)), set1(1.0F));
}

/// Abramowitz and Stegun 7.1.26 for |x|, which is off by less than 1.5e-7, with the sign of x.
inline V16 erf16(V16 x) {
  const V16 size = max(x, sub(zero(), x));
  const V16 t = div(set1(1.0F), fma(set1(0.3275911F), size, set1(1.0F)));
  V16 p = set1(1.061405429F);
  p = fma(p, t, set1(-1.453152027F));
  p = fma(p, t, set1(1.421413741F));
  p = fma(p, t, set1(-0.284496736F));
  p = fma(p, t, set1(0.254829592F));
  const V16 y = sub(set1(1.0F), mul(mul(p, t), exp16(sub(zero(), mul(size, size)))));
  return mul(y, div(x, max(size, set1(1e-30F))));
}

inline V16 gate16(const Activate& how, V16 g) {
  switch (how.gate) {
    case Gate::silu:
      return silu16(g);
    case Gate::gelu:
      return mul(mul(set1(0.5F), g), add(set1(1.0F), erf16(mul(g, set1(0.70710678118F)))));
    case Gate::gelu_tanh: {  // 1 + tanh(u) = 2 / (1 + exp(-2u))
      const V16 cube = mul(mul(g, g), g);
      const V16 u = mul(set1(0.7978845608F), fma(set1(0.044715F), cube, g));
      return div(g, add(set1(1.0F), exp16(mul(set1(-2.0F), u))));
    }
    case Gate::clamped: {
      const V16 low = min(g, set1(how.limit));
      return div(low, add(set1(1.0F), exp16(mul(set1(-how.alpha), low))));
    }
  }
  return g;
}

void activate(const Activate& how, const float* g, const float* g_bias, const float* up,
              const float* up_bias, float* y, int n) {
  for (int i = 0; i < n; i += 16) {
    const int left = n - i;
    V16 v = load_some(g + i, left);
    if (g_bias != nullptr) v = add(v, load_some(g_bias + i, left));
    v = gate16(how, v);
    if (how.gated) {
      V16 u = load_some(up + i, left);
      if (up_bias != nullptr) u = add(u, load_some(up_bias + i, left));
      if (how.gate == Gate::clamped) {
        u = add(max(min(u, set1(how.limit)), set1(-how.limit)), set1(1.0F));
      }
      v = mul(v, u);
    }
    store_some(y + i, v, left);
  }
}

void soft_cap(float* x, std::int64_t n, float cap) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const int left = n - i < 16 ? static_cast<int>(n - i) : 16;
    const V16 v = div(load_some(x + i, left), set1(cap));
    store_some(x + i, mul(set1(cap), tanh16(v)), left);
  }
}

void add_scaled(const float* y, const float* bias, float factor, float* x, int n) {
  for (int i = 0; i < n; i += 16) {
    const int left = n - i;
    V16 v = load_some(y + i, left);
    if (bias != nullptr) v = add(v, load_some(bias + i, left));
    store_some(x + i, add(load_some(x + i, left), mul(v, set1(factor))), left);
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
