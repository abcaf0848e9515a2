// Attention of prompt chunks to latent keys and values that are expanded first, against fp64 on the
// host. With BATON_GPU_BENCH=1 also times it beside the kernel for single rows.
#include <cmath>
#include <numeric>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/attention/latent.h"
#include "workers/pool/pool_ids.h"

namespace baton::cuda {
namespace {

constexpr int kBlock = 16, kRank = 512, kRope = 64, kPlain = 128, kValue = 128, kWidth = 576;

struct Chunk {
  int rows, position;
};

struct Case {
  int heads = 4;
  std::vector<Chunk> chunks;
  bool pools = false;            // every third block lies in another pool
  std::size_t gather_mib = 512;  // few: not all heads at once
};

class LatentPrefillTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (!PrefillAttention::expands({4, kRank, kRope, kPlain}, kValue, kBlock)) {
      GTEST_SKIP() << "no kernel for this GPU";
    }
  }
};

/// A chunk's rows begin at `first_row`, its table at `first_block`.
struct Placed {
  Case c;
  std::vector<AttentionRow> rows;
  std::vector<std::int32_t> table;
  int n_rows = 0, blocks = 0;

  explicit Placed(const Case& from) : c(from) {
    for (const Chunk& chunk : c.chunks) {
      const int n = (chunk.position + chunk.rows + kBlock - 1) / kBlock;
      rows.push_back({n_rows, chunk.rows, chunk.position, blocks, n});
      n_rows += chunk.rows;
      blocks += n;
    }
    table.resize(static_cast<std::size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::minstd_rand(2));
    for (std::size_t i = 0; c.pools && i < table.size(); i += 3) table[i] |= 1 << kPoolBlockBits;
  }
  PrefillAttention::Options options() const {
    PrefillAttention::Options o;
    o.shape = {c.heads, c.heads, kPlain + kRope};
    o.max_rows = n_rows;
    o.max_chunks = static_cast<int>(c.chunks.size());
    o.max_table = blocks;
    o.gather_bytes = c.gather_mib << 20U;
    o.latent = {c.heads, kRank, kRope, kPlain};
    o.value = kValue;
    return o;
  }
};

constexpr std::size_t kQuery = kPlain + kRope;
constexpr std::size_t kStride = 24;  // numbers behind a row's queries

/// On the device: the pool has two layers, and the second one counts.
struct Arrays {
  std::vector<Bf16> q, pool, other, w;
  explicit Arrays(const Placed& p)
      : q(random_bf16(static_cast<std::size_t>(p.n_rows) *
                          (static_cast<std::size_t>(p.c.heads) * kQuery + kStride),
                      1, 1)),
        pool(random_bf16(static_cast<std::size_t>(p.blocks) * 2 * kBlock * kWidth, 1, 2)),
        other(random_bf16(pool.size(), 1, 3)),
        w(random_bf16(static_cast<std::size_t>(p.c.heads) * (kPlain + kValue) * kRank, 0.08F, 4)) {}
};

std::vector<Bf16> attend(const Placed& p, const Arrays& from, float scale, Stream stream) {
  const Device<Bf16> q(from.q), pool(from.pool), other(from.other), w(from.w);
  const Device<Bf16> out(static_cast<std::size_t>(p.n_rows * p.c.heads) * kValue);
  const Device<std::int32_t> table(p.table);
  const Device<std::int64_t> offsets(std::vector<std::int64_t>{0, other.get() - pool.get()});
  const PrefillAttention attention(p.options());
  const Device<std::byte> floats(attention.float_workspace_bytes());
  const Device<std::byte> ints(attention.int_workspace_bytes());
  std::vector<std::byte> pinned(attention.int_workspace_bytes());
  const auto plan = attention.make_plan();
  attention.plan(p.rows, *plan, floats.get(), ints.get(), pinned.data(), stream);
  LatentChunks a;
  a.q = q.get();
  a.q_stride = static_cast<std::int64_t>(static_cast<std::size_t>(p.c.heads) * kQuery + kStride);
  a.out = out.get();
  a.kv.pool = pool.get();
  a.kv.layer_offset = std::int64_t{kBlock} * kWidth;
  a.kv.block_stride = 2 * a.kv.layer_offset;
  a.kv.tokens_per_block = kBlock;
  if (p.c.pools) a.kv.pool_offsets = offsets.get();
  a.block_table = table.get();
  a.kv_b = w.get();
  a.scale = scale;
  attention.run_latent(*plan, a, stream);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return out.read();
}

using Vector = std::vector<double>;

