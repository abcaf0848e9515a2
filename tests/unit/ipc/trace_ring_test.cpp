// Rings of trace records: what a reader sees beside a writer that goes on, that laps it, or that
// died in the middle of a record; and when a process begins and ends to write.
#include "ipc/trace_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

namespace baton {
namespace {

class TraceRing : public ::testing::Test {
 protected:
  TraceRing() {
    std::string name = (std::filesystem::temp_directory_path() / "trace-XXXXXX").string();
    folder = ::mkdtemp(name.data());
  }
  ~TraceRing() override { std::filesystem::remove_all(folder); }

  void want(TimeNs length = 10 * kSecond) {
    if (!control) control = open_trace_control(folder).value();
    TraceControl& c = control_of(control);
    c.layout = kTraceLayout;
    c.session++;
    c.until = now_ns() + length;
  }
  std::string ring(const char* name = "one") const { return folder + "/" + name + ".trace"; }

  static TraceRecord turn(std::uint64_t number) {
    TraceRecord record{.kind = TraceKind::turn, .at = static_cast<TimeNs>(number)};
    record.args = {number, number, number, number};
    return record;
  }
  /// Of the turns alone: their numbers. Each must be of one piece.
  static std::vector<std::uint64_t> turns(TraceReader& reader) {
    std::vector<std::uint64_t> numbers;
    reader.drain([&](const TraceRecord& record) {
      if (record.kind != TraceKind::turn) return;
      for (const std::uint64_t arg : record.args) EXPECT_EQ(arg, record.args[0]);
      EXPECT_EQ(record.at, static_cast<TimeNs>(record.args[0]));
      numbers.push_back(record.args[0]);
    });
    return numbers;
  }

  std::string folder;
  SharedPages control;
};

TEST_F(TraceRing, OffThereIsNoRingAndNothingIsWanted) {
  Tracer tracer(folder, "one");
  EXPECT_FALSE(tracer.on());
  EXPECT_FALSE(tracer.look(now_ns()));
  tracer.add(turn(1));
  EXPECT_FALSE(std::filesystem::exists(ring()));
  Tracer nowhere("", "one");
  EXPECT_FALSE(nowhere.look(now_ns()));
}

TEST_F(TraceRing, ATraceBeginsOnceAndHasALifeFirst) {
  Tracer tracer(folder, "one");
  want();
  EXPECT_FALSE(tracer.on());  // not before it has looked
  EXPECT_TRUE(tracer.look(now_ns()));
  EXPECT_FALSE(tracer.look(now_ns()));
  EXPECT_TRUE(tracer.on());
  tracer.add(turn(7), std::string(100, 'x'));
  auto reader = TraceReader::open(ring(), true).value();
  std::vector<TraceRecord> records;
  reader.drain([&](const TraceRecord& record) { records.push_back(record); });
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].kind, TraceKind::life);
  EXPECT_EQ(records[0].args[0], pid_start_time(getpid()));
  EXPECT_EQ(records[1].pid, static_cast<std::uint32_t>(getpid()));
  EXPECT_EQ(records[1].words(), std::string(64, 'x'));  // cut, and no zero needed
  struct stat facts {};
  ASSERT_EQ(::stat(ring().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
  EXPECT_EQ(static_cast<std::size_t>(facts.st_size), kTraceRingBytes);
}

TEST_F(TraceRing, ItEndsAtItsDeadlineThoughNobodyEndsIt) {
  Tracer tracer(folder, "one");
  want(20 * kMillisecond);
  EXPECT_TRUE(tracer.look(now_ns()));
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_FALSE(tracer.look(now_ns()));
  EXPECT_FALSE(tracer.on());
  EXPECT_EQ(control_of(control).until.load(), 0);
}

TEST_F(TraceRing, AnotherBuildsTraceIsLeftAlone) {
  Tracer tracer(folder, "one");
  want();
  control_of(control).layout = kTraceLayout + 1;
  EXPECT_FALSE(tracer.look(now_ns()));
  EXPECT_FALSE(tracer.on());
  EXPECT_FALSE(std::filesystem::exists(ring()));
}

TEST_F(TraceRing, WhatIsOverwrittenIsCountedAndTheRestIsWhole) {
  Tracer tracer(folder, "one");
  want();
  tracer.look(now_ns());
  auto reader = TraceReader::open(ring(), true).value();
  const std::uint64_t all = kTraceSlots + 1000;
  for (std::uint64_t i = 0; i < all; ++i) tracer.add(turn(i));
  const auto numbers = turns(reader);
  // The first record was that of the life.
  EXPECT_EQ(reader.lost(), 1001U);
  ASSERT_EQ(numbers.size(), kTraceSlots);
  EXPECT_EQ(numbers.front(), 1000U);
  EXPECT_EQ(numbers.back(), all - 1);
  tracer.add(turn(all));
  EXPECT_EQ(turns(reader), std::vector<std::uint64_t>{all});
}

TEST_F(TraceRing, BesideAWriterThatLapsItAReaderSeesOnlyWholeRecordsInOrder) {
  Tracer tracer(folder, "one");
  want();
  tracer.look(now_ns());
  auto reader = TraceReader::open(ring(), true).value();
  constexpr std::uint64_t kAll = 20 * kTraceSlots;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kAll; ++i) tracer.add(turn(i));
    done = true;
  });
  std::uint64_t seen = 0;
  std::int64_t last = -1;
  for (bool more = true; more;) {
    more = !done;
    for (const std::uint64_t number : turns(reader)) {
      EXPECT_GT(static_cast<std::int64_t>(number), last);
      last = static_cast<std::int64_t>(number);
      ++seen;
    }
  }
  writer.join();
  EXPECT_EQ(last, static_cast<std::int64_t>(kAll) - 1);
  // All but the life, which may have been overwritten as well.
  EXPECT_GE(seen + reader.lost(), kAll);
  EXPECT_LE(seen + reader.lost(), kAll + 1);
}

