// baton-bench-policies: the scheduler's policies against each other, on the same requests, in
// virtual time (planning/virtual_cluster.h): the real scheduler core, and workers that take as long
// as was measured. A seed gives the same tables on every machine; docs/policies.md has them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

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
  t.host_block = 42'000;  // 2 MiB at 50 GB/s, what PCIe 5 leaves of 64; not measured
  t.message = 50'000;
  return device;
}

/// Random numbers that every standard library draws alike.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}
  /// Above 0, up to 1.
  double uniform() { return static_cast<double>((engine_() >> 11U) + 1) / 9007199254740992.0; }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(engine_() % n); }
  /// Around `median`, with the long tail that prompts and answers have.
  std::uint32_t length(double median, double sigma, double least, double most) {
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double normal = radius * std::cos(kTwoPi * uniform());
    return static_cast<std::uint32_t>(std::clamp(median * std::exp(sigma * normal), least, most));
  }

 private:
  std::mt19937_64 engine_;
};

using Requests = std::vector<VirtualRequest>;

/// Poisson arrivals at `rate` a second.
Requests questions(const Options& options, double rate) {
  Draws draws(options.seed);
  Requests requests(options.requests);
  double now = 0;
  for (VirtualRequest& request : requests) {
    now += -std::log(draws.uniform()) / rate;
    request.arrival = static_cast<TimeNs>(now * 1e9);
    request.input = draws.length(300, 0.9, 16, 4000);
    request.output = draws.length(150, 0.7, 4, 1000);
    request.limit = 1024;
  }
  return requests;
}

/// The same, but each belongs to one of forty conversations and begins with the 1,200 tokens said
/// there.
Requests chats(const Options& options, double rate) {
  constexpr Token kSaid = 1200;
  Draws draws(options.seed + 1);
  Requests requests = questions(options, rate);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto chat = static_cast<Token>(draws.below(40));
    const auto own = static_cast<Token>(std::min(requests[i].input, 400U));
    for (Token t = 0; t < kSaid; ++t) requests[i].prompt.push_back(1000 * (1 + chat) + t % 1000);
    for (Token t = 0; t < own; ++t) requests[i].prompt.push_back(100'000 + static_cast<Token>(i));
  }
  return requests;
}

/// Clients that know what they want: the limit is hardly above what they get.
Requests with_near_limits(Requests requests) {
  for (VirtualRequest& request : requests) request.limit = (request.output / 64 + 1) * 64;
  return requests;
}

struct Policy {
  std::string set;  // as it would stand in a configuration
  std::function<void(Settings&)> apply;
};

struct Group {
  std::string name;
  std::string what;
  std::vector<VirtualWorker> workers;
  Requests requests;
  std::vector<Policy> policies;
  bool prefix_cache = false;
  bool host = false;  // with what was copied to host parts and computed again
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
          questions(o, 24),
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
          questions(o, 70),
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
          questions(o, 24),
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
          with_near_limits(questions(o, 24)),
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
          questions(o, 36),
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
          chats(o, 36),
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
          questions(o, 24),
          with_small_watermark(swap_policies()),
          /*prefix_cache=*/true,
          /*host=*/true};
}

