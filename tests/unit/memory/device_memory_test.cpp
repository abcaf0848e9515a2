// The memory process of a GPU, with plain memory in the GPU's place: leases over real sockets, and
// what is allocated and freed when.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "ipc/packet_socket.h"
#include "ipc/shm_region.h"
#include "ipc/spoiled.h"
#include "memory/memory_loop.h"
#include "workers/pool/lease_client.h"
#include "workers/pool/weights_lease.h"

namespace baton {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;

/// Room for so many bytes. Handles are never used twice.
class FakeDevice final : public DeviceAllocator {
 public:
  explicit FakeDevice(std::uint64_t room) : room_(room) {}
  Result<DeviceBlock> allocate(std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (bytes > room_) return Status(ErrorCode::unavailable, "no room");
    room_ -= bytes;
    DeviceBlock block{"handle" + std::to_string(++made_), nullptr, bytes};
    live_.insert(block.handle);
    return block;
  }
  void free(const DeviceBlock& block) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(live_.erase(block.handle), 1U) << "freed twice: " << block.handle;
    room_ += block.bytes;
  }
  std::set<std::string> live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t room_;
  int made_ = 0;
  std::set<std::string> live_;
};

class DeviceMemoryProcess : public testing::Test {
 protected:
  DeviceMemoryProcess() {
    std::string folder = std::filesystem::temp_directory_path() / "baton-device-XXXXXX";
    run_dir = ::mkdtemp(folder.data());
    lock.emplace(std::move(LockFile::acquire(run_dir + "/memory-gpu0.lock")).value());
    UniqueFd listening = std::move(listen_packets(*lock, socket())).value();
    loop.emplace(run_dir, "memory-gpu0", std::move(listening), device);
    thread = std::thread([this] { loop->run(signals); });
  }
  ~DeviceMemoryProcess() override {
    ::kill(::getpid(), SIGTERM);
    thread.join();
    std::filesystem::remove_all(run_dir);
  }

