// The kernels of layers outside of the fused pattern against fp64 on the host.
#include <cmath>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/layer/general.h"

namespace baton::cuda {
namespace {

constexpr float kTiny = 1e-6F;

class GeneralTest : public DeviceTest {};

std::vector<float> random_floats(std::size_t n, float scale, unsigned seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> values(n);
  for (float& v : values) v = uniform(random);
  return values;
}

std::vector<double> doubles(const std::vector<Bf16>& from) {
  std::vector<double> to;
  for (const Bf16 v : from) to.push_back(static_cast<double>(value(v)));
  return to;
}

/// Rounded to bf16 at most once on the way, beside fp32's own.
void expect_close(const std::vector<Bf16>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(value(got[i])) - want[i]);
    ASSERT_LE(error, std::abs(want[i]) / 256 + 1e-4) << what << " [" << i << "]";
  }
}

void norm_in_place(std::vector<double>& x, std::size_t first, std::size_t n, bool layer,
                   const std::vector<float>& weight, const std::vector<float>& bias) {
  double mean = 0;
  for (std::size_t i = 0; i < n && layer; ++i) mean += x[first + i] / static_cast<double>(n);
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) squares += std::pow(x[first + i] - mean, 2);
  const double factor =
      1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(kTiny));
  for (std::size_t i = 0; i < n; ++i) {
    x[first + i] = (x[first + i] - mean) * factor * static_cast<double>(weight[i]) +
                   (bias.empty() ? 0.0 : static_cast<double>(bias[i]));
  }
}

TEST_F(GeneralTest, NormsOfBothKindsAndWhatAPartAdds) {
  for (const int hidden : {16, 200, 2880, 5376}) {
    for (const bool layer : {false, true}) {
      constexpr int kRows = 5;
      const auto n = static_cast<std::size_t>(hidden);
      const auto x = random_bf16(kRows * n, 3, 1);
      const auto part = random_bf16(kRows * n, 2, 2);
      const auto weight = random_floats(n, 2, 3);
      const auto bias = random_floats(n, 1, 4);
      const auto before = random_floats(n, 1, 5);
      const Device<float> w(weight), b(bias), p(before);
      const Device<Bf16> dx(x), dp(part), dy(x.size());
      const NormWeights norm{w.get(), layer ? b.get() : nullptr, kTiny, layer};
      norm_rows({dx.get(), hidden, p.get(), norm, kRows, hidden, dy.get(), hidden}, stream_);
      auto want = doubles(x);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(before[i % n]);
      auto added = doubles(part);
      for (std::size_t i = 0; i < added.size(); ++i) added[i] += static_cast<double>(bias[i % n]);
      for (std::size_t r = 0; r < kRows; ++r) {
        norm_in_place(want, r * n, n, layer, weight, layer ? bias : std::vector<float>());
        norm_in_place(added, r * n, n, layer, weight, layer ? bias : std::vector<float>());
      }
      expect_close(dy.read(), want, "norm");
      const Device<Bf16> dn(x.size());
      add_part({dp.get(), b.get(), norm, 0.25F, kRows, hidden, dx.get(), norm, dn.get()}, stream_);
      auto sum = doubles(x);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += 0.25 * added[i];
      const auto stored = dx.read();
      expect_close(stored, sum, "part");
      auto behind = doubles(stored);
      for (std::size_t r = 0; r < kRows; ++r) {
        norm_in_place(behind, r * n, n, layer, weight, layer ? bias : std::vector<float>());
      }
      expect_close(dn.read(), behind, "the norm behind it");
    }
  }
}

TEST_F(GeneralTest, PartsWithoutANormAndWithAGate) {
  constexpr int kRows = 3;
  constexpr std::size_t kHidden = 272;
  const auto x = random_bf16(kRows * kHidden, 3, 1);
  const auto part = random_bf16(kRows * kHidden, 2, 2);
  const auto n = random_bf16(kRows * kHidden, 1, 3);
  const auto w = random_floats(kHidden, 0.2F, 4);
  const auto bias = random_floats(kHidden, 1, 5);
  const Device<float> dw(w), db(bias);
  const Device<Bf16> one(x), two(x), dp(part), dn(n);
  add_part({dp.get(), nullptr, {}, 2, kRows, kHidden, one.get(), {}, nullptr}, stream_);
  add_gated_part(dp.get(), db.get(), dn.get(), dw.get(), kRows, kHidden, two.get(), stream_);
  auto plain = doubles(x);
  auto gated = doubles(x);
  for (std::size_t r = 0; r < kRows; ++r) {
    double dot = 0;
    for (std::size_t i = 0; i < kHidden; ++i) {
      dot += static_cast<double>(w[i]) * static_cast<double>(value(n[r * kHidden + i]));
    }
    for (std::size_t i = 0; i < kHidden; ++i) {
      const auto y = static_cast<double>(value(part[r * kHidden + i]));
      plain[r * kHidden + i] += 2 * y;
      gated[r * kHidden + i] += (y + static_cast<double>(bias[i])) / (1 + std::exp(-dot));
    }
  }
  expect_close(one.read(), plain, "plain");
  expect_close(two.read(), gated, "gated");
}

