// Products of rounded inputs with whole numbers: against sums in fp64, and the same bits whatever
// runs beside a row and however wide the vectors are.
#include "workers/cpu/integer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/unit/workers_cpu/grouped_parts.h"

namespace baton::cpu {
namespace {

/// Inputs whose 32s differ in size; some 32s are zeros, some of one size with all signs alike.
std::vector<float> drawn_inputs(int rows, int in, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < in; ++i) {
      const int together = r + i / kRoundedTogether;
      const float size = std::ldexp(1.0F, together % 9 - 4);
      values.push_back(together % 7 == 3 ? 0.0F : together % 7 == 5 ? size : size * normal(random));
    }
  }
  return values;
}

GroupedMatrix drawn_matrix(std::int64_t out, std::int64_t in, const GroupedType& type,
                           std::uint32_t seed) {
  return random_matrix(out, in, type, seed, /*ends=*/true);
}

Packed packed_for_rounded(std::span<const GroupedMatrix> parts, bool paired, GroupedType type) {
  type.format.rounds_inputs = true;
  return Packed(parts, paired, type);
}

std::vector<float> integer_product(Isa isa, const PackedMatrix& w, const float* x, int rows,
                                   Epilogue epilogue = Epilogue::store, float start = 0) {
  const IntegerKernels& kernels = integer_kernels(isa);
  const RoundedRow row = RoundedRow::of(w.in, w.type, w.format);
  std::vector<std::byte> rounded(static_cast<std::size_t>(rows * row.bytes()));
  for (int r = 0; r < rows; ++r)
    kernels.round_row(x + std::int64_t{r} * w.in, row, rounded.data() + r * row.bytes());
  std::vector<float> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(w.out), start);
  LinearTask t;
  t.rows = rows;
  t.k = w.in;
  t.panels = w.panels;
  t.type = w.type;
  t.format = w.format;
  t.panel_count = w.panel_count;
  t.columns = w.out;
  t.y = y.data();
  t.y_stride = w.out;
  t.epilogue = epilogue;
  t.rounded = rounded.data();
  t.rounded_stride = row.bytes();
  kernels.linear(t);
  return y;
}

/// What 32 inputs are rounded to, by plain code: whole numbers and their scale.
struct PlainRounding {
  std::vector<double> values;  // number * scale
  double step = 0;             // the scale

  PlainRounding(const float* x, int n) {
    float largest = 0;
    for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
    step = double{largest} / 127;
    for (int i = 0; i < n; ++i)
      values.push_back(largest == 0 ? 0 : std::nearbyint(x[i] * (127.0F / largest)) * step);
  }
};

/// One result in fp64: of the rounded row, of the row itself, and how far apart they may be.
struct PlainDot {
  double rounded = 0, exact = 0, between = 0, size = 0;

  PlainDot(const float* x, const float* w, int in) {
    for (int first = 0; first < in; first += kRoundedTogether) {
      const int n = std::min(in - first, kRoundedTogether);
      const PlainRounding rounding(x + first, n);
      for (int i = 0; i < n; ++i) {
        const double weight = w[first + i];
        rounded += rounding.values[static_cast<std::size_t>(i)] * weight;
        exact += x[first + i] * weight;
        // An input moves by half a step at the most.
        between += rounding.step / 2 * std::abs(weight);
        size += std::abs(rounding.values[static_cast<std::size_t>(i)] * weight);
      }
    }
  }
};

std::vector<GroupedType> integer_types() {
  std::vector<GroupedType> types;
  for (const WeightType type : {WeightType::int8, WeightType::int4}) {
    for (const Second second : {Second::none, Second::zero, Second::offset, Second::e2m1}) {
      if (second == Second::e2m1 && type == WeightType::int8) continue;
      for (const int group : {8, 16, 24, 32, 128, 192, 360})
        types.push_back({type, {group, group % 64 == 0, second}});
    }
  }
  return types;
}

std::string name_of(const GroupedType& type) {
  return "type " + std::to_string(static_cast<int>(type.type)) + " second " +
         std::to_string(static_cast<int>(type.format.second)) + " group " +
         std::to_string(type.format.group);
}

