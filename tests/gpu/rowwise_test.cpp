// Row-wise kernels against fp64 on the host. A result may differ from the exact one by its rounding
// to bf16 (2^-8 of it covers a rounding that falls to the other side) and by a little of fp32.
#include <cmath>
#include <cstdio>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/layer/rowwise.h"

namespace baton::cuda {
namespace {

constexpr float kEps = 1e-6F;

class RowwiseTest : public DeviceTest {};

void expect_near(const std::vector<Bf16>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(value(got[i])) - want[i]);
    if (!(error <= std::abs(want[i]) / 256 + 1e-5)) {
      FAIL() << what << " [" << i << "]: " << value(got[i]) << ", not " << want[i];
    }
    worst = std::max(worst, error / (std::abs(want[i]) + 1e-3));
  }
  std::printf("  %-28s largest relative error %.2e\n", what, worst);
}

std::vector<double> reference_norm(const std::vector<Bf16>& x, const std::vector<Bf16>& weight,
                                   std::size_t hidden) {
  std::vector<double> y(x.size());
  for (std::size_t row = 0; row < x.size() / hidden; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < hidden; ++i) squares += std::pow(value(x[row * hidden + i]), 2);
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(kEps));
    for (std::size_t i = 0; i < hidden; ++i) {
      y[row * hidden + i] = static_cast<double>(value(x[row * hidden + i])) * factor *
                            static_cast<double>(value(weight[i]));
    }
  }
  return y;
}

bool same(const std::vector<Bf16>& a, const std::vector<Bf16>& b, std::size_t n) {
  return std::memcmp(a.data(), b.data(), n * sizeof(Bf16)) == 0;
}

TEST_F(RowwiseTest, NormsAndTheirBitsDoNotDependOnTheRowCount) {
  for (const int hidden : {8, 136, 1024, 2560, 4096, 8192, 16384}) {
    constexpr int kRows = 37;
    const auto n = static_cast<std::size_t>(hidden);
    const auto x = random_bf16(kRows * n, 3.0F, 1);
    const auto delta = random_bf16(kRows * n, 1.0F, 2);
    const auto weight = random_bf16(n, 2.0F, 3);
    Device<Bf16> dx(x), dd(delta), dw(weight), dy(x.size()), one(n);
    rms_norm(dx.get(), dw.get(), kEps, kRows, hidden, dy.get(), stream_);
    rms_norm(dx.get() + 5 * n, dw.get(), kEps, 1, hidden, one.get(), stream_);
    const auto y = dy.read();
    expect_near(y, reference_norm(x, weight, n), "rms_norm");
    EXPECT_TRUE(same({y.begin() + static_cast<std::ptrdiff_t>(5 * n), y.end()}, one.read(), n));

    Device<Bf16> dy2(x.size());
    add_rms_norm(dx.get(), dd.get(), dw.get(), kEps, kRows, hidden, dy2.get(), stream_);
    std::vector<Bf16> sum(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] = rounded(value(x[i]) + value(delta[i]));
    EXPECT_TRUE(same(dx.read(), sum, sum.size()));
    expect_near(dy2.read(), reference_norm(sum, weight, n), "add_rms_norm");
  }
}

