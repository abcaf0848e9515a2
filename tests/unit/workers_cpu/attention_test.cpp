// The paged attention kernel against a plain softmax in double precision, and its bits under every
// way of cutting the same rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "workers/cpu/kernels.h"

namespace baton::cpu {
namespace {

/// One sequence's keys and values in a pool of one layer and one head, blocks in random order, and
/// everything that no token has written filled with NaN.
struct Pool {
  int dim, tokens_per_block;
  int window = 0;
  float soft_cap = 0;
  std::vector<float> sinks;  // [group], or none
  std::vector<std::uint32_t> table;
  std::vector<float> memory;  // [blocks][K|V][token][dim]
  std::vector<float> keys, values, queries;

  Pool(int tokens, int group, int dim_in, int block, std::uint32_t seed)
      : dim(dim_in), tokens_per_block(block) {
    const int blocks = (tokens + block - 1) / block;
    table.resize(static_cast<std::size_t>(blocks) + 3);
    std::iota(table.begin(), table.end(), 0U);
    std::mt19937 rng(seed);
    std::shuffle(table.begin(), table.end(), rng);
    std::mt19937 values_rng(77);  // the same numbers whatever the block order
    std::normal_distribution<float> normal(0.0F, 1.0F);
    const auto fill = [&](std::size_t n) {
      std::vector<float> v(n);
      for (float& x : v) x = normal(values_rng);
      return v;
    };
    keys = fill(static_cast<std::size_t>(tokens) * dim);
    values = fill(static_cast<std::size_t>(tokens) * dim);
    queries = fill(static_cast<std::size_t>(tokens) * group * dim);
    memory.assign(table.size() * 2 * block * dim, std::numeric_limits<float>::quiet_NaN());
    for (int t = 0; t < tokens; ++t) {
      float* k = memory.data() + table[t / block] * block_floats() + (t % block) * dim;
      std::copy_n(&keys[t * dim], dim, k);
      std::copy_n(&values[t * dim], dim, k + block * dim);
    }
  }
  std::size_t block_floats() const { return static_cast<std::size_t>(2) * tokens_per_block * dim; }

  /// Attention of `rows` rows from `position` on.
  std::vector<float> run(const Kernels& kernels, int group, int position, int rows) const {
    std::vector<float> out(static_cast<std::size_t>(rows) * group * dim);
    std::vector<float> scratch(attention_scratch(group, dim) + 16);
    AttentionTask t;
    t.q = queries.data() + static_cast<std::int64_t>(position) * group * dim;
    t.q_stride = group * dim;
    t.out = out.data();
    t.out_stride = group * dim;
    t.rows = rows;
    t.group = group;
    t.head_dim = dim;
    t.position = position;
    t.window = window;
    t.soft_cap = soft_cap;
    t.sinks = sinks.empty() ? nullptr : sinks.data();
    t.keys = reinterpret_cast<const std::byte*>(memory.data());
    t.values = t.keys + static_cast<std::size_t>(tokens_per_block) * dim * sizeof(float);
    t.block_bytes = block_floats() * sizeof(float);
    t.block_table = table.data();
    t.tokens_per_block = static_cast<std::uint32_t>(tokens_per_block);
    t.scale = static_cast<float>(1.0 / std::sqrt(dim));
    t.scratch = scratch.data();
    kernels.attention(t);
    return out;
  }

