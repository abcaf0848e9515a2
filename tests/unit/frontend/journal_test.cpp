// The journal that a front end leaves: what is whole comes back, whatever the moment of its death,
// and nothing that it may hold harms who reads it.
#include "frontend/succession/journal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>

#include "frontend/succession/journal_layout.h"
#include "frontend/succession/journal_memory.h"
#include "frontend/succession/reply_records.h"

namespace baton {
namespace {

constexpr JournalGeometry kSmall{.slots = 4, .extents = 24, .extent_bytes = 64, .max_extents = 12};

struct Memory {
  explicit Memory(const JournalGeometry& geometry) : words(geometry.bytes() / 8 + 1) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words)); }
  std::vector<std::uint64_t> words;
};

/// By cookie; a reply with a fault has that as its one record.
std::map<std::uint64_t, std::vector<std::string>> read(std::span<const std::byte> memory) {
  std::map<std::uint64_t, std::vector<std::string>> all;
  auto contents = read_journal(memory);
  EXPECT_TRUE(contents.ok()) << contents.status().message();
  if (!contents.ok()) return all;
  for (JournaledReply& reply : contents.value().replies) {
    all[reply.cookie] =
        reply.fault.empty() ? reply.records : std::vector<std::string>{"fault: " + reply.fault};
  }
  return all;
}

std::string some_bytes(std::mt19937& dice, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(dice());
  return bytes;
}

// Slots and extents are used again and again, so that old bytes lie everywhere.
TEST(Journal, GivesBackWhatWasWritten) {
  std::mt19937 dice(7);
  Memory memory(kSmall);
  Journal journal(memory.bytes(), kSmall, "a build");
  std::map<std::uint64_t, std::vector<std::string>> expected;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t cookie = 1 + dice() % 6;
    const std::string record = some_bytes(dice, 1 + dice() % 90);
    const std::uint64_t lost = journal.lost();
    if (dice() % 12 == 0) {
      journal.close(cookie);
      expected.erase(cookie);
    } else if (!expected.contains(cookie)) {
      if (journal.open(cookie, record)) expected[cookie] = {record};
    } else {
      journal.append(cookie, record);
      if (journal.lost() != lost) {
        expected[cookie] = {"fault: was too long for the journal"};
      } else if (!expected[cookie].front().starts_with("fault")) {
        expected[cookie].push_back(record);
      }
    }
    ASSERT_EQ(read(memory.bytes()), expected) << i;
  }
  EXPECT_GT(journal.lost(), 100U);
  for (std::uint64_t cookie = 1; cookie <= 6; ++cookie) journal.close(cookie);
  EXPECT_EQ(journal.used(), 0U);
  EXPECT_EQ(journal.open_count(), 0U);
  EXPECT_EQ(read_journal(memory.bytes()).value().build, "a build");
}

TEST(Journal, AReplyThatIsTooLongCostsNobodyElse) {
  Memory memory(kSmall);
  Journal journal(memory.bytes(), kSmall, "");
  ASSERT_TRUE(journal.open(1, "one"));
  ASSERT_TRUE(journal.open(2, "two"));
  journal.append(1, std::string(64 * kSmall.max_extents, 'x'));
  EXPECT_EQ(journal.lost(), 1U);
  EXPECT_EQ(journal.used(), 1U);
  journal.append(1, "more");
  journal.append(2, "more");
  EXPECT_EQ(read(memory.bytes())[1].front(), "fault: was too long for the journal");
  EXPECT_EQ(read(memory.bytes())[2], (std::vector<std::string>{"two", "more"}));
  EXPECT_FALSE(journal.open(2, "again"));
  ASSERT_TRUE(journal.open(3, "three"));
  ASSERT_TRUE(journal.open(4, "four"));
  EXPECT_FALSE(journal.open(5, "five"));  // there is no fifth slot
  EXPECT_EQ(journal.lost(), 2U);
}

