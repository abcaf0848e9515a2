// The masks of a step's rows follow from their tokens alone, whatever the steps before them were.
#include "workers/sampling/grammar_masks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace baton {
namespace {

constexpr std::uint32_t kVocab = 4096;

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> loaded = [] {
    auto made = Tokenizer::load("demo/model");
    if (!made.ok()) throw std::runtime_error(made.status().message());
    return std::move(made).value();
  }();
  return *loaded;
}

/// Steps as the core would make them, one row a sequence.
class Steps {
 public:
  void add(SequenceId id, const SamplingParams& params, std::vector<Token> generated,
           LogitsWanted logits = LogitsWanted::last) {
    Kept& kept = kept_.emplace_back();
    kept.params = params;
    kept.history = {1, 5, 9};  // the prompt
    kept.history.insert(kept.history.end(), generated.begin(), generated.end());
    BatchRow& row = step_.rows.emplace_back();
    row.sequence = id;
    row.logits = logits;
    row.sampling = &kept.params;
    row.history = kept.history;
    row.n_prompt = 3;
    row.n_generated = static_cast<std::uint32_t>(generated.size());
  }
  const RunStep& get() const { return step_; }

 private:
  struct Kept {
    SamplingParams params;
    std::vector<Token> history;
  };
  std::deque<Kept> kept_;
  RunStep step_;
};

SamplingParams with(GrammarKind kind, std::string text) {
  SamplingParams params;
  params.grammar_kind = kind;
  params.grammar = std::move(text);
  params.stop_ids = tokenizer().eos_ids();
  return params;
}

