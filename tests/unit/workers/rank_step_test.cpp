// What rank 0 gives the others of a step.
#include "workers/execute/rank_step.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "ipc/shm_region.h"

namespace baton {
namespace {

/// A row without what only rank 0 needs.
BatchRow rank_row(std::span<const Token> tokens, std::int64_t position,
                  std::span<const BlockId> blocks, LogitsWanted logits,
                  const SamplingParams* sampling) {
  BatchRow row;
  row.tokens = tokens;
  row.position = position;
  row.blocks = blocks;
  row.logits = logits;
  row.sampling = sampling;
  return row;
}

TEST(RankStep, RowsComeAsTheyWent) {
  const std::vector<Token> prompt = {5, 6, 7};
  const std::vector<Token> next = {-1};
  const std::vector<BlockId> blocks = {9, 2};
  const SamplingParams draws;
  SamplingParams pools;
  pools.pooling = Pooling::last_hidden;
  RunStep sent;
  sent.rows = {rank_row(prompt, 30, blocks, LogitsWanted::all, &draws),
               rank_row(next, 1, std::span(blocks).first(1), LogitsWanted::none, nullptr),
               rank_row(next, 7, {}, LogitsWanted::last, &draws),
               rank_row(next, 8, {}, LogitsWanted::last, &pools)};
  std::string bytes = "what was there before";
  RankStep step;
  for (int again = 0; again < 2; ++again) {
    encode_rank_step(sent, bytes);
    ASSERT_TRUE(step.decode(bytes).ok());
    ASSERT_EQ(step.rows().size(), sent.rows.size());
    for (std::size_t i = 0; i < sent.rows.size(); ++i) {
      const StepRow& got = step.rows()[i];
      const BatchRow& want = sent.rows[i];
      EXPECT_TRUE(
          std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin(), want.tokens.end()));
      EXPECT_TRUE(std::equal(got.block_table.begin(), got.block_table.end(), want.blocks.begin(),
                             want.blocks.end()));
      EXPECT_EQ(got.position, want.position);
      EXPECT_EQ(got.logits, want.logits);
      EXPECT_EQ(got.hidden, want.wants_hidden());
    }
    EXPECT_FALSE(step.awaits());
    EXPECT_FALSE(step.reads_in_place());
  }
  encode_rank_step({}, bytes);
  EXPECT_TRUE(step.decode(bytes).ok());
  EXPECT_TRUE(step.rows().empty());
}

/// Each rank finds the same blocks in its own window, wherever they lie in it.
TEST(RankStep, BlocksOfOtherPoolsAreThoseOfTheOwnWindow) {
  constexpr std::uint64_t kBlock = 4096;
  const auto region = [](const std::string& name, std::size_t blocks) {
    auto made =
        ShmRegion::create("baton-rank-step-" + std::to_string(getpid()) + name, blocks * kBlock);
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  };
  ShmRegion own = region("own", 4);
  ShmRegion a = region("a", 6);
  ShmRegion b = region("b", 5);
  a.writable_data()[5 * kBlock] = std::byte{77};
  PoolWindow first(1, std::span(own.writable_data(), own.size()), kBlock);
  PoolWindow second(1, std::span(own.writable_data(), own.size()), kBlock);
  ASSERT_TRUE(first.add(11, std::span(a.data(), a.size())).ok());
  ASSERT_TRUE(second.add(12, std::span(b.data(), b.size())).ok());

  const std::vector<Token> next = {3};
  const std::vector<BlockId> table = {5, 2, 1};
  const std::vector<TablePart> before = {{11, 1}, {1, 1}};
  RunStep sent;
  sent.rows = {rank_row(next, 40, table, LogitsWanted::none, nullptr)};
  sent.rows[0].before = before;
  sent.waits = {{0, "a page", 5, 6}};
  std::string bytes;
  encode_rank_step(sent, bytes);
  RankStep step;
  ASSERT_TRUE(step.decode(bytes).ok());
  EXPECT_TRUE(step.awaits());
  EXPECT_TRUE(step.reads_in_place());
  EXPECT_THROW(step.rows_in(second), std::logic_error) << "it has not mapped that pool";
  ASSERT_TRUE(second.add(11, std::span(a.data(), a.size())).ok());
  std::vector<BlockId> firsts;
  for (const PoolWindow* window : {&first, &second}) {
    ASSERT_TRUE(step.decode(bytes).ok());
    const std::span<const BlockId> got = step.rows_in(*window)[0].block_table;
    ASSERT_EQ(got.size(), 3U);
    EXPECT_EQ(window->base()[got[0] * kBlock], std::byte{77});
    EXPECT_EQ(got[1], 2U) << "in the own pool";
    EXPECT_EQ(got[2], 1U);
    firsts.push_back(got[0]);
  }
  EXPECT_NE(firsts[0], firsts[1]) << "the windows are alike: this tests nothing";
}

TEST(RankStep, OtherBytesAreRefused) {
  const std::vector<Token> tokens = {1, 2};
  const std::vector<BlockId> blocks = {3};
  const std::vector<TablePart> before = {{9, 1}};
  const SamplingParams draws;
  RunStep sent;
  sent.rows = {rank_row(tokens, 0, blocks, LogitsWanted::last, &draws)};
  sent.rows[0].before = before;
  std::string bytes;
  encode_rank_step(sent, bytes);
  RankStep step;
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(step.decode(bytes.substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(step.decode(bytes + "x").ok());
  std::string wrong = bytes;
  wrong[0] = '\x7F';  // rows that are not there
  EXPECT_FALSE(step.decode(wrong).ok());
  wrong = bytes;
  wrong[16 + 20] = '\x09';  // logits of no kind
  EXPECT_FALSE(step.decode(wrong).ok());
}

}  // namespace
}  // namespace baton