TEST_F(RowwiseTest, EmbedTakesDrawnTokensAndGatherPicksRows) {
  constexpr int kVocab = 100;
  for (const int hidden : {8, 1000, 4096, 6144}) {
    const auto n = static_cast<std::size_t>(hidden);
    const auto table = random_bf16(kVocab * n, 1.0F, 4);
    const std::vector<std::int32_t> tokens{7, -1, 99, 100, -3, -2, 0};
    const std::vector<std::int32_t> sampled{42, -1, 13};
    const std::vector<int> want{7, 42, 99, 0, 13, 0, 0};
    Device<Bf16> dt(table), dx(tokens.size() * n), dg(3 * n);
    Device<std::int32_t> dk(tokens), ds(sampled), di(std::vector<std::int32_t>{4, 0, 4});
    embed(dt.get(), kVocab, dk.get(), ds.get(), static_cast<int>(tokens.size()), hidden, dx.get(),
          stream_);
    gather_rows(dx.get(), di.get(), 3, hidden, dg.get(), stream_);
    const auto x = dx.read();
    const auto gathered = dg.read();
    for (std::size_t row = 0; row < want.size(); ++row) {
      EXPECT_EQ(std::memcmp(&x[row * n], &table[static_cast<std::size_t>(want[row]) * n], 2 * n),
                0);
    }
    for (std::size_t row = 0; row < 3; ++row) {
      const std::size_t from = row == 1 ? 7 : 13;
      EXPECT_EQ(std::memcmp(&gathered[row * n], &table[from * n], 2 * n), 0);
    }
  }
}

TEST_F(RowwiseTest, SiluMul) {
  for (const int width : {8, 136, 3072, 14336}) {
    constexpr int kRows = 3;
    const auto n = static_cast<std::size_t>(width);
    const auto x = random_bf16(kRows * 2 * n, 12.0F, 5);
    std::vector<double> want(kRows * n);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::size_t at = i / n * 2 * n + i % n / 8 * 16 + i % 8;
      const auto gate = static_cast<double>(value(x[at]));
      want[i] = gate / (1 + std::exp(-gate)) * static_cast<double>(value(x[at + 8]));
    }
    Device<Bf16> dx(x), dy(want.size());
    silu_mul(dx.get(), kRows, width, dy.get(), stream_);
    expect_near(dy.read(), want, "silu_mul");
  }
}

/// One call of rope_append and what it should give.
struct RopeCase {
  HeadShape shape;
  int rows;
  bool bias;
  bool norm;
  static constexpr int kPositions = 300;
  static constexpr int kTokens = 16;
  static constexpr int kLayers = 3;
  static constexpr int kBlocks = 40;

  std::size_t dim() const { return static_cast<std::size_t>(shape.head_dim); }
  std::size_t heads() const { return static_cast<std::size_t>(shape.heads + 2 * shape.kv_heads); }
  std::size_t width() const { return heads() * dim(); }

  KvLayerView view(Bf16* pool) const {
    KvLayerView v;
    v.pool = pool;
    v.head_stride = kTokens * shape.head_dim;
    v.part_stride = v.head_stride * shape.kv_heads;
    v.layer_offset = 2 * v.part_stride;  // the second layer
    v.block_stride = 2 * v.part_stride * kLayers;
    v.tokens_per_block = kTokens;
    return v;
  }
};

struct RopeInput {
  std::vector<Bf16> x, bias, q_norm, k_norm;
  std::vector<float> cos, sin;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;

  explicit RopeInput(const RopeCase& c) {
    x = random_bf16(static_cast<std::size_t>(c.rows) * c.width(), 4.0F, 6);
    bias = random_bf16(c.width(), 1.0F, 7);
    q_norm = random_bf16(c.dim(), 2.0F, 8);
    k_norm = random_bf16(c.dim(), 2.0F, 9);
    for (std::size_t i = 0; i < RopeCase::kPositions * c.dim() / 2; ++i) {
      const double angle = 0.37 * static_cast<double>(i % 1013);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    for (int row = 0; row < c.rows; ++row) {
      positions.push_back((row * 71 + 5) % RopeCase::kPositions);
      const std::int64_t block = (row * 7 + 3) % RopeCase::kBlocks;
      const std::int64_t token = row / RopeCase::kBlocks % RopeCase::kTokens;
      slots.push_back(
          row % 10 == 9 ? -1 : block * c.view(nullptr).block_stride + token * c.shape.head_dim);
    }
  }
};

std::vector<double> reference_rope(const RopeCase& c, const RopeInput& in) {
  std::vector<double> y(in.x.size());
  const std::size_t dim = c.dim();
  const std::size_t half = dim / 2;
  for (std::size_t at = 0; at < y.size(); at += dim) {
    const std::size_t head = at / dim % c.heads();
    const auto row = at / c.width();
    std::vector<double> v(dim);
    double squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      v[i] = static_cast<double>(value(in.x[at + i]));
      if (c.bias) v[i] += static_cast<double>(value(in.bias[head * dim + i]));
      squares += v[i] * v[i];
    }
    const bool is_q = head < static_cast<std::size_t>(c.shape.heads);
    const bool is_v = head >= static_cast<std::size_t>(c.shape.heads + c.shape.kv_heads);
    for (std::size_t i = 0; i < dim && c.norm && !is_v; ++i) {
      v[i] *= static_cast<double>(value((is_q ? in.q_norm : in.k_norm)[i])) /
              std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(kEps));
    }
    const auto angle = static_cast<std::size_t>(in.positions[row]) * half;
    for (std::size_t i = 0; i < half; ++i) {
      const auto cos = is_v ? 1.0 : static_cast<double>(in.cos[angle + i]);
      const auto sin = is_v ? 0.0 : static_cast<double>(in.sin[angle + i]);
      y[at + i] = v[i] * cos - v[half + i] * sin;
      y[at + half + i] = v[half + i] * cos + v[i] * sin;
    }
  }
  return y;
}

