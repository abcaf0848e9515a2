// baton-plan: which roles, and which chunk of prompts, serve a load best within objectives of
// latency. Plays a trace against every set-up of so many devices in virtual time: the real
// scheduler core, step times measured by tools/step_times.py. After the placement
// search of DistServe (Zhong et al. 2024).
//
//   baton-plan --step-times times.json --devices 8 --trace trace.jsonl
//
// With the times of workers of several ranks (--step-times once for each number) it also says
// whether a device is better a worker's rank or a worker.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "baton_version.h"
#include "configs/config.h"
#include "ipc/joined.h"
#include "ipc/option_spelling.h"
#include "ipc/process.h"
#include "planning/plan_search.h"

namespace baton {
namespace {

struct Options {
  std::vector<std::string> step_times;
  std::vector<std::uint32_t> ranks;  // only these; empty: all that were measured
  std::string trace;
  std::string write_trace;
  std::string config;
  std::string entry;  // of the configuration's models
  std::string json;
  std::string out;
  std::uint32_t devices = 2;
  std::vector<std::string> splits;
  std::vector<std::uint32_t> chunks = {64, 128, 256, 512, 1024};
  double rate = 0;
  std::uint32_t requests = 500;
  std::string input = "uniform:64:512";
  std::string output = "uniform:16:256";
  std::uint64_t seed = 1;
  double ttft_s = 1;
  double gap_s = 0.03;
  std::uint32_t pool_blocks = 0;
  unsigned jobs = 0;
  bool auto_roles = false;
};

struct Inputs {
  std::vector<MeasuredDevice> devices;  // one for each number of ranks, ascending
  Config config;
  std::vector<VirtualRequest> requests;
  std::vector<ClusterSetup> setups;
  Objective objective;
  /// The one with that many ranks, which is there.
  const MeasuredDevice& device(std::uint32_t ranks) const {
    return *std::find_if(devices.begin(), devices.end(),
                         [&](const MeasuredDevice& d) { return d.ranks == ranks; });
  }
};

struct Outcome {
  Worth worth;
  bool done = false;
};

constexpr std::size_t kMaxRuns = 100'000;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "baton plan: %s\n", why.c_str());
  std::exit(2);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) stop(path + ": cannot be read");
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) stop(path + ": cannot be written");
}

std::vector<TraceRequest> make_trace(const Options& o) {
  if (!o.trace.empty()) {
    auto trace = read_trace(read_file(o.trace));
    if (!trace.ok()) stop(o.trace + ": " + trace.status().message());
    return std::move(trace).value();
  }
  if (o.rate <= 0) stop("--trace FILE or --rate N is needed: what is to be served?");
  const auto input = LengthLaw::parse(o.input);
  if (!input.ok()) stop("--input-length: " + input.status().message());
  const auto output = LengthLaw::parse(o.output);
  if (!output.ok()) stop("--output-length: " + output.status().message());
  return draw_trace(o.requests, o.rate, input.value(), output.value(), o.seed);
}

/// A prompt that no pool or context holds would only be refused.
void check_lengths(const Inputs& in, const MeasuredDevice& device) {
  const std::uint64_t pool = std::uint64_t{device.pool_blocks} * device.tokens_per_block;
  const std::uint64_t room = std::min<std::uint64_t>(pool, device.max_context);
  for (std::size_t i = 0; i < in.requests.size(); ++i) {
    const std::uint64_t length = std::uint64_t{in.requests[i].input} + in.requests[i].output;
    if (length <= room) continue;
    stop("request " + std::to_string(i + 1) + " has " + std::to_string(length) +
         " tokens in and out; a worker's pool and context hold " + std::to_string(room));
  }
}

/// A plan is about one model's workers: that of an entry, where there are several.
Config model_of(Config config, const std::string& entry) {
  for (Config& model : config.models) {
    if (model.entry == entry) return std::move(model);
  }
  if (config.models.empty() && entry.empty()) return config;
  if (config.models.empty()) stop("--for " + entry + ": the configuration has no list of models");
  stop((entry.empty() ? "name one of the configuration's models with --for: "
                      : "--for " + entry + ": there is no such model; there are ") +
       joined(config.models, &Config::entry));
}

std::string ranks_text(std::uint32_t ranks) {
  return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
}

