// Drives a worker's device directly, without queue, scheduler or HTTP: for measurements of the step
// alone (--rows, --prompts) and for comparisons of its tokens with a reference (--generate).
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "baton_version.h"
#include "bench/bench_worker_driver.h"
#include "bench/bench_worker_dump.h"
#include "configs/config.h"
#include "ipc/process.h"
#include "workers/execute/make_executor.h"

namespace {

using namespace baton;
using bench::Driver;
using bench::Sequence;
using Json = nlohmann::json;

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

std::vector<Token> random_prompt(std::size_t n, std::uint32_t vocab, std::uint32_t seed) {
  std::vector<Token> tokens(n);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (Token& t : tokens) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    t = static_cast<Token>((state >> 33) % vocab);
  }
  return tokens;
}

/// Prompts to their end in chunks, several sequences beside each other where the budget allows.
void prefill(Driver& d, std::vector<Sequence>& sequences, std::size_t budget) {
  std::size_t used = 0;
  for (Sequence& s : sequences) {
    while (s.computed < s.prompt) {
      const std::size_t n = std::min(s.prompt - s.computed, budget - used);
      d.add(s, n);
      used += n;
      if (used == budget || s.computed + n < s.prompt) {
        d.launch();
        used = 0;
      } else {
        break;
      }
    }
  }
  if (used > 0) d.launch();
  d.drain();
}

Json bench_decode(Driver& d, std::size_t rows, std::size_t context, std::size_t steps,
                  std::size_t budget, const SamplingParams& sampling) {
  d.reset();
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < rows; ++i) {
    sequences.push_back(
        d.make(random_prompt(context, d.vocab, static_cast<std::uint32_t>(i)), sampling));
  }
  prefill(d, sequences, budget);
  d.step_ms.clear();
  const TimeNs begin = now_ns();
  for (std::size_t step = 0; step < steps; ++step) {
    for (Sequence& s : sequences) d.add(s, 1);
    d.launch();
  }
  d.drain();
  const double wall = 1e-6 * static_cast<double>(now_ns() - begin);
  std::vector<double> warm(d.step_ms.begin() + static_cast<std::ptrdiff_t>(steps / 4),
                           d.step_ms.end());
  const double ms = median(warm);
  std::printf("%6zu rows at %6zu tokens: step %8.3f ms (mean %8.3f), %9.0f tokens/s\n", rows,
              context, ms, wall / static_cast<double>(steps), 1e3 * static_cast<double>(rows) / ms);
  std::fflush(stdout);
  return {{"rows", rows},
          {"context", context},
          {"step_ms", ms},
          {"mean_ms", wall / static_cast<double>(steps)}};
}

Json bench_prefill(Driver& d, std::size_t length, std::size_t budget, int repeats) {
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    d.reset();
    std::vector<Sequence> one;
    one.push_back(
        d.make(random_prompt(length, d.vocab, 77U + static_cast<std::uint32_t>(i)), greedy));
    const TimeNs begin = now_ns();
    prefill(d, one, budget);
    ms.push_back(1e-6 * static_cast<double>(now_ns() - begin));
  }
  std::printf("prompt of %6zu tokens: %8.3f ms, %9.0f tokens/s\n", length, median(ms),
              1e3 * static_cast<double>(length) / median(ms));
  std::fflush(stdout);
  return {{"prompt", length}, {"ms", median(ms)}};
}

/// nano-vllm's benchmark: n requests at once, prompts and answers of 100 to 1,024 tokens each.
/// Every step takes the decoding sequences and fills up with prompts.
Json bench_mix(Driver& d, std::size_t n, std::size_t budget, std::size_t max_running) {
  d.reset();
  SamplingParams greedy;
  greedy.temperature = 0;
  std::mt19937 random(0);
  const auto length = [&] { return 100 + random() % 925; };
  std::vector<Sequence> all;
  std::vector<std::size_t> wanted;
  std::size_t total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    all.push_back(d.make(random_prompt(length(), d.vocab, static_cast<std::uint32_t>(i)), greedy));
    wanted.push_back(length());
    total += wanted.back();
  }
  const TimeNs begin = now_ns();
  std::size_t first = 0;  // all before it have ended
  while (first < n) {
    std::size_t used = 0;
    std::size_t running = 0;
    for (std::size_t i = first; i < n; ++i) {
      Sequence& s = all[i];
      if (s.tokens.size() - s.prompt >= wanted[i]) {
        if (i == first) ++first;
        continue;
      }
      if (running == max_running || used == budget) break;
      const std::size_t left = s.computed < s.prompt ? s.prompt - s.computed : 1;
      const std::size_t take = std::min(left, budget - used);
      d.add(s, take);
      used += take;
      ++running;
    }
    if (used > 0) d.launch();
  }
  d.drain();
  const double seconds = 1e-9 * static_cast<double>(now_ns() - begin);
  std::printf("%zu requests of 100..1024 tokens in and out: %.2f s, %.0f output tokens/s\n", n,
              seconds, static_cast<double>(total) / seconds);
  std::fflush(stdout);
  return {{"requests", n},
          {"seconds", seconds},
          {"tokens_per_s", static_cast<double>(total) / seconds}};
}

/// generate(), and a file of activations for each prompt. Logits, and the last layer's rows, of
/// every token.
Json dumped(Driver& driver, Json task, const std::string& file_prefix) {
  bench::ActivationFile file;
  task["prompt_logprobs"] = 0;
  driver.dump([&](const std::string& part, const float* values, int rows, int columns) {
    file.add(part, values, rows, columns);
  });
  std::size_t prompt = 0;
  Json answer = bench::generate(driver, task, [&](const Sequence& s) {
    file.write(file_prefix + "-" + std::to_string(prompt++) + ".safetensors", s.tokens);
  });
  driver.dump({});
  return answer;
}