/// The rotation cancels: its error is that of its two terms.
void expect_rope_near(const std::vector<Bf16>& got, const std::vector<double>& want) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(value(got[i])) - want[i]);
    ASSERT_LE(error, std::abs(want[i]) / 256 + 1e-4) << i;
  }
}

void check_pool(const RopeCase& c, const RopeInput& in, const std::vector<Bf16>& qkv,
                const std::vector<Bf16>& pool) {
  std::vector<Bf16> want(pool.size(), Bf16{0xFFFF});
  const KvLayerView view = c.view(nullptr);
  const auto kv_heads = static_cast<std::size_t>(c.shape.kv_heads);
  for (std::size_t row = 0; row < in.slots.size(); ++row) {
    if (in.slots[row] < 0) continue;
    for (std::size_t head = 0; head < 2 * kv_heads; ++head) {
      const std::size_t from =
          row * c.width() + (static_cast<std::size_t>(c.shape.heads) + head) * c.dim();
      const auto to = static_cast<std::size_t>(
          in.slots[row] + view.layer_offset + (head >= kv_heads ? view.part_stride : 0) +
          static_cast<std::int64_t>(head % kv_heads) * view.head_stride);
      std::copy_n(qkv.begin() + static_cast<std::ptrdiff_t>(from), c.dim(),
                  want.begin() + static_cast<std::ptrdiff_t>(to));
    }
  }
  EXPECT_TRUE(same(pool, want, pool.size())) << "the pool";
}

TEST_F(RowwiseTest, RopeTurnsAndAppends) {
  const RopeCase cases[] = {
      {{32, 8, 128}, 33, false, false}, {{16, 8, 128}, 5, false, true},
      {{14, 2, 64}, 300, true, false},  {{5, 5, 80}, 40, true, true},
      {{7, 1, 96}, 1, false, true},     {{4, 2, 72}, 9, true, true},
      {{3, 1, 256}, 11, false, true},
  };
  for (const RopeCase& c : cases) {
    const RopeInput in(c);
    Device<Bf16> x(in.x), bias(in.bias), q_norm(in.q_norm), k_norm(in.k_norm);
    Device<Bf16> pool(static_cast<std::size_t>(c.view(nullptr).block_stride) * RopeCase::kBlocks);
    Device<float> cos(in.cos), sin(in.sin);
    Device<std::int32_t> positions(in.positions);
    Device<std::int64_t> slots(in.slots);
    RopeAppend a;
    a.qkv = x.get();
    a.rows = c.rows;
    a.shape = c.shape;
    a.rope.bias = c.bias ? bias.get() : nullptr;
    a.rope.q_norm = c.norm ? q_norm.get() : nullptr;
    a.rope.k_norm = c.norm ? k_norm.get() : nullptr;
    a.rope.eps = kEps;
    a.rope.cos = cos.get();
    a.rope.sin = sin.get();
    a.positions = positions.get();
    a.slots = slots.get();
    a.kv = c.view(pool.get());
    rope_append(a, stream_);
    const auto got = x.read();
    expect_rope_near(got, reference_rope(c, in));
    check_pool(c, in, got, pool.read());
    // The first row alone has the same bits.
    x.write(in.x);
    a.rows = 1;
    rope_append(a, stream_);
    EXPECT_TRUE(same(got, x.read(), c.width()));
  }
}

