// Where baton-ctl finds the schedulers of a run directory.
#include "scheduler/admin/process_ctl.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "ipc/process_record.h"
#include "scheduler/admin/process_list.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

class SchedulersTest : public ::testing::Test {
 protected:
  void record(const std::string& name, const std::string& admin_socket) {
    ProcessRecord record;
    record.name = name;
    record.kind = "scheduler";
    record.life.pid = static_cast<std::int32_t>(::getpid());
    record.supervisor.pid = record.life.pid;
    record.admin_socket = admin_socket;
    ASSERT_TRUE(write_process_record(dir_.path(), record).ok());
  }
  /// "MODEL SOCKET" for each.
  std::vector<std::string> asked(const std::string& model = "") {
    ProcessCommands options;
    options.run_dir = dir_.path();
    options.schedulers = {{"", "/told/admin.sock"}};
    options.model = model;
    std::vector<std::string> all;
    for (const ModelSocket& one : restart_schedulers(options)) {
      all.push_back(one.model + " " + one.admin_socket);
    }
    return all;
  }

  TempDir dir_;
};

TEST_F(SchedulersTest, ARestartAsksTheRecordsOnesWhereTheyNameModels) {
  record("big.scheduler", "/elsewhere/big.sock");
  record("small.scheduler", "");  // an older supervisor's
  const std::string small = "small " + dir_.path() + "/small.admin.sock";
  EXPECT_EQ(asked(), (std::vector<std::string>{"big /elsewhere/big.sock", small}));
  EXPECT_EQ(asked("small"), std::vector<std::string>{small});
}

TEST_F(SchedulersTest, OfOneModelTheOneThatWasTold) {
  record("scheduler", "/elsewhere/admin.sock");
  EXPECT_EQ(asked(), std::vector<std::string>{" /told/admin.sock"});
  EXPECT_EQ(recorded_schedulers(dir_.path()).at(0).admin_socket, "/elsewhere/admin.sock");
}

TEST(ProcessList, WhatOneRankCannotDoItsWorkerCannot) {
  const TempDir dir;
  const auto record = [&](const std::string& name, const std::string& kind,
                          const std::string& refused) {
    ProcessRecord made;
    made.name = name;
    made.kind = kind;
    made.tells_up = true;
    made.refused = refused;
    ASSERT_TRUE(write_process_record(dir.path(), made).ok());
  };
  record("big.mixed0.0", "worker", "no such folder");
  record("big.mixed0.1", "rank", "");
  record("big.mixed1", "worker", "");
  record("big.scheduler", "scheduler", "");
  std::string refused;
  for (const ListedProcess& each : list_processes(dir.path())) {
    if (!each.refused.empty()) refused += each.process.name + ": " + each.refused + "\n";
  }
  EXPECT_EQ(refused, "big.mixed0.0: no such folder\nbig.mixed0.1: no such folder\n");
}

}  // namespace
}  // namespace baton
