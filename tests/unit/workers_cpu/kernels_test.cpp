// Kernels against plain double-precision loops, and the promise that bits depend on nothing else
// than a row's own inputs: AVX2 and AVX-512 variants, batch sizes, tile positions.
#include "workers/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/random_floats.h"
#include "workers/cpu/packing.h"

namespace baton::cpu {
namespace {

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
}

std::vector<std::uint16_t> to_bf16(const std::vector<float>& v) {
  std::vector<std::uint16_t> out;
  for (const float x : v) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    out.push_back(static_cast<std::uint16_t>(bits >> 16));
  }
  return out;
}

std::vector<Isa> isas() {
  std::vector<Isa> found = {Isa::avx2};
  if (isa_supported(Isa::avx512)) found.push_back(Isa::avx512);
  return found;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A random [out, in] matrix, packed, with its rows in fp32 beside it.
struct Weights {
  std::vector<float> rows;
  std::vector<std::uint16_t> bf16;
  std::vector<std::byte> packed;
  PackedMatrix matrix;

  Weights(int out, int in, bool as_bf16, std::uint32_t seed) : rows(random_floats(out * in, seed)) {
    MatrixSource source{reinterpret_cast<const std::byte*>(rows.data()), ElementType::f32, out, in};
    if (as_bf16) {
      bf16 = to_bf16(rows);
      source.data = reinterpret_cast<const std::byte*>(bf16.data());
      source.type = ElementType::bf16;
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = element(source.data, source.type, i);
    }
    packed.resize(static_cast<std::size_t>(panels_for(out)) * in * kPanelColumns * 4);
    pack_stacked({&source, 1}, as_bf16 ? WeightType::bf16 : WeightType::f32, one_thread(),
                 packed.data());
    matrix = {packed.data(),
              as_bf16 ? WeightType::bf16 : WeightType::f32,
              static_cast<int>(panels_for(out)),
              in,
              out,
              false};
  }
};

std::vector<float> multiply(const Kernels& k, const std::vector<float>& x, int rows,
                            const Weights& w, Epilogue epilogue, float start = 0.0F) {
  const int columns = epilogue == Epilogue::silu_mul ? w.matrix.out / 2 : w.matrix.out;
  std::vector<float> y(static_cast<std::size_t>(rows) * columns, start);
  LinearTask t;
  t.x = x.data();
  t.x_stride = w.matrix.in;
  t.rows = rows;
  t.k = w.matrix.in;
  t.panels = w.matrix.panels;
  t.type = w.matrix.type;
  t.panel_count = w.matrix.panel_count;
  t.columns = columns;
  t.y = y.data();
  t.y_stride = columns;
  t.epilogue = epilogue;
  k.linear(t);
  return y;
}

/// One fma chain over k ascending: the documented order, so the match is exact.
float chain(const float* x, const float* w, int k) {
  float sum = 0.0F;
  for (int i = 0; i < k; ++i) sum = std::fmaf(x[i], w[i], sum);
  return sum;
}

TEST(LinearKernel, IsOneFmaChainForEveryRowCountTypeAndVariant) {
  for (const bool bf16 : {false, true}) {
    for (const int out : {1, 31, 32, 96, 100, 257}) {
      const int in = out == 96 ? 1 : 75;
      const Weights w(out, in, bf16, 3);
      for (int rows = 1; rows <= 27; ++rows) {
        const std::vector<float> x = random_floats(rows * in, rows);
        for (const Isa isa : isas()) {
          const std::vector<float> y = multiply(kernels(isa), x, rows, w, Epilogue::store);
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < out; ++c) {
              ASSERT_EQ(y[r * out + c], chain(&x[r * in], &w.rows[c * in], in))
                  << kernels(isa).name << " rows " << rows << " at " << r << ", " << c;
            }
          }
        }
      }
    }
  }
}

