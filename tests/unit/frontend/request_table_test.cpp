// Scenarios of the front end's state machine: what the scheduler says, and what must come of it.
#include "frontend/core/request_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace baton {
namespace {

constexpr Epoch kEpoch = 1000;
constexpr TimeNs kMs = kMillisecond;

/// A table, a clock and everything that came out of it, sorted by kind.
class TableTest : public ::testing::Test {
 protected:
  static FrontendIdentity identity() { return {"0.1.0 (x)", "frontend0", 77, 1, 2}; }

  TableTest() : table(identity(), {}) {}

  void collect() {
    for (auto& message : out.messages) sent.push_back(std::move(message));
    EXPECT_TRUE(out.logprobs.agrees());
    LogprobReader reader(out.logprobs);
    for (const Delivery& d : out.deliveries) {
      EXPECT_EQ(d.choice == 0 ? text[d.counter].size() : 0, d.first_index);
      for (std::uint32_t i = d.begin; i < d.begin + d.count; ++i) {
        text[d.counter].push_back(out.tokens[i]);
        LogprobReader::Entry entry;
        logprobs[d.counter].push_back(reader.take(i, entry) ? entry.logprob : NAN);
      }
      if (d.first_index == 0) cached[d.counter].push_back(d.beginning.cached_tokens);
      if (d.prompt_logprobs < 0) continue;
      prompts[d.counter].push_back(
          out.prompt_logprobs[static_cast<std::size_t>(d.prompt_logprobs)]);
    }
    EXPECT_TRUE(reader.done());
    progress_told.insert(progress_told.end(), out.progress.begin(), out.progress.end());
    for (auto& ending : out.endings) ends.push_back(std::move(ending));
    refused = out.refused;
    out.clear();
  }
  void welcome(Epoch epoch = kEpoch, std::uint32_t running = 0, std::uint64_t progress = 0) {
    FrontendWelcome message;
    message.build = "0.1.0 (x)";
    message.epoch = epoch;
    message.workers_ready = 2;
    message.running = running;
    message.progress = progress;
    give(message);
  }
  void give(const ToFrontend& message) {
    table.apply(message, now, out);
    collect();
  }
  std::uint64_t open(std::uint32_t max_tokens = 100, TimeNs timeout = 600 * kSecond) {
    NewRequest request;
    request.prompt = {5, 6, 7};
    request.sampling.max_tokens = max_tokens;
    request.deadline = now + timeout;
    auto id = table.open(std::move(request), now, out);
    collect();
    EXPECT_TRUE(id.ok());
    return id.ok() ? id.value().counter : 0;
  }
  void tokens(std::uint64_t counter, std::uint32_t attempt, std::uint32_t first,
              std::vector<Token> ids, Epoch epoch = kEpoch) {
    Events events;
    events.epoch = epoch;
    events.counters = {counter};
    events.attempts = {attempt};
    events.first_index = {first};
    events.counts = {static_cast<std::uint32_t>(ids.size())};
    events.tokens = std::move(ids);
    give(events);
  }
  static Terminal terminal_of(std::uint64_t counter, std::uint32_t attempt, std::uint32_t n,
                              FinishReason reason = FinishReason::length) {
    Terminal terminal;
    terminal.counter = counter;
    terminal.attempt = attempt;
    terminal.n = {n};
    terminal.reason = {static_cast<std::uint32_t>(reason)};
    return terminal;
  }
  void terminal(const Terminal& terminal, Epoch epoch = kEpoch) {
    Events events;
    events.epoch = epoch;
    events.terminals = {terminal};
    give(events);
  }
  void pass(TimeNs time) {
    const TimeNs until = now + time;
    while (now < until) {
      now = std::min(until, now + 100 * kMs);
      table.tick(now, out);
      collect();
    }
  }
  template <typename M>
  std::vector<M> all() const {
    std::vector<M> found;
    for (const auto& message : sent) {
      if (const M* m = std::get_if<M>(&message)) found.push_back(*m);
    }
    return found;
  }
  template <typename M>
  M last() const {
    const auto found = all<M>();
    EXPECT_FALSE(found.empty());
    return found.empty() ? M{} : found.back();
  }

  TimeNs now = 10 * kSecond;
  RequestTable table;
  TableOutput out;
  std::vector<FrontendMessage> sent;
  std::map<std::uint64_t, std::vector<Token>> text;
  std::map<std::uint64_t, std::vector<float>> logprobs;  // NAN: the token came without
  std::map<std::uint64_t, std::vector<Logprobs>> prompts;
  std::map<std::uint64_t, std::vector<std::uint32_t>> cached;  // told with first tokens
  std::vector<ProgressTold> progress_told;
  std::vector<StreamEnd> ends;
  std::optional<std::string> refused;
};

using Tokens = std::vector<Token>;

/// A search with four beams, the two best of which are told.
class BeamTable : public TableTest {
 protected:
  std::uint64_t search() {
    NewRequest request;
    request.prompt = {5, 6, 7};
    request.sampling.max_tokens = 4;
    request.sampling.num_beams = 4;
    request.sampling.num_return_sequences = 2;
    request.deadline = now + 600 * kSecond;
    const auto id = table.open(std::move(request), now, out);
    collect();
    return id.value().counter;
  }
  static Terminal found(std::uint64_t counter, std::uint32_t attempt) {
    Terminal terminal = terminal_of(counter, attempt, 3);
    terminal.n = {3, 2};
    terminal.reason = {static_cast<std::uint32_t>(FinishReason::length),
                       static_cast<std::uint32_t>(FinishReason::stop)};
    terminal.scores = {-0.5F, -0.75F};
    return terminal;
  }
};

TEST_F(BeamTable, NothingIsDeliveredBeforeAllOfItIsHere) {
  welcome();
  const std::uint64_t counter = search();
  tokens(counter, 1, 0, {11, 12, 13});
  EXPECT_TRUE(text[counter].empty());
  terminal(found(counter, 1));
  EXPECT_TRUE(ends.empty()) << "two tokens are missing";
  EXPECT_EQ(last<FrontendHeartbeat>().next, (std::vector<std::uint32_t>{3}));
  tokens(counter, 1, 3, {21, 22});
  EXPECT_EQ(text[counter], (Tokens{11, 12, 13, 21, 22}));
  ASSERT_EQ(ends.size(), 1U);
  ASSERT_EQ(ends[0].choices.size(), 2U);
  EXPECT_EQ(ends[0].choices[0].reason, FinishReason::length);
  EXPECT_EQ(ends[0].choices[1].reason, FinishReason::stop);
  EXPECT_EQ(ends[0].choices[1].score, -0.75F);
  EXPECT_EQ(table.entry_count(), 0U);
}

TEST_F(BeamTable, AnotherSchedulerSearchesFromThePrompt) {
  welcome();
  const std::uint64_t counter = search();
  tokens(counter, 1, 0, {11, 12, 13});
  welcome(kEpoch + 1);
  EXPECT_EQ(last<Submit>().attempt, 2U);
  EXPECT_TRUE(last<Submit>().generated.empty());
}

TEST_F(BeamTable, BeamsThatContradictEachOtherAreAnError) {
  welcome();
  const std::uint64_t counter = search();
  tokens(counter, 1, 0, {11, 12, 13, 21, 22});
  Terminal one = found(counter, 1);
  one.n = {5};
  terminal(one);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].code, ErrorCode::internal);
  EXPECT_TRUE(text[counter].empty());
}

