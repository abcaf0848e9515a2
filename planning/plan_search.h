// The search of `baton plan` without files and threads: which set-ups there are, what a run of one
// was worth, and its configuration. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planning/trace_file.h"
#include "planning/virtual_cluster.h"

namespace baton {

/// Workers by role.
struct Split {
  std::uint32_t prefill = 0;
  std::uint32_t decode = 0;
  std::uint32_t mixed = 0;
  std::uint32_t workers() const { return prefill + decode + mixed; }
  bool operator==(const Split&) const = default;
};

/// Every way to give `devices` workers roles, of those that come to the same only one.
std::vector<Split> all_splits(std::uint32_t devices);
/// "1p2d1m": counts behind each other, each role at most once.
Result<Split> parse_split(const std::string& text);
std::string split_text(const Split& split);
/// prefill0, prefill1, ..., decode0, ..., mixed0, ...
std::vector<VirtualWorker> workers_of(const Split& split, std::uint32_t blocks);

struct ClusterSetup {
  Split split;
  std::uint32_t chunk = 0;  // scheduler.prompt_chunk, and token_budget: prompt tokens of a step
  bool auto_roles = false;  // scheduler.roles: auto
  std::uint32_t ranks = 1;  // worker.ranks, of every worker
};

/// "1p2d auto", "1p1d of 2" (ranks each).
std::string setup_text(const ClusterSetup& setup);

/// What every request should get.
struct Objective {
  TimeNs ttft = kSecond;           // time to the first token
  TimeNs gap = 30 * kMillisecond;  // 99th percentile of a request's own times between tokens
};

/// Times in nanoseconds. Percentiles are linear between neighbours.
struct Worth {
  double ttft_p50 = 0;  // of requests that had a first token
  double ttft_p99 = 0;
  double gap_p99 = 0;  // of all gaps
  double share = 0;    // of requests that met the objective
  double goodput = 0;  // these, a second of arrivals
  double tokens_per_s = 0;
  std::size_t failed = 0;  // ended with an error, or not at all
};

Worth worth_of(const std::vector<VirtualRequest>& requests, const VirtualRun& run,
               const Objective& objective);

/// True if a is better: more goodput, then a lower 99th percentile of the time to the first token.
bool better(const Worth& a, const Worth& b);

/// A whole number of tokens from 1 on: "512", "uniform:LOW:HIGH", "exponential:MEAN",
/// "lognormal:MEDIAN:SIGMA".
class LengthLaw {
 public:
  static Result<LengthLaw> parse(const std::string& text);
  /// Uses two draws of `state` (splitmix64).
  std::uint32_t draw(std::uint64_t& state) const;

 private:
  enum class Kind : std::uint8_t { fixed, uniform, exponential, lognormal };
  Kind kind_ = Kind::fixed;
  double a_ = 0;
  double b_ = 0;
};

/// Poisson arrivals at `rate` a second.
std::vector<TraceRequest> draw_trace(std::uint32_t count, double rate, const LengthLaw& input,
                                     const LengthLaw& output, std::uint64_t seed);
/// As read_trace() reads it.
std::string trace_text(const std::vector<TraceRequest>& trace);

/// Requests that share prompts as the trace's hash ids say.
std::vector<VirtualRequest> virtual_requests(const std::vector<TraceRequest>& trace);

/// The settings of one set-up: `base` with the set-up's chunk.
Settings settings_of(const Settings& base, const ClusterSetup& setup);

/// A configuration file's text for one set-up. `device` and `model` may be empty.
std::string setup_yaml(const ClusterSetup& setup, const std::string& model,
                       const std::string& device, std::uint32_t max_running);

}  // namespace baton