double gate(const Activate& how, double g, double up) {
  switch (how.gate) {
    case Gate::silu:
      g = g / (1 + std::exp(-g));
      break;
    case Gate::gelu:
      g = g / 2 * (1 + std::erf(g / std::sqrt(2.0)));
      break;
    case Gate::gelu_tanh:
      g = g / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
      break;
    case Gate::clamped:
      g = std::min(g, static_cast<double>(how.limit));
      g = g / (1 + std::exp(-static_cast<double>(how.alpha) * g));
      up = std::clamp(up, -static_cast<double>(how.limit), static_cast<double>(how.limit)) + 1;
      break;
  }
  return how.gated ? g * up : g;
}

TEST_F(GeneralTest, EveryGate) {
  constexpr int kRows = 3;
  constexpr std::size_t kWidth = 520;
  for (const Gate kind : {Gate::silu, Gate::gelu, Gate::gelu_tanh, Gate::clamped}) {
    for (const bool gated : {true, false}) {
      for (const bool biased : {true, false}) {
        const Activate how{kind, gated, 3, 1.702F};
        const std::size_t columns = gated ? 2 * kWidth : kWidth;
        const auto x = random_bf16(kRows * columns, 6, 6);
        const auto bias = random_floats(columns, 2, 7);
        std::vector<double> want;
        for (std::size_t r = 0; r < kRows; ++r) {
          for (std::size_t c = 0; c < kWidth; ++c) {
            const std::size_t at = r * columns + (gated ? c / 8 * 16 + c % 8 : c);
            const double g =
                static_cast<double>(value(x[at])) + (biased ? static_cast<double>(bias[c]) : 0);
            const double u = gated ? static_cast<double>(value(x[at + 8])) +
                                         (biased ? static_cast<double>(bias[kWidth + c]) : 0)
                                   : 0;
            want.push_back(gate(how, g, u));
          }
        }
        const Device<Bf16> dx(x), dy(want.size());
        const Device<float> db(bias);
        activate(dx.get(), biased ? db.get() : nullptr, how, kRows, kWidth, dy.get(), stream_);
        expect_close(dy.read(), want, "gate");
      }
    }
  }
}

struct HeadCase {
  HeadShape shape;
  int dims;  // 0: nothing turns
  bool interleaved, bias, norms, whole;
};

