// Dynamic SplitFuse (FastGen): each step has a fixed budget of tokens, decoding takes its share
// first, pieces of prompts fill the rest, and only a prompt's last piece samples. Here it is what
// `token_budget` and
// `prompt_chunk` do; LightLLM's split-fuse mode is the same with a chunk of 256.
#include <algorithm>
#include <map>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

constexpr std::uint32_t kBudget = 12;

Settings split_fuse() {
  Settings settings;
  settings.token_budget = kBudget;
  settings.prompt_chunk = kBudget;
  settings.steps_in_flight = 1;
  return settings;
}

/// What one plan makes the worker compute.
struct Load {
  std::uint32_t decode = 0;
  std::uint32_t prompt = 0;
};

struct SplitFuse : Cluster {
  SplitFuse() : Cluster(split_fuse()), w(ready_worker("mixed0", Role::mixed)) {}

  Load load() {
    Load load;
    const StepPlan plan = last_plan(w);
    if (plan.decode)
      load.decode = static_cast<std::uint32_t>(worker("mixed0").compute.steps.back().decode.size());
    for (const PromptRow& row : plan.rows) load.prompt += row.n_tokens;
    return load;
  }
  LinkId w;
};

TEST(SplitFuse, TheBudgetIsNeverExceededAndFilledWhilePromptsWait) {
  SplitFuse c;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    c.submit(i, 1 + static_cast<std::uint32_t>(i * 11 % 37),
             1 + static_cast<std::uint32_t>(i * 5 % 9));
  }
  bool both = false;
  for (int i = 0; i < 500 && c.terminals.size() < 20; ++i) {
    c.turn();
    if (c.worker("mixed0").compute.steps.empty()) continue;
    const Load load = c.load();
    EXPECT_LE(load.decode + load.prompt, kBudget);
    both = both || (load.decode > 0 && load.prompt > 0);
    // Fewer tokens only when no prompt is left to fill the step with, or nobody else may run.
    if (!c.worker("mixed0").compute.prefills.empty()) {
      EXPECT_EQ(load.decode + load.prompt, kBudget);
    }
    c.answer(c.w);
  }
  EXPECT_TRUE(both);
  EXPECT_EQ(c.terminals.size(), 20U);
}

TEST(SplitFuse, DecodingIsServedFirstAndLongPromptsDoNotHoldItBack) {
  SplitFuse c;
  for (std::uint64_t i = 1; i <= 3; ++i) c.submit(i, 2, 30);
  c.turn();
  c.answer(c.w);
  c.submit(4, 50, 2);
  for (std::uint32_t left = 50; left > 0;) {
    c.turn();
    const Load load = c.load();
    EXPECT_EQ(load.decode, 3U);  // in every step
    EXPECT_EQ(load.prompt, std::min(left, kBudget - 3));
    left -= load.prompt;
    c.answer(c.w);
  }
}

TEST(SplitFuse, OnlyTheLastPieceSamplesAndThePiecesMakeThePrompt) {
  SplitFuse c;
  const std::uint32_t lengths[] = {40, 12, 13, 1, 25};
  for (std::uint64_t i = 0; i < 5; ++i) c.submit(i + 1, lengths[i], 3);
  c.run();
  std::map<SequenceId, std::uint32_t> computed, length;
  std::map<SequenceId, int> samples;
  for (const StepPlan& plan : c.sent<StepPlan>(c.w)) {
    for (const AddSequence& add : plan.add) {
      length[add.sequence] = static_cast<std::uint32_t>(add.prompt.size());
    }
    for (const PromptRow& row : plan.rows) {
      computed[row.sequence] += row.n_tokens;
      const bool last = computed[row.sequence] == length[row.sequence];
      EXPECT_EQ(row.logits, last ? LogitsWanted::last : LogitsWanted::none);
      samples[row.sequence] += last ? 1 : 0;
    }
  }
  EXPECT_EQ(computed, length);
  for (const auto& [id, n] : samples) EXPECT_EQ(n, 1);
  for (std::uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(c.tokens_of(i), 3U);
}

TEST(SplitFuse, NoMoreSequencesDecodeThanTheBudgetHas) {
  SplitFuse c;
  for (std::uint64_t i = 1; i <= 20; ++i) c.submit(i, 1, 40);
  for (int i = 0; i < 10; ++i) {
    c.turn();
    EXPECT_LE(c.worker("mixed0").compute.sequences, kBudget);
    c.answer(c.w);
  }
  EXPECT_EQ(c.worker("mixed0").compute.decode_set.size(), kBudget);
}

}  // namespace
}  // namespace baton::test
