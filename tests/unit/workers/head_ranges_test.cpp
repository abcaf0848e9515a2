#include "workers/pool/head_ranges.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace baton {
namespace {

constexpr int kHeadLayers = 3;
constexpr int kHeadBlocks = 2;
constexpr std::size_t kHead = 32;  // bytes of a head in a part

using PoolBytes = std::vector<unsigned char>;

KvGeometry pool_with(std::uint32_t heads) {
  KvGeometry g;
  g.dtype = KvDtype::bf16;
  g.layers = kHeadLayers;
  g.kv_heads = heads;
  g.head_dim = 8;
  g.tokens_per_block = 2;
  g.block_bytes = kv_block_bytes(g).value_or(0);
  g.blocks = kHeadBlocks;
  return g;
}

/// Which heads of `all` a rank has, counted out by hand: evenly, or one of them several times.
std::vector<int> heads_of(int rank, int ranks, int all) {
  std::vector<int> heads;
  if (ranks > all) return {rank * all / ranks};
  for (int h = rank * all / ranks; h < (rank + 1) * all / ranks; ++h) heads.push_back(h);
  return heads;
}

/// A pool whose every byte says which head, part and block it is of.
PoolBytes filled(const std::vector<int>& heads) {
  PoolBytes pool;
  for (int block = 0; block < kHeadBlocks; ++block) {
    for (int part = 0; part < 2 * kHeadLayers; ++part) {
      for (const int head : heads) {
        pool.insert(pool.end(), kHead, static_cast<unsigned char>(head + 16 * part + 128 * block));
      }
    }
  }
  return pool;
}

TEST(HeadRanges, EveryRankGetsItsHeadsFromWorkersOfAnyNumberOfRanks) {
  for (const int all : {1, 2, 4, 8}) {
    for (const int ranks : {1, 2, 4, 8}) {
      for (const int exporters : {1, 2, 4, 8}) {
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<int> mine = heads_of(rank, ranks, all);
          const KvGeometry own = pool_with(static_cast<std::uint32_t>(mine.size()));
          PoolBytes pool(own.block_bytes * kHeadBlocks, 0xEE);
          for (const HeadSource& s : head_sources(own, {rank, ranks}, all, exporters)) {
            const PoolBytes from = filled(heads_of(s.rank, exporters, all));
            if (s.whole) {
              ASSERT_EQ(from.size(), pool.size());
              pool = from;
              continue;
            }
            for (std::size_t b = 0; b < kHeadBlocks; ++b) {
              for (std::size_t p = 0; p < s.range.parts; ++p) {
                const HeadRange& r = s.range;
                const std::size_t to = b * r.to_block + p * r.to_stride + r.to_first;
                const std::size_t at = b * r.from_block + p * r.from_stride + r.from_first;
                ASSERT_LE(to + r.bytes, pool.size());
                ASSERT_LE(at + r.bytes, from.size());
                std::memcpy(pool.data() + to, from.data() + at, r.bytes);
              }
            }
          }
          EXPECT_EQ(pool, filled(mine))
              << all << " heads, rank " << rank << " of " << ranks << " from " << exporters;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton
