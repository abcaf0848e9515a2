// Parts that add up, and the file of slots that keeps them.
#include "ipc/timing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "ipc/timing_ring.h"

namespace baton {
namespace {

constexpr TimeNs kMs = kMillisecond;

TimeNs sum(const PartTimes& spent) {
  return std::accumulate(spent.begin(), spent.end(), TimeNs{0});
}
TimeNs part(const PartTimes& spent, Part part) { return spent[static_cast<std::size_t>(part)]; }

RequestTiming scheduler_told(TimeNs begin, std::map<Part, TimeNs> parts, Part last, bool ended) {
  RequestTiming timing;
  timing.begin = timing.until = begin;
  timing.spent.resize(kParts);
  for (const auto& [which, took] : parts) {
    timing.spent[static_cast<std::size_t>(which)] = took;
    timing.until += took;
  }
  timing.part = static_cast<std::uint32_t>(last);
  timing.ended = ended;
  return timing;
}

FrontendMarks marks_of(TimeNs start) {
  return {.first_byte = start,
          .whole = start + 2 * kMs,
          .opened = start + 5 * kMs,
          .submitted = start + 6 * kMs,
          .ended = start + 100 * kMs,
          .written = start + 103 * kMs};
}

TEST(SplitTime, EveryNanosecondIsInOnePart) {
  const TimeNs start = 1000 * kSecond;
  const FrontendMarks marks = marks_of(start);
  const RequestTiming timing =
      scheduler_told(start + 7 * kMs,
                     {{Part::queue, 10 * kMs}, {Part::prefill, 30 * kMs}, {Part::decode, 52 * kMs}},
                     Part::decode, true);
  const PartTimes spent = split_time(marks, &timing);
  EXPECT_EQ(sum(spent), 103 * kMs);
  EXPECT_EQ(part(spent, Part::read), 2 * kMs);
  EXPECT_EQ(part(spent, Part::tokenise), 3 * kMs);
  EXPECT_EQ(part(spent, Part::unsent), 1 * kMs);
  EXPECT_EQ(part(spent, Part::submit), 1 * kMs);
  EXPECT_EQ(part(spent, Part::queue), 10 * kMs);
  EXPECT_EQ(part(spent, Part::decode), 52 * kMs);
  EXPECT_EQ(part(spent, Part::deliver), 1 * kMs);
  EXPECT_EQ(part(spent, Part::write), 3 * kMs);
}

TEST(SplitTime, AnEarlierWordGoesOnAsItsLastPart) {
  const RequestTiming timing = scheduler_told(
      7 * kMs, {{Part::prefill, 30 * kMs}, {Part::decode, 1 * kMs}}, Part::decode, false);
  const PartTimes spent = split_time(marks_of(0), &timing);
  EXPECT_EQ(sum(spent), 103 * kMs);
  EXPECT_EQ(part(spent, Part::decode), 63 * kMs);
  EXPECT_EQ(part(spent, Part::deliver), 0);
}

TEST(SplitTime, WhatCameAfterTheEndIsNobodysWait) {
  // A stop string ended it here; the scheduler went on for a while.
  const RequestTiming timing = scheduler_told(
      7 * kMs, {{Part::prefill, 30 * kMs}, {Part::decode, 90 * kMs}}, Part::decode, true);
  const PartTimes spent = split_time(marks_of(0), &timing);
  EXPECT_EQ(sum(spent), 103 * kMs);
  EXPECT_EQ(part(spent, Part::prefill), 30 * kMs);
  EXPECT_EQ(part(spent, Part::decode), 63 * kMs);
}

TEST(SplitTime, ClocksThatCrossNeverMakeAPartNegative) {
  // The loops' idea of now is that of their round: the scheduler may seem to have had it before.
  const RequestTiming timing = scheduler_told(
      4 * kMs, {{Part::queue, 3 * kMs}, {Part::prefill, 94 * kMs}}, Part::prefill, true);
  const PartTimes spent = split_time(marks_of(0), &timing);
  EXPECT_EQ(sum(spent), 103 * kMs);
  EXPECT_EQ(part(spent, Part::submit), 0);
  EXPECT_EQ(part(spent, Part::queue), 1 * kMs);
  for (const TimeNs each : spent) EXPECT_GE(each, 0);
}

TEST(SplitTime, WithoutAWordOfTheScheduler) {
  EXPECT_EQ(sum(split_time(marks_of(0), nullptr)), 103 * kMs);
  FrontendMarks marks = marks_of(0);
  marks.submitted = 0;
  EXPECT_EQ(part(split_time(marks, nullptr), Part::unsent), 95 * kMs);
  EXPECT_EQ(sum(split_time({.first_byte = 50, .written = 40}, nullptr)), 0);
}

TEST(SplitTime, APlantedFaultShows) {
  // A scheduler that forgot a part: the sum still holds, and what is missing counts as its way
  // back.
  RequestTiming timing = scheduler_told(
      7 * kMs, {{Part::queue, 40 * kMs}, {Part::decode, 52 * kMs}}, Part::decode, true);
  timing.spent[static_cast<std::size_t>(Part::queue)] = 0;
  const PartTimes spent = split_time(marks_of(0), &timing);
  EXPECT_EQ(sum(spent), 103 * kMs);
  EXPECT_EQ(part(spent, Part::deliver), 41 * kMs);
}

class Ring : public testing::Test {
 protected:
  Ring() {
    char folder[] = "/tmp/baton-timing-XXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/front.timing";
  }
  ~Ring() override { std::filesystem::remove_all(folder_); }

