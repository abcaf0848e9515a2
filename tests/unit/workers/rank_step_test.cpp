// What rank 0 gives the others of a step.
#include "workers/execute/rank_step.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace baton {
namespace {

TEST(RankStep, RowsComeAsTheyWent) {
  const std::vector<Token> prompt = {5, 6, 7};
  const std::vector<Token> next = {-1};
  const std::vector<BlockId> blocks = {9, 2};
  const std::vector<StepRow> rows = {{prompt, 30, blocks, LogitsWanted::all},
                                     {next, 1, std::span(blocks).first(1), LogitsWanted::none},
                                     {next, 7, {}, LogitsWanted::last},
                                     {next, 8, {}, LogitsWanted::last, true}};
  std::string bytes = "what was there before";
  RankStep step;
  for (int again = 0; again < 2; ++again) {
    encode_rank_step(rows, bytes);
    ASSERT_TRUE(step.decode(bytes).ok());
    ASSERT_EQ(step.rows().size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const StepRow& got = step.rows()[i];
      EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), rows[i].tokens.begin(),
                             rows[i].tokens.end()));
      EXPECT_TRUE(std::equal(got.block_table.begin(), got.block_table.end(),
                             rows[i].block_table.begin(), rows[i].block_table.end()));
      EXPECT_EQ(got.position, rows[i].position);
      EXPECT_EQ(got.logits, rows[i].logits);
      EXPECT_EQ(got.hidden, rows[i].hidden);
    }
  }
  encode_rank_step({}, bytes);
  EXPECT_TRUE(step.decode(bytes).ok());
  EXPECT_TRUE(step.rows().empty());
}

TEST(RankStep, OtherBytesAreRefused) {
  const std::vector<Token> tokens = {1, 2};
  const std::vector<BlockId> blocks = {3};
  const std::vector<StepRow> rows = {{tokens, 0, blocks, LogitsWanted::last}};
  std::string bytes;
  encode_rank_step(rows, bytes);
  RankStep step;
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(step.decode(bytes.substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(step.decode(bytes + "x").ok());
  std::string wrong = bytes;
  wrong[0] = '\x7F';  // rows that are not there
  EXPECT_FALSE(step.decode(wrong).ok());
  wrong = bytes;
  wrong[8 + 16] = '\x09';  // logits of no kind
  EXPECT_FALSE(step.decode(wrong).ok());
}

}  // namespace
}  // namespace baton