TEST(LinearKernel, AddsToWhatIsThere) {
  const Weights w(70, 33, true, 5);
  const std::vector<float> x = random_floats(4 * 33, 6);
  for (const Isa isa : isas()) {
    const std::vector<float> plain = multiply(kernels(isa), x, 4, w, Epilogue::store);
    const std::vector<float> added = multiply(kernels(isa), x, 4, w, Epilogue::add, 0.5F);
    for (std::size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(added[i], 0.5F + plain[i]);
  }
}

TEST(Packing, RoundsToTheNearestBf16) {
  const auto stored = [](float value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(round_to_bf16(value)) << 16);
  };
  for (const float exact : {0.0F, -0.0F, 1.0F, -1.5F, 0x1.FEp127F, 0x1p-133F}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(stored(exact)), std::bit_cast<std::uint32_t>(exact));
  }
  EXPECT_EQ(stored(1.0F + 0x1p-8F), 1.0F) << "a tie goes to the even one";
  EXPECT_EQ(stored(1.0F + 0x3p-8F), 1.0F + 0x1p-6F);
  EXPECT_EQ(stored(1.0F + 0x1.01p-8F), 1.0F + 0x1p-7F);
  EXPECT_EQ(stored(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(stored(std::bit_cast<float>(0x7F800001U))));
}

TEST(LinearKernel, GatedUnitMatchesTheFormulaAndDoesNotDependOnRows) {
  const int columns = 50;
  const int in = 40;
  const std::vector<float> gate = random_floats(columns * in, 1);
  const std::vector<float> up = random_floats(columns * in, 2);
  const MatrixSource g{reinterpret_cast<const std::byte*>(gate.data()), ElementType::f32, columns,
                       in};
  const MatrixSource u{reinterpret_cast<const std::byte*>(up.data()), ElementType::f32, columns,
                       in};
  std::vector<float> packed(2 * panels_for(columns) * in * kPanelColumns);
  pack_paired(g, u, WeightType::f32, one_thread(), packed.data());
  std::vector<std::vector<float>> first_rows;
  for (const int rows : {1, 2, 3, 4, 7, 12, 13, 30}) {
    const std::vector<float> x = random_floats(30 * in, 9);
    for (const Isa isa : isas()) {
      std::vector<float> y(rows * columns);
      LinearTask t{x.data(),
                   in,
                   rows,
                   in,
                   packed.data(),
                   WeightType::f32,
                   0,
                   static_cast<int>(2 * panels_for(columns)),
                   columns,
                   y.data(),
                   columns,
                   Epilogue::silu_mul};
      kernels(isa).linear(t);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < columns; ++c) {
          const double a = chain(&x[r * in], &gate[c * in], in);
          const double b = chain(&x[r * in], &up[c * in], in);
          const double want = a / (1.0 + std::exp(-a)) * b;
          ASSERT_NEAR(y[r * columns + c], want, 1e-6 + 1e-6 * std::abs(want));
        }
      }
      y.resize(columns);
      first_rows.push_back(y);
    }
  }
  for (const auto& row : first_rows) EXPECT_TRUE(same_bits(row, first_rows.front()));
}

TEST(RowKernels, ExpIsCloseAndTheSameInEveryLaneAndVariant) {
  std::vector<float> x;
  for (float v = -90.0F; v < 88.0F; v += 0.00713F) x.push_back(v);
  x.insert(x.end(), {0.0F, -0.0F, -87.3F, -87.4F, -1e30F, -std::numeric_limits<float>::infinity()});
  std::vector<std::vector<float>> results;
  for (const Isa isa : isas()) {
    std::vector<float> y(x.size());
    kernels(isa).exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      if (x[i] < -87.3F) {
        ASSERT_EQ(y[i], 0.0F) << x[i];
      } else {
        ASSERT_NEAR(y[i] / want, 1.0, 2.4e-7) << x[i];
      }
      float alone = 0;
      kernels(isa).exp(&x[i], &alone, 1);
      ASSERT_EQ(alone, y[i]) << x[i];
    }
    results.push_back(y);
  }
  EXPECT_TRUE(same_bits(results.front(), results.back()));
  float nan = std::numeric_limits<float>::quiet_NaN();
  kernels().exp(&nan, &nan, 1);
  EXPECT_TRUE(std::isnan(nan));
}

