// The sampler against an independent reference: a softmax in double precision over a full sort. The
// seeds are fixed, so a test that passes passes always.
#include "workers/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/random_floats.h"
#include "workers/sampling/philox.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SamplingParams params_of(float temperature, std::int32_t top_k, float top_p,
                         std::uint64_t seed = 1) {
  SamplingParams p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.seed = seed;
  return p;
}

/// What the probabilities should be: full sort, softmax, cut, in double precision.
std::vector<double> reference(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < order.size()) {
    order.resize(static_cast<std::size_t>(params.top_k));
  }
  std::vector<double> p(logits.size(), 0.0);
  const double best = logits[order.front()];
  const double temperature = params.temperature;
  double total = 0;
  for (const std::size_t i : order) total += p[i] = std::exp((logits[i] - best) / temperature);
  double kept = 0;
  for (const std::size_t i : order) {
    const bool inside = kept < params.top_p * total;
    kept += inside ? p[i] : 0.0;
    if (!inside) p[i] = 0.0;
  }
  for (double& x : p) x /= kept;
  return p;
}

/// Draws `draws` tokens with consecutive positions and compares the counts by chi-square: classes
/// with fewer than five expected are merged; the bound is about six sigmas.
void expect_distribution(const std::vector<float>& logits_in, const SamplingParams& params,
                         int draws = 10'000) {
  std::vector<float> logits = logits_in;
  const std::vector<double> p = reference(logits, params);
  std::vector<int> counts(logits.size(), 0);
  Sampler sampler;
  for (int i = 0; i < draws; ++i) {
    const Result<Token> token = sampler.sample(logits, params, {static_cast<std::uint32_t>(i)});
    ASSERT_TRUE(token.ok()) << token.status().message();
    ASSERT_GT(p[static_cast<std::size_t>(token.value())], 0.0) << "token " << token.value();
    ++counts[static_cast<std::size_t>(token.value())];
  }
  double chi = 0;
  int classes = 0;
  double small_expected = 0;
  double small_count = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * draws;
    if (expected >= 5) {
      chi += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++classes;
    } else {
      small_expected += expected;
      small_count += counts[i];
    }
  }
  if (small_expected >= 5) {
    chi += (small_count - small_expected) * (small_count - small_expected) / small_expected;
    ++classes;
  }
  const double freedom = std::max(1, classes - 1);
  EXPECT_LT(chi, freedom + 6 * std::sqrt(2 * freedom) + 6) << classes << " classes";
  EXPECT_EQ(logits, logits_in);
}

