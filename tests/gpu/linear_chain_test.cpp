// Chains of products against sums in fp64, over row counts and shapes that do not fill the CTAs.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/linear_chain.h"

namespace baton::cuda {
namespace {

constexpr float kEps = 1e-5F;

struct Geometry {
  int hidden, attended, intermediate, qkv;
};

/// y [rows, out] = x W^T.
std::vector<double> product(const std::vector<Bf16>& x, const std::vector<Bf16>& w, int rows,
                            int out, int in) {
  std::vector<double> y(static_cast<std::size_t>(rows) * out);
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < out; ++o) {
      double sum = 0;
      for (int k = 0; k < in; ++k) {
        sum += static_cast<double>(value(x[static_cast<std::size_t>(r) * in + k])) *
               value(w[static_cast<std::size_t>(o) * in + k]);
      }
      y[static_cast<std::size_t>(r) * out + o] = sum;
    }
  }
  return y;
}

std::vector<double> normed(const std::vector<Bf16>& x, const std::vector<Bf16>& gain, int rows,
                           int n, std::vector<Bf16>* as_bf16) {
  std::vector<double> y(x.size());
  as_bf16->resize(x.size());
  for (int r = 0; r < rows; ++r) {
    double squares = 0;
    for (int k = 0; k < n; ++k)
      squares += std::pow(value(x[static_cast<std::size_t>(r) * n + k]), 2);
    const double scale = 1 / std::sqrt(squares / n + kEps);
    for (int k = 0; k < n; ++k) {
      const std::size_t at = static_cast<std::size_t>(r) * n + k;
      y[at] = value(x[at]) * scale * value(gain[k]);
      (*as_bf16)[at] = rounded(static_cast<float>(y[at]));
    }
  }
  return y;
}

std::vector<Bf16> plus(const std::vector<Bf16>& x, const std::vector<double>& y) {
  std::vector<Bf16> sum(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    sum[i] = rounded(static_cast<float>(value(x[i]) + y[i]));
  return sum;
}

void expect_near(const std::vector<Bf16>& got, const std::vector<double>& want, const char* what) {
  ASSERT_GE(got.size(), want.size());
  double size = 0;
  for (const double v : want) size = std::max(size, std::abs(v));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    // Rounded where x is normed, where it is stored, and before that by those it comes from.
    if (!(std::abs(value(got[i]) - want[i]) <= 0.012 * size)) ++wrong;
  }
  EXPECT_EQ(wrong, 0U) << what << " of " << want.size() << ", which go up to " << size;
}

