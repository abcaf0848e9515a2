// Experts on the device: the products of every path and format against sums in fp64.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "tests/gpu/experts_fixture.h"
#include "workers/cpu/experts.h"
#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/experts_ring.h"

namespace baton::cuda {
namespace {

class ExpertsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
};

/// A layer of experts, and what it adds to x for up to `rows` rows.
struct Layer {
  ExpertShape shape;
  int rows;
  Experts gate_up, down;
  std::vector<Bf16> normed, x;
  std::vector<float> logits;
  std::vector<float> up_bias, down_bias;  // of clamped gates, as gpt-oss has them; empty: none
  Device<Bf16> normed_device;
  Device<float> logits_device;
  Device<std::byte> workspace;

  Layer(const ExpertShape& s, int n, ExpertFormat format = ExpertFormat::bf16)
      : shape(s),
        rows(n),
        gate_up(Experts::make(format, s.count, 2 * s.intermediate, s.hidden, true, 2)),
        down(Experts::make(format, s.count, s.hidden, s.intermediate, false, 3)),
        normed(random_bf16(size(n, s.hidden), 1.5F, 4)),
        x(random_bf16(size(n, s.hidden), 0.5F, 5)),
        logits(random_logits(n, s.count, 6)),
        normed_device(normed),
        logits_device(logits),
        workspace(std::vector<std::byte>(experts_workspace_bytes(s, n))) {}

  /// Empty where the path does not serve.
  std::vector<float> run(int first, int n, bool deterministic,
                         ExpertPath path = ExpertPath::automatic) const {
    const std::size_t begin = size(first, shape.hidden);
    std::vector<Bf16> part(size(n, shape.hidden) + 64, Bf16{0x7FC0});
    std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(begin), size(n, shape.hidden),
                part.begin());
    const Device<Bf16> y(part);
    ExpertCall call;
    call.shape = shape;
    call.rows = n;
    call.normed = normed_device.get() + begin;
    call.logits = logits_device.get() + size(first, shape.count);
    call.gate_up = gate_up.weight;
    call.down = down.weight;
    call.path = path;
    call.x = y.get();
    call.workspace = workspace.get();
    call.deterministic = deterministic;
    const Device<float> ups(up_bias), downs(down_bias);
    if (!up_bias.empty()) {
      call.rule.act = {Gate::clamped, true, 2.0F, 1.7F};
      call.rule.up_bias = ups.get();
      call.rule.down_bias = downs.get();
    }
    std::vector<float> result;
    if (path == ExpertPath::few && !few_experts_fit(call)) return result;
    if (path == ExpertPath::wide && !wide_experts_fit()) return result;
    experts(call, nullptr);
    for (const Bf16 v : y.read()) result.push_back(value(v));
    for (std::size_t i = size(n, shape.hidden); i < result.size(); ++i)
      EXPECT_TRUE(std::isnan(result[i]));
    result.resize(size(n, shape.hidden));
    return result;
  }

  double dot(const Bf16* w, const std::vector<double>& v) const {
    double sum = 0;
    for (std::size_t k = 0; k < v.size(); ++k) sum += double{value(w[k])} * v[k];
    return sum;
  }
  std::vector<double> expected_row(const cpu::ExpertPlan& plan, int row) const {
    std::vector<double> n(at(shape.hidden));
    std::vector<double> y(at(shape.hidden));
    for (std::size_t k = 0; k < n.size(); ++k) {
      n[k] = value(normed[size(row, shape.hidden) + k]);
      y[k] = value(x[size(row, shape.hidden) + k]);
    }
    for (const cpu::ExpertPlan::Choice& choice : plan.of_row(row)) {
      const Bf16* gates =
          gate_up.values.data() + size(choice.expert, 2 * shape.intermediate) * at(shape.hidden);
      const Bf16* downs =
          down.values.data() + size(choice.expert, shape.intermediate) * at(shape.hidden);
      std::vector<double> gated(at(shape.intermediate));
      for (int i = 0; i < shape.intermediate; ++i) {
        double gate = dot(gates + size(i / 8 * 16 + i % 8, shape.hidden), n);
        double up = dot(gates + size(i / 8 * 16 + 8 + i % 8, shape.hidden), n);
        if (up_bias.empty()) {
          gated[at(i)] = gate / (1 + std::exp(-gate)) * up;
          continue;
        }
        const float* bias = up_bias.data() + size(choice.expert, 2 * shape.intermediate);
        gate = std::min(gate + bias[i], 2.0);
        up = std::clamp(up + bias[shape.intermediate + i], -2.0, 2.0);
        gated[at(i)] = gate / (1 + std::exp(-double{1.7F} * gate)) * (up + 1);
      }
      for (int o = 0; o < shape.hidden; ++o) {
        const double bias =
            down_bias.empty() ? 0 : down_bias[size(choice.expert, shape.hidden) + at(o)];
        y[at(o)] += choice.weight * (dot(downs + size(o, shape.intermediate), gated) + bias);
      }
    }
    return y;
  }
};