/// Sets a word of the ring's file.
void poke(const std::string& path, std::size_t at, std::uint64_t value) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::pwrite(fd.get(), &value, sizeof value, static_cast<off_t>(at)), 8);
}

TEST_F(TraceRing, ARecordThatItsWriterDidNotFinishIsLostAndNoOther) {
  want();
  {
    Tracer tracer(folder, "one");
    tracer.look(now_ns());
    for (std::uint64_t i = 0; i < 5; ++i) tracer.add(turn(i));
  }
  // As if it had died inside of its last record, number 6: the slot is taken and has no number.
  poke(ring(), kTraceHeadBytes + 6 * kTraceSlotBytes, 0);
  auto reader = TraceReader::open(ring(), true).value();
  EXPECT_EQ(turns(reader), (std::vector<std::uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(reader.lost(), 0U);  // it may be under way
  Tracer successor(folder, "one");
  EXPECT_TRUE(successor.look(now_ns()));
  successor.add(turn(5));
  EXPECT_EQ(turns(reader), (std::vector<std::uint64_t>{5}));
  EXPECT_EQ(reader.lost(), 1U);
}

TEST_F(TraceRing, ANumberThatIsNotItsSlotsIsNoRecord) {
  want();
  Tracer tracer(folder, "one");
  tracer.look(now_ns());
  for (std::uint64_t i = 0; i < 5; ++i) tracer.add(turn(i));
  poke(ring(), kTraceHeadBytes + 3 * kTraceSlotBytes, 4711);
  auto reader = TraceReader::open(ring(), true).value();
  EXPECT_EQ(turns(reader), (std::vector<std::uint64_t>{0, 2, 3, 4}));
  EXPECT_EQ(reader.lost(), 1U);
}

TEST_F(TraceRing, WhatAKilledProcessWroteIsThereAndItsSuccessorGoesOnBehindIt) {
  want();
  const pid_t child = ::fork();
  if (child == 0) {
    Tracer tracer(folder, "one");
    tracer.look(now_ns());
    for (std::uint64_t i = 0; i < 3; ++i) tracer.add(turn(i));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  Tracer tracer(folder, "one");
  EXPECT_TRUE(tracer.look(now_ns()));
  tracer.add(turn(3));
  auto reader = TraceReader::open(ring(), true).value();
  std::vector<std::uint32_t> pids;
  std::vector<TraceKind> kinds;
  reader.drain([&](const TraceRecord& record) {
    pids.push_back(record.pid);
    kinds.push_back(record.kind);
  });
  const auto dead = static_cast<std::uint32_t>(child);
  const auto own = static_cast<std::uint32_t>(getpid());
  EXPECT_EQ(pids, (std::vector<std::uint32_t>{dead, dead, dead, dead, own, own}));
  EXPECT_EQ(kinds[4], TraceKind::life);
}

TEST_F(TraceRing, TwoProcessesNeverWriteToOneRing) {
  want();
  auto first = std::make_unique<Tracer>(folder, "one");
  EXPECT_TRUE(first->look(now_ns()));
  Tracer second(folder, "one");  // a front end's successor, while its predecessor still lives
  const TimeNs now = now_ns();
  EXPECT_FALSE(second.look(now));
  EXPECT_FALSE(second.on());
  first.reset();
  EXPECT_FALSE(second.look(now));  // not in every round
  EXPECT_TRUE(second.look(now + kSecond));
}

TEST_F(TraceRing, ARingThatWasRemovedIsMadeAnewByTheNextTrace) {
  Tracer tracer(folder, "one");
  want();
  tracer.look(now_ns());
  tracer.add(turn(1));
  auto old = TraceReader::open(ring(), true).value();
  std::filesystem::remove(ring());
  control_of(control).until = 0;
  EXPECT_FALSE(tracer.on());
  want();
  EXPECT_TRUE(tracer.look(now_ns()));
  tracer.add(turn(2));
  auto reader = TraceReader::open(ring(), true).value();
  EXPECT_NE(reader.file(), old.file());
  EXPECT_EQ(turns(reader), std::vector<std::uint64_t>{2});
}

TEST_F(TraceRing, AFileThatIsNoRingIsReadAsEmpty) {
  for (const char* bytes : {"", "nonsense"}) {
    UniqueFd fd(::open(ring().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_GE(::write(fd.get(), bytes, std::strlen(bytes)), 0);
    auto reader = TraceReader::open(ring(), true).value();
    EXPECT_TRUE(turns(reader).empty());
  }
  EXPECT_FALSE(TraceReader::open(folder, true).ok());
  EXPECT_FALSE(TraceReader::open(folder + "/none", true).ok());
}

}  // namespace
}  // namespace baton
