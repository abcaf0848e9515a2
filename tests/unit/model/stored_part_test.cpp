#include "workers/model/stored_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "workers/model/error.h"

namespace baton {
namespace {

constexpr std::int64_t kOut = 48;
constexpr std::int64_t kIn = 64;
constexpr std::int64_t kGroup = 16;

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 127);  // no NaN of E4M3
  return bytes;
}

std::vector<float> random_scales(std::size_t n) {
  std::minstd_rand random(5);
  std::vector<float> scales(n);
  for (float& s : scales) s = static_cast<float>(random() % 1000) / 100;
  return scales;
}

cpu::MatrixSource matrix(const std::vector<float>& values, std::int64_t columns) {
  return {reinterpret_cast<const std::byte*>(values.data()), cpu::ElementType::f32,
          static_cast<std::int64_t>(values.size()) / columns, columns};
}

/// What would lie on the device: the rows one after another.
std::vector<std::byte> dense(const StoredRows& rows) {
  std::vector<std::byte> bytes;
  for (std::size_t r = 0; r < rows.count; ++r) {
    bytes.insert(bytes.end(), rows.from + r * rows.pitch, rows.from + r * rows.pitch + rows.bytes);
  }
  return bytes;
}

cpu::MatrixSource matrix(const std::vector<std::byte>& bytes, std::int64_t columns) {
  return {bytes.data(), cpu::ElementType::f32,
          static_cast<std::int64_t>(bytes.size() / sizeof(float)) / columns, columns};
}

/// Rows and columns of [kOut, kIn].
std::vector<float> slice_of(const std::vector<float>& whole, const Slice& rows,
                            const Slice& columns) {
  std::vector<float> part;
  for (std::int64_t r = rows.first; r < rows.end(); ++r) {
    const auto from = whole.begin() + r * kIn + columns.first;
    part.insert(part.end(), from, from + columns.count);
  }
  return part;
}

const Slice kRows[] = {{0, kOut}, {0, 16}, {16, 32}, {40, 8}};
const Slice kColumns[] = {{0, kIn}, {0, 32}, {32, 32}, {16, 16}};

void check_int4(bool gptq, std::vector<std::int32_t> group) {
  cpu::ThreadPool pool(1);
  const auto weights = random_bytes(kOut * kIn / 2, 1);
  const auto zeros = random_bytes(kIn / kGroup * kOut / 2, 2);
  const auto scales = random_scales(kIn / kGroup * kOut);
  LinearSource layer;
  layer.int4 =
      Int4Weight{weights.data(), zeros.data(), matrix(scales, kOut), std::move(group), kOut, kIn};
  const auto values = [&](const Int4Weight& w) {
    std::vector<float> result(static_cast<std::size_t>(w.out * w.in));
    if (gptq) {
      dequantize_gptq(w, 1, pool, result.data());
    } else {
      dequantize_awq(w, pool, result.data());
    }
    return result;
  };
  const std::vector<float> whole = values(*layer.int4);
  for (const Slice& rows : kRows) {
    for (const Slice& columns : kColumns) {
      const StoredPart part =
          stored_part(layer, gptq ? QuantMethod::gptq : QuantMethod::awq, rows, columns);
      const auto w = dense(part.weights);
      const auto z = dense(part.zeros);
      const auto s = dense(part.scales);
      EXPECT_EQ(values({w.data(), z.data(), matrix(s, rows.count), part.group, part.out, part.in}),
                slice_of(whole, rows, columns))
          << rows.first << " " << columns.first;
    }
  }
}

std::vector<std::int32_t> groups_in_order() {
  std::vector<std::int32_t> group(kIn);
  for (std::size_t i = 0; i < group.size(); ++i) group[i] = static_cast<std::int32_t>(i / kGroup);
  return group;
}

TEST(StoredPart, OfGptqAndAwqIsWhatTheWholeLayerHasThere) {
  check_int4(true, groups_in_order());
  check_int4(false, groups_in_order());
}

TEST(StoredPart, MixedGroupsAreBroughtWhole) {
  std::vector<std::int32_t> group = groups_in_order();
  std::shuffle(group.begin(), group.end(), std::minstd_rand(3));
  check_int4(true, group);
}

TEST(StoredPart, OfFp8IsWhatTheWholeLayerHasThere) {
  cpu::ThreadPool pool(1);
  const auto weights = random_bytes(kOut * kIn, 4);
  struct Blocks {
    std::int64_t rows, columns;
  };
  for (const Blocks& blocks : {Blocks{8, 16}, Blocks{1, kIn}, Blocks{kOut, kIn}}) {
    const std::int64_t scale_columns = kIn / blocks.columns;
    const auto scales = random_scales(static_cast<std::size_t>(kOut / blocks.rows * scale_columns));
    LinearSource layer;
    layer.fp8 = Fp8Weight{weights.data(), matrix(scales, scale_columns), kOut, kIn, blocks.rows,
                          blocks.columns};
    const auto values = [&](const Fp8Weight& w) {
      std::vector<float> result(static_cast<std::size_t>(w.out * w.in));
      dequantize_fp8(w, pool, result.data());
      return result;
    };
    const std::vector<float> whole = values(*layer.fp8);
    for (const Slice& rows : kRows) {
      for (const Slice& columns : kColumns) {
        const StoredPart part = stored_part(layer, QuantMethod::fp8, rows, columns);
        const auto w = dense(part.weights);
        const auto s = dense(part.scales);
        EXPECT_EQ(values({w.data(), matrix(s, part.scale_columns), part.out, part.in,
                          part.block_rows, part.block_columns}),
                  slice_of(whole, rows, columns))
            << blocks.rows << ": " << rows.first << " " << columns.first;
      }
    }
  }
}

TEST(StoredPart, WhatIsStoredTogetherIsNotParted) {
  LinearSource layer;
  layer.fp8 = Fp8Weight{nullptr, {nullptr, cpu::ElementType::f32, 6, 4}, kOut, kIn, 8, 16};
  EXPECT_THROW(stored_part(layer, QuantMethod::fp8, {4, 16}, {0, kIn}), ModelError);
  EXPECT_THROW(stored_part(layer, QuantMethod::fp8, {0, 8}, {8, 32}), ModelError);
  LinearSource int4;
  int4.int4 = Int4Weight{nullptr,           nullptr, {nullptr, cpu::ElementType::f32, 4, kOut},
                         groups_in_order(), kOut,    kIn};
  EXPECT_THROW(stored_part(int4, QuantMethod::gptq, {4, 8}, {0, kIn}), ModelError);
}

}  // namespace
}  // namespace baton
