// `activations: int8`: the bits of a token do not depend on anything but the tokens before it, as
// with exact ones; numbers are near exact ones; models without whole numbers do not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/cpu_torch/model_fixture.h"

namespace baton::test {
namespace {

constexpr std::size_t kSomeTokens = 96;

std::unique_ptr<LlamaModel> load_rounded(const std::string& name, int threads = 1,
                                         cpu::Isa isa = cpu::Isa::best) {
  LoadOptions options;
  options.threads = threads;
  options.isa = isa;
  options.activations = Activations::int8;
  return LlamaModel::load(golden_folder() + "/models/" + name, options);
}

void expect_equal(const Logits& got, const Logits& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(same_bits(got[i], want[i])) << "position " << i;
}

std::vector<double> log_probabilities_of(const std::vector<float>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float each : logits) sum += std::exp(each - most);
  std::vector<double> found;
  for (const float each : logits) found.push_back(each - most - std::log(sum));
  return found;
}

std::ptrdiff_t likeliest(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

class RoundedActivations : public testing::TestWithParam<std::string> {};

TEST_P(RoundedActivations, ChunksThreadsBlocksAndVariantKeepTheBits) {
  const auto reference = load_rounded(GetParam(), 1, cpu::Isa::avx2);
  const std::vector<Token> tokens = random_tokens(kSomeTokens, reference->config().vocab, 3);
  const Logits want = logits_of(*reference, tokens, 1);  // token by token: decode
  ASSERT_FALSE(same_bits(want[3], want[4]));
  for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
    if (!cpu::isa_supported(isa)) continue;
    for (const int threads : {1, 3}) {
      const auto model = load_rounded(GetParam(), threads, isa);
      SCOPED_TRACE(std::string(model->isa_name()) + ", threads " + std::to_string(threads));
      for (const std::size_t chunk : {1U, 2U, 3U, 7U, 17U, 50U, 96U}) {
        SCOPED_TRACE("chunk " + std::to_string(chunk));
        expect_equal(logits_of(*model, tokens, chunk), want);
      }
      expect_equal(logits_of(*model, tokens, 40, 5, 9), want);
    }
  }
}

/// Two sequences beside each other, and each alone.
TEST_P(RoundedActivations, NeighboursKeepTheBits) {
  const auto model = load_rounded(GetParam(), 2);
  const std::vector<Token> a = random_tokens(40, model->config().vocab, 5);
  const std::vector<Token> b = random_tokens(40, model->config().vocab, 6);
  const Logits alone_a = logits_of(*model, a, 40);
  const Logits alone_b = logits_of(*model, b, 40);
  TestPool pool(*model, 20, 16, 4);
  const std::vector<BlockId> table_a = pool.table(40);
  const std::vector<BlockId> table_b = pool.table(40);
  Logits got_a, got_b;
  for (std::size_t at = 0; at < 40; at += 8) {
    const auto position = static_cast<std::int64_t>(at);
    const std::vector<StepRow> rows = {{{a.data() + at, 8}, position, table_a, LogitsWanted::all},
                                       {{b.data() + at, 8}, position, table_b, LogitsWanted::all}};
    const LogitsView logits = model->forward(rows, pool.view());
    ASSERT_EQ(logits.rows, 16);
    for (int r = 0; r < 16; ++r) {
      const std::span<float> row = logits.row(r);
      (r < 8 ? got_a : got_b).emplace_back(row.begin(), row.end());
    }
  }
  expect_equal(got_a, alone_a);
  expect_equal(got_b, alone_b);
}

TEST_P(RoundedActivations, NumbersAreNearExactOnes) {
  const auto exact = load_golden(GetParam(), 2);
  const auto rounded = load_rounded(GetParam(), 2);
  EXPECT_NE(exact->fingerprint(), rounded->fingerprint())
      << "keys and values of one would be taken by the other";
  EXPECT_EQ(exact->weight_bytes(), rounded->weight_bytes());
  const std::vector<Token> tokens = random_tokens(150, exact->config().vocab, 7);
  const Logits want = logits_of(*exact, tokens, 150);
  const Logits got = logits_of(*rounded, tokens, 150);
  double worst = 0, sum = 0;
  std::size_t numbers = 0, same = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    same += likeliest(want[i]) == likeliest(got[i]) ? 1 : 0;
    const std::vector<double> a = log_probabilities_of(want[i]);
    const std::vector<double> b = log_probabilities_of(got[i]);
    for (std::size_t v = 0; v < a.size(); ++v, ++numbers) {
      worst = std::max(worst, std::abs(a[v] - b[v]));
      sum += std::abs(a[v] - b[v]);
    }
  }
  std::printf(
      "%-20s log probabilities: mean %.4f, worst %.4f; likeliest token the same in %zu of %zu\n",
      GetParam().c_str(), sum / static_cast<double>(numbers), worst, same, want.size());
  EXPECT_GT(worst, 0) << "nothing was rounded: it tests nothing";
  // Twice what was found: these small models have large logits.
  EXPECT_LT(sum / static_cast<double>(numbers), 0.04);
  EXPECT_LT(worst, 0.4);
  EXPECT_GE(same, want.size() * 9 / 10);
}

TEST_P(RoundedActivations, SealedWeightsSayHowTheyAreMultiplied) {
  LoadOptions options;
  options.activations = Activations::int8;
  options.seal = true;
  const std::string folder = golden_folder() + "/models/" + GetParam();
  const auto packed = LlamaModel::load(folder, options);
  options.seal = false;
  options.packed = packed->sealed_weights();
  ASSERT_NE(options.packed, nullptr);
  const auto mapped = LlamaModel::load(folder, options);
  EXPECT_EQ(mapped->bytes_read(), 0U);
  const std::vector<Token> tokens = random_tokens(30, packed->config().vocab, 8);
  expect_equal(logits_of(*mapped, tokens, 30), logits_of(*load_rounded(GetParam()), tokens, 7));
}

INSTANTIATE_TEST_SUITE_P(Models, RoundedActivations, testing::ValuesIn(whole_number_models()),
                         [](const auto& test) { return test.param; });

TEST(ExactActivations, AreThoseOfModelsWithoutWholeNumbers) {
  for (const char* const name : {"wide_heads", "mixtral", "gptq_act_order", "fp8_block"}) {
    SCOPED_TRACE(name);
    const auto exact = load_golden(name);
    const auto rounded = load_rounded(name);
    EXPECT_EQ(exact->fingerprint(), rounded->fingerprint());
    const std::vector<Token> tokens = random_tokens(20, exact->config().vocab, 5);
    expect_equal(logits_of(*rounded, tokens, 20), logits_of(*exact, tokens, 20));
  }
}

}  // namespace
}  // namespace baton::test