TEST_F(RowwiseTest, Bench) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  constexpr int kMost = 8192;
  constexpr int kHidden = 4096;
  constexpr int kInter = 14336;
  const auto n = static_cast<std::size_t>(kHidden);
  Device<Bf16> x(random_bf16(kMost * n, 1.0F, 1)), d(random_bf16(kMost * n, 1.0F, 2));
  Device<Bf16> w(random_bf16(n, 1.0F, 3)), y(kMost * n);
  Device<Bf16> gate_up(random_bf16(std::size_t{kMost} * 2 * kInter, 1.0F, 4));
  Device<Bf16> act(std::size_t{kMost} * kInter);
  Device<std::int32_t> index(std::vector<std::int32_t>(kMost, 0));
  RopeCase c{{32, 8, 128}, kMost, false, true};
  RopeInput in(c);
  for (std::size_t row = 0; row < kMost; ++row) {
    in.slots[row] = static_cast<std::int64_t>(row / 16) * c.view(nullptr).block_stride +
                    static_cast<std::int64_t>(row % 16) * 128;
  }
  Device<Bf16> qkv(in.x), norm(in.q_norm);
  Device<Bf16> pool(static_cast<std::size_t>(c.view(nullptr).block_stride) * (kMost / 16));
  Device<float> cos(in.cos), sin(in.sin);
  Device<std::int32_t> positions(in.positions);
  Device<std::int64_t> slots(in.slots);
  RopeAppend a{qkv.get(),         1,
               c.shape,           {nullptr, norm.get(), norm.get(), kEps, cos.get(), sin.get()},
               positions.get(),   slots.get(),
               c.view(pool.get())};
  std::vector<std::int32_t> ids(kMost);
  for (int i = 0; i < kMost; ++i) ids[static_cast<std::size_t>(i)] = (i * 5) % kMost;
  index.write(ids);
  std::printf("  rows: us (TB/s)   rms_norm  add_rms_norm   gather    rope+kv   silu_mul\n");
  for (const int rows : {1, 32, 256, 2048, 8192}) {
    const int calls = rows > 256 ? 8 : 100;
    a.rows = rows;
    const double bytes = 1e-6 * 2.0 * rows;  // of a row of one element, in MB
    const auto show = [&](double us, double elements) {
      std::printf("  %6.2f (%4.2f)", us, bytes * elements / us);
    };
    std::printf("  %5d", rows);
    show(graph_us(calls,
                  [&](int) { rms_norm(x.get(), w.get(), kEps, rows, kHidden, y.get(), stream_); }),
         2.0 * kHidden);
    show(graph_us(calls,
                  [&](int) {
                    add_rms_norm(x.get(), d.get(), w.get(), kEps, rows, kHidden, y.get(), stream_);
                  }),
         4.0 * kHidden);
    show(graph_us(calls,
                  [&](int) { gather_rows(x.get(), index.get(), rows, kHidden, y.get(), stream_); }),
         2.0 * kHidden);
    show(graph_us(calls, [&](int) { rope_append(a, stream_); }), (2.0 * 48 + 8) * 128);
    show(graph_us(calls, [&](int) { silu_mul(gate_up.get(), rows, kInter, act.get(), stream_); }),
         3.0 * kInter);
    std::printf("\n");
  }
}

}  // namespace
}  // namespace baton::cuda
