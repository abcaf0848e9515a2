// Chains of products against sums in fp64, over row counts and shapes that do not fill the CTAs.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/linear/linear_chain.h"

namespace baton::cuda {
namespace {

constexpr float kEps = 1e-5F;

struct Geometry {
  int hidden, attended, intermediate, qkv;
};

/// A matrix on the device, and its values.
struct Matrix {
  std::vector<float> values;
  LinearWeight weight;
  std::shared_ptr<Device<Bf16>> plain;
  std::shared_ptr<Device<std::uint32_t>> words, scales, shared_scales;
};

Matrix plain_matrix(int out, int in, unsigned seed) {
  Matrix m;
  const auto w = random_bf16(static_cast<std::size_t>(out) * in,
                             2.0F / std::sqrt(static_cast<float>(in)), seed);
  for (const Bf16 v : w) m.values.push_back(value(v));
  m.plain = std::make_shared<Device<Bf16>>(w);
  m.weight = {m.plain->get(), out, in, {}};
  return m;
}

struct Quantized {
  WeightFormat format;
  int group_shift;
  bool shared = false;  // scales, by eight rows
};

float e4m3(std::uint32_t byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15U);
  const auto fraction = static_cast<float>(byte & 7U) / 8;
  const float size =
      exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
  return byte >> 7 != 0 ? -size : size;
}

Matrix quantized_matrix(const Quantized& kind, int out, int in, unsigned seed) {
  Matrix m;
  m.weight = {nullptr, out, in, {}};
  QuantizedWeight& q = m.weight.quantized;
  q.format = kind.format;
  q.group_shift = kind.group_shift;
  q.groups = ((in - 1) >> kind.group_shift) + 1;
  const bool int4 = kind.format == WeightFormat::int4;
  std::minstd_rand random(seed);
  std::vector<std::uint32_t> words(weight_words(kind.format, out, in), 0);
  std::vector<std::uint32_t> scales(scale_words(out, q.groups), 0);
  std::vector<std::uint32_t> shared_scales(shared_scale_words(out, q.groups), 0);
  const float size = (int4 ? 0.2F : 0.01F) / std::sqrt(static_cast<float>(in));
  for (int o = 0; o < out; ++o) {
    for (int g = 0; g < q.groups; ++g) {
      const float scale = size * (1 + static_cast<float>(random() % 1000) / 1000);
      std::uint32_t& word = scales[scale_at(q.groups, o, g)];
      word = (std::bit_cast<std::uint32_t>(scale) & ~15U) | (int4 ? 4 + random() % 8 : 0);
      if (!kind.shared) continue;
      std::uint32_t& shared = shared_scales[shared_scale_at(q.groups, o, g)];
      if (o % 8 == 0) shared = word;
      word = shared;
    }
    for (int k = 0; k < in; ++k) {
      const std::uint32_t word = scales[scale_at(q.groups, o, k >> kind.group_shift)];
      const float scale = std::bit_cast<float>(word & ~15U);
      std::uint32_t bits = static_cast<std::uint32_t>(random()) >> 8 & (int4 ? 15U : 255U);
      if (!int4 && (bits & 127U) == 127U) bits ^= 1U;  // no NaN
      const WeightPlace place = place_of(kind.format, units_of(in), o, k);
      words[place.word] |= bits << place.bit;
      m.values.push_back(
          scale * (int4 ? static_cast<float>(bits) - static_cast<float>(word & 15U) : e4m3(bits)));
    }
  }
  m.words = std::make_shared<Device<std::uint32_t>>(words);
  m.scales = std::make_shared<Device<std::uint32_t>>(scales);
  q.words = m.words->get();
  q.scales = m.scales->get();
  if (kind.shared) {
    m.shared_scales = std::make_shared<Device<std::uint32_t>>(shared_scales);
    q.shared_scales = m.shared_scales->get();
  }
  return m;
}

using MakeMatrix = std::function<Matrix(int out, int in, unsigned seed)>;

/// y [rows, out] = x W^T.
std::vector<double> product(const std::vector<Bf16>& x, const Matrix& matrix, int rows) {
  const int out = matrix.weight.out;
  const int in = matrix.weight.in;
  const std::vector<float>& w = matrix.values;
  std::vector<double> y(static_cast<std::size_t>(rows) * out);
  const auto row = [&](int r) {
    for (int o = 0; o < out; ++o) {
      double sum = 0;
      for (int k = 0; k < in; ++k) {
        sum += static_cast<double>(value(x[static_cast<std::size_t>(r) * in + k])) *
               w[static_cast<std::size_t>(o) * in + k];
      }
      y[static_cast<std::size_t>(r) * out + o] = sum;
    }
  };
  std::vector<std::jthread> threads;
  const int n = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (int t = 0; t < n; ++t) {
    threads.emplace_back([&, t] {
      for (int r = t; r < rows; r += n) row(r);
    });
  }
  threads.clear();  // waits
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

/// act(gate) * up of rows [2 intermediate]: eight of gate, eight of up.
template <typename Act>
std::vector<double> gated_of(const std::vector<double>& both, int intermediate, const Act& act) {
  const auto columns = static_cast<std::size_t>(intermediate);
  std::vector<double> gated(both.size() / 2);
  for (std::size_t i = 0; i < gated.size(); ++i) {
    const std::size_t c = i % columns;
    const std::size_t at = i / columns * 2 * columns + c / 8 * 16 + c % 8;
    gated[i] = act(both[at]) * both[at + 8];
  }
  return gated;
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
    ChainGemm gemm;
    gemm.w = {nullptr, 64, 64, {}};
    if (chain_rows(&gemm, 1) == 0) GTEST_SKIP() << "needs Hopper, without MPS";
    CUDA_CHECK_OK(cudaStreamCreate(&stream_));
    workspace_ = std::make_unique<Device<std::uint8_t>>(chain_workspace_bytes(kMostChainRows));
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  static void CUDA_CHECK_OK(cudaError_t error) { ASSERT_EQ(error, cudaSuccess); }

  static Device<std::uint8_t> zeroed() {
    return Device<std::uint8_t>(std::vector<std::uint8_t>(chain_state_bytes(), 0));
  }

  void check_sharing(int times);
  void check_joins(const Geometry& g, int rows, bool before, float factor);

  /// A layer twice: each kernel clears what the other uses up.
  void check(const Geometry& g, int rows, const MakeMatrix& matrix = plain_matrix) {
    SCOPED_TRACE(std::to_string(g.hidden) + " hidden, " + std::to_string(rows) + " rows");
    const auto n = [&](int columns) { return static_cast<std::size_t>(rows) * columns; };
    const auto w_o = matrix(g.hidden, g.attended, 1);
    const auto w_gate_up = matrix(2 * g.intermediate, g.hidden, 2);
    const auto w_down = matrix(g.hidden, g.intermediate, 3);
    const auto w_qkv = matrix(g.qkv, g.hidden, 4);
    const auto attended = random_bf16(n(g.attended), 1, 5);
    const auto x = random_bf16(n(g.hidden), 2, 6);
    const auto gain1 = random_bf16(g.hidden, 1, 7);
    const auto gain2 = random_bf16(g.hidden, 1, 8);
    const Device<Bf16> d_attended(attended), d_gain1(gain1), d_gain2(gain2);
    Device<Bf16> d_x(x), d_scaled(n(g.hidden)), d_gated(n(g.intermediate)), y_qkv(n(g.qkv));
    const Device<std::uint8_t> states[] = {zeroed(), zeroed()};
    std::vector<ChainGemm> gemms(4);
    gemms[0] = {.w = w_o.weight,
                .output = LinearOutput::residual,
                .x = d_attended.get(),
                .y = d_x.get(),
                .gain = d_gain1.get(),
                .scaled = d_scaled.get()};
    gemms[1] = {.w = w_gate_up.weight,
                .output = LinearOutput::silu_mul,
                .x = d_scaled.get(),
                .y = d_gated.get(),
                .normed = true,
                .eps = kEps};
    gemms[2] = {.w = w_down.weight,
                .output = LinearOutput::residual,
                .x = d_gated.get(),
                .y = d_x.get(),
                .gain = d_gain2.get(),
                .scaled = d_scaled.get()};
    gemms[3] = {.w = w_qkv.weight,
                .output = LinearOutput::bf16,
                .x = d_scaled.get(),
                .y = y_qkv.get(),
                .normed = true,
                .eps = kEps};

    const std::vector<Bf16> x1 = plus(x, product(attended, w_o, rows));
    std::vector<Bf16> x1_normed;
    normed(x1, gain1, rows, g.hidden, &x1_normed);
    const auto both = product(x1_normed, w_gate_up, rows);
    const auto gated =
        gated_of(both, g.intermediate, [](double v) { return v / (1 + std::exp(-v)); });
    std::vector<Bf16> first_qkv;
    for (int run = 0; run < 2; ++run) {
      d_x.write(x);
      linear_chain(gemms.data(), 4, rows,
                   {states[run].get(), states[1 - run].get(), workspace_->get()}, stream_);
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      const auto got_gated = d_gated.read();
      expect_near(got_gated, gated, "gated");
      // What follows is compared with what follows from the kernel's own values before.
      const auto down = product(got_gated, w_down, rows);
      std::vector<double> x2(down.size());
      for (std::size_t i = 0; i < down.size(); ++i) x2[i] = value(x1[i]) + down[i];
      const auto got_x = d_x.read();
      expect_near(got_x, x2, "x");
      std::vector<Bf16> x2_normed;
      normed(got_x, gain2, rows, g.hidden, &x2_normed);
      const auto got_qkv = y_qkv.read();
      expect_near(got_qkv, product(x2_normed, w_qkv, rows), "qkv");
      if (run == 0) first_qkv = got_qkv;
      for (std::size_t i = 0; i < got_qkv.size(); ++i)
        ASSERT_EQ(got_qkv[i].bits, first_qkv[i].bits) << i;
    }
  }

  Stream stream_ = nullptr;
  std::unique_ptr<Device<std::uint8_t>> workspace_;
};

/// A layer whose parts are normed before they join the residual stream (Gemma), or without norms
/// of what goes in (OLMo 2).
void LinearChain::check_joins(const Geometry& g, int rows, bool before, float factor) {
  SCOPED_TRACE(std::to_string(g.hidden) + " hidden, " + std::to_string(rows) + " rows");
  const auto n = [&](int columns) { return static_cast<std::size_t>(rows) * columns; };
  const auto w_o = plain_matrix(g.hidden, g.attended, 1);
  const auto w_gate_up = plain_matrix(2 * g.intermediate, g.hidden, 2);
  const auto w_down = plain_matrix(g.hidden, g.intermediate, 3);
  const auto w_qkv = plain_matrix(g.qkv, g.hidden, 4);
  const auto attended = random_bf16(n(g.attended), 1, 5);
  const auto x = random_bf16(n(g.hidden), 2, 6);
  std::vector<std::vector<float>> weights;
  std::vector<std::unique_ptr<Device<float>>> d_weights;
  std::vector<std::vector<Bf16>> gains;
  for (unsigned i = 0; i < 4; ++i) {
    gains.push_back(random_bf16(g.hidden, 1, 7 + i));
    weights.emplace_back();
    for (const Bf16 v : gains.back()) weights.back().push_back(value(v));
    d_weights.push_back(std::make_unique<Device<float>>(weights.back()));
  }
  const Device<Bf16> d_attended(attended);
  Device<Bf16> d_x(x), d_part(n(g.hidden)), d_normed(n(g.hidden));
  const Device<Bf16> d_gated(n(g.intermediate)), y_qkv(n(g.qkv));
  const Device<std::uint8_t> states[] = {zeroed(), zeroed()};
  const auto join = [&](std::size_t norm, bool next) {
    PartCall c;
    c.part = d_part.get();
    c.norm = {d_weights[norm]->get(), nullptr, kEps};
    c.factor = factor;
    c.hidden = g.hidden;
    c.x = d_x.get();
    if (!next) return c;
    c.next = {d_weights[norm + 1]->get(), nullptr, kEps};
    c.normed = d_normed.get();
    return c;
  };
  const Bf16* const input = before ? d_normed.get() : d_x.get();
  std::vector<ChainGemm> gemms(4);
  gemms[0] = {
      .w = w_o.weight, .output = LinearOutput::bf16, .x = d_attended.get(), .y = d_part.get()};
  gemms[1] = {
      .w = w_gate_up.weight, .output = LinearOutput::silu_mul, .x = input, .y = d_gated.get()};
  gemms[2] = {
      .w = w_down.weight, .output = LinearOutput::bf16, .x = d_gated.get(), .y = d_part.get()};
  gemms[3] = {.w = w_qkv.weight, .output = LinearOutput::bf16, .x = input, .y = y_qkv.get()};
  gemms[0].joins = gemms[2].joins = true;
  gemms[0].join = join(0, before);
  gemms[1].gate = Gate::gelu_tanh;
  gemms[2].join = join(2, before);
  ASSERT_EQ(chain_rows(gemms.data(), 4), 64);
  const auto joined = [&](const std::vector<Bf16>& to, const std::vector<double>& part,
                          std::size_t norm) {
    std::vector<Bf16> as_bf16(part.size()), scaled;
    for (std::size_t i = 0; i < part.size(); ++i) as_bf16[i] = rounded(static_cast<float>(part[i]));
    auto sum = normed(as_bf16, gains[norm], rows, g.hidden, &scaled);
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = value(to[i]) + static_cast<double>(factor) * sum[i];
    return sum;
  };
  const auto bf16 = [](const std::vector<double>& from) {
    std::vector<Bf16> to;
    for (const double v : from) to.push_back(rounded(static_cast<float>(v)));
    return to;
  };
  std::vector<Bf16> first_qkv;
  for (int run = 0; run < 2; ++run) {
    d_x.write(x);
    linear_chain(gemms.data(), 4, rows,
                 {states[run].get(), states[1 - run].get(), workspace_->get()}, stream_);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const auto x1 = joined(x, product(attended, w_o, rows), 0);
    std::vector<Bf16> in = bf16(x1), scaled;
    if (before) {
      normed(in, gains[1], rows, g.hidden, &scaled);
      in = scaled;
    }
    const auto both = product(in, w_gate_up, rows);
    const auto gated = gated_of(both, g.intermediate, [](double v) {
      return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    });
    const auto got_gated = d_gated.read();
    expect_near(got_gated, gated, "gated");
    // What follows is compared with what follows from the kernel's own values before.
    const auto got_x = d_x.read();
    expect_near(got_x, joined(bf16(x1), product(got_gated, w_down, rows), 2), "x");
    in = got_x;
    if (before) {
      normed(got_x, gains[3], rows, g.hidden, &scaled);
      in = scaled;
    }
    const auto got_qkv = y_qkv.read();
    expect_near(got_qkv, product(in, w_qkv, rows), "qkv");
    if (run == 0) first_qkv = got_qkv;
    for (std::size_t i = 0; i < got_qkv.size(); ++i)
      ASSERT_EQ(got_qkv[i].bits, first_qkv[i].bits) << i;
  }
}

TEST_F(LinearChain, ALayerWhosePartsJoin) {
  for (const int rows : {1, 2, 7, 8, 9, 16, 17, 33, 64}) {
    check_joins({256, 128, 384, 320}, rows, /*before=*/true, 1);
  }
  check_joins({256, 128, 384, 320}, 5, /*before=*/false, 1);
  check_joins({320, 128, 384, 320}, 64, /*before=*/false, 0.22F);
  check_joins({3840, 4096, 1536, 8192}, 3, /*before=*/true, 1);
  check_joins({6144, 512, 1024, 512}, 16, /*before=*/true, 0.22F);
}

/// Its kernels have no clusters, which racecheck wants (racecheck.py).
TEST_F(LinearChain, ASmallLayer) {
  for (const int rows : {1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 96, 97, 128}) {
    check({256, 128, 384, 320}, rows);
  }
}

TEST_F(LinearChain, ALayerOfManyShapes) {
  // The kernel for many rows: parts of k, wide units of gate and up, more units than CTAs.
  for (const int rows : {65, 100, 128}) check({512, 512, 9216, 768}, rows);
  check({1024, 1024, 4096, 1536}, 128);
  check({512, 1024, 20480, 10240}, 80);
  // Cut as real models are with 132 multiprocessors: features of all four warps of a group, two
  // CTAs or four to a unit, 112 features of gate and up a group, two turns.
  check({1024, 2048, 3072, 4096}, 100);
  check({3072, 512, 2048, 5120}, 100);
  check({4096, 512, 2048, 256}, 100);
  check({256, 256, 14336, 320}, 100);
  check({128, 128, 128, 20480}, 100);
  check({1024, 2048, 3072, 4096}, 1);
  check({1024, 2048, 3072, 4096}, 5);
  check({2048, 2048, 8192, 3072}, 32);
  check({64, 64, 64, 72}, 3);                                       // one stage of the ring a unit
  for (const int rows : {1, 8}) check({128, 64, 128, 9216}, rows);  // 72 features a unit
  check({576, 576, 1536, 960}, 4);
}

/// Pairs of CTAs take units together where x is large: W_down, W_o, and W_qkv with all their
/// groups.
TEST_F(LinearChain, ALayerInPairs) {
  for (const int rows : {9, 16, 32, 40}) check({256, 128, 14336, 320}, rows);
  check({256, 4096, 384, 320}, 64);
  for (const int rows : {45, 64}) check({4096, 64, 128, 6144}, rows);
}

TEST_F(LinearChain, QuantizedLayersOfManyShapes) {
  for (const Quantized kind : {Quantized{WeightFormat::int4, 7}, Quantized{WeightFormat::int4, 5},
                               Quantized{WeightFormat::int4, 6}, Quantized{WeightFormat::int4, 9},
                               Quantized{WeightFormat::int4, 31}, Quantized{WeightFormat::fp8, 31},
                               Quantized{WeightFormat::fp8, 7}, Quantized{WeightFormat::fp8, 6},
                               Quantized{WeightFormat::fp8, 7, true}}) {
    SCOPED_TRACE(std::string(kind.format == WeightFormat::int4 ? "int4" : "fp8") +
                 ", groups of 2^" + std::to_string(kind.group_shift));
    const MakeMatrix matrix = [&](int out, int in, unsigned seed) {
      return quantized_matrix(kind, out, in, seed);
    };
    for (const int rows : {1, 2, 3, 7, 8}) check({256, 256, 512, 320}, rows, matrix);
    check({768, 256, 1280, 976}, 3, matrix);  // more inputs than slices take in turns
    check({1024, 2048, 3072, 4096}, 5, matrix);
    if (kind.group_shift != 7) continue;
    check({2048, 2048, 8192, 3072}, 8, matrix);
    check({256, 256, 14336, 320}, 2, matrix);  // 14 tiles a CTA: two warps have none
    check({256, 256, 17408, 320}, 2, matrix);  // more units than CTAs
  }
}

TEST_F(LinearChain, OneGemmAndManyOnes) {
  const int in = 4096, out = 3000 / 8 * 8, rows = 4;
  const Matrix w = plain_matrix(out, in, 1);
  const auto x = random_bf16(static_cast<std::size_t>(rows) * in, 1, 2);
  const Device<Bf16> d_x(x);
  const Device<Bf16> y(static_cast<std::size_t>(rows) * out);
  const Device<std::uint8_t> states[] = {zeroed(), zeroed()};
  const ChainGemm gemm{.w = w.weight, .output = LinearOutput::bf16, .x = d_x.get(), .y = y.get()};
  for (int i = 0; i < 200; ++i)
    linear_chain(&gemm, 1, rows, {states[i % 2].get(), states[1 - i % 2].get(), workspace_->get()},
                 stream_);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  expect_near(y.read(), product(x, w, rows), "y");
}

/// Every GEMM's units are shared by pairs of CTAs, or by four, which meet the same buffers again
/// and again.
void LinearChain::check_sharing(int times) {
  constexpr int kGemms = 3;
  for (const auto& [rows, n] : {std::pair(32, 5888), std::pair(64, 2944), std::pair(100, 2048)}) {
    const Matrix w = plain_matrix(n, n, 1);
    const auto size = static_cast<std::size_t>(rows) * n;
    std::vector<std::shared_ptr<Device<Bf16>>> y = {
        std::make_shared<Device<Bf16>>(random_bf16(size, 1, 2))};
    std::vector<ChainGemm> chain;
    for (int i = 0; i < kGemms; ++i) {
      y.push_back(std::make_shared<Device<Bf16>>(size));
      chain.push_back(
          {.w = w.weight, .output = LinearOutput::bf16, .x = y[i]->get(), .y = y[i + 1]->get()});
    }
    const Device<std::uint8_t> states[] = {zeroed(), zeroed()};
    for (int i = 0; i < times; ++i)
      linear_chain(chain.data(), kGemms, rows,
                   {states[i % 2].get(), states[1 - i % 2].get(), workspace_->get()}, stream_);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (int i = 0; i < kGemms; ++i) {
      expect_near(y[i + 1]->read(), product(y[i]->read(), w, rows), "y");
    }
  }
}

TEST_F(LinearChain, SharedUnits) { check_sharing(2); }
TEST_F(LinearChain, SharedUnitsOneBehindTheOther) { check_sharing(200); }

/// A small layer for racecheck: units apart, norms, units that four CTAs share, residuals.
TEST_F(LinearChain, ALayerOfManyRows) { check({256, 1024, 9216, 768}, 100); }

/// Chains for few and for many rows have states in common: what one leaves there, the next must not
/// take for its own.
TEST_F(LinearChain, OfFewAndOfManyRowsInTurns) {
  const int n = 2048;
  const Matrix first = plain_matrix(n, n, 1), second = plain_matrix(n, n, 2);
  const Device<Bf16> x(std::size_t{128} * n);
  Device<Bf16> y(std::size_t{128} * n), z(std::size_t{128} * n);
  const Device<std::uint8_t> states[] = {zeroed(), zeroed()};
  const ChainGemm gemms[] = {
      {.w = first.weight, .output = LinearOutput::bf16, .x = x.get(), .y = y.get()},
      {.w = second.weight, .output = LinearOutput::bf16, .x = y.get(), .y = z.get()}};
  for (int i = 0; i < 7; ++i) {
    const int rows = i % 3 == 1 ? 5 : 128 - i;
    const std::size_t size = static_cast<std::size_t>(rows) * n;
    const auto input = random_bf16(size, 1, 10 + i);
    cudaMemcpy(x.get(), input.data(), size * sizeof(Bf16), cudaMemcpyHostToDevice);
    for (const Device<Bf16>* old : {&y, &z}) cudaMemset(old->get(), 0xFF, size * sizeof(Bf16));
    cudaMemset(workspace_->get(), 0xFF, chain_workspace_bytes(kMostChainRows));
    cudaDeviceSynchronize();
    linear_chain(gemms, 2, rows, {states[i % 2].get(), states[1 - i % 2].get(), workspace_->get()},
                 stream_);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    auto got = y.read();
    got.resize(size);
    expect_near(got, product(input, first, rows), "y");
    const auto got_z = z.read();
    expect_near({got_z.begin(), got_z.begin() + static_cast<std::ptrdiff_t>(size)},
                product(got, second, rows), "z");
  }
}

/// A model with random words has rows this large.
TEST_F(LinearChain, RowsOfVeryLargeNumbersEnd) {
  const int n = 4096, rows = 2;
  const Quantized kind{WeightFormat::int4, 7};
  const Matrix first = quantized_matrix(kind, n, n, 1);
  const Matrix second = quantized_matrix(kind, n, n, 2);
  auto x = random_bf16(static_cast<std::size_t>(rows) * n, 1, 3);
  for (Bf16& v : x) v = rounded(value(v) * 1e15F);
  const auto gain = random_bf16(n, 1, 4);
  const Device<Bf16> d_x(x), d_gain(gain), scaled(x.size()), z(x.size());
  Device<Bf16> y(x.size());
  y.write(x);
  const Device<std::uint8_t> states[] = {zeroed(), zeroed()};
  const ChainGemm gemms[] = {{.w = first.weight,
                              .output = LinearOutput::residual,
                              .x = d_x.get(),
                              .y = y.get(),
                              .gain = d_gain.get(),
                              .scaled = scaled.get()},
                             {.w = second.weight,
                              .output = LinearOutput::bf16,
                              .x = scaled.get(),
                              .y = z.get(),
                              .normed = true,
                              .eps = kEps}};
  linear_chain(gemms, 2, rows, {states[0].get(), states[1].get(), workspace_->get()}, stream_);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  std::vector<Bf16> x_normed;
  normed(y.read(), gain, rows, n, &x_normed);
  expect_near(z.read(), product(x_normed, second, rows), "z");
}

TEST_F(LinearChain, RefusesWhatItCannotDo) {
  ChainGemm gemm;
  gemm.w = {nullptr, 64, 96, {}};  // k of 96 is no whole number of boxes
  EXPECT_EQ(chain_rows(&gemm, 1), 0);
  gemm.w = {nullptr, 68, 64, {}};
  EXPECT_EQ(chain_rows(&gemm, 1), 0);
  gemm.w = {nullptr, 64, 64, {}};
  gemm.output = LinearOutput::f32;
  EXPECT_EQ(chain_rows(&gemm, 1), 0);
  gemm.output = LinearOutput::bf16;
  EXPECT_THROW(linear_chain(&gemm, 1, kMostChainRows + 1, {}, stream_), CudaError);
}

}  // namespace
}  // namespace baton::cuda