TEST(Philox, KnownAnswers) {  // the test vectors published with Random123
  using A = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0}), (A{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox4x32({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, {0xFFFFFFFF, 0xFFFFFFFF}),
            (A{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (A{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(Philox, EveryPartOfTheKeyChangesTheNumber) {
  const double base = uniform_draw(1, 0, 0);
  EXPECT_NE(base, uniform_draw(2, 0, 0));
  EXPECT_NE(base, uniform_draw(1ULL << 40, 0, 0));
  EXPECT_NE(base, uniform_draw(1, 1, 0));
  EXPECT_NE(base, uniform_draw(1, 1ULL << 40, 0));
  EXPECT_NE(base, uniform_draw(1, 0, 1));
  EXPECT_EQ(base, uniform_draw(1, 0, 0));
  double sum = 0;
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    const double u = uniform_draw(7, i, 0);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);
}

TEST(SamplerDistribution, Plain) {
  for (const std::size_t vocab : {2U, 17U, 256U, 257U, 1000U}) {
    expect_distribution(random_floats(vocab, 1, 2.0F), params_of(1.0F, 0, 1.0F, vocab));
    expect_distribution(random_floats(vocab, 2, 2.0F), params_of(0.7F, 0, 1.0F, vocab));
    expect_distribution(random_floats(vocab, 3, 2.0F), params_of(2.5F, 0, 1.0F, vocab));
  }
}

TEST(SamplerDistribution, TopK) {
  for (const std::int32_t k : {2, 3, 50, 300, 999}) {
    expect_distribution(random_floats(1000, 4, 2.0F), params_of(1.0F, k, 1.0F, 5));
    expect_distribution(random_floats(1000, 5, 2.0F), params_of(1.7F, k, 1.0F, 6));
  }
}

TEST(SamplerDistribution, TopP) {
  for (const float p : {0.05F, 0.5F, 0.9F, 0.999F}) {
    expect_distribution(random_floats(1000, 6, 2.0F), params_of(1.0F, 0, p, 7));
    expect_distribution(random_floats(1000, 7, 0.1F), params_of(1.0F, 0, p, 8));  // nearly flat
  }
}

TEST(SamplerDistribution, TopPCutsWhatTopKLeft) {
  for (const std::int32_t k : {2, 20, 500}) {
    for (const float p : {0.3F, 0.8F}) {
      expect_distribution(random_floats(1000, 8, 2.0F), params_of(1.2F, k, p, 9));
    }
  }
}

TEST(Sampler, KeptSetsMatchTheReferenceOnManyRows) {
  Sampler sampler;
  for (std::uint32_t row = 0; row < 200; ++row) {
    std::vector<float> logits =
        random_floats(400, 100 + row, 0.5F + 0.02F * static_cast<float>(row));
    const SamplingParams params = params_of(0.9F, row % 3 == 0 ? 0 : static_cast<std::int32_t>(row),
                                            0.6F + 0.002F * row, row);
    const std::vector<double> p = reference(logits, params);
    for (std::uint32_t i = 0; i < 50; ++i) {
      const Result<Token> token = sampler.sample(logits, params, {i});
      ASSERT_TRUE(token.ok());
      ASSERT_GT(p[static_cast<std::size_t>(token.value())], 0.0) << "row " << row;
    }
  }
}

TEST(Sampler, GreedyTakesTheLowestOfEqualLogits) {
  Sampler sampler;
  std::vector<float> logits(700, -1.0F);
  logits[699] = logits[123] = logits[400] = 3.0F;
  EXPECT_EQ(sampler.sample(logits, params_of(0.0F, 0, 1.0F), {}).value(), 123);
  EXPECT_EQ(sampler.sample(logits, params_of(1.0F, 1, 1.0F), {}).value(), 123);
  EXPECT_EQ(sampler.sample(logits, params_of(1e-9F, 0, 1.0F), {}).value(), 123);
}

TEST(Sampler, TiesAtTheBorderKeepTheLowestIds) {
  Sampler sampler;
  std::vector<float> logits(1000, 0.0F);  // all equal
  std::set<Token> seen;
  for (std::uint32_t i = 0; i < 500; ++i) {
    seen.insert(sampler.sample(logits, params_of(1.0F, 3, 1.0F), {i}).value());
  }
  EXPECT_EQ(seen, (std::set<Token>{0, 1, 2}));
  seen.clear();
  for (std::uint32_t i = 0; i < 500; ++i) {
    seen.insert(sampler.sample(logits, params_of(1.0F, 0, 0.0042F), {i}).value());
  }
  EXPECT_EQ(seen, (std::set<Token>{0, 1, 2, 3, 4}));  // 4.2 of 1000 need five
}

TEST(Sampler, AtLeastOneTokenSurvivesAnyTopP) {
  Sampler sampler;
  std::vector<float> logits = random_floats(100, 3, 2.0F);
  const auto best =
      static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sampler.sample(logits, params_of(1.0F, 0, 1e-30F), {i}).value(), best);
    EXPECT_EQ(sampler.sample(logits, params_of(1.0F, 50, 1e-30F), {i}).value(), best);
  }
}

TEST(Sampler, TheDrawDependsOnItsKeyAlone) {
  Sampler first;
  Sampler second(cpu::Isa::avx2);
  std::vector<float> logits = random_floats(500, 12, 2.0F);
  std::vector<float> other = random_floats(3000, 13, 2.0F);
  std::map<std::pair<std::uint64_t, std::uint32_t>, Token> tokens;
  const auto seeded = [](std::uint64_t seed) { return params_of(1.5F, 0, 1.0F, seed); };
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    for (std::uint32_t at = 0; at < 100; ++at) {
      tokens[{seed, at}] = first.sample(logits, seeded(seed), {at}).value();
    }
  }
  int different = 0;
  for (std::uint32_t at = 100; at-- > 0;) {  // another order, other rows between, another instance
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      (void)second.sample(other, params_of(1.0F, 40, 0.9F, at), {at});
      EXPECT_EQ(second.sample(logits, seeded(seed), {at}).value(), (tokens[{seed, at}]));
    }
    different += tokens[{0, at}] != tokens[{1, at}] ? 1 : 0;
  }
  EXPECT_GT(different, 80);
}

TEST(Sampler, StopIdsAreMaskedBeforeMinTokens) {
  Sampler sampler;
  std::vector<float> logits = {1.0F, 5.0F, 4.0F, 9.0F};
  const std::vector<float> before = logits;
  SamplingParams params = params_of(0.0F, 0, 1.0F);
  params.stop_ids = {3, 1, 3, -1, 4, 1'000'000};  // twice, and some outside of the vocabulary
  params.min_tokens = 2;
  EXPECT_EQ(sampler.sample(logits, params, {0}).value(), 2);
  EXPECT_EQ(sampler.sample(logits, params, {1}).value(), 2);
  EXPECT_EQ(sampler.sample(logits, params, {2}).value(), 3);
  EXPECT_EQ(logits, before);
  for (const std::int32_t k : {3}) {
    for (const float p : {1.0F, 0.99F}) {
      SamplingParams drawn = params_of(5.0F, k, p);
      drawn.stop_ids = params.stop_ids;
      drawn.min_tokens = 1000;
      for (std::uint32_t i = 0; i < 300; ++i) {
        const Token token = sampler.sample(logits, drawn, {i}).value();
        ASSERT_TRUE(token == 0 || token == 2);
      }
    }
  }
  params.stop_ids = {0, 1, 2, 3};
  EXPECT_FALSE(sampler.sample(logits, params, {0}).ok());
  EXPECT_EQ(logits, before);
}

TEST(Sampler, AReasoningEndsWithItsBudget) {
  constexpr Token kOpen = 2, kClose = 7;
  const auto next = [](std::vector<Token> output, std::uint32_t budget, Token open) {
    Sampler sampler;
    SamplingParams p = params_of(0, 0, 1);
    p.reasoning_budget = budget;
    p.reasoning_open = open;
    p.reasoning_close = kClose;
    p.min_tokens = 100;
    p.stop_ids = {kClose};
    p.allowed_tokens = {3, 4};
    std::vector<float> logits(10, 0.0F);
    logits[3] = 5.0F;
    const std::vector<float> before = logits;
    const auto n_generated = static_cast<std::uint32_t>(output.size());
    output.insert(output.begin(), {kClose, kOpen});  // the prompt does not count
    const Token token = sampler.sample(logits, p, {n_generated}, {output, 2}).value();
    EXPECT_EQ(logits, before);
    return token;
  };
  EXPECT_EQ(next({}, 0, kNoToken), kClose);
  EXPECT_EQ(next({3}, 2, kNoToken), 3);
  EXPECT_EQ(next({3, 3}, 2, kNoToken), kClose);
  EXPECT_EQ(next({3, kClose}, 2, kNoToken), 3) << "it has ended by itself";
  EXPECT_EQ(next({3, 3, kClose}, 2, kNoToken), 3);
  EXPECT_EQ(next({3, 3, kClose, 3}, 2, kNoToken), 3);
  EXPECT_EQ(next({kOpen, 3}, 2, kOpen), 3);
  EXPECT_EQ(next({kOpen, 3, 3}, 2, kOpen), kClose);
  EXPECT_EQ(next({3, 3, 3}, 2, kOpen), 3) << "there is no reasoning";
  EXPECT_EQ(next({}, 0, kOpen), 3);
  EXPECT_EQ(next({kOpen}, 0, kOpen), kClose);
}

TEST(Sampler, BadLogitsAreAnErrorWithAReason) {
  Sampler sampler;
  for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0U, 15U, 16U, 98U}) {
      std::vector<float> logits = random_floats(99, 1, 2.0F);
      logits[at] = bad;
      for (const SamplingParams& params : {params_of(0.0F, 0, 1.0F), params_of(1.0F, 0, 1.0F),
                                           params_of(1.0F, 5, 1.0F), params_of(1.0F, 0, 0.5F)}) {
        const Result<Token> token = sampler.sample(logits, params, {});
        ASSERT_FALSE(token.ok());
        EXPECT_EQ(token.status().code(), ErrorCode::internal);
        EXPECT_NE(token.status().message().find("NaN"), std::string::npos);
      }
    }
  }
  std::vector<float> nothing(10, -kInf);
  EXPECT_FALSE(sampler.sample(nothing, params_of(1.0F, 0, 1.0F), {}).ok());
  std::vector<float> empty;
  EXPECT_FALSE(sampler.sample(empty, params_of(1.0F, 0, 1.0F), {}).ok());
}

