#include "planning/plan_search.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numbers>

namespace baton {
namespace {

constexpr std::uint32_t kMaxWorkersOfARole = 64;
constexpr double kMaxLength = 1 << 20;
// Ids of a trace's prompts; which ones does not matter to anybody here.
constexpr Token kLowId = 10;
constexpr Token kHighId = 1'000'000;

/// Of a list that is sorted; linear between the neighbours of p * (n - 1).
double quantile(const std::vector<double>& ordered, double p) {
  if (ordered.empty()) return 0;
  const double at = p * static_cast<double>(ordered.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, ordered.size() - 1);
  return ordered[low] + (ordered[high] - ordered[low]) * (at - static_cast<double>(low));
}

double sorted_quantile(std::vector<double>& values, double p) {
  std::sort(values.begin(), values.end());
  return quantile(values, p);
}

/// splitmix64 (Steele, Lea and Flood 2014), in [0, 1).
double draw_unit(std::uint64_t& state) {
  std::uint64_t x = state += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return static_cast<double>((x ^ (x >> 31U)) >> 11U) * 0x1p-53;
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.size()) return parts;
    begin = end + 1;
  }
}

bool read_number(const std::string& text, double low, double high, double& value) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end && value >= low && value <= high;
}

}  // namespace

std::vector<Split> all_splits(std::uint32_t devices) {
  std::vector<Split> splits;
  for (std::uint32_t prefill = 0; prefill <= devices; ++prefill) {
    for (std::uint32_t decode = 0; prefill + decode <= devices; ++decode) {
      const Split split{prefill, decode, devices - prefill - decode};
      // Without a worker that prefills for them, decode workers do what mixed ones do, and the
      // other way round.
      if (prefill == 0 ? decode > 0 : prefill == devices) continue;
      splits.push_back(split);
    }
  }
  return splits;
}

Result<Split> parse_split(const std::string& text) {
  const Status bad = invalid("'" + text + "' is no set-up such as 1p3d, 4m or 1p2d1m");
  Split split;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    std::uint32_t count = 0;
    const auto read = std::from_chars(at, end, count);
    if (read.ec != std::errc() || read.ptr == end || count == 0 || count > kMaxWorkersOfARole)
      return bad;
    std::uint32_t* role = *read.ptr == 'p'   ? &split.prefill
                          : *read.ptr == 'd' ? &split.decode
                          : *read.ptr == 'm' ? &split.mixed
                                             : nullptr;
    if (role == nullptr || *role != 0) return bad;
    *role = count;
    at = read.ptr + 1;
  }
  if (split.workers() == 0 || split.workers() > kMaxWorkersOfARole) return bad;
  return split;
}

std::string split_text(const Split& split) {
  std::string text;
  const auto add = [&](std::uint32_t count, const char* role) {
    if (count > 0) text += std::to_string(count) + role;
  };
  add(split.prefill, "p");
  add(split.decode, "d");
  add(split.mixed, "m");
  return text;
}

std::string setup_text(const ClusterSetup& setup) {
  const std::string ranks = setup.ranks > 1 ? " of " + std::to_string(setup.ranks) : "";
  return split_text(setup.split) + ranks + (setup.auto_roles ? " auto" : "");
}

std::vector<VirtualWorker> workers_of(const Split& split, std::uint32_t blocks) {
  std::vector<VirtualWorker> workers;
  const auto add = [&](std::uint32_t count, Role role) {
    for (std::uint32_t i = 0; i < count; ++i) {
      workers.push_back({std::string(to_string(role)) + std::to_string(i), role, blocks});
    }
  };
  add(split.prefill, Role::prefill);
  add(split.decode, Role::decode);
  add(split.mixed, Role::mixed);
  return workers;
}

Worth worth_of(const std::vector<VirtualRequest>& requests, const VirtualRun& run,
               const Objective& objective) {
  Worth worth;
  std::vector<double> first;
  std::vector<double> gaps;
  std::size_t good = 0;
  std::uint64_t tokens = 0;
  TimeNs begin = INT64_MAX;
  TimeNs last_arrival = 0;
  TimeNs end = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const VirtualReply& reply = run.replies[i];
    begin = std::min(begin, requests[i].arrival);
    last_arrival = std::max(last_arrival, requests[i].arrival);
    tokens += reply.tokens.size();
    const bool ended = reply.end != 0 && reply.code == ErrorCode::ok && !reply.tokens.empty();
    worth.failed += ended ? 0 : 1;
    if (!reply.tokens.empty()) end = std::max(end, reply.tokens.back());
    if (reply.tokens.empty()) continue;
    const TimeNs ttft = reply.tokens.front() - requests[i].arrival;
    first.push_back(static_cast<double>(ttft));
    std::vector<double> own;
    for (std::size_t t = 1; t < reply.tokens.size(); ++t) {
      own.push_back(static_cast<double>(reply.tokens[t] - reply.tokens[t - 1]));
    }
    gaps.insert(gaps.end(), own.begin(), own.end());
    const bool quick = sorted_quantile(own, 0.99) <= static_cast<double>(objective.gap);
    if (ended && ttft <= objective.ttft && quick) ++good;
  }
  worth.ttft_p50 = sorted_quantile(first, 0.5);
  worth.ttft_p99 = quantile(first, 0.99);
  worth.gap_p99 = sorted_quantile(gaps, 0.99);
  if (requests.empty()) return worth;
  worth.share = static_cast<double>(good) / static_cast<double>(requests.size());
  // All at once have no rate of arrivals: what was served in that time counts.
  const TimeNs span =
      last_arrival > begin ? last_arrival - begin : std::max<TimeNs>(end - begin, 1);
  worth.goodput = static_cast<double>(good) / (static_cast<double>(span) * 1e-9);
  if (end > begin)
    worth.tokens_per_s = static_cast<double>(tokens) / (static_cast<double>(end - begin) * 1e-9);
  return worth;
}