TEST(RowKernels, RmsNormMatchesTheFormula) {
  for (const int n : {1, 8, 16, 17, 64, 250}) {
    const std::vector<float> x = random_floats(n, n, 3.0F);
    const std::vector<float> weight = random_floats(n, n + 1);
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double inverse = 1.0 / std::sqrt(squares / n + 1e-5);
    std::vector<std::vector<float>> results;
    for (const Isa isa : isas()) {
      std::vector<float> y(n);
      kernels(isa).rms_norm(x.data(), weight.data(), y.data(), n, 1e-5F);
      for (int i = 0; i < n; ++i) ASSERT_NEAR(y[i], x[i] * inverse * weight[i], 2e-6);
      results.push_back(y);
    }
    EXPECT_TRUE(same_bits(results.front(), results.back()));
  }
}

TEST(RowKernels, RopeRotatesPairs) {
  for (const int dim : {2, 8, 24, 32, 64, 80}) {
    const int half = dim / 2;
    const std::vector<float> x = random_floats(3 * dim, dim);
    std::vector<float> cos(half);
    std::vector<float> sin(half);
    for (int i = 0; i < half; ++i) {
      cos[i] = std::cos(0.1F * static_cast<float>(i));
      sin[i] = std::sin(0.1F * static_cast<float>(i));
    }
    std::vector<std::vector<float>> results;
    for (const Isa isa : isas()) {
      std::vector<float> y = x;
      kernels(isa).rope(y.data(), 3, dim, dim, cos.data(), sin.data());
      for (int h = 0; h < 3; ++h) {
        for (int i = 0; i < half; ++i) {
          const double a = x[h * dim + i];
          const double b = x[h * dim + half + i];
          ASSERT_NEAR(y[h * dim + i], a * cos[i] - b * sin[i], 1e-6);
          ASSERT_NEAR(y[h * dim + half + i], b * cos[i] + a * sin[i], 1e-6);
        }
      }
      results.push_back(y);
    }
    EXPECT_TRUE(same_bits(results.front(), results.back()));
  }
}

/// A part of each head, in halves and in pairs of neighbours; the rest stays as it is.
TEST(RowKernels, RopeOfAPartOfEachHead) {
  const int dim = 40;
  for (const int dims : {2, 10, 24, 40}) {
    for (const bool interleaved : {false, true}) {
      const std::vector<float> x = random_floats(3 * dim, dims);
      const std::vector<float> cos = random_floats(dims / 2, 5);
      const std::vector<float> sin = random_floats(dims / 2, 6);
      std::vector<std::vector<float>> results;
      for (const Isa isa : isas()) {
        std::vector<float> y = x;
        const auto rope = interleaved ? kernels(isa).rope_interleaved : kernels(isa).rope;
        rope(y.data(), 3, dim, dims, cos.data(), sin.data());
        for (int h = 0; h < 3; ++h) {
          for (int i = 0; i < dims / 2; ++i) {
            const int first = h * dim + (interleaved ? 2 * i : i);
            const int second = first + (interleaved ? 1 : dims / 2);
            const double a = x[first];
            const double b = x[second];
            ASSERT_NEAR(y[first], a * cos[i] - b * sin[i], 1e-6);
            ASSERT_NEAR(y[second], b * cos[i] + a * sin[i], 1e-6);
          }
          for (int i = dims; i < dim; ++i) ASSERT_EQ(y[h * dim + i], x[h * dim + i]);
        }
        results.push_back(y);
      }
      EXPECT_TRUE(same_bits(results.front(), results.back()));
    }
  }
}

