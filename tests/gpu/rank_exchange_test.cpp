// What ranks do together, against plain loops on the host, to the bit. Ranks are threads, each with
// a GPU of its own or several on one. rank_mix_test.cpp runs long random mixes.
#include "workers/cuda/collective/rank_exchange.h"

#include <chrono>
#include <numeric>
#include <thread>

#include "tests/gpu/rank_fixture.h"
#include "workers/cuda/layer/rowwise.h"

namespace baton::cuda {
namespace {

constexpr float kEps = 1e-5F;

class RankExchangeTest : public RankTest {};
INSTANTIATE_TEST_SUITE_P(Groups, RankExchangeTest, ::testing::ValuesIn(kRankGroups), group_name);

/// One sum on all ranks: x against the host's, y against rms_norm()'s of that x.
void expect_sum(LocalRanks& ranks, int rows, int hidden, bool norm, unsigned seed) {
  const auto n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden);
  const auto x = random_bf16(n, 3.0F, seed);
  const auto weight = random_bf16(static_cast<std::size_t>(hidden), 2.0F, seed + 1);
  std::vector<std::vector<Bf16>> partials;
  std::vector<RankMemory<Bf16>> dx, dw, dp, dy, want_y;
  for (int r = 0; r < ranks.size(); ++r) {
    partials.push_back(random_bf16(n, 1.0F, seed + 10 + static_cast<unsigned>(r)));
    dx.emplace_back(ranks[r], x);
    dw.emplace_back(ranks[r], weight);
    dp.emplace_back(ranks[r], partials.back());
    dy.emplace_back(ranks[r], n);
    want_y.emplace_back(ranks[r], n);
  }
  ranks.each([&](LocalRank& rank) {
    const auto r = static_cast<std::size_t>(rank.rank);
    rank.exchange->add_reduced(dp[r].get(), dx[r].get(), norm ? dw[r].get() : nullptr, kEps, rows,
                               hidden, norm ? dy[r].get() : nullptr, rank.stream->get());
  });
  ASSERT_TRUE(ranks.finish(kPatience));
  std::vector<Bf16> want = x;
  add_ranks(want, partials);
  for (std::size_t r = 0; r < dx.size(); ++r) {
    ASSERT_TRUE(same_bits(dx[r].read(), want))
        << "x of rank " << r << ", " << rows << " x " << hidden;
    if (!norm) continue;
    LocalRank& rank = ranks[static_cast<int>(r)];
    set_device(rank.device);
    rms_norm(dx[r].get(), dw[r].get(), kEps, rows, hidden, want_y[r].get(), rank.stream->get());
    rank.stream->synchronize();
    ASSERT_TRUE(same_bits(dy[r].read(), want_y[r].read()))
        << "y of rank " << r << ", " << rows << " x " << hidden;
  }
}

TEST_P(RankExchangeTest, SumsToTheBit) {
  LocalRanks& ranks = group({.hidden = 8192});
  unsigned seed = 100;
  for (const int hidden : {8, 1032, 2048, 4104, 8192}) {
    for (const int rows : {1, 2, 3, 7, 16, 33, 64, 300}) {
      expect_sum(ranks, rows, hidden, /*norm=*/rows % 3 != 0, seed += 100);
      if (HasFatalFailure()) return;
    }
  }
}

/// Sums that are added to nothing, over what was in their place.
void expect_plain_sum(LocalRanks& ranks, int rows, int hidden, unsigned seed) {
  const auto n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden);
  std::vector<std::vector<Bf16>> partials;
  std::vector<RankMemory<Bf16>> dp, ds;
  for (int r = 0; r < ranks.size(); ++r) {
    partials.push_back(random_bf16(n, 1.0F, seed + static_cast<unsigned>(r)));
    dp.emplace_back(ranks[r], partials.back());
    ds.emplace_back(ranks[r], n);  // NaN
  }
  ranks.each([&](LocalRank& rank) {
    const auto r = static_cast<std::size_t>(rank.rank);
    rank.exchange->reduce(dp[r].get(), ds[r].get(), rows, hidden, rank.stream->get());
  });
  ASSERT_TRUE(ranks.finish(kPatience));
  std::vector<Bf16> want(n, Bf16{0});
  add_ranks(want, partials);
  for (std::size_t r = 0; r < ds.size(); ++r) {
    ASSERT_TRUE(same_bits(ds[r].read(), want)) << "rank " << r << ", " << rows << " x " << hidden;
  }
}

