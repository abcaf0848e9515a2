#include "bench/policy_shares.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/policy_figures.h"
#include "planning/virtual_cluster.h"

namespace baton {

namespace {

constexpr double kRate = 70;        // of the heavy key, a second: more than one worker can serve
constexpr double kTimes = 100;      // so much more than the light key's
constexpr std::uint32_t kLong = 5;  // the light key's requests go on, so that there are some

const char* const kLight = "light";
const char* const kHeavy = "heavy";

Requests of_tenant(Requests requests, const char* name, float weight = 1) {
  for (VirtualRequest& request : requests) {
    request.share.tenant = name;
    request.share.weight = weight;
  }
  return requests;
}

Requests together(Requests a, const Requests& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Row {
  std::string what;
  const Requests* requests;
  std::function<void(Settings&)> apply;
  bool meets = false;  // the goal, or it is said that it does not
};

/// A prompt is one step, and as much as another that may run; none waits behind it.
void hurry(Settings& settings) {
  settings.prompt_chunk = 640;
  settings.token_budget = 640;
  settings.prefill_batch_size = {1};
  settings.steps_in_flight = 1;
}

bool print_row(const Row& row, const std::vector<VirtualWorker>& workers,
               const MeasuredDevice& device, Figures& alone) {
  Settings settings;
  settings.prefix_cache = false;
  row.apply(settings);
  const VirtualRun run = play(settings, workers, device.times, *row.requests);
  const Figures light = figures_of(*row.requests, run, kLight);
  const Figures heavy = figures_of(*row.requests, run, kHeavy);
  if (row.requests->front().share.tenant == kLight && heavy.latency_sum == 0) alone = light;
  std::uint64_t steps = 0;
  double busy = 0;
  for (const WorkerUse& use : run.workers) {
    steps += use.steps;
    busy += static_cast<double>(use.busy) / 1e6;
  }
  const double step = busy / static_cast<double>(std::max<std::uint64_t>(steps, 1));
  const double goal = 1.2 * alone.ttft_p50 + step;
  std::printf("| %s | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f ms |", row.what.c_str(),
              light.ttft_p50, light.ttft_p99, light.itl_p50, step, goal);
  if (heavy.latency_sum > 0) std::printf(" %.0f ms", heavy.ttft_p50);
  std::printf(" |\n");
  std::fflush(stdout);
  const bool missed = row.meets && light.ttft_p50 > goal;
  if (missed) std::printf("the light key waits for longer than it should\n");
  const bool ended = run.complete && std::all_of(run.replies.begin(), run.replies.end(),
                                                 [](const VirtualReply& reply) {
                                                   return reply.code == ErrorCode::ok;
                                                 });
  if (!ended) std::printf("not every request ended as it should\n");
  return ended && !missed;
}

}  // namespace

bool print_shares(std::uint64_t seed, std::uint32_t requests, const MeasuredDevice& device) {
  const std::uint32_t count = kLong * requests;
  const Requests light =
      of_tenant(questions(seed + 7, std::max(20U, static_cast<std::uint32_t>(count / kTimes)),
                          kRate / kTimes),
                kLight);
  const Requests both = together(light, of_tenant(questions(seed, count, kRate), kHeavy));
  std::printf(
      "\nshares: a light key sends %.1f requests/s, a heavy one %.0f beside it; TTFT and ITL are "
      "the light key's\n\n"
      "| keys, queue_order | TTFT p50 | TTFT p99 | ITL p50 | a step | 1.2 TTFT + a step | heavy "
      "key's TTFT p50 |\n|---|---|---|---|---|---|---|\n",
      kRate / kTimes, kRate);
  bool sound = true;
  const std::vector<VirtualWorker> mixed = {{"mixed0", Role::mixed, 16'384}};
  const std::vector<VirtualWorker> pair = {{"prefill0", Role::prefill, 16'384},
                                           {"decode0", Role::decode, 16'384}};
  for (const auto& [name, workers] : {std::pair("mixed", mixed), std::pair("pair", pair)}) {
    Figures alone;
    const std::string where = name;
    const auto fair = [](Settings& settings) { settings.queue_order = QueueOrder::fair; };
    for (const Row& row : {
             Row{where + ": light alone", &light, [](Settings&) {}},
             Row{where + ": both, arrival", &both, [](Settings&) {}},
             Row{where + ": both, fair", &both, fair},
             Row{where + ": both, fair, steps_in_flight 1", &both,
                 [&](Settings& s) { fair(s), s.steps_in_flight = 1; }},
             Row{where + ": light alone, whole prompts one by one", &light, hurry},
             Row{where + ": both, fair, whole prompts one by one", &both,
                 [&](Settings& s) { fair(s), hurry(s); }, /*meets=*/true},
         }) {
      sound = print_row(row, workers, device, alone) && sound;
    }
  }
  return sound;
}

}  // namespace baton