/// Two rows, the second of which repeats; log probability of token t: -t.
Events rows_with_logprobs(std::uint64_t a, std::uint32_t a_first, const Tokens& a_tokens,
                          std::uint64_t b, std::uint32_t b_first, const Tokens& b_tokens) {
  Events events;
  events.epoch = kEpoch;
  events.counters = {a, b};
  events.attempts = {1, 1};
  events.first_index = {a_first, b_first};
  events.counts = {static_cast<std::uint32_t>(a_tokens.size()),
                   static_cast<std::uint32_t>(b_tokens.size())};
  events.tokens = a_tokens;
  events.tokens.insert(events.tokens.end(), b_tokens.begin(), b_tokens.end());
  for (std::uint32_t i = 0; i < events.tokens.size(); ++i) {
    const Token tops[] = {events.tokens[i], 1};
    const float values[] = {-1, -2};
    events.logprobs.push(i, -static_cast<float>(events.tokens[i]), tops, values);
  }
  return events;
}

// What comes with a token is handed on once, beside it, whatever is repeated, missing or too much.
TEST_F(TableTest, log_probabilities_follow_their_tokens) {
  welcome();
  const auto a = open(4);
  const auto b = open();
  Events first = rows_with_logprobs(a, 0, {11, 12}, b, 0, {21});
  first.prompt_logprobs.push_back({a, {}});
  first.prompt_logprobs.back().values.push(1, -0.5F, {}, {});
  give(first);
  give(first);                                           // all of it again
  give(rows_with_logprobs(a, 3, {14}, b, 0, {21, 22}));  // a gap, and a part that is known
  give(rows_with_logprobs(a, 1, {12, 13, 14, 15, 16}, b, 2, {23}));  // two beyond max_tokens
  EXPECT_EQ(text[a], (Tokens{11, 12, 13, 14}));
  EXPECT_EQ(logprobs[a], (std::vector<float>{-11, -12, -13, -14}));
  EXPECT_EQ(text[b], (Tokens{21, 22, 23}));
  EXPECT_EQ(logprobs[b], (std::vector<float>{-21, -22, -23}));
  ASSERT_EQ(prompts[a].size(), 1U);
  EXPECT_EQ(prompts[a][0].logprobs, std::vector<float>{-0.5F});
  EXPECT_TRUE(prompts[b].empty());

  Events wrong = rows_with_logprobs(b, 3, {24}, b, 4, {25});
  wrong.logprobs.items.back() = 2;  // about no token
  const auto before = table.counters().malformed;
  give(wrong);
  EXPECT_EQ(table.counters().malformed, before + 1);
  EXPECT_EQ(text[b].size(), 3U);
}

/// Entries [first, end) of a prompt's log probabilities, and `count` tokens beside them.
Events prompt_part(std::uint64_t counter, std::uint32_t first, std::uint32_t end, bool more,
                   std::uint32_t count) {
  Events events;
  events.epoch = kEpoch;
  events.counters = {counter};
  events.attempts = {1};
  events.first_index = {0};
  events.counts = {count};
  events.tokens.assign(count, 11);
  PromptLogprobs& part = events.prompt_logprobs.emplace_back();
  part.owner = counter;
  part.first = first;
  part.more = more;
  for (std::uint32_t i = first; i < end; ++i)
    part.values.push(i + 1, -static_cast<float>(i + 1), {}, {});
  return events;
}

TEST_F(TableTest, a_prompts_log_probabilities_may_come_in_parts) {
  welcome();
  const auto a = open();
  const auto asked = [&]() -> std::uint32_t {
    for (auto message = sent.rbegin(); message != sent.rend(); ++message) {
      const auto* beat = std::get_if<FrontendHeartbeat>(&*message);
      if (beat == nullptr || beat->counters != std::vector<std::uint64_t>{a}) continue;
      EXPECT_EQ(beat->next, std::vector<std::uint32_t>{0});
      return beat->prompt_entries.empty() ? 0 : beat->prompt_entries[0];
    }
    return 999;
  };
  give(prompt_part(a, 0, 4, true, 0));
  EXPECT_EQ(asked(), 4U) << "at once";
  give(prompt_part(a, 4, 7, true, 0));
  EXPECT_EQ(asked(), 7U) << "at once again";
  give(prompt_part(a, 0, 4, true, 0));    // an answer that comes late
  give(prompt_part(a, 8, 10, false, 1));  // behind one that was lost
  EXPECT_TRUE(text[a].empty());
  tokens(a, 1, 0, {11});
  EXPECT_TRUE(text[a].empty()) << "the token does not go without them";
  give(prompt_part(a, 6, 10, false, 1));
  EXPECT_EQ(text[a], (Tokens{11}));
  ASSERT_EQ(prompts[a].size(), 1U);
  ASSERT_EQ(prompts[a][0].items.size(), 10U);
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(prompts[a][0].items[i], i + 1);
  tokens(a, 1, 1, {12});
  EXPECT_EQ(text[a], (Tokens{11, 12}));
}

TEST_F(TableTest, parts_of_an_earlier_attempt_are_forgotten) {
  welcome();
  const auto a = open();
  give(prompt_part(a, 0, 4, true, 0));
  give(Gone{kEpoch, {a}});
  Events whole = prompt_part(a, 0, 6, false, 1);
  whole.attempts = {2};
  give(whole);
  ASSERT_EQ(prompts[a].size(), 1U);
  EXPECT_EQ(prompts[a][0].items.size(), 6U);
}

TEST_F(TableTest, a_prompt_that_no_message_holds_is_refused) {
  welcome();
  NewRequest request;
  request.prompt.assign(9'000'000, 5);
  request.sampling.max_tokens = 4;
  request.deadline = now + kSecond;
  const auto refused_one = table.open(std::move(request), now, out);
  ASSERT_FALSE(refused_one.ok());
  EXPECT_EQ(refused_one.status().code(), ErrorCode::too_long);
  EXPECT_EQ(table.open_count(), 0U);
}

TEST_F(TableTest, what_was_cached_comes_with_the_first_token) {
  welcome();
  const std::uint64_t with = open();
  const std::uint64_t without = open();
  Events events;
  events.epoch = kEpoch;
  events.counters = {without, with};
  events.attempts = {1, 1};
  events.first_index = {0, 0};
  events.counts = {1, 2};
  events.tokens = {11, 12, 13};
  events.begun_counters = {with};
  events.begun_cached = {2};
  events.begun_at = {kSecond};
  give(events);
  give(events);  // again: nothing is new
  tokens(with, 1, 2, {14});
  EXPECT_EQ(cached[with], (std::vector<std::uint32_t>{2}));
  EXPECT_EQ(cached[without], (std::vector<std::uint32_t>{0}));
  events.begun_cached.clear();
  give(events);
  EXPECT_EQ(table.counters().malformed, 1U);
}

