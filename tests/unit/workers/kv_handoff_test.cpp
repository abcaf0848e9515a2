// Pools in shared memory and the pull thread, within one process.
#include "workers/pool/kv_handoff.h"
#include "ipc/spin.h"
#include "workers/protocol/block_sums.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "ipc/spin.h"
#include "workers/execute/fake_model.h"
#include "workers/pool/host_pool.h"

namespace baton::test {
namespace {

KvGeometry small() {
  KvGeometry g;
  g.model_fingerprint = 1;
  g.layers = 2;
  g.kv_heads = 2;
  g.head_dim = 8;
  g.tokens_per_block = 4;
  return g;
}

PoolRequest request(const std::string& worker, AllocationId allocation) {
  PoolRequest r;
  r.run_dir = "/tmp/baton-handoff-test-" + std::to_string(getpid());
  r.worker = worker;
  r.pid = getpid();
  r.pid_start = pid_start_time(getpid());
  r.allocation = allocation;
  return r;
}

KvPool make_pool(const std::string& worker, AllocationId allocation, std::uint32_t blocks) {
  auto geometry = size_pool(small(), blocks, 0);
  EXPECT_TRUE(geometry.ok());
  auto pool = KvPool::create(request(worker, allocation), geometry.value());
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return std::move(pool).value();
}

TEST(PoolSize, FromBlocksOrFromMib) {
  const auto blocks = size_pool(small(), 12, 7);
  ASSERT_TRUE(blocks.ok());
  EXPECT_EQ(blocks.value().blocks, 12U);
  EXPECT_EQ(blocks.value().block_bytes, 2U * 2 * 2 * 4 * 8 * 4);
  const auto mib = size_pool(small(), 0, 1);
  ASSERT_TRUE(mib.ok());
  EXPECT_EQ(mib.value().blocks, 1024U);
}

TEST(PoolSize, TheErrorShowsTheArithmetic) {
  KvGeometry g = small();
  g.layers = 32;
  g.kv_heads = 8;
  g.head_dim = 128;
  g.tokens_per_block = 16;
  const auto none = size_pool(g, 0, 3);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().message(),
            "pool_mib 3 holds 0 blocks, at least 2 are needed: 32 layers x K and V x 8 heads x 16 "
            "tokens x 128 x 4 bytes = 4194304 bytes a block");
  EXPECT_FALSE(size_pool(g, 0, ~0ULL).ok());
  g.layers = 0;
  EXPECT_FALSE(size_pool(g, 5, 0).ok());
}

TEST(PoolSize, MoreThanTheMachineHasIsHopeless) {
  KvGeometry g = small();
  g.blocks = 0xFFFFFFF0;
  g.tokens_per_block = 256;
  g.block_bytes = *kv_block_bytes(g);
  const auto pool = KvPool::create(request("huge", 1), g);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.status().code(), ErrorCode::invalid_argument);
  EXPECT_NE(pool.status().message().find("/dev/shm"), std::string::npos);
}

TEST(AllocationIds, DifferByWorkerAndLife) {
  EXPECT_NE(make_allocation_id("a", 5), make_allocation_id("b", 5));
  EXPECT_NE(make_allocation_id("a", 5), make_allocation_id("a", 6));
  EXPECT_EQ(make_allocation_id("a", 5), make_allocation_id("a", 5));
}

TEST(KvPool, ASuccessorUnlinksTheOldName) {
  KvPool first = make_pool("w", 1, 4);
  const std::string old = "/dev/shm/" + first.handle();
  EXPECT_TRUE(std::filesystem::exists(old));
  KvPool second = make_pool("w", 2, 4);
  EXPECT_FALSE(std::filesystem::exists(old));
  std::memset(first.block(3), 1, first.geometry().block_bytes);  // still mapped
  EXPECT_TRUE(std::filesystem::exists("/dev/shm/" + second.handle()));
}

TEST(BlockSums, WrittenBlocksAreThoseOfRowsAndCopiesOnceEach) {
  const std::vector<Token> tokens(21);
  const std::vector<BlockId> first = {7, 3, 9}, second = {3, 4};
  RunStep step;
  step.copies = {{1, 12}, {2, 4}};
  BatchRow chunk;  // positions 7 to 27
  chunk.tokens = tokens;
  chunk.position = 7;
  chunk.blocks = first;
  BatchRow single;
  single.tokens = std::span(tokens).first(1);
  single.position = 16;
  single.blocks = second;
  step.rows = {chunk, single};
  EXPECT_EQ(written_blocks(step, 16), (std::vector<BlockId>{3, 4, 7, 12}));
}

