// baton-sim: plays seeds of the simulation. With --trace one seed in words.
//
//   baton-sim --seed 42 --events 300 --trace
//   baton-sim --seed 1 --count 10000
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/sim/world.h"

namespace {

constexpr const char* kUsage =
    "usage: baton-sim [--seed N] [--count N] [--events N] [--trace] [--keep-going]\n"
    "  --seed N        first seed (default 1)\n"
    "  --count N       how many seeds (default 1)\n"
    "  --events N      events of the scheduler while faults are on (default 200)\n"
    "  --trace         tell everything that happens\n"
    "  --keep-going    do not stop at the first violation\n";

struct Arguments {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  std::uint32_t events = 200;
  bool trace = false;
  bool keep_going = false;
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--trace") {
      arguments.trace = true;
    } else if (name == "--keep-going") {
      arguments.keep_going = true;
    } else if (i + 1 < argc && (name == "--seed" || name == "--count" || name == "--events")) {
      char* end = nullptr;
      const std::uint64_t value = std::strtoull(argv[++i], &end, 10);
      if (end == argv[i] || *end != '\0') return false;
      if (name == "--seed") arguments.seed = value;
      if (name == "--count") arguments.count = value;
      if (name == "--events") arguments.events = static_cast<std::uint32_t>(value);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  baton::sim::RunOptions options;
  options.events = arguments.events;
  if (arguments.trace) {
    options.trace = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  }
  std::uint64_t violations = 0;
  for (std::uint64_t seed = arguments.seed; seed < arguments.seed + arguments.count; ++seed) {
    const baton::sim::Scenario scenario = baton::sim::draw_scenario(seed);
    if (arguments.trace) std::printf("seed %llu: %s\n", (unsigned long long)seed, scenario.text().c_str());
    const baton::sim::Report report = baton::sim::run_scenario(scenario, options);
    if (arguments.trace) {
      std::printf("%llu events, %llu deaths, %llu freezes, %llu requests, %llu tokens, quiet after %lld ms\n",
                  (unsigned long long)report.events, (unsigned long long)report.deaths,
                  (unsigned long long)report.freezes, (unsigned long long)report.requests,
                  (unsigned long long)report.tokens, (long long)(report.quiet_after / baton::kMillisecond));
    }
    if (report.violation.empty()) continue;
    ++violations;
    std::printf("seed %llu: %s\n", (unsigned long long)seed, report.violation.c_str());
    if (!arguments.keep_going) break;
  }
  return violations == 0 ? 0 : 1;
}