struct Case {
  ExpertShape shape;
  ExpertFormat format;
};

/// Odd sizes, tiles of one stage and of two, rows that are more than a piece has.
const Case kCases[] = {
    {{8, 2, 144, 80, true}, ExpertFormat::bf16},     {{128, 8, 256, 64, false}, ExpertFormat::bf16},
    {{4, 1, 512, 1088, false}, ExpertFormat::bf16},  {{6, 3, 1088, 192, true}, ExpertFormat::bf16},
    {{8, 2, 160, 96, true}, ExpertFormat::mxfp4},    {{32, 4, 480, 288, true}, ExpertFormat::mxfp4},
    {{128, 8, 256, 64, false}, ExpertFormat::mxfp4}, {{3, 1, 3872, 64, false}, ExpertFormat::mxfp4},
    {{3, 2, 64, 3904, true}, ExpertFormat::mxfp4},   {{8, 2, 160, 96, true}, ExpertFormat::fp8},
    {{32, 4, 480, 288, true}, ExpertFormat::fp8},    {{128, 8, 256, 64, false}, ExpertFormat::fp8},
    {{3, 2, 2048, 1408, true}, ExpertFormat::fp8},   {{8, 2, 160, 96, true}, ExpertFormat::int4},
    {{32, 4, 480, 288, true}, ExpertFormat::int4},   {{128, 8, 256, 64, false}, ExpertFormat::int4},
    {{3, 2, 2048, 1408, true}, ExpertFormat::int4},
};

std::string name_of(const Case& c) {
  return std::to_string(c.shape.count) + " experts of " + std::to_string(c.shape.hidden) + " x " +
         std::to_string(c.shape.intermediate) +
         (c.format == ExpertFormat::bf16   ? ", bf16"
          : c.format == ExpertFormat::fp8  ? ", FP8"
          : c.format == ExpertFormat::int4 ? ", int4"
                                           : ", MXFP4");
}

/// How far the worst element is off, of what is typical.
double worst_of(const std::vector<float>& got, const std::vector<std::vector<double>>& want,
                int hidden, double typical) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double exact = want[i / at(hidden)][i % at(hidden)];
    worst = std::max(worst,
                     std::isnan(got[i]) ? 1e9 : std::abs(got[i] - exact) - std::abs(exact) / 200);
  }
  return worst / typical;
}