TEST_P(RankExchangeTest, SumsThatAreAddedToNothing) {
  for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
    LocalRanks& ranks = group({.hidden = 4096, .direct_bytes = direct});
    unsigned seed = 60;
    for (const int rows : {1, 3, 33, 300}) {
      expect_plain_sum(ranks, rows, 1032, seed += 10);
      expect_plain_sum(ranks, rows, 4096, seed += 10);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RankExchangeTest, WideRows) {
  LocalRanks& ranks = group({.hidden = 16384});
  for (const int rows : {1, 5, 40}) {
    expect_sum(ranks, rows, 16384, true, 7);
    if (HasFatalFailure()) return;
  }
}

TEST_P(RankExchangeTest, SumsOfEveryProtocolAndCluster) {
  for (const std::size_t direct : {std::size_t{0}, std::size_t{16} << 20}) {
    for (const int cluster : {1, 2, 4, 8}) {
      LocalRanks& ranks = group({.hidden = 8192, .direct_bytes = direct, .cluster = cluster});
      for (const int rows : {1, 5, 150}) {
        expect_sum(ranks, rows, 2056, rows != 5, 11);
        expect_sum(ranks, rows, 8192, rows != 5, 12);
        if (HasFatalFailure()) return;
      }
      if (direct == 0) break;  // staged: no clusters
    }
  }
}

TEST_P(RankExchangeTest, SumsOfManyStagedRounds) {
  LocalRanks& ranks = group({.hidden = 4096, .staged_bytes = 64 << 10, .direct_bytes = 0});
  for (const int rows : {1, 30, 129}) {
    expect_sum(ranks, rows, 4096, true, 13);
    expect_sum(ranks, rows, 1032, false, 14);
    if (HasFatalFailure()) return;
  }
}

/// Columns that the ranks have, as uneven as `total` makes them; a multiple of `unit` each.
std::vector<int> columns_of(int ranks, int total, int unit) {
  std::vector<int> columns;
  int left = total / unit;
  for (int r = 0; r < ranks; ++r) {
    const int n = (left + ranks - r - 1) / (ranks - r);
    columns.push_back(n * unit);
    left -= n;
  }
  return columns;
}

template <class T>
std::vector<T> beside(const std::vector<std::vector<T>>& parts, const std::vector<int>& columns,
                      int rows) {
  std::vector<T> all;
  for (int row = 0; row < rows; ++row) {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const auto begin = parts[r].begin() + std::ptrdiff_t{row} * columns[r];
      all.insert(all.end(), begin, begin + columns[r]);
    }
  }
  return all;
}

/// `T`: float, gathered to rank 0 or to all, or Bf16, to all.
template <class T, bool kToFirst = std::is_same_v<T, float>>
void expect_gather(LocalRanks& ranks, const std::vector<int>& columns, int rows, unsigned seed) {
  const int total = std::accumulate(columns.begin(), columns.end(), 0);
  std::vector<std::vector<T>> parts;
  std::vector<RankMemory<T>> dp, da;
  for (int r = 0; r < ranks.size(); ++r) {
    const auto n = static_cast<std::size_t>(rows) *
                   static_cast<std::size_t>(columns[static_cast<std::size_t>(r)]);
    const auto bits = random_bf16(n, 4.0F, seed + static_cast<unsigned>(r));
    parts.emplace_back();
    for (const Bf16 b : bits) {
      if constexpr (std::is_same_v<T, float>) {
        parts.back().push_back(value(b) + 0.001F);
      } else {
        parts.back().push_back(b);
      }
    }
    dp.emplace_back(ranks[r], parts.back());
    da.emplace_back(ranks[r], static_cast<std::size_t>(rows) * static_cast<std::size_t>(total));
  }
  ranks.each([&](LocalRank& rank) {
    const auto r = static_cast<std::size_t>(rank.rank);
    if constexpr (kToFirst) {
      rank.exchange->gather_to_first(dp[r].get(), columns, rows, r == 0 ? da[r].get() : nullptr,
                                     rank.stream->get());
    } else {
      rank.exchange->gather(dp[r].get(), columns, rows, da[r].get(), rank.stream->get());
    }
  });
  ASSERT_TRUE(ranks.finish(kPatience));
  const auto want = beside(parts, columns, rows);
  for (std::size_t r = 0; r < (kToFirst ? 1 : da.size()); ++r) {
    ASSERT_TRUE(same_bits(da[r].read(), want))
        << "rank " << r << ", " << rows << " rows of " << total << " columns";
  }
}

