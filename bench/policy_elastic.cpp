#include "bench/policy_elastic.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/policy_loads.h"
#include "planning/virtual_cluster.h"

namespace baton {

namespace {

constexpr std::uint32_t kBlocks = 55'000;       // 111 GB of blocks of 2 MiB
constexpr double kMet = 0.9;                    // of the requests, as LoongServe counts goodput
constexpr double kSlowdown = 5;                 // against the prompt alone on one worker
constexpr TimeNs kPatience = kSecond / 2;       // for a first token, however short the prompt
constexpr TimeNs kPerToken = 50 * kMillisecond;  // of a reply, on average
constexpr double kStep = 1.05;                  // how closely a goodput is searched
constexpr TimeNs kShortest = 60 * kSecond;      // of arrivals; a short burst would say little

struct Setup {
  std::string name;
  std::vector<VirtualWorker> workers;
  std::function<void(Settings&)> apply;
};

struct Load {
  std::string name;
  std::function<Requests(std::uint64_t seed, std::uint32_t count, double rate)> requests;
  double least;  // requests a second to begin the search with
};

std::vector<VirtualWorker> workers_of(std::uint32_t prefill, std::uint32_t decode,
                                      std::uint32_t mixed) {
  std::vector<VirtualWorker> workers;
  const auto add = [&workers](Role role, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i)
      workers.push_back({to_string(role) + std::to_string(i), role, kBlocks});
  };
  add(Role::prefill, prefill), add(Role::decode, decode), add(Role::mixed, mixed);
  return workers;
}

std::function<void(Settings&)> chunks(std::uint32_t chunk, bool elastic = false) {
  return [=](Settings& s) {
    s.prompt_chunk = chunk;
    s.token_budget = {chunk, std::min(chunk, 512U), chunk + 32};
    s.elastic = elastic;
  };
}

/// How long its prompt takes on one worker that has nothing else to do, in chunks of 2,048.
TimeNs alone(const StepTimes& times, std::uint32_t input) {
  constexpr std::uint32_t kChunk = 2048;
  TimeNs sum = 0;
  for (std::uint32_t at = 0; at < input; at += kChunk) {
    StepLoad load;
    load.prompt_tokens = std::min(kChunk, input - at);
    const std::uint64_t n = load.prompt_tokens;
    load.prompt_pairs = n * at + n * (n + 1) / 2;
    sum += times.of(load);
  }
  return sum;
}

bool meets(const StepTimes& times, const VirtualRequest& request, const VirtualReply& reply) {
  if (reply.code != ErrorCode::ok || reply.tokens.size() != request.output) return false;
  const auto bound = static_cast<TimeNs>(kSlowdown * static_cast<double>(alone(times, request.input)));
  if (reply.tokens.front() - request.arrival > std::max(kPatience, bound)) return false;
  const auto gaps = static_cast<TimeNs>(reply.tokens.size() - 1);
  return reply.tokens.back() - reply.tokens.front() <= gaps * kPerToken;
}

/// Whether the set-up serves the load at `rate` as most of its clients expect it.
bool serves(const Setup& setup, const Load& load, double rate, std::uint64_t seed,
            std::uint32_t requests, const StepTimes& times) {
  const double seconds = static_cast<double>(kShortest) / 1e9;
  const auto count = std::max(requests, static_cast<std::uint32_t>(rate * seconds));
  const Requests sent = load.requests(seed, count, rate);
  Settings settings;
  settings.max_waiting = count;
  settings.prefix_cache = false;
  setup.apply(settings);
  VirtualOptions options;
  options.patience = 3600 * kSecond;
  const VirtualRun run = run_virtual_cluster(settings, setup.workers, times, sent, options);
  std::size_t met = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) met += meets(times, sent[i], run.replies[i]) ? 1 : 0;
  return static_cast<double>(met) >= kMet * static_cast<double>(sent.size());
}

/// The highest rate that it serves; 0: not even the load's least.
double goodput(const Setup& setup, const Load& load, std::uint64_t seed, std::uint32_t requests,
               const StepTimes& times) {
  const auto good = [&](double rate) { return serves(setup, load, rate, seed, requests, times); };
  double low = load.least;
  if (!good(low)) return 0;
  double high = 2 * low;
  for (int i = 0; i < 12 && good(high); ++i) low = high, high *= 2;
  while (high / low > kStep) {
    const double middle = (low + high) / 2;
    (good(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

void print_elastic(std::uint64_t seed, std::uint32_t requests, const MeasuredDevice& device) {
  const std::vector<Setup> setups = {
      {"2 prefill, 2 decode", workers_of(2, 2, 0), chunks(2048)},
      {"3 prefill, 1 decode", workers_of(3, 1, 0), chunks(2048)},
      {"4 mixed, chunks of 512", workers_of(0, 0, 4), chunks(512)},
      {"4 mixed, chunks of 2,048", workers_of(0, 0, 4), chunks(2048)},
      {"4 mixed, chunks of 2,048, elastic", workers_of(0, 0, 4), chunks(2048, true)},
  };
  const auto documents = [](double median, double sigma, double least, double most, double reply) {
    return [=](std::uint64_t s, std::uint32_t count, double rate) {
      return prompts_of(s, count, rate, {{median, sigma, least, most, reply}});
    };
  };
  const std::vector<Load> loads = {
      {"short chats", questions, 1},
      {"documents", documents(25'000, 0.9, 2'700, 210'000, 200), 0.01},
      {"long documents", documents(90'000, 0.7, 15'000, 497'000, 100), 0.005},
      {"mixed",
       [](std::uint64_t s, std::uint32_t count, double rate) {
         return prompts_of(s, count, rate,
                           {{300, 0.9, 16, 4'000, 150},
                            {25'000, 0.9, 2'700, 210'000, 200},
                            {90'000, 0.7, 15'000, 497'000, 100}});
       },
       0.01},
  };
  std::printf(
      "\nelastic: four workers, requests a second of which nine in ten get their first token within "
      "%.0f times what their prompt takes alone (%.1f s at least), and %.0f ms a token\n\n| set-up |",
      kSlowdown, static_cast<double>(kPatience) / 1e9, static_cast<double>(kPerToken) / 1e6);
  for (const Load& load : loads) std::printf(" %s |", load.name.c_str());
  std::printf("\n|---|");
  for (std::size_t i = 0; i < loads.size(); ++i) std::printf("---|");
  std::printf("\n");
  for (const Setup& setup : setups) {
    std::printf("| %s |", setup.name.c_str());
    for (const Load& load : loads) {
      std::printf(" %.2f |", goodput(setup, load, seed, requests, device.times));
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

}  // namespace baton
