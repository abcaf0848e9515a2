// Lines are read by hand here: the format is what log shippers and people's eyes depend on.
#include "ipc/log_line.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

namespace baton {
namespace {

constexpr std::int64_t kTime = 1'795'569'936'045'999'999;  // 2026-11-25T01:25:36.045 UTC

class LogLine : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TZ", "XST+03:30", 1);  // POSIX counts westwards: three and a half hours behind
    ::tzset();
  }
  void TearDown() override {
    ::unsetenv("TZ");
    ::tzset();
  }
};

TEST_F(LogLine, OfText) {
  EXPECT_EQ(log_line(LogFormat::text, kTime, "warning", "decode0", "slow"),
            "2026-11-24T21:55:36.045 warning decode0 slow");
  EXPECT_EQ(log_line(LogFormat::text, kTime, "", "decode0", "Aborted"), "Aborted");
}

TEST_F(LogLine, OfJsonHasItsZoneAndEscapes) {
  EXPECT_EQ(log_line(LogFormat::json, kTime, "info", "decode0", "a \"b\"\n"),
            R"({"time":"2026-11-24T21:55:36.045-03:30","level":"info","process":"decode0",)"
            R"("message":"a \"b\"\n"})");
  const std::string line = log_line(LogFormat::json, kTime, "", "x", "bad \xff byte");
  EXPECT_EQ(nlohmann::json::parse(line).at("message"), "bad \xef\xbf\xbd byte");
  EXPECT_FALSE(nlohmann::json::parse(line).contains("level"));
}

TEST_F(LogLine, QuietOnesAreThoseBelowAWarning) {
  for (const LogFormat format : {LogFormat::text, LogFormat::json}) {
    for (const char* level : {"trace", "debug", "info"}) {
      EXPECT_TRUE(is_quiet_line(log_line(format, kTime, level, "p", "warning: none")));
    }
    for (const char* level : {"warning", "error", "critical", ""}) {
      EXPECT_FALSE(is_quiet_line(log_line(format, kTime, level, "p", " info ")));
    }
  }
  for (const char* line : {"", "terminate called", "info", "2026-11-25T01:25:36.045", "{}"}) {
    EXPECT_FALSE(is_quiet_line(line)) << line;
  }
}

}  // namespace
}  // namespace baton
