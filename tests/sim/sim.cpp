// baton-sim: plays seeds of the simulation. With --trace one seed in words.
//
//   baton-sim --seed 42 --events 300 --trace
//   baton-sim --seed 1 --count 10000
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "baton_version.h"
#include "tests/sim/world.h"

namespace {

constexpr const char* kUsage =
    "usage: baton-sim [--seed N] [--count N] [--events N] [--fair] [--trace] [--keep-going]\n"
    "  --seed N        first seed (default 1)\n"
    "  --count N       how many seeds (default 1)\n"
    "  --events N      events of the scheduler while faults are on (default 300)\n"
    "  --fair          seeds of tenants that share a cluster, and of nothing else\n"
    "  --trace         tell everything that happens\n"
    "  --keep-going    do not stop at the first violation\n";

struct Arguments {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  std::uint32_t events = 300;
  bool fair = false;
  bool trace = false;
  bool keep_going = false;
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--fair") {
      arguments.fair = true;
    } else if (name == "--trace") {
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

/// What has happened in all seeds, so that one sees what they try.
struct Sums {
  std::uint64_t deaths = 0, freezes = 0, tokens = 0, handoffs = 0, prefix_pulls = 0,
                pull_failures = 0, preemptions = 0, blocks_out = 0, blocks_in = 0, resumed = 0,
                successors = 0, inherited = 0, role_changes = 0, growths = 0, spreads = 0,
                spread_failures = 0, gathers = 0;
  void add(const baton::sim::Report& report) {
    deaths += report.deaths;
    freezes += report.freezes;
    tokens += report.tokens;
    handoffs += report.counters.handoffs;
    prefix_pulls += report.counters.prefix_pulls;
    pull_failures += report.counters.pull_failures;
    preemptions += report.counters.preemptions;
    blocks_out += report.counters.blocks_out;
    blocks_in += report.counters.blocks_in;
    resumed += report.counters.resumed;
    successors += report.successors;
    inherited += report.inherited;
    role_changes += report.counters.role_changes;
    growths += report.counters.growths;
    spreads += report.counters.spreads;
    spread_failures += report.counters.spread_failures;
    gathers += report.counters.gathers;
  }
};

/// Plays one seed; true if every promise was kept.
bool play(std::uint64_t seed, const Arguments& arguments, Sums& sums) {
  baton::sim::RunOptions options;
  options.events = arguments.events;
  if (arguments.trace) {
    options.trace = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  }
  const baton::sim::Scenario scenario =
      arguments.fair ? baton::sim::draw_fair_scenario(seed) : baton::sim::draw_scenario(seed);
  if (arguments.trace) std::printf("seed %" PRIu64 ": %s\n", seed, scenario.text().c_str());
  const baton::sim::Report report = baton::sim::run_scenario(scenario, options);
  sums.add(report);
  if (arguments.trace) {
    std::printf("%" PRIu64 " events, %" PRIu64 " deaths, %" PRIu64 " freezes, %" PRIu64
                " requests, %" PRIu64 " tokens, quiet after %" PRId64 " ms\n",
                report.events, report.deaths, report.freezes, report.requests, report.tokens,
                report.quiet_after / baton::kMillisecond);
  }
  if (report.violation.empty()) return true;
  std::printf("seed %" PRIu64 ": %s\n", seed, report.violation.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts("baton-sim " BATON_VERSION " (" BATON_COMMIT ")");
    return 0;
  }
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  bool kept = true;
  Sums sums;
  for (std::uint64_t i = 0; i < arguments.count && (kept || arguments.keep_going); ++i) {
    kept = play(arguments.seed + i, arguments, sums) && kept;
  }
  if (arguments.count > 1) {
    std::printf("%" PRIu64 " deaths, %" PRIu64 " freezes, %" PRIu64 " tokens, %" PRIu64
                " hand-offs, %" PRIu64 " pulled prefixes, %" PRIu64 " failed pulls, %" PRIu64
                " preemptions, %" PRIu64 " blocks to host parts, %" PRIu64 " back, %" PRIu64
                " went on in kept pools, %" PRIu64 " successors, %" PRIu64
                " requests inherited, %" PRIu64 " role changes, %" PRIu64 " growths, %" PRIu64
                " spread prompts, %" PRIu64 " chunks waited for in vain, %" PRIu64 " gathered\n",
                sums.deaths, sums.freezes, sums.tokens, sums.handoffs, sums.prefix_pulls,
                sums.pull_failures, sums.preemptions, sums.blocks_out, sums.blocks_in, sums.resumed,
                sums.successors, sums.inherited, sums.role_changes, sums.growths, sums.spreads,
                sums.spread_failures, sums.gathers);
  }
  return kept ? 0 : 1;
}