/// The processes of the ranks other than 0, which is this one, and a run directory for them all.
class OtherRanks {
 public:
  explicit OtherRanks(Config& config) {
    if (config.self.ranks == 1) return;
    folder_ = (std::filesystem::temp_directory_path() / "baton-bench-XXXXXX").string();
    if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder in /tmp");
    config.run_dir = folder_;
    for (std::uint32_t rank = 1; rank < config.self.ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid < 0) throw std::runtime_error("cannot fork");
      if (pid == 0) ::_exit(life_of(config, rank));
      pids_.push_back(pid);
    }
  }
  ~OtherRanks() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

 private:
  static int life_of(Config config, std::uint32_t rank) {
    config.self.rank = rank;
    spdlog::set_level(spdlog::level::err);
    SignalFd signals;
    const auto code = run_rank(config, signals);
    if (!code.ok()) std::fprintf(stderr, "rank %u: %s\n", rank, code.status().message().c_str());
    return code.ok() ? code.value() : kExitUsage;
  }

  std::string folder_;
  std::vector<pid_t> pids_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Drives a worker's device directly: times of steps, or tokens of given prompts"};
  Config config;
  config.run_dir = "/tmp";
  config.self.gpu = "0";
  std::vector<std::size_t> rows;
  std::vector<std::size_t> prompts;
  std::size_t context = 512;
  std::size_t steps = 64;
  std::uint32_t pool_blocks = 0;
  std::string fields = "{}";
  std::string task_file;
  std::string json_file;
  app.add_option("--model", config.model, "model folder")->required();
  app.add_option("--device", config.self.device, "cpu or cuda")->capture_default_str();
  app.add_option("--gpu", config.self.gpu, "number or UUID")->capture_default_str();
  app.add_option("--load-format", config.self.load_format, "auto or dummy")->capture_default_str();
  app.add_option("--activations", config.self.activations, "auto, exact or int8")
      ->capture_default_str();
  app.add_flag("--deterministic", config.self.deterministic, "no token depends on its neighbours");
  app.add_option("--layer-kernel", config.self.layer_kernel, "auto, always or never")
      ->capture_default_str();
  app.add_option("--memory-fraction", config.self.memory_fraction, "of the GPU")
      ->capture_default_str();
  app.add_option("--threads", config.self.threads, "on CPUs")->capture_default_str();
  app.add_option("--ranks", config.self.ranks, "processes that share the model")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--tokens-per-block", config.self.tokens_per_block, "")->capture_default_str();
  std::uint32_t budget = config.scheduler.token_budget.of(config.self.role);
  app.add_option("--budget", budget, "tokens of a step")->capture_default_str();
  app.add_option("--max-running", config.scheduler.max_running, "rows of a decode step")
      ->capture_default_str();
  app.add_option("--pool-blocks", pool_blocks, "0: by the memory fraction")->capture_default_str();
  app.add_option("--rows", rows, "time decode steps of so many rows each");
  app.add_option("--context", context, "tokens of each row before")->capture_default_str();
  app.add_option("--steps", steps, "decode steps to time")->capture_default_str();
  app.add_option("--sampling", fields, "JSON: sampling fields of those rows, as in --generate")
      ->capture_default_str();
  app.add_option("--prompts", prompts, "time prompts of so many tokens each");
  std::size_t mix = 0;
  app.add_option("--mix", mix, "time so many requests of 100 to 1024 tokens in and out");
  CLI::Option* const generate = app.add_option(
      "--generate", task_file, "JSON file of tasks; their tokens go to stdout as JSON");
  std::string dump_folder;
  app.add_option("--dump", dump_folder,
                 "with --generate: folder (it exists) that gets each prompt's activations, as "
                 "fp32, in TASK-PROMPT.safetensors; prompts run alone")
      ->needs(generate);
  bool verbose = false;
  app.add_flag("--verbose", verbose, "say which kernels were chosen");
  app.add_option("--json", json_file, "write the results there too");
  app.set_version_flag("--version", "baton-bench-worker " BATON_VERSION " (" BATON_COMMIT ")");
  CLI11_PARSE(app, argc, argv);
  try {
    if (verbose) spdlog::set_level(spdlog::level::debug);
    config.self.name = "bench";
    config.scheduler.token_budget = budget;
    const OtherRanks others(config);  // forked: nothing has a thread yet
    const SamplingParams sampling = bench::sampling_of(Json::parse(fields));
    Driver driver(config, pool_blocks);
    if (!task_file.empty()) {
      std::ifstream file(task_file);
      Json results = Json::array();
      for (const Json& task : Json::parse(file)) {
        results.push_back(
            dump_folder.empty()
                ? bench::generate(driver, task)
                : dumped(driver, task, dump_folder + "/" + std::to_string(results.size())));
      }
      std::cout << results.dump() << '\n';
      return 0;
    }
    std::printf("load %.2f s, ready after %.2f s\n", driver.load_s, driver.start_s);
    Json results = {{"load_s", driver.load_s}, {"start_s", driver.start_s}};
    for (const std::size_t n : prompts) {
      results["prefill"].push_back(bench_prefill(driver, n, budget, 5));
    }
    if (mix > 0) {
      results["mix"] = bench_mix(driver, mix, budget, config.scheduler.max_running);
    }
    for (const std::size_t n : rows) {
      results["decode"].push_back(bench_decode(driver, n, context, steps, budget, sampling));
    }
    if (!json_file.empty()) std::ofstream(json_file) << results.dump(1) << '\n';
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "baton-bench-worker: %s\n", e.what());
    return 1;
  }
}
