// Attention of single tokens over the paged pool against a plain softmax in double precision on the
// host, and its bits under every way of cutting the same rows. With BATON_GPU_BENCH=1 also times
// (attention_bench.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/gpu/attention_expect.h"

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

INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeShapes,
    ::testing::Values(std::tuple(1, 128, 16), std::tuple(2, 128, 16), std::tuple(4, 128, 16),
                      std::tuple(8, 128, 16), std::tuple(16, 128, 16), std::tuple(5, 128, 32),
                      std::tuple(4, 64, 16), std::tuple(12, 64, 48), std::tuple(4, 128, 8),
                      std::tuple(8, 64, 1), std::tuple(16, 128, 24), std::tuple(1, 256, 16),
                      std::tuple(2, 256, 16), std::tuple(8, 256, 16), std::tuple(3, 256, 48),
                      std::tuple(2, 256, 8), std::tuple(9, 256, 16)));

TEST(DecodeAttention, ManyRows) {
  std::vector<int> lengths;
  for (int i = 0; i < 256; ++i) lengths.push_back(1 + i * 37 % 211);
  for (const HeadShape shape : {HeadShape{8, 2, 128}, {4, 2, 256}}) {
    const AttentionCase c = lengths_case(shape, 16, 0, lengths);
    expect_close(c, c.run_decode({}), 1);
  }
}

/// What each number of rows is cut into differs; Gemma 3's 12B has these heads.
TEST(DecodeAttention, AnyNumberOfRowsOfWideHeads) {
  for (int n = 1; n <= 64; n += n < 9 ? 1 : 11) {
    for (const int window : {0, 333}) {
      std::vector<int> lengths;
      for (int i = 0; i < n; ++i) lengths.push_back(1 + (i * 131 + 511) % 777);
      AttentionCase c = lengths_case({16, 8, 256}, 16, window, lengths);
      c.forget_behind();
      expect_close(c, c.run_decode({}), 1);
    }
  }
}

/// As in a graph that was recorded for more rows; and with none at all.
TEST(DecodeAttention, FewerRowsThanPlannedFor) {
  for (const HeadShape shape : {HeadShape{8, 2, 128}, {4, 2, 256}}) {
    const AttentionCase c = lengths_case(shape, 16, 0, {300, 1, 77});
    expect_close(c, c.run_decode({}, {}, 48), 1);
  }
}

TEST(DecodeAttention, LongRowsAmongShortOnes) {
  for (const HeadShape shape : {HeadShape{8, 2, 128}, {4, 2, 256}}) {
    const AttentionCase c =
        lengths_case(shape, 16, 0, {9000, 1, 17, 700, 300, 64, 65, 2000, 5, 128, 1023});
    expect_close(c, c.run_decode({}), 1);
  }
}

TEST(DecodeAttention, Windows) {
  for (const HeadShape shape : {HeadShape{8, 2, 64}, {4, 2, 256}}) {
    for (int tokens_per_block : {16, 8}) {
      for (int window : {1, 16, 50, 250}) {
        const AttentionCase c = lengths_case(shape, tokens_per_block, window, many_lengths());
        for (int fixed : {0, 64}) {
          DecodeAttention::Options options;
          options.fixed_split = fixed;
          options.piece_keys = 64;
          expect_close(c, c.run_decode(options), 1);
        }
      }
    }
  }
}

/// Windows give blocks back, which others write to: what is there may not count, whatever it is.
TEST(DecodeAttention, NothingInFrontOfTheWindowIsRead) {
  for (const HeadShape shape : {HeadShape{8, 2, 64}, {8, 2, 128}, {6, 2, 80}, {4, 2, 256}}) {
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
  for (const HeadShape shape : {HeadShape{8, 2, 128}, {4, 2, 256}}) {
    AttentionCase c(shape, 16, 0);
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
}

class FixedPieces : public ::testing::TestWithParam<std::tuple<HeadShape, int, float>> {};

TEST_P(FixedPieces, GiveTheBitsOfARowAlone) {
  const auto [shape, window, soft_cap] = GetParam();
  std::vector<int> lengths = {1, 63, 64, 65, 128, 129, 500, 1000, 2049, 777};
  for (int i = 0; i < 200; ++i) lengths.push_back(600 + i);
  AttentionCase c = lengths_case(shape, 16, window, lengths);
  c.soft_cap = soft_cap;
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

INSTANTIATE_TEST_SUITE_P(Shapes, FixedPieces,
                         ::testing::Values(std::tuple(HeadShape{8, 2, 128}, 0, 0.0F),
                                           std::tuple(HeadShape{8, 2, 128}, 300, 0.0F),
                                           std::tuple(HeadShape{4, 2, 256}, 0, 0.0F),
                                           std::tuple(HeadShape{4, 2, 256}, 300, 0.0F),
                                           std::tuple(HeadShape{4, 2, 256}, 300, 5.0F)));

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

/// By the plain kernel and, for heads of 256, by the tiled one.
TEST(DecodeAttention, CappedScoresAndWindows) {
  for (const HeadShape shape :
       {HeadShape{8, 2, 64}, {4, 4, 128}, {6, 2, 256}, {16, 2, 256}, {9, 1, 256}}) {
    for (const int window : {0, 1, 50}) {
      for (const float cap : {0.0F, 2.0F, 50.0F}) {  // without a cap: another layer of such a model
        AttentionCase c = lengths_case(shape, 16, window, {1, 2, 17, 33, 64, 300, 999});
        c.soft_cap = cap;
        c.forget_behind();
        for (const int fixed : {0, 64}) {
          DecodeAttention::Options options;
          options.capped = true;
          options.fixed_split = fixed;
          expect_close(c, c.run_decode(options), 1);
        }
      }
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

}  // namespace
}  // namespace baton::cuda