/// What was measured, for each number of ranks once, and of one model on one kind of device.
std::vector<MeasuredDevice> read_devices(const Options& o) {
  std::vector<MeasuredDevice> devices;
  for (const std::string& path : o.step_times) {
    auto read = parse_device(read_file(path));
    if (!read.ok()) stop(path + ": " + read.status().message());
    MeasuredDevice device = std::move(read).value();
    if (o.pool_blocks > 0) device.pool_blocks = o.pool_blocks;
    if (device.pool_blocks == 0)
      stop(path + " does not tell the size of a pool; give --pool-blocks");
    for (const MeasuredDevice& other : devices) {
      if (other.ranks == device.ranks)
        stop(path + ": the times of " + ranks_text(device.ranks) + " are there already");
      if (other.model != device.model || other.device != device.device)
        stop(path + " is of another model or device than " + o.step_times.front());
    }
    devices.push_back(std::move(device));
  }
  std::sort(devices.begin(), devices.end(),
            [](const MeasuredDevice& a, const MeasuredDevice& b) { return a.ranks < b.ranks; });
  if (o.ranks.empty()) return devices;
  for (const std::uint32_t wanted : o.ranks) {
    const bool there = std::any_of(devices.begin(), devices.end(),
                                   [&](const MeasuredDevice& d) { return d.ranks == wanted; });
    if (there) continue;
    stop("the times of " + ranks_text(wanted) + " are missing: tools/step_times.py --ranks " +
         std::to_string(wanted) + " measures them; give each file with --step-times");
  }
  std::erase_if(devices, [&](const MeasuredDevice& d) {
    return std::find(o.ranks.begin(), o.ranks.end(), d.ranks) == o.ranks.end();
  });
  return devices;
}

void add_setups(const Options& o, std::uint32_t ranks, Inputs& in) {
  std::vector<Split> splits = all_splits(o.devices / ranks);
  if (!o.splits.empty()) splits.clear();
  for (const std::string& text : o.splits) {
    const auto split = parse_split(text);
    if (!split.ok()) stop("--splits: " + split.status().message());
    splits.push_back(split.value());
  }
  for (const Split& split : splits) {
    for (const std::uint32_t chunk : o.chunks) {
      in.setups.push_back({split, chunk, false, ranks});
      if (o.auto_roles && split.prefill > 0) in.setups.push_back({split, chunk, true, ranks});
    }
  }
}

Inputs make_inputs(const Options& o) {
  Inputs in;
  in.devices = read_devices(o);
  if (!o.config.empty()) {
    auto config = parse_config(read_file(o.config), o.config);
    if (!config.ok()) stop(config.status().message());
    in.config = model_of(std::move(config).value(), o.entry);
  }
  in.objective = {seconds_to_ns(o.ttft_s), seconds_to_ns(o.gap_s)};
  const std::vector<TraceRequest> trace = make_trace(o);
  if (!o.write_trace.empty()) write_file(o.write_trace, trace_text(trace));
  in.requests = virtual_requests(trace);
  for (const MeasuredDevice& device : in.devices) {
    check_lengths(in, device);
    // A worker of more ranks than there are devices cannot be; named set-ups count workers.
    if (!o.splits.empty() || device.ranks <= o.devices) add_setups(o, device.ranks, in);
  }
  if (in.setups.empty()) stop("--devices is smaller than the ranks of every worker measured");
  if (in.setups.size() > kMaxRuns) stop(std::to_string(in.setups.size()) + " runs are too many");
  return in;
}

/// Plays all set-ups on some threads and says how far it is.
class Search {
 public:
  explicit Search(const Inputs& in) : in_(in), results_(in.setups.size()) {
    for (const VirtualRequest& request : in.requests) longest_ = std::max(longest_, request.output);
  }

