// The device's sampler against the CPU's on the same logits, and against fp64: a token is right if
// the uniform number lies within 1e-5 of that token's share of the kept weight.
#include "workers/cuda/sampling/sampler.h"

#include <array>
#include <cstdio>
#include <limits>

#include "tests/gpu/device_fixture.h"
#include "tests/gpu/sampler_reference.h"
#include "workers/sampling/sampler.h"

namespace baton::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Rows of logits with a parameter set each.
struct Batch {
  int vocab;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  std::vector<std::int32_t> masked;

  std::vector<float> row(std::size_t i) const {
    const auto n = static_cast<std::size_t>(vocab);
    const auto at = logits.begin() +
                    static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows[i].logits_row) * n);
    std::vector<float> one(at, at + vocab);
    for (std::int32_t m = 0; m < rows[i].n_masked; ++m) {
      one[static_cast<std::size_t>(masked[static_cast<std::size_t>(rows[i].first_masked + m)])] =
          -kInfinity;
    }
    return one;
  }
};

std::vector<std::int32_t> run(const Batch& b, cudaStream_t stream) {
  Device<float> logits(b.logits);
  Device<SampleRow> rows(b.rows);
  Device<std::int32_t> masked(b.masked.empty() ? std::vector<std::int32_t>(1) : b.masked);
  Device<std::int32_t> tokens(std::vector<std::int32_t>(b.rows.size(), -77));
  const int n = static_cast<int>(b.rows.size());
  Device<std::byte> workspace(std::max<std::size_t>(sample_workspace_bytes(n, b.vocab), 1));
  sample(logits.get(), b.vocab, rows.get(), n, masked.get(), tokens.get(), nullptr, workspace.get(),
         stream);
  return tokens.read();
}

SampleRow random_row(int i, int vocab, std::mt19937& random) {
  constexpr std::array<float, 6> kTemperatures{1.0F, 0.7F, 0.0F, 1.5F, 0.2F, 1e-5F};
  constexpr std::array<float, 6> kTopP{1.0F, 0.9F, 0.5F, 0.999F, 0.99F, 0.01F};
  const std::array<std::int32_t, 6> top_k{0, 0, 50, 1, 700, vocab - 1};
  constexpr std::array<float, 5> kMinP{0.0F, 0.0F, 0.0F, 0.05F, 1.0F};
  SampleRow row;
  row.logits_row = i;
  row.output = i;
  row.temperature = kTemperatures[random() % 6];
  row.top_p = kTopP[random() % 6];
  row.top_k = top_k[random() % 6];
  row.min_p = kMinP[random() % 5];
  row.n_generated = static_cast<std::uint32_t>(random() % 1000);
  row.seed = std::uint64_t{random()} << 32 | random();
  return row;
}

Batch random_batch(int vocab, int rows, unsigned seed) {
  std::mt19937 random(seed);
  Batch b{vocab, {}, {}, {}};
  for (int i = 0; i < rows; ++i) {
    const auto shape = static_cast<Shape>(random() % 5);
    const auto logits = random_logits(vocab, shape, random);
    b.logits.insert(b.logits.end(), logits.begin(), logits.end());
    SampleRow row = random_row(i, vocab, random);
    if (random() % 3 == 0) {
      row.first_masked = static_cast<std::int32_t>(b.masked.size());
      row.n_masked = 3;
      for (int m = 0; m < 2; ++m) {
        b.masked.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab)));
      }
      const auto best = std::max_element(logits.begin(), logits.end());
      b.masked.push_back(static_cast<std::int32_t>(best - logits.begin()));
    }
    b.rows.push_back(row);
  }
  return b;
}

/// What workers/sampling/sampler.h draws.
std::int32_t on_cpu(Sampler& sampler, std::vector<float> logits, const SampleRow& p) {
  SamplingParams params;
  params.temperature = p.temperature;
  params.top_p = p.top_p;
  params.top_k = p.top_k;
  params.min_p = p.min_p;
  params.seed = p.seed;
  Result<Token> token = sampler.sample(logits, params, {p.n_generated});
  return token.ok() ? token.value() : kNoSample;
}

class SamplerTest : public DeviceTest {};

TEST_F(SamplerTest, DrawsWhatTheCpuDraws) {
  Sampler cpu;
  constexpr std::pair<int, int> kSizes[] = {{517, 1500},   {4096, 400},   {32000, 240},
                                            {128256, 120}, {151936, 100}, {250001, 40},
                                            {500003, 12}};  // more than shared memory holds
  for (const auto& [vocab, rows] : kSizes) {
    const Batch b = random_batch(vocab, rows, static_cast<unsigned>(vocab));
    const auto tokens = run(b, stream_);
    int differ = 0;
    int wrong = 0;
    for (std::size_t i = 0; i < b.rows.size(); ++i) {
      const SampleRow& p = b.rows[i];
      const auto logits = b.row(i);
      if (on_cpu(cpu, logits, p) == tokens[i]) continue;
      ++differ;
      const bool greedy = p.temperature < 1e-5F || p.top_k == 1;
      const auto best = std::max_element(logits.begin(), logits.end());
      const bool right =
          greedy ? tokens[i] == best - logits.begin() : distance(logits, p, tokens[i]) < 1e-5;
      if (!right && ++wrong <= 5) {
        ADD_FAILURE() << "vocab " << vocab << " row " << i << ": token " << tokens[i]
                      << ", temperature " << p.temperature << " top_p " << p.top_p << " top_k "
                      << p.top_k << " min_p " << p.min_p << ", off by "
                      << distance(logits, p, tokens[i]);
      }
    }
    std::printf("  vocab %6d: %d rows, %d not the CPU's token, %d wrong\n", vocab, rows, differ,
                wrong);
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(differ, 2 + rows / 20);  // flat rows of many tokens have narrow shares
  }
}

