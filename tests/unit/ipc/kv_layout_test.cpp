#include "ipc/kv_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace baton {
namespace {

KvGeometry geometry(KvDtype dtype, std::uint32_t layers, std::uint32_t heads, std::uint32_t dim,
                    std::uint32_t tokens, std::uint32_t blocks) {
  KvGeometry g;
  g.model_fingerprint = 7;
  g.dtype = dtype;
  g.layers = layers;
  g.kv_heads = heads;
  g.head_dim = dim;
  g.tokens_per_block = tokens;
  g.blocks = blocks;
  g.block_bytes = kv_block_bytes(g).value_or(0);
  return g;
}

/// Walks every element of the pool in the documented order: each must start where the last one
/// ended, so that all bytes are used once and none twice.
void expect_dense(const KvGeometry& g) {
  ASSERT_TRUE(kv_check(g).ok()) << kv_check(g).message();
  std::uint64_t next = 0;
  for (BlockId block = 0; block < g.blocks; ++block) {
    ASSERT_EQ(next, g.block_bytes * block);
    for (std::uint32_t layer = 0; layer < g.layers; ++layer) {
      for (const KvPart part : {KvPart::key, KvPart::value}) {
        for (std::uint32_t head = 0; head < g.kv_heads; ++head) {
          for (std::uint32_t token = 0; token < g.tokens_per_block; ++token) {
            ASSERT_EQ(kv_offset(g, block, layer, part, head, token), next);
            ASSERT_EQ(kv_offset_in_block(g, layer, part, head, token),
                      next - g.block_bytes * block);
            next += kv_element_bytes(g.dtype) * g.head_dim;
          }
        }
      }
    }
  }
  ASSERT_EQ(kv_pool_bytes(g), next);
}

TEST(KvLayout, EveryElementOfEverySmallPoolHasItsOwnBytes) {
  int shapes = 0;
  for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::bf16}) {
    for (std::uint32_t layers = 1; layers <= 4; ++layers) {
      for (std::uint32_t heads = 1; heads <= 4; ++heads) {
        for (const std::uint32_t dim : {1U, 2U, 3U, 8U, 24U, 128U}) {
          for (const std::uint32_t tokens : {1U, 2U, 3U, 16U, 33U}) {
            for (std::uint32_t blocks = 1; blocks <= 3; ++blocks, ++shapes) {
              expect_dense(geometry(dtype, layers, heads, dim, tokens, blocks));
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(shapes, 3 * 4 * 4 * 6 * 5 * 3);
}

TEST(KvLayout, KnownOffsetsOfAnEightBillionModel) {
  const KvGeometry g = geometry(KvDtype::bf16, 32, 8, 128, 16, 1000);
  EXPECT_EQ(g.block_bytes, 2U * 1024 * 1024);
  EXPECT_EQ(kv_offset(g, 0, 0, KvPart::value, 0, 0), 32U * 1024);
  EXPECT_EQ(kv_offset(g, 0, 1, KvPart::key, 0, 0), 64U * 1024);
  EXPECT_EQ(kv_offset(g, 3, 31, KvPart::value, 7, 15), 3 * g.block_bytes + g.block_bytes - 128 * 2);
  EXPECT_EQ(kv_pool_bytes(g), 2000U * 1024 * 1024);
}

TEST(KvLayout, BlocksForTokensRoundsUp) {
  const KvGeometry g = geometry(KvDtype::f32, 1, 1, 8, 16, 1);
  for (std::uint64_t tokens = 0; tokens < 100; ++tokens) {
    const std::uint64_t blocks = kv_blocks_for(g, tokens);
    EXPECT_GE(blocks * 16, tokens);
    EXPECT_LT(blocks * 16, tokens + 16);
  }
  EXPECT_EQ(kv_blocks_for(g, std::numeric_limits<std::uint64_t>::max()), 1ULL << 60);
}

TEST(KvLayout, RefusesEveryFieldOutOfRangeByName) {
  struct Case {
    const char* field;
    void (*spoil)(KvGeometry&);
  };
  const std::vector<Case> cases = {
      {"dtype", [](KvGeometry& g) { g.dtype = static_cast<KvDtype>(3); }},
      {"layers", [](KvGeometry& g) { g.layers = 0; }},
      {"layers", [](KvGeometry& g) { g.layers = kMaxLayers + 1; }},
      {"kv_heads", [](KvGeometry& g) { g.kv_heads = 0; }},
      {"kv_heads", [](KvGeometry& g) { g.kv_heads = kMaxKvHeads + 1; }},
      {"head_dim", [](KvGeometry& g) { g.head_dim = 0; }},
      {"head_dim", [](KvGeometry& g) { g.head_dim = kMaxHeadDim + 1; }},
      {"tokens_per_block", [](KvGeometry& g) { g.tokens_per_block = 0; }},
      {"tokens_per_block", [](KvGeometry& g) { g.tokens_per_block = kMaxTokensPerBlock + 1; }},
      {"blocks", [](KvGeometry& g) { g.blocks = 0; }},
      {"block_bytes", [](KvGeometry& g) { g.block_bytes += 1; }},
      {"block_bytes", [](KvGeometry& g) { g.head_dim += 1; }},
  };
  for (const Case& c : cases) {
    KvGeometry g = geometry(KvDtype::f32, 2, 2, 8, 16, 4);
    ASSERT_TRUE(kv_check(g).ok());
    c.spoil(g);
    const Status status = kv_check(g);
    ASSERT_FALSE(status.ok()) << c.field;
    EXPECT_NE(status.message().find(c.field), std::string::npos) << status.message();
  }
}

TEST(KvLayout, SizesThatOverflowAreFoundNotWrapped) {
  // 4096^4 elements * 2 * 4 bytes = 2^51 * 2^... : one block fits, the pool does not.
  KvGeometry g = geometry(KvDtype::f32, kMaxLayers, kMaxKvHeads, kMaxHeadDim, kMaxTokensPerBlock,
                          std::numeric_limits<std::uint32_t>::max());
  EXPECT_EQ(kv_block_bytes(g), 1ULL << 51);
  EXPECT_FALSE(kv_pool_bytes(g).has_value());
  EXPECT_FALSE(kv_check(g).ok());
  // Beyond the bounds a block itself overflows.
  g.layers = g.kv_heads = g.head_dim = g.tokens_per_block = 0xFFFFFFFFU;
  EXPECT_FALSE(kv_block_bytes(g).has_value());
}

TEST(KvLayout, TheLargestOffsetIsInsideThePool) {
  for (const std::uint32_t tokens : {1U, 16U, 64U}) {
    const KvGeometry g = geometry(KvDtype::f32, kMaxLayers, 8, 128, tokens, 100'000);
    ASSERT_TRUE(kv_check(g).ok());
    const std::uint64_t last = kv_offset(g, g.blocks - 1, g.layers - 1, KvPart::value,
                                         g.kv_heads - 1, g.tokens_per_block - 1);
    EXPECT_EQ(last + kv_token_stride(g), kv_pool_bytes(g));
  }
}

TEST(KvLayout, NamesTheFirstDifference) {
  const KvGeometry a = geometry(KvDtype::f32, 2, 4, 8, 16, 10);
  EXPECT_EQ(kv_difference(a, a), "");
  KvGeometry b = a;
  b.blocks = 99;
  EXPECT_EQ(kv_difference(a, b), "");
  EXPECT_TRUE(kv_same_block(a, b));

  b = geometry(KvDtype::f32, 2, 2, 8, 16, 10);  // half of the heads: a split, not a difference
  EXPECT_EQ(kv_difference(a, b), "");
  EXPECT_FALSE(kv_same_block(a, b));

  const auto expect_named = [&](KvGeometry other, const std::string& field) {
    EXPECT_NE(kv_difference(a, other).find(": " + field + " is"), std::string::npos)
        << kv_difference(a, other);
    EXPECT_FALSE(kv_same_block(a, other));
  };
  expect_named(geometry(KvDtype::bf16, 2, 4, 8, 16, 10), "dtype");
  expect_named(geometry(KvDtype::f32, 3, 4, 8, 16, 10), "layers");
  expect_named(geometry(KvDtype::f32, 2, 4, 16, 16, 10), "head_dim");
  expect_named(geometry(KvDtype::f32, 2, 4, 8, 32, 10), "tokens_per_block");
  b = a;
  b.model_fingerprint = 8;
  b.dtype = KvDtype::f16;
  expect_named(b, "model_fingerprint");
}

}  // namespace
}  // namespace baton