  const std::vector<Outcome>& run(unsigned jobs) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < jobs; ++i) threads.emplace_back([this] { work(); });
    {
      std::unique_lock lock(mutex_);
      const auto pause = std::chrono::seconds(isatty(STDERR_FILENO) == 1 ? 1 : 15);
      while (!changed_.wait_for(lock, pause, [this] { return ended_ == results_.size(); })) tell();
    }
    for (std::thread& thread : threads) thread.join();
    if (told_ && isatty(STDERR_FILENO) == 1) std::fputs("\r\033[K", stderr);
    return results_;
  }

 private:
  void work() {
    for (std::size_t i = next_++; i < results_.size(); i = next_++) {
      const ClusterSetup& setup = in_.setups[i];
      const MeasuredDevice& device = in_.device(setup.ranks);
      VirtualOptions options;
      options.tokens_per_block = device.tokens_per_block;
      options.max_context = device.max_context;
      // Whoever has not ended by then has missed the objective.
      options.patience = 10 * kSecond + in_.objective.ttft + 2 * longest_ * in_.objective.gap;
      const VirtualRun run = run_virtual_cluster(
          settings_of(make_settings(in_.config.scheduler), setup),
          workers_of(setup.split, device.pool_blocks), device.times, in_.requests, options);
      const Worth worth = worth_of(in_.requests, run, in_.objective);
      const std::lock_guard lock(mutex_);
      results_[i] = {worth, true};
      if (!best_ || better(worth, results_[*best_].worth)) best_ = i;
      ++ended_;
      changed_.notify_all();
    }
  }

  void tell() {
    std::string line = std::to_string(ended_) + " of " + std::to_string(results_.size()) + " runs";
    if (best_) {
      char goodput[32];
      std::snprintf(goodput, sizeof goodput, "%.2f", results_[*best_].worth.goodput);
      line += "; best so far " + setup_text(in_.setups[*best_]) + ", chunks of " +
              std::to_string(in_.setups[*best_].chunk) + ": " + goodput + " requests/s";
    }
    told_ = true;
    if (isatty(STDERR_FILENO) == 1) {
      std::fprintf(stderr, "\r\033[K  %s", line.c_str());
    } else {
      std::fprintf(stderr, "  %s\n", line.c_str());
    }
  }

  const Inputs& in_;
  std::vector<Outcome> results_;
  std::atomic<std::size_t> next_{0};
  std::uint32_t longest_ = 0;
  std::mutex mutex_;  // guards what follows, and results_ while threads run
  std::condition_variable changed_;
  std::size_t ended_ = 0;
  std::optional<std::size_t> best_;
  bool told_ = false;
};

void print_table(const Inputs& in, const std::vector<Outcome>& results,
                 const std::vector<std::size_t>& order) {
  std::printf("  %-10s %6s %12s %12s %11s %8s %11s %10s\n", "set-up", "chunk", "TTFT p50 ms",
              "TTFT p99 ms", "ITL p99 ms", "in SLO", "goodput/s", "tokens/s");
  for (const std::size_t i : order) {
    const Worth& w = results[i].worth;
    std::printf("%s %-10s %6u %12.1f %12.1f %11.2f %7.1f%% %11.3f %10.0f",
                i == order.front() ? "*" : " ", setup_text(in.setups[i]).c_str(),
                in.setups[i].chunk, w.ttft_p50 * 1e-6, w.ttft_p99 * 1e-6, w.gap_p99 * 1e-6,
                100 * w.share, w.goodput, w.tokens_per_s);
    if (w.failed > 0) std::printf("  %zu did not end", w.failed);
    std::printf("\n");
  }
}

std::string results_json(const Inputs& in, const std::vector<Outcome>& results,
                         const std::vector<std::size_t>& order) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const std::size_t i : order) {
    const Worth& w = results[i].worth;
    list.push_back({{"setup", setup_text(in.setups[i])},
                    {"chunk", in.setups[i].chunk},
                    {"ranks", in.setups[i].ranks},
                    {"ttft_p50_ms", w.ttft_p50 * 1e-6},
                    {"ttft_p99_ms", w.ttft_p99 * 1e-6},
                    {"itl_p99_ms", w.gap_p99 * 1e-6},
                    {"share", w.share},
                    {"goodput_per_s", w.goodput},
                    {"tokens_per_s", w.tokens_per_s},
                    {"not_ended", w.failed}});
  }
  return list.dump(1) + "\n";
}

/// Which numbers of ranks were tried, and what is missing for others: a table that leaves them out
/// says nothing of them.
void tell_ranks(const Inputs& in, std::uint32_t devices) {
  std::string tried;
  std::string missing;
  for (std::uint32_t ranks = 1; ranks <= std::min(devices, 8U); ranks *= 2) {
    const bool there = std::any_of(in.devices.begin(), in.devices.end(),
                                   [&](const MeasuredDevice& d) { return d.ranks == ranks; });
    if (!there) missing += (missing.empty() ? "" : ", ") + std::to_string(ranks);
  }
  for (const MeasuredDevice& d : in.devices) {
    tried += (tried.empty() ? "" : ", ") + std::to_string(d.ranks);
  }
  if (missing.empty()) return;
  std::printf(
      "\nRanks a worker that were tried: %s. Not %s, for want of step times: tools/step_times.py "
      "--ranks N measures them, and each file is given with --step-times.\n",
      tried.c_str(), missing.c_str());
}