TEST(RowKernels, LayerNormMatchesTheFormula) {
  for (const int n : {1, 8, 16, 17, 64, 250}) {
    const std::vector<float> x = random_floats(n, n, 3.0F);
    const std::vector<float> weight = random_floats(n, n + 1);
    const std::vector<float> bias = random_floats(n, n + 2);
    double mean = 0, variance = 0;
    for (const float v : x) mean += v / n;
    for (const float v : x) variance += (v - mean) * (v - mean) / n;
    for (const bool with_bias : {false, true}) {
      std::vector<std::vector<float>> results;
      for (const Isa isa : isas()) {
        std::vector<float> y = x;  // in place
        kernels(isa).layer_norm(y.data(), weight.data(), with_bias ? bias.data() : nullptr,
                                y.data(), n, 1e-5F);
        for (int i = 0; i < n; ++i) {
          const double want = (x[i] - mean) / std::sqrt(variance + 1e-5) * weight[i];
          ASSERT_NEAR(y[i], want + (with_bias ? bias[i] : 0.0F), 4e-6) << n;
        }
        results.push_back(y);
      }
      EXPECT_TRUE(same_bits(results.front(), results.back()));
    }
  }
}

double gate_of(const Activate& how, double g) {
  switch (how.gate) {
    case Gate::silu:
      return g / (1 + std::exp(-g));
    case Gate::gelu:
      return g / 2 * (1 + std::erf(g / std::sqrt(2.0)));
    case Gate::gelu_tanh:
      return g / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g)));
    case Gate::clamped:
      g = std::min(g, double{how.limit});
      return g / (1 + std::exp(-how.alpha * g));
  }
  return 0;
}

TEST(RowKernels, GatesMatchTheirFormulas) {
  for (const Gate gate : {Gate::silu, Gate::gelu, Gate::gelu_tanh, Gate::clamped}) {
    for (const bool gated : {false, true}) {
      for (const bool biased : {false, true}) {
        const Activate how{gate, gated, 2.5F, 1.702F};
        const int n = 133;
        std::vector<float> g = random_floats(n, 1, 4.0F);
        g[0] = 0, g[1] = 60, g[2] = -60, g[3] = 1e4F, g[4] = -1e4F, g[5] = 1e-6F;
        const std::vector<float> up = random_floats(n, 2, 4.0F);
        const std::vector<float> g_bias = random_floats(n, 3);
        const std::vector<float> up_bias = random_floats(n, 4);
        std::vector<std::vector<float>> results;
        for (const Isa isa : isas()) {
          std::vector<float> y(n);
          kernels(isa).activate(how, g.data(), biased ? g_bias.data() : nullptr, up.data(),
                                biased ? up_bias.data() : nullptr, y.data(), n);
          for (int i = 0; i < n; ++i) {
            double u = biased ? up[i] + up_bias[i] : up[i];
            if (gate == Gate::clamped) u = std::clamp(u, -2.5, 2.5) + 1;
            const double x = biased ? g[i] + g_bias[i] : g[i];
            const double want = gate_of(how, x) * (gated ? u : 1);
            ASSERT_NEAR(y[i], want, 2e-6 * (1 + std::abs(want)))
                << static_cast<int>(gate) << " of " << x;
          }
          results.push_back(y);
        }
        EXPECT_TRUE(same_bits(results.front(), results.back()));
      }
    }
  }
}

TEST(RowKernels, CapsAndSums) {
  const std::vector<float> x = random_floats(77, 1, 40.0F);
  const std::vector<float> y = random_floats(77, 2);
  const std::vector<float> bias = random_floats(77, 3);
  std::vector<std::vector<float>> results;
  for (const Isa isa : isas()) {
    std::vector<float> capped = x;
    kernels(isa).soft_cap(capped.data(), 77, 30.0F);
    std::vector<float> sum = x;
    kernels(isa).add_scaled(y.data(), bias.data(), 0.25F, sum.data(), 77);
    for (int i = 0; i < 77; ++i) {
      ASSERT_NEAR(capped[i], 30 * std::tanh(x[i] / 30.0), 1e-5);
      ASSERT_NEAR(sum[i], x[i] + 0.25 * (double{y[i]} + bias[i]), 1e-5);
    }
    results.push_back(capped);
    results.push_back(sum);
  }
  EXPECT_TRUE(same_bits(results[0], results[results.size() - 2]));
  EXPECT_TRUE(same_bits(results[1], results.back()));
}

