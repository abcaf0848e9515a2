// What clients have sent survives its reader, whatever instruction the reader died at.
#include "frontend/succession/input_journal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace baton {
namespace {

constexpr InputGeometry kSmall{4, 8, 64};  // 48 bytes an extent

class InputJournalTest : public ::testing::Test {
 protected:
  std::span<std::byte> memory() { return std::as_writable_bytes(std::span(words_)); }
  /// Reads `text` as a socket would give it, in pieces that the journal has room for.
  static bool put(InputSlot& slot, std::string_view text) {
    while (!text.empty()) {
      const auto room = slot.room();
      if (room.empty()) return false;
      const std::size_t size = std::min(room.size(), text.size());
      std::memcpy(room.data(), text.data(), size);
      slot.took(size);
      text.remove_prefix(size);
    }
    return true;
  }
  std::vector<InheritedInput> left() { return read_inputs(memory()).value(); }

  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(kSmall.bytes() / 8 + 1);
  InputJournal journal{memory(), kSmall};
};

TEST_F(InputJournalTest, what_was_read_comes_back) {
  InputSlot a = journal.open({.cookie = 7}), b = journal.open({.cookie = 9, .base = 30});
  const std::string long_text(100, 'x');
  ASSERT_TRUE(put(a, "hello"));
  ASSERT_TRUE(put(b, long_text));
  auto inputs = left();
  ASSERT_EQ(inputs.size(), 2U);
  EXPECT_EQ(inputs[0].cookie, 7U);
  EXPECT_EQ(inputs[0].counted, 5U);
  EXPECT_TRUE(inputs[0].settle(5));
  EXPECT_EQ(inputs[0].bytes, "hello");
  EXPECT_EQ(inputs[1].base, 30U);
  EXPECT_TRUE(inputs[1].settle(130));
  EXPECT_EQ(inputs[1].bytes, long_text);
  EXPECT_EQ(journal.used(), 4U);
}

TEST_F(InputJournalTest, bytes_that_no_longer_were_counted_are_there) {
  InputSlot slot = journal.open({.cookie = 7});
  ASSERT_TRUE(put(slot, "GET"));
  std::memcpy(slot.room().data(), " /x", 3);  // recv() came back, and the process died
  auto inputs = left();
  EXPECT_FALSE(InheritedInput(inputs[0]).settle(2)) << "fewer than it counted";
  EXPECT_FALSE(InheritedInput(inputs[0]).settle(500)) << "more than there is room for";
  ASSERT_TRUE(inputs[0].settle(6));
  EXPECT_EQ(inputs[0].bytes, "GET /x");
}

TEST_F(InputJournalTest, what_is_answered_is_forgotten_and_its_memory_used_again) {
  InputSlot slot = journal.open({.cookie = 7});
  std::uint64_t written = 0, base = 0;
  for (int round = 0; round < 50; ++round) {
    const std::string text(static_cast<std::size_t>(1 + round * 7 % 150), 'a');
    ASSERT_TRUE(put(slot, text + "next"));
    slot.answered(text.size(), written += 10);
    base += text.size();
    auto inputs = left();
    ASSERT_EQ(inputs[0].fault, "");
    EXPECT_EQ(inputs[0].base, base);
    EXPECT_EQ(inputs[0].written, written);
    ASSERT_TRUE(inputs[0].settle(base + 4));
    EXPECT_EQ(inputs[0].bytes, "next");
    slot.skip(4);
    base += 4;
    EXPECT_EQ(journal.used(), 0U);
  }
}

TEST_F(InputJournalTest, without_room_it_keeps_what_it_has) {
  InputSlot slot = journal.open({.cookie = 7});
  EXPECT_FALSE(put(slot, std::string(9 * 48, 'x')));
  EXPECT_EQ(slot.size(), 8U * 48U);
  InputSlot other = journal.open({.cookie = 8});
  EXPECT_TRUE(other.room().empty());
  slot.lose();
  EXPECT_TRUE(slot.room().empty());
  auto inputs = left();
  EXPECT_TRUE(inputs[0].lost);
  EXPECT_TRUE(inputs[0].settle(5000));
  EXPECT_EQ(inputs[0].bytes.size(), 8U * 48U);
  slot = {};
  EXPECT_FALSE(other.room().empty());
  for (std::uint64_t cookie : {9, 10, 11}) EXPECT_TRUE(bool(journal.open({.cookie = cookie})));
}

TEST_F(InputJournalTest, slots_are_given_back) {
  std::vector<InputSlot> all;
  for (std::uint64_t i = 1; i <= 4; ++i) all.push_back(journal.open({.cookie = i}));
  EXPECT_TRUE(bool(all.back()));
  EXPECT_FALSE(bool(journal.open({.cookie = 5})));
  all.erase(all.begin());
  EXPECT_TRUE(bool(journal.open({.cookie = 5})));
  EXPECT_EQ(left().size(), 3U);
}

// ----------------------------------------------------------------------------------------- deaths

class DeathsTest : public InputJournalTest {
 protected:
  FrontendDeaths die_at(std::vector<InputSlot*> at_work, std::uint64_t of) {
    for (InputSlot* slot : at_work) slot->begin_work();
    auto inputs = left();
    count_deaths(memory(), inputs);
    FrontendDeaths counted;
    for (const InheritedInput& input : inputs) {
      if (input.cookie == of) counted = input.deaths;
    }
    return counted;
  }
};

TEST_F(DeathsTest, who_is_at_work_alone_is_to_blame) {
  InputSlot a = journal.open({.cookie = 1}), b = journal.open({.cookie = 2});
  EXPECT_EQ(die_at({&a}, 1), (FrontendDeaths{1, 1}));
  EXPECT_EQ(die_at({&a}, 1), (FrontendDeaths{2, 2}));
  EXPECT_EQ(die_at({}, 1), (FrontendDeaths{2, 2}));
  EXPECT_TRUE(a.suspected());
  EXPECT_FALSE(b.suspected());
  EXPECT_EQ(die_at({&a}, 1), (FrontendDeaths{3, 3}));
  EXPECT_EQ(die_at({&b}, 2), (FrontendDeaths{1, 1}));
}

TEST_F(DeathsTest, beside_others_nobody_ends) {
  InputSlot a = journal.open({.cookie = 1}), b = journal.open({.cookie = 2});
  for (int i = 0; i < 10; ++i) {
    const FrontendDeaths counted = die_at({&a, &b}, 1);
    EXPECT_LT(counted.row, kMostDeathsInARow);
    EXPECT_LT(counted.all, kMostDeathsInAll);
  }
}

TEST_F(DeathsTest, getting_on_clears_what_was_counted) {
  InputSlot a = journal.open({.cookie = 1});
  die_at({&a}, 1);
  die_at({&a}, 1);
  a.got_on();
  EXPECT_EQ(a.deaths(), (FrontendDeaths{0, 2}));
  for (std::uint32_t i = 1; i < kEventsThatAcquit; ++i) a.got_on();
  EXPECT_EQ(a.deaths(), FrontendDeaths{});
}

TEST_F(DeathsTest, a_suspect_works_alone) {
  InputSlot suspect = journal.open({.cookie = 1, .deaths = {2, 2}});
  InputSlot other = journal.open({.cookie = 2});
  std::atomic<int> inside{0};
  std::atomic<bool> beside{false};
  const auto work = [&](InputSlot& slot, bool alone) {
    for (int i = 0; i < 2000; ++i) {
      const AtWork at_work(slot);
      const int now = inside.fetch_add(1) + 1;
      if (alone && now != 1) beside = true;
      inside.fetch_sub(1);
    }
  };
  std::thread first([&] { work(suspect, true); }), second([&] { work(other, false); });
  first.join();
  second.join();
  EXPECT_FALSE(beside);
  const auto inputs = left();
  EXPECT_FALSE(inputs[0].at_work || inputs[1].at_work);
}

// ----------------------------------------------------------------------------------- strange bytes

TEST_F(InputJournalTest, whatever_it_says_is_read_within_its_bounds) {
  InputSlot a = journal.open({.cookie = 7}), b = journal.open({.cookie = 9});
  ASSERT_TRUE(put(a, std::string(100, 'x')));
  ASSERT_TRUE(put(b, "y"));
  const auto good = words_;
  std::mt19937 dice(5);
  int read_whole = 0;
  for (int i = 0; i < 20'000; ++i) {
    words_ = good;
    for (std::uint32_t k = 0; k <= dice() % 4; ++k)
      memory()[dice() % kSmall.bytes()] = static_cast<std::byte>(dice());
    auto inputs = read_inputs(memory());
    if (!inputs.ok()) continue;
    ++read_whole;
    std::size_t copied = 0;
    for (const InheritedInput& input : inputs.value()) copied += input.bytes.size();
    EXPECT_LE(copied, kSmall.bytes());
    count_deaths(memory(), inputs.value());
  }
  EXPECT_GT(read_whole, 10'000);
  words_ = good;
}

}  // namespace
}  // namespace baton
