// The process of a rank other than 0, with a model: what it leaves behind when it fails, and whom
// it asks when it is asked to stop. This process is rank 0, as far as the rank sees.
#include "workers/execute/rank_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "ipc/process.h"
#include "ipc/shm_region.h"
#include "ipc/spoiled.h"
#include "tests/cpu_torch/forked_rank.h"
#include "tests/cpu_torch/model_fixture.h"
#include "tests/support/temp_dir.h"
#include "workers/protocol/worker_core.h"

namespace baton::test {
namespace {

constexpr std::uint32_t kBlocks = 8;

class RankProcessTest : public testing::Test {
 protected:
  /// The rank is forked before this process has any thread.
  void SetUp() override {
    options.model_folder = golden_folder() + "/models/mistral_window";
    options.run_dir = folder / "run";
    options.name = "w";
    options.ranks = 2;
    ASSERT_TRUE(ensure_private_directory(options.run_dir).ok());
    child.emplace(options);
    auto led = RankGroup::lead(options.group_options(0), [this](int rank) {
      marked =
          has_spoiled_mark(options.run_dir, options.name, ::getpid(), pid_start_time(::getpid()));
      lost = rank;
    });
    ASSERT_TRUE(led.ok()) << led.status().message();
    group = std::move(led).value();
    const Status loaded = group->wait_for(RankState::loaded, 20 * kSecond);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
  }
  void TearDown() override {
    group.reset();
    child.reset();
  }

  void offer_a_pool() {
    const ModelConfig config = ModelFiles(options.model_folder).config;
    KvGeometry g;
    g.layers = static_cast<std::uint32_t>(config.layers);
    g.kv_heads = static_cast<std::uint32_t>(config.pool_heads());
    g.head_dim = static_cast<std::uint32_t>(config.pool_dim());
    g.tokens_per_block = options.tokens_per_block;
    g.blocks = kBlocks;
    g.block_bytes = kv_block_bytes(g).value();
    const RegionName owner{options.name, ::getpid(), pid_start_time(::getpid()), 7};
    auto made = ShmRegion::create(region_name(options.run_dir, owner), kv_pool_bytes(g).value());
    ASSERT_TRUE(made.ok()) << made.status().message();
    pool = std::move(made).value();
    group->offer_pool({pool.name(), kBlocks, 7});
    ASSERT_TRUE(group->wait_for(RankState::mapped, 10 * kSecond).ok());
  }
  int status_of_child() {
    int status = 0;
    ::waitpid(child->pid(), &status, 0);
    child->forget();
    while (lost < 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  TempDir folder;
  SignalFd signals;  // what the rank asks of this process
  CpuExecutor::Options options;
  std::optional<ForkedRank> child;
  std::unique_ptr<RankGroup> group;
  ShmRegion pool;
  std::atomic<bool> marked{false};  // when the rank's end was told
  std::atomic<int> lost{-1};
};

/// Steps have written to the pool, and this one may have, too: nobody may keep it.
TEST_F(RankProcessTest, AStepThatFailsSpoilsThePool) {
  offer_a_pool();
  std::string nonsense = "no step";
  group->collective().broadcast(nonsense, 100);
  EXPECT_EQ(status_of_child(), kExitFault);
  EXPECT_TRUE(marked) << "in the name of rank 0, which holds the lease, before the end is told";
  EXPECT_EQ(group->words_of_loss(1), "rank 1: a step of rank 0 that cannot be read");
}

TEST_F(RankProcessTest, AFailureBeforeTheFirstStepSpoilsNothing) {
  group->offer_pool({"baton-there-is-none", kBlocks, 7});
  EXPECT_EQ(status_of_child(), kExitFault);
  EXPECT_FALSE(marked);
}

/// Alone it could only wait and then end, which ends the group in the middle of whatever it does.
TEST_F(RankProcessTest, WhoIsAskedToStopAsksRankZero) {
  offer_a_pool();
  ASSERT_FALSE(signals.requested());
  ::kill(child->pid(), SIGTERM);
  const TimeNs end = now_ns() + 5 * kSecond;
  while (!signals.requested() && now_ns() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(signals.requested());
  EXPECT_EQ(lost, -1) << "it serves until rank 0 has drained";
}

}  // namespace
}  // namespace baton::test