TEST(BlockSums, EveryWordAndItsPlaceCount) {
  std::vector<std::uint64_t> words = {1, 2, 3, 0};
  const auto sum = [&] { return checksum(reinterpret_cast<const std::byte*>(words.data()), 32); };
  const std::uint64_t before = sum();
  std::swap(words[0], words[1]);
  EXPECT_NE(sum(), before);
  std::swap(words[0], words[1]);
  EXPECT_EQ(sum(), before);
  words[3] = 1;
  EXPECT_NE(sum(), before);
}

TEST(PoolSize, OfTheHostPart) {
  const KvGeometry pool = size_pool(small(), 12, 0).value();  // 1 KiB a block
  PoolRequest r = request("w", 1);
  EXPECT_EQ(size_host_part(pool, r).value().blocks, 0U) << "nobody asked for one";
  r.host_pool_mib = 3;
  EXPECT_EQ(size_host_part(pool, r).value().blocks, 3U << 20U >> 10U);
  r.host_pool_blocks = 5;
  const KvGeometry part = size_host_part(pool, r).value();
  EXPECT_EQ(part.blocks, 5U);
  EXPECT_TRUE(kv_same_block(part, pool));

  r.host_pool_blocks = 0xFFFFFFF5;
  EXPECT_NE(size_host_part(pool, r).status().message().find(
                "4294967285 blocks on the host beside 12 are too many"),
            std::string::npos);
  r.host_pool_blocks = 0;
  r.host_pool_mib = ~0ULL;
  EXPECT_FALSE(size_host_part(pool, r).ok());
  r.host_pool_mib = 1;
  KvGeometry large = pool;
  large.block_bytes = 2U << 20U;
  EXPECT_NE(size_host_part(large, r).status().message().find("host_pool_mib 1 holds no block"),
            std::string::npos);
}

HostPool make_both(const std::string& worker, AllocationId allocation) {
  auto part = size_pool(small(), 3, 0);
  auto host = KvPool::create(request(worker, allocation), part.value(), PoolPart::host);
  EXPECT_TRUE(host.ok()) << host.status().message();
  return {make_pool(worker, allocation, 4), std::move(host).value()};
}

TEST(HostPool, CopiesWithinAndBetweenItsParts) {
  HostPool pool = make_both("w", 3);
  const std::size_t bytes = pool.device_part().geometry().block_bytes;
  EXPECT_GT(pool.measure_copy_us(), 0.0F);
  std::memset(pool.block(1), 7, bytes);
  pool.copy({1, 2});
  pool.copy({2, 2});
  pool.copy({2, 6});  // out, to the last block of the host part
  std::memset(pool.block(2), 8, bytes);
  pool.copy({6, 4});  // host to host
  pool.copy({4, 0});  // and in
  for (const BlockId block : {1U, 6U, 4U, 0U}) {
    EXPECT_EQ(std::count(pool.block(block), pool.block(block) + bytes, std::byte{7}),
              static_cast<std::ptrdiff_t>(bytes))
        << block;
  }
  for (const BlockId block : {3U, 5U}) {
    EXPECT_EQ(std::count(pool.block(block), pool.block(block) + bytes, std::byte{0}),
              static_cast<std::ptrdiff_t>(bytes))
        << block;
  }
  HostPool alone(make_pool("alone", 4, 4), KvPool());
  EXPECT_EQ(alone.measure_copy_us(), 0.0F);
}

TEST(HostPool, BothNamesGoWithASuccessor) {
  HostPool first = make_both("w", 1);
  const std::vector<std::string> old = {"/dev/shm/" + first.device_part().handle(),
                                        "/dev/shm/" + first.host_part().handle()};
  EXPECT_NE(old[0], old[1]);
  for (const std::string& name : old) EXPECT_TRUE(std::filesystem::exists(name)) << name;
  const HostPool second = make_both("w", 2);
  for (const std::string& name : old) EXPECT_FALSE(std::filesystem::exists(name)) << name;
}

