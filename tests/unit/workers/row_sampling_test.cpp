// From a step's logits to its output: what each kind of row gets, in which order, on any number of
// threads.
#include "workers/sampling/row_sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace baton {
namespace {

constexpr std::size_t kVocab = 300;

Result<RowMask> no_mask(std::size_t row) {
  throw std::logic_error("row " + std::to_string(row) + " has no grammar");
}

/// A step with its lines and their logits.
class Step {
 public:
  explicit Step(unsigned seed) : random_(seed) {}

  BatchRow& add(const SamplingParams& params, LogitsWanted wanted, std::vector<Token> tokens,
                Token next = kNoToken) {
    Kept& kept = kept_.emplace_back();
    kept.params = params;
    kept.history = {5, 7, 7, 9};
    begins_.push_back(run_.tokens.size());
    run_.tokens.insert(run_.tokens.end(), tokens.begin(), tokens.end());
    BatchRow& row = run_.rows.emplace_back();
    row.tokens = std::span<const Token>(run_.tokens).subspan(begins_.back(), tokens.size());
    row.logits = wanted;
    row.sampling = &kept.params;
    row.history = kept.history;
    row.n_prompt = 2;
    row.n_generated = 2;
    row.next = next;
    if (wanted == LogitsWanted::none) return row;
    std::normal_distribution<float> normal(0.0F, 3.0F);
    for (std::size_t t = row.first_logits(); t < row.tokens.size(); ++t) {
      lines.push_back({run_.rows.size() - 1, t});
      for (std::size_t i = 0; i < kVocab; ++i) logits.push_back(normal(random_));
    }
    return row;
  }
  /// The rows look into `tokens`, which has moved while it grew.
  const RunStep& get() {
    for (std::size_t i = 0; i < run_.rows.size(); ++i) {
      run_.rows[i].tokens =
          std::span<const Token>(run_.tokens).subspan(begins_[i], run_.rows[i].tokens.size());
    }
    return run_;
  }

  std::vector<LogitsLine> lines;
  std::vector<float> logits;

 private:
  struct Kept {
    SamplingParams params;
    std::vector<Token> history;
  };
  std::mt19937 random_;
  std::deque<Kept> kept_;
  std::vector<std::size_t> begins_;
  RunStep run_;
};

StepOutput one_thread(Step& step, const MaskOfRow& mask = no_mask) {
  StepOutput output;
  output.tokens.assign(step.get().rows.size(), kNoToken);
  RowSampling sampling(mask);
  std::vector<float> logits = step.logits;
  for (std::size_t i = 0; i < step.lines.size(); ++i) {
    sampling.finish(step.get(), step.lines[i], std::span(logits).subspan(i * kVocab, kVocab),
                    output);
  }
  return output;
}

/// Of one line, the reference in fp64.
double log_probability(const Step& step, std::size_t line, Token token) {
  double total = 0;
  const float* const logits = step.logits.data() + line * kVocab;
  for (std::size_t i = 0; i < kVocab; ++i) total += std::exp(static_cast<double>(logits[i]));
  return static_cast<double>(logits[token]) - std::log(total);
}

TEST(RowSampling, APromptIsToldTokenByTokenAndItsLastLineDraws) {
  SamplingParams params;
  params.temperature = 0;
  params.prompt_logprobs = 2;
  params.logprobs = 0;
  Step step(1);
  step.add({}, LogitsWanted::none, {1, 2, 3});
  step.add(params, LogitsWanted::all, {10, 11}, 12);  // a chunk, token 12 follows
  step.add(params, LogitsWanted::all, {12, 13});      // the last one
  const StepOutput output = one_thread(step);
  EXPECT_EQ(output.prompt_logprobs.items, (std::vector<std::uint32_t>{3, 4, 5}));
  EXPECT_EQ(output.prompt_logprobs.counts, (std::vector<std::uint32_t>{2, 2, 2}));
  constexpr Token kNext[] = {11, 12, 13};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(static_cast<double>(output.prompt_logprobs.logprobs[i]),
                log_probability(step, i, kNext[i]), 1e-4);
  }
  ASSERT_NE(output.tokens[2], kNoToken);
  EXPECT_EQ(output.tokens[0], kNoToken);
  EXPECT_EQ(output.tokens[1], kNoToken);
  EXPECT_EQ(output.logprobs.items, (std::vector<std::uint32_t>{2}));
  EXPECT_NEAR(static_cast<double>(output.logprobs.logprobs[0]),
              log_probability(step, 3, output.tokens[2]), 1e-4);
}

