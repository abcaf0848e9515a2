// What a worker's settings ask of a device that it does not have.
#include "workers/execute/make_executor.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

std::string refusal(const Config& config) {
  const auto executor = make_executor(config);
  return executor.ok() ? "" : executor.status().message();
}

TEST(MakeExecutor, SettingsOfGpusAreRefusedOnCpus) {
  Config config;
  config.model = "/nowhere";
  config.self.name = "w";
  EXPECT_EQ(refusal(config), "");
  config.self.load_format = "dummy";
  EXPECT_EQ(refusal(config), "worker w: load_format dummy needs device cuda");
  config.self.load_format = "auto";
  config.self.mps_thread_percentage = 60;
  EXPECT_EQ(refusal(config), "worker w: mps_thread_percentage and mps_priority need device cuda");
  config.self.mps_thread_percentage = 0;
  config.self.mps_priority = "low";
  EXPECT_EQ(refusal(config), "worker w: mps_thread_percentage and mps_priority need device cuda");
}

}  // namespace
}  // namespace baton