bool wait_compiled(GrammarMasks& masks, std::size_t count) {
  for (int i = 0; i < 3000 && masks.compiled() < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return masks.compiled() >= count;
}

/// The mask of a row whose grammar is announced, and compiled while steps go on without it.
Result<RowMask> mask_in_time(GrammarMasks& masks, const Steps& steps) {
  for (const BatchRow& row : steps.get().rows)
    masks.prepare(1, row.sampling->grammar_kind, row.sampling->grammar, true);
  for (int i = 0;; ++i) {
    masks.begin(steps.get());
    auto mask = masks.wait(0);
    if (mask.ok() || mask.status().code() != ErrorCode::unavailable || i == 3000) return mask;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::vector<std::uint32_t> mask_of(GrammarMasks& masks, SequenceId id, const SamplingParams& params,
                                   const std::vector<Token>& generated) {
  Steps steps;
  steps.add(id, params, generated);
  const auto mask = mask_in_time(masks, steps);
  if (!mask.ok()) throw std::runtime_error(mask.status().message());
  return {mask.value().allowed.begin(), mask.value().allowed.end()};
}

Token pick(const std::vector<std::uint32_t>& mask, std::mt19937& random) {
  for (Token id = static_cast<Token>(random() % kVocab);;
       id = (id + 1) % static_cast<Token>(kVocab)) {
    if ((mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1U) != 0) return id;
  }
}

const SamplingParams& person() {
  static const SamplingParams params = with(
      GrammarKind::json_schema,
      R"({"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer"}},"required":["name","n"]})");
  return params;
}

// A sequence that was preempted, or came from another worker, at any point.
TEST(GrammarMasks, AMovedSequenceGoesOnAsIfItHadStayed) {
  GrammarMasks stays("demo/model", kVocab, {});
  GrammarMasks other("demo/model", kVocab, {});
  std::mt19937 random(5);
  std::vector<Token> generated;
  for (int n = 0; n < 40; ++n) {
    const auto mask = mask_of(stays, 1, person(), generated);
    EXPECT_EQ(mask_of(other, 100 + static_cast<SequenceId>(n), person(), generated), mask) << n;
    const Token next = pick(mask, random);
    if (next == tokenizer().eos_ids().front()) break;
    generated.push_back(next);
  }
  EXPECT_GT(generated.size(), 5U);
}

TEST(GrammarMasks, RowsOfOneStepDoNotMeet) {
  GrammarMasks alone("demo/model", kVocab, {});
  GrammarMasks together("demo/model", kVocab, {});
  const SamplingParams date = with(GrammarKind::regex, "[0-9]{4}-[0-9]{2}");
  std::mt19937 random(6);
  std::vector<std::vector<Token>> generated(6);
  for (const SamplingParams& params : {date, person()})
    together.prepare(1, params.grammar_kind, params.grammar, true);
  ASSERT_TRUE(wait_compiled(together, 2));
  for (int n = 0; n < 5; ++n) {
    Steps steps;
    steps.add(90, SamplingParams(), {1, 2, 3});  // a row without a grammar
    for (std::size_t i = 0; i < generated.size(); ++i) {
      steps.add(i, i % 2 == 0 ? date : person(), generated[i]);
    }
    steps.add(91, date, {}, LogitsWanted::none);  // a chunk of a prompt
    together.begin(steps.get());
    for (std::size_t i = 0; i < generated.size(); ++i) {
      const auto mask = together.wait(i + 1);
      ASSERT_TRUE(mask.ok()) << mask.status().message();
      const std::vector<std::uint32_t> words(mask.value().allowed.begin(),
                                             mask.value().allowed.end());
      EXPECT_EQ(mask_of(alone, i, i % 2 == 0 ? date : person(), generated[i]), words);
      generated[i].push_back(pick(words, random));
    }
  }
}

TEST(GrammarMasks, TheEndIsAllThatIsLeft) {
  GrammarMasks masks("demo/model", kVocab, {});
  const SamplingParams params = with(GrammarKind::regex, "a");
  Steps steps;
  steps.add(1, params, {tokenizer().encode_plain("a", true).back()});
  steps.add(2, params, {});
  masks.prepare(1, params.grammar_kind, params.grammar, true);
  ASSERT_TRUE(wait_compiled(masks, 1));
  masks.begin(steps.get());
  EXPECT_TRUE(masks.wait(0).value().must_end);
  EXPECT_FALSE(masks.wait(1).value().must_end);
}

TEST(GrammarMasks, FaultsFailTheirRowAlone) {
  GrammarMasks masks("demo/model", kVocab, {});
  Steps steps;
  steps.add(1, with(GrammarKind::regex, "(a"), {});
  steps.add(2, with(GrammarKind::regex, "b"), {tokenizer().encode_plain("a", true).back()});
  steps.add(3, with(GrammarKind::regex, "a"), {});
  for (const char* text : {"(a", "b", "a"}) masks.prepare(1, GrammarKind::regex, text, true);
  ASSERT_TRUE(wait_compiled(masks, 3));
  masks.begin(steps.get());
  EXPECT_NE(masks.wait(0).status().message().find("the grammar cannot be served"),
            std::string::npos);
  EXPECT_NE(masks.wait(1).status().message().find("is not what it allows"), std::string::npos);
  EXPECT_TRUE(masks.wait(2).ok());
  EXPECT_FALSE(masks.wait(3).ok()) << "there is no such row";
}

/// What GrammarMasks tell, in order.
class Told {
 public:
  GrammarMasks::Tell listener() {
    return [this](std::uint64_t key, bool ready) {
      const std::lock_guard lock(mutex_);
      told_.emplace_back(key, ready);
    };
  }
  bool has(std::uint64_t key, bool ready) {
    for (int i = 0; i < 3000; ++i) {
      if (had(key, ready)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  bool had(std::uint64_t key, bool ready) {
    const std::lock_guard lock(mutex_);
    return std::find(told_.begin(), told_.end(), std::pair(key, ready)) != told_.end();
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return told_.size();
  }
  /// How many were told before this one was ready.
  std::size_t before(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    return std::find(told_.begin(), told_.end(), std::pair(key, true)) - told_.begin();
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, bool>> told_;
};

TEST(GrammarMasks, TellsWhenAGrammarIsReadyAndWhenItIsForgotten) {
  Told told;
  GrammarMasks::Options options;
  options.cache_bytes = 100'000;
  GrammarMasks masks("demo/model", kVocab, options, told.listener());
  masks.prepare(7, GrammarKind::regex, "[a-z]+", false);
  EXPECT_TRUE(told.has(7, true));
  masks.prepare(8, GrammarKind::regex, "(a",
                false);  // nobody needs to wait for what cannot be compiled
  EXPECT_TRUE(told.has(8, true));
  const std::size_t before = told.count();
  masks.prepare(7, GrammarKind::regex, "[a-z]+", false);
  EXPECT_EQ(told.count(), before + 1) << "at once: it is there";
  for (std::uint64_t key = 100; key < 140; ++key) {
    masks.prepare(key, GrammarKind::regex, "([a-z]{3} ){20}" + std::to_string(key), false);
  }
  EXPECT_TRUE(told.has(139, true));
  EXPECT_TRUE(told.has(7, false)) << "nobody has used it";
}

TEST(GrammarMasks, WhatASequenceFollowsIsNotForgotten) {
  Told told;
  GrammarMasks::Options options;
  options.cache_bytes = 1;
  GrammarMasks masks("demo/model", kVocab, options, told.listener());
  const SamplingParams followed = with(GrammarKind::regex, "([a-z]{3} ){20}");
  masks.prepare(7, followed.grammar_kind, followed.grammar, false);
  EXPECT_TRUE(told.has(7, true));
  mask_of(masks, 1, followed, {});
  masks.prepare(8, GrammarKind::regex, "[0-9]+", false);
  masks.prepare(9, GrammarKind::regex, "[0-8]+", false);
  EXPECT_TRUE(told.has(8, false)) << "nobody follows it";
  EXPECT_FALSE(told.had(7, false));
  mask_of(masks, 1, followed, {});
  EXPECT_EQ(masks.compiled(), 3U) << "none of them twice";
}

TEST(GrammarMasks, WhatIsAnnouncedIsCompiledBeforeARowNeedsIt) {
  GrammarMasks masks("demo/model", kVocab, {});
  masks.prepare(1, GrammarKind::regex, "[a-z]+", false);
  masks.prepare(1, GrammarKind::regex, "[a-z]+", false);
  ASSERT_TRUE(wait_compiled(masks, 1));
  const auto free = mask_of(masks, 1, with(GrammarKind::regex, "[a-z]+"), {});
  EXPECT_EQ(masks.compiled(), 1U) << "once";
  GrammarMasks late("demo/model", kVocab, {});
  EXPECT_EQ(mask_of(late, 1, with(GrammarKind::regex, "[a-z]+"), {}), free);
}

TEST(GrammarMasks, WhatIsAwaitedGoesBeforeAnnouncements) {
  GrammarMasks::Options options;
  options.max_announced = 20;
  Told told;
  GrammarMasks masks("demo/model", kVocab, options, told.listener());
  // Each takes a while; the tokenizer is still being read.
  for (std::uint64_t i = 0; i < 40; ++i) {
    masks.prepare(i + 1, GrammarKind::regex, "([a-z]{3} ){60}" + std::to_string(i), false);
  }
  masks.prepare(50, GrammarKind::regex, "y", true);  // never one too many
  const std::size_t when_awaited = told.count();
  masks.prepare(20, GrammarKind::regex, "([a-z]{3} ){60}19", true);  // the last one kept in mind
  const std::size_t when_both = told.count();
  EXPECT_TRUE(told.has(50, true));
  EXPECT_TRUE(told.has(20, true));
  EXPECT_LE(told.before(50), when_awaited + 1) << "what had begun";
  EXPECT_LE(told.before(20), when_both + 2) << "the same, and the one that was awaited";
  EXPECT_TRUE(wait_compiled(masks, 21));
  EXPECT_LE(masks.compiled(), 25U) << "more than max_announced are not kept in mind";
  EXPECT_FALSE(told.had(40, true)) << "it was passed over, and will be asked for again";
}

TEST(GrammarMasks, AStepNeverWaitsForTheCompiler) {
  GrammarMasks masks("demo/model", kVocab, {});
  const SamplingParams ready = with(GrammarKind::regex, "[0-9]+");
  masks.prepare(1, ready.grammar_kind, ready.grammar, true);
  ASSERT_TRUE(wait_compiled(masks, 1));
  constexpr int kBefore = 60;  // each takes a while
  for (int i = 0; i < kBefore; ++i)
    masks.prepare(2, GrammarKind::regex, "([a-z]{3} ){60}" + std::to_string(i), true);
  const SamplingParams slow = with(GrammarKind::regex, "([a-z]{3} ){60}");
  masks.prepare(3, slow.grammar_kind, slow.grammar, true);
  Steps steps;
  steps.add(1, slow, {});
  steps.add(2, with(GrammarKind::regex, "nobody announced this"), {});
  steps.add(3, ready, {});
  masks.begin(steps.get());
  for (const std::size_t row : {0U, 1U}) {
    const Status status = masks.wait(row).status();
    EXPECT_EQ(status.code(), ErrorCode::unavailable);
    EXPECT_TRUE(failed_draw(4, status).grammar_missing);
    EXPECT_EQ(failed_draw(4, status).row, 4U);
  }
  EXPECT_TRUE(masks.wait(2).ok()) << "the others draw";
  ASSERT_TRUE(wait_compiled(masks, kBefore + 2));
  EXPECT_EQ(mask_of(masks, 1, slow, {}).size(), (kVocab + 31) / 32) << "it draws later";
  EXPECT_EQ(masks.compiled(), kBefore + 2U) << "a step compiles nothing";
  EXPECT_FALSE(failed_draw(4, Status(ErrorCode::internal, "")).grammar_missing);
}

TEST(GrammarMasks, AModelWithoutATokenizerSaysSo) {
  GrammarMasks masks("/nonexistent", kVocab, {});
  Steps steps;
  steps.add(1, with(GrammarKind::regex, "a"), {});
  EXPECT_NE(mask_in_time(masks, steps).status().message().find("no tokenizer"), std::string::npos);
}

TEST(GrammarMasks, TheCacheIsBounded) {
  GrammarMasks::Options options;
  options.cache_bytes = 2000;
  options.idle_steps = 4;
  GrammarMasks masks("demo/model", kVocab, options);
  for (int round = 0; round < 3; ++round) {
    for (int n = 0; n < 20; ++n) {
      const SamplingParams params =
          with(GrammarKind::regex, std::to_string(n) + "x{1," + std::to_string(n + 1) + "}");
      EXPECT_NO_THROW(mask_of(masks, static_cast<SequenceId>(100 * round + n), params, {}));
    }
  }
}

TEST(GrammarMasks, MaskedLogitsAreMinusInfinity) {
  std::vector<float> logits(70, 1.0F);
  const std::vector<std::uint32_t> mask{~0U, 1U, 0U};
  mask_logits(logits, mask);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(logits[i], i <= 32 ? 1.0F : -std::numeric_limits<float>::infinity()) << i;
  }
}

}  // namespace
}  // namespace baton