TEST_F(TableTest, how_far_a_prompt_is) {
  welcome();
  NewRequest asks;
  asks.prompt = {1, 2, 3, 4};
  asks.sampling.max_tokens = 8;
  asks.deadline = now + 100 * kSecond;
  asks.progress = true;
  const std::uint64_t with = table.open(asks, now, out).value().counter;
  collect();
  EXPECT_TRUE(last<Submit>().progress);
  const std::uint64_t without = open();
  EXPECT_FALSE(last<Submit>().progress);
  Events events;
  events.epoch = kEpoch;
  events.progress_counters = {with, without, with, with};
  events.progress_attempts = {1, 1, 2, 1};
  events.progress_done = {2, 2, 3, 9};
  events.progress_cached = {1, 0, 0, 5};
  events.progress_took = {kSecond, 0, 0, -5};
  give(events);
  // Of another attempt, or of a request that did not ask, nothing; what cannot be is cut.
  ASSERT_EQ(progress_told.size(), 2U);
  EXPECT_EQ(progress_told[0].counter, with);
  EXPECT_EQ(progress_told[0].done, 2U);
  EXPECT_EQ(progress_told[0].cached, 1U);
  EXPECT_EQ(progress_told[0].took, kSecond);
  EXPECT_EQ(progress_told[1].done, 4U);
  EXPECT_EQ(progress_told[1].cached, 4U);
  EXPECT_EQ(progress_told[1].took, 0);
  tokens(with, 1, 0, {14});
  give(events);  // late: it has a token
  EXPECT_EQ(progress_told.size(), 2U);
  events.progress_took.pop_back();
  give(events);
  EXPECT_EQ(table.counters().malformed, 1U);
}

TEST_F(BeamTable, what_was_cached_is_told_of_each_sequence) {
  welcome();
  const std::uint64_t counter = search();
  Events events;
  events.epoch = kEpoch;
  events.counters = {counter};
  events.attempts = {1};
  events.first_index = {0};
  events.counts = {5};
  events.tokens = {11, 12, 13, 21, 22};
  events.begun_counters = {counter};
  events.begun_cached = {2};
  events.begun_at = {kSecond};
  events.terminals = {found(counter, 1)};
  give(events);
  EXPECT_EQ(cached[counter], (std::vector<std::uint32_t>{2, 2}));
}

TEST_F(TableTest, says_hello_until_welcomed_and_then_submits) {
  const auto a = open();
  EXPECT_TRUE(sent.empty());
  pass(1600 * kMs);
  EXPECT_GE(all<FrontendHello>().size(), 3U);
  EXPECT_TRUE(all<Submit>().empty());
  welcome();
  ASSERT_EQ(all<Submit>().size(), 1U);
  const Submit submit = last<Submit>();
  EXPECT_EQ(submit.request, (RequestId{77, a}));
  EXPECT_EQ(submit.attempt, 1U);
  EXPECT_FALSE(submit.again);
  EXPECT_EQ(submit.epoch, kEpoch);
  EXPECT_EQ(submit.arrival, 10 * kSecond);
}

TEST_F(TableTest, a_whole_request) {
  welcome();
  const auto a = open();
  tokens(a, 1, 0, {1, 2});
  tokens(a, 1, 2, {3});
  terminal(terminal_of(a, 1, 3, FinishReason::stop));
  EXPECT_EQ(text[a], (Tokens{1, 2, 3}));
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].reason, FinishReason::stop);
  EXPECT_EQ(ends[0].n, 3U);
  EXPECT_EQ(last<Ack>().request, (RequestId{77, a}));
  EXPECT_EQ(table.entry_count(), 0U);
  EXPECT_EQ(table.open_count(), 0U);
}

TEST_F(TableTest, repeated_tokens_are_dropped_one_by_one) {
  welcome();
  const auto a = open();
  tokens(a, 1, 0, {1, 2, 3});
  tokens(a, 1, 0, {1, 2});        // all known
  tokens(a, 1, 1, {2, 3, 4, 5});  // half known
  EXPECT_EQ(text[a], (Tokens{1, 2, 3, 4, 5}));
  EXPECT_EQ(table.counters().duplicates, 4U);
}

TEST_F(TableTest, a_gap_asks_for_a_resend_at_once_and_only_once) {
  welcome();
  const auto a = open();
  tokens(a, 1, 0, {1});
  EXPECT_TRUE(all<FrontendHeartbeat>().empty());
  tokens(a, 1, 3, {4});
  ASSERT_EQ(all<FrontendHeartbeat>().size(), 1U);
  const auto beat = last<FrontendHeartbeat>();
  EXPECT_EQ(beat.counters, std::vector<std::uint64_t>{a});
  EXPECT_EQ(beat.attempts, std::vector<std::uint32_t>{1});
  EXPECT_EQ(beat.next, std::vector<std::uint32_t>{1});
  now += 5 * kMs;
  tokens(a, 1, 4, {5});  // still the same gap: no second question so soon
  EXPECT_EQ(all<FrontendHeartbeat>().size(), 1U);
  now += 200 * kMs;
  tokens(a, 1, 5, {6});
  EXPECT_EQ(all<FrontendHeartbeat>().size(), 2U);
  tokens(a, 1, 1, {2, 3, 4, 5, 6});
  EXPECT_EQ(text[a], (Tokens{1, 2, 3, 4, 5, 6}));
}

TEST_F(TableTest, CountersOfOtherTablesAreNotUsed) {
  welcome();
  EXPECT_EQ(open(), 1U);
  table.pass_over(7);
  EXPECT_EQ(open(), 7U);
  EXPECT_EQ(last<Submit>().request.counter, 7U);
  table.pass_over(3);
  EXPECT_EQ(open(), 8U) << "never one of its own again";
}

TEST_F(TableTest, other_attempts_and_epochs_are_ignored) {
  welcome();
  const auto a = open();
  tokens(a, 0, 0, {9});
  tokens(a, 2, 0, {9});
  tokens(a, 1, 0, {9}, kEpoch + 1);
  tokens(a + 1, 1, 0, {9});
  terminal(terminal_of(a, 2, 0));
  terminal(terminal_of(a, 0, 0));
  EXPECT_TRUE(text[a].empty());
  EXPECT_TRUE(ends.empty());
  EXPECT_TRUE(all<Ack>().empty()) << "an Ack would make the scheduler forget the live attempt";
  EXPECT_EQ(table.open_count(), 1U);
}

TEST_F(TableTest, columns_that_disagree_are_dropped_whole) {
  welcome();
  const auto a = open();
  Events bad;
  bad.epoch = kEpoch;
  bad.counters = {a};
  bad.attempts = {1};
  bad.first_index = {0};
  bad.counts = {5};
  bad.tokens = {1};
  give(bad);
  bad.counts = {1, 1};
  bad.tokens = {1, 2};
  give(bad);
  EXPECT_TRUE(text[a].empty());
  EXPECT_EQ(table.counters().malformed, 2U);
}

