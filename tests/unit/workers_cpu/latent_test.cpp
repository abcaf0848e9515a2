// What tokens leave in the pool where keys and values are latent, and what heads make of it,
// against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/random_floats.h"
#include "workers/cpu/step_ops.h"

namespace baton::cpu {
namespace {

constexpr int kHeads = 3, kBlock = 16, kMaxTokens = 70;
constexpr LatentShape kShape{10, 6, 7};  // latent, turned, plain
constexpr int kWidth = 16;
constexpr LatentShape kPublished{512, 64, 128};  // of DeepSeek V2, V3 and Kimi K2

KvGeometry geometry(int width) {
  KvGeometry g;
  g.dtype = KvDtype::f32;
  g.layers = 2;
  g.kv_heads = 1;
  g.head_dim = static_cast<std::uint32_t>(width / 2);
  g.tokens_per_block = kBlock;
  g.blocks = 8;
  g.block_bytes = kv_block_bytes(g).value();
  return g;
}

struct Angles {
  explicit Angles(int pairs_of_each)
      : pairs(pairs_of_each),
        cos(random_floats(static_cast<std::size_t>(kMaxTokens * pairs), 8)),
        sin(random_floats(static_cast<std::size_t>(kMaxTokens * pairs), 9)) {}
  int pairs;
  std::vector<float> cos, sin;
};

/// A prompt of `tokens` tokens that is written into scattered blocks, and looked at.
struct Prompt {
  Prompt(int n_heads, LatentShape its_shape, int n_tokens)
      : heads(n_heads),
        shape(its_shape),
        tokens(n_tokens),
        g(geometry(shape.width())),
        angles(shape.rope / 2) {
    pool.assign(g.block_bytes * g.blocks / 4, std::numeric_limits<float>::quiet_NaN());
    for (int t = 0; t < tokens; ++t) {
      const std::uint64_t block = table[static_cast<std::size_t>(t / kBlock)];
      places.push_back(
          {&angles.cos[static_cast<std::size_t>(t * angles.pairs)],
           &angles.sin[static_cast<std::size_t>(t * angles.pairs)],
           g.block_bytes * block + 2 * kv_token_stride(g) * static_cast<unsigned>(t % kBlock)});
    }
    const auto n = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(shape.width());
    kv = random_floats(n, 1);
    keys = kv;
    norm = random_floats(static_cast<std::size_t>(shape.rank), 2);
    q = random_floats(n * static_cast<std::size_t>(heads), 3);
    out.resize(q.size());
  }
  void run() {
    StepOps ops(2, Isa::best, {heads, 1, shape.width()});
    const KvLayer layer{reinterpret_cast<std::byte*>(pool.data()), &g, 1};
    ops.latent_append({keys.data(), tokens, shape.width()}, shape, norm.data(), 1e-6F, true, places,
                      layer);
    const Segment segment{0, tokens, 0, table.data()};
    const std::int64_t columns = std::int64_t{heads} * shape.width();
    ops.attention({q.data(), tokens, columns}, {&segment, 1},
                  {.window = 0, .scale = scale, .soft_cap = 0, .sinks = nullptr, .latent = true},
                  layer, {out.data(), tokens, columns});
  }
  const float* key(int t) const { return &keys[static_cast<std::size_t>(t * shape.width())]; }
  const float* of_head(const std::vector<float>& from, int t, int h) const {
    return &from[static_cast<std::size_t>((t * heads + h) * shape.width())];
  }