int search(const Options& o) {
  const Inputs in = make_inputs(o);
  const unsigned jobs = o.jobs > 0 ? o.jobs : std::max(1U, std::thread::hardware_concurrency());
  const TimeNs begin = now_ns();
  Search search(in);
  const std::vector<Outcome>& results =
      search.run(std::min<unsigned>(jobs, static_cast<unsigned>(in.setups.size())));
  std::vector<std::size_t> order(results.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return better(results[a].worth, results[b].worth);
  });
  std::printf(
      "%zu requests, %zu set-ups, %.1f s; objective: first token within %g s, 99%% of a request's "
      "gaps within %g ms\n\n",
      in.requests.size(), in.setups.size(), static_cast<double>(now_ns() - begin) * 1e-9, o.ttft_s,
      o.gap_s * 1e3);
  print_table(in, results, order);
  tell_ranks(in, o.devices);
  const ClusterSetup& best = in.setups[order.front()];
  const MeasuredDevice& device = in.device(best.ranks);
  const std::string yaml =
      setup_yaml(best, device.model, device.device, in.config.scheduler.max_running);
  const std::string ranks = best.ranks > 1 ? ", " + ranks_text(best.ranks) + " each," : "";
  std::printf("\nBest: %s%s with chunks of %u. Its configuration:\n\n%s",
              split_text(best.split).c_str(), ranks.c_str(), best.chunk, yaml.c_str());
  if (!o.out.empty()) write_file(o.out, yaml);
  if (!o.json.empty()) write_file(o.json, results_json(in, results, order));
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options o;
  CLI::App app{
      "Which roles and which chunk of prompts serve a load best: plays it against every set-up in "
      "virtual time (docs/planning.md)"};
  app.name("baton plan");
  app.add_option("--step-times", o.step_times,
                 "what tools/step_times.py wrote; once for each number of ranks")
      ->required();
  app.add_option("--ranks", o.ranks,
                 "only workers of so many ranks (devices that share the model); left out, all "
                 "whose step times are given")
      ->delimiter(',')
      ->check(CLI::Range(1, 8));
  app.add_option("--devices", o.devices, "devices in all; a worker takes one for each rank")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--splits", o.splits,
                 "only these set-ups: 1p1d,2m (p: prefill, d: decode, m: mixed)")
      ->delimiter(',');
  app.add_flag("--auto", o.auto_roles,
               "those with prefill workers once more, with roles that follow the load "
               "(scheduler.roles: auto)");
  app.add_option("--chunks", o.chunks, "prompt tokens of a step to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--trace", o.trace,
                 "the load: JSON lines with timestamp (ms), input_length, output_length, and "
                 "hash_ids for prompts that begin alike");
  app.add_option("--rate", o.rate, "or: so many requests a second (Poisson)")
      ->check(CLI::Range(0.001, 1e6));
  app.add_option("--requests", o.requests, "how many")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option(
         "--input-length", o.input,
         "tokens of a prompt: N, uniform:LOW:HIGH, exponential:MEAN or lognormal:MEDIAN:SIGMA")
      ->capture_default_str();
  app.add_option("--output-length", o.output, "likewise of an answer")->capture_default_str();
  app.add_option("--seed", o.seed, "of arrivals and lengths")->capture_default_str();
  app.add_option("--write-trace", o.write_trace,
                 "write the load to this file (baton-bench-client --trace)");
  app.add_option("--ttft-slo", o.ttft_s, "seconds within which the first token must come")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  app.add_option("--tpot-slo", o.gap_s,
                 "seconds that 99% of a request's gaps between tokens may last")
      ->check(CLI::Range(0.0001, 3600.0))
      ->capture_default_str();
  app.add_option("--pool-blocks", o.pool_blocks, "blocks of a worker's KV pool; 0: as measured")
      ->check(CLI::Range(0, 1 << 26))
      ->capture_default_str();
  app.add_option("--config", o.config,
                 "configuration whose scheduler settings hold for everything else")
      ->check(CLI::ExistingFile);
  app.add_option("--for", o.entry, "which of the configuration's models is planned for");
  app.add_option("--jobs", o.jobs, "threads; 0: the cores")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option("--json", o.json, "write the table to this file");
  app.add_option("--out", o.out, "write the best configuration to this file");
  app.set_version_flag("--version", "baton-plan " BATON_VERSION " (" BATON_COMMIT ")");
  const baton::SpelledArguments spelled(argc, argv, '_', '-');
  CLI11_PARSE(app, spelled.argc(), spelled.argv());
  return baton::search(o);
}