TEST_F(TableTest, a_new_scheduler_gets_every_open_request_in_order_of_arrival) {
  welcome();
  std::vector<std::uint64_t> opened;
  for (int i = 0; i < 20; ++i) {
    now += kMs;
    opened.push_back(open());
  }
  tokens(opened[3], 1, 0, {1, 2});
  table.cancel(opened[5], now, out);
  table.finish(opened[6], 0, now, out);
  collect();
  give(FrontendUnknown{kEpoch + 5});
  give(FrontendUnknown{kEpoch + 5});
  EXPECT_EQ(all<FrontendHello>().size(), 1U) << "one hello an occasion";
  const auto late = open();
  sent.clear();
  welcome(kEpoch + 5);
  const auto submits = all<Submit>();
  ASSERT_EQ(submits.size(), 19U);
  for (std::size_t i = 1; i < submits.size(); ++i) {
    EXPECT_LT(submits[i - 1].request.counter, submits[i].request.counter);
    EXPECT_LE(submits[i - 1].arrival, submits[i].arrival);
  }
  EXPECT_EQ(submits[3].attempt, 2U);
  EXPECT_TRUE(submits[3].again);
  EXPECT_EQ(submits[3].generated, (std::vector<Token>{1, 2}));
  EXPECT_EQ(submits[3].epoch, kEpoch + 5);
  EXPECT_EQ(submits[18].request.counter, late);
  EXPECT_EQ(submits[18].attempt, 1U);
  EXPECT_FALSE(submits[18].again) << "never sent before: no way past the admission limits";
  EXPECT_TRUE(all<Finish>().empty() && all<Cancel>().empty());
  EXPECT_EQ(table.entry_count(), 19U)
      << "a new scheduler knows nothing that would have to be ended";
  tokens(opened[3], 1, 2, {8}, kEpoch + 5);  // of the attempt before
  tokens(opened[3], 2, 2, {3}, kEpoch + 5);
  EXPECT_EQ(text[opened[3]], (Tokens{1, 2, 3}));
}

// --- requests that kill schedulers

/// Schedulers come and die; what each of them got.
class TrialTest : public TableTest {
 protected:
  /// The one before is dead: another says Welcome.
  void another_scheduler() { welcome(++epoch_); }
  Epoch epoch() const { return epoch_; }
  void live(TimeNs time) {
    for (TimeNs t = 0; t < time; t += 500 * kMs) {
      pass(500 * kMs);
      welcome(epoch_);
      if (turns && table.wants_turn()) table.give_turn();
    }
  }
  /// Submitted since the last call.
  std::vector<std::uint64_t> submitted() {
    std::vector<std::uint64_t> counters;
    for (const Submit& submit : all<Submit>()) counters.push_back(submit.request.counter);
    sent.clear();
    return counters;
  }
  std::uint32_t attempt_of(std::uint64_t counter) const {
    std::uint32_t attempt = 0;
    for (const Submit& submit : all<Submit>()) {
      if (submit.request.counter == counter) attempt = submit.attempt;
    }
    return attempt;
  }
  using Counters = std::vector<std::uint64_t>;

  bool turns = true;  // no other front end tries suspects
  Epoch epoch_ = kEpoch;
};

TEST_F(TrialTest, one_that_kills_every_scheduler_ends_and_takes_nobody_along) {
  welcome();
  const auto killer = open();
  std::vector<std::uint64_t> innocent;
  for (int i = 0; i < 5; ++i) innocent.push_back(open());
  std::uint32_t deaths = 0;
  for (; ends.empty() && deaths < 50; ++deaths) {
    sent.clear();
    another_scheduler();
    live(kMs);
    // The scheduler dies of the killer as soon as it has it, before anybody gets a token.
    for (int i = 0; i < 100 && attempt_of(killer) == 0; ++i) {
      live(500 * kMs);
      for (const auto counter : innocent) {
        const auto attempt = attempt_of(counter);
        if (attempt != 0 && attempt_of(killer) == 0 && text[counter].empty()) {
          tokens(counter, attempt, 0, {1}, epoch());
        }
      }
    }
  }
  ASSERT_EQ(1U, ends.size());
  EXPECT_EQ(killer, ends[0].counter);
  EXPECT_EQ(ErrorCode::worker_crashes, ends[0].code);
  EXPECT_EQ(7U, deaths);  // four to be suspected enough, three alone
  sent.clear();
  another_scheduler();
  live(20 * kSecond);
  Counters served = submitted();
  std::sort(served.begin(), served.end());
  EXPECT_EQ(innocent, served);
}

TEST_F(TrialTest, suspects_come_after_everybody_else_in_growing_trials) {
  welcome();
  Counters suspects;
  for (int i = 0; i < 7; ++i) suspects.push_back(open());
  another_scheduler();
  another_scheduler();
  const auto fresh = open();
  submitted();
  another_scheduler();
  EXPECT_EQ(Counters{fresh}, submitted());
  live(1500 * kMs);
  EXPECT_EQ(Counters{}, submitted());
  live(1500 * kMs);
  EXPECT_EQ(Counters{suspects[0]}, submitted());
  live(3500 * kMs);
  EXPECT_EQ((Counters{suspects[1], suspects[2]}), submitted());
  live(3500 * kMs);
  EXPECT_EQ((Counters{suspects[3], suspects[4], suspects[5], suspects[6]}), submitted());
}

TEST_F(TrialTest, tokens_end_a_trial_at_once) {
  welcome();
  const auto first = open();
  const auto second = open();
  another_scheduler();
  another_scheduler();
  submitted();
  live(3 * kSecond);
  const auto attempt = attempt_of(first);
  EXPECT_EQ(Counters{first}, submitted());
  live(500 * kMs);
  EXPECT_EQ(Counters{}, submitted());
  tokens(first, attempt, 0, {1}, epoch());
  live(1500 * kMs);
  EXPECT_EQ(Counters{second}, submitted());
}

TEST_F(TrialTest, a_lone_trial_keeps_new_requests_back_until_it_is_over) {
  welcome();
  const auto suspect = open();
  for (int i = 0; i < 3; ++i) {
    another_scheduler();
    live(3 * kSecond);
  }
  another_scheduler();
  submitted();
  live(3 * kSecond);
  EXPECT_EQ(Counters{suspect}, submitted());
  const auto late = open();
  live(5 * kSecond);
  EXPECT_EQ(Counters{}, submitted());
  live(6 * kSecond);
  EXPECT_EQ(Counters{late}, submitted());
  // Acquitted: the next scheduler gets it at once.
  another_scheduler();
  EXPECT_EQ((Counters{suspect, late}), submitted());
  EXPECT_TRUE(ends.empty());
}

TEST_F(TrialTest, one_that_kills_after_a_token_of_each_life_ends_too) {
  welcome();
  const auto killer = open(1000);
  std::uint32_t deaths = 0;
  for (; ends.empty() && deaths < 50; ++deaths) {
    const auto attempt = attempt_of(killer);
    const auto n = static_cast<std::uint32_t>(text[killer].size());
    tokens(killer, attempt, n, {1}, epoch());
    sent.clear();
    another_scheduler();
    for (int i = 0; i < 40 && attempt_of(killer) == 0; ++i) live(500 * kMs);
  }
  ASSERT_EQ(1U, ends.size());
  EXPECT_EQ(ErrorCode::worker_crashes, ends[0].code);
  EXPECT_EQ(11U, deaths);
}

TEST_F(TrialTest, front_ends_take_turns) {
  welcome();
  const auto suspect = open();
  another_scheduler();
  another_scheduler();
  submitted();
  turns = false;
  live(20 * kSecond);
  EXPECT_EQ(Counters{}, submitted());
  EXPECT_TRUE(table.wants_turn());
  table.give_turn();
  live(500 * kMs);
  EXPECT_EQ(Counters{suspect}, submitted());
  EXPECT_TRUE(table.wants_turn());  // until it is over
  live(3 * kSecond);
  EXPECT_FALSE(table.wants_turn());
}

