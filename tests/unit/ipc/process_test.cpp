#include "ipc/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "tests/support/temp_dir.h"

namespace baton {
namespace {

unsigned mode_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 0777U : 0U;
}

TEST(Process, StartTimeTellsAReusedPidApart) {
  const std::uint64_t start = pid_start_time(::getpid());
  EXPECT_GT(start, 0U);
  EXPECT_EQ(pid_start_time(::getpid()), start);
  EXPECT_TRUE(process_alive(::getpid(), start));
  EXPECT_FALSE(process_alive(::getpid(), start + 1));
  EXPECT_EQ(pid_start_time(0), 0U);
  EXPECT_EQ(pid_start_time(-1), 0U);
  EXPECT_FALSE(process_alive(0, 0));
}

TEST(Process, WhatItUsesIsPlausible) {
  const std::vector<char> memory(64U << 20U, 'x');
  const ProcessUsage usage = process_usage();
  EXPECT_GT(usage.resident_bytes, memory.size());
  EXPECT_LT(usage.resident_bytes, std::uint64_t{1} << 40U);
  EXPECT_GT(usage.cpu_seconds, 0);
  const double now = static_cast<double>(wall_ns()) * 1e-9;
  EXPECT_LT(usage.started, now + 1);
  EXPECT_GT(usage.started, now - 3600);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // To the last bit: a change would be counted as another start.
  EXPECT_EQ(process_usage().started, usage.started);
}

TEST(Process, AZombieIsDeadAndPidfdSaysSo) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::uint64_t start = pid_start_time(pid);
  EXPECT_TRUE(process_alive(pid, start));
  const UniqueFd fd(open_pidfd(pid));
  ::kill(pid, SIGKILL);
  if (fd) {  // old kernels have none
    pollfd entry{fd.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 10'000), 1);
  }
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);  // dead, but still a zombie
  EXPECT_FALSE(process_alive(pid, start));
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(process_alive(pid, start));
  EXPECT_EQ(open_pidfd(pid), -1);
  EXPECT_EQ(open_pidfd(-1), -1);
}

TEST(Process, ANameWithBracketsAndSpacesDoesNotConfuse) {
  const TempDir dir;
  const std::string odd = dir / "a) S 1 (b";
  std::filesystem::copy_file("/bin/sleep", odd);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl(odd.c_str(), odd.c_str(), "60", nullptr);
    ::_exit(127);
  }
  const std::uint64_t start = pid_start_time(pid);
  ::usleep(50'000);  // after exec the name is the odd one
  EXPECT_GT(start, 0U);
  EXPECT_EQ(pid_start_time(pid), start);
  EXPECT_TRUE(process_alive(pid, start));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(Process, ClocksAndIncarnationsGrow) {
  const TimeNs before = now_ns();
  EXPECT_LE(before, now_ns());
  EXPECT_GT(wall_ns(), 1'700'000'000 * kSecond);
  const TempDir folder;
  Incarnation last = 0;
  for (int i = 0; i < 1000; ++i) {
    const Incarnation next = new_incarnation(folder.path());
    ASSERT_GT(next, last);
    last = next;
  }
  EXPECT_GT(new_incarnation("/nonexistent"), last) << "the clock alone";
}

TEST(Process, AClockThatIsSetBackMakesNoProcessLookOlder) {
  const TempDir folder;
  const auto in_another = [&] {
    int out[2];
    EXPECT_EQ(::pipe(out), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const Incarnation next = new_incarnation(folder.path());
      ::_exit(::write(out[1], &next, sizeof next) == sizeof next ? 0 : 1);
    }
    Incarnation next = 0;
    EXPECT_EQ(::read(out[0], &next, sizeof next), static_cast<ssize_t>(sizeof next));
    ::close(out[0]);
    ::close(out[1]);
    ::waitpid(child, nullptr, 0);
    return next;
  };
  // As a process leaves it whose clock was an hour ahead.
  const Incarnation ahead = static_cast<Incarnation>(wall_ns()) + 3600 * kSecond;
  folder.write("incarnation", "0" + std::to_string(ahead) + "\n");
  const Incarnation second = in_another();
  EXPECT_EQ(second, ahead + 1);
  EXPECT_EQ(in_another(), second + 1);
  for (const char* damaged : {"", "x", "00000000000000000000", "18446744073709551615\n"}) {
    folder.write("incarnation", damaged);
    const Incarnation next = in_another();
    EXPECT_LT(next, ahead) << damaged;
    EXPECT_GT(in_another(), next) << damaged;
  }
}

TEST(Process, ManyProcessesHaveIncarnationsOfTheirOwn) {
  const TempDir folder;
  int out[2];
  ASSERT_EQ(::pipe(out), 0);
  constexpr int kProcesses = 8;
  constexpr int kEach = 50;
  for (int i = 0; i < kProcesses; ++i) {
    if (::fork() != 0) continue;
    for (int n = 0; n < kEach; ++n) {
      const Incarnation next = new_incarnation(folder.path());
      if (::write(out[1], &next, sizeof next) != sizeof next) ::_exit(1);
    }
    ::_exit(0);
  }
  std::set<Incarnation> all;
  for (int i = 0; i < kProcesses * kEach; ++i) {
    Incarnation next = 0;
    ASSERT_EQ(::read(out[0], &next, sizeof next), static_cast<ssize_t>(sizeof next));
    EXPECT_TRUE(all.insert(next).second) << next;
  }
  for (int i = 0; i < kProcesses; ++i) ::wait(nullptr);
  ::close(out[0]);
  ::close(out[1]);
}

TEST(Process, AgesFollowFromTheStart) {
  const double age = process_age(pid_start_time(::getpid()));
  EXPECT_GT(age, 0);
  EXPECT_LT(age, 3600);
  EXPECT_EQ(process_age(0), 0);
}

TEST(Process, VersionNamesTheCommit) {
  const std::string version = build_version();
  EXPECT_NE(version.find(" ("), std::string::npos) << version;
  EXPECT_EQ(version.back(), ')') << version;
}

TEST(PrivateDirectory, IsMadeWithParentsAndClosedToOthers) {
  const TempDir dir;
  ASSERT_TRUE(ensure_private_directory(dir / "a/b/c/").ok());
  EXPECT_EQ(mode_of(dir / "a/b/c"), 0700U);
  ::chmod((dir / "a/b/c").c_str(), 0755);
  ASSERT_TRUE(ensure_private_directory(dir / "a/b/c").ok());
  EXPECT_EQ(mode_of(dir / "a/b/c"), 0700U);
}

TEST(PrivateDirectory, WhatCannotServeIsRefused) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";
  EXPECT_EQ(ensure_private_directory(dir / "file").message(),
            (dir / "file") + " is not a directory");
  EXPECT_FALSE(ensure_private_directory(dir / "file/sub").ok());
  EXPECT_EQ(ensure_private_directory("relative").message(), "'relative' is no absolute path");
  EXPECT_EQ(ensure_private_directory("").message(), "'' is no absolute path");
  std::filesystem::create_directory_symlink("/tmp", dir / "link");
  EXPECT_EQ(ensure_private_directory(dir / "link").message(),
            (dir / "link") + " is not a directory");
}

TEST(LockFile, ASecondHolderIsToldThePidOfTheFirst) {
  const TempDir dir;
  const std::string path = dir / "run/scheduler.lock";
  {
    auto first = LockFile::acquire(path);
    ASSERT_TRUE(first.ok()) << first.status().message();
    auto second = LockFile::acquire(path);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().message(), path + " is held by process " +
                                             std::to_string(::getpid()) +
                                             ": stop it first, or choose another run_dir");
  }
  EXPECT_TRUE(LockFile::acquire(path).ok()) << "given back";
  EXPECT_EQ(mode_of(dir / "run"), 0700U);
}