TEST(RoundedRow, IsOfWholeNumbersWithinHalfAStep) {
  for (const int in : {8, 24, 32, 40, 360}) {
    for (const int piece : {8, 32}) {
      if (in % piece != 0) continue;
      const std::vector<float> x = drawn_inputs(1, in, static_cast<std::uint32_t>(in));
      const RoundedRow row{in, piece};
      for (const Isa isa : vector_isas()) {
        std::vector<std::byte> to(static_cast<std::size_t>(row.bytes()));
        integer_kernels(isa).round_row(x.data(), row, to.data());
        for (int i = 0; i < in; ++i) {
          RoundedPiece of;
          std::memcpy(&of, to.data() + row.pieces_at() + i / piece * 12, sizeof of);
          const int j = i % 8;
          const int n = static_cast<std::int8_t>(
              to[static_cast<std::size_t>(i - j + (j % 2 == 0 ? j / 2 : 4 + j / 2))]);
          float largest = 0;
          for (int k = i / 32 * 32; k < std::min(in, i / 32 * 32 + 32); ++k)
            largest = std::max(largest, std::fabs(x[static_cast<std::size_t>(k)]));
          ASSERT_EQ(of.scale, largest / 127.0F);
          ASSERT_LE(std::abs(n), 127);
          ASSERT_NEAR(n * double{of.scale}, x[static_cast<std::size_t>(i)],
                      0.50001 * double{of.scale});
          if (i % piece != 0) continue;
          int sum = 0;
          for (int k = i; k < i + piece; ++k)
            sum += static_cast<std::int8_t>(to[static_cast<std::size_t>(k)]);
          ASSERT_EQ(of.sum, static_cast<float>(sum));
          ASSERT_EQ(of.product, of.scale * of.sum);
        }
      }
    }
  }
}

TEST(RoundedRow, OfNoNumbersAndOfNextToNothing) {
  for (const Isa isa : vector_isas()) {
    for (const float odd :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(64, 1.0F);
      x[37] = odd;
      const GroupedType type{WeightType::int4, {32, false, Second::zero}};
      const GroupedMatrix m = drawn_matrix(32, 64, type, 3);
      const Packed packed = packed_for_rounded({&m, 1}, false, type);
      for (const float y : integer_product(isa, packed.matrix, x.data(), 1))
        ASSERT_TRUE(std::isnan(y)) << "a row that is no number must not look like one";
    }
    const RoundedRow row{32, 32};
    std::vector<std::byte> to(static_cast<std::size_t>(row.bytes()), std::byte{9});
    const std::vector<float> tiny(32, 1e-38F);
    integer_kernels(isa).round_row(tiny.data(), row, to.data());
    for (int i = 0; i < 32; ++i) ASSERT_EQ(to[static_cast<std::size_t>(i)], std::byte{});
    RoundedPiece piece{1, 1, 1};
    std::memcpy(&piece, to.data() + row.pieces_at(), sizeof piece);
    EXPECT_EQ(piece.scale, 0);
  }
}

TEST(IntegerLinear, IsTheSumOfRoundedInputsInEveryFormat) {
  for (const GroupedType& type : integer_types()) {
    SCOPED_TRACE(name_of(type));
    const int in = type.format.group % 24 == 0 && type.format.group != 192 ? 360 : 384;
    const int out = 41;
    const GroupedMatrix m = drawn_matrix(out, in, type, 22);
    std::vector<float> w(static_cast<std::size_t>(out * in));
    widen(m, packing_threads(), w.data());
    const Packed packed = packed_for_rounded({&m, 1}, false, type);
    std::vector<float> row(static_cast<std::size_t>(in));
    for (int c = 0; c < out; ++c) {
      widen_row(packed.matrix, c, row.data());
      ASSERT_TRUE(std::equal(row.begin(), row.end(), w.begin() + std::ptrdiff_t{c} * in)) << c;
    }
    constexpr int kMost = 9;
    const std::vector<float> x = drawn_inputs(kMost, in, 5);
    for (const Isa isa : vector_isas()) {
      const std::vector<float> y = integer_product(isa, packed.matrix, x.data(), kMost);
      for (int r = 0; r < kMost; ++r) {
        for (int c = 0; c < out; ++c) {
          const PlainDot want(&x[static_cast<std::size_t>(r * in)],
                              &w[static_cast<std::size_t>(c * in)], in);
          const double got = y[static_cast<std::size_t>(r * out + c)];
          ASSERT_NEAR(got, want.rounded, 4e-6 * want.size + 1e-30) << r << ", " << c;
          ASSERT_LE(std::abs(got - want.exact), 1.0001 * want.between + 4e-6 * want.size)
              << r << ", " << c;
        }
      }
    }
  }
}