  /// What a sequence looks like whose first tokens' blocks are somebody else's by now.
  void spoil(int tokens) {
    for (int t = 0; t < tokens; ++t) {
      const std::size_t block = table[static_cast<std::size_t>(t / tokens_per_block)];
      float* k = memory.data() + block * block_floats() + (t % tokens_per_block) * dim;
      std::fill_n(k, dim, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(k + tokens_per_block * dim, dim, std::numeric_limits<float>::quiet_NaN());
    }
  }

  double reference(int group, int position, int g, int d) const {
    const float* q = &queries[(static_cast<std::size_t>(position) * group + g) * dim];
    std::vector<double> score(static_cast<std::size_t>(position) + 1);
    const int first = window > 0 ? std::max(0, position + 1 - window) : 0;
    double best = -1e300;
    for (int t = first; t <= position; ++t) {
      for (int i = 0; i < dim; ++i) score[t] += static_cast<double>(q[i]) * keys[t * dim + i];
      score[t] /= std::sqrt(static_cast<double>(dim));
      if (soft_cap > 0) score[t] = soft_cap * std::tanh(score[t] / soft_cap);
      best = std::max(best, score[t]);
    }
    const double sink = sinks.empty() ? -1e300 : sinks[static_cast<std::size_t>(g)];
    best = std::max(best, sink);
    double total = std::exp(sink - best);
    double sum = 0;
    for (int t = first; t <= position; ++t) {
      const double p = std::exp(score[t] - best);
      total += p;
      sum += p * values[t * dim + d];
    }
    return sum / total;
  }
};

struct Shape {
  int group, dim, block;
};
const std::vector<Shape> kShapes = {{1, 8, 16}, {3, 32, 16},  {4, 32, 16}, {2, 24, 8},
                                    {5, 40, 3}, {8, 64, 128}, {1, 2, 1},   {12, 16, 64}};

std::vector<Isa> isas() {
  std::vector<Isa> found = {Isa::avx2};
  if (isa_supported(Isa::avx512)) found.push_back(Isa::avx512);
  return found;
}

/// All rows of a sequence of `tokens`, computed in pieces of the given size.
std::vector<float> in_pieces(const Pool& pool, const Kernels& k, int group, int tokens, int piece) {
  std::vector<float> all;
  for (int at = 0; at < tokens; at += piece) {
    const std::vector<float> part = pool.run(k, group, at, std::min(piece, tokens - at));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(AttentionKernel, MatchesSoftmaxInDoublePrecision) {
  const int tokens = 150;
  for (const Shape& s : kShapes) {
    const Pool pool(tokens, s.group, s.dim, s.block, 1);
    for (const Isa isa : isas()) {
      const std::vector<float> out = in_pieces(pool, kernels(isa), s.group, tokens, 16);
      for (int t = 0; t < tokens; t += 7) {
        for (int g = 0; g < s.group; ++g) {
          for (int d = 0; d < s.dim; d += 5) {
            ASSERT_NEAR(out[(t * s.group + g) * s.dim + d], pool.reference(s.group, t, g, d), 3e-6)
                << "token " << t << " head " << g << " dim " << d << " of " << s.dim;
          }
        }
      }
    }
  }
}

/// Scores under a cap; a score beside the keys', far below theirs, among them, and far above.
TEST(AttentionKernel, CapsAndSinksMatchSoftmaxInDoublePrecision) {
  const int tokens = 100;
  for (const Shape& s : {Shape{3, 32, 16}, Shape{2, 24, 8}}) {
    for (const int window : {0, 20}) {
      for (const float cap : {0.0F, 0.7F, 50.0F}) {
        for (const bool sinks : {false, true}) {
          Pool pool(tokens, s.group, s.dim, s.block, 1);
          pool.window = window;
          pool.soft_cap = cap;
          if (sinks) pool.sinks = {-9.0F, 1.5F, 30.0F};
          std::vector<std::vector<float>> bits;
          for (const Isa isa : isas()) {
            const std::vector<float> out = in_pieces(pool, kernels(isa), s.group, tokens, 16);
            for (int t = 0; t < tokens; t += 7) {
              for (int g = 0; g < s.group; ++g) {
                for (int d = 0; d < s.dim; d += 5) {
                  ASSERT_NEAR(out[(t * s.group + g) * s.dim + d], pool.reference(s.group, t, g, d),
                              1e-5)
                      << "token " << t << " head " << g << " dim " << d << " cap " << cap;
                }
              }
            }
            EXPECT_EQ(in_pieces(pool, kernels(isa), s.group, tokens, 3), out);
            bits.push_back(out);
          }
          EXPECT_EQ(bits.front(), bits.back());
        }
      }
    }
  }
}

TEST(AttentionKernel, BitsDoNotDependOnChunksBlocksOrVariant) {
  const int tokens = 150;
  for (const Shape& s : kShapes) {
    const Pool first(tokens, s.group, s.dim, s.block, 1);
    const Pool second(tokens, s.group, s.dim, s.block, 2);  // the same tokens in other blocks
    const Pool third(tokens, s.group, s.dim, 32, 3);        // and in blocks of another size
    ASSERT_NE(first.table, second.table);
    const std::vector<float> want = in_pieces(first, kernels(Isa::avx2), s.group, tokens, 1);
    for (const Isa isa : isas()) {
      for (const Pool* pool : {&first, &second, &third}) {
        for (const int piece : {1, 2, 3, 5, 7, 15, 16}) {
          const std::vector<float> got = in_pieces(*pool, kernels(isa), s.group, tokens, piece);
          ASSERT_EQ(got.size(), want.size());
          ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
              << kernels(isa).name << " piece " << piece << " dim " << s.dim;
        }
      }
    }
  }
}

/// Windows of one key, of less than a task's rows, at and beside a tile's edge.
const std::vector<int> kWindows = {1, 5, 45, 64, 65, 100};

TEST(AttentionKernel, AWindowMatchesSoftmaxOverItsKeys) {
  const int tokens = 200;
  for (const Shape& s : kShapes) {
    Pool pool(tokens, s.group, s.dim, s.block, 1);
    for (const int window : kWindows) {
      pool.window = window;
      for (const Isa isa : isas()) {
        const std::vector<float> out = in_pieces(pool, kernels(isa), s.group, tokens, 16);
        for (int t = 0; t < tokens; t += 7) {
          const int g = t % s.group;
          for (int d = 0; d < s.dim; d += 5) {
            ASSERT_NEAR(out[(t * s.group + g) * s.dim + d], pool.reference(s.group, t, g, d), 3e-6)
                << "token " << t << " window " << window << " dim " << d << " of " << s.dim;
          }
        }
      }
    }
  }
}

TEST(AttentionKernel, BitsUnderAWindowDependOnItsKeysAlone) {
  const int tokens = 200;
  for (const Shape& s : kShapes) {
    Pool first(tokens, s.group, s.dim, s.block, 1);
    Pool second(tokens, s.group, s.dim, 32, 3);
    Pool spoiled = first;
    spoiled.spoil(100);
    for (const int window : kWindows) {
      first.window = second.window = spoiled.window = window;
      const std::vector<float> want = in_pieces(first, kernels(Isa::avx2), s.group, tokens, 1);
      for (const Isa isa : isas()) {
        for (const int piece : {1, 7, 16}) {
          for (const Pool* pool : {&first, &second}) {
            const std::vector<float> got = in_pieces(*pool, kernels(isa), s.group, tokens, piece);
            ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
                << kernels(isa).name << " piece " << piece << " window " << window;
          }
        }
        const int position = 99 + window;  // the first that no longer sees a spoiled key
        if (position + 16 > tokens) continue;
        const std::vector<float> got = spoiled.run(kernels(isa), s.group, position, 16);
        const float* whole = want.data() + static_cast<std::ptrdiff_t>(position) * s.group * s.dim;
        ASSERT_EQ(std::memcmp(got.data(), whole, got.size() * sizeof(float)), 0)
            << kernels(isa).name << " window " << window << ": reads keys in front of it";
      }
    }
  }
}

/// A window that nobody reaches the end of changes no bit.
TEST(AttentionKernel, AWindowBeyondTheSequenceIsNone) {
  Pool pool(150, 4, 32, 16, 1);
  const std::vector<float> want = in_pieces(pool, kernels(), 4, 150, 16);
  pool.window = 150;
  const std::vector<float> got = in_pieces(pool, kernels(), 4, 150, 16);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
}

TEST(AttentionKernel, LongContext) {
  const int tokens = 3000;
  const Pool pool(tokens, 2, 16, 16, 5);
  for (const Isa isa : isas()) {
    const std::vector<float> out = pool.run(kernels(isa), 2, tokens - 1, 1);
    for (int g = 0; g < 2; ++g) {
      for (int d = 0; d < 16; ++d) {
        ASSERT_NEAR(out[g * 16 + d], pool.reference(2, tokens - 1, g, d), 3e-6);
      }
    }
  }
}

}  // namespace
}  // namespace baton::cpu
