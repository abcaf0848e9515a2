// Marks of processes that die of a fault: found by each reader, about that process alone.
#include "ipc/spoiled.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <utility>

#include "ipc/process.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

class Spoiled : public testing::Test {
 protected:
  /// A process that does `last` and has ended; its pid and start.
  std::pair<std::int32_t, std::uint64_t> ended(const std::function<void()>& last) {
    const pid_t child = ::fork();
    if (child == 0) {
      last();
      ::_exit(0);
    }
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    const std::uint64_t start = pid_start_time(child);
    ::waitpid(child, nullptr, 0);
    return {child, start};
  }
  bool marked(const std::string& worker, std::pair<std::int32_t, std::uint64_t> process) const {
    return has_spoiled_mark(run_dir, worker, process.first, process.second);
  }

  TempDir folder;
  std::string run_dir = folder.path();
};

TEST_F(Spoiled, EachReaderFindsTheMarkOfADeathAndOfNoOther) {
  const auto killed = ended([&] {
    mark_pool_on_fault(run_dir, "w");
    ::raise(SIGKILL);
  });
  const auto faulted = ended([&] {
    mark_pool_on_fault(run_dir, "w");
    ::raise(SIGSEGV);
  });
  const auto later = ended([&] {
    mark_pool_on_fault(run_dir, "w");
    ::raise(SIGABRT);
  });
  EXPECT_FALSE(marked("w", killed));
  for (int reader = 0; reader < 2; ++reader) {
    EXPECT_TRUE(marked("w", faulted)) << "a later death does not hide it";
    EXPECT_TRUE(marked("w", later));
  }
  EXPECT_FALSE(marked("v", faulted)) << "of another worker";
  EXPECT_FALSE(has_spoiled_mark(run_dir, "w", faulted.first, faulted.second + 1)) << "a reused pid";
  EXPECT_FALSE(has_spoiled_mark(run_dir, "w", faulted.first % 10, faulted.second));
}

TEST_F(Spoiled, AProcessMarksTwoPoolsAndThatOfAnotherHolder) {
  const std::pair<std::int32_t, std::uint64_t> holder{::getpid(), pid_start_time(::getpid())};
  const auto faulted = ended([&] {
    mark_pool_on_fault(run_dir, "w.1");
    mark_pool_on_fault(run_dir, "w", holder.first);
    ::raise(SIGBUS);
  });
  EXPECT_TRUE(marked("w.1", faulted));
  EXPECT_TRUE(marked("w", holder));
  EXPECT_FALSE(marked("w", faulted));
}

TEST_F(Spoiled, TheFileIsBounded) {
  for (int i = 0; i < 1000; ++i) mark_pool_spoiled(run_dir, "w");
  const auto clean = ended([&] { mark_pool_on_fault(run_dir, "w"); });
  EXPECT_FALSE(marked("w", clean));
  EXPECT_FALSE(std::filesystem::exists(run_dir + "/w.spoiled"));
}

}  // namespace
}  // namespace baton
