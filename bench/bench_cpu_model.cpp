// Tokens a second of the CPU model alone: no queue, no scheduler, no sampler. For
// docs/performance.md and for whoever changes a kernel.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "baton_version.h"
#include "bench/random_model.h"
#include "workers/model/llama.h"

namespace {

using namespace baton;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A pool big enough for `rows` sequences of `tokens` tokens each, with their block tables.
struct Pool {
  std::vector<float> memory;
  KvPoolView view;
  std::vector<std::vector<BlockId>> tables;

  Pool(const LlamaModel& model, int rows, int tokens) {
    const auto each = static_cast<std::uint32_t>((tokens + 15) / 16);
    view.geometry = model.kv_geometry(each * static_cast<std::uint32_t>(rows));
    memory.resize(*kv_pool_bytes(view.geometry) / sizeof(float) + 16);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    view.base = reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
    for (int r = 0; r < rows; ++r) {
      std::vector<BlockId> table(each);
      std::iota(table.begin(), table.end(), each * static_cast<std::uint32_t>(r));
      tables.push_back(std::move(table));
    }
  }
};

std::vector<Token> tokens_of(int n, int vocab) {
  std::vector<Token> tokens(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) tokens[static_cast<std::size_t>(i)] = (i * 7919 + 13) % vocab;
  return tokens;
}

struct Line {
  double median_ms, best_ms;
};

Line summary(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {1e3 * seconds[seconds.size() / 2], 1e3 * seconds.front()};
}

/// `steps` decode steps of `rows` sequences that start with `context` tokens.
void bench_decode(LlamaModel& model, int rows, int context, int steps) {
  Pool pool(model, rows, context + steps);
  const std::vector<Token> tokens = tokens_of(context + steps, model.config().vocab);
  for (int r = 0; r < rows; ++r) {
    const StepRow prompt{{tokens.data(), static_cast<std::size_t>(context)},
                         0,
                         pool.tables[static_cast<std::size_t>(r)],
                         LogitsWanted::none};
    model.forward({&prompt, 1}, pool.view);
  }
  std::vector<double> seconds;
  std::vector<StepRow> step(static_cast<std::size_t>(rows));
  for (int i = 0; i < steps; ++i) {
    for (std::size_t r = 0; r < step.size(); ++r) {
      step[r] = {{tokens.data() + context + i, 1}, context + i, pool.tables[r], LogitsWanted::last};
    }
    const Clock::time_point start = Clock::now();
    model.forward(step, pool.view);
    seconds.push_back(seconds_since(start));
  }
  const Line line = summary(seconds);
  std::printf("decode   %4d rows at %5d tokens: %8.3f ms a step (best %.3f), %9.0f tokens/s\n",
              rows, context, line.median_ms, line.best_ms, rows * 1e3 / line.median_ms);
}

void bench_prefill(LlamaModel& model, int prompt, int chunk) {
  Pool pool(model, 1, prompt);
  const std::vector<Token> tokens = tokens_of(prompt, model.config().vocab);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const Clock::time_point start = Clock::now();
    for (int at = 0; at < prompt; at += chunk) {
      const int n = std::min(chunk, prompt - at);
      const StepRow row{{tokens.data() + at, static_cast<std::size_t>(n)},
                        at,
                        pool.tables[0],
                        at + n == prompt ? LogitsWanted::last : LogitsWanted::none};
      model.forward({&row, 1}, pool.view);
    }
    seconds.push_back(seconds_since(start));
  }
  const Line line = summary(seconds);
  std::printf("prefill %5d tokens, chunks of %4d: %8.2f ms (best %.2f), %9.0f tokens/s\n", prompt,
              chunk, line.median_ms, line.best_ms, prompt * 1e3 / line.median_ms);
}

int run(int argc, char** argv) {
  CLI::App app{"Measures the forward pass of a model folder, or of a random model, on the CPU."};
  std::string folder;
  RandomModelShape shape;
  int threads = 2;
  int steps = 200;
  std::string isa = "best";
  std::string only = "all";
  app.add_option("--model", folder, "Model folder; without it a random model of the sizes below");
  app.add_option("--threads", threads, "Threads")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--steps", steps, "Decode steps to time")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--isa", isa, "Kernels")
      ->check(CLI::IsMember({"best", "avx2", "avx512"}))
      ->capture_default_str();
  app.add_option("--only", only, "Part to run")
      ->check(CLI::IsMember({"all", "decode1", "decode32", "prefill"}))
      ->capture_default_str();
  app.add_option("--hidden", shape.hidden)->capture_default_str();
  app.add_option("--layers", shape.layers)->capture_default_str();
  app.add_option("--heads", shape.heads)->capture_default_str();
  app.add_option("--kv-heads", shape.kv_heads)->capture_default_str();
  app.add_option("--head-dim", shape.head_dim)->capture_default_str();
  app.add_option("--intermediate", shape.intermediate)->capture_default_str();
  app.add_option("--vocab", shape.vocab)->capture_default_str();
  app.set_version_flag("--version", "baton-bench-model " BATON_VERSION " (" BATON_COMMIT ")");
  CLI11_PARSE(app, argc, argv);

  std::string made;
  if (folder.empty()) {
    std::string name = (std::filesystem::temp_directory_path() / "baton-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    folder = made = name;
    write_random_model(folder, shape, 1);
  }
  const cpu::Isa wanted = isa == "avx2"     ? cpu::Isa::avx2
                          : isa == "avx512" ? cpu::Isa::avx512
                                            : cpu::Isa::best;
  const Clock::time_point start = Clock::now();
  const auto model = LlamaModel::load(folder, {threads, wanted});
  std::printf("%s, %d threads, %.1f MB of weights, loaded in %.2f s\n", model->isa_name(), threads,
              static_cast<double>(model->weight_bytes()) / 1e6, seconds_since(start));
  if (!made.empty()) std::filesystem::remove_all(made);
  const auto wants = [&](const char* part) { return only == "all" || only == part; };
  if (wants("decode1")) {
    for (const int context : {64, 2048}) bench_decode(*model, 1, context, steps);
  }
  if (wants("decode32")) {
    for (const int context : {64, 512}) bench_decode(*model, 32, context, steps);
  }
  if (wants("prefill")) {
    bench_prefill(*model, 64, 64);
    bench_prefill(*model, 2048, 512);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "baton-bench-model: " << error.what() << "\n";
    return 1;
  }
}