TEST_F(TrialTest, nobody_is_tried_with_a_scheduler_that_is_silent) {
  welcome();
  const auto suspect = open();
  another_scheduler();
  another_scheduler();
  live(kSecond);
  submitted();
  for (int i = 0; i < 40; ++i) {  // it is dead, and nobody knows yet
    pass(500 * kMs);
    if (table.wants_turn()) table.give_turn();
  }
  EXPECT_EQ(Counters{}, submitted());
  live(kSecond);
  EXPECT_EQ(Counters{suspect}, submitted());
}

TEST_F(TableTest, a_scheduler_that_forgot_this_front_end_is_told_again) {
  welcome();
  const auto a = open();
  const auto b = open();
  table.cancel(b, now, out);
  collect();
  give(FrontendUnknown{kEpoch});
  tokens(a, 1, 0, {1});  // between Unknown and Welcome nothing counts
  EXPECT_TRUE(text[a].empty());
  sent.clear();
  welcome();
  EXPECT_EQ(last<Submit>().attempt, 2U);
  EXPECT_EQ(last<Cancel>().request.counter, b) << "the same epoch may still know it";
}

TEST_F(TableTest, a_heartbeat_of_a_welcomed_table_gets_numbers_only) {
  welcome();
  open();
  sent.clear();
  welcome(kEpoch, 3, 10);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(table.scheduler().running, 3U);
}

TEST_F(TableTest, a_model_that_is_loaded_late_is_described_in_another_hello) {
  table.describe({"soon.model", "none", "generate"}, out);
  collect();
  EXPECT_TRUE(all<FrontendHello>().empty()) << "one comes anyway";
  pass(100 * kMs);
  EXPECT_EQ(last<FrontendHello>().tokenizer, "soon.model");
  welcome();
  open();
  sent.clear();
  table.describe({"late.model", "chat.jinja", "generate"}, out);
  collect();
  ASSERT_EQ(sent.size(), 1U) << "and nothing is submitted again";
  EXPECT_EQ(last<FrontendHello>().tokenizer, "late.model");
  EXPECT_EQ(last<FrontendHello>().chat_template, "chat.jinja");
  welcome();
  EXPECT_EQ(sent.size(), 1U);
}

TEST_F(TableTest, gone_submits_again_with_the_next_attempt) {
  welcome();
  const auto a = open();
  tokens(a, 1, 0, {1});
  const auto closing = open();
  table.cancel(closing, now, out);
  collect();
  sent.clear();
  give(Gone{kEpoch, {a, closing, 999}});
  ASSERT_EQ(all<Submit>().size(), 1U);
  EXPECT_EQ(last<Submit>().attempt, 2U);
  EXPECT_TRUE(last<Submit>().again);
  EXPECT_EQ(last<Submit>().generated, (std::vector<Token>{1}));
  EXPECT_EQ(table.entry_count(), 1U);
  give(Gone{kEpoch + 1, {a}});
  EXPECT_EQ(all<Submit>().size(), 1U) << "a word of another epoch";
}

TEST_F(TableTest, a_terminal_waits_for_the_tokens_that_it_counts) {
  welcome();
  const auto a = open();
  tokens(a, 1, 0, {1});
  terminal(terminal_of(a, 1, 3));
  EXPECT_TRUE(ends.empty());
  EXPECT_TRUE(all<Ack>().empty());
  EXPECT_EQ(last<FrontendHeartbeat>().next, std::vector<std::uint32_t>{1});
  tokens(a, 1, 1, {2});
  EXPECT_TRUE(ends.empty());
  tokens(a, 1, 2, {3});
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].n, 3U);
  EXPECT_EQ(all<Ack>().size(), 1U);
}

TEST_F(TableTest, a_waiting_terminal_does_not_survive_gone) {
  welcome();
  const auto a = open();
  terminal(terminal_of(a, 1, 2));
  give(Gone{kEpoch, {a}});
  tokens(a, 2, 0, {1, 2});
  EXPECT_TRUE(ends.empty()) << "attempt 2 has its own terminal";
  terminal(terminal_of(a, 2, 2));
  EXPECT_EQ(ends.size(), 1U);
}

TEST_F(TableTest, tokens_and_terminal_in_one_message) {
  welcome();
  const auto a = open();
  Events events;
  events.epoch = kEpoch;
  events.counters = {a, a};
  events.attempts = {1, 1};
  events.first_index = {0, 1};
  events.counts = {1, 2};
  events.tokens = {1, 2, 3};
  events.terminals = {terminal_of(a, 1, 3)};
  give(events);
  EXPECT_EQ(text[a], (Tokens{1, 2, 3}));
  EXPECT_EQ(ends.size(), 1U);
  EXPECT_TRUE(all<FrontendHeartbeat>().empty());
}

TEST_F(TableTest, late_terminals_are_acknowledged_again) {
  welcome();
  const auto a = open();
  terminal(terminal_of(a, 1, 0));
  terminal(terminal_of(a, 1, 0));
  EXPECT_EQ(all<Ack>().size(), 2U);
  EXPECT_EQ(ends.size(), 1U);
}

TEST_F(TableTest, a_refusal_of_the_scheduler_reaches_the_client) {
  welcome();
  const auto a = open();
  Terminal full;
  full.counter = a;
  full.attempt = 1;
  full.code = ErrorCode::queue_full;
  full.message = "20000 requests are waiting";
  full.retry_after_s = 3;
  terminal(full);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].code, ErrorCode::queue_full);
  EXPECT_EQ(ends[0].reason, FinishReason::error);
  EXPECT_EQ(ends[0].retry_after_s, 3U);
  EXPECT_EQ(all<Ack>().size(), 1U);
}

TEST_F(TableTest, finish_ends_the_stream_at_once_and_is_repeated_until_answered) {
  welcome();
  const auto a = open();
  tokens(a, 1, 0, {1, 2, 3, 4});
  table.finish(a, 3, now, out);
  collect();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].reason, FinishReason::stop);
  EXPECT_EQ(ends[0].n, 3U);
  EXPECT_EQ(all<Finish>().size(), 1U);
  tokens(a, 1, 4, {5, 6});  // crossed the Finish
  EXPECT_EQ(text[a].size(), 4U);
  pass(1500 * kMs);
  EXPECT_GE(all<Finish>().size(), 3U);
  EXPECT_EQ(last<Finish>().n, 3U);
  EXPECT_EQ(last<Finish>().attempt, 1U);
  EXPECT_EQ(last<FrontendHeartbeat>().next, std::vector<std::uint32_t>{3});
  terminal(terminal_of(a, 1, 3, FinishReason::stop));
  EXPECT_EQ(ends.size(), 1U);
  EXPECT_EQ(all<Ack>().size(), 1U);
  EXPECT_EQ(table.entry_count(), 0U);
}

TEST_F(TableTest, finish_and_cancel_of_ended_or_unknown_requests_do_nothing) {
  welcome();
  const auto a = open();
  tokens(a, 1, 0, {1});
  terminal(terminal_of(a, 1, 1));
  sent.clear();
  table.finish(a, 1, now, out);
  table.cancel(a, now, out);
  table.cancel(4711, now, out);
  const auto b = open();
  sent.clear();
  table.cancel(b, now, out);
  table.finish(b, 0, now, out);
  table.cancel(b, now, out);
  collect();
  EXPECT_EQ(sent.size(), 1U);
  EXPECT_EQ(ends.size(), 2U);
}

