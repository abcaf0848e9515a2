#include "ipc/shm_region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>

#include "ipc/process.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

constexpr std::size_t kBytes = 3 * 4096;

RegionName mine(const std::string& worker, AllocationId allocation) {
  return {worker, ::getpid(), pid_start_time(::getpid()), allocation};
}

std::string name_for_test(const TempDir& dir) { return region_name(dir.path(), mine("w0", 1)); }

/// Every test has a run_dir of its own, so that its names are its own too.
class ShmRegionTest : public ::testing::Test {
 protected:
  ~ShmRegionTest() override {
    for (const RegionName& left : list_regions(dir_.path())) {
      unlink_region(region_name(dir_.path(), left));
    }
  }
  /// Kept until the end: a directory that takes the inode of a removed one has its space, too.
  static TempDir& fresh_dir() {
    static std::deque<TempDir> all;
    return all.emplace_back();
  }
  TempDir& dir_ = fresh_dir();
};

/// The signal that ended a child running `f`, 0 if it ended by itself.
template <typename F>
int signal_of_child(F f) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST_F(ShmRegionTest, AnImporterReadsWhatTheOwnerWrites) {
  const std::string name = name_for_test(dir_);
  auto owner = ShmRegion::create(name, kBytes);
  ASSERT_TRUE(owner.ok()) << owner.status().message();
  auto importer = ShmRegion::open_readonly(name, kBytes);
  ASSERT_TRUE(importer.ok()) << importer.status().message();
  EXPECT_EQ(importer.value().size(), kBytes);
  EXPECT_EQ(importer.value().name(), name);
  const std::byte* seen = importer.value().data();
  EXPECT_TRUE(std::all_of(seen, seen + kBytes, [](std::byte b) { return b == std::byte{0}; }));
  owner.value().writable_data()[kBytes - 1] = std::byte{42};
  EXPECT_EQ(seen[kBytes - 1], std::byte{42});
  EXPECT_EQ(importer.value().writable_data(), nullptr);
  EXPECT_NE(owner.value().writable_data(), nullptr);
}

TEST_F(ShmRegionTest, AnImporterThatWritesDies) {
  const std::string name = name_for_test(dir_);
  auto owner = ShmRegion::create(name, kBytes, {.prefault = true});
  auto importer = ShmRegion::open_readonly(name, kBytes, {.prefault = true});
  ASSERT_TRUE(importer.ok());
  const int signal = signal_of_child([&] {
    ::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would make it an exit
    *const_cast<volatile std::byte*>(importer.value().data()) = std::byte{1};
  });
  EXPECT_EQ(signal, SIGSEGV);
  EXPECT_EQ(owner.value().data()[0], std::byte{0});
  // Nor can the mapping be made writable: its descriptor was opened for reading.
  EXPECT_NE(
      ::mprotect(const_cast<std::byte*>(importer.value().data()), kBytes, PROT_READ | PROT_WRITE),
      0);
}

TEST_F(ShmRegionTest, ANameIsNeverUsedTwice) {
  const std::string name = name_for_test(dir_);
  auto owner = ShmRegion::create(name, kBytes);
  ASSERT_TRUE(owner.ok());
  owner.value().writable_data()[0] = std::byte{7};
  auto again = ShmRegion::create(name, 2 * kBytes);
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.status().message().find("cannot create shared memory '" + name + "'"),
            std::string::npos);
  EXPECT_EQ(owner.value().data()[0], std::byte{7}) << "the first one is untouched";
  EXPECT_TRUE(ShmRegion::open_readonly(name, kBytes).ok()) << "and keeps its name and size";
}

TEST_F(ShmRegionTest, TheWrongSizeIsRefused) {
  const std::string name = name_for_test(dir_);
  auto owner = ShmRegion::create(name, kBytes);
  auto importer = ShmRegion::open_readonly(name, kBytes + 1);
  ASSERT_FALSE(importer.ok());
  EXPECT_EQ(importer.status().message(), "shared memory '" + name + "' has 12288 bytes, not 12289");
  auto missing = ShmRegion::open_readonly(name + "x", kBytes);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), ErrorCode::unavailable);
  EXPECT_FALSE(ShmRegion::create(name + "y", 0).ok());
}

