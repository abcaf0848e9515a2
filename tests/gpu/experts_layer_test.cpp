// A layer of experts as one kernel against sums in fp64 on the host, rounded where the kernel's
// neighbours see numbers: the residual stream, its norm, and what the router says.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "tests/gpu/experts_fixture.h"
#include "workers/cpu/experts.h"
#include "workers/cuda/layer/experts_layer.h"

namespace baton::cuda {
namespace {

using Numbers = std::vector<double>;

/// What a case has of what a layer may have.
struct Case {
  const char* name;
  ExpertShape shape;
  ExpertFormat format = ExpertFormat::bf16;
  int attended = 0;  // inputs of W_o; 0: no W_o
  int next = 0;      // outputs of W_next; 0: none
  int shared = 0;    // what every token takes beside its experts
  bool shared_gate = false;
  bool biased = false;  // as gpt-oss: biases everywhere and clamped gates
  bool sigmoid = false;
  bool wide_norms = false;  // in fp32
};

const Case kCases[] = {
    {"experts alone", {8, 2, 128, 64, true}},
    {"W_o", {8, 2, 192, 128, true}, ExpertFormat::bf16, 320},
    {"next", {8, 2, 128, 64, false}, ExpertFormat::bf16, 0, 200},
    {"Qwen3", {128, 8, 512, 192, true}, ExpertFormat::bf16, 1024, 1280},
    {"Qwen3's sizes", {128, 8, 2048, 768, true}, ExpertFormat::bf16, 4096, 5120},
    {"gpt-oss",
     {32, 4, 576, 288, true},
     ExpertFormat::mxfp4,
     512,
     640,
     0,
     false,
     true,
     false,
     true},
    {"DeepSeek",
     {64, 6, 256, 128, false},
     ExpertFormat::bf16,
     256,
     576,
     256,
     false,
     false,
     false,
     true},
    {"GLM", {128, 8, 320, 64, true}, ExpertFormat::bf16, 384, 448, 64, false, false, true, true},
    {"Qwen2", {60, 4, 256, 64, false}, ExpertFormat::bf16, 256, 384, 320, true},
    {"FP8", {32, 4, 512, 256, true}, ExpertFormat::fp8, 0, 0},
    {"many", {300, 8, 256, 64, true}, ExpertFormat::fp8, 256, 4400},
    {"int4", {32, 4, 512, 256, true}, ExpertFormat::int4, 256, 640},
    {"MXFP4", {8, 2, 128, 96, true}, ExpertFormat::mxfp4, 0, 5304},
    // Several tiles of down a CTA; parts of 56 features, and several of those.
    {"gpt-oss's sizes", {8, 4, 2880, 2880, true}, ExpertFormat::mxfp4, 4096, 7168},
    {"wide", {8, 2, 2304, 64, true}, ExpertFormat::bf16, 64, 17000},
};

/// A matrix in bf16, [out, in], or nothing.
struct Plain {
  std::vector<Bf16> values;
  std::optional<Device<Bf16>> memory;
  LinearWeight weight;

  Plain(int out, int in, float scale, unsigned seed) {
    if (out == 0 || in == 0) return;
    values = random_bf16(size(out, in), scale, seed);
    memory.emplace(values);
    weight = {memory->get(), out, in};
  }
};

double dot(const Bf16* w, const Numbers& v) {
  double sum = 0;
  for (std::size_t k = 0; k < v.size(); ++k) sum += double{value(w[k])} * v[k];
  return sum;
}

struct Layer {
  const Case& of;
  int rows;
  Experts gate_up, down;
  Plain o, router, next, shared_up, shared_down;
  std::vector<Bf16> x, attended;
  std::vector<float> gains[2];  // of both norms
  std::vector<float> o_bias, up_bias, down_bias, router_bias, choice_bias, shared_gate;
  ExpertRule rule;

