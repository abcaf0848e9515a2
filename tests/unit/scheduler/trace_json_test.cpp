// The file that a trace becomes: what Perfetto needs of it, whoever died meanwhile.
#include "scheduler/admin/trace_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "ipc/timing.h"

namespace baton {
namespace {

using nlohmann::json;

TraceRecord record(TraceKind kind, std::uint32_t pid, TimeNs at, TimeNs took,
                   std::array<std::uint64_t, 4> args, const std::string& text = "") {
  TraceRecord made{.kind = kind, .pid = pid, .at = at, .took = took, .args = args};
  std::copy_n(text.data(), std::min(text.size(), made.text.size()), made.text.data());
  return made;
}

TraceRecord part(std::uint32_t pid, TimeNs at, Part which, std::uint64_t counter = 1) {
  TraceRecord made = record(TraceKind::part, pid, at, 0, {77, counter});
  made.part = static_cast<std::uint16_t>(which);
  return made;
}

constexpr std::uint64_t both(std::uint64_t high, std::uint64_t low) { return high << 32U | low; }

/// A pair that serves one request; its decode worker dies in a step and in a pull.
Trace pair_with_a_death() {
  Trace trace;
  trace.began = 1'000'000;
  trace.ended = 9'000'000;
  trace.processes["scheduler"] = {
      record(TraceKind::life, 10, 1'000'000, 0, {}),
      part(10, 1'100'000, Part::queue),
      record(TraceKind::turn, 10, 1'100'000, 100'000, {1, 1}),
      record(TraceKind::plan, 10, 1'150'000, 10'000, {5, 1, 1, 12}, "prefill0"),
      part(10, 1'160'000, Part::prefill),
      record(TraceKind::pull_asked, 10, 2'250'000, 5'000, {77, 1, 900, 3}, "decode0"),
      part(10, 2'250'000, Part::handoff),
      part(10, 2'500'000, Part::decode),
      record(TraceKind::pull_asked, 10, 4'900'000, 5'000, {77, 1, 901, 3}, "decode0"),
      record(TraceKind::lost, 10, 5'200'000, 0, {}, "decode0"),
      part(10, 5'210'000, Part::requeue),
      record(TraceKind::part_end, 10, 8'000'000, 0, {77, 1}),
  };
  trace.processes["prefill0"] = {
      record(TraceKind::life, 20, 1'000'100, 0, {}),
      record(TraceKind::pool, 20, 1'000'100, 0, {0xA110C, 64}),
      record(TraceKind::step_given, 20, 1'200'000, 0, {5, 1}),
      record(TraceKind::step, 20, 1'210'000, 1'000'000, {5, 1, both(1, 12), 0}),
  };
  trace.processes["decode0"] = {
      record(TraceKind::life, 30, 1'000'200, 0, {}),
      record(TraceKind::pull_given, 30, 2'290'000, 0, {900, 0xA110C, 3}),
      record(TraceKind::pull, 30, 2'300'000, 100'000, {900}),
      record(TraceKind::step_given, 30, 2'600'000, 0, {6, 1}),
      record(TraceKind::step, 30, 2'610'000, 500'000, {6, 1, both(1, 1), both(1, 0)}),
      record(TraceKind::step_given, 30, 4'000'000, 0, {6, 2}),
      record(TraceKind::step_given, 30, 4'100'000, 0, {6, 3}),
      record(TraceKind::pull_given, 30, 5'000'000, 0, {901, 0xA110C, 3}),
      // Its next process.
      record(TraceKind::life, 31, 7'000'000, 0, {}),
  };
  trace.processes["frontend0"] = {
      record(TraceKind::life, 40, 1'000'000, 0, {}),
      record(TraceKind::request, 40, 1'020'000, 10'000, {77, 1, both(1, 12), 1'060'000}, "hello"),
      record(TraceKind::first_token, 40, 2'400'000, 0, {77, 1}),
      record(TraceKind::request_end, 40, 1'020'000, 6'900'000, {77, 1, 9, 200}, "length"),
  };
  trace.processes["supervisor"] = {
      record(TraceKind::ended, 50, 5'190'000, 0, {30},
             "decode0 (pid 30) was killed by signal 9 (Killed)"),
      record(TraceKind::started, 50, 6'900'000, 0, {31}, "decode0"),
  };
  return trace;
}

struct File {
  explicit File(const Trace& trace) : all(json::parse(trace_json(trace, &counts))) {
    for (const json& event : all["traceEvents"]) {
      if (event["ph"] == "M" && event["name"] == "process_name")
        processes[event["pid"]] = event["args"]["name"];
    }
  }
  std::vector<json> find(const std::string& phase, const std::string& name) const {
    std::vector<json> found;
    for (const json& event : all["traceEvents"]) {
      if (event["ph"] == phase && event["name"] == name) found.push_back(event);
    }
    return found;
  }
  std::string process(const json& event) const { return processes.at(event["pid"]); }

  TraceCounts counts;
  json all;
  std::map<int, std::string> processes;
};

TEST(TraceJson, EveryEventHasWhatItsPhaseNeedsAndNoneLiesBeforeTheBeginning) {
  const File file(pair_with_a_death());
  for (const json& event : file.all["traceEvents"]) {
    ASSERT_TRUE(event["name"].is_string()) << event;
    ASSERT_TRUE(event["pid"].is_number_integer()) << event;
    ASSERT_TRUE(event["tid"].is_number_integer()) << event;
    EXPECT_TRUE(file.processes.count(event["pid"])) << event;
    if (event["ph"] == "M") continue;
    EXPECT_GE(event["ts"].get<double>(), 0) << event;
    if (event["ph"] == "X") {
      EXPECT_GE(event["dur"].get<double>(), 0) << event;
    }
  }
}

TEST(TraceJson, SlicesOfATrackNestAndNoSliceOutlivesItsProcess) {
  const File file(pair_with_a_death());
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const json& event : file.all["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"];
    const double end = begin + event["dur"].get<double>();
    tracks[{event["pid"], event["tid"]}].emplace_back(begin, end);
    if (file.process(event) == "decode0 (process 30)") {
      EXPECT_LE(end, 4190.001) << event;
    }
  }
  EXPECT_GE(tracks.size(), 5U);
  for (auto& [track, slices] : tracks) {
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.first, -a.second) < std::tuple(b.first, -b.second);
    });
    std::vector<double> open;
    for (const auto& [begin, end] : slices) {
      while (!open.empty() && open.back() <= begin + 1e-6) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(end, open.back() + 1e-6) << track.second;
      }
      open.push_back(end);
    }
  }
}

TEST(TraceJson, AStepAndAPullUnderWhichAProcessDiedEndWithIt) {
  const File file(pair_with_a_death());
  const auto steps = file.find("X", "unfinished step");
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(file.process(steps[0]), "decode0 (process 30)");
  EXPECT_EQ(steps[0]["args"]["step"], 2);
  EXPECT_EQ(steps[0]["args"]["waiting_behind_it"], 1);
  EXPECT_EQ(steps[0]["args"]["unfinished"], "the process died");
  EXPECT_DOUBLE_EQ(steps[0]["ts"].get<double>() + steps[0]["dur"].get<double>(), 4190);
  const auto pulls = file.find("X", "pull");
  ASSERT_EQ(pulls.size(), 2U);
  EXPECT_FALSE(pulls[0]["args"].contains("unfinished"));
  EXPECT_EQ(pulls[1]["args"]["unfinished"], "the process died");
  const auto deaths = file.find("i", "decode0 died");
  ASSERT_EQ(deaths.size(), 1U);
  EXPECT_EQ(deaths[0]["s"], "g");
  EXPECT_DOUBLE_EQ(deaths[0]["ts"], 4190);  // the first who saw it
  EXPECT_EQ(deaths[0]["args"]["how"], "decode0 (pid 30) was killed by signal 9 (Killed)");
  EXPECT_EQ(file.counts.deaths, 1U);
  EXPECT_EQ(file.counts.processes, 6U);
}

TEST(TraceJson, ArrowsLeadFromThePoolToWhoReadsItAndFromPlansToSteps) {
  const File file(pair_with_a_death());
  std::map<std::uint64_t, json> starts;
  for (const char* name : {"pull", "plan", "ask"}) {
    for (const json& event : file.find("s", name)) starts[event["id"]] = event;
  }
  std::vector<std::string> ways;
  for (const char* name : {"pull", "plan", "ask"}) {
    for (const json& event : file.find("f", name)) {
      const json& start = starts.at(event["id"]);
      EXPECT_EQ(event["bp"], "e");
      EXPECT_LE(start["ts"].get<double>(), event["ts"].get<double>());
      ways.push_back(std::string(name) + ": " + file.process(start) + " -> " + file.process(event));
    }
  }
  EXPECT_EQ(ways.size(), starts.size());
  EXPECT_EQ(
      std::count(ways.begin(), ways.end(), "pull: prefill0 (process 20) -> decode0 (process 30)"),
      2);
  EXPECT_EQ(
      std::count(ways.begin(), ways.end(), "plan: scheduler (process 10) -> prefill0 (process 20)"),
      1);
  EXPECT_EQ(
      std::count(ways.begin(), ways.end(), "ask: scheduler (process 10) -> decode0 (process 30)"),
      2);
  EXPECT_EQ(file.find("X", "pull")[0]["args"]["request"], "hello");
  EXPECT_EQ(file.find("X", "read").size(), 2U);
}

TEST(TraceJson, ARequestsPartsLieInItAndEachBeginHasItsEnd) {
  const File file(pair_with_a_death());
  std::vector<std::string> open;
  std::vector<std::string> order;
  double last = 0;
  for (const json& event : file.all["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase != "b" && phase != "e" && phase != "n") continue;
    EXPECT_EQ(event["cat"], "request");
    EXPECT_EQ(event["id"], "77-1");
    EXPECT_EQ(file.process(event), "frontend0 (process 40)");
    EXPECT_GE(event["ts"].get<double>(), last);
    last = event["ts"];
    if (phase == "b") {
      open.push_back(event["name"]);
      order.push_back(event["name"]);
    } else if (phase == "e") {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), event["name"]);
      open.pop_back();
    } else {
      order.push_back(event["name"]);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(order, (std::vector<std::string>{"hello", "read", "tokenise", "queue", "prefill",
                                             "handoff", "first token", "decode", "requeue"}));
  const auto ends = file.find("e", "hello");
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0]["args"], json::parse(R"({"end": "length", "tokens": 9, "status": 200})"));
  EXPECT_DOUBLE_EQ(ends[0]["ts"], 6920);  // though the scheduler's last word came later
}

TEST(TraceJson, WhatGoesOnWhenTheTraceEndsEndsWithIt) {
  Trace trace = pair_with_a_death();
  trace.processes.erase("supervisor");
  trace.processes["scheduler"].resize(9);
  trace.processes["decode0"].pop_back();
  trace.processes["frontend0"].pop_back();
  const File file(trace);
  EXPECT_EQ(file.counts.deaths, 0U);
  EXPECT_EQ(file.find("X", "unfinished step")[0]["args"]["unfinished"], "the trace ended");
  const json end = file.find("e", "hello")[0];
  EXPECT_DOUBLE_EQ(end["ts"], 8000);
  EXPECT_EQ(end["args"]["unfinished"], "the trace ended");
  EXPECT_DOUBLE_EQ(file.find("e", "decode")[0]["ts"], 8000);
}

TEST(TraceJson, ADeadSchedulersPartsEndWithItAndTheNextOneGoesOn) {
  Trace trace = pair_with_a_death();
  auto& records = trace.processes["scheduler"];
  records.resize(8);  // it decodes
  trace.deaths = {{"scheduler", 10, 3'000'000}};
  records.push_back(record(TraceKind::life, 11, 4'000'000, 0, {}));
  records.push_back(part(11, 4'100'000, Part::requeue));
  const File file(trace);
  EXPECT_DOUBLE_EQ(file.find("e", "decode")[0]["ts"], 2000);
  EXPECT_DOUBLE_EQ(file.find("b", "requeue")[0]["ts"], 3100);
  EXPECT_EQ(file.find("i", "scheduler died").size(), 1U);
}

TEST(TraceJson, ChoicesAreShownUnderTheirRequestsName) {
  Trace trace = pair_with_a_death();
  trace.processes["frontend0"][1].args[2] = both(2, 12);
  trace.processes["scheduler"].push_back(part(10, 1'200'000, Part::queue, 2));
  const File file(trace);
  EXPECT_EQ(file.counts.requests, 1U);
  const auto second = file.find("b", "hello, choice 2");
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0]["id"], "77-2");
  EXPECT_EQ(file.process(second[0]), "frontend0 (process 40)");
}

TEST(TraceJson, StrangeTextIsStillJson) {
  Trace trace = pair_with_a_death();
  trace.processes["frontend0"].push_back(
      record(TraceKind::refused, 40, 3'000'000, 1'000, {413}, "POST /\xff\"\n"));
  const File file(trace);
  EXPECT_EQ(file.find("i", "refused")[0]["args"]["status"], 413);
  EXPECT_TRUE(json::parse(trace_json(Trace{})).at("traceEvents").empty());
}

}  // namespace
}  // namespace baton
