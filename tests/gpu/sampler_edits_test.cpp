// Rows with penalties, bias, bad words, allowed tokens, grammar masks and log probabilities: the
// device against workers/sampling/sampler.h on the same logits. Edits are the same to the bit, so
// greedy tokens and the most probable ones are equal; a drawn token that differs lies within 1e-5
// of the border between shares.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "tests/gpu/sampler_reference.h"
#include "workers/cuda/sampling/sampler.h"
#include "workers/sampling/gpu_edits.h"
#include "workers/sampling/logit_edits.h"
#include "workers/sampling/sampler.h"

namespace baton::cuda {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// A row as the worker sees it.
struct Asked {
  SamplingParams params;
  std::vector<Token> history;
  std::uint32_t n_prompt = 0;
  std::vector<std::uint32_t> grammar;  // empty: none
  Token about = -1;
};

struct Batch {
  int vocab = 0;
  std::vector<float> logits;
  std::deque<Asked> asked;
  std::vector<SampleRow> rows;
  std::vector<std::int32_t> words;

  std::vector<float> row(std::size_t i) const {
    const auto n = static_cast<std::ptrdiff_t>(vocab);
    const auto at = logits.begin() + static_cast<std::ptrdiff_t>(i) * n;
    std::vector<float> one(at, at + n);
    const std::vector<std::uint32_t>& mask = asked[i].grammar;
    for (std::size_t t = 0; !mask.empty() && t < one.size(); ++t) {
      if ((mask[t / 32] >> t % 32 & 1U) == 0) one[t] = kMasked;
    }
    return one;
  }
};

struct Answers {
  std::vector<std::int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
};

Answers run(const Batch& b, cudaStream_t stream) {
  const int n = static_cast<int>(b.rows.size());
  Device<float> logits(b.logits);
  Device<SampleRow> rows(b.rows);
  Device<std::int32_t> words(b.words);
  Device<std::int32_t> tokens(std::vector<std::int32_t>(b.rows.size(), -77));
  Device<TokenLogprobs> logprobs(std::vector<TokenLogprobs>(b.rows.size()));
  Device<std::byte> workspace(std::max<std::size_t>(sample_workspace_bytes(n, b.vocab), 1));
  sample(logits.get(), b.vocab, rows.get(), n, words.get(), tokens.get(), logprobs.get(),
         workspace.get(), stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<float> after = logits.read();  // compared by bits: some rows hold a NaN
  EXPECT_EQ(std::memcmp(after.data(), b.logits.data(), after.size() * sizeof(float)), 0)
      << "the logits were changed";
  return {tokens.read(), logprobs.read()};
}

/// Each parameter alone (what = 0 .. 9), or mixtures.
Asked random_asked(int what, int vocab, std::mt19937& random) {
  const auto token = [&] { return static_cast<Token>(random() % static_cast<unsigned>(vocab)); };
  const auto wants = [&](int parameter) {
    return what == parameter || (what > 9 && random() % 3 == 0);
  };
  Asked a;
  a.history.resize(2 + random() % 400);
  for (Token& t : a.history) t = static_cast<Token>(random() % 64);
  a.n_prompt = static_cast<std::uint32_t>(random() % a.history.size());
  SamplingParams& p = a.params;
  constexpr float kTemperatures[] = {0.0F, 1.0F, 0.0F, 0.7F};
  p.temperature = kTemperatures[random() % 4];
  p.seed = std::uint64_t{random()} << 32 | random();
  if (random() % 3 == 0) p.top_p = 0.9F;
  if (random() % 4 == 0) p.top_k = 40;
  if (wants(0)) p.min_p = 0.05F;
  if (wants(1)) p.repetition_penalty = random() % 2 == 0 ? 1.3F : 0.8F;
  if (wants(2)) p.frequency_penalty = 0.7F;
  if (wants(3)) p.presence_penalty = -0.4F;
  for (int i = 0; wants(4) && i < 200; ++i) {
    p.bias_tokens.push_back(i % 50 == 0 ? 7 : token());  // one of them often
    p.bias_values.push_back(static_cast<float>(random() % 400) * 0.05F - 10.0F);
  }
  for (int i = 0; wants(5) && i < 50; ++i) p.bad_words.push_back({token()});
  if (wants(5)) p.bad_words.push_back({a.history.back(), token()});
  for (int i = 0; wants(6) && i < 100; ++i) p.allowed_tokens.push_back(token());
  if (wants(7)) p.logprobs = static_cast<std::int32_t>(random() % 21);
  if (wants(8)) {
    a.grammar.resize(static_cast<std::size_t>(vocab + 31) / 32);
    for (std::uint32_t& word : a.grammar) word = random() & random();
  }
  if (wants(9)) {
    p.min_tokens = 1000;
    p.stop_ids = {token(), token()};
  }
  return a;
}

Batch random_batch(int vocab, int n, unsigned seed) {
  std::mt19937 random(seed);
  Batch b;
  b.vocab = vocab;
  b.words.resize(std::size_t{1} << 22U, -1);
  WordArea area{b.words.data(), 3, b.words.size()};
  GpuEdits edits(static_cast<std::uint32_t>(vocab));
  for (int i = 0; i < n; ++i) {
    const auto shape = static_cast<Shape>(random() % 4);  // no huge ones: a penalty would be lost
    std::vector<float> logits = random_logits(vocab, shape, random);
    Asked& a = b.asked.emplace_back(random_asked(i % 16, vocab, random));
    // What is edited and masked must matter.
    for (int t = 0; t < 64 && t < vocab; ++t) logits[static_cast<std::size_t>(t)] += 4.0F;
    b.logits.insert(b.logits.end(), logits.begin(), logits.end());
    SampleRow& s = b.rows.emplace_back();
    s.logits_row = i;
    s.output = i;
    if (i % 11 == 10) {  // a token of a prompt
      a = {};
      a.about = static_cast<Token>(random() % static_cast<unsigned>(vocab));
      a.params.logprobs = static_cast<std::int32_t>(random() % 21);
      s.about = a.about;
    }
    const SamplingParams& p = a.params;
    s.temperature = p.temperature;
    s.top_p = p.top_p;
    s.top_k = p.top_k;
    s.min_p = p.min_p;
    s.n_generated = static_cast<std::uint32_t>(a.history.size()) - a.n_prompt;
    s.seed = p.seed;
    s.logprobs = p.logprobs >= 0 ? i : -1;
    s.n_top = std::max(p.logprobs, 0);
    if (!a.grammar.empty()) {
      s.grammar = static_cast<std::int32_t>(area.used);
      std::copy(a.grammar.begin(), a.grammar.end(), area.words + area.used);
      area.used += a.grammar.size();
    }
    if (a.about >= 0) continue;
    BatchRow row;
    row.sequence = static_cast<SequenceId>(i);
    row.sampling = &p;
    row.history = a.history;
    row.n_prompt = a.n_prompt;
    row.n_generated = s.n_generated;
    edits.begin_step();
    EXPECT_TRUE(edits.write(row, area, s));
  }
  b.words.resize(area.used);
  return b;
}

void check_logprobs(Sampler& cpu, const Batch& b, std::size_t i, std::int32_t token,
                    const TokenLogprobs& got) {
  Logprobs want;
  cpu.log_probabilities(b.row(i), token, b.asked[i].params.logprobs, 0, want);
  ASSERT_EQ(static_cast<std::size_t>(got.n_top), want.top_tokens.size()) << "row " << i;
  EXPECT_NEAR(std::max(kLowestLogprob, got.logprob), want.logprobs[0], 2e-5) << "row " << i;
  for (std::size_t t = 0; t < want.top_tokens.size(); ++t) {
    EXPECT_EQ(got.tokens[t], want.top_tokens[t]) << "row " << i << " place " << t;
    EXPECT_NEAR(got.logprobs[t], want.top_logprobs[t], 2e-5) << "row " << i << " place " << t;
  }
}

class SamplerEditsTest : public DeviceTest {};

TEST_F(SamplerEditsTest, TheHostAndTheDeviceAgree) {
  Sampler cpu;
  LogitEdits edits;
  constexpr std::pair<int, int> kSizes[] = {
      {1024, 1600}, {128256, 320}, {250001, 48}, {500003, 32}};
  for (const auto& [vocab, n] : kSizes) {
    const Batch b = random_batch(vocab, n, static_cast<unsigned>(vocab));
    const Answers got = run(b, stream_);
    int differ = 0;
    int wrong = 0;
    for (std::size_t i = 0; i < b.rows.size(); ++i) {
      const Asked& a = b.asked[i];
      const SampleRow& s = b.rows[i];
      if (a.about >= 0) {
        EXPECT_EQ(got.tokens[i], -77);
        check_logprobs(cpu, b, i, a.about, got.logprobs[i]);
        continue;
      }
      std::vector<float> logits = b.row(i);
      const auto want = cpu.sample(logits, a.params, {s.n_generated}, {a.history, a.n_prompt});
      const Token token = want.ok() ? want.value() : kNoSample;
      if (got.tokens[i] != token) {
        ++differ;
        edits.apply(logits, a.params, s.n_generated, a.history, a.n_prompt);
        const bool greedy = a.params.temperature == 0.0F || token == kNoSample;
        if (greedy || got.tokens[i] < 0 || distance(logits, s, got.tokens[i]) >= 1e-5) {
          if (++wrong <= 5) {
            ADD_FAILURE() << "vocab " << vocab << " row " << i << " (kind " << i % 16 << "): token "
                          << got.tokens[i] << ", the CPU has " << token << ", temperature "
                          << a.params.temperature;
          }
          continue;
        }
      }
      if (got.tokens[i] >= 0 && a.params.logprobs >= 0) {
        check_logprobs(cpu, b, i, got.tokens[i], got.logprobs[i]);
      }
    }
    std::printf("  vocab %6d: %d rows, %d not the CPU's token, %d wrong\n", vocab, n, differ,
                wrong);
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(differ, 2 + n / 20);
  }
}

TEST_F(SamplerEditsTest, TheSameOnEveryRun) {
  const Batch b = random_batch(128256, 64, 3);
  const Answers first = run(b, stream_);
  for (int again = 0; again < 3; ++again) {
    const Answers next = run(b, stream_);
    EXPECT_EQ(next.tokens, first.tokens);
    EXPECT_EQ(std::memcmp(next.logprobs.data(), first.logprobs.data(),
                          first.logprobs.size() * sizeof(TokenLogprobs)),
              0);
  }
}

/// What cannot be told is said, and a NaN that is masked does no harm to the draw.
TEST_F(SamplerEditsTest, RowsWithoutASoftmax) {
  constexpr int kVocab = 4096;
  std::mt19937 random(4);
  Batch b;
  b.vocab = kVocab;
  b.words = {100};
  for (int i = 0; i < 3; ++i) {
    auto logits = random_logits(kVocab, Shape::flat, random);
    if (i == 0) logits[100] = std::nanf("");
    if (i == 1) logits[100] = std::numeric_limits<float>::infinity();
    if (i == 2) std::fill(logits.begin(), logits.end(), kMasked);
    b.logits.insert(b.logits.end(), logits.begin(), logits.end());
    b.asked.emplace_back();
    SampleRow& s = b.rows.emplace_back();
    s.logits_row = i;
    s.output = i;
    s.logprobs = i;
    s.n_top = 3;
    s.n_masked = i == 1 ? 0 : 1;
  }
  const Answers got = run(b, stream_);
  const auto begin = b.logits.begin();
  const auto best = std::max_element(begin, begin + kVocab, [](float x, float y) {
    return (std::isnan(x) ? kMasked : x) < (std::isnan(y) ? kMasked : y);
  });
  EXPECT_EQ(got.tokens, (std::vector<std::int32_t>{static_cast<std::int32_t>(best - begin),
                                                   kNoSample, kNoSample}));
  for (const TokenLogprobs& told : got.logprobs) EXPECT_EQ(told.n_top, -1);
}

TEST_F(SamplerEditsTest, Bench) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  constexpr int kRows = 256;
  constexpr int kVocab = 128256;
  std::mt19937 random(5);
  auto logits = random_logits(kVocab, Shape::peaked, random);
  const std::size_t n = logits.size();
  logits.resize(kRows * n);
  for (std::size_t i = n; i < logits.size(); ++i) logits[i] = logits[(i * 7919) % n];
  std::vector<std::int32_t> words(kVocab, -1);  // all allowed
  const auto lists = static_cast<std::int32_t>(words.size());
  for (std::int32_t t = 0; t < 2000; ++t) {
    words.push_back(t * 31);
    words.push_back(t % 4);
  }
  Device<float> device(logits);
  Device<std::int32_t> device_words(words);
  Device<std::int32_t> tokens(kRows);
  Device<TokenLogprobs> logprobs(kRows);
  std::printf("  vocab %d, greedy: us for 1 / 32 / 256 rows\n", kVocab);
  const std::pair<const char*, std::function<void(SampleRow&, int)>> settings[] = {
      {"nothing", [](SampleRow&, int) {}},
      {"2,000 seen tokens",
       [&](SampleRow& s, int) {
         s.first_seen = lists;
         s.n_seen = 2000;
         s.repetition_penalty = 1.1F;
       }},
      {"a bit mask", [](SampleRow& s, int) { s.allowed = 0; }},
      {"log probability", [](SampleRow& s, int i) { s.logprobs = i; }},
      {"5 most probable",
       [](SampleRow& s, int i) {
         s.logprobs = i;
         s.n_top = 5;
       }},
      {"20 most probable", [](SampleRow& s, int i) {
         s.logprobs = i;
         s.n_top = 20;
       }}};
  for (const auto& [name, set] : settings) {
    std::vector<SampleRow> rows(kRows);
    for (int i = 0; i < kRows; ++i) {
      SampleRow& s = rows[static_cast<std::size_t>(i)];
      s.logits_row = i;
      s.output = i;
      set(s, i);
    }
    Device<SampleRow> device_rows(rows);
    std::printf("  %-28s", name);
    for (const int count : {1, 32, kRows}) {
      std::printf(" %8.1f", graph_us(10, [&](int) {
                    sample(device.get(), kVocab, device_rows.get(), count, device_words.get(),
                           tokens.get(), logprobs.get(), nullptr, stream_);
                  }));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace baton::cuda
