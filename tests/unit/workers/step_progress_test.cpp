// How far a step is, told to other workers through a page of shared memory: what a reader may
// believe, and when it leaves.
#include "workers/pool/step_progress.h"
#include "workers/pool/layer_progress.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "ipc/process.h"
#include "workers/pool/layer_progress.h"

namespace baton::test {
namespace {

PoolRequest progress_request(const std::string& worker, std::int32_t pid = getpid()) {
  PoolRequest request;
  request.run_dir = "/tmp/baton-progress-test-" + std::to_string(getpid());
  request.worker = worker;
  request.pid = pid;
  request.pid_start = pid_start_time(pid);
  request.allocation = 7;
  return request;
}

constexpr PeerProgress::Patience kShort{200 * kMillisecond, 50 * kMillisecond};

TEST(StepProgress, ALayerIsWrittenOnceItWasTold) {
  auto mine = StepProgress::create(progress_request("w0"));
  ASSERT_TRUE(mine.ok());
  StepProgress& progress = mine.value();
  PeerProgress peers(kShort);
  const std::string& handle = progress.handle();
  EXPECT_NE(peers.wait(handle, 5, 1, 1), "") << "it is in no term";
  progress.begin_term(5);
  progress.written(5, 3, 2);
  EXPECT_EQ(peers.wait(handle, 5, 3, 2), "");
  EXPECT_EQ(peers.wait(handle, 5, 2, 30), "") << "the steps before have ended";
  EXPECT_NE(peers.wait(handle, 5, 3, 3), "") << "nothing gets on";
  EXPECT_NE(peers.wait(handle, 4, 3, 1), "") << "another term's";
  EXPECT_NE(peers.wait("baton-no-such-page", 5, 3, 1), "");
}

TEST(StepProgress, AStepThatFailedIsNoneThatOthersGoOnWith) {
  auto mine = StepProgress::create(progress_request("w0"));
  ASSERT_TRUE(mine.ok());
  StepProgress& progress = mine.value();
  PeerProgress peers(kShort);
  progress.begin_term(5);
  progress.written(5, 1, 1);
  progress.failed(5, 2);
  progress.written(5, 3, 1);
  EXPECT_NE(peers.wait(progress.handle(), 5, 2, 1), "") << "its later steps do not cover it";
  EXPECT_EQ(peers.wait(progress.handle(), 5, 3, 1), "");
  progress.begin_term(6);
  EXPECT_NE(peers.wait(progress.handle(), 5, 3, 1), "");
  progress.written(5, 9, 1);
  EXPECT_NE(peers.wait(progress.handle(), 6, 1, 1), "") << "a step of the last term, still running";
  progress.written(6, 1, 1);
  EXPECT_EQ(peers.wait(progress.handle(), 6, 1, 1), "") << "a term begins anew";
}

/// Of two steps at a time the later one may be known to fail before the earlier one does.
TEST(StepProgress, TheLastStepThatFailedCounts) {
  auto mine = StepProgress::create(progress_request("w0"));
  ASSERT_TRUE(mine.ok());
  StepProgress& progress = mine.value();
  progress.begin_term(5);
  progress.failed(5, 3);
  progress.failed(5, 2);
  PeerProgress peers;
  const TimeNs began = now_ns();
  EXPECT_NE(peers.wait(progress.handle(), 5, 3, 1), "");
  EXPECT_LT(now_ns() - began, kSecond) << "known at once";
}

TEST(StepProgress, AWaitEndsWithTheLayerOrWithTheTerm) {
  auto mine = StepProgress::create(progress_request("w0"));
  ASSERT_TRUE(mine.ok());
  StepProgress& progress = mine.value();
  progress.begin_term(5);
  std::string first = "?";
  std::string second = "?";
  std::thread waiter([&] {
    PeerProgress peers;
    first = peers.wait(progress.handle(), 5, 1, 1);
    second = peers.wait(progress.handle(), 5, 1, 2);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  progress.written(5, 1, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const TimeNs began = now_ns();
  progress.begin_term(0);
  waiter.join();
  EXPECT_LT(now_ns() - began, kSecond);
  EXPECT_EQ(first, "");
  EXPECT_NE(second, "");
}

/// A child that sleeps, with a page of its own.
class StepProgressOfAChild : public testing::Test {
 protected:
  StepProgressOfAChild() : child_(fork()) {
    if (child_ == 0) {
      pause();
      _exit(0);
    }
    auto page = StepProgress::create(progress_request("w1", child_));
    EXPECT_TRUE(page.ok());
    progress_ = std::move(page).value();
    progress_.begin_term(9);
  }
  ~StepProgressOfAChild() override {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  TimeNs waited() {
    PeerProgress peers;
    const TimeNs began = now_ns();
    EXPECT_NE(peers.wait(progress_.handle(), 9, 1, 1), "");
    return now_ns() - began;
  }

  pid_t child_;
  StepProgress progress_;
};

TEST_F(StepProgressOfAChild, NobodyWaitsForADeadProcess) {
  kill(child_, SIGKILL);
  EXPECT_LT(waited(), kSecond);
}

TEST_F(StepProgressOfAChild, NorForAStoppedOne) {
  kill(child_, SIGSTOP);
  EXPECT_LT(waited(), 2 * kSecond);
}

TEST_F(StepProgressOfAChild, WhatItHasWrittenBeforeIsWritten) {
  progress_.written(9, 1, 4);
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  PeerProgress peers;
  EXPECT_EQ(peers.wait(progress_.handle(), 9, 1, 4), "");
}

/// Workers of one process; row i of a step of the third one waits for step 1 of worker i.
class LayerProgressTest : public ::testing::Test {
 protected:
  LayerProgressTest() {
    for (std::size_t i = 0; i < 3; ++i) {
      workers_[i].create(progress_request("w" + std::to_string(i)));
      workers_[i].begin_term(5);
    }
  }
  RunStep step(Term term, std::uint32_t waiting) {
    RunStep step;
    step.term = term;
    step.step = ++steps_;
    step.rows.resize(2);
    for (std::uint32_t i = 0; i < 2; ++i) step.rows[i].sequence = 70 + i;
    for (std::uint32_t i = 0; i < waiting; ++i) {
      step.waits.push_back({i, workers_[i].handle(), 5, 1});
    }
    return step;
  }
  std::string heard_of(const RunStep& step, std::uint32_t layers) {
    return PeerProgress(kShort).wait(third_.handle(), step.term, step.step, layers);
  }

  LayerProgress workers_[3];
  LayerProgress& third_ = workers_[2];
  Awaited awaited_;
  StepId steps_ = 0;
};

TEST_F(LayerProgressTest, OthersAreWaitedForAfterOneHasFailed) {
  const RunStep both = step(5, 2);
  third_.begin(both, awaited_);
  workers_[0].written(5, 1, 1);
  workers_[1].written(5, 1, 2);
  third_.await(both, 1, awaited_);
  EXPECT_FALSE(awaited_.in_vain());

  workers_[0].begin_term(0);
  third_.await(both, 2, awaited_);
  ASSERT_EQ(awaited_.failed.size(), 1U);
  EXPECT_EQ(awaited_.failed[0].row, 0U);
  EXPECT_TRUE(awaited_.failed[0].waited);
  EXPECT_NE(heard_of(both, 1), "") << "nobody goes on with it";

  workers_[1].begin_term(0);
  third_.await(both, 3, awaited_);
  ASSERT_EQ(awaited_.failed.size(), 2U) << "each once";
  EXPECT_EQ(awaited_.failed[1].row, 1U);
}

TEST_F(LayerProgressTest, WhatFollowsInTheTermIsVoidAndNoOtherTerms) {
  workers_[0].begin_term(0);
  const RunStep failing = step(5, 1);
  third_.begin(failing, awaited_);
  third_.await(failing, 1, awaited_);
  ASSERT_EQ(awaited_.failed.size(), 1U);

  third_.begin(step(5, 0), awaited_);
  ASSERT_EQ(awaited_.failed.size(), 1U) << "the other sequence goes on";
  EXPECT_EQ(awaited_.failed[0].row, 0U);

  third_.begin_term(6);  // whose scheduler may call its sequences by the same numbers
  const RunStep next = step(6, 0);
  third_.begin(next, awaited_);
  EXPECT_FALSE(awaited_.in_vain());
  third_.written(6, next.step, 1);
  EXPECT_EQ(heard_of(next, 1), "");
}

/// The chunk that the second worker waits for is void, and its step may have other rows.
TEST_F(LayerProgressTest, NobodyWaitsForRowsThatAStepLacks) {
  workers_[0].lacks_rows(5, 1);
  workers_[0].written(5, 1, 1);
  const RunStep waiting = step(5, 1);
  third_.begin(waiting, awaited_);
  const TimeNs began = now_ns();
  third_.await(waiting, 1, awaited_);
  EXPECT_LT(now_ns() - began, kSecond);
  ASSERT_EQ(awaited_.failed.size(), 1U);
  EXPECT_TRUE(awaited_.failed[0].waited);
}

}  // namespace
}  // namespace baton::test
