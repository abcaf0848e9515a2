// Real baton-worker processes with the fake model: its tokens follow from what the KV pool holds,
// so equal tokens mean equal bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <vector>

#include "ipc/shm_region.h"
#include "tests/unit/workers/fake_scheduler.h"
#include "workers/execute/fake_model.h"
#include "workers/protocol/worker_core.h"

namespace baton::test {
namespace {

constexpr const char* kSmall = "  fake: true\n  pool_blocks: 64\n";
constexpr std::uint32_t kVocab = 32'000;

std::vector<Token> prompt_of(std::size_t n, Token first = 5) {
  std::vector<Token> prompt;
  for (std::size_t i = 0; i < n; ++i) prompt.push_back(first + static_cast<Token>(i * 7 % 1000));
  return prompt;
}

/// What an undisturbed run generates.
std::vector<Token> expected(std::vector<Token> prefix, std::size_t n) {
  std::vector<Token> out;
  for (std::size_t i = 0; i < n; ++i) {
    out.push_back(FakeModel::next_token(prefix, kVocab));
    prefix.push_back(out.back());
  }
  return out;
}

AddSequence add(SequenceId id, std::vector<Token> prompt, std::vector<BlockId> blocks) {
  AddSequence a;
  a.sequence = id;
  a.prompt = std::move(prompt);
  a.blocks = std::move(blocks);
  return a;
}

std::vector<std::byte> bytes_of(const Hello& h, BlockId block) {
  const bool on_host = block >= h.blocks;
  if (on_host) block -= h.blocks;
  auto region = ShmRegion::open_readonly(on_host ? h.host_handle : h.ranks.at(0).handle,
                                         h.block_bytes * (on_host ? h.host_blocks : h.blocks));
  EXPECT_TRUE(region.ok()) << region.status().message();
  if (!region.ok()) return {};
  const std::byte* begin = region.value().data() + h.block_bytes * block;
  return {begin, begin + h.block_bytes};
}

bool is_zero(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

/// Runs a prompt of 40 tokens into blocks 5, 6, 7 of prefill0, as steps 1 and 2; gives its first
/// token.
Token prefill(FakeScheduler& s) {
  StepPlan one = s.plan("prefill0", 1);
  one.add = {add(1, prompt_of(40), {5, 6, 7})};
  one.rows = {{1, 32, LogitsWanted::none, false}};
  s.send("prefill0", one);
  StepPlan two = s.plan("prefill0", 2);
  two.rows = {{1, 8, LogitsWanted::last, false}};
  s.send("prefill0", two);
  const auto first = s.expect<StepResult>("prefill0");
  EXPECT_TRUE(first && first->step == 1 && first->tokens.empty());
  const auto second = s.expect<StepResult>("prefill0");
  EXPECT_TRUE(second && second->tokens.size() == 1);
  return second && !second->tokens.empty() ? second->tokens[0] : kNoToken;
}

/// Decodes `n` tokens of a handed-over sequence on decode0, two plans in flight.
std::vector<Token> decode(FakeScheduler& s, Token first, std::vector<BlockId> blocks, StepId n) {
  AddSequence a = add(2, prompt_of(40), std::move(blocks));
  a.generated = {first};
  a.computed = 40;
  a.decode = true;
  std::vector<Token> out = {first};
  for (StepId step = 1; step <= n + 1; ++step) {
    if (step <= n) {
      StepPlan p = s.plan("decode0", step);
      p.decode = true;
      if (step == 1) p.add = {a};
      s.send("decode0", p);
    }
    if (step == 1) continue;
    const auto result = s.expect<StepResult>("decode0");
    if (!result || result->step != step - 1 || result->tokens.size() != 1) return out;
    out.push_back(result->tokens[0]);
  }
  return out;
}

TEST(WorkerProcess, JoinsAndRunsSteps) {
  FakeScheduler s(kSmall);
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  const Hello& h = s.peers["prefill0"].hello;
  EXPECT_EQ(h.blocks, 64U);
  EXPECT_EQ(h.tokens_per_block, 16U);
  EXPECT_EQ(h.vocab_size, kVocab);
  EXPECT_EQ(s.peers["prefill0"].identity.pid, worker->pid());
  EXPECT_EQ(s.peers["prefill0"].identity.role, Role::prefill);
  EXPECT_TRUE(std::filesystem::exists(s.run_dir() + "/prefill0.alive"));
  EXPECT_EQ(prefill(s), expected(prompt_of(40), 1)[0]);

  const auto beat = s.expect_if<WorkerHeartbeat>(
      "prefill0", [](const WorkerHeartbeat& b) { return b.steps_done == 2; });
  ASSERT_TRUE(beat.has_value());
  EXPECT_EQ(beat->plans_received, 2U);
  s.send("prefill0", AuditTables{s.peers["prefill0"].term});
  const auto tables = s.expect<Tables>("prefill0");
  ASSERT_TRUE(tables.has_value());
  EXPECT_EQ(tables->blocks, (std::vector<BlockId>{5, 6, 7}));
}

TEST(WorkerProcess, StartsBeforeTheScheduler) {
  FakeScheduler s(kSmall, /*listen_now=*/false);
  const auto worker = s.start("decode0");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  s.listen();
  s.join("decode0");
}

TEST(WorkerProcess, ManySequencesWithTwoPlansInFlight) {
  FakeScheduler s("  fake: true\n  pool_blocks: 512\n");
  const auto worker = s.start("decode0");
  s.join("decode0");
  constexpr int kSequences = 100;
  constexpr StepId kSteps = 50;
  std::map<SequenceId, std::vector<Token>> got;
  for (StepId step = 1; step <= kSteps + 1; ++step) {
    if (step <= kSteps) {
      StepPlan p = s.plan("decode0", step);
      p.decode = true;
      for (SequenceId id = 1; step == 1 && id <= kSequences; ++id) {
        const auto block = static_cast<BlockId>(id * 4);
        p.add.push_back(add(id, prompt_of(10, static_cast<Token>(id)),
                            {block, block + 1, block + 2, block + 3}));
        p.rows.push_back({id, 10, LogitsWanted::last, true});
      }
      s.send("decode0", p);
    }
    if (step == 1) continue;
    const auto result = s.expect<StepResult>("decode0");
    ASSERT_TRUE(result.has_value());
    ASSERT_EQ(result->step, step - 1);
    ASSERT_EQ(result->tokens.size(), static_cast<std::size_t>(kSequences));
    for (std::size_t i = 0; i < result->tokens.size(); ++i) {
      got[result->sequences[i]].push_back(result->tokens[i]);
    }
  }
  for (const auto& [id, tokens] : got) {
    EXPECT_EQ(tokens, expected(prompt_of(10, static_cast<Token>(id)), kSteps)) << id;
  }
}

TEST(WorkerProcess, BlocksArriveByteForByteAndDecodingGoesOn) {
  FakeScheduler s(kSmall);
  const auto a = s.start("prefill0");
  const auto b = s.start("decode0");
  s.join("prefill0");
  s.join("decode0");
  const Token first = prefill(s);
  s.send("decode0", s.pull(1, "prefill0", "decode0", {5, 6}, {9, 3}));
  s.send("decode0", s.pull(2, "prefill0", "decode0", {7}, {1}));
  ASSERT_EQ(s.expect<PullDone>("decode0").value_or(PullDone{}).pull_id, 1U);
  ASSERT_EQ(s.expect<PullDone>("decode0").value_or(PullDone{}).pull_id, 2U);
  const Hello& from = s.peers["prefill0"].hello;
  const Hello& to = s.peers["decode0"].hello;
  for (const auto& [source, copy] : {std::pair{5, 9}, {6, 3}, {7, 1}}) {
    const auto bytes = bytes_of(from, static_cast<BlockId>(source));
    EXPECT_FALSE(is_zero(bytes));
    EXPECT_EQ(bytes, bytes_of(to, static_cast<BlockId>(copy)));
  }
  EXPECT_TRUE(is_zero(bytes_of(to, 2)));
  EXPECT_EQ(decode(s, first, {9, 3, 1, 20}, 20), expected(prompt_of(40), 21));
}

TEST(WorkerProcess, AMissingBlockWouldBeSeen) {
  FakeScheduler s(kSmall);
  const auto a = s.start("prefill0");
  const auto b = s.start("decode0");
  s.join("prefill0");
  s.join("decode0");
  const Token first = prefill(s);
  s.send("decode0", s.pull(1, "prefill0", "decode0", {5, 6}, {9, 3}));  // not block 7
  ASSERT_TRUE(s.expect<PullDone>("decode0").has_value());
  EXPECT_NE(decode(s, first, {9, 3, 1, 20}, 20), expected(prompt_of(40), 21));
}

TEST(WorkerProcess, ASequenceLeavesForTheHostPartAndComesBack) {
  FakeScheduler s("  fake: true\n  pool_blocks: 64\n  host_pool_blocks: 8\n");
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  const Hello& h = s.peers["prefill0"].hello;
  EXPECT_EQ(h.host_blocks, 8U);
  EXPECT_GT(h.host_block_us, 0.0F);
  EXPECT_TRUE(std::filesystem::exists("/dev/shm/" + h.host_handle));
  std::vector<Token> out = {prefill(s)};  // blocks 5, 6, 7

  // One plan saves the blocks, gives their places to somebody else, and computes him there.
  StepPlan p = s.plan("prefill0", 3);
  p.drop = {1};
  p.ops = {{5, 70}, {6, 64}, {7, 71}};
  p.add = {add(2, prompt_of(48, 900), {5, 6, 7})};
  p.rows = {{2, 48, LogitsWanted::last, false}};
  s.send("prefill0", p);
  const auto other = s.expect<StepResult>("prefill0");
  ASSERT_TRUE(other && other->tokens.size() == 1);
  EXPECT_EQ(other->tokens[0], expected(prompt_of(48, 900), 1)[0]);

  // Back, to other places; the place of a saved block is written in the very plan that saves it.
  for (StepId step = 4; step < 14; ++step) {
    p = s.plan("prefill0", step);
    p.decode = true;
    if (step == 4) {
      p.drop = {2};
      p.ops = {{70, 5}, {64, 40}, {71, 41}, {5, 65}};
      AddSequence back = add(3, prompt_of(40), {5, 40, 41, 42});
      back.generated = {out[0]};
      back.computed = 40;
      back.decode = true;
      p.add = {back};
    }
    s.send("prefill0", p);
    const auto result = s.expect<StepResult>("prefill0");
    ASSERT_TRUE(result && result->tokens.size() == 1);
    out.push_back(result->tokens[0]);
  }
  EXPECT_EQ(out, expected(prompt_of(40), 11));
  EXPECT_NE(bytes_of(h, 5), bytes_of(h, 65)) << "what was saved is the block's older content";
}

TEST(WorkerProcess, OthersPullOutOfTheHostPartThoughItsOwnerDied) {
  FakeScheduler s("  fake: true\n  pool_blocks: 64\n  host_pool_blocks: 8\n  pull_delay_ms: 400\n");
  auto a = s.start("prefill0");
  const auto b = s.start("decode0");
  s.join("prefill0");
  s.join("decode0");
  const Token first = prefill(s);
  StepPlan p = s.plan("prefill0", 3);
  p.drop = {1};
  p.ops = {{5, 70}, {6, 64}};
  s.send("prefill0", p);
  ASSERT_TRUE(s.expect<StepResult>("prefill0").has_value());
  s.send("decode0", s.pull(1, "prefill0", "decode0", {70, 64, 7}, {9, 3, 1}));
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const Hello from = s.peers["prefill0"].hello;
  a.reset();  // SIGKILL, reaped
  ASSERT_TRUE(s.expect<PullDone>("decode0").has_value());
  EXPECT_EQ(decode(s, first, {9, 3, 1, 20}, 20), expected(prompt_of(40), 21));
  const auto again = s.start("prefill0");
  s.join("prefill0");
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/" + from.host_handle)) << "its successor's work";
}

TEST(WorkerProcess, AGapInThePlansBeginsANewTerm) {
  FakeScheduler s(kSmall);
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  const std::uint64_t hello_id = s.peers["prefill0"].hello.hello_id;
  const AllocationId allocation = s.peers["prefill0"].hello.allocation;
  prefill(s);
  s.send("prefill0", s.plan("prefill0", 4));
  s.welcome("prefill0");
  EXPECT_GT(s.peers["prefill0"].hello.hello_id, hello_id);
  EXPECT_EQ(s.peers["prefill0"].hello.allocation, allocation);
  EXPECT_EQ(prefill(s), expected(prompt_of(40), 1)[0]);  // plans 1 and 2, sequence 1: all anew
}

TEST(WorkerProcess, AnUnreadableMessageBeginsANewTerm) {
  FakeScheduler s(kSmall);
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  s.send_bytes("prefill0", "\x93\x01\x3egarbage");
  s.welcome("prefill0");
  EXPECT_NE(prefill(s), kNoToken);
}

TEST(WorkerProcess, ANewSchedulerIsJoinedAnew) {
  FakeScheduler s(kSmall);
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  prefill(s);
  const Hello before = s.peers["prefill0"].hello;
  s.epoch = 8;
  s.send("prefill0", Fenced{s.epoch, s.peers["prefill0"].term});
  s.join("prefill0");
  EXPECT_EQ(s.peers["prefill0"].hello.allocation, before.allocation);
  EXPECT_EQ(prefill(s), expected(prompt_of(40), 1)[0]);
}

TEST(WorkerProcess, AnExporterKilledDuringAPull) {
  FakeScheduler s("  fake: true\n  pool_blocks: 64\n  pull_delay_ms: 400\n");
  auto a = s.start("prefill0");
  const auto b = s.start("decode0");
  s.join("prefill0");
  s.join("decode0");
  const Token first = prefill(s);
  const Hello from = s.peers["prefill0"].hello;
  std::vector<std::vector<std::byte>> source;
  for (const BlockId block : {5U, 6U, 7U}) source.push_back(bytes_of(from, block));
  s.send("decode0", s.pull(1, "prefill0", "decode0", {5, 6, 7}, {9, 3, 1}));
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  a.reset();  // SIGKILL, reaped
  ASSERT_TRUE(s.expect<PullDone>("decode0").has_value());
  const Hello& to = s.peers["decode0"].hello;
  EXPECT_EQ(source[0], bytes_of(to, 9));
  EXPECT_EQ(source[1], bytes_of(to, 3));
  EXPECT_EQ(source[2], bytes_of(to, 1));

  // It lets go of the memory by itself, and a later pull from there fails.
  const auto closed = s.expect<Closed>("decode0");
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->allocation, from.allocation);
  s.send("decode0", s.pull(2, "prefill0", "decode0", {5}, {30}));
  const auto failed = s.expect<PullFailed>("decode0");
  ASSERT_TRUE(failed.has_value());
  EXPECT_NE(failed->reason.find("is gone"), std::string::npos) << failed->reason;

  EXPECT_EQ(decode(s, first, {9, 3, 1, 20}, 20), expected(prompt_of(40), 21));

  // Its successor removes the dead name.
  const auto again = s.start("prefill0");
  s.join("prefill0");
  EXPECT_NE(s.peers["prefill0"].hello.allocation, from.allocation);
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/" + from.ranks.at(0).handle));
}

TEST(WorkerProcess, CloseIsAnsweredOnceItsPullsHaveEnded) {
  FakeScheduler s("  fake: true\n  pool_blocks: 64\n  pull_delay_ms: 300\n");
  const auto a = s.start("prefill0");
  const auto b = s.start("decode0");
  s.join("prefill0");
  s.join("decode0");
  s.send("decode0", s.pull(1, "prefill0", "decode0", {5}, {9}));
  s.send("decode0", Close{s.peers["prefill0"].hello.allocation});
  const TimeNs begin = now_ns();
  ASSERT_TRUE(s.expect<Closed>("decode0").has_value());
  EXPECT_GT(now_ns() - begin, 200 * kMillisecond);
}

TEST(WorkerProcess, SupersededAndRefusedHaveTheirExitCodes) {
  FakeScheduler s(kSmall);
  const auto a = s.start("prefill0");
  const auto b = s.start("decode0");
  s.join("prefill0");
  s.send("prefill0", Superseded{s.peers["prefill0"].identity.incarnation + 1});
  EXPECT_EQ(a->exit_code(), kExitSuperseded);
  ASSERT_TRUE(s.expect<Register>("decode0").has_value());
  s.send("decode0", Refused{"its model differs"});
  EXPECT_EQ(b->exit_code(), kExitRefused);
}

TEST(WorkerProcess, SigtermDrainsUntilLeave) {
  FakeScheduler s("  fake: true\n  pool_blocks: 64\n  host_pool_blocks: 2\n");
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  worker->signal(SIGTERM);
  const TimeNs begin = now_ns();
  ASSERT_TRUE(s.expect_if<WorkerHeartbeat>("prefill0", [](const WorkerHeartbeat& b) {
                 return b.draining;
               }).has_value());
  EXPECT_LT(now_ns() - begin, 200 * kMillisecond);
  EXPECT_EQ(prefill(s), expected(prompt_of(40), 1)[0]);  // plans still run
  s.send("prefill0", Leave{s.peers["prefill0"].identity.incarnation});
  EXPECT_TRUE(s.expect<WorkerBye>("prefill0").has_value());
  EXPECT_EQ(worker->exit_code(), kExitOk);
  const Hello& h = s.peers["prefill0"].hello;
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/" + h.ranks.at(0).handle));
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/" + h.host_handle));
}

TEST(WorkerProcess, SigtermIsBounded) {
  FakeScheduler s("  fake: true\n  pool_blocks: 64\n  drain_s: 1\n  step_delay_ms: 20000\n");
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  StepPlan one = s.plan("prefill0", 1);
  one.ops = {{1, 2}};  // a step that outlasts the drain
  s.send("prefill0", one);
  worker->signal(SIGTERM);
  EXPECT_TRUE(s.expect<WorkerBye>("prefill0").has_value());
  EXPECT_EQ(worker->exit_code(2), kExitOk);
}

TEST(WorkerProcess, AFaultTokenKillsItInAPromptOnly) {
  FakeScheduler s("  fake: true\n  pool_blocks: 64\n  fault_token: 666\n");
  const auto worker = s.start("prefill0");
  s.join("prefill0");
  EXPECT_EQ(prefill(s), expected(prompt_of(40), 1)[0]);
  StepPlan p = s.plan("prefill0", 3);
  p.add = {add(9, {1, 666, 2}, {30})};
  p.rows = {{9, 3, LogitsWanted::last, false}};
  s.send("prefill0", p);
  const auto status = worker->wait(5);
  ASSERT_TRUE(status.has_value());
  ASSERT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), SIGABRT);
}

