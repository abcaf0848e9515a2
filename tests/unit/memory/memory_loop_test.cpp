// The memory process's shell and the worker's end of a lease: real sockets, segments and processes.
#include "memory/memory_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "ipc/codec.h"
#include "ipc/packet_socket.h"
#include "ipc/shm_region.h"
#include "ipc/spoiled.h"
#include "workers/pool/lease_client.h"
#include "workers/pool/weights_lease.h"

namespace baton {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;

class Memory : public testing::Test {
 protected:
  Memory() {
    std::string folder = std::filesystem::temp_directory_path() / "baton-memory-XXXXXX";
    run_dir = ::mkdtemp(folder.data());
    lock.emplace(std::move(LockFile::acquire(run_dir + "/memory.lock")).value());
    UniqueFd listening = std::move(listen_packets(*lock, socket())).value();
    loop.emplace(run_dir, std::move(listening));
    thread = std::thread([this] { loop->run(signals); });
  }
  ~Memory() override {
    if (thread.joinable()) stop();
    std::filesystem::remove_all(run_dir);
  }
  void stop() {
    ::kill(::getpid(), SIGTERM);
    thread.join();
  }

  std::string socket() const { return run_dir + "/memory.sock"; }
  static Lease lease_of(Incarnation incarnation) {
    Lease lease;
    lease.worker = "decode0";
    lease.incarnation = incarnation;
    lease.allocation = 100 + incarnation;
    lease.key.block_bytes = kBlockBytes;
    lease.blocks = 4;
    lease.host_blocks = 2;
    return lease;
  }
  Result<LeasedPool> ask(Incarnation incarnation, TimeNs patience = 10 * kSecond) const {
    return lease_pool(socket(), lease_of(incarnation), {0, patience});
  }
  /// A worker's process that holds the lease, writes a byte and then does `last`, or lives on.
  pid_t worker(
      Incarnation incarnation, const std::function<void()>& last = [] { ::pause(); }) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      mark_pool_on_fault(run_dir, "decode0");
      const auto leased = ask(incarnation);
      if (!leased.ok()) ::_exit(1);
      auto pool = ShmRegion::open_writable(leased.value().answer.device_handle, 4 * kBlockBytes);
      if (!pool.ok()) ::_exit(2);
      pool.value().writable_data()[5] = std::byte{77};
      if (::write(ready[1], "x", 1) != 1) ::_exit(3);
      last();
      ::_exit(0);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
    return child;
  }
  static void end(pid_t child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  static std::byte read_back(const Leased& leased) {
    const auto pool = ShmRegion::open_readonly(leased.device_handle, 4 * kBlockBytes);
    EXPECT_TRUE(pool.ok()) << pool.status().message();
    return pool.ok() ? pool.value().data()[5] : std::byte{0};
  }

  SignalFd signals;
  std::string run_dir;
  std::optional<LockFile> lock;
  std::optional<MemoryLoop> loop;
  std::thread thread;
};

TEST_F(Memory, APoolOutlivesItsProcess) {
  const pid_t child = worker(1);
  EXPECT_FALSE(ask(2, 300 * kMillisecond).ok()) << "its writer lives";
  end(child);
  const auto next = ask(2);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_TRUE(next.value().answer.kept);
  EXPECT_EQ(next.value().answer.allocation, 101U);
  EXPECT_NE(next.value().answer.host_handle, "");
  EXPECT_EQ(read_back(next.value().answer), std::byte{77});
}

TEST_F(Memory, WhoWaitsIsAnsweredWhenTheWriterHasEnded) {
  const pid_t child = worker(1);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    end(child);
  });
  const auto next = ask(2);
  killer.join();
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_TRUE(next.value().answer.kept);
}

TEST_F(Memory, WhatAFaultMayHaveWrittenIsGivenUp) {
  const pid_t child = worker(1, [] { ::abort(); });
  ::waitpid(child, nullptr, 0);
  const auto next = ask(2);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_FALSE(next.value().answer.kept);
  EXPECT_EQ(next.value().answer.why, "the process that wrote it died of a fault");
  EXPECT_EQ(next.value().answer.allocation, 102U);
}

TEST_F(Memory, APoolWhoseSegmentsAreGoneIsMadeAgain) {
  end(worker(1));
  unlink_predecessors(run_dir, "decode0", /*own=*/0);
  const auto next = ask(2);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_FALSE(next.value().answer.kept);
  EXPECT_EQ(next.value().answer.why, "its memory is gone");
}

TEST_F(Memory, NonsenseEndsOneConnection) {
  const auto stranger = connect_packets(socket());
  ASSERT_TRUE(stranger.ok());
  EXPECT_TRUE(send_packet(stranger.value().get(), "no message"));
  std::string bytes;
  EXPECT_EQ(receive_packet(stranger.value().get(), 5 * kSecond, bytes), Received::closed);
  EXPECT_TRUE(ask(1).ok());
}

TEST_F(Memory, ItsEndIsSeenAndItsNamesGo) {
  const auto leased = ask(1);
  ASSERT_TRUE(leased.ok());
  EXPECT_EQ(list_regions(run_dir).size(), 2U);
  stop();
  EXPECT_TRUE(list_regions(run_dir).empty());
  loop.reset();  // as the end of the process
  std::string bytes;
  EXPECT_EQ(receive_packet(leased.value().link.get(), 5 * kSecond, bytes), Received::closed);
  EXPECT_FALSE(ask(2).ok()) << "nobody listens";
}

class Weights : public Memory {
 protected:
  static constexpr std::size_t kBytes = 3U << 20U;

