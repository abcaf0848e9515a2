// Ten thousand seeds, each a cluster with its own load, network and blows.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>

#include "tests/sim/world.h"

namespace baton::sim {
namespace {

/// The same seed again with its last lines of trace.
std::string last_lines(const Scenario& scenario, RunOptions options) {
  std::deque<std::string> lines;
  options.trace = [&](const std::string& line) {
    lines.push_back(line);
    if (lines.size() > 50) lines.pop_front();
  };
  run_scenario(scenario, options);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Simulation, TenThousandSeeds) {
  const char* count = std::getenv("BATON_SIM_SEEDS");
  const std::uint64_t seeds = count != nullptr ? std::strtoull(count, nullptr, 10) : 10'000;
  RunOptions options;
  std::uint64_t blown = 0;
  int failures = 0;
  for (std::uint64_t seed = 1; seed <= seeds && failures < 5; ++seed) {
    const Scenario scenario = draw_scenario(seed);
    const Report report = run_scenario(scenario, options);
    if (report.deaths + report.freezes > 0) ++blown;
    if (report.violation.empty()) {
      EXPECT_GE(report.events, options.events) << "seed " << seed;
      continue;
    }
    ++failures;
    ADD_FAILURE() << "seed " << seed << ": " << report.violation << "\n" << scenario.text() << "\n"
                  << last_lines(scenario, options);
  }
  EXPECT_GE(blown * 2, seeds) << "too few seeds with a death or a freeze";
}

}  // namespace
}  // namespace baton::sim
