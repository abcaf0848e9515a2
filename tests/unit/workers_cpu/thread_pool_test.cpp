#include "workers/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>

namespace baton::cpu {
namespace {

/// Every chunk of every job runs exactly once, before run() returns, whatever helpers do meanwhile.
void expect_each_once(ThreadPool& pool, int jobs, int pause_every) {
  std::vector<int> counts;
  std::vector<int> threads;
  for (int job = 0; job < jobs; ++job) {
    const int chunks = job % 37;
    counts.assign(static_cast<std::size_t>(chunks), 0);
    threads.assign(static_cast<std::size_t>(chunks), -1);
    pool.run(chunks, [&](int chunk, int thread) {
      ++counts[static_cast<std::size_t>(chunk)];  // plain int: a chunk has one owner
      threads[static_cast<std::size_t>(chunk)] = thread;
    });
    for (int i = 0; i < chunks; ++i) {
      ASSERT_EQ(counts[static_cast<std::size_t>(i)], 1) << "job " << job << " chunk " << i;
      ASSERT_GE(threads[static_cast<std::size_t>(i)], 0);
      ASSERT_LT(threads[static_cast<std::size_t>(i)], pool.threads());
    }
    // Long enough for helpers to fall asleep now and then.
    if (pause_every != 0 && job % pause_every == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

TEST(ThreadPool, EveryChunkRunsOnce) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads < 1 ? 1 : threads);
    expect_each_once(pool, 3000, 0);
    expect_each_once(pool, 600, 3);
  }
}

TEST(ThreadPool, HelpersTakePart) {
  ThreadPool pool(2);
  bool helped = false;
  // The second core may be busy: try for a while.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!helped && std::chrono::steady_clock::now() < end) {
    std::vector<int> threads(8);
    pool.run(8, [&](int chunk, int thread) {
      threads[static_cast<std::size_t>(chunk)] = thread;
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
      while (std::chrono::steady_clock::now() < until) {
      }
    });
    helped = std::accumulate(threads.begin(), threads.end(), 0) > 0;
  }
  EXPECT_TRUE(helped);
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 4);
    if (i % 3 == 0) pool.run(2, [](int, int) {});
  }
}

/// While a job runs, not at its end: somebody waits for it, and gives up if nothing moves.
TEST(ThreadPool, CountsChunksAsTheyEnd) {
  for (const int threads : {1, 3}) {
    std::atomic<std::uint32_t> progress{0};
    ThreadPool pool(threads);
    pool.count_chunks(&progress);
    std::atomic<std::uint32_t> before_last{0};
    pool.run(50, [&](int chunk, int) {
      if (chunk == 49) before_last = progress.load();
    });
    EXPECT_GE(before_last, 50U - static_cast<std::uint32_t>(threads));
    EXPECT_EQ(progress, 50U);
    pool.run(1, [](int, int) {});
    EXPECT_EQ(progress, 51U);
  }
}

TEST(ThreadPool, WritesOfOneJobAreSeenByTheNext) {
  ThreadPool pool(3);
  std::vector<long> values(64, 1);
  for (int round = 0; round < 2000; ++round) {
    pool.run(64, [&](int chunk, int) { values[static_cast<std::size_t>(chunk)] += 1; });
    pool.run(64, [&](int chunk, int) {
      // Reads a neighbour's value of the job before, writes nothing that others read.
      ASSERT_EQ(values[static_cast<std::size_t>((chunk + 17) % 64)], round + 2);
    });
  }
}

}  // namespace
}  // namespace baton::cpu