class Handoff : public testing::Test {
 protected:
  Pull pull(PullId pull_id, std::vector<BlockId> from, std::vector<BlockId> to) {
    Pull p;
    p.pull_id = pull_id;
    p.allocation = source.allocation();
    p.ranks = {PoolRank{"cpu", source.handle()}};
    p.exporter_pid = getpid();
    p.exporter_pid_start = pid_start_time(getpid());
    p.exporter_blocks = 8;
    p.from = std::move(from);
    p.to = std::move(to);
    return p;
  }
  /// A process that only waits to be killed, named as the exporter of `p`.
  static pid_t start_exporter(Pull& p) {
    const pid_t exporter = fork();
    if (exporter == 0) {
      pause();
      _exit(0);
    }
    p.exporter_pid = exporter;
    p.exporter_pid_start = pid_start_time(exporter);
    return exporter;
  }
  std::unique_ptr<KvHandoff> start(KvHandoff::Options options = {}) {
    return std::make_unique<KvHandoff>(std::make_unique<HostBlockReader>(own), waker, options);
  }
  /// The next event, which must be an E.
  template <typename E>
  E next(KvHandoff& handoff) {
    for (int i = 0; events.empty() && i < 5000; ++i) {
      handoff.take(events);
      if (events.empty()) usleep(1000);
    }
    if (events.empty() || !std::holds_alternative<E>(events.front())) {
      ADD_FAILURE() << "another event, or none";
      return {};
    }
    E event = std::get<E>(events.front());
    events.erase(events.begin());
    return event;
  }
  bool equal(BlockId from, BlockId to) {
    return std::memcmp(source.block(from), own.block(to), own.geometry().block_bytes) == 0;
  }

  KvPool source = make_pool("source", 11, 8);
  KvPool own = make_pool("own", 12, 8);
  Waker waker;
  std::vector<HandoffEvent> events;
};

TEST_F(Handoff, CopiesEachBlockWhereItBelongs) {
  for (BlockId b = 0; b < 8; ++b) {
    std::memset(source.block(b), static_cast<int>(b + 1), source.geometry().block_bytes);
  }
  const auto handoff = start();
  handoff->pull(pull(1, {0, 7}, {5, 6}));
  handoff->pull(pull(2, {3}, {0}));
  const auto one = next<handoff_event::PullFinished>(*handoff);
  EXPECT_EQ(one.pull_id, 1U);
  EXPECT_FALSE(one.failure.has_value()) << *one.failure;
  EXPECT_EQ(next<handoff_event::PullFinished>(*handoff).pull_id, 2U);
  EXPECT_TRUE(equal(0, 5));
  EXPECT_TRUE(equal(7, 6));
  EXPECT_TRUE(equal(3, 0));
  EXPECT_EQ(static_cast<int>(*own.block(1)), 0);
}

TEST_F(Handoff, ReadsTheSourcesHostPart) {
  KvPool part =
      KvPool::create(request("source", 11), size_pool(small(), 3, 0).value(), PoolPart::host)
          .value();
  const std::size_t bytes = part.geometry().block_bytes;
  std::memset(source.block(7), 70, bytes);
  for (BlockId b = 0; b < 3; ++b) std::memset(part.block(b), static_cast<int>(80 + b), bytes);
  const auto handoff = start();
  Pull p = pull(1, {8, 7, 10}, {0, 1, 2});
  p.exporter_host_handle = part.handle();
  p.exporter_host_blocks = 4;  // the size differs
  handoff->pull(p);
  EXPECT_TRUE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  p.pull_id = 2;
  p.exporter_host_blocks = 3;
  handoff->pull(p);
  EXPECT_FALSE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  EXPECT_EQ(std::memcmp(own.block(0), part.block(0), bytes), 0);
  EXPECT_TRUE(equal(7, 1));
  EXPECT_EQ(std::memcmp(own.block(2), part.block(2), bytes), 0);
  p.pull_id = 3;
  p.from = {11, 0, 0};
  handoff->pull(p);
  EXPECT_NE(
      next<handoff_event::PullFinished>(*handoff).failure.value_or("").find("source block 11"),
      std::string::npos);
}

TEST_F(Handoff, FailuresAreNamed) {
  const auto handoff = start();
  Pull p = pull(1, {0}, {0});
  p.exporter_pid_start += 1;
  handoff->pull(p);
  EXPECT_NE(next<handoff_event::PullFinished>(*handoff).failure.value_or("").find("is gone"),
            std::string::npos);
  p = pull(2, {0}, {0});
  p.exporter_blocks = 9;  // the size differs
  handoff->pull(p);
  EXPECT_TRUE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  p = pull(3, {0}, {0});
  p.ranks[0].handle = "no-such-region";
  handoff->pull(p);
  EXPECT_TRUE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  p = pull(4, {0}, {0});
  p.ranks.clear();
  handoff->pull(p);
  EXPECT_TRUE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  p = pull(5, {0}, {0});
  p.ranks[0].device = "GPU-1";
  handoff->pull(p);
  EXPECT_TRUE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  handoff->pull(pull(6, {0}, {0}));
  EXPECT_FALSE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  p = pull(7, {8}, {0});  // the mapping has 8 blocks, whatever this pull says
  p.exporter_blocks = 100;
  handoff->pull(p);
  EXPECT_TRUE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
}

