// What the ranks of a group compute together, with threads as ranks.
#include "workers/collective/collective.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

namespace baton {
namespace {

using Body = std::function<void(Collective&)>;

void run_ranks(int ranks, std::uint32_t buffer_bytes, const Body& body,
               CollectiveOptions options = {}) {
  auto memory = ExchangeMemory::create(ranks, buffer_bytes);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Collective collective(memory.value(), rank, options);
      body(collective);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

float value_at(int row, std::int64_t column) {
  return static_cast<float>(row * 1000 + static_cast<int>(column));
}

/// The columns of `total` that each rank has: not all as many.
std::vector<ColumnRange> cut(std::int64_t total, int ranks) {
  std::vector<ColumnRange> ranges;
  for (int r = 0; r < ranks; ++r) {
    const std::int64_t first = total * r / ranks;
    ranges.push_back({first, total * (r + 1) / ranks - first});
  }
  return ranges;
}

/// Which numbers of a matrix are meant: (row, column).
using Where = std::function<bool(int, std::int64_t)>;

Where everywhere() {
  return [](int, std::int64_t) { return true; };
}

/// A matrix of value_at() there, and of -1 elsewhere.
std::vector<float> matrix(int rows, std::int64_t columns, const Where& there) {
  std::vector<float> data(static_cast<std::size_t>(rows * columns), -1);
  for (int r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < columns; ++i) {
      if (there(r, i)) data[static_cast<std::size_t>(r * columns + i)] = value_at(r, i);
    }
  }
  return data;
}

class Degrees : public testing::TestWithParam<int> {};

TEST_P(Degrees, ColumnsOfEveryWidthAndBuffer) {
  for (const std::uint32_t buffer : {64U, 256U, 65536U}) {  // several rounds a row, a row, many
    run_ranks(GetParam(), buffer, [](Collective& c) {
      for (const std::int64_t columns : {1, 7, 16, 61, 200}) {
        for (const int rows : {0, 1, 3, 40}) {
          const auto ranges = cut(columns, c.ranks());
          const ColumnRange mine = ranges[static_cast<std::size_t>(c.rank())];
          std::vector<float> data = matrix(rows, columns, [&](int, std::int64_t i) {
            return i >= mine.first && i < mine.end();
          });
          c.gather_columns(data.data(), rows, columns, ranges);
          ASSERT_EQ(data, matrix(rows, columns, everywhere()));
        }
      }
    });
  }
}

TEST_P(Degrees, ColumnsForTheRootAlone) {
  run_ranks(GetParam(), 128, [](Collective& c) {
    const auto ranges = cut(50, c.ranks());
    for (int round = 0; round < 200; ++round) {
      std::vector<float> data(150, -1);
      const ColumnRange mine = ranges[static_cast<std::size_t>(c.rank())];
      for (int r = 0; r < 3; ++r) {
        for (std::int64_t i = mine.first; i < mine.end(); ++i)
          data[static_cast<std::size_t>(r * 50 + i)] = value_at(r + round, i);
      }
      c.gather_columns(data.data(), 3, 50, ranges, 0);
      const bool all = c.rank() == 0;
      for (int r = 0; r < 3; ++r) {
        for (std::int64_t i = 0; i < 50; ++i) {
          const bool there = all || (i >= mine.first && i < mine.end());
          ASSERT_EQ(data[static_cast<std::size_t>(r * 50 + i)],
                    there ? value_at(r + round, i) : -1);
        }
      }
    }
  });
}

TEST_P(Degrees, RowsByTheirOwner) {
  for (const std::uint32_t buffer : {64U, 1024U}) {
    run_ranks(GetParam(), buffer, [](Collective& c) {
      std::mt19937 rng(7);  // the same on all ranks
      for (const std::int64_t columns : {1, 5, 33}) {
        const int rows = 50;
        std::vector<int> owners(static_cast<std::size_t>(rows));
        for (int& owner : owners)
          owner = static_cast<int>(rng() % static_cast<unsigned>(c.ranks()));
        const auto owner = [&](int r) { return owners[static_cast<std::size_t>(r)]; };
        std::vector<float> data =
            matrix(rows, columns, [&](int r, std::int64_t) { return owner(r) == c.rank(); });
        c.gather_rows(data.data(), rows, columns, owner);
        ASSERT_EQ(data, matrix(rows, columns, everywhere()));
      }
    });
  }
}

/// Sums in another order would be other numbers: 1e8 swallows what is added to it.
TEST_P(Degrees, SumsInRankOrder) {
  run_ranks(GetParam(), 64, [](Collective& c) {
    const auto term = [&c](int rank, int i) {
      if (rank == 0) return 1e8F;
      return rank == c.ranks() - 1 ? -1e8F : 1.0F + static_cast<float>(i);
    };
    std::vector<float> data(100);
    for (int i = 0; i < 100; ++i) data[static_cast<std::size_t>(i)] = term(c.rank(), i);
    c.all_reduce(data.data(), 100);
    for (int i = 0; i < 100; ++i) {
      float want = term(0, i);
      for (int r = 1; r < c.ranks(); ++r) want += term(r, i);
      ASSERT_EQ(data[static_cast<std::size_t>(i)], want);
    }
  });
}

TEST_P(Degrees, BytesOfRankZero) {
  run_ranks(GetParam(), 64, [](Collective& c) {
    for (const std::size_t size : {0U, 1U, 55U, 56U, 57U, 64U, 1000U}) {
      std::string bytes;
      for (std::size_t i = 0; i < size && c.rank() == 0; ++i)
        bytes.push_back(static_cast<char>(i * 7));
      c.broadcast(bytes, 4096);
      ASSERT_EQ(bytes.size(), size);
      for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(bytes[i], static_cast<char>(i * 7));
    }
  });
}

/// Ranks that dawdle at random: nobody's buffer is filled again before all have read it.
TEST_P(Degrees, NobodyIsOvertaken) {
  run_ranks(GetParam(), 64, [](Collective& c) {
    std::mt19937 rng(static_cast<unsigned>(c.rank()));
    for (std::uint64_t i = 0; i < 3000; ++i) {
      if (rng() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng() % 200));
      const auto all = c.all_gather(i * 10 + static_cast<std::uint64_t>(c.rank()));
      for (std::size_t r = 0; r < all.size(); ++r) ASSERT_EQ(all[r], i * 10 + r);
    }
    c.barrier();
    EXPECT_EQ(c.figures().rounds, 3001U);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Degrees, testing::Values(2, 3, 4));

/// Whoever waits is let go by an abort, and nobody gets on afterwards.
TEST(Collective, AbortEndsEveryWait) {
  auto memory = ExchangeMemory::create(3);
  ASSERT_TRUE(memory.ok());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Collective c(memory.value(), rank);
      try {
        c.barrier();
        ADD_FAILURE() << "rank 2 has never come";
      } catch (const RankLost& lost) {
        EXPECT_EQ(lost.rank(), 2);
        EXPECT_FALSE(lost.silent());
      }
      EXPECT_THROW(c.barrier(), RankLost);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const TimeNs began = now_ns();
  Collective::abort(memory.value(), 2);
  Collective::abort(memory.value(), 1);  // told later: it is not the cause
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(now_ns() - began, kSecond);
}

TEST(Collective, WhoDoesNotComeIsNamed) {
  CollectiveOptions options;
  options.patience = 50 * kMillisecond;
  auto memory = ExchangeMemory::create(2);
  Collective c(memory.value(), 0, options);
  const TimeNs began = now_ns();
  try {
    c.barrier();
    ADD_FAILURE();
  } catch (const RankLost& lost) {
    EXPECT_EQ(lost.rank(), 1);
    EXPECT_TRUE(lost.silent());
  }
  EXPECT_GE(now_ns() - began, options.patience);
  EXPECT_LT(now_ns() - began, kSecond);
}

TEST(Collective, TooLongABroadcastIsRefused) {
  auto memory = ExchangeMemory::create(2);
  Collective sender(memory.value(), 0);
  Collective reader(memory.value(), 1);
  std::thread other([&] {
    std::string bytes;
    EXPECT_THROW(reader.broadcast(bytes, 99), std::length_error);
  });
  std::string bytes(100, 'x');
  sender.broadcast(bytes, 100);
  other.join();
}

TEST(ExchangeMemory, RefusesWhatItIsNot) {
  EXPECT_FALSE(ExchangeMemory::create(1).ok());
  EXPECT_FALSE(ExchangeMemory::create(kMaxRanks + 1).ok());
  EXPECT_FALSE(ExchangeMemory::create(2, 100).ok());
  auto memory = ExchangeMemory::create(2, 128);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(ExchangeMemory::map(UniqueFd(::dup(memory.value().fd()))).ok());
  memory.value().head().ranks = 3;  // its size says otherwise
  EXPECT_FALSE(ExchangeMemory::map(UniqueFd(::dup(memory.value().fd()))).ok());
  EXPECT_FALSE(ExchangeMemory::map(UniqueFd(::open("/dev/zero", O_RDWR))).ok());
}

}  // namespace
}  // namespace baton
