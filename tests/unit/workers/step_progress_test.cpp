// How far a step is, told to other workers through a page of shared memory: what a reader may
// believe, and when it leaves.
#include "workers/pool/step_progress.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "ipc/process.h"

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

}  // namespace
}  // namespace baton::test