bool better(const Worth& a, const Worth& b) {
  return a.goodput != b.goodput ? a.goodput > b.goodput : a.ttft_p99 < b.ttft_p99;
}

Result<LengthLaw> LengthLaw::parse(const std::string& text) {
  const std::vector<std::string> parts = parts_of(text);
  LengthLaw law;
  bool right = false;
  if (parts.size() == 1) {
    right = read_number(parts[0], 1, kMaxLength, law.a_) && law.a_ == std::floor(law.a_);
  } else if (parts[0] == "uniform" && parts.size() == 3) {
    law.kind_ = Kind::uniform;
    right = read_number(parts[1], 1, kMaxLength, law.a_) &&
            read_number(parts[2], law.a_, kMaxLength, law.b_);
  } else if (parts[0] == "exponential" && parts.size() == 2) {
    law.kind_ = Kind::exponential;
    right = read_number(parts[1], 1, kMaxLength, law.a_);
  } else if (parts[0] == "lognormal" && parts.size() == 3) {
    law.kind_ = Kind::lognormal;
    right = read_number(parts[1], 1, kMaxLength, law.a_) && read_number(parts[2], 0, 5, law.b_);
  }
  if (right) return law;
  return invalid("'" + text +
                 "' is no length: a number of tokens, uniform:LOW:HIGH, exponential:MEAN or "
                 "lognormal:MEDIAN:SIGMA, with 1 to 1048576 tokens and SIGMA up to 5");
}

std::uint32_t LengthLaw::draw(std::uint64_t& state) const {
  const double u = draw_unit(state);
  const double v = draw_unit(state);
  double length = a_;
  if (kind_ == Kind::uniform) length = std::floor(a_ + u * (b_ - a_ + 1));
  if (kind_ == Kind::exponential) length = std::ceil(-std::log1p(-u) * a_);
  if (kind_ == Kind::lognormal) {  // Box and Muller 1958
    const double normal = std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v);
    length = std::round(a_ * std::exp(b_ * normal));
  }
  return static_cast<std::uint32_t>(std::clamp(length, 1.0, kMaxLength));
}

std::vector<TraceRequest> draw_trace(std::uint32_t count, double rate, const LengthLaw& input,
                                     const LengthLaw& output, std::uint64_t seed) {
  std::vector<TraceRequest> trace(count);
  std::uint64_t state = seed;
  double at = 0;
  for (TraceRequest& request : trace) {
    request.at_ms = std::round(at * 1e3) / 1e3;
    at -= std::log1p(-draw_unit(state)) / rate * 1e3;
    request.input_tokens = input.draw(state);
    request.output_tokens = output.draw(state);
  }
  return trace;
}

std::string trace_text(const std::vector<TraceRequest>& trace) {
  std::string text;
  char line[128];
  for (const TraceRequest& request : trace) {
    std::snprintf(line, sizeof line,
                  "{\"timestamp\": %.3f, \"input_length\": %u, \"output_length\": %u}\n",
                  request.at_ms, request.input_tokens, request.output_tokens);
    text += line;
  }
  return text;
}

std::vector<VirtualRequest> virtual_requests(const std::vector<TraceRequest>& trace) {
  std::vector<VirtualRequest> requests(trace.size());
  for (std::size_t i = 0; i < trace.size(); ++i) {
    requests[i].arrival = static_cast<TimeNs>(trace[i].at_ms * 1e6);
    requests[i].input = trace[i].input_tokens;
    requests[i].output = trace[i].output_tokens;
    if (!trace[i].hash_ids.empty())
      make_prompt(trace[i], i, 0, kLowId, kHighId, requests[i].prompt);
  }
  return requests;
}

Settings settings_of(const Settings& base, const ClusterSetup& setup) {
  Settings settings = base;
  settings.token_budget = settings.prompt_chunk = setup.chunk;
  if (setup.auto_roles) settings.roles = Roles::automatic;
  return settings;
}

std::string setup_yaml(const ClusterSetup& setup, const std::string& model,
                       const std::string& device, std::uint32_t max_running) {
  std::string yaml = model.empty() ? "" : "model: " + model + "\n";
  yaml += "scheduler:\n  token_budget: " + std::to_string(setup.chunk) +
          "\n  prompt_chunk: " + std::to_string(setup.chunk) +
          "\n  max_running: " + std::to_string(max_running) + "\n";
  if (setup.auto_roles) yaml += "  roles: auto\n";
  if (!device.empty() || setup.ranks > 1) yaml += "worker:\n";
  if (!device.empty()) yaml += "  device: " + device + "\n";
  if (setup.ranks > 1) yaml += "  ranks: " + std::to_string(setup.ranks) + "\n";
  yaml += "workers:\n";
  for (const VirtualWorker& worker : workers_of(setup.split, 0)) {
    yaml += "  - {name: " + worker.name + ", role: " + to_string(worker.role) + "}\n";
  }
  return yaml;
}

}  // namespace baton
