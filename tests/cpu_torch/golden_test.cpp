// Logits against those of `transformers` in fp32 (tests/golden/make_logits.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "tests/cpu_torch/golden_file.h"
#include "tests/cpu_torch/model_fixture.h"
#include "workers/model/safetensors.h"

namespace baton::test {
namespace {

struct Golden {
  std::vector<Token> tokens;
  std::vector<std::int32_t> positions;
  std::vector<float> logits;  // [positions, vocab]
  std::uint32_t crc32 = 0;    // of the model file
  double largest = 0;
};

Golden read_golden(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  const auto tensors = parse_safetensors(bytes.data(), bytes.size(), path);
  Golden golden{values<Token>(tensors.at("tokens")), values<std::int32_t>(tensors.at("positions")),
                values<float>(tensors.at("logits")),
                static_cast<std::uint32_t>(values<std::int64_t>(tensors.at("crc32")).at(0)), 0};
  for (const float x : golden.logits)
    golden.largest = std::max(golden.largest, std::abs(double{x}));
  return golden;
}

/// Log probabilities of a line of logits.
std::vector<double> log_probabilities(const float* logits, std::size_t vocab) {
  const double largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - largest);
  std::vector<double> all;
  for (std::size_t v = 0; v < vocab; ++v) all.push_back(logits[v] - largest - std::log(sum));
  return all;
}

/// Every kept logit within 1e-4 of the largest one, log probabilities within 5e-4, and the same
/// likeliest token.
void expect_golden(LlamaModel& model, const Golden& golden, std::size_t chunk) {
  const Logits got = logits_of(model, golden.tokens, chunk);
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  ASSERT_EQ(got.size(), golden.tokens.size());
  ASSERT_EQ(golden.logits.size(), golden.positions.size() * vocab);
  ASSERT_GT(golden.largest, 1.0);
  double worst = 0;
  for (std::size_t i = 0; i < golden.positions.size(); ++i) {
    const std::vector<float>& row = got[static_cast<std::size_t>(golden.positions[i])];
    for (std::size_t v = 0; v < vocab; ++v) {
      const double error = std::abs(double{row[v]} - double{golden.logits[i * vocab + v]});
      ASSERT_LE(error, 1e-4 * golden.largest)
          << "position " << golden.positions[i] << " token " << v;
      worst = std::max(worst, error);
    }
    const float* wanted = golden.logits.data() + i * vocab;
    const std::vector<double> a = log_probabilities(row.data(), vocab);
    const std::vector<double> b = log_probabilities(wanted, vocab);
    for (std::size_t v = 0; v < vocab; ++v) ASSERT_NEAR(a[v], b[v], 5e-4);
    ASSERT_EQ(std::max_element(row.begin(), row.end()) - row.begin(),
              std::max_element(wanted, wanted + vocab) - wanted);
  }
  testing::Test::RecordProperty("worst", std::to_string(worst / golden.largest));
}

TEST(GoldenLogits, NoModelIsForgotten) {
  std::set<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder() + "/models")) {
    folders.insert(entry.path().filename());
  }
  const std::vector<std::string> names = all_models();
  std::set<std::string> known(names.begin(), names.end());
  known.insert("qwen3_embedding");  // pooling_test.cpp
  EXPECT_EQ(known, folders);
}

TEST(GoldenLogits, RandomModelsMatchTransformers) {
  for (const std::string& name : all_models()) {
    SCOPED_TRACE(name);
    const Golden golden = read_golden(golden_folder() + "/logits_" + name + ".safetensors");
    for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
      if (!cpu::isa_supported(isa)) continue;
      const auto model = load_golden(name, 2, isa);
      for (const std::size_t chunk : {std::size_t{150}, std::size_t{1}, std::size_t{37}}) {
        expect_golden(*model, golden, chunk);
      }
    }
  }
}

TEST(GoldenLogits, DemoModelMatchesTransformers) {
  const std::string folder = golden_folder() + "/../../demo/model";
  const std::string logits = golden_folder() + "/logits_demo.safetensors";
  if (!std::filesystem::exists(folder + "/model.safetensors")) {
    GTEST_SKIP() << folder << "/model.safetensors is not there yet";
  }
  // With the model in place its golden file must be too:
  //   make_logits.py --model demo/model --out tests/golden/logits_demo.safetensors
  ASSERT_TRUE(std::filesystem::exists(logits)) << logits << " is missing; see make_logits.py";
  const Golden golden = read_golden(logits);
  ASSERT_EQ(golden.crc32, crc32_of(read_file(folder + "/model.safetensors")))
      << logits << " was made from other weights: run make_logits.py for the model again";
  const auto model = load(folder, 2);
  expect_golden(*model, golden, 150);
  expect_golden(*model, golden, 1);
}

/// Rows far behind the beginning of one long prompt. 8,192 tokens in the ordinary run; all 32,000
/// (a minute) with BATON_LONG=1.
TEST(GoldenLogits, ALongPromptMatchesTransformers) {
  const std::string folder = golden_folder() + "/../../demo/model";
  const Golden golden = read_golden(golden_folder() + "/logits_demo_long.safetensors");
  ASSERT_EQ(golden.crc32, crc32_of(read_file(folder + "/model.safetensors")))
      << "made from other weights: see --long in make_logits.py";
  ASSERT_EQ(golden.tokens.size(), 32'000U);
  const std::size_t tokens = std::getenv("BATON_LONG") != nullptr ? golden.tokens.size() : 8192;
  const auto model = load(folder, 2);
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  TestPool pool(*model, static_cast<std::uint32_t>(tokens / 16 + 4), 16, 1);
  const std::vector<BlockId> table = pool.table(tokens);
  std::size_t begin = 0, checked = 0;
  for (std::size_t i = 0; i < golden.positions.size(); ++i) {
    const auto end = static_cast<std::size_t>(golden.positions[i]) + 1;
    for (std::size_t n; begin < end && end <= tokens; begin += n) {
      n = std::min<std::size_t>(256, end - begin);
      const bool last = begin + n == end;
      const StepRow row{{golden.tokens.data() + begin, n},
                        static_cast<std::int64_t>(begin),
                        table,
                        last ? LogitsWanted::last : LogitsWanted::none};
      const LogitsView logits = model->forward({&row, 1}, pool.view());
      if (!last) continue;
      ++checked;
      for (std::size_t v = 0; v < vocab; ++v) {
        ASSERT_NEAR(logits.row(0)[v], golden.logits[i * vocab + v], 1e-4 * golden.largest)
            << "position " << end - 1 << " token " << v;
      }
    }
  }
  EXPECT_GE(checked, tokens / 4096);
}

}  // namespace
}  // namespace baton::test