  TimingRing open(std::size_t slots = 8) {
    return std::move(TimingRing::open(path_, slots).value());
  }
  std::map<std::uint64_t, std::string> read() {
    std::map<std::uint64_t, std::string> found;
    EXPECT_TRUE(read_timings(path_, [&](std::uint64_t number, const ExplainedRequest& request) {
                  found[number] = request.request_id;
                }).ok());
    return found;
  }
  static ExplainedRequest request(const std::string& id) {
    ExplainedRequest made;
    made.request_id = id;
    made.spent.resize(kParts, 123'456'789);
    made.timing.spent.resize(kParts, 123'456'789);
    return made;
  }

  std::string folder_, path_;
};

TEST_F(Ring, KeepsTheLastOnes) {
  TimingRing ring = open();
  for (int i = 1; i <= 11; ++i) EXPECT_TRUE(ring.add(request("r" + std::to_string(i))));
  const auto found = read();
  ASSERT_EQ(found.size(), 8U);
  EXPECT_EQ(found.begin()->second, "r4");
  EXPECT_EQ(found.rbegin()->second, "r11");
  struct stat facts {};
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_LE(facts.st_size, static_cast<off_t>(8 * kTimingSlotBytes));
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
}

TEST_F(Ring, ASuccessorGoesOn) {
  { EXPECT_TRUE(open().add(request("before"))); }
  { EXPECT_TRUE(open().add(request("after"))); }
  EXPECT_EQ(read(), (std::map<std::uint64_t, std::string>{{1, "before"}, {2, "after"}}));
}

TEST_F(Ring, HalfASlotIsNone) {
  TimingRing ring = open();
  for (const char* id : {"a", "b", "c"}) EXPECT_TRUE(ring.add(request(id)));
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, "torn", 4, kTimingSlotBytes + 60), 4);
  ASSERT_EQ(ftruncate(fd, 2 * kTimingSlotBytes + 100), 0);
  close(fd);
  EXPECT_EQ(read(), (std::map<std::uint64_t, std::string>{{1, "a"}}));
}

TEST_F(Ring, TheLargestThatCanBeFits) {
  ExplainedRequest large = request(std::string(128, 'x'));
  large.asked = std::string(100, '/');
  for (int i = 0; i < 4; ++i) large.timing.reasons.push_back({std::string(60, 'w'), 1 << 30});
  for (int i = 0; i < 4; ++i) large.timing.workers.push_back(std::string(60, 'n'));
  for (int i = 0; i < 32; ++i) {
    Moment moment;
    moment.at = moment.took = TimeNs{1} << 40;
    moment.other = {~0ULL, ~0ULL};
    large.timing.moments.push_back(moment);
  }
  EXPECT_TRUE(open().add(large));
  EXPECT_EQ(read().size(), 1U);
}

}  // namespace
}  // namespace baton
