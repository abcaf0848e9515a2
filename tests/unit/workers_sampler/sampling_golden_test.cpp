// Every sampling parameter against the probabilities that transformers and numpy give
// (tests/golden/sampling.txt, made by make_sampling.py), and log probabilities against a softmax in
// double precision. Fixed seeds: a test that passes passes always.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "workers/sampling/sampler.h"

namespace baton {
namespace {

struct Case {
  std::string name;
  SamplingParams params;
  std::vector<Token> history;
  std::uint32_t n_prompt = 0;
  std::vector<float> logits;
  std::vector<double> probabilities;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

std::vector<Token> ids(const std::string& text) {
  std::vector<Token> out;
  for (const std::string& part : split(text, ',')) out.push_back(std::stoi(part));
  return out;
}

/// "8;9" and "3,4;5": lists of lists.
std::vector<std::vector<Token>> lists(const std::string& text) {
  std::vector<std::vector<Token>> out;
  for (const std::string& part : split(text, ';')) out.push_back(ids(part));
  return out;
}

std::vector<Token> flat(const std::string& text) {
  std::vector<Token> out;
  for (const std::vector<Token>& list : lists(text)) out.push_back(list.at(0));
  return out;
}

void set(SamplingParams& p, const std::string& key, const std::string& value) {
  if (key == "temperature")
    p.temperature = std::stof(value);
  else if (key == "top_k")
    p.top_k = std::stoi(value);
  else if (key == "top_p")
    p.top_p = std::stof(value);
  else if (key == "min_p")
    p.min_p = std::stof(value);
  else if (key == "typical_p")
    p.typical_p = std::stof(value);
  else if (key == "repetition")
    p.repetition_penalty = std::stof(value);
  else if (key == "frequency")
    p.frequency_penalty = std::stof(value);
  else if (key == "presence")
    p.presence_penalty = std::stof(value);
  else if (key == "min_tokens")
    p.min_tokens = static_cast<std::uint32_t>(std::stoi(value));
  else if (key == "stop")
    p.stop_ids = flat(value);
  else if (key == "allowed")
    p.allowed_tokens = flat(value);
  else if (key == "bad_words")
    p.bad_words = lists(value);
  else if (key == "bias") {
    for (const std::string& pair : split(value, ';')) {
      const auto parts = split(pair, ',');
      p.bias_tokens.push_back(std::stoi(parts.at(0)));
      p.bias_values.push_back(std::stof(parts.at(1)));
    }
  } else {
    FAIL() << "unknown parameter " << key;
  }
}

std::vector<Case> read_cases() {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(source != nullptr ? source : ".") + "/tests/golden/sampling.txt");
  std::vector<Case> cases;
  std::string line;
  std::getline(file, line);  // who made it
  while (std::getline(file, line)) {
    Case& c = cases.emplace_back();
    c.name = line;
    std::getline(file, line);
    std::istringstream words(line);
    for (std::string key, value; words >> key >> value;) set(c.params, key, value);
    std::getline(file, line);
    const std::size_t bar = line.find('|');
    c.history = ids(line.substr(0, bar));
    c.n_prompt = static_cast<std::uint32_t>(c.history.size());
    for (const Token id : ids(line.substr(bar + 1))) c.history.push_back(id);
    std::getline(file, line);
    std::istringstream logits(line);
    for (float x = 0; logits >> x;) c.logits.push_back(x);
    std::getline(file, line);
    std::istringstream probabilities(line);
    for (double x = 0; probabilities >> x;) c.probabilities.push_back(x);
  }
  return cases;
}

/// 8,000 draws that differ in the seed alone: nothing that the reference forbids, and chi-square
/// within about six sigmas.
void expect_draws(const Case& c) {
  constexpr int kDraws = 8'000;
  Sampler sampler;
  std::vector<float> logits = c.logits;
  std::vector<int> counts(c.logits.size(), 0);
  SamplingParams params = c.params;
  const SampleKey key{static_cast<std::uint32_t>(c.history.size()) - c.n_prompt};
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL + 7;
    const Result<Token> token = sampler.sample(logits, params, key, {c.history, c.n_prompt});
    ASSERT_TRUE(token.ok()) << token.status().message();
    const auto at = static_cast<std::size_t>(token.value());
    ASSERT_GT(c.probabilities[at], 0.0) << "token " << at;
    ++counts[at];
  }
  EXPECT_EQ(logits, c.logits) << "the row was not put back";
  double chi = 0;
  int classes = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = c.probabilities[i] * kDraws;
    if (expected == 0) continue;
    if (expected >= 5) {
      EXPECT_GT(counts[i], 0) << "token " << i << " never came";
    }
    chi += (counts[i] - expected) * (counts[i] - expected) / std::max(expected, 5.0);
    ++classes;
  }
  const double freedom = std::max(1, classes - 1);
  EXPECT_LT(chi, freedom + 6 * std::sqrt(2 * freedom) + 6) << classes << " classes";
}