  WeightsLease weights(const std::string& worker, TimeNs patience = 10 * kSecond) const {
    WeightsAsk ask;
    ask.worker = worker;
    ask.key.model_fingerprint = 7;
    return lease_weights(socket(), ask, {0, patience});
  }
  static SealedMemory packed() {
    auto memory = UnsealedMemory::create(2 * kBytes);
    std::memset(memory.value().data(), 42, kBytes);
    return UnsealedMemory::seal(std::move(memory).value(), kBytes).value();
  }
  /// A worker's process that is to pack; `seals`: and does. Then it lives on.
  pid_t packer(bool seals) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const WeightsLease lease = weights("prefill0");
      if (!lease.fill || (seals && !give_weights(lease, packed()))) ::_exit(1);
      if (::write(ready[1], "x", 1) != 1) ::_exit(2);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "it was not told to pack";
    ::close(ready[0]);
    return child;
  }
  MemoryReport command(const std::string& drop = "") const {
    const auto link = connect_packets(socket());
    MemoryCommand message;
    message.drop = drop;
    std::string bytes;
    encode(message, bytes);
    EXPECT_TRUE(send_packet(link.value().get(), bytes));
    EXPECT_EQ(receive_packet(link.value().get(), 5 * kSecond, bytes), Received::packet);
    return std::get<MemoryReport>(decode_from_memory(bytes).value());
  }
};

TEST_F(Weights, ArePackedOnceAndOutliveWhoPackedThem) {
  const pid_t child = packer(true);
  const WeightsLease second = weights("decode0");
  ASSERT_NE(second.packed, nullptr) << second.why;
  EXPECT_EQ(second.packed->size(), kBytes);
  EXPECT_EQ(second.packed->data()[kBytes - 1], std::byte{42});
  MemoryReport report = command();
  ASSERT_EQ(report.entries.size(), 1U);
  EXPECT_EQ(report.entries[0].state, "held");
  EXPECT_EQ(report.entries[0].bytes, kBytes);
  EXPECT_EQ(report.entries[0].workers, (std::vector<std::string>{"prefill0", "decode0"}));
  EXPECT_EQ(report.entries[0].pids, (std::vector<std::int32_t>{child, ::getpid()}));
  end(child);
  const WeightsLease again = weights("prefill0");
  ASSERT_NE(again.packed, nullptr) << again.why;
  EXPECT_EQ(again.packed->id(), second.packed->id());
}

TEST_F(Weights, APackerThatIsKilledLeavesNothingAndWhoWaitsPacks) {
  const pid_t child = packer(false);
  EXPECT_EQ(command().entries.at(0).state, "filling");
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    end(child);
  });
  const WeightsLease second = weights("decode0");
  killer.join();
  EXPECT_TRUE(second.fill) << second.why;
  EXPECT_EQ(second.packed, nullptr);
  EXPECT_EQ(command().entries.at(0).workers, std::vector<std::string>{"decode0"});
}

TEST_F(Weights, NobodyWaitsForEverForOneThatHangs) {
  const pid_t child = packer(false);
  ::kill(child, SIGSTOP);
  const TimeNs begin = now_ns();
  const WeightsLease second = weights("decode0", 300 * kMillisecond);
  EXPECT_GE(now_ns() - begin, 300 * kMillisecond);
  EXPECT_LT(now_ns() - begin, 5 * kSecond);
  EXPECT_FALSE(second.fill || second.packed);
  EXPECT_EQ(second.why, "another worker packs them, and has not ended in time");
  end(child);
}

TEST_F(Weights, OnlySealedMemoryIsTaken) {
  const WeightsLease lease = weights("prefill0");
  ASSERT_TRUE(lease.fill);
  UniqueFd open(::open("/dev/null", O_RDONLY));
  std::string bytes;
  encode(WeightsSealed{}, bytes);
  for (const int fd : {-1, open.get()}) {
    ASSERT_TRUE(send_packet(lease.link.get(), bytes, fd));
    std::string answer;
    ASSERT_EQ(receive_packet(lease.link.get(), 5 * kSecond, answer), Received::packet);
    const auto given = std::get<WeightsGiven>(decode_from_memory(answer).value());
    EXPECT_FALSE(given.sealed);
    EXPECT_EQ(given.why, "that is no sealed memory");
  }
  EXPECT_EQ(command().entries.at(0).state, "filling");
  EXPECT_TRUE(give_weights(lease, packed()));
}

TEST_F(Weights, AreDroppedWhenNobodyUsesThemAndNotBefore) {
  const pid_t child = packer(true);
  const std::string what = command().entries.at(0).what;
  EXPECT_EQ(command(what).error, "prefill0 uses them");
  end(child);
  while (command().entries.at(0).state != "waits") std::this_thread::yield();
  const MemoryReport report = command(what);
  EXPECT_EQ(report.error, "");
  EXPECT_TRUE(report.entries.empty());
  EXPECT_TRUE(weights("prefill0").fill);
}

TEST_F(Weights, ADroppedPoolGoesAndAHeldOneStays) {
  const pid_t child = worker(1);
  EXPECT_EQ(command("pool:decode0").error, "decode0 holds it");
  EXPECT_EQ(list_regions(run_dir).size(), 2U);
  end(child);
  while (command().entries.at(0).state != "waits") std::this_thread::yield();
  EXPECT_EQ(command("pool:decode1").error, "there is none of that name");
  EXPECT_EQ(command("decode0").error, "it is neither pool:NAME nor weights:NUMBER");
  EXPECT_EQ(command("pool:decode0").error, "");
  EXPECT_TRUE(list_regions(run_dir).empty());
  EXPECT_FALSE(ask(2).value().answer.kept);
}

}  // namespace
}  // namespace baton
