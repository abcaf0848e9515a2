// The linear layers of a decode step alone: each shape and row count, and all of a model's chained
// in one graph, as a step chains them. For docs/performance.md and for whoever changes a kernel.
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "workers/cuda/linear/linear.h"

namespace {

using namespace baton::cuda;
using Clock = std::chrono::steady_clock;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct ModelShape {
  const char* name;
  int layers, hidden, qkv, heads_out, intermediate, vocab;
};
constexpr ModelShape kModels[] = {{"llama-3-8b", 32, 4096, 6144, 4096, 14336, 128256},
                                  {"qwen3-0.6b", 28, 1024, 4096, 2048, 3072, 151936}};

struct Kind {
  const char* name;
  int out, in;
  LinearOutput output;
  bool norm;
  std::vector<LinearWeight> weights;
};

/// Device memory handed out in order and given back at the end; full of random bf16 values.
class Arena {
 public:
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&base_, bytes));
    std::vector<std::uint16_t> noise(32 << 20);
    std::minstd_rand random(7);
    for (auto& v : noise) {  // magnitudes 2^-7 .. 2^-5, both signs
      const auto bits = static_cast<std::uint32_t>(random());
      v = static_cast<std::uint16_t>((bits & 0x80FF) + (120U << 7));
    }
    std::size_t filled = std::min(bytes, noise.size() * 2);
    check(cudaMemcpy(base_, noise.data(), filled, cudaMemcpyHostToDevice));
    while (filled < bytes) {
      const std::size_t n = std::min(filled, bytes - filled);
      check(cudaMemcpy(base_ + filled, base_, n, cudaMemcpyDeviceToDevice));
      filled += n;
    }
  }
  ~Arena() { cudaFree(base_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  template <typename T>
  T* take(std::size_t n) {
    T* p = reinterpret_cast<T*>(base_ + used_);
    used_ += (n * sizeof(T) + 255) / 256 * 256;
    if (used_ > bytes_) throw std::runtime_error("the arena is too small");
    return p;
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_, used_ = 0;
};

class Bench {
 public:
  Bench(const ModelShape& shape, int max_rows, bool deterministic, WeightFormat format, bool json)
      : shape_(shape),
        json_(json),
        max_rows_(max_rows),
        format_(format),
        dequantized_bytes_(
            format == WeightFormat::bf16 ? 0 : 4 * size(shape.intermediate) * size(shape.hidden)),
        workspace_bytes_(Linears::workspace_bytes(max_rows, 2 * shape.intermediate) +
                         dequantized_bytes_),
        arena_(weight_bytes() + workspace_bytes_ + state_bytes()) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
    kinds_ = {{"qkv", shape.qkv, shape.hidden, LinearOutput::bf16, true, {}},
              {"o", shape.hidden, shape.heads_out, LinearOutput::residual, false, {}},
              {"gate_up", 2 * shape.intermediate, shape.hidden, LinearOutput::silu_mul, true, {}},
              {"down", shape.hidden, shape.intermediate, LinearOutput::residual, false, {}},
              {"lm_head", shape.vocab, shape.hidden, LinearOutput::f32, true, {}}};
    for (Kind& kind : kinds_) {
      for (int l = 0; l < (kind.output == LinearOutput::f32 ? 1 : shape.layers); ++l) {
        kind.weights.push_back(make_weight(kind));
      }
    }
    linears_ = std::make_unique<Linears>(
        Linears::Options{workspace_bytes_, max_rows, deterministic, dequantized_bytes_, 0},
        arena_.take<std::byte>(workspace_bytes_));
    const std::size_t rows = size(max_rows);
    norm_ = arena_.take<Bf16>(size(std::max(shape.hidden, shape.intermediate)));
    normed_ = arena_.take<Bf16>(rows * size(shape.hidden));
    x_ = arena_.take<Bf16>(rows * size(shape.hidden));
    wide_ = arena_.take<Bf16>(rows * size(std::max(shape.qkv, shape.intermediate)));
    logits_ = arena_.take<float>(std::min<std::size_t>(rows, 256) * size(shape.vocab));
    scratch_bytes_ = scratch_bytes();
    scratch_ = arena_.take<std::byte>(scratch_bytes_);
  }
  ~Bench() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  void tune() {
    const auto start = Clock::now();
    for (const Kind& kind : kinds_) {
      linears_->tune(kind.weights.data(), static_cast<int>(kind.weights.size()), kind.output,
                     scratch_, scratch_bytes_, stream_);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (json_) {
      std::printf("{\"model\": \"%s\", \"tune_seconds\": %.3f}\n", shape_.name, seconds);
    } else {
      std::printf("%s, tuned in %.2f s\n%s", shape_.name, seconds, linears_->report().c_str());
    }
  }

  /// All linears of one step; lm_head over all rows up to 256, over one for a prompt.
  void step(int rows, bool norms) {
    const int logit_rows = rows > 256 ? 1 : rows;
    const double us = time([&] {
      for (int l = 0; l < shape_.layers; ++l) {
        for (std::size_t k = 0; k + 1 < kinds_.size(); ++k) call(kinds_[k], l, rows, norms);
      }
      call(kinds_.back(), 0, logit_rows, norms);
    });
    double bytes = 0;
    for (const Kind& kind : kinds_)
      bytes += static_cast<double>(kind.weights.size()) * bytes_of(kind);
    if (json_) {
      std::printf("{\"model\": \"%s\", \"rows\": %d, \"norms\": %s, \"ms\": %.4f}\n", shape_.name,
                  rows, norms ? "true" : "false", us / 1e3);
    } else {
      std::printf("%s %4d rows%s: %.3f ms, %.0f GB/s\n", shape_.name, rows,
                  norms ? " with norms" : "", us / 1e3, bytes / us / 1e3);
    }
    std::fflush(stdout);
  }

  /// One kind of linear over all layers.
  void kind(std::size_t k, int rows) {
    const Kind& it = kinds_[k];
    const int n = std::max<int>(4, static_cast<int>(it.weights.size()));
    const double us = time([&] {
                        for (int i = 0; i < n; ++i)
                          call(it, i % static_cast<int>(it.weights.size()), rows, false);
                      }) /
                      n;
    const double bytes = bytes_of(it);
    if (json_) {
      std::printf("{\"model\": \"%s\", \"linear\": \"%s\", \"rows\": %d, \"us\": %.2f}\n",
                  shape_.name, it.name, rows, us);
    } else {
      std::printf("  %-8s %4d rows: %7.1f us %5.0f GB/s\n", it.name, rows, us, bytes / us / 1e3);
    }
  }
  std::size_t kinds() const { return kinds_.size(); }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }

  /// Groups of 128 inputs (int4) or of 32 (int8: Q8_0), one scale an output (fp8); lm_head stays
  /// bf16, as quantisers leave it.
  LinearWeight make_weight(const Kind& kind) {
    if (format_ == WeightFormat::bf16 || kind.output == LinearOutput::f32) {
      return {arena_.take<Bf16>(size(kind.out) * size(kind.in)), kind.out, kind.in};
    }
    LinearWeight w{nullptr, kind.out, kind.in};
    w.quantized.format = format_;
    if (format_ == WeightFormat::int4) {
      w.quantized.groups = kind.in / 128;
      w.quantized.group_shift = 7;
    }
    if (format_ == WeightFormat::int8) {
      w.quantized.groups = kind.in / 32;
      w.quantized.group_shift = 5;
    }
    w.quantized.words = arena_.take<std::uint32_t>(weight_words(format_, kind.out, kind.in));
    w.quantized.scales = arena_.take<std::uint32_t>(scale_words(kind.out, w.quantized.groups));
    return w;
  }
  static double bytes_of(const Kind& kind) {
    const QuantizedWeight& q = kind.weights.front().quantized;
    if (q.format == WeightFormat::bf16) return 2.0 * kind.out * kind.in;
    return 4.0 * static_cast<double>(weight_words(q.format, kind.out, kind.in) +
                                     scale_words(kind.out, q.groups));
  }

  /// In bf16: others take less.
  std::size_t weight_bytes() const {
    const auto& s = shape_;
    const std::size_t layer =
        size(s.hidden) * (size(s.qkv) + size(s.heads_out) + 3 * size(s.intermediate));
    return 2 * (size(s.layers) * layer + size(s.vocab) * size(s.hidden));
  }
  std::size_t scratch_bytes() const {
    // As Linears::tune() lays it out: x twice, then y.
    const std::size_t logits = 256 * (size(shape_.vocab) * 4 + 2 * size(shape_.hidden) * 2);
    return std::max(logits,
                    size(max_rows_) * (size(shape_.hidden) + 2 * size(shape_.intermediate)) * 2) +
           4096;
  }
  std::size_t state_bytes() const {
    const auto& s = shape_;
    return size(max_rows_) * 2 * (3 * size(s.hidden) + size(s.qkv) + size(s.intermediate)) +
           256 * size(s.vocab) * 4 + scratch_bytes() + (4 << 20);
  }

  void call(const Kind& kind, int layer, int rows, bool norms) {
    const bool narrow_in = kind.output != LinearOutput::residual;
    const Linears::Norm norm{norm_, 1e-6F, normed_};
    void* y = kind.output == LinearOutput::f32 ? static_cast<void*>(logits_)
              : narrow_in                      ? static_cast<void*>(wide_)
                                               : static_cast<void*>(x_);
    linears_->run(narrow_in ? x_ : wide_, rows, kind.weights[size(layer)], kind.output, y, stream_,
                  norms && kind.norm ? &norm : nullptr);
  }

  /// Median microseconds of a replay.
  double time(const std::function<void()>& queue) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    queue();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t run = nullptr;
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&run, graph, 0));
    std::vector<float> times;
    for (int i = 0; i < 12; ++i) {
      check(cudaEventRecord(begin_, stream_));
      check(cudaGraphLaunch(run, stream_));
      check(cudaEventRecord(end_, stream_));
      check(cudaEventSynchronize(end_));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_));
      if (i >= 2) times.push_back(ms);
    }
    check(cudaGraphExecDestroy(run));
    check(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return 1e3 * times[times.size() / 2];
  }

  ModelShape shape_;
  bool json_;
  int max_rows_;
  WeightFormat format_;
  std::size_t dequantized_bytes_;
  std::size_t workspace_bytes_;
  Arena arena_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<Kind> kinds_;
  std::unique_ptr<Linears> linears_;
  Bf16 *norm_ = nullptr, *normed_ = nullptr, *x_ = nullptr, *wide_ = nullptr;
  float* logits_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
};