  Layer(const Case& c, int n)
      : of(c),
        rows(n),
        gate_up(Experts::make(c.format, c.shape.count, 2 * c.shape.intermediate, c.shape.hidden,
                              true, 2)),
        down(
            Experts::make(c.format, c.shape.count, c.shape.hidden, c.shape.intermediate, false, 3)),
        o(c.shape.hidden, c.attended, 0.05F, 4),
        router(c.shape.count, c.shape.hidden, 0.2F, 5),
        next(c.next, c.shape.hidden, 0.1F, 6),
        shared_up(2 * c.shared, c.shape.hidden, 0.1F, 7),
        shared_down(c.shared > 0 ? c.shape.hidden : 0, c.shared, 0.1F, 8),
        x(random_bf16(size(n, c.shape.hidden), 1.0F, 9)),
        attended(random_bf16(size(n, c.attended), 1.0F, 10)) {
    for (unsigned i = 0; i < 2; ++i) {
      for (const Bf16 v : random_bf16(at(c.shape.hidden), 0.5F, 11 + i)) {
        gains[i].push_back(1 + value(v));
      }
      // What both kinds of norms can say.
      for (float& g : gains[i]) g = value(rounded(g));
    }
    if (c.biased) {
      o_bias = random_logits(1, c.shape.hidden, 20);
      up_bias = random_logits(c.shape.count, 2 * c.shape.intermediate, 21);
      down_bias = random_logits(c.shape.count, c.shape.hidden, 22);
      router_bias = random_logits(1, c.shape.count, 23);
      rule.act = {Gate::clamped, true, 2.0F, 1.7F};
    }
    if (c.sigmoid) {
      rule.sigmoid = true;
      rule.scale = 2.5F;
      choice_bias = random_logits(1, c.shape.count, 24);
      for (float& b : choice_bias) b *= 0.05F;
    }
    if (c.shared_gate) shared_gate = random_logits(1, c.shape.hidden, 25);
    for (float& g : shared_gate) g *= 0.05F;
  }

  Numbers normed(const Numbers& v, int which) const {
    double squares = 0;
    for (const double a : v) squares += a * a;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(v.size()) + 1e-6);
    Numbers n(v.size());
    for (std::size_t k = 0; k < v.size(); ++k) {
      n[k] = value(rounded(static_cast<float>(v[k] * factor * gains[which][k])));
    }
    return n;
  }
  double gate(double g, double u) const {
    if (!of.biased) return g / (1 + std::exp(-g)) * u;
    g = std::min(g, 2.0);
    return g / (1 + std::exp(-double{1.7F} * g)) * (std::clamp(u, -2.0, 2.0) + 1);
  }
  Numbers gated(const Bf16* w, int intermediate, const float* bias, const Numbers& n) const {
    Numbers y(at(intermediate));
    for (int i = 0; i < intermediate; ++i) {
      const double g = dot(w + size(i / 8 * 16 + i % 8, of.shape.hidden), n);
      const double u = dot(w + size(i / 8 * 16 + 8 + i % 8, of.shape.hidden), n);
      y[at(i)] = bias == nullptr ? gate(g, u) : gate(g + bias[i], u + bias[intermediate + i]);
    }
    return y;
  }

  struct Expected {
    Numbers x, next;
  };
  Expected expected(int row) const {
    const ExpertShape& s = of.shape;
    Numbers v(at(s.hidden)), a(at(of.attended));
    for (std::size_t k = 0; k < a.size(); ++k) a[k] = value(attended[size(row, of.attended) + k]);
    for (std::size_t k = 0; k < v.size(); ++k) {
      v[k] = value(x[size(row, s.hidden) + k]);
      if (a.empty()) continue;
      v[k] += dot(o.values.data() + k * a.size(), a);
      if (of.biased) v[k] += o_bias[k];
      v[k] = value(rounded(static_cast<float>(v[k])));
    }
    const Numbers n = normed(v, 0);
    std::vector<float> logits(at(s.count));
    for (int e = 0; e < s.count; ++e) {
      logits[at(e)] = static_cast<float>(dot(router.values.data() + size(e, s.hidden), n));
      if (of.biased) logits[at(e)] += router_bias[at(e)];
    }
    cpu::ExpertPlan plan;
    std::vector<float> weights = softmax(logits, s.count);
    if (of.sigmoid) {
      for (int e = 0; e < s.count; ++e) weights[at(e)] = 1 / (1 + std::exp(-logits[at(e)]));
    }
    plan.make(weights, {.experts = s.count,
                        .active = s.active,
                        .normalise = s.normalise,
                        .scale = rule.scale,
                        .bias = of.sigmoid ? choice_bias.data() : nullptr});
    for (const cpu::ExpertPlan::Choice& choice : plan.of_row(0)) {
      const int e = choice.expert;
      const Numbers g =
          gated(gate_up.values.data() + size(e, 2 * s.intermediate) * at(s.hidden), s.intermediate,
                of.biased ? up_bias.data() + size(e, 2 * s.intermediate) : nullptr, n);
      for (int i = 0; i < s.hidden; ++i) {
        const Bf16* w = down.values.data() + (size(e, s.hidden) + at(i)) * at(s.intermediate);
        const double bias = of.biased ? down_bias[size(e, s.hidden) + at(i)] : 0;
        v[at(i)] += choice.weight * (dot(w, g) + bias);
      }
    }
    if (of.shared > 0) {
      double weight = 1;
      if (of.shared_gate) {
        double sum = 0;
        for (std::size_t k = 0; k < n.size(); ++k) sum += n[k] * double{shared_gate[k]};
        weight = 1 / (1 + std::exp(-sum));
      }
      const Numbers g = gated(shared_up.values.data(), of.shared, nullptr, n);
      for (int i = 0; i < s.hidden; ++i) {
        v[at(i)] += weight * dot(shared_down.values.data() + size(i, of.shared), g);
      }
    }
    Expected out{v, {}};
    for (double& k : v) k = value(rounded(static_cast<float>(k)));
    const Numbers behind = normed(v, 1);
    for (int i = 0; i < of.next; ++i) {
      out.next.push_back(dot(next.values.data() + size(i, s.hidden), behind));
    }
    return out;
  }
};

/// The layer on the device, run again and again with two states in turns.
struct OnDevice {
  const Layer& layer;
  Device<Bf16> attended, gains[2];
  Device<float> weights[2], o_bias, up_bias, down_bias, router_bias, choice_bias, shared_gate;
  Device<Bf16> x, shared, next;
  Device<float> logits;
  Device<std::byte> workspace, states;
  int turn = 0;