TEST_F(TableTest, cancel_before_any_scheduler_leaves_nothing) {
  const auto a = open();
  table.cancel(a, now, out);
  collect();
  EXPECT_EQ(ends.size(), 1U);
  EXPECT_EQ(table.entry_count(), 0U);
  welcome();
  EXPECT_TRUE(all<Submit>().empty());
}

TEST_F(TableTest, a_cancel_nobody_answers_is_given_up) {
  welcome();
  const auto a = open();
  table.cancel(a, now, out);
  collect();
  pass(59 * kSecond);
  EXPECT_EQ(table.entry_count(), 1U);
  EXPECT_GE(all<Cancel>().size(), 100U);
  pass(2 * kSecond);
  EXPECT_EQ(table.entry_count(), 0U);
}

TEST_F(TableTest, deadline_without_a_scheduler) {
  open(10, 3 * kSecond);
  pass(2900 * kMs);
  EXPECT_TRUE(ends.empty());
  pass(600 * kMs);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(table.entry_count(), 0U);
}

TEST_F(TableTest, the_scheduler_judges_a_deadline_first) {
  welcome();
  const auto a = open(10, 3 * kSecond);
  tokens(a, 1, 0, {1});
  pass(4900 * kMs);
  EXPECT_TRUE(ends.empty());
  pass(700 * kMs);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(ends[0].n, 1U);
  EXPECT_EQ(last<Cancel>().request.counter, a);
}

TEST_F(TableTest, silent_requests_are_asked_about_in_turns) {
  RequestTableLimits few;
  few.max_asked = 4;
  table = RequestTable(identity(), few);
  welcome();
  for (int i = 0; i < 10; ++i) open();
  pass(900 * kMs);
  for (const auto& beat : all<FrontendHeartbeat>()) EXPECT_TRUE(beat.counters.empty());
  sent.clear();
  pass(1500 * kMs);
  std::map<std::uint64_t, int> asked;
  for (const auto& beat : all<FrontendHeartbeat>()) {
    EXPECT_LE(beat.counters.size(), 4U);
    for (const auto counter : beat.counters) ++asked[counter];
  }
  EXPECT_EQ(asked.size(), 10U);
  for (const auto& [counter, times] : asked) EXPECT_LE(times, 2) << counter;
}

TEST_F(TableTest, news_keep_a_request_out_of_the_heartbeat) {
  welcome();
  const auto a = open();
  const auto b = open();
  for (std::uint32_t i = 0; i < 30; ++i) {
    pass(100 * kMs);
    tokens(a, 1, i, {1});
  }
  const auto beat = last<FrontendHeartbeat>();
  EXPECT_EQ(beat.counters, std::vector<std::uint64_t>{b});
}

TEST_F(TableTest, the_number_of_streams_is_bounded) {
  RequestTableLimits few;
  few.max_open = 2;
  table = RequestTable(identity(), few);
  welcome();
  const auto a = open();
  const auto b = open();
  NewRequest one_more;
  one_more.deadline = now + kSecond;
  const auto refused_one = table.open(one_more, now, out);
  ASSERT_FALSE(refused_one.ok());
  EXPECT_EQ(refused_one.status().code(), ErrorCode::queue_full);
  // Closing entries do not count as streams, but they are bounded too.
  table.cancel(a, now, out);
  table.cancel(b, now, out);
  const auto c = open();
  const auto d = open();
  table.cancel(c, now, out);
  table.cancel(d, now, out);
  EXPECT_FALSE(table.open(one_more, now, out).ok());
}

TEST_F(TableTest, tokens_beyond_the_limit_are_not_delivered) {
  welcome();
  const auto a = open(2);
  tokens(a, 1, 0, {1, 2, 3});
  EXPECT_EQ(text[a], (Tokens{1, 2}));
  EXPECT_EQ(table.counters().malformed, 1U);
}

TEST_F(TableTest, refusals_and_other_protocols_are_final) {
  give(Refused{"the model differs"});
  EXPECT_EQ(refused, "the model differs");
  FrontendWelcome other;
  other.protocol = kProtocolVersion + 1;
  give(other);
  ASSERT_TRUE(refused.has_value());
  EXPECT_FALSE(table.scheduler().welcomed);
}

TEST_F(TableTest, progress_is_dated) {
  welcome(kEpoch, 1, 5);
  const TimeNs first = now;
  pass(kSecond);
  welcome(kEpoch, 1, 5);
  EXPECT_EQ(table.scheduler().progress_at, first);
  EXPECT_EQ(table.scheduler().heard_at, now);
  welcome(kEpoch, 1, 6);
  EXPECT_EQ(table.scheduler().progress_at, now);
  pass(kSecond);
  welcome(kEpoch, 0, 6);
  EXPECT_EQ(table.scheduler().progress_at, now) << "idle is not stuck";
}

TEST_F(TableTest, a_young_schedulers_smaller_context_is_not_believed_at_once) {
  const auto context = [&](Epoch epoch, std::uint32_t tokens) {
    FrontendWelcome message;
    message.epoch = epoch;
    message.max_context = tokens;
    give(message);
    return table.scheduler().max_context;
  };
  EXPECT_EQ(context(kEpoch, 1000), 1000U);
  pass(20 * kSecond);
  EXPECT_EQ(context(kEpoch, 500), 500U);
  EXPECT_EQ(context(kEpoch, 1000), 1000U);
  EXPECT_EQ(context(kEpoch + 1, 500), 1000U) << "the larger pool may join yet";
  pass(5 * kSecond);
  EXPECT_EQ(context(kEpoch + 1, 500), 1000U);
  pass(6 * kSecond);
  EXPECT_EQ(context(kEpoch + 1, 500), 500U);
}

/// A process that goes on with what another one has left.
class HeirTable : public TableTest {
 protected:
  static FrontendIdentity heir() {
    FrontendIdentity heir = identity();
    heir.pid = 3;
    heir.has_successor = true;
    heir.generation = 1;
    return heir;
  }
  HeirTable() { table = RequestTable(heir(), {}); }

  static AdoptedRequest left(std::uint64_t counter, std::uint32_t attempt, Tokens generated) {
    AdoptedRequest left;
    left.counter = counter;
    left.attempt = attempt;
    left.arrival = 3 * kSecond;
    left.request.prompt = {5, 6, 7};
    left.request.sampling.max_tokens = 4;
    left.request.deadline = 600 * kSecond;
    left.generated = std::move(generated);
    return left;
  }
  void adopt(AdoptedRequest request) {
    text[request.counter] = request.request.sampling.beams() ? Tokens{} : request.generated;
    table.adopt(std::move(request), now);
  }
};

