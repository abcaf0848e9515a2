#include "ipc/process_record.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "ipc/messages.h"
#include "ipc/process.h"
#include "ipc/run_files.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

ProcessRecord record_of(const std::string& name) {
  ProcessRecord record;
  record.name = name;
  record.kind = "worker";
  record.life = {4711, 987654321, 1764000000.25, 3};
  record.tells_up = true;
  record.command = 0xFEDCBA9876543210U;
  record.supervisor = {4700, 987654000, 1763999999.5, 1};
  return record;
}

ProcessRecord own_record(const std::string& name) {
  ProcessRecord record = record_of(name);
  record.life.pid = static_cast<std::int32_t>(::getpid());
  record.life.start = pid_start_time(record.life.pid);
  return record;
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(ProcessRecord, WhatIsWrittenIsRead) {
  const ProcessRecord record = record_of("decode0");
  const auto read = parse_process_record(encode_process_record(record));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, record);
  ProcessRecord scheduler = record;
  scheduler.admin_socket = "/a folder/admin.sock";
  EXPECT_EQ(parse_process_record(encode_process_record(scheduler)), scheduler);
}

TEST(ProcessRecord, NoBeginningOfAFileIsARecord) {
  const std::string text = encode_process_record(record_of("decode0"));
  for (std::size_t n = 0; n < text.size(); ++n) {
    EXPECT_FALSE(parse_process_record(text.substr(0, n)).has_value()) << n;
  }
}

TEST(ProcessRecord, OneFromBeforeTheMachineStartedAgainIsNotBelieved) {
  const std::string text = encode_process_record(record_of("decode0"));
  EXPECT_FALSE(parse_process_record(changed(text, "\nboot ", "\nboot x")).has_value());
}

TEST(ProcessRecord, ImpossibleValuesAreRefused) {
  const std::string text = encode_process_record(record_of("decode0"));
  for (const char* pid : {"-4711 ", "99999999999 ", "x "}) {
    EXPECT_FALSE(
        parse_process_record(changed(text, "process 4711 ", std::string("process ") + pid)))
        << pid;
  }
  for (const char* name : {"name ../etc", "name .hidden", "name two words", "name "}) {
    EXPECT_FALSE(parse_process_record(changed(text, "name decode0", name))) << name;
  }
  EXPECT_FALSE(parse_process_record(changed(text, "1764000000.250", "inf")));
}

TEST(ProcessRecord, CommandsDifferByTheirWordsAndWhereTheyEnd) {
  const auto of = [](const std::vector<std::string>& argv) { return command_fingerprint(argv); };
  EXPECT_EQ(of({"worker", "--name", "a"}), of({"worker", "--name", "a"}));
  EXPECT_NE(of({"worker", "--name", "a"}), of({"worker", "--name", "b"}));
  EXPECT_NE(of({"worker", "ab", "c"}), of({"worker", "a", "bc"}));
  EXPECT_NE(of({"worker", ""}), of({"worker"}));
}

TEST(ProcessRecord, AFolderIsReadByNameAndWhatIsNoRecordIsLeftOut) {
  const TempDir folder;
  const std::string dir = folder.path();
  ASSERT_TRUE(write_process_record(dir, record_of("scheduler")).ok());
  ASSERT_TRUE(write_process_record(dir, record_of("decode0")).ok());
  std::ofstream(dir + "/broken.process") << "name broken\n";
  std::ofstream(dir + "/another.process") << encode_process_record(record_of("decode0"));
  const auto records = read_process_records(dir);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].name, "decode0");
  EXPECT_EQ(records[1].name, "scheduler");
  remove_process_record(dir, "decode0");
  EXPECT_FALSE(read_process_record(dir, "decode0").has_value());
  EXPECT_TRUE(read_process_records(dir + "/missing").empty());
}

TEST(ProcessRecord, ItIsUpWhenItsMarkHoldsItsPid) {
  const TempDir folder;
  const std::string dir = folder.path();
  ProcessRecord record = own_record("decode0");
  EXPECT_EQ(process_state(dir, record), "starting");
  std::ofstream(dir + "/decode0.up") << "1\n";  // of an earlier life
  EXPECT_EQ(process_state(dir, record), "starting");
  EXPECT_EQ(spoken_protocol(dir, record), 0U);
  mark_up(dir, "decode0");
  EXPECT_EQ(process_state(dir, record), "up");
  EXPECT_EQ(spoken_protocol(dir, record), kProtocolVersion);
  const std::string pid = std::to_string(::getpid());
  std::ofstream(dir + "/decode0.up") << pid + " 7";  // no end of line: somebody writes it just now
  EXPECT_EQ(process_state(dir, record), "starting");
  std::ofstream(dir + "/decode0.up") << pid + " 7\n";
  EXPECT_EQ(spoken_protocol(dir, record), 7U);
  record.name = "other";  // it leaves no mark
  record.tells_up = false;
  EXPECT_EQ(process_state(dir, record), "up");
}

TEST(ProcessRecord, WhyOneCannotRunIsOneShortLine) {
  ProcessRecord record = record_of("decode0");
  record.refused = "  cannot read\nx: \tno\n" + std::string(5000, 'a');
  const auto read = parse_process_record(encode_process_record(record));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->refused.substr(0, 21), "cannot read x:  no aa");
  EXPECT_LT(encode_process_record(record).size(), 4096U) << "it is read in one piece";
  record.refused = "\n \n";
  EXPECT_EQ(parse_process_record(encode_process_record(record)), record_of("decode0"));
}