int run(int argc, char** argv) {
  CLI::App app{"Measures the linear layers of a model's step on the GPU, weights random."};
  std::vector<int> rows = {1, 8, 32, 64, 128, 256};
  std::string model = "all";
  bool json = false;
  bool each = false;
  bool deterministic = false;
  std::string weights = "bf16";
  app.add_option("--rows", rows, "Row counts")->delimiter(',');
  app.add_option("--model", model, "Model")
      ->check(CLI::IsMember({"all", "llama-3-8b", "qwen3-0.6b"}));
  app.add_option("--weights", weights, "How the layers' weights are stored")
      ->check(CLI::IsMember({"bf16", "int4", "int8", "fp8"}));
  app.add_flag("--each", each, "Every kind of linear alone, too");
  app.add_flag("--deterministic", deterministic, "The deterministic mode");
  app.add_flag("--json", json, "One JSON object a line");
  CLI11_PARSE(app, argc, argv);
  const int most = *std::max_element(rows.begin(), rows.end());
  const WeightFormat format = weights == "int4"   ? WeightFormat::int4
                              : weights == "int8" ? WeightFormat::int8
                              : weights == "fp8"  ? WeightFormat::fp8
                                                  : WeightFormat::bf16;
  for (const ModelShape& shape : kModels) {
    if (model != "all" && model != shape.name) continue;
    Bench bench(shape, most, deterministic, format, json);
    bench.tune();
    for (const int n : rows) {
      bench.step(n, false);
      bench.step(n, true);
      for (std::size_t k = 0; each && k < bench.kinds(); ++k) {
        if (k + 1 < bench.kinds() || n <= 256) bench.kind(k, n);
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "baton-bench-gpu-linear: " << error.what() << "\n";
    return 1;
  }
}