TEST_F(HeirTable, asks_the_same_scheduler_for_the_next_token) {
  table.succeed(kEpoch, 8);
  adopt(left(3, 2, {11, 12}));
  EXPECT_EQ(table.open_count(), 1U);
  pass(100 * kMs);
  const auto hello = last<FrontendHello>();
  EXPECT_EQ(hello.generation, 1U);
  EXPECT_TRUE(hello.has_successor);
  EXPECT_EQ(hello.inherited, (std::vector<std::uint64_t>{3}));
  EXPECT_TRUE(all<FrontendHeartbeat>().empty());
  EXPECT_EQ(table.scheduler().epoch, 0U) << "none has answered it";
  welcome(kEpoch, 1, 0);
  EXPECT_TRUE(all<Submit>().empty());
  ASSERT_EQ(all<FrontendHeartbeat>().size(), 1U);
  EXPECT_EQ(last<FrontendHeartbeat>().counters, (std::vector<std::uint64_t>{3}));
  EXPECT_EQ(last<FrontendHeartbeat>().attempts, (std::vector<std::uint32_t>{2}));
  EXPECT_EQ(last<FrontendHeartbeat>().next, (std::vector<std::uint32_t>{2}));
  EXPECT_EQ(table.scheduler().progress_at, now) << "not as if nothing had moved since the boot";
  tokens(3, 2, 1, {12, 13});  // one that its client has is dropped
  tokens(3, 2, 3, {14});
  EXPECT_EQ(text[3], (Tokens{11, 12, 13, 14}));
  terminal(terminal_of(3, 2, 4));
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].n, 4U);
  EXPECT_EQ(all<Ack>().size(), 1U);
  EXPECT_EQ(open(), 8U) << "counters go on";
  EXPECT_EQ(table.counters().adopted, 1U);
}

TEST_F(HeirTable, asks_about_all_at_once_and_again_if_that_is_lost) {
  table.succeed(kEpoch, 1000);
  for (std::uint64_t i = 1; i <= 600; ++i) adopt(left(i, 1, {11}));
  pass(100 * kMs);
  EXPECT_EQ(last<FrontendHello>().inherited.size(), 600U);
  sent.clear();
  welcome();
  const auto beats = all<FrontendHeartbeat>();
  ASSERT_EQ(beats.size(), 3U);
  EXPECT_EQ(beats[0].counters.size(), 256U);
  EXPECT_EQ(beats[0].counters.front(), 1U);
  EXPECT_EQ(beats[2].counters.back(), 600U);
  sent.clear();
  pass(1600 * kMs);
  std::size_t asked = 0;
  for (const auto& beat : all<FrontendHeartbeat>()) asked += beat.counters.size();
  EXPECT_GE(asked, 256U);
  EXPECT_TRUE(all<Submit>().empty());
}

TEST_F(HeirTable, submits_what_the_same_scheduler_does_not_know) {
  table.succeed(kEpoch, 8);
  adopt(left(3, 2, {11, 12}));
  adopt(left(4, 0, {}));  // never sent
  pass(100 * kMs);
  welcome();
  ASSERT_EQ(all<Submit>().size(), 1U);
  EXPECT_EQ(last<Submit>().request.counter, 4U);
  EXPECT_EQ(last<Submit>().attempt, 1U);
  EXPECT_FALSE(last<Submit>().again);
  give(Gone{kEpoch, {3}});
  const auto submit = last<Submit>();
  EXPECT_EQ(submit.request, (RequestId{77, 3}));
  EXPECT_EQ(submit.attempt, 3U);
  EXPECT_TRUE(submit.again);
  EXPECT_EQ(submit.arrival, 3 * kSecond);
  EXPECT_EQ(submit.prompt, (Tokens{5, 6, 7}));
  EXPECT_EQ(submit.generated, (Tokens{11, 12}));
  tokens(3, 3, 2, {13});
  EXPECT_EQ(text[3], (Tokens{11, 12, 13}));
}

TEST_F(HeirTable, submits_everything_to_another_scheduler) {
  table.succeed(kEpoch, 8);
  adopt(left(4, 1, {}));
  adopt(left(3, 2, {11, 12}));
  pass(100 * kMs);
  welcome(kEpoch + 1);
  const auto submits = all<Submit>();
  ASSERT_EQ(submits.size(), 2U);
  EXPECT_EQ(submits[0].request.counter, 3U);
  EXPECT_EQ(submits[0].attempt, 3U);
  EXPECT_EQ(submits[0].epoch, kEpoch + 1);
  EXPECT_EQ(submits[1].attempt, 2U);
}

TEST_F(HeirTable, of_one_that_knew_no_scheduler) {
  table.succeed(0, 0);
  adopt(left(3, 0, {}));
  pass(100 * kMs);
  welcome();
  ASSERT_EQ(all<Submit>().size(), 1U);
  EXPECT_EQ(last<Submit>().attempt, 1U);
  EXPECT_EQ(open(), 4U);
}

TEST_F(HeirTable, gets_past_a_scheduler_that_is_ahead_of_the_journal) {
  // It has attempt 3: it says Gone of all others, and passes over a Submit that is not newer.
  table.succeed(kEpoch, 8);
  adopt(left(3, 1, {11}));
  pass(100 * kMs);
  welcome();
  std::uint32_t attempt = 1;
  for (int i = 0; i < 4 && attempt < 3; ++i) {
    give(Gone{kEpoch, {3}});
    attempt = last<Submit>().attempt;
    pass(1600 * kMs);
    EXPECT_EQ(last<FrontendHeartbeat>().attempts, (std::vector<std::uint32_t>{attempt}));
  }
  EXPECT_EQ(attempt, 3U);
  tokens(3, 3, 0, {11, 12});
  EXPECT_EQ(text[3], (Tokens{11, 12}));
}

TEST_F(HeirTable, what_is_complete_already_ends_by_the_scheduler) {
  table.succeed(kEpoch, 8);
  adopt(left(3, 1, {11, 12, 13, 14}));
  adopt(left(4, 1, {11, 12, 13, 14}));
  pass(100 * kMs);
  welcome();
  EXPECT_EQ(last<FrontendHeartbeat>().next, (std::vector<std::uint32_t>{4, 4}));
  terminal(terminal_of(3, 1, 4));  // it still has the end
  ASSERT_EQ(ends.size(), 1U);
  give(Gone{kEpoch, {4}});  // it had been acknowledged
  EXPECT_EQ(last<Submit>().generated.size(), 4U);
  terminal(terminal_of(4, 2, 4));
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[1].reason, FinishReason::length);
  EXPECT_EQ(text[4].size(), 4U);
}

TEST_F(HeirTable, a_search_comes_whole) {
  table.succeed(kEpoch, 8);
  AdoptedRequest search = left(3, 1, {99});
  search.request.sampling.num_beams = 4;
  search.request.sampling.num_return_sequences = 2;
  adopt(search);
  pass(100 * kMs);
  welcome();
  EXPECT_EQ(last<FrontendHeartbeat>().next, (std::vector<std::uint32_t>{0}));
  Terminal found = terminal_of(3, 1, 3);
  found.n = {3, 2};
  found.reason = {static_cast<std::uint32_t>(FinishReason::length),
                  static_cast<std::uint32_t>(FinishReason::stop)};
  found.scores = {-0.5F, -0.75F};
  terminal(found);
  tokens(3, 1, 0, {11, 12, 13, 21, 22});
  EXPECT_EQ(text[3], (Tokens{11, 12, 13, 21, 22}));
  EXPECT_EQ(ends.size(), 1U);
}