// Of the stores of one record all but the last may have happened, in any order, or none.
TEST(Journal, ARecordCountsOnlyWithItsLastStore) {
  std::mt19937 dice(11);
  for (int round = 0; round < 300; ++round) {
    Memory memory(kSmall);
    Journal journal(memory.bytes(), kSmall, "");
    ASSERT_TRUE(journal.open(1, some_bytes(dice, 60)));
    journal.append(1, some_bytes(dice, 40));
    journal.close(1);
    ASSERT_TRUE(journal.open(2, "opening"));
    const auto whole = read(memory.bytes());
    const std::vector<std::uint64_t> before = memory.words;
    const std::string record = some_bytes(dice, 1 + dice() % 44);
    journal.append(2, record);
    const std::vector<std::uint64_t> after = memory.words;
    const auto as_words = [](const std::vector<std::uint64_t>& from) {
      std::vector<std::uint32_t> words(from.size() * 2);
      std::memcpy(words.data(), from.data(), words.size() * 4);
      return words;
    };
    const auto old_words = as_words(before), new_words = as_words(after);
    std::vector<std::size_t> changed;
    std::size_t last = 0;  // the one that makes the record count
    for (std::size_t i = 0; i < old_words.size(); ++i) {
      if (old_words[i] == new_words[i]) continue;
      changed.push_back(i);
      if (new_words[i] == record.size() && last == 0) last = i;
    }
    ASSERT_NE(last, 0U);
    for (int subset = 0; subset < 20; ++subset) {
      auto words = old_words;
      for (const std::size_t i : changed) {
        if (i != last && dice() % 2 == 0) words[i] = new_words[i];
      }
      ASSERT_EQ(read(std::as_bytes(std::span(words))), whole);
    }
  }
}

// A writer is stopped after each of its instructions: after each of them it could have died.
TEST(Journal, IsWholeAfterEveryInstruction) {
  auto memory = JournalMemory::create(kSmall.bytes());
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  std::mt19937 dice(13);
  const std::string other = some_bytes(dice, 70);
  const std::string old = some_bytes(dice, 200);
  std::vector<std::string> wanted;
  for (const std::size_t size : {9, 30, 100, 4}) wanted.push_back(some_bytes(dice, size));
  Journal journal(memory.value().bytes(), kSmall, "");
  ASSERT_TRUE(journal.open(1, other));
  ASSERT_TRUE(journal.open(2, old));
  journal.close(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    journal.open(3, wanted[0]);
    for (std::size_t i = 1; i < wanted.size(); ++i) journal.append(3, wanted[i]);
    journal.close(3);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::vector<std::size_t> seen;  // how many records, whenever that changes
  std::vector<std::byte> before;
  for (int i = 0; i < 2'000'000; ++i) {
    ASSERT_EQ(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) break;
    const auto bytes = memory.value().bytes().first(kSmall.bytes());
    if (std::equal(bytes.begin(), bytes.end(), before.begin(), before.end())) continue;
    before.assign(bytes.begin(), bytes.end());
    auto all = read(bytes);
    ASSERT_EQ(all[1], std::vector<std::string>{other});
    ASSERT_FALSE(all.contains(2));
    const std::vector<std::string> records = all[3];
    ASSERT_LE(records.size(), wanted.size());
    for (std::size_t k = 0; k < records.size(); ++k) ASSERT_EQ(records[k], wanted[k]);
    if (seen.empty() || seen.back() != records.size()) seen.push_back(records.size());
  }
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 1, 2, 3, 4, 0}));
}