TEST_F(Handoff, CloseComesAfterThePullsBeforeIt) {
  const auto handoff = start({.pull_delay_ms = 20, .watch_ms = 250});
  handoff->pull(pull(1, {0}, {0}));
  handoff->close(source.allocation());
  handoff->close(999);
  next<handoff_event::PullFinished>(*handoff);
  EXPECT_EQ(next<handoff_event::MappingClosed>(*handoff).allocation, source.allocation());
  EXPECT_EQ(next<handoff_event::MappingClosed>(*handoff).allocation, 999U);
}

TEST_F(Handoff, ADeadExporterIsReportedOnceAndItsBytesStay) {
  std::memset(source.block(2), 9, source.geometry().block_bytes);
  Pull p = pull(1, {2}, {3});
  const pid_t exporter = start_exporter(p);
  const auto handoff = start({.pull_delay_ms = 0, .watch_ms = 10});
  handoff->pull(p);
  EXPECT_FALSE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  kill(exporter, SIGKILL);
  waitpid(exporter, nullptr, 0);
  EXPECT_EQ(next<handoff_event::ExporterGone>(*handoff).allocation, source.allocation());
  p.pull_id = 2;
  p.to = {4};
  handoff->pull(p);  // still mapped: still right
  EXPECT_FALSE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  EXPECT_TRUE(equal(2, 3));
  EXPECT_TRUE(equal(2, 4));
  usleep(50'000);
  handoff->take(events);
  EXPECT_TRUE(events.empty());
  handoff->close(source.allocation());
  next<handoff_event::MappingClosed>(*handoff);
  p.pull_id = 3;
  handoff->pull(p);
  EXPECT_TRUE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
}

TEST_F(Handoff, AThreadThatStaysAwakeLooksAfterExportersAndStops) {
  constexpr TimeNs kLong = 20 * kSecond;
  stay_awake_for(kLong);
  work_goes_on(now_ns());
  Pull p = pull(1, {2}, {3});
  const pid_t exporter = start_exporter(p);
  auto handoff = start({.pull_delay_ms = 0, .watch_ms = 10});
  handoff->pull(p);
  EXPECT_FALSE(next<handoff_event::PullFinished>(*handoff).failure.has_value());
  kill(exporter, SIGKILL);
  waitpid(exporter, nullptr, 0);
  const TimeNs begin = now_ns();
  EXPECT_EQ(next<handoff_event::ExporterGone>(*handoff).allocation, source.allocation());
  handoff.reset();
  EXPECT_LT(now_ns() - begin, kLong / 2);
  stay_awake_for(0);
}

// ---------------------------------------------------------------- the fake model

TEST(FakeModel, TokensFollowFromThePrefixHoweverItIsCut) {
  FakeModel model("", 16);
  std::atomic<int> percent{0};
  const auto shape = model.load(percent);
  ASSERT_TRUE(shape.ok());
  PoolRequest r = request("fake", 21);
  r.pool_blocks = 8;
  ASSERT_TRUE(model.allocate(r).ok());
  std::vector<Token> tokens;
  for (Token t = 0; t < 40; ++t) tokens.push_back(t * 3);
  const std::vector<BlockId> table = {7, 0, 3};
  const SamplingParams sampling;
  for (const std::size_t cut : {std::size_t{1}, std::size_t{16}, std::size_t{39}}) {
    RunStep step;
    StepOutput output;
    for (const auto& [begin, n] : {std::pair{std::size_t{0}, cut}, {cut, 40 - cut}}) {
      step.rows.assign(1, BatchRow{});
      step.rows[0].tokens = std::span<const Token>(tokens).subspan(begin, n);
      step.rows[0].position = static_cast<std::int64_t>(begin);
      step.rows[0].blocks = table;
      step.rows[0].logits = begin == 0 ? LogitsWanted::none : LogitsWanted::last;
      step.rows[0].sampling = &sampling;
      output.tokens.assign(1, kNoToken);
      model.launch(step);
      model.collect(output);
    }
    EXPECT_EQ(output.tokens[0], FakeModel::next_token(tokens, shape.value().vocab_size));
  }
}

TEST(FakeModel, NeverDrawsAStopId) {
  const std::vector<Token> prefix = {1, 2, 3};
  std::vector<Token> stop;
  for (std::uint32_t i = 0; i + 1 < kFakePieces; ++i) {
    const Token t = FakeModel::next_token(prefix, 32'000, stop);
    EXPECT_EQ(std::count(stop.begin(), stop.end(), t), 0);
    stop.push_back(t);
  }
}

}  // namespace
}  // namespace baton::test