TEST(SamplingGolden, DrawsFollowTheReferenceOfEveryParameter) {
  const std::vector<Case> cases = read_cases();
  ASSERT_GE(cases.size(), 24U);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_EQ(c.logits.size(), 24U);
    ASSERT_EQ(c.probabilities.size(), 24U);
    expect_draws(c);
  }
}

TEST(SamplingGolden, GreedyTakesTheMostProbableAfterTheEdits) {
  Sampler sampler;
  for (Case& c : read_cases()) {
    SCOPED_TRACE(c.name);
    // typical_p may cut the most probable one; greedy does not ask it.
    if (c.params.typical_p < 1.0F) continue;
    c.params.temperature = 0;
    const SampleKey key{static_cast<std::uint32_t>(c.history.size()) - c.n_prompt};
    const auto best = std::max_element(c.probabilities.begin(), c.probabilities.end());
    EXPECT_EQ(sampler.sample(c.logits, c.params, key, {c.history, c.n_prompt}).value(),
              best - c.probabilities.begin());
  }
}

TEST(LogitEdits, IdsOutsideOfTheRowAreNoHarm) {
  Sampler sampler;
  std::vector<float> logits = {0.5F, 0.25F, 0.125F};
  SamplingParams p;
  p.temperature = 0;
  p.bias_tokens = {-1, 3, 1'000'000};
  p.bias_values = {9, 9, 9};
  p.bad_words = {{7, 5}, {3}, {}};
  p.repetition_penalty = 1.5F;
  const std::vector<Token> history = {-1, 3, 99, 7};
  EXPECT_EQ(sampler.sample(logits, p, {2}, {history, 2}).value(), 0);
  EXPECT_EQ(logits, (std::vector<float>{0.5F, 0.25F, 0.125F}));
  p.allowed_tokens = {55};
  EXPECT_FALSE(sampler.sample(logits, p, {2}, {history, 2}).ok()) << "nothing is left to draw";
  EXPECT_EQ(logits, (std::vector<float>{0.5F, 0.25F, 0.125F}));
}

TEST(LogProbabilities, AreTheSoftmaxOfTheRowWhateverTheParameters) {
  const std::vector<Case> cases = read_cases();
  Sampler sampler;
  for (const Case& c : cases) {
    double total = 0;
    for (const float x : c.logits) total += std::exp(static_cast<double>(x));
    Logprobs out;
    for (Token id = 0; id < 24; ++id) {
      sampler.log_probabilities(c.logits, id, id % 6, static_cast<std::uint32_t>(100 + id), out);
    }
    ASSERT_TRUE(out.agrees());
    LogprobReader reader(out);
    for (Token id = 0; id < 24; ++id) {
      LogprobReader::Entry entry;
      ASSERT_TRUE(reader.take(static_cast<std::uint32_t>(100 + id), entry));
      const double wanted =
          static_cast<double>(c.logits[static_cast<std::size_t>(id)]) - std::log(total);
      EXPECT_NEAR(entry.logprob, wanted, 1e-5);
      ASSERT_EQ(entry.top_tokens.size(), static_cast<std::size_t>(id % 6));
      for (std::size_t i = 0; i < entry.top_tokens.size(); ++i) {
        const float logit = c.logits[static_cast<std::size_t>(entry.top_tokens[i])];
        EXPECT_NEAR(entry.top_logprobs[i], static_cast<double>(logit) - std::log(total), 1e-5);
        const auto above = std::count_if(c.logits.begin(), c.logits.end(),
                                         [&](float other) { return other > logit; });
        EXPECT_EQ(above, static_cast<std::ptrdiff_t>(i)) << "best first";
      }
    }
    EXPECT_TRUE(reader.done());
  }
}

TEST(LogProbabilities, OfMaskedTokensAndBrokenRowsAreFinite) {
  Sampler sampler;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Logprobs out;
  sampler.log_probabilities(std::vector<float>{0.0F, -kInf, 0.0F}, 1, 3, 0, out);
  EXPECT_EQ(out.logprobs[0], kLowestLogprob);
  EXPECT_EQ(out.counts[0], 2U) << "a masked token is no alternative";
  EXPECT_NEAR(out.top_logprobs[0], std::log(0.5), 1e-6);
  sampler.log_probabilities(std::vector<float>{0.0F, kInf, 0.0F}, 1, 3, 1, out);
  EXPECT_EQ(out.logprobs[1], kLowestLogprob);
  EXPECT_EQ(out.counts[1], 0U);
  EXPECT_TRUE(out.agrees());
}

}  // namespace
}  // namespace baton