TEST(ProcessRecord, RefusedIsWhatHasNoWorkerLeft) {
  const TempDir folder;
  const std::string dir = folder.path();
  ProcessRecord first = own_record("a.decode0");
  ProcessRecord second = own_record("a.prefill0");
  const std::vector<std::string> names{first.name, second.name};
  first.refused = "no such folder";
  ASSERT_TRUE(write_process_record(dir, first).ok());
  EXPECT_EQ(refused_by_all(dir, {}), "");
  EXPECT_EQ(refused_by_all(dir, names), "") << "of the other there is no record";
  ASSERT_TRUE(write_process_record(dir, second).ok());
  EXPECT_EQ(refused_by_all(dir, names), "") << "the other is being loaded";
  second.refused = "another";
  ASSERT_TRUE(write_process_record(dir, second).ok());
  EXPECT_EQ(refused_by_all(dir, names), "a.decode0: no such folder");
  mark_up(dir, "a.prefill0");
  EXPECT_EQ(refused_by_all(dir, names), "") << "it has come up, whatever its record says";
}

TEST(ProcessRecord, OneThatEndedWaitsForASupervisorThatLives) {
  ProcessRecord record = own_record("decode0");
  record.life.start += 1;  // that pid is somebody else's
  EXPECT_EQ(process_state("/nowhere", record), "gone");
  record.supervisor = own_record("x").life;
  record.life.pid = 0;
  EXPECT_EQ(process_state("/nowhere", record), "waiting");
  record.supervisor.start += 1;
  EXPECT_EQ(process_state("/nowhere", record), "gone");
}

TEST(RunFiles, ALinkIsReplacedAndNeverWrittenThrough) {
  const TempDir dir;
  dir.write("victim", "precious");
  for (const char* link : {"a.pid", "a.pid.new"})
    std::filesystem::create_symlink(dir / "victim", dir / link);
  ASSERT_TRUE(replace_file(dir / "a.pid", "42\n").ok());
  EXPECT_EQ(dir.read("victim"), "precious");
  EXPECT_EQ(dir.read("a.pid"), "42\n");
  EXPECT_FALSE(std::filesystem::is_symlink(dir / "a.pid"));
  EXPECT_FALSE(std::filesystem::exists(dir / "a.pid.new"));
  EXPECT_FALSE(replace_file(dir / "no/a.pid", "x").ok());
}

TEST(RunFiles, MarksAreReplacedToo) {
  const TempDir dir;
  dir.write("victim", "precious");
  std::filesystem::create_hard_link(dir / "victim", dir / "a.up");
  std::filesystem::create_hard_link(dir / "victim", dir / "a.failed");
  mark_up(dir.path(), "a");
  leave_reason(dir.path(), "a", "why");
  EXPECT_EQ(dir.read("victim"), "precious");
  EXPECT_EQ(dir.read("a.failed"), "why");
}

TEST(RunFiles, OnlyAFileOfTheDirectorysOwnerIsRead) {
  const TempDir dir;
  dir.write("a", "text");
  std::filesystem::create_symlink(dir / "a", dir / "link");
  EXPECT_EQ(read_run_file(dir / "a"), "text");
  EXPECT_EQ(read_run_file(dir / "link"), "");
  EXPECT_EQ(read_run_file(dir.path()), "");
  EXPECT_EQ(read_run_file(dir / "none"), "");
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  ASSERT_EQ(::chown((dir / "a").c_str(), 12345, 12345), 0);
  EXPECT_EQ(read_run_file(dir / "a"), "");
  const ProcessRecord record = own_record("w0");
  ASSERT_TRUE(write_process_record(dir.path(), record).ok());
  ASSERT_TRUE(read_process_record(dir.path(), "w0").has_value());
  ASSERT_EQ(::chown((dir / "w0.process").c_str(), 12345, 12345), 0);
  EXPECT_FALSE(read_process_record(dir.path(), "w0").has_value());
}

TEST(RunFiles, ASignalReachesTheVeryProcessOfTheUser) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::uint64_t start = pid_start_time(pid);
  EXPECT_FALSE(signal_process(pid, start + 1, ::geteuid(), SIGKILL)) << "another life of the pid";
  EXPECT_FALSE(signal_process(pid, start, ::geteuid() + 1, SIGKILL)) << "of another user";
  EXPECT_TRUE(process_alive(pid, start));
  EXPECT_TRUE(signal_process(pid, start, ::geteuid(), SIGKILL));
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(signal_process(pid, start, ::geteuid(), SIGKILL));
  EXPECT_FALSE(signal_process(0, 0, ::geteuid(), SIGKILL));
}

TEST(RunFiles, ADirectoryIsLookedAtWithoutAChange) {
  const TempDir dir;
  EXPECT_TRUE(check_own_directory(dir / "none").ok());
  EXPECT_FALSE(std::filesystem::exists(dir / "none"));
  EXPECT_TRUE(check_own_directory(dir.path()).ok());
  std::filesystem::create_directory_symlink(dir.path(), dir / "link");
  EXPECT_EQ(check_own_directory(dir / "link").message(), (dir / "link") + " is not a directory");
}

}  // namespace
}  // namespace baton
