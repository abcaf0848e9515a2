// Attention over latent keys and values against fp64 on the host: the tiled kernel and the plain
// one, rows of any lengths, over one pool and over several, shared out and not. With
// BATON_GPU_BENCH=1 also times DeepSeek's shapes.
#include <cmath>
#include <numeric>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/attention/latent.h"
#include "workers/pool/pool_ids.h"

namespace baton::cuda {
namespace {

constexpr int kBlock = 16;  // tokens

class LatentTest : public DeviceTest {};

/// One layer of a pool of two, whose blocks lie in a mixed order.
struct Case {
  LatentShape shape;
  std::vector<int> lengths;  // of the rows' keys
  bool deterministic = false;
  bool pools = false;  // every third block lies in another pool
  bool mixed = true;   // blocks, and items against rows; else the first row's keys and queries are
                       // the same, whoever follows

  std::size_t width() const { return static_cast<std::size_t>(shape.width()); }
  std::size_t layer() const { return kBlock * width(); }
  std::size_t block() const { return 2 * layer(); }  // elements
};

struct Attended {
  std::vector<Bf16> wide, pool, other, got;
  std::vector<std::int32_t> table;
  std::vector<DecodeItem> items;
};

Attended attend(const Case& c, Stream stream, float scale) {
  Attended a;
  const auto rows = c.lengths.size();
  const auto heads = static_cast<std::size_t>(c.shape.heads);
  a.wide = random_bf16(rows * heads * c.width(), 1, 1);
  std::int32_t blocks = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = static_cast<int>(c.mixed ? rows - 1 - r : r);
    a.items.push_back({row, blocks, 0, c.lengths[r], 0, 1, 0, c.lengths[r] - 1});
    blocks += (c.lengths[r] + kBlock - 1) / kBlock;
  }
  a.table.resize(static_cast<std::size_t>(blocks));
  std::iota(a.table.begin(), a.table.end(), 0);
  if (c.mixed) std::shuffle(a.table.begin(), a.table.end(), std::minstd_rand(2));
  if (c.pools) {
    for (std::size_t i = 0; i < a.table.size(); i += 3) a.table[i] |= 1 << kPoolBlockBits;
  }
  a.pool = random_bf16(static_cast<std::size_t>(blocks) * c.block(), 1, 3);
  a.other = random_bf16(static_cast<std::size_t>(blocks) * c.block(), 1, 4);
  const Device<Bf16> wide(a.wide), pool(a.pool), other(a.other), out(rows * heads * c.shape.rank);
  const Device<std::int32_t> table(a.table);
  std::vector<DecodeItem> padded = a.items;
  padded.resize(rows + 3);
  const Device<DecodeItem> items(padded);
  const Device<std::int32_t> n_items(std::vector<std::int32_t>{static_cast<std::int32_t>(rows)});
  const Device<std::int64_t> offsets(std::vector<std::int64_t>{0, other.get() - pool.get()});
  const LatentAttention attention({c.shape, c.deterministic});
  const Device<std::byte> workspace(attention.workspace_bytes() + 16);
  KvLayerView kv;
  kv.pool = pool.get();
  kv.layer_offset = static_cast<std::int64_t>(c.layer());
  kv.block_stride = static_cast<std::int64_t>(c.block());
  kv.tokens_per_block = kBlock;
  if (c.pools) kv.pool_offsets = offsets.get();
  DecodeWork work;
  work.items = items.get();
  work.n_items = n_items.get();
  work.rows = work.launch = static_cast<int>(rows) + 3;  // as a graph for more rows has it
  attention.run(wide.get(), out.get(), kv, table.get(), work, scale, workspace.get(), stream);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  a.got = out.read();
  return a;
}

void expect_attended(const Case& c, Stream stream) {
  const float scale = 0.11F;
  const Attended a = attend(c, stream, scale);
  const auto heads = static_cast<std::size_t>(c.shape.heads);
  const auto rank = static_cast<std::size_t>(c.shape.rank);
  for (std::size_t r = 0; r < c.lengths.size(); ++r) {
    const std::size_t row = c.lengths.size() - 1 - r;
    const auto vector = [&](int key) {
      const std::int32_t id =
          a.table[static_cast<std::size_t>(a.items[r].first_block + key / kBlock)];
      const bool elsewhere = id >> kPoolBlockBits != 0;
      const auto block = static_cast<std::size_t>(id & ((1 << kPoolBlockBits) - 1));
      return (elsewhere ? a.other : a.pool).data() + block * c.block() + c.layer() +
             static_cast<std::size_t>(key % kBlock) * c.width();
    };
    for (std::size_t h = 0; h < heads; ++h) {
      const Bf16* q = a.wide.data() + (row * heads + h) * c.width();
      std::vector<double> weights;
      double most = -1e30, sum = 0;
      for (int key = 0; key < c.lengths[r]; ++key) {
        double score = 0;
        for (std::size_t i = 0; i < c.width(); ++i) {
          score += static_cast<double>(value(q[i])) * static_cast<double>(value(vector(key)[i]));
        }
        weights.push_back(score * static_cast<double>(scale));
        most = std::max(most, weights.back());
      }
      for (double& w : weights) sum += w = std::exp(w - most);
      for (std::size_t i = 0; i < rank; ++i) {
        double want = 0;
        for (int key = 0; key < c.lengths[r]; ++key) {
          want += weights[static_cast<std::size_t>(key)] / sum *
                  static_cast<double>(value(vector(key)[i]));
        }
        // Weights are rounded to bf16 in the tiled kernel, results in both.
        ASSERT_NEAR(value(a.got[(row * heads + h) * rank + i]), want, 0.008)
            << "row " << r << " head " << h << " [" << i << "], rank " << rank;
      }
    }
  }
}

TEST_F(LatentTest, AttentionIsThatOfTheHost) {
  for (const bool deterministic : {true, false}) {
    for (const bool pools : {false, true}) {
      for (const int heads : {1, 16, 20, 40, 128}) {
        expect_attended({{heads, 512, 64, 128}, {1, 33, 700, 32, 95}, deterministic, pools},
                        stream_);
      }
      expect_attended({{16, 512, 64, 128}, {5000}, deterministic, pools}, stream_);
      expect_attended({{3, 24, 8, 16}, {1, 3, 4, 77}, deterministic, pools}, stream_);
      expect_attended({{5, 256, 32, 64}, {31, 200}, deterministic, pools}, stream_);
    }
  }
}

TEST_F(LatentTest, ADeterministicRowKeepsItsBitsAmongOthers) {
  for (const LatentShape& shape : {LatentShape{16, 512, 64, 128}, LatentShape{2, 24, 8, 16}}) {
    const Case alone{shape, {700}, true, false, false};
    Case among = alone;
    among.lengths.resize(90, 41);
    const Attended one = attend(alone, stream_, 0.1F);
    const Attended many = attend(among, stream_, 0.1F);
    for (std::size_t i = 0; i < one.got.size(); ++i)
      ASSERT_EQ(one.got[i].bits, many.got[i].bits) << i;
  }
}

/// A slot counts a key's numbers: token 3 of block 2 begins at 2 blocks + 3 halves of a vector.
TEST_F(LatentTest, VectorsAreNormedTurnedAndWritten) {
  for (const LatentShape& shape : {LatentShape{6, 512, 64, 128}, LatentShape{1, 24, 8, 16}}) {
    for (const bool interleaved : {false, true}) {
      constexpr int kRows = 3, kPositions = 50;
      const auto rank = static_cast<std::size_t>(shape.rank),
                 rope = static_cast<std::size_t>(shape.rope);
      const auto width = rank + rope, half = rope / 2;
      const std::size_t q_row = static_cast<std::size_t>(shape.heads * shape.query()) + width;
      const std::size_t block = 2 * kBlock * width;
      const auto rows = random_bf16(kRows * q_row, 2, 1);  // queries, and behind them the vector
      std::vector<float> norm(rank), cos(kPositions * half), sin(cos.size());
      for (std::size_t i = 0; i < rank; ++i) norm[i] = 0.5F + static_cast<float>(i % 7) / 5;
      for (std::size_t i = 0; i < cos.size(); ++i) {
        cos[i] = std::cos(static_cast<float>(i));
        sin[i] = std::sin(static_cast<float>(i));
      }
      const std::vector<std::int32_t> positions{49, 0, 7};
      const auto slot = static_cast<std::int64_t>(2 * block + 3 * width / 2);
      const std::vector<std::int64_t> slots{slot, -1, slot + static_cast<std::int64_t>(width / 2)};
      const Device<Bf16> d_rows(rows), pool(std::vector<Bf16>(3 * block));
      const Device<Bf16> wide(static_cast<std::size_t>(kRows * shape.heads) * width);
      const Device<float> d_norm(norm), d_cos(cos), d_sin(sin);
      const Device<std::int32_t> d_positions(positions);
      const Device<std::int64_t> d_slots(slots);
      LatentAppend a;
      a.shape = shape;
      a.rows = kRows;
      a.q = d_rows.get();
      a.kv = d_rows.get() + (q_row - width);
      a.q_stride = a.kv_stride = static_cast<std::int64_t>(q_row);
      a.norm = d_norm.get();
      a.eps = 1e-6F;
      a.cos = d_cos.get();
      a.sin = d_sin.get();
      a.interleaved = interleaved;
      a.positions = d_positions.get();
      a.slots = d_slots.get();
      a.kv_layer.pool = pool.get();
      a.kv_layer.layer_offset = static_cast<std::int64_t>(kBlock * width);
      a.kv_layer.block_stride = static_cast<std::int64_t>(block);
      a.wide = wide.get();
      latent_append(a, stream_);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto got_pool = pool.read(), got_wide = wide.read();
      const auto expect_turned = [&](const Bf16* from, const Bf16* got, std::int32_t position) {
        for (std::size_t i = 0; i < half; ++i) {
          const std::size_t low = interleaved ? 2 * i : i,
                            high = interleaved ? 2 * i + 1 : i + half;
          const std::size_t at = static_cast<std::size_t>(position) * half + i;
          const float p = value(from[low]), q = value(from[high]);
          EXPECT_NEAR(value(got[low]), p * cos[at] - q * sin[at], 0.02);
          EXPECT_NEAR(value(got[high]), q * cos[at] + p * sin[at], 0.02);
        }
      };
      std::size_t written = 0;
      for (const Bf16 v : got_pool) written += v.bits != 0 ? 1 : 0;
      EXPECT_LE(written, 2 * width) << "a row without a slot was written";
      for (std::size_t r = 0; r < kRows; ++r) {
        for (std::size_t h = 0; h < static_cast<std::size_t>(shape.heads); ++h) {
          const std::size_t query = static_cast<std::size_t>(shape.query());
          expect_turned(
              rows.data() + r * q_row + h * query + query - rope,
              got_wide.data() + (r * static_cast<std::size_t>(shape.heads) + h) * width + rank,
              positions[r]);
        }
        if (slots[r] < 0) continue;
        const Bf16* const from = rows.data() + r * q_row + q_row - width;
        const Bf16* const got =
            got_pool.data() + 2 * block + kBlock * width + (r == 0 ? 3 : 4) * width;
        double squares = 0;
        for (std::size_t i = 0; i < rank; ++i)
          squares += std::pow(static_cast<double>(value(from[i])), 2);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(rank) + 1e-6);
        for (std::size_t i = 0; i < rank; ++i) {
          const double want =
              static_cast<double>(value(from[i])) * factor * static_cast<double>(norm[i]);
          EXPECT_NEAR(value(got[i]), want, std::abs(want) / 200 + 1e-3);
        }
        expect_turned(from + rank, got + rank, positions[r]);
      }
    }
  }
}

