// Memory that was needed once goes back to the kernel: the journals' and the heap's.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "frontend/core/heap_trim.h"
#include "frontend/succession/free_extents.h"
#include "frontend/succession/input_journal.h"
#include "frontend/succession/journal.h"
#include "frontend/succession/journal_memory.h"

namespace baton {
namespace {

using Extents = std::vector<std::uint32_t>;

TEST(FreeExtents, WhatWasNotNeededForAWhileIsReleased) {
  FreeExtents free(10);
  EXPECT_TRUE(free.take_idle(0, 100).empty()) << "they have no memory yet";
  Extents used;
  for (int i = 0; i < 6; ++i) used.push_back(*free.take());
  EXPECT_EQ(used, (Extents{0, 1, 2, 3, 4, 5}));
  free.give_back(used);
  EXPECT_TRUE(free.take_idle(2, 100).empty()) << "they were needed since the last call";
  const Extents idle = free.take_idle(2, 3);
  EXPECT_EQ(idle, (Extents{5, 4, 3})) << "the last to be used again; 3 a call";
  EXPECT_EQ(free.size(), 7U);
  free.put_released(idle);
  EXPECT_EQ(free.size(), 10U);
  EXPECT_EQ(free.take(), 0U);
  EXPECT_EQ(free.take(), 1U);
  free.give_back(Extents{0, 1});
  EXPECT_TRUE(free.take_idle(0, 100) == Extents{2}) << "two were needed";
  free.put_released(Extents{2});
  EXPECT_EQ(free.take_idle(0, 100), (Extents{1, 0}));
  free.put_released(Extents{1, 0});
  EXPECT_TRUE(free.take_idle(0, 100).empty());
  Extents all;
  while (const auto one = free.take()) all.push_back(*one);
  std::sort(all.begin(), all.end());
  Extents expected(10);
  std::iota(expected.begin(), expected.end(), 0U);
  EXPECT_EQ(all, expected) << "each once";
}

std::size_t resident(const JournalMemory& memory) {
  struct stat facts {};
  fstat(memory.fd(), &facts);
  return static_cast<std::size_t>(facts.st_blocks) * 512;
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(JournalMemory, OfClientsBytesIsGivenBackWhileOthersAreKept) {
  const InputGeometry geometry{.slots = 64, .extents = 4096};
  JournalMemory memory = JournalMemory::create(geometry.bytes()).value();
  InputJournal journal(memory.bytes(), geometry);
  InputSlot stays = journal.open({.cookie = 1});
  const auto fill = [](InputSlot& slot, std::size_t bytes, char with) {
    while (bytes > 0) {
      const auto room = slot.room().first(std::min(bytes, slot.room().size()));
      std::memset(room.data(), with, room.size());
      slot.took(room.size());
      bytes -= room.size();
    }
  };
  {
    std::vector<InputSlot> large;
    for (std::uint64_t i = 0; i < 8; ++i) large.push_back(journal.open({.cookie = 2 + i}));
    for (InputSlot& slot : large) fill(slot, 3 * kMiB, 'x');
    fill(stays, kMiB, 's');
    for (InputSlot& slot : large) fill(slot, 2 * kMiB, 'x');
  }
  EXPECT_GT(resident(memory), 40 * kMiB);
  journal.shrink();  // they were needed until now
  journal.shrink();
  EXPECT_LT(resident(memory), 11 * kMiB) << "8 MiB are kept, and 1 is in use";
  EXPECT_GT(resident(memory), 8 * kMiB);
  const auto inputs = read_inputs(memory.bytes());
  ASSERT_TRUE(inputs.ok());
  ASSERT_EQ(inputs.value().size(), 1U);
  EXPECT_EQ(inputs.value()[0].fault, "");
  EXPECT_EQ(inputs.value()[0].bytes.substr(0, kMiB), std::string(kMiB, 's'));
  InputSlot again = journal.open({.cookie = 99});
  fill(again, 40 * kMiB, 'y');
  EXPECT_EQ(read_inputs(memory.bytes()).value()[1].bytes.substr(0, 40 * kMiB),
            std::string(40 * kMiB, 'y'));
}

TEST(JournalMemory, OfRepliesIsGivenBack) {
  const JournalGeometry geometry{.slots = 8, .extents = 4096};
  JournalMemory memory = JournalMemory::create(geometry.bytes()).value();
  Journal journal(memory.bytes(), geometry, "test");
  ASSERT_TRUE(journal.open(1, "first"));
  for (std::uint64_t reply = 2; reply < 8; ++reply) {
    ASSERT_TRUE(journal.open(reply, std::string(6 * kMiB, 'x')));
  }
  journal.append(1, "second");
  for (std::uint64_t reply = 2; reply < 8; ++reply) journal.close(reply);
  EXPECT_GT(resident(memory), 36 * kMiB);
  journal.shrink();
  journal.shrink();
  EXPECT_LT(resident(memory), 10 * kMiB);
  const auto contents = read_journal(memory.bytes());
  ASSERT_TRUE(contents.ok());
  ASSERT_EQ(contents.value().replies.size(), 1U);
  EXPECT_EQ(contents.value().replies[0].records, (std::vector<std::string>{"first", "second"}));
  ASSERT_TRUE(journal.open(2, std::string(30 * kMiB, 'y')));
  EXPECT_EQ(read_journal(memory.bytes()).value().replies[1].records[0],
            std::string(30 * kMiB, 'y'));
}

TEST(HeapTrim, BehindLargeRequestsAndOnceMoreAtRest) {
  HeapTrim heap;
  TimeNs now = 100 * kSecond;
  std::string due;
  const auto seconds = [&](int count, std::uint64_t bytes, bool at_work, std::size_t open) {
    for (int i = 0; i < count; ++i)
      due += heap.due(bytes, at_work, open, now += kSecond) ? '1' : '0';
    return std::exchange(due, {});
  };
  EXPECT_EQ(seconds(5, 0, false, 3), "00000") << "nothing large was asked";
  EXPECT_EQ(seconds(3, 100, true, 3), "000") << "it is being read";
  EXPECT_EQ(seconds(5, 100, false, 3), "01000");
  EXPECT_EQ(seconds(3, 100, false, 0), "100") << "their prompts have gone as well";
  EXPECT_EQ(seconds(3, 200, false, 0), "001");
  EXPECT_EQ(seconds(3, 200, false, 0), "000");
}

}  // namespace
}  // namespace baton