TEST(RowKernels, RowMaxFindsTheLowestIndexAndBadValues) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Isa isa : isas()) {
    const Kernels& k = kernels(isa);
    for (const int n : {1, 5, 16, 17, 100}) {
      for (int at = 0; at < n; ++at) {
        std::vector<float> x = random_floats(n, 4);
        x[at] = 50.0F;
        x[n - 1] = 50.0F;
        EXPECT_EQ(k.row_max(x.data(), n).index, at);
        EXPECT_FALSE(k.row_max(x.data(), n).bad);
        x[at] = inf;
        EXPECT_TRUE(k.row_max(x.data(), n).bad);
        x[at] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_TRUE(k.row_max(x.data(), n).bad) << n << " " << at;
        x[at] = -inf;
        EXPECT_EQ(k.row_max(x.data(), n).bad, n == 1);
      }
    }
    EXPECT_TRUE(k.row_max(nullptr, 0).bad);
  }
}

TEST(RowKernels, ExpSumsAndCollect) {
  const std::vector<float> x = random_floats(700, 8, 2.0F);
  std::vector<std::vector<float>> all;
  for (const Isa isa : isas()) {
    std::vector<float> y(x.size());
    std::vector<float> sums(3);
    kernels(isa).exp_sums(x.data(), 700, 1.0F, 0.5F, y.data(), sums.data());
    double total = 0;
    for (int i = 0; i < 700; ++i) {
      ASSERT_NEAR(y[i], std::exp((x[i] - 1.0) * 0.5), 1e-6 * y[i]);
      total += y[i];
    }
    EXPECT_NEAR(sums[0] + sums[1] + sums[2], total, 1e-4 * total);
    y.insert(y.end(), sums.begin(), sums.end());
    all.push_back(y);

    std::vector<std::int32_t> found(700);
    const std::int64_t n = kernels(isa).collect_ge(x.data(), 699, 1.5F, found.data(), 700);
    std::vector<std::int32_t> want;
    for (int i = 0; i < 699; ++i) {
      if (x[i] >= 1.5F) want.push_back(i);
    }
    found.resize(n);
    EXPECT_EQ(found, want);
    EXPECT_EQ(kernels(isa).collect_ge(x.data(), 699, 1.5F, found.data(), 2), n);
  }
  EXPECT_TRUE(same_bits(all.front(), all.back()));
}

TEST(Packing, ElementsOfEveryTypeAreExact) {
  const std::vector<std::uint16_t> halves = {0x0000, 0x8000, 0x3C00, 0xC000, 0x7BFF,
                                             0x0001, 0x03FF, 0x0400, 0x7C00, 0xFC00};
  const std::vector<double> want = {0,       -0.0,           1,       -2,       65504,
                                    0x1p-24, 1023 * 0x1p-24, 0x1p-14, INFINITY, -INFINITY};
  const auto* data = reinterpret_cast<const std::byte*>(halves.data());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    EXPECT_EQ(element(data, ElementType::f16, static_cast<std::int64_t>(i)), want[i]);
  }
  const std::uint16_t nan = 0x7E01;
  EXPECT_TRUE(std::isnan(element(reinterpret_cast<const std::byte*>(&nan), ElementType::f16, 0)));
  const std::vector<float> values = random_floats(100, 2);
  const std::vector<std::uint16_t> bf16 = to_bf16(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float x = element(reinterpret_cast<const std::byte*>(bf16.data()), ElementType::bf16,
                            static_cast<std::int64_t>(i));
    EXPECT_NEAR(x, values[i], std::abs(values[i]) / 128);
    EXPECT_EQ(to_bf16({x})[0], bf16[i]);
  }
}

}  // namespace
}  // namespace baton::cpu