TEST_F(ExpertsTest, SumsAreThoseOfTheHost) {
  for (const Case& c : kCases) {
    const ExpertShape& shape = c.shape;
    int served = 0;
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(name_of(c) + (biased ? ", biased" : ""));
      Layer layer(shape, 333, c.format);
      if (biased) {
        layer.up_bias = random_logits(shape.count, 2 * shape.intermediate, 10);
        layer.down_bias = random_logits(shape.count, shape.hidden, 11);
      }
      cpu::ExpertPlan plan;
      plan.make(softmax(layer.logits, shape.count),
                {.experts = shape.count, .active = shape.active, .normalise = shape.normalise});
      std::vector<std::vector<double>> want;
      double squares = 0;
      for (int row = 0; row < layer.rows; ++row) {
        want.push_back(layer.expected_row(plan, row));
        for (const double v : want.back()) squares += v * v;
      }
      const double typical = std::sqrt(squares / (double{1} * layer.rows * shape.hidden));
      // The hidden products and an expert's result are rounded to bf16 on the way, which the
      // reference does not do: where x and what is added to it nearly cancel, their rounding is all
      // that is left.
      constexpr double kMost = 4e-2;
      for (const int rows : {1, 2, 3, 7, 8, 9, 16, 17, 40, 64, 100, 333}) {
        EXPECT_LT(worst_of(layer.run(0, rows, true), want, shape.hidden, typical), kMost)
            << rows << " rows, deterministic";
        for (const ExpertPath path :
             {ExpertPath::pieces, ExpertPath::stream, ExpertPath::few, ExpertPath::wide}) {
          const std::vector<float> got = layer.run(0, rows, false, path);
          served += path == ExpertPath::few && !got.empty() ? 1 : 0;
          EXPECT_LT(worst_of(got, want, shape.hidden, typical), kMost)
              << rows << " rows, path " << static_cast<int>(path);
        }
      }
    }
    // Lest a path that is never taken passes.
    cudaDeviceProp device{};
    cudaGetDeviceProperties(&device, 0);
    const bool whole = c.format != ExpertFormat::bf16 || shape.hidden % 64 == 0;
    EXPECT_GE(served, device.major == 9 && whole ? 8 : 0) << name_of(c);
  }
}

/// More steps than one behind each other: rings and buffers are as the last call left them.
TEST_F(ExpertsTest, CallsFollowEachOther) {
  for (const ExpertFormat format :
       {ExpertFormat::bf16, ExpertFormat::mxfp4, ExpertFormat::fp8, ExpertFormat::int4}) {
    const Layer layer({32, 4, 512, 256, true}, 64, format);
    for (const ExpertPath path : {ExpertPath::stream, ExpertPath::few, ExpertPath::wide}) {
      const int rows = path == ExpertPath::few ? 8 : 64;
      const std::vector<float> first = layer.run(0, rows, false, path);
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(layer.run(0, rows, false, path), first) << "path " << static_cast<int>(path);
      }
    }
  }
}

TEST_F(ExpertsTest, DeterministicRowsKeepTheirBits) {
  for (const ExpertFormat format :
       {ExpertFormat::bf16, ExpertFormat::mxfp4, ExpertFormat::fp8, ExpertFormat::int4}) {
    const ExpertShape shape{16, 3, 256, 160, true};
    const Layer layer(shape, 300, format);
    const std::vector<float> all = layer.run(0, 300, true);
    for (const int rows : {1, 2, 8, 9, 16, 17, 33, 64, 129, 255}) {
      const int first = (300 - rows) / 2;
      const std::vector<float> some = layer.run(first, rows, true);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + size(first, shape.hidden),
                            some.size() * sizeof(float)),
                0)
          << rows << " rows";
    }
  }
}

TEST_F(ExpertsTest, AScaleAboveTwoIsFound) {
  for (const int exponent : {128, 129, 255}) {
    std::vector<std::byte> scales(16, std::byte{120});
    scales[7] = static_cast<std::byte>(exponent);
    const Device<std::byte> codes(std::vector<std::byte>(16 * 16)), device_scales(scales);
    const Device<std::byte> to(std::vector<std::byte>(expert_bytes(ExpertFormat::mxfp4, 16, 32)));
    const Device<int> bad(std::vector<int>{0});
    pack_mxfp4({16, 32, codes.get(), device_scales.get(), false}, to.get(), bad.get(), nullptr);
    EXPECT_EQ(bad.read()[0], exponent > 128 ? kBadMxfp4Scale : 0) << exponent;
  }
}

}  // namespace
}  // namespace baton::cuda