  int heads;
  LatentShape shape;
  int tokens;
  float scale = 0.5F;
  KvGeometry g;
  Angles angles;
  std::vector<std::uint32_t> table = {5, 2, 7, 0, 3};
  std::vector<float> pool, kv, keys, norm, q, out;
  std::vector<RowPlace> places;
};

void expect_keys(const Prompt& p) {
  const int rank = p.shape.rank;
  for (int t = 0; t < p.tokens; ++t) {
    const float* from = &p.kv[static_cast<std::size_t>(t * p.shape.width())];
    double squares = 0;
    for (int i = 0; i < rank; ++i) squares += double{from[i]} * from[i];
    const double inverse = 1 / std::sqrt(squares / rank + 1e-6);
    for (int i = 0; i < rank; ++i) {
      ASSERT_NEAR(p.key(t)[i], from[i] * inverse * p.norm[static_cast<std::size_t>(i)], 1e-5);
    }
    for (int i = 0; i < p.angles.pairs; ++i) {
      const float* pair = from + rank + 2 * i;
      const float c = p.places[static_cast<std::size_t>(t)].cos[i];
      const float s = p.places[static_cast<std::size_t>(t)].sin[i];
      ASSERT_NEAR(p.key(t)[rank + 2 * i], pair[0] * c - pair[1] * s, 1e-5);
      ASSERT_NEAR(p.key(t)[rank + 2 * i + 1], pair[1] * c + pair[0] * s, 1e-5);
    }
  }
}

/// Values are the keys' own numbers.
void expect_attended(const Prompt& p, int t, int h) {
  std::vector<double> weights;
  double total = 0;
  for (int k = 0; k <= t; ++k) {
    double score = 0;
    for (int i = 0; i < p.shape.width(); ++i) {
      score += double{p.of_head(p.q, t, h)[i]} * p.key(k)[i];
    }
    weights.push_back(std::exp(score * double{p.scale}));
    total += weights.back();
  }
  for (int i = 0; i < p.shape.width(); ++i) {
    double want = 0;
    for (int k = 0; k <= t; ++k) want += weights[static_cast<std::size_t>(k)] / total * p.key(k)[i];
    ASSERT_NEAR(p.of_head(p.out, t, h)[i], want, 1e-5) << t << " " << h << " " << i;
  }
}

TEST(LatentAttention, MatchesPlainLoops) {
  Prompt p(kHeads, kShape, kMaxTokens);
  p.run();
  expect_keys(p);
  for (int t = 0; t < p.tokens; t += 9) {
    for (int h = 0; h < p.heads; ++h) expect_attended(p, t, h);
  }
}

/// 128 heads look at one key of 576 numbers.
TEST(LatentAttention, InThePublishedSizes) {
  Prompt p(128, kPublished, 37);
  p.scale = 0.05F;
  p.run();
  expect_keys(p);
  for (int t = 0; t < p.tokens; t += 6) {
    for (int h = 0; h < p.heads; h += 9) expect_attended(p, t, h);
  }
}

TEST(LatentAttention, QueriesAreCutByHead) {
  const Angles angles(3);
  constexpr int kRows = 5, kQuery = 13;  // plain and turned
  std::vector<RowPlace> places;
  for (int t = 0; t < kRows; ++t) places.push_back({&angles.cos[t * 3], &angles.sin[t * 3], 0});
  StepOps ops(1, Isa::best, {kHeads, 1, kWidth});
  std::vector<float> q = random_floats(kRows * kHeads * kQuery, 4);
  std::vector<float> by_head(kRows * kHeads * kShape.plain);
  std::vector<float> wide(kRows * kHeads * kWidth, -1.0F);
  const Rows heads{by_head.data(), kRows * kHeads, kShape.plain};
  const Rows rows{wide.data(), kRows, kHeads * kWidth};
  ops.latent_split({q.data(), kRows, kHeads * kQuery}, kShape, false, places, heads, rows);
  ops.heads_to_rows(heads, kShape.plain, kWidth, rows);
  std::vector<float> back(by_head.size());
  ops.rows_to_heads(rows, kShape.plain, kWidth, {back.data(), kRows * kHeads, kShape.plain});
  EXPECT_EQ(back, by_head);
  for (int t = 0; t < kRows; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      const float* from = &q[(t * kHeads + h) * kQuery];
      const float* to = &wide[(t * kHeads + h) * kWidth];
      for (int i = 0; i < kShape.plain; ++i) {
        EXPECT_EQ(by_head[(h * kRows + t) * kShape.plain + i], from[i]);
        EXPECT_EQ(to[i], from[i]);
      }
      for (int i = 0; i < 3; ++i) {
        const float a = from[kShape.plain + i];
        const float b = from[kShape.plain + 3 + i];
        EXPECT_NEAR(to[kShape.rank + i], a * places[t].cos[i] - b * places[t].sin[i], 1e-6);
        EXPECT_NEAR(to[kShape.rank + 3 + i], b * places[t].cos[i] + a * places[t].sin[i], 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace baton::cpu
