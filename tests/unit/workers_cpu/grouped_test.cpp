// Weights that stay whole numbers: a product has the bits of the widened weights' one, whatever the
// type, the rows beside it and the vector width.
#include "workers/cpu/grouped.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/unit/workers_cpu/grouped_parts.h"

namespace baton::cpu {
namespace {

std::vector<float> widened(const GroupedMatrix& m) {
  std::vector<float> values(static_cast<std::size_t>(m.out * m.in));
  widen(m, packing_threads(), values.data());
  return values;
}

std::vector<float> inputs(std::int64_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

std::vector<float> product(Isa isa, const PackedMatrix& w, const std::vector<float>& x, int rows,
                           Epilogue epilogue = Epilogue::store, float start = 0) {
  std::vector<float> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(w.out), start);
  LinearTask t;
  t.x = x.data();
  t.x_stride = w.in;
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
  kernels(isa).linear(t);
  return y;
}

float chain_of(const float* x, const float* w, std::int64_t k) {
  float sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum = std::fmaf(x[i], w[i], sum);
  return sum;
}

std::vector<GroupedType> all_types() {
  std::vector<GroupedType> types;
  for (const WeightType type : {WeightType::int8, WeightType::int4}) {
    for (const Second second : {Second::none, Second::zero, Second::offset, Second::e2m1}) {
      if (second == Second::e2m1 && type == WeightType::int8) continue;
      for (const bool half : {false, true}) {
        for (const int group : {8, 16, 32, 128, 256})
          types.push_back({type, {group, half, second}});
      }
    }
  }
  return types;
}

TEST(GroupedLinear, HasTheBitsOfWidenedWeights) {
  for (const GroupedType& type : all_types()) {
    const std::int64_t in = type.format.group == 256 ? 256 : 384;
    if (in % type.format.group != 0) continue;
    const int out = type.format.group == 32 ? 100 : 33;
    const GroupedMatrix m = random_matrix(out, in, type, 22);
    const std::vector<float> w = widened(m);
    const Packed packed({&m, 1}, false, type);
    std::vector<float> row(static_cast<std::size_t>(in));
    for (int r = 0; r < out; ++r) {
      widen_row(packed.matrix, r, row.data());
      ASSERT_EQ(
          std::memcmp(row.data(), &w[static_cast<std::size_t>(r * in)], row.size() * sizeof(float)),
          0)
          << r;
    }
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 49, 101}) {
      const std::vector<float> x = inputs(rows * in, static_cast<std::uint32_t>(rows));
      for (const Isa isa : vector_isas()) {
        const std::vector<float> y = product(isa, packed.matrix, x, rows);
        for (int r = 0; r<rows; r += rows> 12 ? 12 : 1) {
          for (int c = 0; c < out; ++c) {
            ASSERT_EQ(y[static_cast<std::size_t>(r * out + c)],
                      chain_of(&x[static_cast<std::size_t>(r * in)],
                               &w[static_cast<std::size_t>(c * in)], in))
                << kernels(isa).name << " type " << static_cast<int>(type.type) << " second "
                << static_cast<int>(type.format.second) << " group " << type.format.group
                << " half " << type.format.half_scales << " rows " << rows << " at " << r << ", "
                << c;
          }
        }
      }
    }
  }
}

TEST(GroupedLinear, PartsOfSeveralTypesShareAMatrix) {
  // As q, k and v of a file whose v has more bits: 4-bit with offsets, 8-bit without.
  const GroupedType four{WeightType::int4, {32, false, Second::offset}};
  const GroupedType eight{WeightType::int8, {16, false, Second::none}};
  GroupedType both = four;
  ASSERT_TRUE(join_types(both, eight));
  EXPECT_EQ(both, (GroupedType{WeightType::int8, {16, false, Second::offset}}));
  const std::vector<GroupedMatrix> parts = {random_matrix(40, 64, four, 1),
                                            random_matrix(24, 64, eight, 2)};
  const Packed packed(parts, false, both);
  const std::vector<float> x = inputs(3 * 64, 5);
  for (const Isa isa : vector_isas()) {
    const std::vector<float> y = product(isa, packed.matrix, x, 3);
    int column = 0;
    for (const GroupedMatrix& part : parts) {
      const std::vector<float> w = widened(part);
      for (int c = 0; c < part.out; ++c, ++column) {
        ASSERT_EQ(y[static_cast<std::size_t>(64 + column)],
                  chain_of(&x[64], &w[static_cast<std::size_t>(c * 64)], 64))
            << column;
      }
    }
  }
  GroupedType zero{WeightType::int4, {32, false, Second::zero}};
  EXPECT_FALSE(join_types(zero, four)) << "zeros and offsets have no common form";
}

TEST(GroupedLinear, GateAndUpAndSums) {
  const GroupedType type{WeightType::int4, {64, true, Second::zero}};
  const std::vector<GroupedMatrix> parts = {random_matrix(50, 128, type, 1),
                                            random_matrix(50, 128, type, 2)};
  const Packed packed(parts, true, type);
  std::vector<std::vector<std::byte>> plain_memory;
  const std::vector<float> gate = widened(parts[0]);
  const std::vector<float> up = widened(parts[1]);
  const MatrixSource g{reinterpret_cast<const std::byte*>(gate.data()), ElementType::f32, 50, 128};
  const MatrixSource u{reinterpret_cast<const std::byte*>(up.data()), ElementType::f32, 50, 128};
  std::vector<float> panels(static_cast<std::size_t>(2 * panels_for(50) * 128 * kPanelColumns));
  pack_paired(g, u, WeightType::f32, packing_threads(), panels.data());
  const PackedMatrix plain{
      panels.data(), WeightType::f32, static_cast<int>(2 * panels_for(50)), 128, 50, true};
  for (const int rows : {1, 5, 30, 60}) {
    const std::vector<float> x = inputs(rows * 128, 3);
    for (const Isa isa : vector_isas()) {
      EXPECT_EQ(product(isa, packed.matrix, x, rows, Epilogue::silu_mul),
                product(isa, plain, x, rows, Epilogue::silu_mul))
          << rows;
    }
  }
  const Packed one({parts.data(), 1}, false, type);
  const std::vector<float> x = inputs(4 * 128, 4);
  const std::vector<float> stored = product(Isa::avx2, one.matrix, x, 4);
  const std::vector<float> added = product(Isa::avx2, one.matrix, x, 4, Epilogue::add, 0.5F);
  for (std::size_t i = 0; i < stored.size(); ++i) ASSERT_EQ(added[i], 0.5F + stored[i]);
}

}  // namespace
}  // namespace baton::cpu
