#include "frontend/core/load_report.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(LoadReport, IsWrittenInTheFormThatWasAskedFor) {
  const LoadReport report{1.25, 3.5, 0.25, 7, 2};
  EXPECT_EQ(load_text(load_format("JSON"), report),
            "JSON {\"application_utilization\":1.25,\"rps_fractional\":3.5,\"named_metrics\":{"
            "\"kv_cache_usage_perc\":0.25,\"num_requests_running\":7,\"num_requests_waiting\":2}}");
  EXPECT_EQ(load_text(load_format("text"), report),
            "TEXT application_utilization=1.25, rps_fractional=3.5, "
            "named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_running=7, "
            "named_metrics.num_requests_waiting=2");
  EXPECT_EQ(load_text(load_format("BIN"), report), "");
  EXPECT_EQ(load_text(LoadFormat::none, report), "");
}

TEST(LoadReport, ARateIsOfTheLastTenSeconds) {
  EventRate rate;
  EXPECT_EQ(rate.per_second(5 * kSecond), 0);
  const TimeNs start = 1000 * kSecond;
  rate.count(start);
  EXPECT_DOUBLE_EQ(rate.per_second(start), 1);  // of the first second, however little of it is over
  for (TimeNs t = start + kSecond / 4; t < start + 60 * kSecond; t += kSecond / 4) rate.count(t);
  EXPECT_NEAR(rate.per_second(start + 60 * kSecond - 1), 4, 0.1);
  EXPECT_NEAR(rate.per_second(start + 65 * kSecond), 4 * 4 / 9.0, 0.1);
  EXPECT_EQ(rate.per_second(start + 80 * kSecond), 0);
}

}  // namespace
}  // namespace baton
