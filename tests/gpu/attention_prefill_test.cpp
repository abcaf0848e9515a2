// Attention of prompts' chunks over the paged pool against a plain softmax in double precision on
// the host.
#include <gtest/gtest.h>

#include "tests/gpu/attention_expect.h"
#include "workers/cuda/current_device.h"

namespace baton::cuda {
namespace {

class Prefill : public ::testing::TestWithParam<std::tuple<int, int, int, int, PrefillKind>> {};

TEST_P(Prefill, ChunksWithAndWithoutContext) {
  const auto [group, dim, tokens_per_block, window, kind] = GetParam();
  AttentionCase c({2 * group, 2, dim}, tokens_per_block, window);
  c.gap_rows(3);  // decode rows before the chunks
  c.add(0, 1);
  c.add(0, 200);
  c.add(37, 130);
  c.gap_blocks(2);
  c.add(500, 3);
  c.add(290, 65);
  c.gap_rows(2);
  c.build();
  expect_close(c, c.run_prefill(kind), 2);
}

constexpr auto kDense = PrefillKind::dense;
constexpr auto kPaged = PrefillKind::paged;
constexpr auto kFa2 = PrefillKind::fa2;

INSTANTIATE_TEST_SUITE_P(
    Shapes, Prefill,
    ::testing::Values(std::tuple(4, 128, 16, 0, kDense), std::tuple(1, 64, 16, 0, kDense),
                      std::tuple(5, 128, 48, 0, kDense), std::tuple(2, 64, 512, 0, kDense),
                      std::tuple(4, 128, 16, 0, kPaged), std::tuple(1, 64, 16, 0, kPaged),
                      std::tuple(8, 128, 8, 0, kPaged), std::tuple(5, 128, 16, 70, kPaged),
                      std::tuple(2, 64, 1, 33, kPaged), std::tuple(4, 128, 16, 0, kFa2),
                      std::tuple(1, 64, 16, 0, kFa2), std::tuple(8, 128, 8, 0, kFa2),
                      std::tuple(5, 128, 16, 70, kFa2), std::tuple(2, 64, 1, 33, kFa2),
                      std::tuple(2, 256, 16, 0, kFa2), std::tuple(8, 256, 48, 0, kFa2),
                      std::tuple(1, 256, 8, 70, kFa2)));

TEST(PrefillWindows, NothingInFrontOfThemIsRead) {
  for (const PrefillKind kind : {kPaged, kFa2}) {
    for (const int tokens_per_block : {16, 48, 1}) {
      for (const int window : {1, 16, 70, 300}) {
        for (const int dim : {64, 128, 256}) {
          AttentionCase c({8, 2, dim}, tokens_per_block, window);
          c.gap_rows(3);
          c.add(0, 200);
          c.add(300, 1);
          c.add(237, 130);
          c.gap_blocks(2);
          c.add(2000, 3);
          c.add(290, 65);
          c.build();
          c.forget_behind();
          for (const bool second : {false, true}) {
            c.second_group = second;
            expect_close(c, c.run_prefill(kind), 2);
          }
        }
      }
    }
  }
}

TEST(PrefillPools, KeysAreGatheredOutOfSeveral) {
  if (!is_hopper()) GTEST_SKIP() << "no kernel there gathers";
  for (const int dim : {64, 128}) {
    for (const int tokens_per_block : {16, 48}) {
      AttentionCase c({8, 2, dim}, tokens_per_block, 0);
      c.gap_rows(3);
      c.add(0, 1);
      c.add(0, 200);
      c.add(37, 130);
      c.gap_blocks(2);
      c.add(2000, 3);
      c.gap_rows(2);
      c.build();
      const auto one = c.run_prefill(kDense);
      c.over_pools = true;
      const auto several = c.run_prefill(kDense);
      EXPECT_EQ(one, several);
      expect_close(c, several, 2);
    }
  }
}

/// Where keys are not gathered, several pools are refused: their ids would be read as one pool's.
TEST(PrefillPools, OthersRefuseThem) {
  for (const PrefillKind kind : {kPaged, kFa2}) {
    AttentionCase c({8, 2, 128}, 16, 0);
    c.add(37, 130);
    c.build();
    c.over_pools = true;
    EXPECT_THROW(c.run_prefill(kind), std::invalid_argument);
  }
  AttentionCase windowed({8, 2, 128}, 16, 70);
  windowed.add(37, 130);
  windowed.build();
  windowed.over_pools = true;
  EXPECT_THROW(windowed.run_prefill(kDense), std::invalid_argument);
}

TEST(PrefillSinks, AreOneMoreKeyOfEachHead) {
  for (const PrefillKind kind : {kDense, kPaged, kFa2}) {
    for (const int dim : {64, 128, 256}) {
      if (dim == 256 && kind != kFa2) continue;
      AttentionCase c({16, 2, dim}, 16, kind == kDense ? 0 : 70);
      c.gap_rows(3);
      c.add(0, 200);
      c.add(37, 130);
      c.add(2000, 3);
      c.gap_rows(2);
      c.build();
      c.sinks = some_sinks(c.shape.heads);
      expect_close(c, c.run_prefill(kind), 3);
    }
  }
}

TEST(PrefillCaps, ScoresOfWideHeadsAreCapped) {
  for (const int window : {0, 70}) {
    for (const float cap : {2.0F, 50.0F}) {
      AttentionCase c({8, 4, 256}, 16, window);
      c.gap_rows(3);
      c.add(0, 200);
      c.add(37, 130);
      c.add(2000, 3);
      c.build();
      c.soft_cap = cap;
      expect_close(c, c.run_prefill(kFa2), 3);
    }
  }
  AttentionCase c({8, 2, 128}, 16, 0);
  c.add(0, 20);
  c.build();
  c.soft_cap = 2;
  EXPECT_THROW(c.run_prefill(kFa2), CudaError);
}

TEST(PrefillSplit, FewRowsBehindManyKeys) {
  for (const auto& [dim, kind] :
       {std::pair(128, kDense), {128, kPaged}, {128, kFa2}, {256, kFa2}}) {
    AttentionCase c({8, 2, dim}, 16, 0);
    c.add(4000, 20);
    c.build();
    expect_close(c, c.run_prefill(kind), 2);
  }
}

}  // namespace
}  // namespace baton::cuda