/// What a head's matrix makes of a vector's rank numbers: key (without what turns), then value.
Vector through(const Bf16* w, const Bf16* latent) {
  Vector to(kPlain + kValue);
  for (std::size_t o = 0; o < to.size(); ++o) {
    for (std::size_t i = 0; i < kRank; ++i) {
      to[o] += static_cast<double>(value(w[o * kRank + i])) * static_cast<double>(value(latent[i]));
    }
  }
  return to;
}

void expect_chunk(const Placed& p, const Arrays& from, const AttentionRow& chunk, int head,
                  double scale, const std::vector<Bf16>& got) {
  const auto heads = static_cast<std::size_t>(p.c.heads), h = static_cast<std::size_t>(head);
  const Bf16* w = from.w.data() + h * (kPlain + kValue) * kRank;
  std::vector<Vector> made;
  std::vector<const Bf16*> latent;
  for (int key = 0; key < chunk.position + chunk.n_rows; ++key) {
    const std::int32_t id = p.table[static_cast<std::size_t>(chunk.first_block + key / kBlock)];
    const auto block = static_cast<std::size_t>(id & ((1 << kPoolBlockBits) - 1));
    const auto& pool = id >> kPoolBlockBits != 0 ? from.other : from.pool;
    latent.push_back(pool.data() +
                     (2 * block * kBlock + kBlock + static_cast<std::size_t>(key % kBlock)) *
                         kWidth);
    made.push_back(through(w, latent.back()));
  }
  for (int r = 0; r < chunk.n_rows; r += r < 3 ? 1 : 41) {
    const auto row = static_cast<std::size_t>(chunk.first_row + r);
    const Bf16* q = from.q.data() + row * (heads * kQuery + kStride) + h * kQuery;
    Vector weights;
    double most = -1e30, sum = 0;
    for (int key = 0; key <= chunk.position + r; ++key) {
      const auto k = static_cast<std::size_t>(key);
      double score = 0;
      for (std::size_t i = 0; i < kQuery; ++i) {
        const double x =
            i < kPlain ? made[k][i] : static_cast<double>(value(latent[k][kRank + i - kPlain]));
        score += static_cast<double>(value(q[i])) * x;
      }
      weights.push_back(score * scale);
      most = std::max(most, weights.back());
    }
    for (double& weight : weights) sum += weight = std::exp(weight - most);
    for (std::size_t i = 0; i < kValue; ++i) {
      double want = 0;
      for (std::size_t k = 0; k < weights.size(); ++k)
        want += weights[k] / sum * made[k][kPlain + i];
      // Keys, values and weights are rounded to bf16.
      ASSERT_NEAR(value(got[(row * heads + h) * kValue + i]), want, 0.012)
          << "row " << row << " head " << head << " [" << i << "]";
    }
  }
}

void expect_attended(const Case& c, Stream stream) {
  const float scale = 0.11F;
  const Placed p(c);
  const Arrays arrays(p);
  const auto got = attend(p, arrays, scale, stream);
  for (const AttentionRow& chunk : p.rows) {
    for (int h = 0; h < c.heads;
         h += h + 1 < c.heads ? c.heads - 1 : 1) {  // the first and the last
      expect_chunk(p, arrays, chunk, h, static_cast<double>(scale), got);
    }
  }
}

TEST_F(LatentPrefillTest, ChunksAreThoseOfTheHost) {
  for (const bool pools : {false, true}) {
    expect_attended({4, {{70, 0}}, pools}, stream_);
    expect_attended({16, {{128, 0}, {300, 17}, {64, 640}}, pools}, stream_);
    expect_attended({1, {{65, 1}, {129, 127}}, pools}, stream_);
  }
}

/// 4 MiB hold 640 keys for 8 heads of 16.
TEST_F(LatentPrefillTest, HeadsAreExpandedByPartsWhereRoomIsScarce) {
  const Case all{16, {{200, 400}}, false, 512};
  Case parts = all;
  parts.gather_mib = 4;
  expect_attended(parts, stream_);
  const Placed p(all), q(parts);
  const Arrays arrays(p);
  const auto whole = attend(p, arrays, 0.1F, stream_), cut = attend(q, arrays, 0.1F, stream_);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    ASSERT_NEAR(value(whole[i]), value(cut[i]), 0.004) << i;
  }
}