  static std::vector<float> some(const std::vector<float>& v) {
    return v.empty() ? std::vector<float>(1) : v;
  }
  static std::vector<Bf16> narrow(const std::vector<float>& v) {
    std::vector<Bf16> n;
    for (const float g : v) n.push_back(rounded(g));
    return n;
  }
  explicit OnDevice(const Layer& l)
      : layer(l),
        attended(l.attended.empty() ? std::vector<Bf16>(1) : l.attended),
        gains{Device<Bf16>(narrow(l.gains[0])), Device<Bf16>(narrow(l.gains[1]))},
        weights{Device<float>(l.gains[0]), Device<float>(l.gains[1])},
        o_bias(some(l.o_bias)),
        up_bias(some(l.up_bias)),
        down_bias(some(l.down_bias)),
        router_bias(some(l.router_bias)),
        choice_bias(some(l.choice_bias)),
        shared_gate(some(l.shared_gate)),
        x(l.x),
        shared(size(l.rows, l.of.shared) + 1),
        next(size(l.rows, l.of.next) + 1),
        logits(size(l.rows, l.of.shape.count)),
        workspace(experts_workspace_bytes(l.of.shape, l.rows)),
        states(std::vector<std::byte>(2 * expert_layer_state_bytes())) {}

  ExpertLayerCall call(int rows) const {
    const Case& c = layer.of;
    ExpertLayerCall call;
    call.experts.shape = c.shape;
    call.experts.rows = rows;
    call.experts.gate_up = layer.gate_up.weight;
    call.experts.down = layer.down.weight;
    call.experts.x = x.get();
    call.experts.workspace = workspace.get();
    call.experts.rule = layer.rule;
    if (c.biased) {
      call.experts.rule.up_bias = up_bias.get();
      call.experts.rule.down_bias = down_bias.get();
      call.experts.rule.router_bias = router_bias.get();
      call.o_bias = o_bias.get();
    }
    if (c.sigmoid) call.experts.rule.choice_bias = choice_bias.get();
    call.logits = logits.get();
    call.o = layer.o.weight;
    call.attended = attended.get();
    const auto norm = [&](int i) {
      return c.wide_norms ? LayerNorm{nullptr, weights[i].get(), 1e-6F}
                          : LayerNorm{gains[i].get(), nullptr, 1e-6F};
    };
    call.norm = norm(0);
    call.next_norm = norm(1);
    call.router = layer.router.weight;
    call.shared_gate_up = layer.shared_up.weight;
    call.shared_down = layer.shared_down.weight;
    if (c.shared_gate) call.shared_gate = shared_gate.get();
    call.shared = shared.get();
    call.next_w = layer.next.weight;
    call.next = next.get();
    return call;
  }
  struct Found {
    std::vector<float> x, next;
    bool operator==(const Found&) const = default;
  };
  Found run(int rows) {
    x.write(layer.x);
    const std::size_t bytes = expert_layer_state_bytes();
    expert_layer(call(rows), states.get() + at(turn % 2) * bytes,
                 states.get() + at((turn + 1) % 2) * bytes, nullptr);
    ++turn;
    Found found;
    for (const Bf16 v : x.read()) found.x.push_back(value(v));
    for (const Bf16 v : next.read()) found.next.push_back(value(v));
    const auto after =
        found.x.begin() + static_cast<std::ptrdiff_t>(size(rows, layer.of.shape.hidden));
    EXPECT_TRUE(std::equal(after, found.x.end(), layer.x.begin() + (after - found.x.begin()),
                           [](float a, Bf16 b) { return a == value(b); }))
        << "rows behind the last have been written";
    found.x.resize(size(rows, layer.of.shape.hidden));
    found.next.resize(size(rows, layer.of.next));
    return found;
  }
};

/// How far the worst number is off, of what is typical.
double worst_of(const std::vector<float>& got, const Numbers& want) {
  double squares = 0;
  double worst = 0;
  for (const double v : want) squares += v * v;
  const double typical = std::sqrt(squares / static_cast<double>(want.size()));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(double{got[i]} - want[i]) - std::abs(want[i]) / 200;
    worst = std::max(worst, std::isnan(off) ? 1e9 : off / typical);
  }
  return worst;
}

