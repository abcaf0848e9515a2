// What a GPU's sampler is told: a plain reading of the lists changes a row as LogitEdits does, to
// the bit. And what it tells: the step's output, in order.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "workers/sampling/gpu_edits.h"
#include "workers/sampling/gpu_results.h"
#include "workers/sampling/logit_edits.h"

namespace baton {
namespace {

constexpr std::uint32_t kVocab = 517;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// As the kernel does it (workers/cuda/sampling/sampler.cu), one token after another.
std::vector<float> read_lists(std::vector<float> logits, const cuda::SampleRow& s,
                              const std::vector<std::int32_t>& words) {
  const auto list = [&](std::int32_t first) { return words.data() + first; };
  const auto* biases = reinterpret_cast<const cuda::LogitBias*>(list(s.first_bias));
  for (std::int32_t i = 0; i < s.n_biases; ++i) {
    if (i > 0) {
      EXPECT_LE(biases[i - 1].token, biases[i].token);
    }
    logits[static_cast<std::size_t>(biases[i].token)] += biases[i].value;
  }
  const auto* seen = reinterpret_cast<const cuda::SeenToken*>(list(s.first_seen));
  for (std::int32_t i = 0; i < s.n_seen; ++i) {
    if (i > 0) {
      EXPECT_LT(seen[i - 1].token, seen[i].token);
    }
    float& value = logits[static_cast<std::size_t>(seen[i].token)];
    value = value > 0 ? value / s.repetition_penalty : value * s.repetition_penalty;
    value -= s.frequency_penalty * static_cast<float>(seen[i].times);
    if (seen[i].times > 0) value -= s.presence_penalty;
  }
  for (std::int32_t i = 0; i < s.n_masked; ++i) {
    logits[static_cast<std::size_t>(words[static_cast<std::size_t>(s.first_masked + i)])] = kMasked;
  }
  for (std::uint32_t t = 0; s.allowed >= 0 && t < kVocab; ++t) {
    const auto word =
        static_cast<std::uint32_t>(words[static_cast<std::size_t>(s.allowed) + t / 32]);
    if ((word >> t % 32 & 1U) == 0) logits[t] = kMasked;
  }
  return logits;
}

SamplingParams random_params(std::mt19937& random) {
  const auto token = [&] { return static_cast<Token>(random() % kVocab); };
  SamplingParams p;
  if (random() % 2 == 0) p.repetition_penalty = 1.3F;
  if (random() % 2 == 0) p.frequency_penalty = 0.7F;
  if (random() % 2 == 0) p.presence_penalty = -0.4F;
  for (unsigned i = random() % 9; i > 0; --i) {
    p.bias_tokens.push_back(random() % 3 == 0 ? 7 : token());  // some twice
    p.bias_values.push_back(static_cast<float>(random() % 100) * 0.37F - 18.0F);
  }
  if (random() % 3 == 0) {
    for (int i = 0; i < 40; ++i) p.allowed_tokens.push_back(token());
  }
  for (unsigned i = random() % 4; i > 0; --i) p.bad_words.push_back({token()});
  if (random() % 2 == 0) p.bad_words.push_back({3, 4, 7});
  if (random() % 4 == 0) {
    p.reasoning_budget = static_cast<std::uint32_t>(random() % 8);
    p.reasoning_close = 25;
    p.reasoning_open = random() % 2 == 0 ? kNoToken : 3;
  }
  p.stop_ids = {1, token()};
  p.min_tokens = random() % 2 == 0 ? 10 : 0;
  return p;
}

struct Words {
  std::vector<std::int32_t> words = std::vector<std::int32_t>(1 << 16, -1);
  WordArea area{words.data(), 11, words.size()};
};

TEST(GpuEdits, TheListsSayWhatLogitEditsDo) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  GpuEdits lists(kVocab);
  LogitEdits edits;
  for (int sequence = 0; sequence < 300; ++sequence) {
    const SamplingParams params = random_params(random);
    std::vector<Token> tokens(random() % 60 + 1);
    for (Token& t : tokens) t = static_cast<Token>(random() % 30);
    const auto n_prompt = static_cast<std::uint32_t>(random() % (tokens.size() + 1));
    for (int step = 0; step < 12; ++step) {
      std::vector<float> logits(kVocab);
      for (float& v : logits) v = normal(random);
      BatchRow row;
      row.sequence = static_cast<SequenceId>(sequence / 2);  // ids meet again, with other content
      row.logits = LogitsWanted::last;
      row.sampling = &params;
      row.n_prompt = n_prompt;
      row.n_generated = static_cast<std::uint32_t>(tokens.size()) - n_prompt;
      if (row.needs_history()) row.history = tokens;
      Words w;
      cuda::SampleRow s;
      lists.begin_step();
      ASSERT_TRUE(lists.write(row, w.area, s));
      const std::vector<float> got = read_lists(logits, s, w.words);
      edits.apply(logits, params, row.n_generated, row.history, n_prompt);
      ASSERT_EQ(got, logits) << "sequence " << sequence << " step " << step;
      tokens.push_back(static_cast<Token>(step % 3 == 0 ? 3 + step / 3 % 2 : random() % 30));
    }
  }
}

TEST(GpuEdits, WithoutRoomNothingIsWritten) {
  SamplingParams params;
  params.repetition_penalty = 1.2F;
  const std::vector<Token> tokens{5, 6, 7, 7};
  BatchRow row;
  row.logits = LogitsWanted::last;
  row.sampling = &params;
  row.history = tokens;
  row.n_prompt = 2;
  GpuEdits lists(kVocab);
  Words w;
  w.area.capacity = w.area.used + 5;  // three tokens take six
  cuda::SampleRow s;
  EXPECT_FALSE(lists.write(row, w.area, s));
  EXPECT_EQ(w.area.used, 11U);
  EXPECT_EQ(s.n_seen, 0);
  ++w.area.capacity;
  EXPECT_TRUE(lists.write(row, w.area, s));
  EXPECT_EQ(s.n_seen, 3);
  EXPECT_EQ(w.area.used, w.area.capacity);
}

TEST(GpuResults, DeviceAndHostTakeTurns) {
  SamplingParams told;
  told.logprobs = 1;
  told.prompt_logprobs = 0;
  RunStep step;
  step.tokens = {10, 11, 12, 13, 14, 15};
  const auto add = [&](std::size_t first, std::size_t n, LogitsWanted wanted, Token next) {
    BatchRow& row = step.rows.emplace_back();
    row.tokens = std::span<const Token>(step.tokens).subspan(first, n);
    row.logits = wanted;
    row.sampling = &told;
    row.next = next;
  };
  add(0, 1, LogitsWanted::last, kNoToken);  // line 0: the host's
  add(1, 2, LogitsWanted::all, 99);         // lines 1, 2: of a prompt
  add(3, 1, LogitsWanted::none, kNoToken);
  add(4, 1, LogitsWanted::last, kNoToken);  // line 3: the device's
  add(5, 1, LogitsWanted::last, kNoToken);  // line 4: nothing to draw
  std::vector<cuda::TokenLogprobs> lines(5);
  for (int i = 0; i < 5; ++i) {
    lines[static_cast<std::size_t>(i)] = {-static_cast<float>(i), i == 3 ? 1 : 0, {42}, {-0.5F}};
  }
  lines[2].n_top = -1;  // a NaN
  StepOutput host;
  host.tokens = {77, kNoToken, kNoToken, kNoToken, kNoToken};
  host.logprobs.push(0, -7.0F, {}, {});
  StepOutput output;
  output.tokens.assign(5, kNoToken);
  const std::int32_t tokens[] = {-5, -5, -5, 33, cuda::kNoSample};
  take_results(step, {true, false, false, false, false}, tokens, lines.data(), host, output);
  EXPECT_EQ(output.tokens, (std::vector<Token>{77, kNoToken, kNoToken, 33, kNoToken}));
  EXPECT_EQ(output.logprobs.items, (std::vector<std::uint32_t>{0, 3}));
  EXPECT_EQ(output.logprobs.logprobs, (std::vector<float>{-7.0F, -3.0F}));
  EXPECT_EQ(output.logprobs.top_tokens, (std::vector<Token>{42}));
  EXPECT_EQ(output.prompt_logprobs.items, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(output.prompt_logprobs.logprobs, (std::vector<float>{-1.0F, kLowestLogprob}));
  ASSERT_EQ(output.failed.size(), 1U);
  EXPECT_EQ(output.failed[0].row, 4U);
}

}  // namespace
}  // namespace baton