/// q and k of a row through biases, norms and the rotation; keys and values in the pool.
TEST_F(GeneralTest, HeadsTurnAndGoToThePool) {
  for (const HeadCase c : {HeadCase{{4, 2, 64}, 64, false, true, false, false},
                           {{4, 2, 128}, 64, true, false, true, false},
                           {{6, 2, 80}, 20, false, true, true, true},
                           {{4, 4, 256}, 256, false, false, true, false},
                           {{4, 1, 96}, 0, false, true, false, false}}) {
    constexpr int kRows = 3;
    constexpr int kTokens = 16;
    const int dim = c.shape.head_dim;
    const int heads = c.shape.heads + 2 * c.shape.kv_heads;
    const auto columns = static_cast<std::size_t>(heads * dim);
    const auto half = static_cast<std::size_t>(c.dims / 2);
    const auto q_columns = static_cast<std::size_t>(c.shape.heads * dim);
    const auto k_columns = static_cast<std::size_t>(c.shape.kv_heads * dim);
    const auto qkv = random_bf16(kRows * columns, 3, 1);
    const auto bias = random_floats(columns, 1, 2);
    const auto q_norm = random_floats(c.whole ? q_columns : static_cast<std::size_t>(dim), 2, 3);
    const auto k_norm = random_floats(c.whole ? k_columns : static_cast<std::size_t>(dim), 2, 4);
    const auto cos = random_floats(40 * half + 1, 1, 5);
    const auto sin = random_floats(40 * half + 1, 1, 6);
    const std::vector<std::int32_t> positions{0, 7, 39};
    KvLayerView kv;
    kv.head_stride = std::int64_t{kTokens} * dim;
    kv.part_stride = kv.head_stride * c.shape.kv_heads;
    kv.layer_offset = 2 * kv.part_stride;
    kv.block_stride = 4 * kv.part_stride;
    kv.tokens_per_block = kTokens;
    const std::vector<std::int64_t> slots{3 * kv.block_stride, -1, kv.block_stride + 5 * dim};
    const Device<Bf16> pool(static_cast<std::size_t>(4 * kv.block_stride));
    kv.pool = pool.get();
    const Device<Bf16> dq(qkv);
    const Device<float> db(bias), dqn(q_norm), dkn(k_norm), dc(cos), ds(sin);
    const Device<std::int32_t> dp(positions);
    const Device<std::int64_t> dslots(slots);
    HeadAppend a;
    a.qkv = dq.get();
    a.rows = kRows;
    a.shape = c.shape;
    a.finish = {c.bias ? db.get() : nullptr,
                c.norms ? dqn.get() : nullptr,
                c.norms ? dkn.get() : nullptr,
                c.whole,
                kTiny,
                c.dims > 0 ? dc.get() : nullptr,
                ds.get(),
                c.dims,
                c.interleaved};
    a.positions = dp.get();
    a.slots = dslots.get();
    a.kv = kv;
    const Device<float> squares(static_cast<std::size_t>(kRows * heads));
    if (c.whole) head_squares(a, squares.get(), stream_);
    a.finish.squares = squares.get();
    finish_heads(a, stream_);

    auto want = doubles(qkv);
    const auto d = static_cast<std::size_t>(dim);
    for (std::size_t r = 0; r < kRows; ++r) {
      const std::size_t row = r * columns;
      for (std::size_t i = 0; i < columns && c.bias; ++i) {
        want[row + i] += static_cast<double>(bias[i]);
      }
      if (c.norms && c.whole) {
        norm_in_place(want, row, q_columns, false, q_norm, {});
        norm_in_place(want, row + q_columns, k_columns, false, k_norm, {});
      }
      for (std::size_t h = 0; h < static_cast<std::size_t>(c.shape.heads + c.shape.kv_heads); ++h) {
        const bool q = h < static_cast<std::size_t>(c.shape.heads);
        if (c.norms && !c.whole)
          norm_in_place(want, row + h * d, d, false, q ? q_norm : k_norm, {});
        for (std::size_t i = 0; i < half; ++i) {
          const std::size_t at = static_cast<std::size_t>(positions[r]) * half + i;
          double& low = want[row + h * d + (c.interleaved ? 2 * i : i)];
          double& high = want[row + h * d + (c.interleaved ? 2 * i + 1 : i + half)];
          const double x = low, y = high;
          low = x * static_cast<double>(cos[at]) - y * static_cast<double>(sin[at]);
          high = y * static_cast<double>(cos[at]) + x * static_cast<double>(sin[at]);
        }
      }
    }
    const auto got = dq.read();
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(value(got[i]), want[i], std::abs(want[i]) / 128 + 3e-2) << i << ", " << dim;
    }
    const auto stored = pool.read();
    std::size_t written = 0;
    for (const Bf16 v : stored) written += v.bits == 0xFFFF ? 0 : 1;
    EXPECT_EQ(written, 2 * 2 * k_columns) << "a row of padding writes nothing";
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      for (std::size_t i = 0; i < 2 * k_columns; ++i) {
        const std::size_t part = i / k_columns, head = i % k_columns / d;
        const auto at = static_cast<std::size_t>(slots[r] + kv.layer_offset +
                                                 static_cast<std::int64_t>(part) * kv.part_stride +
                                                 static_cast<std::int64_t>(head) * kv.head_stride);
        ASSERT_EQ(stored[at + i % d].bits, got[r * columns + q_columns + i].bits) << i;
      }
    }
  }
}

/// Of the columns of a row of q, k and v those of one rank, in rows of `columns`.
template <typename T>
std::vector<T> columns_of_rank(const std::vector<T>& all, std::size_t columns,
                               const std::vector<std::pair<std::size_t, std::size_t>>& parts) {
  std::vector<T> mine;
  for (std::size_t row = 0; row < all.size(); row += columns) {
    for (const auto& [first, count] : parts) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row + first);
      mine.insert(mine.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
    }
  }
  return mine;
}

