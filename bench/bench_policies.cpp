// baton-bench-policies: the scheduler's policies against each other, on the same requests, in
// virtual time (planning/virtual_cluster.h): the real scheduler core, and workers that take as long
// as was measured. A seed gives the same tables on every machine; docs/policies.md has them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "baton_version.h"
#include "bench/policy_elastic.h"
#include "bench/policy_figures.h"
#include "bench/policy_loads.h"
#include "bench/policy_shares.h"
#include "planning/plan_search.h"
#include "planning/virtual_cluster.h"

namespace baton {
namespace {

struct Options {
  std::uint64_t seed = 1;
  std::uint32_t requests = 2000;
  std::string only;
  std::string device;  // file; empty: h200_8b()
};

/// An 8B Llama in bf16 on one H200, as docs/performance.md has it: steps of 1 to 256 rows at 512
/// tokens of context, of which attention (64 rows of 2,048: 4.1 ms) is taken out; prompts of 2,048
/// and 8,192 tokens likewise (3.2 and 38 ms), and between them and 256 rows a straight line.
MeasuredDevice h200_8b() {
  MeasuredDevice device;
  device.model = "8B, bf16";
  device.device = "one H200";
  StepTimes& t = device.times;
  t.decode = TimeCurve({{1, 4.33e6}, {8, 4.47e6}, {32, 4.54e6}, {128, 5.87e6}, {256, 8.24e6}});
  t.decode_context = 31;
  t.prompt = TimeCurve({{1, 4.33e6}, {128, 5.87e6}, {256, 8.24e6}, {2048, 41.3e6}, {8192, 171e6}});
  t.prompt_pair = 1.14;
  t.pull = 400'000;
  t.pull_block = 8'000;   // 256 MiB, 2,048 tokens, in 1.4 ms
  t.link_token = 354;     // 128 KiB at 370 GB/s
  t.host_block = 42'000;  // 2 MiB at 50 GB/s, what PCIe 5 leaves of 64; not measured
  t.message = 50'000;
  return device;
}

/// Clients that know what they want: the limit is hardly above what they get.
Requests with_near_limits(Requests requests) {
  for (VirtualRequest& request : requests) request.limit = (request.output / 64 + 1) * 64;
  return requests;
}

struct Policy {
  std::string set;  // as it would stand in a configuration
  std::function<void(Settings&)> apply;
  std::vector<VirtualWorker> workers = {};  // empty: those of its group
};

struct Group {
  std::string name;
  std::string what;
  std::vector<VirtualWorker> workers;
  Requests requests;
  std::vector<Policy> policies;
  bool prefix_cache = false;
  bool host = false;  // with what was copied to host parts and computed again
  bool ratios = false;  // all but the first row are told as multiples of it
};

void whole_prompts(Settings& s) { s.token_budget = s.prompt_chunk = 65'536; }

/// llm-serving's scheduler: one prompt at a time, and nobody decodes meanwhile.
void one_prompt_at_a_time(Settings& s) {
  whole_prompts(s);
  s.prompts_pause_decode = true;
  s.prefill_batch_size = {1};
}

void as_group(Settings& s, std::uint32_t size, bool same) {
  s.batching = Batching::static_batch;
  s.static_batch_size = size;
  s.static_interval = 2 * kSecond;
  s.static_same_config = same;
}

Group batches(const Options& o) {
  return {"batches",
          "one mixed worker, 24 requests/s",
          {{"mixed0", Role::mixed, 16'384}},
          questions(o.seed, o.requests, 24),
          {{"defaults (token_budget 512, prompt_chunk 256)", [](Settings&) {}},
           {"token_budget 128, prompt_chunk 128",
            [](Settings& s) { s.token_budget = s.prompt_chunk = 128; }},
           {"whole prompts (token_budget, prompt_chunk 65536)", whole_prompts},
           {"whole prompts, prompts_pause_decode",
            [](Settings& s) { whole_prompts(s), s.prompts_pause_decode = true; }},
           {"the same, prefill_batch_size 1", one_prompt_at_a_time},
           {"the same, delay_factor 0.5",
            [](Settings& s) { one_prompt_at_a_time(s), s.delay_factor = 0.5; }},
           {"the same with prefill_batch_size 5",
            [](Settings& s) {
              one_prompt_at_a_time(s), s.delay_factor = 0.5, s.prefill_batch_size = {5};
            }},
           {"delay_factor 0.5", [](Settings& s) { s.delay_factor = 0.5; }},
           {"delay_factor 5", [](Settings& s) { s.delay_factor = 5; }},
           {"decode_batch_size 20", [](Settings& s) { s.decode_batch_size = {20}; }},
           {"decode_batch_size [8, 32, 128]",
            [](Settings& s) {
              s.decode_batch_size = {8, 32, 128};
            }},
           {"batching static, 16 in 2 s", [](Settings& s) { as_group(s, 16, false); }},
           {"batching static, 64 in 2 s", [](Settings& s) { as_group(s, 64, false); }}}};
}

Group overload(const Options& o) {
  return {"order",
          "the same worker, 70 requests/s: more than it can serve",
          {{"mixed0", Role::mixed, 16'384}},
          questions(o.seed, o.requests, 70),
          {{"queue_order arrival", [](Settings&) {}},
           {"queue_order shortest, input_age_ms 1",
            [](Settings& s) { s.queue_order = QueueOrder::shortest, s.input_age = kMillisecond; }},
           {"queue_order shortest, input_age_ms 10",
            [](Settings& s) { s.queue_order = QueueOrder::shortest; }},
           {"queue_order shortest, input_age_ms 100", [](Settings& s) {
              s.queue_order = QueueOrder::shortest, s.input_age = 100 * kMillisecond;
            }}}};
}

Group pressure(const Options& o) {
  const auto evict = [](Victim victim, Preempted place) {
    return [=](Settings& s) { s.victim = victim, s.preempted = place; };
  };
  return {"memory",
          "the same worker with a pool of 16,384 tokens, 24 requests/s",
          {{"mixed0", Role::mixed, 1024}},
          questions(o.seed, o.requests, 24),
          {{"defaults (victim last, preempted in_place)", [](Settings&) {}},
           {"watermark 0.01", [](Settings& s) { s.watermark = 0.01; }},
           {"watermark 0.01, victim shortest, preempted front",
            [=](Settings& s) { evict(Victim::shortest, Preempted::front)(s), s.watermark = 0.01; }},
           {"watermark 0.01, victim shortest, preempted first",
            [=](Settings& s) { evict(Victim::shortest, Preempted::first)(s), s.watermark = 0.01; }},
           {"watermark 0.01, victim tail, preempted first",
            [=](Settings& s) { evict(Victim::tail, Preempted::first)(s), s.watermark = 0.01; }},
           {"victim shortest", evict(Victim::shortest, Preempted::in_place)},
           {"victim tail, preempted first", evict(Victim::tail, Preempted::first)},
           {"admission future", [](Settings& s) { s.admission = Admission::future; }}}};
}

Group limits(const Options& o) {
  return {"limits",
          "the same, but max_tokens is the answer's length, rounded up to 64",
          {{"mixed0", Role::mixed, 1024}},
          with_near_limits(questions(o.seed, o.requests, 24)),
          {{"defaults (admission watermark)", [](Settings&) {}},
           {"watermark 0.01", [](Settings& s) { s.watermark = 0.01; }},
           {"admission future", [](Settings& s) { s.admission = Admission::future; }}}};
}

std::vector<VirtualWorker> pair(std::uint32_t decode_blocks) {
  return {{"prefill0", Role::prefill, 16'384}, {"decode0", Role::decode, decode_blocks}};
}

Group sides(const Options& o) {
  return {"sides",
          "a pair, 36 requests/s, the decode pool 24,576 tokens",
          pair(1536),
          questions(o.seed, o.requests, 36),
          {{"defaults", [](Settings&) {}},
           {"token_budget prefill=2048, prompt_chunk 2048",
            [](Settings& s) { s.token_budget.prefill = s.prompt_chunk = 2048; }},
           {"prefill_batch_size 1", [](Settings& s) { s.prefill_batch_size = {1}; }},
           {"decode_batch_size 32", [](Settings& s) { s.decode_batch_size = {32}; }},
           {"pull_watermark 0.8", [](Settings& s) { s.pull_watermark = 0.8; }},
           {"pull_watermark 0.5", [](Settings& s) { s.pull_watermark = 0.5; }},
           {"admission future", [](Settings& s) { s.admission = Admission::future; }},
           {"local_prefill tokens=128", [](Settings& s) { s.local_prefill.tokens = 128; }},
           {"local_prefill tokens=512", [](Settings& s) { s.local_prefill.tokens = 512; }},
           {"local_prefill tokens=16777216",
            [](Settings& s) { s.local_prefill.tokens = 16'777'216; }}}};
}

Group conversations(const Options& o) {
  const auto cached = [](double share, std::uint32_t budget) {
    return [=](Settings& s) { s.local_prefill.cached = share, s.token_budget.decode = budget; };
  };
  return {"chats",
          "a pair, 36 requests/s, each begins like one of forty conversations (prefix cache on)",
          pair(8192),
          chats(o.seed, o.requests, 36),
          {{"defaults", cached(0, 512)},
           {"local_prefill cached=0.6", cached(0.6, 512)},
           {"local_prefill cached=0.6, token_budget decode=256", cached(0.6, 256)},
           {"local_prefill cached=0.9", cached(0.9, 512)}},
          /*prefix_cache=*/true};
}

/// What `swap` makes of a pool that does not suffice: its host part has room for all.
std::vector<Policy> swap_policies() {
  const auto swap = [](Swap rule, std::uint32_t ahead) {
    return [=](Settings& s) { s.swap = rule, s.swap_step_blocks = ahead; };
  };
  return {{"swap never: all is recomputed", swap(Swap::never, 8)},
          {"swap auto", swap(Swap::automatic, 8)},
          {"swap always", swap(Swap::always, 8)},
          {"swap always, preempted in_place",
           [](Settings& s) { s.swap = Swap::always, s.preempted = Preempted::in_place; }},
          {"swap always, swap_step_blocks 0", swap(Swap::always, 0)}};
}

std::vector<Policy> with_small_watermark(std::vector<Policy> policies) {
  for (Policy& policy : policies) {
    policy.apply = [apply = policy.apply](Settings& s) { apply(s), s.watermark = 0.01; };
  }
  return policies;
}

Group preempted_to_host(const Options& o) {
  return {"swap",
          "one mixed worker, pool of 16,384 tokens, host part of 131,072, 24 requests/s, watermark "
          "0.01",
          {{"mixed0", Role::mixed, 1024, 8192}},
          questions(o.seed, o.requests, 24),
          with_small_watermark(swap_policies()),
          /*prefix_cache=*/true,
          /*host=*/true};
}

Group pair_with_host(const Options& o) {
  return {"swap-pair",
          "a pair, decode pool of 16,384 tokens, its host part of 131,072, 24 requests/s, "
          "watermark 0.01",
          {{"prefill0", Role::prefill, 16'384}, {"decode0", Role::decode, 1024, 8192}},
          questions(o.seed, o.requests, 24),
          with_small_watermark(swap_policies()),
          /*prefix_cache=*/true,
          /*host=*/true};
}

Group chats_in_host(const Options& o) {
  return {"tier",
          "the same with the conversations (48,000 tokens of beginnings), pool of 32,768 tokens",
          {{"mixed0", Role::mixed, 2048, 8192}},
          chats(o.seed, o.requests, 24),
          swap_policies(),
          /*prefix_cache=*/true,
          /*host=*/true};
}

/// "2p1d": prefill0, prefill1, decode0.
std::vector<VirtualWorker> large_workers(const std::string& split) {
  return workers_of(parse_split(split).value(), 16'384);
}

/// A load that shifts from prompts to replies and back, on fixed roles and on those that follow it.
/// `share`: of what half of the workers could serve of each kind.
Group shifts(const Options& o, std::uint32_t workers, double share,
             const std::vector<std::string>& fixed, const std::vector<std::string>& automatic) {
  Group group;
  group.name = "roles";
  group.what = std::to_string(workers) + (share < 1 ? " workers, half the load" : " workers") +
               ": prompts of 4,000 tokens with short replies, then replies of 1,500, then "
               "prompts again";
  group.requests = shifting(o.seed, o.requests, workers * share);
  group.ratios = true;
  for (const std::string& split : fixed)
    group.policies.push_back({split, [](Settings&) {}, large_workers(split)});
  for (const std::string& split : automatic) {
    group.policies.push_back({"roles auto, " + split,
                              [](Settings& s) { s.roles = Roles::automatic; },
                              large_workers(split)});
  }
  return group;
}

VirtualRun run_of(const Group& group, const Policy& policy, const MeasuredDevice& device) {
  Settings settings;
  settings.prefix_cache = group.prefix_cache;
  policy.apply(settings);
  return play(settings, policy.workers.empty() ? group.workers : policy.workers, device.times,
              group.requests);
}

/// False: somebody did not get what it asked for.
bool is_sound(const Group& group, const VirtualRun& run) {
  for (std::size_t i = 0; i < group.requests.size(); ++i) {
    const bool sound = run.complete && run.replies[i].code == ErrorCode::ok &&
                       run.replies[i].tokens.size() == group.requests[i].output;
    if (!sound) std::printf("request %zu did not end as it should\n", i);
    if (!sound) return false;
  }
  return true;
}

void print_row(const Group& group, const Policy& policy, const VirtualRun& run) {
  const Figures f = figures_of(group.requests, run);
  const Counters& c = run.counters;
  const std::uint64_t prefills = std::max<std::uint64_t>(1, c.local_prefills + c.remote_prefills);
  std::printf("| %s | %.0f ms | %.0f ms | %.1f ms | %.0f | %.0f s | %llu | %.0f %% |",
              policy.set.c_str(), f.ttft_p50, f.ttft_p99, f.itl_p99, f.tokens_per_s, f.latency_sum,
              static_cast<unsigned long long>(c.preemptions),
              100 * static_cast<double>(c.local_prefills) / static_cast<double>(prefills));
  std::uint64_t computed = 0;
  for (const WorkerUse& use : run.workers) computed += use.prompt_tokens;
  if (group.host) {
    std::printf(" %llu / %llu | %llu |", static_cast<unsigned long long>(c.blocks_out),
                static_cast<unsigned long long>(c.blocks_in),
                static_cast<unsigned long long>(computed));
  }
}

void print_ratios(const Figures& f, const Figures& first, const Policy& policy,
                  std::uint64_t changes) {
  std::printf("| %s | %.3f | %.3f | %.2f | %.2f | %.2f | %.2f | %llu |", policy.set.c_str(),
              f.ttft_p50 / first.ttft_p50, f.ttft_p99 / first.ttft_p99, f.itl_p50 / first.itl_p50,
              f.itl_p99 / first.itl_p99, f.tokens_per_s / first.tokens_per_s,
              f.latency_sum / first.latency_sum, static_cast<unsigned long long>(changes));
}

bool print(const Group& group, const MeasuredDevice& device) {
  std::printf("\n%s: %s\n\n", group.name.c_str(), group.what.c_str());
  if (group.ratios) {
    std::printf(
        "| roles | TTFT p50 | TTFT p99 | ITL p50 | ITL p99 | tokens/s | sum of latencies | role "
        "changes |\n"
        "|---|---|---|---|---|---|---|---|\n");
  } else {
    std::printf(
        "| policy | TTFT p50 | TTFT p99 | ITL p99 | tokens/s | sum of latencies | preempted | at "
        "home |%s\n|---|---|---|---|---|---|---|---|%s\n",
        group.host ? " blocks out / in | prompt tokens computed |" : "",
        group.host ? "---|---|" : "");
  }
  bool sound = true;
  Figures first;
  for (const Policy& policy : group.policies) {
    const VirtualRun run = run_of(group, policy, device);
    if (!group.ratios) {
      print_row(group, policy, run);
    } else {
      const Figures f = figures_of(group.requests, run);
      if (&policy == group.policies.data()) {
        first = f;
        std::printf("| %s | %.0f ms | %.0f ms | %.1f ms | %.1f ms | %.0f | %.0f s | %llu |\n",
                    policy.set.c_str(), f.ttft_p50, f.ttft_p99, f.itl_p50, f.itl_p99,
                    f.tokens_per_s, f.latency_sum,
                    static_cast<unsigned long long>(run.counters.role_changes));
      }
      print_ratios(f, first, policy, run.counters.role_changes);
    }
    std::printf("\n");
    std::fflush(stdout);
    sound = is_sound(group, run) && sound;
  }
  return sound;
}

/// The built-in one, or a file's.
Result<MeasuredDevice> device_of(const std::string& path) {
  if (path.empty()) return h200_8b();
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file && text.empty()) return invalid(path + ": cannot be read");
  return parse_device(text);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  using namespace baton;
  Options options;
  CLI::App app("The scheduler's policies against each other, in virtual time");
  const std::vector<std::string> names = {"batches", "order", "memory", "limits",
                                          "sides",   "chats", "swap",   "swap-pair",
                                          "tier",    "roles", "shares", "elastic"};
  app.add_option("--seed", options.seed, "of lengths and arrivals");
  app.add_option("--requests", options.requests, "of each run")->check(CLI::Range(10, 100'000));
  app.add_option("--only", options.only, "one table")->check(CLI::IsMember(names));
  app.add_option("--device", options.device,
                 "file of measured step times (planning/step_times.h); else an H200 with 8B");
  app.set_version_flag("--version", "baton-bench-policies " BATON_VERSION " (" BATON_COMMIT ")");
  CLI11_PARSE(app, argc, argv);
  const Result<MeasuredDevice> device = device_of(options.device);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    return 2;
  }
  std::printf("seed %llu, %u requests a run, %s on %s\n",
              static_cast<unsigned long long>(options.seed), options.requests,
              device.value().model.c_str(), device.value().device.c_str());
  bool sound = true;
  for (const Group& group :
       {batches(options), overload(options), pressure(options), limits(options), sides(options),
        conversations(options), preempted_to_host(options), pair_with_host(options),
        chats_in_host(options), shifts(options, 2, 1, {"1p1d", "2m"}, {"1p1d"}),
        shifts(options, 3, 1, {"1p2d", "2p1d", "3m"}, {"1p2d", "2p1d"}),
        shifts(options, 4, 1, {"2p2d", "1p3d", "3p1d", "4m"}, {"2p2d"}),
        shifts(options, 2, 0.5, {"1p1d", "2m"}, {"1p1d"}),
        shifts(options, 3, 0.5, {"1p2d", "2p1d", "3m"}, {"1p2d", "2p1d"}),
        shifts(options, 4, 0.5, {"2p2d", "1p3d", "3p1d", "4m"}, {"2p2d"})}) {
    if (options.only.empty() || options.only == group.name)
      sound = print(group, device.value()) && sound;
  }
  if (options.only.empty() || options.only == "shares")
    sound = print_shares(options.seed, options.requests, device.value()) && sound;
  if (options.only.empty() || options.only == "elastic")
    print_elastic(options.seed, options.requests / 10, device.value());
  return sound ? 0 : 1;
}
