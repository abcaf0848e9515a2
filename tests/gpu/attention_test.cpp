// Attention over the paged pool against a plain softmax in double precision on the host, and its
// bits under every way of cutting the same rows. With BATON_GPU_BENCH=1 also times
// (attention_bench.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/gpu/attention_fixture.h"
#include "workers/cuda/current_device.h"

namespace baton::cuda {
namespace {

AttentionCase lengths_case(HeadShape shape, int tokens_per_block, int window,
                           const std::vector<int>& lengths) {
  AttentionCase c(shape, tokens_per_block, window);
  for (int length : lengths) c.add(length - 1, 1);
  c.build();
  return c;
}

std::vector<int> many_lengths() {
  std::vector<int> lengths;
  for (int n = 1; n <= 300; n += n < 70 ? 1 : 23) lengths.push_back(n);
  return lengths;
}

class DecodeShapes : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(DecodeShapes, AllLengths) {
  const auto [group, dim, tokens_per_block] = GetParam();
  const AttentionCase c = lengths_case({2 * group, 2, dim}, tokens_per_block, 0, many_lengths());
  for (int piece : {0, 64, 4096}) {
    DecodeAttention::Options options;
    options.piece_keys = piece;
    expect_close(c, c.run_decode(options), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeShapes,
                         ::testing::Values(std::tuple(1, 128, 16), std::tuple(2, 128, 16),
                                           std::tuple(4, 128, 16), std::tuple(8, 128, 16),
                                           std::tuple(16, 128, 16), std::tuple(5, 128, 32),
                                           std::tuple(4, 64, 16), std::tuple(12, 64, 48),
                                           std::tuple(4, 128, 8), std::tuple(8, 64, 1),
                                           std::tuple(16, 128, 24)));

TEST(DecodeAttention, ManyRows) {
  std::vector<int> lengths;
  for (int i = 0; i < 256; ++i) lengths.push_back(1 + i * 37 % 211);
  const AttentionCase c = lengths_case({8, 2, 128}, 16, 0, lengths);
  expect_close(c, c.run_decode({}), 1);
}

/// As in a graph that was recorded for more rows; and with none at all.
TEST(DecodeAttention, FewerRowsThanPlannedFor) {
  const AttentionCase c = lengths_case({8, 2, 128}, 16, 0, {300, 1, 77});
  expect_close(c, c.run_decode({}, {}, 48), 1);
}

TEST(DecodeAttention, LongRowsAmongShortOnes) {
  const AttentionCase c =
      lengths_case({8, 2, 128}, 16, 0, {9000, 1, 17, 700, 300, 64, 65, 2000, 5, 128, 1023});
  expect_close(c, c.run_decode({}), 1);
}

TEST(DecodeAttention, Windows) {
  for (int tokens_per_block : {16, 8}) {
    for (int window : {1, 16, 50, 250}) {
      const AttentionCase c = lengths_case({8, 2, 64}, tokens_per_block, window, many_lengths());
      for (int fixed : {0, 64}) {
        DecodeAttention::Options options;
        options.fixed_split = fixed;
        options.piece_keys = 64;
        expect_close(c, c.run_decode(options), 1);
      }
    }
  }
}

/// Windows give blocks back, which others write to: what is there may not count, whatever it is.
TEST(DecodeAttention, NothingInFrontOfTheWindowIsRead) {
  for (const HeadShape shape : {HeadShape{8, 2, 64}, {8, 2, 128}, {6, 2, 80}}) {
    for (const int tokens_per_block : {16, 48, 8}) {
      for (const int window : {1, 16, 50, 250}) {
        AttentionCase c(shape, tokens_per_block, window);
        for (const int length : many_lengths()) c.add(length - 1, 1);
        c.add(200, 40);  // of one sequence, as in deterministic mode
        c.build();
        c.forget_behind();
        for (const bool second : {false, true}) {
          c.second_group = second;
          for (const int fixed : {0, 64}) {
            DecodeAttention::Options options;
            options.fixed_split = fixed;
            expect_close(c, c.run_decode(options), 1);
          }
        }
      }
    }
  }
}

/// Rows of one sequence, as in deterministic mode, where prompts go through the split kernel too.
TEST(DecodeAttention, RowsOfAPrompt) {
  AttentionCase c({8, 2, 128}, 16, 0);
  c.add(0, 40);
  c.add(100, 1);
  c.add(333, 30);
  c.build();
  for (int fixed : {0, 128}) {
    DecodeAttention::Options options;
    options.fixed_split = fixed;
    expect_close(c, c.run_decode(options), 1);
  }
}

TEST(DecodeAttention, FixedPiecesGiveTheBitsOfARowAlone) {
  std::vector<int> lengths = {1, 63, 64, 65, 128, 129, 500, 1000, 2049, 777};
  for (int i = 0; i < 200; ++i) lengths.push_back(600 + i);
  for (int window : {0, 300}) {
    const AttentionCase c = lengths_case({8, 2, 128}, 16, window, lengths);
    DecodeAttention::Options options;
    options.fixed_split = 128;
    const auto in_turn = c.run_decode(options);  // so many rows that each is one item
    options.piece_keys = 64;
    const auto spread = c.run_decode(options);
    EXPECT_EQ(in_turn, spread);
    EXPECT_EQ(spread, c.run_decode(options));
    options.piece_keys = 0;
    const std::size_t width = static_cast<std::size_t>(c.shape.heads) * c.shape.head_dim;
    for (std::size_t i = 0; i < 24; ++i) {
      const std::vector<AttentionRow> alone = {c.rows[i]};
      const auto out = c.run_decode(options, alone);
      ASSERT_EQ(std::memcmp(&out[i * width], &in_turn[i * width], width * 2), 0) << "row " << i;
    }
  }
}

/// Root mean square of the difference, as part of that of `b`; NaN where only one of them is.
double difference(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
  double error = 0;
  double all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double got = from_bf16(a[i]), expected = from_bf16(b[i]);
    if (a[i] == b[i] && std::isnan(expected)) continue;
    error += (got - expected) * (got - expected);
    all += expected * expected;
  }
  return std::sqrt(error / all);
}

class RopeShapes : public ::testing::TestWithParam<std::tuple<int, int, int, bool, bool>> {};

/// Sums are rounded in another order than rope_append() has it: a few values differ in their last
/// bit.
TEST_P(RopeShapes, DoesWhatRopeAppendDoes) {
  const auto [group, dim, tokens_per_block, bias, norms] = GetParam();
  for (const int window : {0, 1, 40}) {
    for (const auto& lengths : {many_lengths(), {1}, {16}, {17}, {512}, {33, 5000, 700}}) {
      AttentionCase c = lengths_case({2 * group, 2, dim}, tokens_per_block, window, lengths);
      c.forget_behind();
      c.second_group = window > 0;
      for (const int piece : {0, 64}) {
        DecodeAttention::Options options;
        options.piece_keys = piece;
        const auto expected = c.run_rope(options, false, bias, norms);
        const auto got = c.run_rope(options, true, bias, norms);
        EXPECT_LE(difference(got.pool, expected.pool), 1e-4) << window << " " << piece;
        EXPECT_LE(difference(got.out, expected.out), 1e-3) << window << " " << piece;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RopeShapes,
    ::testing::Values(std::tuple(4, 128, 16, false, false), std::tuple(2, 128, 16, false, true),
                      std::tuple(7, 128, 16, true, false), std::tuple(1, 128, 32, true, true),
                      std::tuple(16, 128, 16, true, true), std::tuple(4, 64, 16, false, false),
                      std::tuple(12, 64, 48, true, true)));

/// Heads that the tiled kernel does not have take the plain one.
TEST(DecodeAttention, OtherShapes) {
  for (const HeadShape shape : {HeadShape{6, 2, 32}, {8, 2, 80}, {68, 4, 128}, {3, 1, 192}}) {
    for (const int tokens : {16, 3}) {
      for (const int window : {0, 100}) {
        AttentionCase c(shape, tokens, window);
        for (const int position : {0, 1, 30, 31, 32, 200, 333}) c.add(position, 1);
        c.add(50, 7);
        c.build();
        for (const int fixed : {0, 128}) {
          DecodeAttention::Options options;
          options.fixed_split = fixed;
          expect_close(c, c.run_decode(options), 1);
        }
      }
    }
  }
}

/// A sink may be far above a row's scores, or far below; pieces of a row meet before it counts.
std::vector<float> some_sinks(int heads) {
  std::vector<float> sinks;
  for (int h = 0; h < heads; ++h) sinks.push_back(static_cast<float>(h % 5) * 4.0F - 8.0F);
  return sinks;
}

TEST(DecodeAttention, Sinks) {
  for (const HeadShape shape : {HeadShape{16, 2, 64}, {8, 2, 128}, {6, 2, 80}, {4, 2, 256}}) {
    for (const int window : {0, 50}) {
      AttentionCase c = lengths_case(shape, 16, window, {1, 2, 17, 64, 300, 3000});
      c.sinks = some_sinks(shape.heads);
      for (const int fixed : {0, 64}) {
        DecodeAttention::Options options;
        options.fixed_split = fixed;
        expect_close(c, c.run_decode(options), 1);
      }
    }
  }
}

TEST(DecodeAttention, CappedScoresAndWindowsOfARule) {
  for (const HeadShape shape : {HeadShape{8, 2, 64}, {4, 4, 128}, {6, 2, 256}}) {
    for (const int window : {0, 1, 50}) {
      AttentionCase c = lengths_case(shape, 16, window, {1, 2, 17, 33, 64, 300, 999});
      c.soft_cap = 2;
      DecodeAttention::Options options;
      options.capped = true;
      expect_close(c, c.run_decode(options), 1);
    }
  }
}

/// A request may lie in the pools of several workers: the bits are those of one pool.
TEST(DecodeAttention, KeysMayLieInSeveralPools) {
  for (const HeadShape shape :
       {HeadShape{8, 2, 64}, {8, 2, 128}, {12, 1, 128}, {6, 2, 80}, {4, 2, 32}, {4, 2, 256}}) {
    for (const int tokens_per_block : {16, 48, 8}) {
      for (const int window : {0, 100}) {
        AttentionCase c(shape, tokens_per_block, window);
        for (const int length : many_lengths()) c.add(length - 1, 1);
        c.add(200, 40);
        c.add(3000, 1);
        c.build();
        for (const int fixed : {0, 64}) {
          DecodeAttention::Options options;
          options.fixed_split = fixed;
          c.over_pools = false;
          const auto one = c.run_decode(options);
          c.over_pools = true;
          const auto several = c.run_decode(options);
          EXPECT_EQ(one, several);
          if (fixed == 0) expect_close(c, several, 1);
        }
      }
    }
  }
}

TEST(DecodeAttention, RefusesWhatItDoesNotCompute) {
  DecodeAttention::Options options;
  options.shape = {8, 2, 512};
  EXPECT_THROW(DecodeAttention{options}, std::invalid_argument);
  options.shape = {8, 3, 128};
  EXPECT_THROW(DecodeAttention{options}, std::invalid_argument);
  options.shape = {8, 2, 128};
  options.fixed_split = 100;
  EXPECT_THROW(DecodeAttention{options}, std::invalid_argument);
}

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
                      std::tuple(5, 128, 16, 70, kFa2), std::tuple(2, 64, 1, 33, kFa2)));

TEST(PrefillWindows, NothingInFrontOfThemIsRead) {
  for (const PrefillKind kind : {kPaged, kFa2}) {
    for (const int tokens_per_block : {16, 48, 1}) {
      for (const int window : {1, 16, 70, 300}) {
        for (const int dim : {64, 128}) {
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
    for (const int dim : {64, 128}) {
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

TEST(PrefillSplit, FewRowsBehindManyKeys) {
  for (const PrefillKind kind : {kDense, kPaged, kFa2}) {
    AttentionCase c({8, 2, 128}, 16, 0);
    c.add(4000, 20);
    c.build();
    expect_close(c, c.run_prefill(kind), 2);
  }
}

}  // namespace
}  // namespace baton::cuda