TEST_F(LatentTest, ProductsByHeadsAreThoseOfTheHost) {
  for (const bool inputs_first : {false, true}) {
    for (const auto& [in, out, rows] :
         {std::tuple{128, 512, 1}, {512, 128, 70}, {24, 40, 17}, {512, 64, 16}}) {
      constexpr int kHeads = 3;
      const auto n_in = static_cast<std::size_t>(in), n_out = static_cast<std::size_t>(out);
      const auto n_rows = static_cast<std::size_t>(rows);
      const std::size_t x_row = kHeads * (n_in + 8), y_row = kHeads * n_out + 16;
      const auto x = random_bf16(n_rows * x_row, 1, 1);
      const auto w = random_bf16(kHeads * n_in * n_out, 1, 2);
      const Device<Bf16> d_x(x), d_w(w), d_y(n_rows * y_row);
      HeadProduct p;
      p.w = d_w.get();
      p.w_head = std::int64_t{in} * out;
      p.inputs_first = inputs_first;
      p.in = in;
      p.out = out;
      p.rows = rows;
      p.heads = kHeads;
      p.x = d_x.get();
      p.x_row = static_cast<std::int64_t>(x_row);
      p.x_head = in + 8;
      p.y = d_y.get();
      p.y_row = static_cast<std::int64_t>(y_row);
      p.y_head = out;
      head_product(p, stream_);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto y = d_y.read();
      for (std::size_t r = 0; r < n_rows; ++r) {
        for (std::size_t h = 0; h < kHeads; ++h) {
          for (std::size_t o = 0; o < n_out; ++o) {
            double want = 0;
            for (std::size_t i = 0; i < n_in; ++i) {
              const std::size_t at =
                  h * n_in * n_out + (inputs_first ? i * n_out + o : o * n_in + i);
              want += static_cast<double>(value(x[r * x_row + h * (n_in + 8) + i])) *
                      static_cast<double>(value(w[at]));
            }
            const auto got = static_cast<double>(value(y[r * y_row + h * n_out + o]));
            ASSERT_NEAR(got, want, std::abs(want) / 256 + 1e-3) << in << " " << out << " " << rows;
          }
        }
      }
    }
  }
}