TEST_F(SamplerTest, ADrawDependsOnItsRowAlone) {
  const Batch all = random_batch(32003, 64, 9);
  const auto tokens = run(all, stream_);
  EXPECT_EQ(tokens, run(all, stream_));
  for (const std::size_t i : {0U, 17U, 63U}) {
    Batch one{all.vocab, all.row(i), {all.rows[i]}, {}};
    one.rows[0].logits_row = 0;
    one.rows[0].output = 0;
    one.rows[0].n_masked = 0;
    EXPECT_EQ(run(one, stream_)[0], tokens[i]);
  }
}

TEST_F(SamplerTest, RowsWithoutATokenAndPadding) {
  constexpr int kVocab = 517;
  std::mt19937 random(3);
  Batch b{kVocab, {}, {}, {}};
  for (int i = 0; i < 6; ++i) {
    auto logits = random_logits(kVocab, Shape::flat, random);
    if (i == 1) logits[516] = std::nanf("");
    if (i == 2) logits[0] = kInfinity;
    if (i == 3) std::fill(logits.begin(), logits.end(), -kInfinity);
    if (i == 5) logits[200] = -std::nanf("");
    b.logits.insert(b.logits.end(), logits.begin(), logits.end());
    SampleRow row;
    row.logits_row = i == 4 ? -1 : i;
    row.output = i;
    row.temperature = i == 5 ? 1.0F : 0.0F;
    b.rows.push_back(row);
  }
  const auto best = std::max_element(b.logits.begin(), b.logits.begin() + kVocab);
  const auto first = static_cast<std::int32_t>(best - b.logits.begin());
  const std::vector<std::int32_t> want{first, kNoSample, kNoSample, kNoSample, -77, kNoSample};
  EXPECT_EQ(run(b, stream_), want);
}

TEST_F(SamplerTest, DrawsFollowTheDistribution) {
  constexpr int kDraws = 20000;
  const std::vector<float> logits{0.0F, 1.0F, -1.0F, 2.0F, 0.5F, -kInfinity, 1.5F, 0.25F};
  Batch b{8, logits, {}, {}};
  for (int i = 0; i < kDraws; ++i) {
    SampleRow row;
    row.output = i;
    row.temperature = 1.0F;
    row.top_k = i % 2 == 0 ? 0 : 7;  // both orders; 7 keeps all
    row.n_generated = static_cast<std::uint32_t>(i);
    row.seed = 42;
    b.rows.push_back(row);
  }
  std::vector<double> seen(8);
  for (const std::int32_t token : run(b, stream_)) seen[static_cast<std::size_t>(token)] += 1;
  double total = 0;
  for (const float v : logits) total += std::exp(static_cast<double>(v));
  double chi_square = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const double want = kDraws * std::exp(static_cast<double>(logits[i])) / total;
    if (want > 0) chi_square += (seen[i] - want) * (seen[i] - want) / want;
  }
  EXPECT_EQ(seen[5], 0);
  EXPECT_LT(chi_square, 22.46);  // 6 degrees of freedom, one in a thousand
  std::printf("  chi-square of %d draws: %.2f\n", kDraws, chi_square);
}

TEST_F(SamplerTest, Bench) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  constexpr int kRows = 256;
  struct Setting {
    const char* name;
    float temperature, top_p;
    std::int32_t top_k;
    float min_p;
  };
  constexpr Setting kSettings[] = {{"greedy", 0.0F, 1.0F, 0, 0.0F},
                                   {"temperature 1", 1.0F, 1.0F, 0, 0.0F},
                                   {"t 0.7, top_p 0.9", 0.7F, 0.9F, 0, 0.0F},
                                   {"t 1, top_p 0.99", 1.0F, 0.99F, 0, 0.0F},
                                   {"t 0.7, top_k 50", 0.7F, 1.0F, 50, 0.0F},
                                   {"t 0.7, top_k 20, top_p 0.9", 0.7F, 0.9F, 20, 0.0F},
                                   {"t 1, min_p 0.1", 1.0F, 1.0F, 0, 0.1F}};
  for (const int vocab : {128256, 151936}) {
    for (const Shape shape : {Shape::peaked, Shape::flat}) {
      std::mt19937 random(5);
      auto logits = random_logits(vocab, shape, random);
      const std::size_t n = logits.size();
      logits.resize(kRows * n);
      for (std::size_t i = n; i < logits.size(); ++i) logits[i] = logits[(i * 7919) % n];
      Device<float> device(logits);
      Device<std::int32_t> masked(1), tokens(kRows);
      std::printf("  vocab %d, %s logits: us for 1 / 32 / 256 rows\n", vocab,
                  shape == Shape::peaked ? "peaked" : "flat");
      for (const Setting& s : kSettings) {
        std::vector<SampleRow> rows(kRows);
        for (int i = 0; i < kRows; ++i) {
          rows[static_cast<std::size_t>(i)] = {
              i, i, s.temperature, s.top_p, s.top_k, s.min_p, 0, static_cast<std::uint32_t>(i), 7};
        }
        Device<SampleRow> device_rows(rows);
        std::printf("  %-28s", s.name);
        for (const int count : {1, 32, kRows}) {
          std::printf(" %8.1f", graph_us(10, [&](int) {
                        sample(device.get(), vocab, device_rows.get(), count, masked.get(),
                               tokens.get(), nullptr, nullptr, stream_);
                      }));
        }
        std::printf("\n");
      }
    }
  }
}

}  // namespace
}  // namespace baton::cuda
