// Grammars that explode are refused in bounded time; everything else goes on.
#include "frontend/grammar/grammar_checker.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "ipc/process.h"

namespace baton {
namespace {

TimeNs patience() {
  const char* factor = std::getenv("BATON_TEST_PATIENCE");
  return (factor == nullptr ? 1 : std::atoi(factor)) * kSecond;
}

GrammarChecker::Options options() {
  GrammarChecker::Options made;
  made.model_folder = "demo/model";
  made.program = std::getenv("BATON_GRAMMAR_PROGRAM");
  return made;
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

bool wanted() { return true; }

/// Takes more than a second of any processor.
std::string costly(int i) {
  return std::string(1, static_cast<char>('a' + i)) + repeat("(a|aa|aaa)*", 3000);
}

Status ask(GrammarChecker& checker, GrammarKind kind, const std::string& text) {
  std::promise<Status> answer;
  if (!checker.check(kind, text, "me", wanted,
                     [&](const Status& status) { answer.set_value(status); })) {
    return Status(ErrorCode::queue_full, "");
  }
  return answer.get_future().get();
}

TEST(GrammarChecker, RightAndWrong) {
  GrammarChecker checker(options());
  EXPECT_TRUE(ask(checker, GrammarKind::json_schema, R"({"type":"object"})").ok());
  EXPECT_TRUE(ask(checker, GrammarKind::regex, "[a-z]+").ok());
  const Status wrong = ask(checker, GrammarKind::regex, "(a");
  EXPECT_EQ(wrong.code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(wrong.message().empty());
  // Asked again, they are known, and the answer comes on this thread.
  bool answered = false;
  EXPECT_TRUE(checker.check(GrammarKind::regex, "(a", "me", wanted, [&](const Status& status) {
    answered = true;
    EXPECT_EQ(status.message(), wrong.message());
  }));
  EXPECT_TRUE(answered);
}

TEST(GrammarChecker, WhatExplodesIsRefusedInTime) {
  GrammarChecker checker(options());
  ASSERT_TRUE(ask(checker, GrammarKind::regex, "[a-z]+").ok());  // the process has started
  std::string many = R"({"enum":[)";
  for (int i = 0; i < 6000; ++i) many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\"";
  many += "]}";
  std::string bomb = "root ::= a0\n";
  for (int i = 0; i < 30; ++i) {
    bomb += "a" + std::to_string(i) + " ::= " + repeat("a" + std::to_string(i + 1) + " ", 8) + "\n";
  }
  bomb += "a30 ::= \"x\"\n";
  const struct {
    const char* name;
    GrammarKind kind;
    std::string text;
    bool refused;  // false: either answer is right, if it comes in time
  } table[] = {
      {"repetition of repetitions", GrammarKind::regex, "(((a{1,900}){1,900}){1,900}){1,900}",
       false},
      {"a huge repetition", GrammarKind::regex, "([a-z]|[A-Z ]{2,7}|x){1,200000}y", false},
      // 150 take 0.8 s, so these more than a second on any machine.
      {"alternatives in a row", GrammarKind::regex, repeat("(a|aa|aaa)*", 3000) + "$", true},
      {"a backtracker's nightmare", GrammarKind::regex, repeat("(x+x+)+", 20) + "y", false},
      {"nested lists", GrammarKind::json_schema,
       repeat(R"({"type":"array","items":)", 2000) + "{}" + repeat("}", 2000), false},
      {"brackets", GrammarKind::ebnf,
       "root ::= " + repeat("(", 30000) + "\"a\"" + repeat(")", 30000), false},
      {"a schema that is itself", GrammarKind::json_schema,
       R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", true},
      {"a tree of itself", GrammarKind::json_schema,
       R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"l":{"$ref":"#/$defs/n"},)"
       R"("r":{"$ref":"#/$defs/n"}}}}})",
       false},
      {"a long enumeration", GrammarKind::json_schema, many, false},
      {"rules of rules", GrammarKind::ebnf, bomb, false},
      {"left recursion", GrammarKind::ebnf, "root ::= root root | root \"a\" | \"a\"", false},
      {"a long string", GrammarKind::json_schema, R"({"type":"string","maxLength":2000000000})",
       false},
      {"a long list", GrammarKind::json_schema,
       R"({"type":"array","minItems":500000,"items":{"type":"object"}})", false},
  };
  for (const auto& line : table) {
    const TimeNs began = now_ns();
    const Status status = ask(checker, line.kind, line.text);
    const TimeNs took = now_ns() - began;
    // A second of processor time, ten on the wall where the machine is busy.
    EXPECT_LT(took, 12 * patience()) << line.name;
    EXPECT_TRUE(status.ok() || status.code() == ErrorCode::invalid_argument)
        << line.name << ": " << status.message();
    EXPECT_FALSE(line.refused && status.ok()) << line.name;
    std::printf("%-26s %6.0f ms  %s\n", line.name, static_cast<double>(took) / 1e6,
                status.ok() ? "served" : status.message().substr(0, 120).c_str());
  }
  EXPECT_TRUE(ask(checker, GrammarKind::regex, "[0-9]+").ok()) << "it goes on afterwards";
}

TEST(GrammarChecker, NamesWhatIsNotEnforced) {
  GrammarChecker checker(options());
  const std::string schema = R"({"properties":{"a":{"type":"array","uniqueItems":true}}})";
  const std::string named = "uniqueItems at #/properties/a";
  for (int again = 0; again < 2; ++again) {  // the second time it is remembered
    const Status reported = ask(checker, GrammarKind::json_schema, schema);
    EXPECT_TRUE(reported.ok());
    EXPECT_EQ(reported.message().rfind(named, 0), 0U) << reported.message();
    const Status refused = ask(checker, GrammarKind::json_schema, "all " + schema);
    EXPECT_EQ(refused.code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.message().find(named), std::string::npos) << refused.message();
  }
  EXPECT_EQ(ask(checker, GrammarKind::json_schema, "all open {}").message(), "");
}

TEST(GrammarChecker, WhatIsSmallDoesNotWaitForWhatIsCostly) {
  GrammarChecker::Options made = options();
  made.cpu = 5 * kSecond;
  GrammarChecker checker(made);
  ASSERT_TRUE(ask(checker, GrammarKind::regex, "[a-z]+").ok());  // the process has started
  std::atomic<int> costly_ones{0};
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(checker.check(GrammarKind::regex, costly(i), "others", wanted,
                              [&](const Status&) { ++costly_ones; }));
  }
  // Of another owner, and of the same one, who waits for his own first quarters of a second.
  for (const char* owner : {"me", "others"}) {
    std::promise<Status> answer;
    ASSERT_TRUE(checker.check(GrammarKind::regex, std::string("small ") + owner, owner, wanted,
                              [&](const Status& status) { answer.set_value(status); }));
    EXPECT_TRUE(answer.get_future().get().ok());
    EXPECT_EQ(costly_ones.load(), 0) << owner;
  }
  checker.stop();
}

TEST(GrammarChecker, NothingIsComputedForWhoLeft) {
  GrammarChecker::Options made = options();
  made.cpu = 60 * kSecond;
  GrammarChecker checker(made);
  ASSERT_TRUE(ask(checker, GrammarKind::regex, "[a-z]+").ok());
  std::atomic<bool> there{true};
  std::vector<std::promise<Status>> answers(3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(checker.check(
        GrammarKind::regex, costly(i), "me", [&] { return there.load(); },
        [&, i](const Status& status) { answers[i].set_value(status); }));
  }
  const TimeNs began = now_ns();
  while (now_ns() - began < kSecond) usleep(10'000);  // the first is in the slow lane
  there = false;
  for (auto& answer : answers) {
    EXPECT_EQ(answer.get_future().get().code(), ErrorCode::cancelled);
  }
  EXPECT_LT(now_ns() - began, 20 * patience());
  EXPECT_TRUE(ask(checker, GrammarKind::regex, "it goes on").ok());
}

TEST(GrammarChecker, AProcessThatWasKilledIsReplaced) {
  GrammarChecker checker(options());
  ASSERT_TRUE(ask(checker, GrammarKind::regex, "a").ok());
  std::vector<pid_t> killed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string id, name, state;
    pid_t parent = 0;
    if (file >> id >> name >> state >> parent && parent == getpid() && name == "(baton-grammar)") {
      kill(pid, SIGKILL);
      killed.push_back(pid);
    }
  }
  ASSERT_EQ(killed.size(), 1U);
  EXPECT_TRUE(ask(checker, GrammarKind::regex, "b").ok());
}

TEST(GrammarChecker, SaysWhyItCannot) {
  GrammarChecker::Options made = options();
  made.program = "/nonexistent/baton-grammar";
  GrammarChecker checker(made);
  const Status status = ask(checker, GrammarKind::regex, "a");
  EXPECT_EQ(status.code(), ErrorCode::unavailable);
  EXPECT_NE(status.message().find("did not start"), std::string::npos) << status.message();
}

TEST(GrammarChecker, ABoundedNumberWaits) {
  GrammarChecker::Options made = options();
  made.max_waiting = 2;
  made.model_folder = "/nonexistent";
  GrammarChecker checker(made);
  checker.stop();
  EXPECT_EQ(ask(checker, GrammarKind::regex, "a").code(), ErrorCode::queue_full);
}

}  // namespace
}  // namespace baton