TEST_F(ShmRegionTest, TheMemoryIsAllocatedNotSparse) {
  const std::string name = name_for_test(dir_);
  auto owner = ShmRegion::create(name, 1 << 20);
  ASSERT_TRUE(owner.ok());
  struct stat info {};
  ASSERT_EQ(::stat(("/dev/shm/" + name).c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST_F(ShmRegionTest, TooLittleSpaceIsAnErrorThatSaysHowMuch) {
  struct statvfs info {};
  ASSERT_EQ(::statvfs("/dev/shm", &info), 0);
  // The whole of /dev/shm and a terabyte: refused at once, without filling it first.
  const std::string name = name_for_test(dir_);
  const std::size_t bytes = info.f_blocks * info.f_frsize + (std::size_t{1} << 40U);
  auto owner = ShmRegion::create(name, bytes);
  ASSERT_FALSE(owner.ok());
  EXPECT_EQ(owner.status().code(), ErrorCode::kv_exhausted);
  EXPECT_NE(
      owner.status().message().find("needs " + std::to_string((bytes + (1U << 20U) - 1) >> 20U) +
                                    " MiB, /dev/shm has "),
      std::string::npos)
      << owner.status().message();
  EXPECT_FALSE(unlink_region(name)) << "nothing is left behind";
}

TEST_F(ShmRegionTest, AnOrderlyOwnerUnlinksAndImportersKeepTheMemory) {
  const std::string name = name_for_test(dir_);
  auto importer = [&] {
    auto owner = ShmRegion::create(name, kBytes);
    owner.value().writable_data()[5] = std::byte{5};
    auto opened = ShmRegion::open_readonly(name, kBytes);
    ShmRegion moved = std::move(owner).value();
    EXPECT_EQ(list_regions(dir_.path()).size(), 1U);
    return opened;
  }();
  EXPECT_TRUE(list_regions(dir_.path()).empty());
  EXPECT_EQ(importer.value().data()[5], std::byte{5});
  importer = ShmRegion();
  EXPECT_FALSE(importer.value().mapped());
  EXPECT_EQ(importer.value().data(), nullptr);
  EXPECT_EQ(importer.value().size(), 0U);
}

TEST_F(ShmRegionTest, AKilledOwnerLeavesTheRightBytesAndANameThatIsSweptAway) {
  constexpr std::size_t kPool = 4 << 20;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto owner = ShmRegion::create(region_name(dir_.path(), mine("decode0", 0xABC)), kPool);
    for (std::size_t i = 0; i < kPool; ++i) {
      owner.value().writable_data()[i] = static_cast<std::byte>(i * 31 + (i >> 12U));
    }
    [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const RegionName owner{"decode0", pid, pid_start_time(pid), 0xABC};
  EXPECT_EQ(unlink_dead_regions(dir_.path()), 0) << "the owner lives";
  auto importer = ShmRegion::open_readonly(region_name(dir_.path(), owner), kPool);
  ASSERT_TRUE(importer.ok()) << importer.status().message();
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);

  const auto listed = list_regions(dir_.path());
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].worker, "decode0");
  EXPECT_EQ(listed[0].pid, pid);
  EXPECT_EQ(listed[0].pid_start, owner.pid_start);
  EXPECT_EQ(listed[0].allocation, 0xABCU);
  EXPECT_EQ(unlink_dead_regions(dir_.path()), 1);
  EXPECT_TRUE(list_regions(dir_.path()).empty());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kPool; ++i) {
    wrong += importer.value().data()[i] != static_cast<std::byte>(i * 31 + (i >> 12U)) ? 1U : 0U;
  }
  EXPECT_EQ(wrong, 0U);
}

/// Of another container: the same path leads to another directory there, and its pids mean nothing
/// here. Lives until it is killed.
class OtherContainer {
 public:
  OtherContainer(const std::string& run_dir, const RegionName& owner) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // where an assertion ends the test
      const std::string name = region_name(run_dir, owner);
      const auto region = ShmRegion::create(name, kBytes);
      [[maybe_unused]] const auto n = ::write(ready[1], name.c_str(), name.size() + 1);
      while (region.ok()) ::pause();
      ::_exit(1);
    }
    ::close(ready[1]);
    char c = 0;
    while (::read(ready[0], &c, 1) == 1 && c != 0) segment += c;
    ::close(ready[0]);
  }
  ~OtherContainer() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  std::string file() const { return "/dev/shm/" + segment; }
  std::string lock() const {  // "baton-<uid>-<hash>.lock"
    std::size_t dash = segment.find('-');
    for (int i = 0; i < 2; ++i) dash = segment.find('-', dash + 1);
    return "/dev/shm/" + segment.substr(0, dash) + ".lock";
  }
  std::string segment;

 private:
  pid_t pid_ = 0;
};

