// What a worker on CPUs may take of the host's memory.
#include "workers/pool/host_memory.h"

#include <gtest/gtest.h>

namespace baton::test {
namespace {

constexpr std::uint64_t kMib = 1U << 20U;
constexpr std::uint64_t kGib = 1U << 30U;

const std::string kMeminfo =
    "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   8388608 kB\n";

TEST(FreeMemory, IsTheHostsOrWhatTheGroupLeaves) {
  EXPECT_EQ(free_memory(kMeminfo, "", "", ""), 8 * kGib);
  EXPECT_EQ(free_memory(kMeminfo, "max\n", "123\n", ""), 8 * kGib);
  const std::string used = std::to_string(3 * kGib) + "\n";
  const std::string limit = std::to_string(4 * kGib) + "\n";
  EXPECT_EQ(free_memory(kMeminfo, limit, used, ""), 1 * kGib);
  const std::string stat = "anon 5\ninactive_file " + std::to_string(2 * kGib) + "\n";
  EXPECT_EQ(free_memory(kMeminfo, limit, used, stat), 3 * kGib) << "unused pages of files";
  EXPECT_EQ(free_memory(kMeminfo, std::to_string(kGib), used, ""), 0U) << "above the limit";
  EXPECT_EQ(free_memory(kMeminfo, std::to_string(64 * kGib), used, ""), 8 * kGib);
  EXPECT_EQ(free_memory("", "", "", ""), 0U) << "not known";
  EXPECT_GT(free_host_memory(), 64 * kMib);
}

MemoryAsk ask_of(std::uint64_t weights, std::uint64_t free) {
  MemoryAsk ask;
  ask.dtype = "f32";
  ask.weights = weights;
  ask.block_bytes = kMib;
  ask.context_bytes = 512 * kMib;
  ask.free = free;
  ask.fraction = 0.5;
  return ask;
}

TEST(HostPool, HoldsTwoContextsWithinHalfOfWhatIsLeft) {
  EXPECT_EQ(plan_host_pool(ask_of(kGib, 100 * kGib)).value(), 1024 * kMib);
  MemoryAsk ask = ask_of(kGib, 100 * kGib);
  ask.context_bytes = kMib;
  EXPECT_EQ(plan_host_pool(ask).value(), 256 * kMib) << "never less";
  ask.context_bytes = 64 * kGib;
  EXPECT_EQ(plan_host_pool(ask).value(), 4096 * kMib) << "never more";
  // Half of 4 GiB, less weights and the process's own 64 MiB, halved.
  EXPECT_EQ(plan_host_pool(ask_of(kGib, 4 * kGib)).value(), (2048 - 1024 - 64) / 2 * kMib);
  ask = ask_of(kGib, 100 * kGib);
  ask.shared_free = 600 * kMib;
  ask.sharers = 2;
  EXPECT_EQ(plan_host_pool(ask).value(), 300 * kMib) << "its part of /dev/shm";
  ask.host_pool_blocks = 100;
  EXPECT_EQ(plan_host_pool(ask).value(), 200 * kMib) << "beside its host part";
  ask.pool_mib = 700;
  EXPECT_EQ(plan_host_pool(ask).value(), 700 * kMib) << "as configured";
  ask.pool_blocks = 3;
  EXPECT_EQ(plan_host_pool(ask).value(), 3 * kMib);
  ask = ask_of(100 * kGib, 0);
  EXPECT_TRUE(plan_host_pool(ask).ok()) << "nothing is known, nothing is refused";
}

TEST(HostPool, WhatDoesNotFitIsRefusedWithTheArithmetic) {
  MemoryAsk ask = ask_of(6 * kGib, 10 * kGib);
  const std::string refusal = plan_host_pool(ask).status().message();
  EXPECT_TRUE(refusal.starts_with(
      "not enough memory: weights 6.00 GiB (f32) + KV pool 0.02 GiB at least + 0.06 GiB of the "
      "process's own; 10.00 GiB are free, of which memory_fraction 0.5 allows 5.00 GiB. Fewer "))
      << refusal;
  ask.memory_mib = 7 * 1024;
  EXPECT_TRUE(plan_host_pool(ask).ok());
  ask.pool_mib = 2048;
  ask.loading = kGib;
  const std::string text = plan_host_pool(ask).status().message();
  EXPECT_NE(text.find("+ 1.00 GiB while they are dequantised + KV pool 2.00 GiB + "), text.npos)
      << text;
  EXPECT_NE(text.find("memory_mib allows 7.00 GiB."), text.npos) << text;
  ask = ask_of(2 * kGib, 6 * kGib);
  ask.host_pool_mib = 900;
  EXPECT_TRUE(plan_host_pool(ask).ok());
  ask.host_pool_mib = 1000;
  EXPECT_NE(plan_host_pool(ask).status().message().find(
                "KV pool 0.02 GiB at least + its host part 0.98 GiB + 0.06 GiB of"),
            std::string::npos);
  ask.host_pool_blocks = 800;  // counts before the MiB
  EXPECT_TRUE(plan_host_pool(ask).ok());
  ask.host_pool_mib = ask.host_pool_blocks = 0;
  ask.sharers = 2;
  EXPECT_NE(plan_host_pool(ask).status().message().find("divided by 2 workers, allows 1.50 GiB"),
            std::string::npos);
}

TEST(HostPart, OfAGpuLeavesATenth) {
  EXPECT_TRUE(check_host_part(9 * kGib, 10 * kGib, 1).ok());
  EXPECT_TRUE(check_host_part(9 * kGib, 0, 1).ok()) << "nothing is known, nothing is refused";
  EXPECT_TRUE(check_host_part(3 * kGib, 10 * kGib, 3).ok());
  EXPECT_NE(
      check_host_part(3 * kGib + kMib, 10 * kGib, 3).message().find("3 workers share the rest"),
      std::string::npos);
  const Status refusal = check_host_part(9 * kGib + kMib, 10 * kGib, 1);
  EXPECT_EQ(refusal.code(), ErrorCode::unavailable) << "it is tried again";
  EXPECT_NE(refusal.message().find("9.00 GiB and page-lock it, but only 10.00 GiB"),
            std::string::npos);
}

}  // namespace
}  // namespace baton::test