TEST(Sampler, MinusInfinityIsATokenThatNeverComes) {
  Sampler sampler;
  std::vector<float> logits(600, -kInf);
  logits[599] = logits[300] = 0.0F;
  for (const SamplingParams& params : {params_of(1.0F, 0, 1.0F), params_of(1.0F, 100, 1.0F),
                                       params_of(1.0F, 0, 0.9F), params_of(1.0F, 100, 0.9F)}) {
    for (std::uint32_t i = 0; i < 200; ++i) {
      const Token token = sampler.sample(logits, params, {i}).value();
      ASSERT_TRUE(token == 300 || token == 599) << token;
    }
  }
}

TEST(Sampler, ParametersOutOfRangeAreRefused) {
  Sampler sampler;
  std::vector<float> logits = random_floats(10, 1, 2.0F);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const SamplingParams& params :
       {params_of(-1.0F, 0, 1.0F), params_of(nan, 0, 1.0F), params_of(kInf, 0, 1.0F),
        params_of(1.0F, -1, 1.0F), params_of(1.0F, 0, 0.0F), params_of(1.0F, 0, 1.5F),
        params_of(1.0F, 0, nan)}) {
    const Result<Token> token = sampler.sample(logits, params, {});
    ASSERT_FALSE(token.ok());
    EXPECT_EQ(token.status().code(), ErrorCode::invalid_argument);
  }
}

TEST(Sampler, ExtremeTemperaturesAndLogits) {
  Sampler sampler;
  std::vector<float> logits = {-3e38F, 3e38F, 0.0F, 2.9e38F};
  for (std::uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sampler.sample(logits, params_of(1.0F, 0, 1.0F), {i}).value(), 1);
    EXPECT_EQ(sampler.sample(logits, params_of(1e-4F, 3, 0.5F), {i}).value(), 1);
  }
  std::vector<float> flat = random_floats(64, 5, 2.0F);
  std::set<Token> seen;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    seen.insert(sampler.sample(flat, params_of(1e30F, 0, 1.0F), {i}).value());
  }
  EXPECT_EQ(seen.size(), 64U);
}

}  // namespace
}  // namespace baton