class ExpertsLayer : public DeviceTest {};

TEST_F(ExpertsLayer, IsThatOfTheHost) {
  cudaDeviceProp device{};
  cudaGetDeviceProperties(&device, 0);
  if (device.major != 9) GTEST_SKIP() << "no Hopper";
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Layer layer(c, 8);
    OnDevice on(layer);
    const int most = expert_layer_rows(on.call(1));
    ASSERT_GE(most, 1);
    std::vector<Layer::Expected> want;
    for (int row = 0; row < most; ++row) want.push_back(layer.expected(row));
    for (const int rows : {1, 2, 3, 5, 8}) {
      if (rows > most) continue;
      SCOPED_TRACE(std::to_string(rows) + " rows");
      Numbers x, next;
      for (int row = 0; row < rows; ++row) {
        const Layer::Expected& w = want[at(row)];
        x.insert(x.end(), w.x.begin(), w.x.end());
        next.insert(next.end(), w.next.begin(), w.next.end());
      }
      const OnDevice::Found found = on.run(rows);
      EXPECT_LT(worst_of(found.x, x), 4e-2);
      if (c.next > 0) {
        EXPECT_LT(worst_of(found.next, next), 4e-2);
      }
      for (int i = 0; i < 5; ++i) EXPECT_EQ(on.run(rows), found) << "not the same bits";
    }
  }
}

/// Layers whose kernels begin before the last one has ended, from a graph, give the bits of layers
/// that are waited for.
TEST_F(ExpertsLayer, LayersFollowEachOther) {
  cudaDeviceProp device{};
  cudaGetDeviceProperties(&device, 0);
  if (device.major != 9) GTEST_SKIP() << "no Hopper";
  constexpr int kLayers = 5;
  const std::size_t bytes = expert_layer_state_bytes();
  for (const int which : {3, 5, 6, 8}) {
    SCOPED_TRACE(kCases[which].name);
    const Layer layer(kCases[which], 2);
    OnDevice on(layer);
    const Device<std::byte> states(std::vector<std::byte>(kLayers * bytes));
    const auto run = [&](int i) {
      expert_layer(on.call(2), states.get() + at(i) * bytes,
                   states.get() + at((i + 1) % kLayers) * bytes, stream_);
    };
    on.x.write(layer.x);
    for (int i = 0; i < 3 * kLayers; ++i) {
      run(i % kLayers);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    const std::vector<Bf16> want = on.x.read();
    cudaGraphExec_t exec = captured(kLayers, run);
    ASSERT_NE(exec, nullptr);
    on.x.write(layer.x);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    const std::vector<Bf16> found = on.x.read();
    EXPECT_EQ(std::memcmp(found.data(), want.data(), want.size() * sizeof(Bf16)), 0);
    cudaGraphExecDestroy(exec);
  }
}

TEST_F(ExpertsLayer, RefusesWhatItDoesNotServe) {
  cudaDeviceProp device{};
  cudaGetDeviceProperties(&device, 0);
  if (device.major != 9) GTEST_SKIP() << "no Hopper";
  const Layer layer(kCases[1], 8);
  const OnDevice on(layer);
  const auto rows_of = [&](const auto& change) {
    ExpertLayerCall call = on.call(1);
    change(call);
    return expert_layer_rows(call);
  };
  EXPECT_GE(rows_of([](ExpertLayerCall&) {}), 1);
  EXPECT_EQ(rows_of([](ExpertLayerCall& c) { c.experts.rule.groups = 2; }), 0);
  EXPECT_EQ(rows_of([](ExpertLayerCall& c) { c.o.in = 300; }), 0);
  EXPECT_EQ(rows_of([](ExpertLayerCall& c) { c.experts.shape.count = 1024; }), 0);
  EXPECT_EQ(rows_of([](ExpertLayerCall& c) { c.router.data = nullptr; }), 0);
  EXPECT_EQ(rows_of([](ExpertLayerCall& c) { c.experts.shape.intermediate = 200; }), 0);
}

}  // namespace
}  // namespace baton::cuda