TEST(RowSampling, BeamsGetCandidatesAndBadRowsReasons) {
  SamplingParams beams;
  beams.num_beams = 3;
  Step step(2);
  step.add(beams, LogitsWanted::last, {1}).ranks = true;
  step.add({}, LogitsWanted::last, {2});
  step.logits.back() = std::nanf("");
  const StepOutput output = one_thread(step);
  EXPECT_EQ(output.candidates.items, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(output.candidates.counts, (std::vector<std::uint32_t>{3}));
  ASSERT_EQ(output.failed.size(), 1U);
  EXPECT_EQ(output.failed[0].row, 1U);
}

TEST(RowSampling, AGrammarMasksItsRowAndMayEndIt) {
  SamplingParams params;
  params.temperature = 0;
  params.grammar_kind = GrammarKind::regex;
  params.min_tokens = 10;
  params.stop_ids = {40};
  params.logprobs = 1;
  std::vector<std::uint32_t> words((kVocab + 31) / 32);
  words[40 / 32] = 1U << 40 % 32;  // nothing but the stop token, below min_tokens
  Step step(3);
  step.add(params, LogitsWanted::last, {1});
  const StepOutput output = one_thread(step, [&](std::size_t) { return RowMask{words, true}; });
  EXPECT_EQ(output.tokens[0], 40);
  EXPECT_FLOAT_EQ(output.logprobs.logprobs[0], 0);  // of what the mask leaves
  const StepOutput failed = one_thread(
      step, [](std::size_t) { return Result<RowMask>(Status(ErrorCode::internal, "too slow")); });
  ASSERT_EQ(failed.failed.size(), 1U);
  EXPECT_EQ(failed.failed[0].reason, "too slow");
  EXPECT_FALSE(failed.failed[0].grammar_missing);
  const StepOutput later = one_thread(
      step, [](std::size_t) { return Result<RowMask>(Status(ErrorCode::unavailable, "later")); });
  ASSERT_EQ(later.failed.size(), 1U);
  EXPECT_TRUE(later.failed[0].grammar_missing);
}

TEST(RowSampling, AnyNumberOfThreadsGivesTheSame) {
  Step step(4);
  for (int i = 0; i < 100; ++i) {
    SamplingParams params;
    params.seed = static_cast<std::uint64_t>(i);
    params.typical_p = i % 3 == 0 ? 0.6F : 1.0F;
    params.repetition_penalty = i % 4 == 0 ? 1.5F : 1.0F;
    params.logprobs = i % 5 - 1;
    if (i % 7 == 0) params.prompt_logprobs = 3;
    if (i % 11 == 0) params.num_beams = 2;
    const auto wanted = i % 13 == 0  ? LogitsWanted::none
                        : i % 7 == 0 ? LogitsWanted::all
                                     : LogitsWanted::last;
    step.add(params, wanted, {i, i + 1, i + 2}).ranks =
        params.num_beams > 1 && wanted == LogitsWanted::last;
  }
  const StepOutput want = one_thread(step);
  EXPECT_TRUE(want.logprobs.agrees());
  EXPECT_TRUE(want.prompt_logprobs.agrees());
  for (const int threads : {1, 2, 5}) {
    RowSamplingPool pool(threads, no_mask);
    for (int run = 0; run < 3; ++run) {
      StepOutput output;
      output.tokens.assign(step.get().rows.size(), kNoToken);
      std::vector<float> logits = step.logits;
      // In two calls, as where not all lines fit into memory at a time.
      const std::size_t half = step.lines.size() / 2;
      const std::span<const LogitsLine> lines(step.lines);
      pool.finish(step.get(), lines.first(half), std::span(logits).first(half * kVocab), output);
      pool.finish(step.get(), lines.subspan(half), std::span(logits).subspan(half * kVocab),
                  output);
      EXPECT_EQ(output.tokens, want.tokens);
      EXPECT_EQ(output.logprobs, want.logprobs);
      EXPECT_EQ(output.prompt_logprobs, want.prompt_logprobs);
      EXPECT_EQ(output.candidates, want.candidates);
    }
  }
}

}  // namespace
}  // namespace baton