TEST_F(HeirTable, a_grammar_and_log_probabilities_go_along) {
  table.succeed(kEpoch, 8);
  AdoptedRequest request = left(3, 1, {11});
  request.request.sampling.grammar_kind = GrammarKind::regex;
  request.request.sampling.grammar = "a+";
  request.request.cache_salt = "salt";
  request.request.priority = -3;
  request.request.lifetime = true;
  adopt(request);
  pass(100 * kMs);
  welcome(kEpoch + 1);
  EXPECT_EQ(last<Submit>().sampling.grammar, "a+");
  EXPECT_EQ(last<Submit>().cache_salt, "salt");
  EXPECT_EQ(last<Submit>().priority, -3);
  EXPECT_TRUE(last<Submit>().lifetime);
}

TEST_F(HeirTable, its_clients_may_leave_before_the_welcome) {
  table.succeed(kEpoch, 8);
  adopt(left(3, 1, {11}));
  adopt(left(4, 1, {11}));
  adopt(left(5, 0, {}));
  pass(100 * kMs);
  table.cancel(3, now, out);
  table.finish(4, 1, now, out);
  table.cancel(5, now, out);
  collect();
  EXPECT_EQ(ends.size(), 3U);
  pass(100 * kMs);
  EXPECT_EQ(last<FrontendHello>().inherited, (std::vector<std::uint64_t>{3, 4}));
  welcome();
  EXPECT_EQ(last<Cancel>().request.counter, 3U);
  EXPECT_EQ(last<Finish>().request.counter, 4U);
  EXPECT_EQ(last<Finish>().attempt, 1U);
  give(Gone{kEpoch, {3, 4}});
  EXPECT_EQ(table.entry_count(), 0U);
}

TEST_F(HeirTable, only_what_it_inherited_is_named) {
  table.succeed(kEpoch, 8);
  adopt(left(3, 1, {11}));
  adopt(left(3, 2, {11, 12}));  // the journal contradicts itself: the first one counts
  const auto own = open();
  pass(100 * kMs);
  EXPECT_EQ(own, 8U);
  EXPECT_EQ(last<FrontendHello>().inherited, (std::vector<std::uint64_t>{3}));
  welcome();
  EXPECT_EQ(last<Submit>().request.counter, own);
  EXPECT_EQ(last<FrontendHeartbeat>().attempts, (std::vector<std::uint32_t>{1}));
}

TEST_F(HeirTable, a_counter_beyond_the_next_one_is_not_used_again) {
  table.succeed(kEpoch, 3);
  adopt(left(7, 1, {11}));
  EXPECT_EQ(open(), 8U);
}

TEST_F(HeirTable, a_second_welcome_of_the_same_scheduler_submits_as_ever) {
  table.succeed(kEpoch, 8);
  adopt(left(3, 1, {11}));
  pass(100 * kMs);
  welcome();
  give(FrontendUnknown{kEpoch});
  welcome();
  ASSERT_EQ(all<Submit>().size(), 1U);
  EXPECT_EQ(last<Submit>().attempt, 2U);
}

/// A scheduler that knows the truth, behind a link that loses, doubles and delays; it dies at
/// times.
TEST_F(TableTest, random_losses_never_cost_or_repeat_a_token) {
  // Trials end before the next death, which is nobody's fault here.
  table = RequestTable(identity(), {.trial = 20 * kMs, .lone_trial = 40 * kMs});
  std::mt19937 random(1);
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  const auto truth = [](std::uint64_t counter, std::uint32_t i) {
    return static_cast<Token>(counter * 1000 + i);
  };
  struct Known {
    std::uint32_t attempt, n, total, prompt_sent;
  };
  std::map<std::uint64_t, Known> known;
  Epoch epoch = kEpoch;
  bool greeted = false;
  std::map<std::uint64_t, std::uint32_t> wanted;
  std::size_t read = 0;
  const auto say = [&](const ToFrontend& message) {
    if (chance(20)) return;
    give(message);
    if (chance(10)) give(message);
  };
  const auto row = [&](std::uint64_t c, std::uint32_t attempt, std::uint32_t first,
                       std::uint32_t end) {
    Events events;
    events.epoch = epoch;
    events.counters = {c};
    events.attempts = {attempt};
    events.first_index = {first};
    events.counts = {end - first};
    for (auto i = first; i < end; ++i) events.tokens.push_back(truth(c, i));
    return events;
  };
  const auto hear = [&](const FrontendMessage& message) {
    if (chance(20)) return;
    FrontendWelcome welcome_message;
    welcome_message.epoch = epoch;
    if (std::holds_alternative<FrontendHello>(message)) {
      greeted = true;
      say(welcome_message);
      return;
    }
    if (!greeted) return say(FrontendUnknown{epoch});
    if (const auto* s = std::get_if<Submit>(&message)) {
      auto& k = known[s->request.counter];
      if (s->epoch == epoch && s->attempt > k.attempt) {
        const auto have = static_cast<std::uint32_t>(s->generated.size());
        k = {s->attempt, have, s->sampling.max_tokens, have};
      }
    } else if (const auto* ack = std::get_if<Ack>(&message)) {
      known.erase(ack->request.counter);
    } else if (const auto* beat = std::get_if<FrontendHeartbeat>(&message)) {
      for (std::size_t i = 0; i < beat->counters.size(); ++i) {
        const auto at = known.find(beat->counters[i]);
        if (at == known.end() || at->second.attempt != beat->attempts[i]) {
          say(Gone{epoch, {beat->counters[i]}});
        } else if (beat->next[i] < at->second.n) {
          say(row(at->first, at->second.attempt, beat->next[i], at->second.n));
        } else if (at->second.n == at->second.total) {
          Events events;
          events.epoch = epoch;
          events.terminals = {terminal_of(at->first, at->second.attempt, at->second.total)};
          say(events);
        }
      }
      say(welcome_message);
    }
  };
  std::size_t opened = 0;
  for (int round = 0; round < 20000 && (opened < 60 || table.entry_count() > 0); ++round) {
    now += 20 * kMs;
    if (opened < 60 && chance(20)) {
      const auto total = static_cast<std::uint32_t>(random() % 40);
      wanted[open(total)] = total;
      ++opened;
    }
    if (chance(1) && round < 4000) {
      known.clear();
      greeted = false;
      ++epoch;
    }
    for (auto& [c, k] : known) {
      if (k.attempt == 0 || k.n >= k.total || !chance(30)) continue;
      const auto end = std::min(k.total, k.n + 1 + static_cast<std::uint32_t>(random() % 3));
      const auto first = std::exchange(k.n, end);
      auto events = row(c, k.attempt, first, end);
      if (end == k.total) events.terminals = {terminal_of(c, k.attempt, end)};
      say(events);
    }
    if (table.wants_turn()) table.give_turn();
    table.tick(now, out);
    collect();
    for (; read < sent.size(); ++read) hear(FrontendMessage(sent[read]));
  }
  EXPECT_EQ(table.entry_count(), 0U);
  ASSERT_EQ(ends.size(), 60U);
  for (const auto& ending : ends) {
    EXPECT_EQ(ending.code, ErrorCode::ok) << ending.message;
    ASSERT_EQ(text[ending.counter].size(), wanted[ending.counter]);
    for (std::uint32_t i = 0; i < ending.n; ++i) {
      EXPECT_EQ(text[ending.counter][i], truth(ending.counter, i));
    }
  }
}

}  // namespace
}  // namespace baton