TEST_P(RankExchangeTest, Gathers) {
  LocalRanks& ranks = group({.hidden = 1024});
  LocalRanks& small = group({.hidden = 1024, .staged_bytes = 32 << 10, .direct_bytes = 4 << 10});
  unsigned seed = 200;
  for (LocalRanks* const g : {&ranks, &small}) {
    for (const int rows : {1, 2, 5, 33}) {
      for (const int total : {3, 257, 4099, 4096, 128256}) {
        if (rows > 5 && total > 10000 && g == &small) continue;
        expect_gather<float>(*g, columns_of(g->size(), total, 1), rows, seed += 10);
        expect_gather<Bf16>(*g, columns_of(g->size(), total, total % 8 == 0 ? 8 : 2), rows, seed);
        expect_gather<float, false>(*g, columns_of(g->size(), total, 1), rows, seed + 5);
        if (HasFatalFailure()) return;
      }
    }
  }
  std::vector<int> one_has_all(static_cast<std::size_t>(ranks.size()), 0);
  one_has_all.back() = 1000;
  expect_gather<float>(ranks, one_has_all, 3, 5);
  expect_gather<float>(small, one_has_all, 3, 5);
}

TEST_P(RankExchangeTest, Broadcasts) {
  LocalRanks& ranks = group({.hidden = 1024});
  LocalRanks& small = group({.hidden = 1024, .staged_bytes = 32 << 10, .direct_bytes = 4 << 10});
  for (LocalRanks* const g : {&ranks, &small}) {
    for (const int n : {1, 2, 3, 255, 256, 5001, 300'000}) {
      std::vector<std::int32_t> from(static_cast<std::size_t>(n));
      std::iota(from.begin(), from.end(), 1000 + n);
      std::vector<RankMemory<std::int32_t>> data;
      for (int r = 0; r < g->size(); ++r) {
        data.emplace_back((*g)[r], from.size());
        if (r == 0) data.back().write(from);
      }
      g->each([&](LocalRank& rank) {
        rank.exchange->broadcast_from_first(data[static_cast<std::size_t>(rank.rank)].get(), n,
                                            rank.stream->get());
      });
      ASSERT_TRUE(g->finish(kPatience));
      for (const auto& d : data) ASSERT_TRUE(same_bits(d.read(), from)) << n;
    }
  }
}

/// The numbers of all units that a rank's memory has for what others send.
std::vector<std::uint32_t> numbers_of(LocalRank& rank, const RankExchangeOptions& options) {
  const RankLayout layout = RankLayout::of(options);
  std::vector<RankUnit> units((layout.staged - layout.direct) / sizeof(RankUnit));
  set_device(rank.device);
  EXPECT_EQ(cudaMemcpy(units.data(), rank.buffer.data() + layout.direct,
                       units.size() * sizeof(RankUnit), cudaMemcpyDeviceToHost),
            cudaSuccess);
  const std::size_t used =
      2 * static_cast<std::size_t>(options.ranks - 1) * (1 + layout.region_units);
  std::vector<std::uint32_t> numbers;
  for (std::size_t i = 0; i < used; ++i) {
    numbers.push_back(units[i].first_call);
    numbers.push_back(units[i].second_call);
  }
  return numbers;
}

TEST_P(RankExchangeTest, NumbersWrapAndAreRenewed) {
  for (const std::uint32_t first : {0xFFFFFFF0U, 0x3FFFFFF0U}) {
    RankExchangeOptions options{.ranks = GetParam().ranks, .hidden = 1024, .first_call = first};
    options.direct_bytes = 64 << 10;
    LocalRanks& ranks = group(options);
    std::uint32_t calls = 0;
    for (unsigned i = 0; i < 12; ++i) {
      expect_sum(ranks, 1 + static_cast<int>(i % 3), 1024, i % 2 == 0, 30 + i);
      expect_gather<float>(ranks, columns_of(ranks.size(), 100 + static_cast<int>(i), 1), 2, i);
      expect_sum(ranks, 200, 1024, false, 60 + i);  // staged: counts for itself
      if (HasFatalFailure()) return;
      calls += 2;
    }
    ASSERT_GT(calls, 18U);
    const std::uint32_t renewed = first + 0x10;
    for (int r = 0; r < ranks.size(); ++r) {
      for (const std::uint32_t number : numbers_of(ranks[r], options)) {
        ASSERT_LT(number - renewed, calls) << "an old number, rank " << r;
      }
    }
  }
}

TEST_P(RankExchangeTest, TheHostEndsAllWaits) {
  LocalRanks& ranks = group({.hidden = 8192});
  LocalRank& alone = ranks[0];
  set_device(alone.device);
  constexpr std::size_t kWords = 1 << 20;
  RankMemory<Bf16> x(alone, 2 * kWords), partial(alone, 2 * kWords);
  RankMemory<float> all(alone, kWords);
  RankMemory<std::int32_t> tokens(alone, 64);
  const std::vector<int> columns(static_cast<std::size_t>(ranks.size()), 1000);
  const auto queue_all = [&] {
    RankExchange& exchange = *alone.exchange;
    const Stream stream = alone.stream->get();
    exchange.add_reduced(partial.get(), x.get(), partial.get(), kEps, 4, 8192, x.get(), stream);
    exchange.add_reduced(partial.get(), x.get(), partial.get(), kEps, 256, 8192, x.get(), stream);
    exchange.gather_to_first(all.get(), columns, 1, all.get() + 1000, stream);
    exchange.broadcast_from_first(tokens.get(), 64, stream);
  };
  queue_all();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_EQ(cudaStreamQuery(alone.stream->get()), cudaErrorNotReady) << "it waited for nobody";
  const auto ended_in = [&] {
    const auto began = std::chrono::steady_clock::now();
    alone.stream->synchronize();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
        .count();
  };
  ranks.abort();
  const double first = ended_in();
  queue_all();
  const double later = ended_in();
  std::printf("  ended after %.2f ms, later calls after %.2f ms\n", first, later);
  EXPECT_LT(first, 100);
  EXPECT_LT(later, 20);
  ranks.reset();  // the device works, and so do they
  expect_sum(ranks, 4, 8192, true, 21);
  expect_sum(ranks, 256, 8192, true, 22);
}

TEST(RankExchangeOptionsTest, WhatCannotBeServedIsRefused) {
  EXPECT_THROW(RankExchange::buffer_bytes({.rank = 2, .ranks = 2, .hidden = 64}), CudaError);
  EXPECT_THROW(RankExchange::buffer_bytes({.ranks = 9, .hidden = 64}), CudaError);
  EXPECT_THROW(RankExchange::buffer_bytes({.ranks = 2, .hidden = 60}), CudaError);
  EXPECT_THROW(RankExchange::buffer_bytes({.ranks = 2, .hidden = 16392}), CudaError);
  EXPECT_THROW(RankExchange::buffer_bytes({.ranks = 2, .hidden = 64, .staged_bytes = 100}),
               CudaError);
}

}  // namespace
}  // namespace baton::cuda