TEST(IntegerLinear, HasTheSameBitsBesideAnyRowsAndInAnyVectors) {
  for (const GroupedType& type : integer_types()) {
    SCOPED_TRACE(name_of(type));
    const int in = type.format.group % 24 == 0 && type.format.group != 192 ? 360 : 384;
    const int out = 70;
    const GroupedMatrix m = drawn_matrix(out, in, type, 4);
    const Packed packed = packed_for_rounded({&m, 1}, false, type);
    const std::vector<float> x = drawn_inputs(101, in, 6);
    std::vector<float> alone;
    for (int r = 0; r < 101; ++r) {
      const std::vector<float> one =
          integer_product(Isa::avx2, packed.matrix, x.data() + std::ptrdiff_t{r} * in, 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (const Isa isa : vector_isas()) {
      for (const int rows : {1, 2, 3, 4, 5, 7, 12, 49, 101}) {
        const std::vector<float> y = integer_product(isa, packed.matrix, x.data(), rows);
        ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
            << integer_kernels(isa).name << ", rows " << rows;
      }
    }
  }
}

TEST(IntegerLinear, GateAndUpAndSums) {
  const GroupedType type{WeightType::int4, {64, true, Second::zero}};
  const std::vector<GroupedMatrix> parts = {drawn_matrix(50, 128, type, 1),
                                            drawn_matrix(50, 128, type, 2)};
  const Packed both = packed_for_rounded(parts, true, type);
  const Packed gate = packed_for_rounded({parts.data(), 1}, false, type);
  const Packed up = packed_for_rounded({parts.data() + 1, 1}, false, type);
  for (const int rows : {1, 5, 60}) {
    const std::vector<float> x = drawn_inputs(rows, 128, 3);
    for (const Isa isa : vector_isas()) {
      const std::vector<float> g = integer_product(isa, gate.matrix, x.data(), rows);
      const std::vector<float> u = integer_product(isa, up.matrix, x.data(), rows);
      const std::vector<float> y =
          integer_product(isa, both.matrix, x.data(), rows, Epilogue::silu_mul);
      const std::vector<float> added =
          integer_product(isa, gate.matrix, x.data(), rows, Epilogue::add, 0.5F);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double want = g[i] / (1 + std::exp(-double{g[i]})) * u[i];
        ASSERT_NEAR(y[i], want, 1e-5 * std::abs(want) + 1e-30) << i;
        ASSERT_EQ(added[i], 0.5F + g[i]);
      }
    }
  }
}

TEST(IntegerLinear, PartsOfSeveralTypesShareAMatrix) {
  const GroupedType four{WeightType::int4, {32, false, Second::offset}};
  const GroupedType eight{WeightType::int8, {16, false, Second::none}};
  GroupedType both = four;
  ASSERT_TRUE(join_types(both, eight));
  const std::vector<GroupedMatrix> parts = {drawn_matrix(40, 64, four, 1),
                                            drawn_matrix(24, 64, eight, 2)};
  const Packed packed = packed_for_rounded(parts, false, both);
  const std::vector<float> x = drawn_inputs(3, 64, 5);
  for (const Isa isa : vector_isas()) {
    const std::vector<float> y = integer_product(isa, packed.matrix, x.data(), 3);
    std::size_t column = 0;
    for (const GroupedMatrix& part : parts) {
      std::vector<float> w(static_cast<std::size_t>(part.out * part.in));
      widen(part, packing_threads(), w.data());
      for (std::int64_t c = 0; c < part.out; ++c, ++column) {
        const PlainDot want(&x[64], &w[static_cast<std::size_t>(c * 64)], 64);
        ASSERT_NEAR(y[64 + column], want.rounded, 4e-6 * want.size) << column;
      }
    }
  }
}

}  // namespace
}  // namespace baton::cpu