TEST_F(ShmRegionTest, ContainersOfOnePathLeaveEachOthersRegionsAlone) {
  namespace fs = std::filesystem;
  const std::string run_dir = dir_ / "run";
  fs::create_directory(run_dir);
  OtherContainer other(run_dir, RegionName{"w0", 999'999'999, 1, 7});
  ASSERT_TRUE(fs::exists(other.file()));
  fs::rename(run_dir, dir_ / "there");
  fs::create_directory(run_dir);

  auto own = ShmRegion::create(region_name(run_dir, mine("w0", 8)), kBytes);
  ASSERT_TRUE(own.ok()) << own.status().message();
  EXPECT_EQ(unlink_dead_regions(run_dir, /*leased=*/true), 0);
  EXPECT_EQ(unlink_predecessors(run_dir, "w0", 8), 0);
  EXPECT_TRUE(fs::exists(other.file())) << "its process lives";
  EXPECT_EQ(list_regions(run_dir).size(), 1U);

  other.kill();
  EXPECT_TRUE(fs::exists(other.file()));
  EXPECT_EQ(unlink_dead_regions(run_dir), 0) << "none of these were its own";
  EXPECT_FALSE(fs::exists(other.file())) << "no process holds its lock";
  EXPECT_FALSE(fs::exists(other.lock()));
  EXPECT_EQ(list_regions(run_dir).size(), 1U);
}

TEST_F(ShmRegionTest, AKeptPoolStaysUntilItsSpaceIsSwept) {
  namespace fs = std::filesystem;
  OtherContainer memory(dir_.path(), RegionName{"w0", 999'999'999, 1, 7, false, /*leased=*/true});
  memory.kill();
  EXPECT_EQ(unlink_dead_regions(dir_.path()), 0);
  EXPECT_TRUE(fs::exists(memory.file()));
  EXPECT_TRUE(fs::exists(memory.lock()));
  EXPECT_EQ(unlink_dead_regions(dir_.path(), /*leased=*/true), 1);
  EXPECT_FALSE(fs::exists(memory.file()));
  EXPECT_FALSE(fs::exists(memory.lock()));
}

TEST_F(ShmRegionTest, ALockThatIsNoFileOfOursIsRefused) {
  const std::string name = name_for_test(dir_);
  const std::string lock = "/dev/shm/" + name.substr(0, name.find("-w0")) + ".lock";
  ASSERT_EQ(::symlink("/dev/shm/baton-no-such-file", lock.c_str()), 0);
  unlink_dead_regions(dir_.path());
  const auto made = ShmRegion::create(name, kBytes);
  EXPECT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("cannot lock"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/baton-no-such-file"));
  EXPECT_TRUE(std::filesystem::is_symlink(lock)) << "nor is it swept away";
  ::unlink(lock.c_str());
}

TEST_F(ShmRegionTest, ASuccessorUnlinksItsPredecessorsOnly) {
  const auto make = [&](const std::string& worker, AllocationId allocation) {
    return ShmRegion::create(region_name(dir_.path(), mine(worker, allocation)), 4096).ok();
  };
  // The handles end at once and unlink; make the names by hand as a killed owner would leave them.
  EXPECT_TRUE(make("w0", 1));
  const auto leave = [&](const std::string& run_dir, const std::string& worker, AllocationId id) {
    std::ofstream("/dev/shm/" + region_name(run_dir, mine(worker, id))) << "x";
  };
  const TempDir other;
  leave(dir_.path(), "w0", 1);
  leave(dir_.path(), "w0", 2);
  leave(dir_.path(), "w0", 3);
  std::ofstream("/dev/shm/" + region_name(dir_.path(), RegionName{"w0", 1, 1, 2, true})) << "x";
  leave(dir_.path(), "w0-1", 4);  // a name that only begins alike
  leave(other.path(), "w0", 5);   // another run_dir
  EXPECT_EQ(unlink_predecessors(dir_.path(), "w0", 3), 3) << "both parts of a pool";
  auto left = list_regions(dir_.path());
  ASSERT_EQ(left.size(), 2U);
  std::sort(left.begin(), left.end(),
            [](const auto& a, const auto& b) { return a.allocation < b.allocation; });
  EXPECT_EQ(left[0].allocation, 3U);
  EXPECT_EQ(left[1].worker, "w0-1");
  ASSERT_EQ(list_regions(other.path()).size(), 1U);
  EXPECT_EQ(unlink_predecessors(other.path(), "w0", 0), 1);
}

}  // namespace
}  // namespace baton
