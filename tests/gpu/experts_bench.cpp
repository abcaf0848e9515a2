// How long a layer's experts take, of models that people run, and how much of their bytes a second
// is read: every path beside the others. Runs with BATON_GPU_BENCH=1 only. Several layers in turns,
// so that no cache holds their weights; the router's product and norms are not part of it.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "tests/gpu/experts_fixture.h"
#include "workers/cpu/experts.h"
#include "workers/cuda/layer/experts_ring.h"

namespace baton::cuda {
namespace {

struct Model {
  const char* name;
  ExpertShape shape;
  ExpertFormat format;
  bool biased;
};

const Model kModels[] = {
    {"gpt-oss-20b, MXFP4", {32, 4, 2880, 2880, true}, ExpertFormat::mxfp4, true},
    {"gpt-oss-20b, bf16", {32, 4, 2880, 2880, true}, ExpertFormat::bf16, true},
    {"Qwen3-30B-A3B, bf16", {128, 8, 2048, 768, true}, ExpertFormat::bf16, false},
    {"Qwen3-30B-A3B, FP8", {128, 8, 2048, 768, true}, ExpertFormat::fp8, false},
    {"Qwen3-30B-A3B, int4", {128, 8, 2048, 768, true}, ExpertFormat::int4, false},
};
constexpr int kLayers = 3;
constexpr int kMostRows = 2048;

class ExpertsBench : public DeviceTest {};

/// Weights of some layers, random ones, and rows.
struct Bench {
  const Model& model;
  std::vector<std::unique_ptr<Device<std::byte>>> gate_up, down;
  std::vector<float> logits;
  Device<float> device_logits, up_bias, down_bias, router_bias;
  Device<Bf16> normed, x;
  Device<std::byte> workspace;

  explicit Bench(const Model& m)
      : model(m),
        logits(random_logits(kMostRows, m.shape.count, 1)),
        device_logits(logits),
        up_bias(std::vector<float>(size(m.shape.count, 2 * m.shape.intermediate), 0.1F)),
        down_bias(std::vector<float>(size(m.shape.count, m.shape.hidden), 0.1F)),
        router_bias(std::vector<float>(at(m.shape.count), 0.0F)),
        normed(random_bf16(size(kMostRows, m.shape.hidden), 1.0F, 2)),
        x(random_bf16(size(kMostRows, m.shape.hidden), 1.0F, 3)),
        workspace(experts_workspace_bytes(m.shape, kMostRows)) {
    const ExpertShape& s = m.shape;
    for (int i = 0; i < kLayers; ++i) {
      gate_up.push_back(filled(2 * s.intermediate, s.hidden));
      down.push_back(filled(s.hidden, s.intermediate));
    }
  }
  std::unique_ptr<Device<std::byte>> filled(int out, int in) const {
    const std::size_t bytes = at(model.shape.count) * expert_bytes(model.format, out, in);
    auto memory = std::make_unique<Device<std::byte>>(bytes);
    fill_experts(model.format, memory->get(), bytes);
    cudaDeviceSynchronize();
    return memory;
  }
  ExpertCall call(int layer, int rows, ExpertPath path) const {
    ExpertCall c;
    c.shape = model.shape;
    c.rows = rows;
    c.normed = normed.get();
    c.logits = device_logits.get();
    c.gate_up = {model.format, gate_up[at(layer % kLayers)]->get()};
    c.down = {model.format, down[at(layer % kLayers)]->get()};
    c.x = x.get();
    c.workspace = workspace.get();
    c.path = path;
    if (model.biased) {
      c.rule.act = {Gate::clamped, true, 7.0F, 1.702F};
      c.rule.up_bias = up_bias.get();
      c.rule.down_bias = down_bias.get();
      c.rule.router_bias = router_bias.get();
    }
    return c;
  }
  /// Of the experts that the first rows take.
  double bytes(int rows) const {
    const ExpertShape& s = model.shape;
    cpu::ExpertPlan plan;
    const std::vector<float> some(
        logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(size(rows, s.count)));
    plan.make(softmax(some, s.count), {.experts = s.count, .active = s.active, .normalise = true});
    return static_cast<double>(plan.groups().size()) *
           static_cast<double>(expert_bytes(model.format, 2 * s.intermediate, s.hidden) +
                               expert_bytes(model.format, s.hidden, s.intermediate));
  }
};

TEST_F(ExpertsBench, ALayer) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  for (const Model& model : kModels) {
    const Bench b(model);
    for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
      for (const auto& [path, name] :
           {std::pair{ExpertPath::pieces, "pieces"}, std::pair{ExpertPath::stream, "stream"},
            std::pair{ExpertPath::few, "few"}, std::pair{ExpertPath::wide, "wide"}}) {
        if (path == ExpertPath::few && !few_experts_fit(b.call(0, rows, path))) continue;
        if (path == ExpertPath::stream && rows > 512) continue;
        if (path == ExpertPath::wide && rows < 32) continue;
        const ExpertPath which = path;
        const double us = graph_us(12, [&](int i) { experts(b.call(i, rows, which), stream_); });
        std::printf("%-20s %5d rows %-7s %8.1f us  %5.2f TB/s  %6.1f TFLOP/s\n", model.name, rows,
                    name, us, b.bytes(rows) / us * 1e-6,
                    6.0 * rows * model.shape.active * model.shape.hidden *
                        model.shape.intermediate / us * 1e-6);
      }
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace baton::cuda
