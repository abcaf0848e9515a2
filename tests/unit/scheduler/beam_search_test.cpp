// The algorithm by hand; what it must find with models is in tests/golden/beams.json.
#include "scheduler/apply/beam_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton {
namespace {

constexpr Token kStop = 9;

SamplingParams params(std::uint32_t beams, std::uint32_t max_tokens) {
  SamplingParams p;
  p.num_beams = beams;
  p.num_return_sequences = beams;
  p.max_tokens = max_tokens;
  p.stop_ids = {kStop};
  return p;
}

struct Line {
  std::vector<Token> tokens;
  std::vector<float> logprobs;
};

void advance(BeamSearch& search, const std::vector<Line>& lines) {
  std::vector<BeamSearch::Row> rows;
  for (const Line& line : lines) rows.push_back({line.tokens, line.logprobs});
  search.advance(rows);
}

std::vector<std::pair<std::uint32_t, Token>> children(const BeamSearch& search) {
  std::vector<std::pair<std::uint32_t, Token>> list;
  for (const BeamSearch::Child& child : search.children())
    list.emplace_back(child.parent, child.token);
  return list;
}

using Children = std::vector<std::pair<std::uint32_t, Token>>;

TEST(BeamSearch, KeepsTheBestOfAllContinuations) {
  BeamSearch search(params(2, 2));
  advance(search, {{{1, 2, 3}, {-1, -2, -3}}});
  EXPECT_EQ(children(search), (Children{{0, 1}, {0, 2}}));
  // The second beam's continuations are better than the first one's.
  advance(search, {{{4, 5}, {-5, -6}}, {{6, 7}, {-0.5F, -1}}});
  ASSERT_TRUE(search.done());  // max_tokens
  const auto found = search.best(2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].tokens, (std::vector<Token>{2, 6}));
  EXPECT_FLOAT_EQ(found[0].score, -2.5F / 2);
  EXPECT_EQ(found[0].reason, FinishReason::length);
  EXPECT_EQ(found[1].tokens, (std::vector<Token>{2, 7}));
}

TEST(BeamSearch, AStopCountsOnlyAmongTheFirst) {
  BeamSearch search(params(2, 5));
  advance(search, {{{1, 2, kStop, 3}, {-1, -2, -3, -4}}});
  EXPECT_TRUE(search.best(2).empty()) << "third of two";
  EXPECT_EQ(children(search), (Children{{0, 1}, {0, 2}}));
  advance(search, {{{kStop, 1, 2}, {-0.1F, -3, -4}}, {{1, kStop, 3}, {-3, -9, -10}}});
  ASSERT_EQ(search.best(2).size(), 1U);
  EXPECT_EQ(search.best(2)[0].tokens, (std::vector<Token>{1, kStop}));
  EXPECT_EQ(search.best(2)[0].reason, FinishReason::stop);
  EXPECT_EQ(children(search), (Children{{0, 1}, {0, 2}})) << "the stop leaves room for two others";
}

TEST(BeamSearch, EarlyStoppingSaysWhenItIsOver) {
  // Two end at the second token with -1 and -1.25 a token; the best running beam stands at -2.6.
  const auto after_two = [](EarlyStopping early, float penalty) {
    SamplingParams p = params(2, 8);
    p.early_stopping = early;
    p.length_penalty = penalty;
    BeamSearch search(p);
    advance(search, {{{1, 2}, {-1, -1.2F}}});
    advance(search, {{{kStop, 3, 4}, {-1, -1.6F, -2}}, {{kStop, 3, 4}, {-1.3F, -1.7F, -2}}});
    EXPECT_EQ(search.best(2).size(), 2U);
    return search.done();
  };
  EXPECT_TRUE(after_two(EarlyStopping::at_once, 1));
  EXPECT_TRUE(after_two(EarlyStopping::heuristic, 1));  // -2.6 / 2 is worse than -1.25
  EXPECT_FALSE(after_two(EarlyStopping::never, 1));     // -2.6 / 8 is better
  EXPECT_TRUE(after_two(EarlyStopping::never, 0));      // length counts for nothing
  EXPECT_TRUE(after_two(EarlyStopping::never, -1));
}

TEST(BeamSearch, NoStopBelowMinTokens) {
  SamplingParams p = params(2, 3);
  p.min_tokens = 1;
  BeamSearch search(p);
  advance(search, {{{kStop, 1}, {-1, -2}}});
  EXPECT_EQ(children(search), (Children{{0, kStop}, {0, 1}}))
      << "a worker masks it; else it is a word";
}

TEST(BeamSearch, FewerRunOnWhereMasksLeaveFewer) {
  BeamSearch search(params(3, 2));
  const float masked = -std::numeric_limits<float>::infinity();
  advance(search, {{{4, 5}, {-1, masked}}});
  EXPECT_EQ(children(search), (Children{{0, 4}}));
  EXPECT_EQ(search.running(), 1U);
  advance(search, {{{4}, {-1}}});
  EXPECT_TRUE(search.done());
  EXPECT_EQ(search.best(3).size(), 1U);
}

TEST(BeamSearch, EqualScoresRankByBeamAndToken) {
  BeamSearch search(params(2, 3));
  advance(search, {{{7, 3}, {-1, -1}}});
  EXPECT_EQ(children(search), (Children{{0, 3}, {0, 7}}));
  advance(search, {{{5, 6}, {-1, -1}}, {{1, 2}, {-1, -1}}});
  EXPECT_EQ(children(search), (Children{{0, 5}, {0, 6}}));
}

}  // namespace
}  // namespace baton