Group pair_with_host(const Options& o) {
  return {"swap-pair",
          "a pair, decode pool of 16,384 tokens, its host part of 131,072, 24 requests/s, "
          "watermark 0.01",
          {{"prefill0", Role::prefill, 16'384}, {"decode0", Role::decode, 1024, 8192}},
          questions(o, 24),
          with_small_watermark(swap_policies()),
          /*prefix_cache=*/true,
          /*host=*/true};
}

Group chats_in_host(const Options& o) {
  return {"tier",
          "the same with the conversations (48,000 tokens of beginnings), pool of 32,768 tokens",
          {{"mixed0", Role::mixed, 2048, 8192}},
          chats(o, 24),
          swap_policies(),
          /*prefix_cache=*/true,
          /*host=*/true};
}

/// What clients saw: times from arrival.
struct Figures {
  double ttft_p50 = 0, ttft_p99 = 0, itl_p99 = 0;  // ms
  double tokens_per_s = 0;                         // until the last one
  double latency_sum = 0;                          // s
};

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

Figures figures_of(const Requests& requests, const VirtualRun& run) {
  const auto ms = [](TimeNs time) { return static_cast<double>(time) / 1e6; };
  Figures f;
  std::vector<double> first, gaps;
  std::size_t tokens = 0;
  TimeNs end = 1;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const VirtualReply& reply = run.replies[i];
    if (!reply.tokens.empty()) first.push_back(ms(reply.tokens.front() - requests[i].arrival));
    for (std::size_t t = 1; t < reply.tokens.size(); ++t) {
      gaps.push_back(ms(reply.tokens[t] - reply.tokens[t - 1]));
    }
    f.latency_sum += ms(reply.end - requests[i].arrival) / 1e3;
    tokens += reply.tokens.size();
    end = std::max(end, reply.end);
  }
  f.ttft_p50 = quantile(first, 0.5);
  f.ttft_p99 = quantile(first, 0.99);
  f.itl_p99 = quantile(gaps, 0.99);
  f.tokens_per_s = static_cast<double>(tokens) / (ms(end) / 1e3);
  return f;
}

/// False: somebody did not get what it asked for.
bool print(const Group& group, const MeasuredDevice& device) {
  std::printf("\n%s: %s\n\n", group.name.c_str(), group.what.c_str());
  std::printf(
      "| policy | TTFT p50 | TTFT p99 | ITL p99 | tokens/s | sum of latencies | preempted | at "
      "home |%s\n|---|---|---|---|---|---|---|---|%s\n",
      group.host ? " blocks out / in | prompt tokens computed |" : "",
      group.host ? "---|---|" : "");
  bool sound = true;
  for (const Policy& policy : group.policies) {
    Settings settings;
    settings.max_waiting = static_cast<std::uint32_t>(group.requests.size());
    settings.prefix_cache = group.prefix_cache;
    policy.apply(settings);
    VirtualOptions options;
    options.patience = 3600 * kSecond;
    const VirtualRun run =
        run_virtual_cluster(settings, group.workers, device.times, group.requests, options);
    const Figures f = figures_of(group.requests, run);
    const Counters& c = run.counters;
    const std::uint64_t prefills = std::max<std::uint64_t>(1, c.local_prefills + c.remote_prefills);
    std::printf("| %s | %.0f ms | %.0f ms | %.1f ms | %.0f | %.0f s | %llu | %.0f %% |",
                policy.set.c_str(), f.ttft_p50, f.ttft_p99, f.itl_p99, f.tokens_per_s,
                f.latency_sum, static_cast<unsigned long long>(c.preemptions),
                100 * static_cast<double>(c.local_prefills) / static_cast<double>(prefills));
    std::uint64_t computed = 0;
    for (const WorkerUse& use : run.workers) computed += use.prompt_tokens;
    if (group.host) {
      std::printf(" %llu / %llu | %llu |", static_cast<unsigned long long>(c.blocks_out),
                  static_cast<unsigned long long>(c.blocks_in),
                  static_cast<unsigned long long>(computed));
    }
    std::printf("\n");
    std::fflush(stdout);
    for (std::size_t i = 0; i < group.requests.size() && sound; ++i) {
      sound = run.complete && run.replies[i].code == ErrorCode::ok &&
              run.replies[i].tokens.size() == group.requests[i].output;
      if (!sound) std::printf("request %zu did not end as it should\n", i);
    }
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
  const std::vector<std::string> names = {"batches", "order", "memory",    "limits", "sides",
                                          "chats",   "swap",  "swap-pair", "tier"};
  app.add_option("--seed", options.seed, "of lengths and arrivals");
  app.add_option("--requests", options.requests, "of each run")->check(CLI::Range(10, 100'000));
  app.add_option("--only", options.only, "one table")->check(CLI::IsMember(names));
  app.add_option("--device", options.device,
                 "file of measured step times (planning/step_times.h); else an H200 with 8B");
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
        chats_in_host(options)}) {
    if (options.only.empty() || options.only == group.name)
      sound = print(group, device.value()) && sound;
  }
  return sound ? 0 : 1;
}