TEST_F(LatentPrefillTest, MoreKeysThanThereIsRoomForAreRefused) {
  Case c{16, {{200, 900}}, false, 1};
  const Placed p(c);
  const PrefillAttention attention(p.options());
  const Device<std::byte> floats(attention.float_workspace_bytes());
  const Device<std::byte> ints(attention.int_workspace_bytes());
  std::vector<std::byte> pinned(attention.int_workspace_bytes());
  const auto plan = attention.make_plan();
  EXPECT_LT(attention.most_gathered_keys(), 1100);
  EXPECT_THROW(attention.plan(p.rows, *plan, floats.get(), ints.get(), pinned.data(), stream_),
               std::invalid_argument);
}

TEST_F(LatentPrefillTest, Bench) {
  if (!bench()) GTEST_SKIP() << "set BATON_GPU_BENCH";
  for (const auto& [heads, rows, position] : {std::tuple{16, 16, 0},
                                              {16, 32, 0},
                                              {16, 64, 0},
                                              {16, 128, 0},
                                              {16, 32, 2048},
                                              {16, 64, 2048},
                                              {16, 128, 2048},
                                              {16, 32, 32768},
                                              {16, 64, 32768},
                                              {16, 2048, 0},
                                              {16, 2048, 6144},
                                              {16, 2048, 30720},
                                              {128, 64, 2048},
                                              {128, 2048, 6144}}) {
    const Placed p({heads, {{rows, position}}});
    const Arrays arrays(p);
    const Device<Bf16> q(arrays.q), pool(arrays.pool), w(arrays.w);
    const auto n_rows = static_cast<std::size_t>(rows), n_heads = static_cast<std::size_t>(heads);
    const Device<Bf16> out(n_rows * n_heads * kRank),
        wide(random_bf16(n_rows * n_heads * kWidth, 1, 5));
    const Device<std::int32_t> table(p.table);
    const PrefillAttention attention(p.options());
    const Device<std::byte> floats(attention.float_workspace_bytes());
    const Device<std::byte> ints(attention.int_workspace_bytes());
    std::vector<std::byte> pinned(attention.int_workspace_bytes());
    const auto plan = attention.make_plan();
    attention.plan(p.rows, *plan, floats.get(), ints.get(), pinned.data(), stream_);
    LatentChunks a;
    a.q = q.get();
    a.q_stride = static_cast<std::int64_t>(n_heads * kQuery + kStride);
    a.out = out.get();
    a.kv.pool = pool.get();
    a.kv.layer_offset = std::int64_t{kBlock} * kWidth;
    a.kv.block_stride = 2 * a.kv.layer_offset;
    a.kv.tokens_per_block = kBlock;
    a.block_table = table.get();
    a.kv_b = w.get();
    a.scale = 0.1F;
    const double us = graph_us(4, [&](int) { attention.run_latent(*plan, a, stream_); });

    std::vector<DecodeItem> list;
    for (int r = 0; r < rows; ++r)
      list.push_back({r, 0, 0, position + r + 1, 0, 1, 0, position + r});
    const Device<DecodeItem> items(list);
    const Device<std::int32_t> n_items(std::vector<std::int32_t>{rows});
    const LatentAttention looks({{heads, kRank, kRope, kPlain}, false});
    const Device<std::byte> workspace(looks.workspace_bytes() + 16);
    DecodeWork work;
    work.items = items.get();
    work.n_items = n_items.get();
    work.rows = work.launch = rows;
    HeadProduct product;
    product.w = w.get();
    product.w_head = std::int64_t{kPlain + kValue} * kRank;
    product.rows = rows;
    product.heads = heads;
    const double absorbed = graph_us(4, [&](int) {
      product.inputs_first = true;
      product.in = kPlain;
      product.out = kRank;
      product.x = q.get();
      product.x_row = a.q_stride;
      product.x_head = kQuery;
      product.y = wide.get();
      product.y_row = std::int64_t{heads} * kWidth;
      product.y_head = kWidth;
      head_product(product, stream_);
      looks.run(wide.get(), out.get(), a.kv, table.get(), work, 0.1F, workspace.get(), stream_);
      product.inputs_first = false;
      product.in = kRank;
      product.out = kValue;
      product.x = wide.get();
      product.x_row = std::int64_t{heads} * kWidth;
      product.x_head = kWidth;
      product.y = out.get();
      product.y_row = std::int64_t{heads} * kValue;
      product.y_head = kValue;
      head_product(product, stream_);
    });
    std::printf("%3d heads, %4d rows from %5d on: expanded %8.1f us, as they are %8.1f us, %5.2f\n",
                heads, rows, position, us, absorbed, absorbed / us);
  }
}

}  // namespace
}  // namespace baton::cuda