#ifdef BATON_HAVE_CPU_MODEL
/// 40 tokens inside the vocabulary of 80.
std::vector<Token> tiny_prompt() {
  std::vector<Token> prompt = prompt_of(40);
  for (Token& t : prompt) t = t % 77 + 3;
  return prompt;
}

/// One sequence wholly on decode0 (a prompt of 40 in one row), steps 1 to n.
std::vector<Token> run_alone(FakeScheduler& s, const SamplingParams& sampling, StepId n) {
  std::vector<Token> out;
  for (StepId step = 1; step <= n; ++step) {
    StepPlan p = s.plan("decode0", step);
    p.decode = true;
    if (step == 1) {
      p.add = {add(1, tiny_prompt(), {40, 2, 33, 4})};
      p.add[0].sampling = sampling;
      p.rows = {{1, 40, LogitsWanted::last, true}};
    }
    s.send("decode0", p);
    const auto result = s.expect<StepResult>("decode0");
    if (!result || result->tokens.size() != 1) return out;
    out.push_back(result->tokens[0]);
  }
  return out;
}

TEST(WorkerProcess, ARealModelGivesTheSameTokensHandedOver) {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  FakeScheduler s("  pool_blocks: 64\n", true,
                  std::filesystem::absolute(source ? source : ".").string() +
                      "/tests/golden/models/gqa_tied_llama3");
  const auto a = s.start("prefill0");
  const auto b = s.start("decode0");
  s.join("prefill0", 20);
  s.join("decode0", 20);
  SamplingParams sampling;
  sampling.seed = 5;
  const std::vector<Token> alone = run_alone(s, sampling, 20);
  ASSERT_EQ(alone.size(), 20U);

  StepPlan p = s.plan("prefill0", 1);
  p.add = {add(1, tiny_prompt(), {5, 6, 7})};
  p.add[0].sampling = sampling;
  p.rows = {{1, 17, LogitsWanted::none, false}};  // cut elsewhere
  s.send("prefill0", p);
  p = s.plan("prefill0", 2);
  p.rows = {{1, 23, LogitsWanted::last, false}};
  s.send("prefill0", p);
  const auto first =
      s.expect_if<StepResult>("prefill0", [](const StepResult& r) { return r.step == 2; });
  ASSERT_TRUE(first && first->tokens.size() == 1);
  s.send("decode0", s.pull(1, "prefill0", "decode0", {5, 6, 7}, {50, 51, 52}));
  ASSERT_TRUE(s.expect<PullDone>("decode0").has_value());
  std::vector<Token> out = {first->tokens[0]};
  for (StepId step = 21; step < 40; ++step) {
    p = s.plan("decode0", step);
    p.decode = true;
    if (step == 21) {
      AddSequence handed = add(2, tiny_prompt(), {50, 51, 52, 53});
      handed.generated = {out[0]};
      handed.sampling = sampling;
      handed.computed = 40;
      handed.decode = true;
      p.add = {handed};
      p.drop = {1};
    }
    s.send("decode0", p);
    const auto result = s.expect<StepResult>("decode0");
    ASSERT_TRUE(result && result->tokens.size() == 1);
    out.push_back(result->tokens[0]);
  }
  EXPECT_EQ(out, alone);
}
#endif

TEST(WorkerProcess, APoolThatCannotBeEndsIt) {
  FakeScheduler s("  fake: true\n  pool_blocks: 10000000\n");  // 305 GiB
  const auto worker = s.start("prefill0");
  const auto reg = s.expect<Register>("prefill0");
  ASSERT_TRUE(reg.has_value());
  s.send("prefill0", Registered{s.epoch, reg->incarnation});
  EXPECT_EQ(worker->exit_code(), kExitUsage);
}

}  // namespace
}  // namespace baton::test
