#include "bench/policy_elastic.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/policy_figures.h"
#include "bench/policy_loads.h"
#include "planning/plan_search.h"
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
  Split split;
  std::function<void(Settings&)> apply;
};

/// Requests of these kinds, as likely as each other.
struct Load {
  std::string name;
  std::vector<PromptKind> kinds;
  double least;  // requests a second to begin the search with
};

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
    load.prompt_pairs = static_cast<std::uint64_t>(attended_pairs(at, load.prompt_tokens));
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

struct Played {
  Requests sent;
  VirtualRun run;
};

Played play_load(const Setup& setup, const Load& load, double rate, std::uint64_t seed,
                 std::uint32_t requests, const StepTimes& times) {
  const double seconds = static_cast<double>(kShortest) / 1e9;
  const auto count = std::max(requests, static_cast<std::uint32_t>(rate * seconds));
  Requests sent = prompts_of(seed, count, rate, load.kinds);
  Settings settings;
  settings.prefix_cache = false;
  setup.apply(settings);
  VirtualRun run = play(settings, workers_of(setup.split, kBlocks), times, sent);
  return {std::move(sent), std::move(run)};
}

/// Whether the set-up serves the load at `rate` as most of its clients expect it.
bool serves(const Setup& setup, const Load& load, double rate, std::uint64_t seed,
            std::uint32_t requests, const StepTimes& times) {
  const auto [sent, run] = play_load(setup, load, rate, seed, requests, times);
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

/// How long first tokens take, beside the prompt alone on one worker: in the middle and at nine in
/// ten, "0.40 / 1.20"; of prompts that are spread where that is on.
std::string first_tokens(const Setup& setup, const Load& load, double rate, std::uint64_t seed,
                         std::uint32_t requests, const StepTimes& times) {
  const auto [sent, run] = play_load(setup, load, rate, seed, requests, times);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].input < Settings().elastic_prompt_tokens || run.replies[i].tokens.empty()) continue;
    ratios.push_back(static_cast<double>(run.replies[i].tokens.front() - sent[i].arrival) /
                     static_cast<double>(alone(times, sent[i].input)));
  }
  std::sort(ratios.begin(), ratios.end());
  if (ratios.empty()) return "";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.2f / %.2f", ratios[ratios.size() / 2],
                ratios[ratios.size() * 9 / 10]);
  return text.data();
}

}  // namespace

void print_elastic(std::uint64_t seed, std::uint32_t requests, const MeasuredDevice& device) {
  const std::vector<Setup> setups = {
      {"2 prefill, 2 decode", {2, 2, 0}, chunks(2048)},
      {"3 prefill, 1 decode", {3, 1, 0}, chunks(2048)},
      {"4 mixed, chunks of 512", {0, 0, 4}, chunks(512)},
      {"4 mixed, chunks of 2,048", {0, 0, 4}, chunks(2048)},
      {"4 mixed, chunks of 512, elastic", {0, 0, 4}, chunks(512, true)},
      {"4 mixed, chunks of 2,048, elastic", {0, 0, 4}, chunks(2048, true)},
  };
  const PromptKind chats = {300, 0.9, 16, 4'000, 150};  // as questions()
  const PromptKind documents = {25'000, 0.9, 2'700, 210'000, 200};
  const PromptKind long_documents = {90'000, 0.7, 15'000, 497'000, 100};
  const std::vector<Load> loads = {
      {"short chats", {chats}, 1},
      {"documents", {documents}, 0.01},
      {"long documents", {long_documents}, 0.005},
      {"mixed", {chats, documents, long_documents}, 0.01},
  };
  std::printf(
      "\nelastic: four workers, requests a second of which nine in ten get their first token within "
      "%.0f times what their prompt takes alone (%.1f s at least), and %.0f ms a token\n\n| set-up |",
      kSlowdown, static_cast<double>(kPatience) / 1e9, static_cast<double>(kPerToken) / 1e6);
  const auto print_head = [&] {
    for (const Load& load : loads) std::printf(" %s |", load.name.c_str());
    std::printf("\n|---|");
    for (std::size_t i = 0; i < loads.size(); ++i) std::printf("---|");
    std::printf("\n");
  };
  print_head();
  std::vector<double> most(loads.size(), 0);
  for (const Setup& setup : setups) {
    std::printf("| %s |", setup.name.c_str());
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const double rate = goodput(setup, loads[i], seed, requests, device.times);
      most[i] = std::max(most[i], rate);
      std::printf(" %.2f |", rate);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  for (const double part : {0.5, 0.2}) {
    std::printf(
        "\nat %.1f of the largest goodput: time to the first token of prompts of %u tokens and "
        "more, "
        "beside the prompt alone on one worker, median / 90th percentile\n\n| set-up |",
        part, Settings().elastic_prompt_tokens);
    print_head();
    for (const Setup& setup : setups) {
      std::printf("| %s |", setup.name.c_str());
      for (std::size_t i = 0; i < loads.size(); ++i) {
        std::printf(
            " %s |",
            first_tokens(setup, loads[i], part * most[i], seed, requests, device.times).c_str());
      }
      std::printf("\n");
    }
  }
}

}  // namespace baton