TEST(LockFile, AKilledHolderGivesItBack) {
  const TempDir dir;
  const std::string path = dir / "l";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto lock = LockFile::acquire(path);
    [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  auto held = LockFile::acquire(path);
  ASSERT_FALSE(held.ok());
  EXPECT_NE(held.status().message().find("process " + std::to_string(pid) + ":"),
            std::string::npos);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(LockFile::acquire(path).ok());
}

TEST(AliveFile, IsTouchedAtMostTwiceASecond) {
  const TempDir dir;
  AliveFile alive(dir.path(), "decode0");
  ASSERT_TRUE(alive.status().ok()) << alive.status().message();
  const std::filesystem::path path = dir / "decode0.alive";
  std::ifstream file(path);
  int pid = 0;
  EXPECT_TRUE(file >> pid);
  EXPECT_EQ(pid, ::getpid());
  const auto past = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  const auto touched = [&](TimeNs now) {
    std::filesystem::last_write_time(path, past);
    alive.touch(now);
    return std::filesystem::last_write_time(path) > past + std::chrono::minutes(1);
  };
  EXPECT_TRUE(touched(1 * kSecond));
  EXPECT_FALSE(touched(1 * kSecond + 499 * kMillisecond));
  EXPECT_TRUE(touched(1 * kSecond + 500 * kMillisecond));
  EXPECT_FALSE(AliveFile(dir / "decode0.alive", "x").status().ok()) << "no directory";
}

TEST(SignalFd, TurnsSigtermIntoAReadableDescriptor) {
  const pid_t pid = ::fork();  // the mask is for life: not in the test's own process
  if (pid == 0) {
    SignalFd signals;
    if (signals.requested()) {
      ::_exit(1);
    }
    ::kill(::getpid(), SIGTERM);
    pollfd entry{signals.fd(), POLLIN, 0};
    if (::poll(&entry, 1, 10'000) != 1 || signals.poll() != 1) {
      ::_exit(2);
    }
    ::kill(::getpid(), SIGINT);
    if (signals.poll() != 2 || signals.poll() != 2 || !signals.requested()) {
      ::_exit(3);
    }
    int ends[2];
    if (::pipe(ends) != 0) {
      ::_exit(4);
    }
    ::close(ends[0]);
    if (::write(ends[1], "x", 1) != -1) {  // SIGPIPE would have ended the process
      ::_exit(5);
    }
    unblock_signals();
    ::kill(::getpid(), SIGTERM);
    ::_exit(6);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(SignalFd, TakesSighupForOneReloadIfItIsAskedTo) {
  for (const bool reloads : {true, false}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      SignalFd signals(reloads);
      if (signals.take_reload()) ::_exit(1);
      ::kill(::getpid(), SIGHUP);
      if (signals.poll() != 0) ::_exit(2);  // it asks nobody to stop
      if (!signals.take_reload()) ::_exit(3);
      if (signals.take_reload()) ::_exit(4);
      unblock_signals();
      ::kill(::getpid(), SIGHUP);
      ::_exit(5);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), SIGHUP);
  }
}

TEST(UniqueFd, ClosesOnceAndMoves) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd a(ends[1]);
  UniqueFd b(std::move(a));
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): empty on purpose
  EXPECT_EQ(b.get(), ends[1]);
  b.reset();
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0) << "the last writer is gone";
  ::close(ends[0]);
}

}  // namespace
}  // namespace baton
