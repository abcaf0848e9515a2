// Vectors against those of transformers (tests/golden/make_pooling.py), and their bits.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cpu_torch/golden_file.h"
#include "tests/cpu_torch/model_fixture.h"

namespace baton::test {
namespace {

using GoldenJson = nlohmann::json;

GoldenJson golden() { return GoldenJson::parse(read_file(golden_folder() + "/pooling.json")); }

/// What the final norm gives for the last token, computed in chunks of the given size.
std::vector<float> hidden_of(LlamaModel& model, const std::vector<Token>& tokens,
                             std::size_t chunk) {
  TestPool pool(model, static_cast<std::uint32_t>(tokens.size() / 16 + 4), 16, 1);
  const std::vector<BlockId> table = pool.table(tokens.size());
  LogitsView view;
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const std::size_t n = std::min(chunk, tokens.size() - at);
    const bool last = at + n == tokens.size();
    const StepRow row{{tokens.data() + at, n},
                      static_cast<std::int64_t>(at),
                      table,
                      last ? LogitsWanted::last : LogitsWanted::none,
                      last};
    EXPECT_TRUE(model.check({&row, 1}, pool.view()).ok());
    view = model.forward({&row, 1}, pool.view());
  }
  EXPECT_EQ(view.data, nullptr) << "nobody wants logits";
  const auto hidden = view.hidden(0);
  return {hidden.begin(), hidden.end()};
}

TEST(Pooling, HiddenStatesAreThoseOfTransformers) {
  const auto model = load_golden("qwen3_embedding");
  const GoldenJson all = golden();
  double worst = 0;
  for (const GoldenJson& one : all.at("embeddings")) {
    const auto hidden = hidden_of(*model, one.at("ids").get<std::vector<Token>>(), 64);
    const auto wanted = one.at("vector").get<std::vector<double>>();
    ASSERT_EQ(hidden.size(), wanted.size());
    double squares = 0;
    for (const float value : hidden) squares += double{value} * value;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      worst = std::max(worst, std::abs(hidden[i] / std::sqrt(squares) - wanted[i]));
    }
  }
  EXPECT_LT(worst, 5e-4);
  std::printf("worst difference %g\n", worst);
}

TEST(Pooling, LogitsOfYesAndNoAreThoseOfTransformers) {
  const auto model = load_golden("qwen3_embedding");
  const GoldenJson all = golden();
  for (const GoldenJson& one : all.at("pairs")) {
    const auto ids = one.at("ids").get<std::vector<Token>>();
    const Logits logits = logits_of(*model, ids, 64);
    const double no = logits.back()[all.at("no").get<std::size_t>()];
    const double yes = logits.back()[all.at("yes").get<std::size_t>()];
    EXPECT_NEAR(1 / (1 + std::exp(no - yes)), one.at("score").get<double>(), 5e-4);
  }
}

TEST(Pooling, BitsDoNotDependOnHowAPromptIsCutOrWhoIsBeside) {
  for (const char* name : {"qwen3_embedding", "qwen3_moe", "gemma3", "cohere2"}) {
    const auto model = load_golden(name);
    const std::vector<Token> tokens = random_tokens(90, model->config().vocab, 5);
    const std::vector<float> whole = hidden_of(*model, tokens, 90);
    for (const std::size_t chunk : {1U, 7U, 64U, 89U}) {
      EXPECT_TRUE(same_bits(whole, hidden_of(*model, tokens, chunk))) << name << " " << chunk;
    }
    // Beside a row that wants logits, and which gets those that it gets alone.
    const std::vector<Token> other = random_tokens(20, model->config().vocab, 6);
    const Logits alone = logits_of(*model, other, 20);
    TestPool pool(*model, 16, 16, 2);
    const auto first = pool.table(tokens.size());
    const auto second = pool.table(other.size());
    const StepRow rows[] = {{other, 0, second, LogitsWanted::last, false},
                            {tokens, 0, first, LogitsWanted::last, true}};
    const LogitsView view = model->forward(rows, pool.view());
    const auto hidden = view.hidden(1);
    EXPECT_TRUE(same_bits(whole, {hidden.begin(), hidden.end()})) << name;
    const auto logits = view.row(0);
    EXPECT_TRUE(same_bits(alone.back(), {logits.begin(), logits.end()})) << name;
  }
}

}  // namespace
}  // namespace baton::test