  std::string socket() const { return run_dir + "/memory-gpu0.sock"; }
  Result<LeasedPool> ask_pool(Incarnation incarnation, std::uint32_t blocks = 4,
                              std::uint32_t host_blocks = 0, std::uint64_t model = 7) const {
    Lease lease;
    lease.worker = "decode0";
    lease.incarnation = incarnation;
    lease.allocation = 100 + incarnation;
    lease.key.model_fingerprint = model;
    lease.key.block_bytes = kBlockBytes;
    lease.blocks = blocks;
    lease.host_blocks = host_blocks;
    return lease_pool(socket(), lease, {0, 5 * kSecond});
  }
  WeightsLease ask_weights(const std::string& worker, std::uint64_t model = 7,
                           const std::string& damaged = "", TimeNs patience = 5 * kSecond) const {
    WeightsAsk ask;
    ask.worker = worker;
    ask.key.model_fingerprint = model;
    ask.key.format = "gpu, stored";
    ask.bytes = 2 * kBlockBytes;
    ask.damaged = damaged;
    return lease_weights(socket(), ask, {0, patience});
  }
  /// Another process that does this and waits to be killed.
  static pid_t process(const std::function<void()>& what) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      what();
      if (::write(ready[1], "x", 1) != 1) ::_exit(3);
      ::pause();
      ::_exit(0);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
    return child;
  }
  static void end(pid_t child, int signal = SIGKILL) {
    ::kill(child, signal);
    ::waitpid(child, nullptr, 0);
  }
  /// The loop comes round within half a second.
  bool comes_to(const std::set<std::string>& handles) const {
    for (int i = 0; i < 300; ++i) {
      if (device.live() == handles) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  SignalFd signals;
  std::string run_dir;
  FakeDevice device{16 * kBlockBytes};
  std::optional<LockFile> lock;
  std::optional<MemoryLoop> loop;
  std::thread thread;
};

TEST_F(DeviceMemoryProcess, APoolOutlivesItsProcess) {
  const pid_t child = process([&] {
    if (!ask_pool(1).ok()) ::_exit(1);
  });
  end(child);
  const auto next = ask_pool(2);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_TRUE(next.value().answer.kept);
  EXPECT_EQ(next.value().answer.device_handle, "handle1@memory-gpu0");
  EXPECT_EQ(next.value().answer.allocation, 101U);
}

TEST_F(DeviceMemoryProcess, APoolOfAnotherSizeIsFreedBeforeTheNextIsMade) {
  end(process([&] {
    if (!ask_pool(1, 12).ok()) ::_exit(1);
  }));
  const auto next = ask_pool(2, 14);  // both have no room
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_FALSE(next.value().answer.kept);
  EXPECT_EQ(device.live(), std::set<std::string>{"handle2"});
}

TEST_F(DeviceMemoryProcess, WhatAFaultMayHaveWrittenIsGivenUp) {
  const pid_t child = process([&] {
    mark_pool_on_fault(run_dir, "decode0");
    if (!ask_pool(1).ok()) ::_exit(1);
  });
  end(child, SIGSEGV);
  const auto next = ask_pool(2);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_FALSE(next.value().answer.kept);
  EXPECT_EQ(device.live(), std::set<std::string>{"handle2"});
}

TEST_F(DeviceMemoryProcess, APoolThatIsGivenUpIsNotFreedBeforeItsImportersHaveLetGo) {
  const pid_t child = process([&] {
    mark_pool_on_fault(run_dir, "decode0");
    if (!ask_pool(1, 12).ok()) ::_exit(1);
  });
  auto importer = hold_mapping(socket(), "handle1@memory-gpu0");
  ASSERT_TRUE(importer.ok()) << importer.status().message();
  end(child, SIGSEGV);
  EXPECT_FALSE(ask_pool(2, 12).ok()) << "both have no room";
  EXPECT_EQ(device.live(), std::set<std::string>{"handle1"});
  EXPECT_FALSE(hold_mapping(socket(), "handle1@memory-gpu0").ok()) << "nobody else maps it";
  importer.value().reset();
  EXPECT_TRUE(comes_to({}));
  EXPECT_TRUE(ask_pool(2, 12).ok());
}

TEST_F(DeviceMemoryProcess, AProcessThatAsksAgainGetsThePoolThatItHas) {
  const auto first = ask_pool(1);
  const auto again = ask_pool(1);
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(again.value().answer.device_handle, first.value().answer.device_handle);
  EXPECT_FALSE(again.value().answer.kept);
  EXPECT_EQ(device.live(), std::set<std::string>{"handle1"});
}

TEST_F(DeviceMemoryProcess, AHandleSaysWhoHasTheMemory) {
  EXPECT_EQ(keeper_of("handle1@memory-gpu0"), "memory-gpu0");
  EXPECT_EQ(keeper_of("handle1"), "");
  EXPECT_EQ(keeper_of("handle1@../memory"), "");
}

TEST_F(DeviceMemoryProcess, AHostPartIsASegmentThatIsKeptAsWell) {
  end(process([&] {
    if (!ask_pool(1, 4, 2).ok()) ::_exit(1);
  }));
  const auto next = ask_pool(2, 4, 2);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_TRUE(next.value().answer.kept);
  EXPECT_TRUE(region_bytes(next.value().answer.host_handle));
}

TEST_F(DeviceMemoryProcess, APoolForWhichThereIsNoRoomIsRefused) {
  const auto refused = ask_pool(1, 17);
  EXPECT_FALSE(refused.ok());
  EXPECT_TRUE(device.live().empty());
  EXPECT_TRUE(ask_pool(1, 16).ok()) << "the worker asks again";
}

TEST_F(DeviceMemoryProcess, OneLoadsTheWeightsAndAllMapThem) {
  const WeightsLease first = ask_weights("prefill0");
  ASSERT_TRUE(first.fill) << first.why;
  EXPECT_EQ(first.device.handle, "handle1");
  EXPECT_TRUE(give_device_weights(first, 42));
  const WeightsLease second = ask_weights("decode0");
  EXPECT_FALSE(second.fill);
  EXPECT_EQ(second.device.handle, "handle1");
  EXPECT_EQ(second.device.sum, 42U);
  EXPECT_EQ(second.device.bytes, 2 * kBlockBytes);
}

TEST_F(DeviceMemoryProcess, AWorkerThatDiesWhileItLoadsLeavesNothing) {
  const pid_t child = process([&] {
    static const WeightsLease lease = ask_weights("prefill0");
    if (!lease.fill) ::_exit(1);
  });
  EXPECT_EQ(device.live().size(), 1U);
  end(child);
  EXPECT_TRUE(comes_to({}));
  EXPECT_TRUE(ask_weights("prefill0").fill);
}

TEST_F(DeviceMemoryProcess, MemoryOfALoaderIsFreedWhenItsProcessHasEndedAndNotBefore) {
  const pid_t child = process([&] {
    // The link ends, the process lives on, and may have kernels under way.
    if (!ask_weights("prefill0").fill) ::_exit(1);
  });
  const WeightsLease next = ask_weights("decode0");
  EXPECT_TRUE(next.fill) << "it does not wait for that";
  EXPECT_EQ(device.live(), (std::set<std::string>{"handle1", "handle2"}));
  end(child);
  EXPECT_TRUE(comes_to({"handle2"}));
}

TEST_F(DeviceMemoryProcess, DamagedWeightsAreLoadedAgainAndStayForThoseWhoUseThem) {
  WeightsLease first = ask_weights("prefill0");
  EXPECT_TRUE(give_device_weights(first, 42));
  const WeightsLease again = ask_weights("decode0", 7, first.device.handle);
  EXPECT_TRUE(again.fill);
  EXPECT_EQ(device.live(), (std::set<std::string>{"handle1", "handle2"}));
  first.link.reset();
  EXPECT_TRUE(comes_to({"handle2"}));
  // A word about memory that is not there changes nothing.
  EXPECT_TRUE(give_device_weights(again, 43));
  EXPECT_FALSE(ask_weights("mixed0", 7, "handle1").fill);
}

TEST_F(DeviceMemoryProcess, UnusedWeightsAndThePoolOfAnotherModelMakeRoom) {
  {
    const WeightsLease old = ask_weights("decode0", 7);
    EXPECT_TRUE(give_device_weights(old, 1));
  }
  end(process([&] {
    if (!ask_pool(1, 13).ok()) ::_exit(1);
  }));
  // 2 + 13 of 16 blocks are taken; the next model needs 2 and 14.
  const WeightsLease next = ask_weights("decode0", 8);
  EXPECT_TRUE(next.fill) << next.why;
  EXPECT_TRUE(give_device_weights(next, 2));
  const auto pool = ask_pool(2, 14, 0, 8);
  EXPECT_TRUE(pool.ok()) << pool.status().message();
}

}  // namespace
}  // namespace baton