/// Norms over all of q and k where ranks share their heads, two of them the same keys: the bits of
/// one rank.
TEST_F(GeneralTest, NormsOverTheHeadsOfAllRanks) {
  constexpr int kHeads = 40, kDim = 80, kRows = 5;
  for (const auto& [ranks, kv_heads] : {std::pair{1, 4}, {2, 4}, {4, 4}, {4, 2}, {8, 2}}) {
    const auto n_ranks = static_cast<std::size_t>(ranks);
    const int repeats = std::max(1, ranks / kv_heads);
    const HeadShape shape{kHeads, kv_heads, kDim};
    const HeadShape own{kHeads / ranks, std::max(1, kv_heads / ranks), kDim};
    const auto q = static_cast<std::size_t>(kHeads * kDim);
    const auto kv = static_cast<std::size_t>(kv_heads * kDim);
    const auto qkv = random_bf16(kRows * (q + 2 * kv), 3, 1);
    const auto bias = random_floats(q + 2 * kv, 1, 2);
    const auto q_norm = random_floats(q, 2, 3);
    const auto k_norm = random_floats(kv, 2, 4);
    const std::vector<std::int64_t> slots(kRows, -1);
    const Device<std::int64_t> dslots(slots);
    const auto append = [&](const HeadShape& s, const Device<Bf16>& x, const Device<float>& b,
                            const Device<float>& qn, const Device<float>& kn) {
      HeadAppend a;
      a.qkv = x.get();
      a.rows = kRows;
      a.shape = s;
      a.finish.bias = b.get();
      a.finish.q_norm = qn.get();
      a.finish.k_norm = kn.get();
      a.finish.whole = true;
      a.finish.eps = kTiny;
      a.slots = dslots.get();
      return a;
    };
    const Device<Bf16> whole(qkv);
    const Device<float> db(bias), dqn(q_norm), dkn(k_norm);
    const Device<float> squares(static_cast<std::size_t>(kRows * (kHeads + kv_heads)));
    HeadAppend a = append(shape, whole, db, dqn, dkn);
    EXPECT_THROW(finish_heads(a, stream_), CudaError) << "without squares";
    head_squares(a, squares.get(), stream_);
    a.finish.squares = squares.get();
    finish_heads(a, stream_);
    const auto want = whole.read();

    const auto own_q = static_cast<std::size_t>(own.heads * kDim);
    const auto own_kv = static_cast<std::size_t>(own.kv_heads * kDim);
    const auto each = static_cast<std::size_t>(own.heads + own.kv_heads);
    std::vector<float> all(kRows * n_ranks * each);
    for (const bool finish : {false, true}) {
      const Device<float> everybody(all);
      for (std::size_t r = 0; r < n_ranks; ++r) {
        const std::size_t kv_first = r / static_cast<std::size_t>(repeats) * own_kv;
        const std::vector<std::pair<std::size_t, std::size_t>> parts = {
            {r * own_q, own_q}, {q + kv_first, own_kv}, {q + kv + kv_first, own_kv}};
        const Device<Bf16> mine(columns_of_rank(qkv, q + 2 * kv, parts));
        const Device<float> b(columns_of_rank(bias, q + 2 * kv, parts));
        const Device<float> qn(columns_of_rank(q_norm, q, {parts[0]}));
        const Device<float> kn(columns_of_rank(k_norm, kv, {{kv_first, own_kv}}));
        HeadAppend part = append(own, mine, b, qn, kn);
        if (!finish) {
          const Device<float> own_squares(kRows * each);
          head_squares(part, own_squares.get(), stream_);
          const auto got = own_squares.read();
          for (std::size_t i = 0; i < got.size(); ++i) {
            all[(i / each * n_ranks + r) * each + i % each] = got[i];
          }
          continue;
        }
        part.finish.squares = everybody.get();
        part.finish.ranks = ranks;
        part.finish.kv_repeats = repeats;
        finish_heads(part, stream_);
        const auto got = mine.read();
        const auto expected = columns_of_rank(want, q + 2 * kv, parts);
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].bits, expected[i].bits) << ranks << " ranks, rank " << r << ", " << i;
        }
      }
    }
  }
}

TEST_F(GeneralTest, ScalesAndCaps) {
  const auto x = random_bf16(300, 3, 1);
  const auto logits = random_floats(300, 60, 2);
  const Device<Bf16> dx(x);
  const Device<float> dl(logits), scaled(logits);
  scale_rows(2.5F, 3, 100, dx.get(), stream_);
  finish_logits(0.5F, 20, 3, 100, dl.get(), stream_);
  finish_logits(0.5F, 0, 3, 100, scaled.get(), stream_);
  auto want = doubles(x);
  for (double& v : want) v *= 2.5;
  expect_close(dx.read(), want, "scale");
  const auto got = dl.read();
  const auto only = scaled.read();
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], 20 * std::tanh(0.5 * static_cast<double>(logits[i]) / 20), 1e-4);
    EXPECT_FLOAT_EQ(only[i], 0.5F * logits[i]);
  }
}

}  // namespace
}  // namespace baton::cuda