class LinearChain : public ::testing::Test {
 protected:
  void SetUp() override {
    ChainLink link;
    link.w = {nullptr, 64, 64, {}};
    if (!chain_serves(&link, 1)) GTEST_SKIP() << "needs Hopper, without MPS";
    CUDA_CHECK_OK(cudaStreamCreate(&stream_));
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  static void CUDA_CHECK_OK(cudaError_t error) { ASSERT_EQ(error, cudaSuccess); }

  /// A layer twice through the same state: the kernel leaves it as it found it.
  void check(const Geometry& g, int rows) {
    SCOPED_TRACE(std::to_string(g.hidden) + " hidden, " + std::to_string(rows) + " rows");
    const auto n = [&](int columns) { return static_cast<std::size_t>(rows) * columns; };
    const auto matrix = [](int out, int in, unsigned seed) {
      return random_bf16(static_cast<std::size_t>(out) * in,
                         2.0F / std::sqrt(static_cast<float>(in)), seed);
    };
    const auto w_o = matrix(g.hidden, g.attended, 1);
    const auto w_gate_up = matrix(2 * g.intermediate, g.hidden, 2);
    const auto w_down = matrix(g.hidden, g.intermediate, 3);
    const auto w_qkv = matrix(g.qkv, g.hidden, 4);
    const auto attended = random_bf16(n(g.attended), 1, 5);
    const auto x = random_bf16(n(g.hidden), 2, 6);
    const auto gain1 = random_bf16(g.hidden, 1, 7);
    const auto gain2 = random_bf16(g.hidden, 1, 8);
    const Device<Bf16> d_o(w_o), d_gate_up(w_gate_up), d_down(w_down), d_qkv(w_qkv),
        d_attended(attended), d_gain1(gain1), d_gain2(gain2);
    Device<Bf16> d_x(x), d_scaled(n(g.hidden)), d_gated(n(g.intermediate)), y_qkv(n(g.qkv));
    const Device<std::uint8_t> state(std::vector<std::uint8_t>(chain_state_bytes(), 0));
    std::vector<ChainLink> links(4);
    links[0] = {.w = {d_o.get(), g.hidden, g.attended, {}},
                .output = LinearOutput::residual,
                .x = d_attended.get(),
                .y = d_x.get(),
                .gain = d_gain1.get(),
                .scaled = d_scaled.get()};
    links[1] = {.w = {d_gate_up.get(), 2 * g.intermediate, g.hidden, {}},
                .output = LinearOutput::silu_mul,
                .x = d_scaled.get(),
                .y = d_gated.get(),
                .normed = true,
                .eps = kEps};
    links[2] = {.w = {d_down.get(), g.hidden, g.intermediate, {}},
                .output = LinearOutput::residual,
                .x = d_gated.get(),
                .y = d_x.get(),
                .gain = d_gain2.get(),
                .scaled = d_scaled.get()};
    links[3] = {.w = {d_qkv.get(), g.qkv, g.hidden, {}},
                .output = LinearOutput::bf16,
                .x = d_scaled.get(),
                .y = y_qkv.get(),
                .normed = true,
                .eps = kEps};

    const std::vector<Bf16> x1 = plus(x, product(attended, w_o, rows, g.hidden, g.attended));
    std::vector<Bf16> x1_normed;
    normed(x1, gain1, rows, g.hidden, &x1_normed);
    const auto both = product(x1_normed, w_gate_up, rows, 2 * g.intermediate, g.hidden);
    std::vector<double> gated(n(g.intermediate));
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < g.intermediate; ++c) {
        const std::size_t at =
            n(0) + static_cast<std::size_t>(r) * 2 * g.intermediate + c / 8 * 16 + c % 8;
        gated[static_cast<std::size_t>(r) * g.intermediate + c] =
            both[at] / (1 + std::exp(-both[at])) * both[at + 8];
      }
    }
    std::vector<Bf16> first_qkv;
    for (int run = 0; run < 2; ++run) {
      d_x.write(x);
      linear_chain(links.data(), 4, rows, state.get(), stream_);
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      const auto got_gated = d_gated.read();
      expect_near(got_gated, gated, "gated");
      // What follows is compared with what follows from the kernel's own values before.
      const auto down = product(got_gated, w_down, rows, g.hidden, g.intermediate);
      std::vector<double> x2(down.size());
      for (std::size_t i = 0; i < down.size(); ++i) x2[i] = value(x1[i]) + down[i];
      const auto got_x = d_x.read();
      expect_near(got_x, x2, "x");
      std::vector<Bf16> x2_normed;
      normed(got_x, gain2, rows, g.hidden, &x2_normed);
      const auto got_qkv = y_qkv.read();
      expect_near(got_qkv, product(x2_normed, w_qkv, rows, g.qkv, g.hidden), "qkv");
      if (run == 0) first_qkv = got_qkv;
      for (std::size_t i = 0; i < got_qkv.size(); ++i)
        ASSERT_EQ(got_qkv[i].bits, first_qkv[i].bits) << i;
    }
  }

  Stream stream_ = nullptr;
};

TEST_F(LinearChain, ALayerOfManyShapes) {
  for (const int rows : {1, 2, 7, 8, 9, 16, 17, 31, 32}) check({256, 128, 384, 320}, rows);
  check({1024, 2048, 3072, 4096}, 1);
  check({1024, 2048, 3072, 4096}, 5);
  check({2048, 2048, 8192, 3072}, 32);
  check({64, 64, 64, 72}, 3);  // one place of the ring a unit
  check({576, 576, 1536, 960}, 4);
}

TEST_F(LinearChain, OneLinkAndManyOnes) {
  const int in = 4096, out = 3000 / 8 * 8, rows = 4;
  const auto w = random_bf16(static_cast<std::size_t>(out) * in, 0.03F, 1);
  const auto x = random_bf16(static_cast<std::size_t>(rows) * in, 1, 2);
  const Device<Bf16> d_w(w), d_x(x);
  const Device<Bf16> y(static_cast<std::size_t>(rows) * out);
  const Device<std::uint8_t> state(std::vector<std::uint8_t>(chain_state_bytes(), 0));
  const ChainLink link{
      .w = {d_w.get(), out, in, {}}, .output = LinearOutput::bf16, .x = d_x.get(), .y = y.get()};
  for (int i = 0; i < 200; ++i) linear_chain(&link, 1, rows, state.get(), stream_);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  expect_near(y.read(), product(x, w, rows, out, in), "y");
}

TEST_F(LinearChain, RefusesWhatItCannotDo) {
  ChainLink link;
  link.w = {nullptr, 64, 96, {}};  // k of 96 is no whole number of boxes
  EXPECT_FALSE(chain_serves(&link, 1));
  link.w = {nullptr, 68, 64, {}};
  EXPECT_FALSE(chain_serves(&link, 1));
  link.w = {nullptr, 64, 64, {}};
  link.output = LinearOutput::f32;
  EXPECT_FALSE(chain_serves(&link, 1));
  link.output = LinearOutput::bf16;
  EXPECT_THROW(linear_chain(&link, 1, kMostChainRows + 1, nullptr, stream_), CudaError);
}

}  // namespace
}  // namespace baton::cuda