TEST_F(LatentTest, Bench) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  for (const int heads : {16, 128}) {
    for (const auto& [rows, keys] : {std::pair{1, 512},
                                     {1, 8192},
                                     {1, 65536},
                                     {16, 2048},
                                     {64, 2048},
                                     {64, 8192},
                                     {512, 2048}}) {
      const LatentShape shape{heads, 512, 64, 128};
      const auto n_rows = static_cast<std::size_t>(rows);
      const int blocks = keys / kBlock;
      const std::size_t block = kBlock * 576;
      // Long rows share tables: what matters is that no cache holds all.
      const Device<Bf16> wide(n_rows * static_cast<std::size_t>(heads) * 576);
      const Device<Bf16> out(n_rows * static_cast<std::size_t>(heads) * 512);
      const int apart = std::min(rows, 64);
      const Device<Bf16> pool(static_cast<std::size_t>(apart * blocks) * block);
      cudaMemset(pool.get(), 0, static_cast<std::size_t>(apart * blocks) * block * 2);
      cudaMemset(wide.get(), 0, n_rows * static_cast<std::size_t>(heads) * 576 * 2);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(apart * blocks));
      std::iota(ids.begin(), ids.end(), 0);
      std::vector<DecodeItem> list;
      for (int r = 0; r < rows; ++r)
        list.push_back({r, r % apart * blocks, 0, keys, 0, 1, 0, keys - 1});
      const Device<std::int32_t> table(ids), n_items(std::vector<std::int32_t>{rows});
      const Device<DecodeItem> items(list);
      const LatentAttention attention({shape, false});
      const Device<std::byte> workspace(attention.workspace_bytes() + 16);
      KvLayerView kv;
      kv.pool = pool.get();
      kv.block_stride = static_cast<std::int64_t>(block);
      kv.tokens_per_block = kBlock;
      DecodeWork work;
      work.items = items.get();
      work.n_items = n_items.get();
      work.rows = work.launch = rows;
      const double us = graph_us(8, [&](int) {
        attention.run(wide.get(), out.get(), kv, table.get(), work, 0.1F, workspace.get(), stream_);
      });
      const double bytes = 1152.0 * apart * keys;
      const double operations = 2.0 * 1088 * heads * rows * keys;
      std::printf("%3d heads, %3d rows of %5d keys: %8.1f us, %5.2f TB/s, %6.1f TFLOP/s\n", heads,
                  rows, keys, us, bytes / us / 1e6, operations / us / 1e6);
    }
  }
}

}  // namespace
}  // namespace baton::cuda
