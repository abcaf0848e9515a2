// How long a layer of experts takes as one kernel, of models that people run, and how much of its
// bytes a second is read. Runs with BATON_GPU_BENCH=1 only. Several layers in turns, so that no
// cache holds their weights.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <set>
#include <vector>

#include "tests/gpu/experts_fixture.h"
#include "workers/cuda/device.h"
#include "workers/cuda/layer/experts_layer.h"

namespace baton::cuda {
namespace {

struct Model {
  const char* name;
  ExpertShape shape;
  ExpertFormat format;
  int attended, next, shared;
};

const Model kModels[] = {
    {"Qwen3-30B-A3B", {128, 8, 2048, 768, true}, ExpertFormat::bf16, 4096, 5120, 0},
    {"... its experts in FP8", {128, 8, 2048, 768, true}, ExpertFormat::fp8, 4096, 5120, 0},
    {"... in int4", {128, 8, 2048, 768, true}, ExpertFormat::int4, 4096, 5120, 0},
    {"gpt-oss-20b", {32, 4, 2880, 2880, true}, ExpertFormat::mxfp4, 4096, 5120, 0},
    {"DeepSeek-V2-Lite", {64, 6, 2048, 1408, false}, ExpertFormat::bf16, 2048, 3648, 2816},
};
constexpr int kLayers = 4;
constexpr int kMostRows = 8;

struct Weights {
  Device<std::byte> gate_up, down;
  Device<Bf16> o, router, next, shared_up, shared_down, gain;

  static std::size_t bytes(const Model& m, int out, int in) {
    return at(m.shape.count) * expert_bytes(m.format, out, in);
  }
  explicit Weights(const Model& m)
      : gate_up(bytes(m, 2 * m.shape.intermediate, m.shape.hidden)),
        down(bytes(m, m.shape.hidden, m.shape.intermediate)),
        o(size(m.shape.hidden, m.attended)),
        router(size(m.shape.count, m.shape.hidden)),
        next(size(m.next, m.shape.hidden)),
        shared_up(size(2 * m.shared, m.shape.hidden) + 1),
        shared_down(size(m.shape.hidden, m.shared) + 1),
        gain(at(m.shape.hidden)) {
    fill_experts(m.format, gate_up.get(), bytes(m, 2 * m.shape.intermediate, m.shape.hidden));
    fill_experts(m.format, down.get(), bytes(m, m.shape.hidden, m.shape.intermediate));
    fill_normal(o.get(), size(m.shape.hidden, m.attended), 0.02F, 2, nullptr);
    fill_normal(router.get(), size(m.shape.count, m.shape.hidden), 0.02F, 3, nullptr);
    fill_normal(next.get(), size(m.next, m.shape.hidden), 0.02F, 4, nullptr);
    fill_normal(shared_up.get(), size(2 * m.shared, m.shape.hidden), 0.02F, 5, nullptr);
    fill_normal(shared_down.get(), size(m.shape.hidden, m.shared), 0.02F, 6, nullptr);
    fill_normal(gain.get(), at(m.shape.hidden), 1.0F, 7, nullptr);
    cudaDeviceSynchronize();
  }
};

struct Bench {
  const Model& model;
  std::vector<std::unique_ptr<Weights>> weights;
  Device<Bf16> x, attended, next, shared;
  Device<float> logits;
  Device<std::byte> workspace, states;

  explicit Bench(const Model& m)
      : model(m),
        x(random_bf16(size(kMostRows, m.shape.hidden), 1.0F, 8)),
        attended(random_bf16(size(kMostRows, m.attended), 1.0F, 9)),
        next(size(kMostRows, m.next)),
        shared(size(kMostRows, m.shared) + 1),
        logits(size(kMostRows, m.shape.count)),
        workspace(experts_workspace_bytes(m.shape, kMostRows)),
        states(std::vector<std::byte>(kLayers * expert_layer_state_bytes())) {
    for (int i = 0; i < kLayers; ++i) weights.push_back(std::make_unique<Weights>(m));
  }
  ExpertLayerCall call(int layer, int rows) const {
    const Weights& w = *weights[at(layer % kLayers)];
    const int hidden = model.shape.hidden;
    ExpertLayerCall c;
    c.experts.shape = model.shape;
    c.experts.rows = rows;
    c.experts.gate_up = {model.format, w.gate_up.get()};
    c.experts.down = {model.format, w.down.get()};
    c.experts.x = x.get();
    c.experts.workspace = workspace.get();
    c.logits = logits.get();
    c.o = {w.o.get(), hidden, model.attended};
    c.attended = attended.get();
    c.norm = c.next_norm = {w.gain.get(), nullptr, 1e-6F};
    c.router = {w.router.get(), model.shape.count, hidden};
    if (model.shared > 0) {
      c.shared_gate_up = {w.shared_up.get(), 2 * model.shared, hidden};
      c.shared_down = {w.shared_down.get(), hidden, model.shared};
      c.shared = shared.get();
    }
    c.next_w = {w.next.get(), model.next, hidden};
    c.next = next.get();
    return c;
  }
  void run(int i, int rows, Stream stream) const {
    const auto state = [&](int layer) {
      return states.get() + at(layer % kLayers) * expert_layer_state_bytes();
    };
    expert_layer(call(i, rows), state(i), state(i + 1), stream);
  }
  /// Of all weights, with the experts that the last run's rows took.
  double bytes(int rows) const {
    const ExpertShape& s = model.shape;
    const std::vector<float> all = logits.read();
    std::set<int> taken;
    for (int row = 0; row < rows; ++row) {
      std::vector<std::pair<float, int>> order;
      for (int e = 0; e < s.count; ++e) order.emplace_back(-all[size(row, s.count) + at(e)], e);
      std::sort(order.begin(), order.end());
      for (int j = 0; j < s.active; ++j) taken.insert(order[at(j)].second);
    }
    const auto one = expert_bytes(model.format, 2 * s.intermediate, s.hidden) +
                     expert_bytes(model.format, s.hidden, s.intermediate);
    const std::size_t dense = size(s.hidden, model.attended) + size(model.next, s.hidden) +
                              size(s.count, s.hidden) + 3 * size(s.hidden, model.shared);
    return static_cast<double>(taken.size() * one + 2 * dense);
  }
};

class ExpertsLayerBench : public DeviceTest {};

TEST_F(ExpertsLayerBench, ALayer) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  for (const Model& model : kModels) {
    const Bench b(model);
    for (const int rows : {1, 2, 4, 8}) {
      if (expert_layer_rows(b.call(0, 1)) < rows) continue;
      const double us = graph_us(3 * kLayers, [&](int i) { b.run(i, rows, stream_); });
      std::printf("%-24s %d rows %7.1f us  %5.2f TB/s\n", model.name, rows, us,
                  b.bytes(rows) / us * 1e-6);
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace baton::cuda