// A writer is killed anywhere; what it leaves is the beginning of what it wrote.
TEST(Journal, SurvivesItsWriter) {
  constexpr JournalGeometry geometry{
      .slots = 2, .extents = 64, .extent_bytes = 256, .max_extents = 32};
  std::mt19937 dice(3);
  std::vector<std::string> wanted;
  for (int i = 0; i < 40; ++i) wanted.push_back(some_bytes(dice, 1 + dice() % 400));
  std::size_t partly = 0;
  for (int round = 0; round < 60; ++round) {
    auto memory = JournalMemory::create(geometry.bytes());
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Journal journal(memory.value().bytes(), geometry, "child");
      for (std::uint64_t cookie = 1;; ++cookie) {
        journal.open(cookie, wanted[0]);
        for (std::size_t i = 1; i < wanted.size(); ++i) journal.append(cookie, wanted[i]);
        journal.close(cookie);
      }
    }
    for (int i = 0; i < 10'000 && !read_journal(memory.value().bytes()).ok(); ++i) usleep(1000);
    usleep(static_cast<useconds_t>(dice() % 3000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    auto left = JournalMemory::map(UniqueFd(dup(memory.value().fd())));
    ASSERT_TRUE(left.ok());
    for (const auto& [cookie, records] : read(left.value().bytes())) {
      ASSERT_LE(records.size(), wanted.size());
      for (std::size_t i = 0; i < records.size(); ++i) ASSERT_EQ(records[i], wanted[i]) << i;
      if (records.size() < wanted.size()) ++partly;
    }
  }
  EXPECT_GT(partly, 20U);
}

TEST(Journal, ItsSizeIsSealed) {
  auto memory = JournalMemory::create(kSmall.bytes());
  ASSERT_TRUE(memory.ok());
  EXPECT_NE(ftruncate(memory.value().fd(), 0), 0);
  EXPECT_NE(ftruncate(memory.value().fd(), 1 << 20), 0);
  UniqueFd open_ended(memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_ended.get(), 4096), 0);
  EXPECT_FALSE(JournalMemory::map(std::move(open_ended)).ok());
}

// -------------------------------------------------------------------------- a journal that lies

class LyingJournal : public ::testing::Test {
 protected:
  LyingJournal() : memory_(kSmall) {
    Journal journal(memory_.bytes(), kSmall, "");
    EXPECT_TRUE(journal.open(1, std::string(100, 'a')));
    EXPECT_TRUE(journal.open(2, std::string(100, 'b')));
  }
  void put(std::size_t at, std::uint32_t word) {
    std::memcpy(memory_.bytes().data() + at, &word, sizeof word);
  }
  /// The fault of reply 1; reply 2 must be well.
  std::string fault() {
    auto all = read(memory_.bytes());
    EXPECT_EQ(all[2], std::vector<std::string>{std::string(100, 'b')});
    return all[1].front();
  }
  Memory memory_;
};

TEST_F(LyingJournal, AboutLengths) {
  put(extent_at(kSmall, 0) + kExtentHead, 61);
  EXPECT_EQ(fault(), "fault: has a fragment longer than its extent");
  put(extent_at(kSmall, 0) + kExtentHead, ~std::uint32_t{0});
  EXPECT_EQ(fault(), "fault: has a fragment longer than its extent");
  put(extent_at(kSmall, 0) + kExtentHead, kMoreFollows);
  EXPECT_EQ(fault(), "fault: has a fragment longer than its extent");
}

TEST_F(LyingJournal, AboutExtents) {
  put(extent_at(kSmall, 0), 1);  // itself
  EXPECT_EQ(fault(), "fault: names an extent that is taken");
  put(extent_at(kSmall, 0), kSmall.extents + 1);
  EXPECT_EQ(fault(), "fault: names an extent that is none");
  put(slot_at(0) + offsetof(JournalSlot, first_extent), 1U << 30);
  EXPECT_EQ(fault(), "fault: names an extent that is none");
}

TEST_F(LyingJournal, AboutStates) {
  put(slot_at(0), 7);
  EXPECT_EQ(fault(), "fault: has a slot in no known state");
  put(slot_at(1) + offsetof(JournalSlot, cookie), 1);
  const auto contents = read_journal(memory_.bytes());
  EXPECT_EQ(contents.value().replies[1].fault, "has a second slot");
}

TEST_F(LyingJournal, AboutItself) {
  for (std::size_t at = 0; at < 32; at += 4) {
    Memory changed = memory_;
    const std::uint32_t word = 0xFFFFFFF0;
    std::memcpy(changed.bytes().data() + at, &word, sizeof word);
    EXPECT_FALSE(read_journal(changed.bytes()).ok()) << at;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{127}, places_at(kSmall) - 1})
    EXPECT_FALSE(read_journal(memory_.bytes().first(size)).ok());
  EXPECT_FALSE(read_journal(std::span<const std::byte>(Memory(kSmall).bytes())).ok());
}

TEST_F(LyingJournal, AtRandom) {
  std::mt19937 dice(5);
  const std::vector<std::uint64_t> good = memory_.words;
  std::size_t read_whole = 0;
  for (int i = 0; i < 20'000; ++i) {
    memory_.words = good;
    for (std::uint32_t k = 0; k <= dice() % 4; ++k)
      memory_.bytes()[dice() % kSmall.bytes()] = static_cast<std::byte>(dice());
    const auto contents = read_journal(memory_.bytes());
    if (!contents.ok()) continue;
    ++read_whole;
    std::size_t copied = 0;
    for (const JournaledReply& reply : contents.value().replies) {
      for (const std::string& record : reply.records) copied += record.size();
    }
    EXPECT_LE(copied, kSmall.bytes());
  }
  EXPECT_GT(read_whole, 10'000U);
}

// ------------------------------------------------------------------------------------- the records

TEST(ReplyRecords, AnEventOutOfBoundsIsRefused) {
  const EventBounds bounds{2, 2, 100};
  const auto good = [&](const ReplyEvent& event, TimeNs time = 5) {
    std::string record;
    encode_event(event, time, {40, 77}, record);
    DecodedEvent decoded;
    const bool taken = decoded.decode(record, bounds).ok();
    // No part of it is one, nor is it with something behind it.
    for (std::size_t size = 0; size < record.size(); ++size)
      EXPECT_FALSE(decoded.decode(std::string_view(record).substr(0, size), bounds).ok());
    EXPECT_FALSE(decoded.decode(record + "x", bounds).ok());
    return taken;
  };
  EXPECT_TRUE(good(TokenCame{1, 99, nullptr}));
  EXPECT_FALSE(good(TokenCame{2, 99, nullptr}));
  EXPECT_FALSE(good(TokenCame{1, 100, nullptr}));
  EXPECT_FALSE(good(TokenCame{1, -1, nullptr}));
  EXPECT_FALSE(good(TokenCame{1, 99, nullptr}, -1));
  const Token tops[] = {7, 100};
  const float values[] = {-1, -2};
  const LogprobReader::Entry known{-1, std::span(tops, 1), std::span(values, 1), {}};
  const LogprobReader::Entry unknown{-1, tops, values, {}};
  const LogprobReader::Entry uneven{-1, std::span(tops, 1), values, {}};
  EXPECT_TRUE(good(TokenCame{0, 1, &known}));
  EXPECT_FALSE(good(TokenCame{0, 1, &unknown}));
  EXPECT_FALSE(good(TokenCame{0, 1, &uneven}));
  Logprobs prompt;
  prompt.push(1, -1, std::span(tops, 1), std::span(values, 1));
  EXPECT_TRUE(good(ChoiceBegins{1, 3, &prompt}));
  EXPECT_TRUE(good(ChoiceBegins{1, 3, nullptr}));
  EXPECT_FALSE(good(ChoiceBegins{2, 3, nullptr}));
  prompt.counts[0] = 9;
  EXPECT_FALSE(good(ChoiceBegins{1, 3, &prompt}));
  EXPECT_TRUE(good(ChoiceEnds{1, FinishReason::stop}));
  EXPECT_TRUE(good(ChoiceEnds{1, FinishReason::length, 0.5F}));
  EXPECT_FALSE(good(ChoiceEnds{1, FinishReason::error}));
  EXPECT_FALSE(good(ChoiceEnds{2, FinishReason::stop}));
  const std::vector<TimeNs> lifetime(kLifetimeMoments - 1);
  EXPECT_FALSE(good(ChoiceEnds{1, FinishReason::stop, {}, lifetime}));
  EXPECT_TRUE(good(ClientProbed{}));
  std::vector<TimeNs> spent(kParts, 5);
  EXPECT_TRUE(good(ReplyTimed{spent, 3, 7}));
  EXPECT_FALSE(good(ReplyTimed{std::span(spent).first(kParts - 1), 3, 7}));
  EXPECT_FALSE(good(ReplyTimed{spent, 3, -7}));
  spent[2] = -1;
  EXPECT_FALSE(good(ReplyTimed{spent, 3, 7}));
  EXPECT_TRUE(good(PromptGotOn{1, 40, 40, 7}));
  EXPECT_FALSE(good(PromptGotOn{2, 40, 7, 7}));
  EXPECT_FALSE(good(PromptGotOn{1, 40, 41, 7}));
  EXPECT_FALSE(good(PromptGotOn{1, 40, 7, -1}));
  EXPECT_TRUE(good(StreamIdled{}));
  EXPECT_TRUE(good(ReplyFails{ErrorCode::internal, "why", 3}));
  EXPECT_FALSE(good(ReplyFails{ErrorCode::ok, "why", 3}));
  EXPECT_FALSE(good(ReplyFails{static_cast<ErrorCode>(200), "why", 3}));
}

TEST(ReplyRecords, AnAttemptOutOfBoundsIsRefused) {
  const EventBounds bounds{2, 2, 100};
  const auto good = [&](const AttemptSent& sent) {
    std::string record;
    encode_attempt(sent, record);
    DecodedEvent decoded;
    return decoded.decode(record, bounds).ok() && decoded.attempt.has_value();
  };
  EXPECT_TRUE(good({1, 4}));
  EXPECT_FALSE(good({2, 4}));
  EXPECT_FALSE(good({1, 0}));
}

TEST(ReplyRecords, AnOpeningComesBack) {
  ReplyOpening opening{{1, 9}, {"id", 5, 6, 7, 8}, "rendered", 40, "baton-1"};
  const std::string record = encode_opening(opening);
  EXPECT_EQ(decode_opening(record).value(), AnyOpening(opening));
  opening.facts.limits = "x-ratelimit-limit-tokens: 5\r\n";
  EXPECT_EQ(decode_opening(encode_opening(opening)).value(), AnyOpening(opening));
  opening.facts.load = "JSON {}";
  EXPECT_EQ(decode_opening(encode_opening(opening)).value(), AnyOpening(opening));
  opening.facts.limits.clear();
  EXPECT_EQ(decode_opening(encode_opening(opening)).value(), AnyOpening(opening));
  opening.entry = "small";
  opening.identity = 99;
  EXPECT_EQ(decode_opening(encode_opening(opening)).value(), AnyOpening(opening));
  opening.model = "org/small";
  EXPECT_EQ(decode_opening(encode_opening(opening)).value(), AnyOpening(opening));
  opening.rendered.reset();
  EXPECT_EQ(decode_opening(encode_opening(opening)).value(), AnyOpening(opening));
  const WholeReply whole{{3, 4}, true, "HTTP/1.1 200 OK\r\n\r\n"};
  const std::string other = encode_whole(whole.place, whole.keep_alive, whole.bytes);
  EXPECT_EQ(decode_opening(other).value(), AnyOpening(whole));
  for (const std::string& one : {record, other}) {
    for (std::size_t size = 0; size < one.size(); ++size)
      EXPECT_FALSE(decode_opening(std::string_view(one).substr(0, size)).ok());
    EXPECT_FALSE(decode_opening(one + "x").ok());
  }
  opening.facts.received = INT64_MAX;
  EXPECT_FALSE(decode_opening(encode_opening(opening)).ok());
}

TEST(Journal, TellsWhoItsWriterWas) {
  std::vector<std::uint64_t> words(kSmall.bytes() / 8 + 1);
  Journal journal(std::as_writable_bytes(std::span(words)), kSmall, "build");
  const FrontendPlace place{11, 12, 13, 14, 15};
  journal.note(place);
  const auto contents = read_journal(std::as_bytes(std::span(words)));
  EXPECT_EQ(contents.value().place, place);
  EXPECT_EQ(contents.value().build, "build");
}

TEST(Journal, TellsOfEachModelsScheduler) {
  std::vector<std::uint64_t> words(kSmall.bytes() / 8 + 1);
  Journal journal(std::as_writable_bytes(std::span(words)), kSmall, "build");
  FrontendPlace place{11, 12, 13, 14, 15, {{7, 16, 17}, {8, 18, 0}}};
  journal.note(place);
  const auto memory = std::as_bytes(std::span(words));
  const FrontendPlace found = read_journal(memory).value().place;
  EXPECT_EQ(found, place);
  EXPECT_EQ(found.of(0), (SchedulerPlace{0, 12, 15}));
  EXPECT_EQ(found.of(8), (SchedulerPlace{8, 18, 0}));
  EXPECT_EQ(found.of(9), SchedulerPlace{9}) << "of another model nothing is known";
  // A build for one model makes a journal without room for them.
  place.several.clear();
  EXPECT_EQ(read_journal(memory.first(kSmall.bytes() - 8)).value().place, place);
}

}  // namespace
}  // namespace baton
