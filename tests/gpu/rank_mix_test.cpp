// Long random mixes of what ranks do together, with ranks that come late and CTAs that dawdle
// between what they send and what they receive, from graphs and without: for faults of the
// protocols that a single call does not show. The last test plants one.
#include <cstdio>
#include <random>

#include "tests/gpu/delay_kernel.h"
#include "tests/gpu/rank_fixture.h"
#include "workers/cuda/collective/rank_exchange.h"

namespace baton::cuda {
namespace {

using Words = std::vector<std::uint32_t>;

constexpr int kHiddens[] = {256, 1032, 2048};
constexpr int kMostRows = 48;
constexpr std::size_t kPoolWords = 1 << 18;
constexpr std::size_t kLogWords = 1 << 23;
constexpr float kEps = 1e-5F;

enum class Kind : std::uint8_t { sum, sum_and_norm, gather_to_first, gather, broadcast };

struct Op {
  Kind kind = Kind::sum;
  int hidden = 0;  // index, of sums
  int rows = 1;
  std::size_t from = 0;  // where each rank's pool has the input, in words
  std::vector<int> columns;
  std::size_t to = 0;  // where the output goes in the log, in words
  std::size_t words = 0;
  std::vector<int> delay_us;  // by rank

  bool is_sum() const { return kind == Kind::sum || kind == Kind::sum_and_norm; }
};

std::size_t size(int n) { return static_cast<std::size_t>(n); }

/// The same on every rank.
class Batch {
 public:
  Batch(int ops, int ranks, std::mt19937& random) {
    for (int i = 0; i < ops; ++i) ops_.push_back(draw(ranks, random));
  }
  const std::vector<Op>& ops() const { return ops_; }
  std::size_t log_words() const { return log_words_; }

 private:
  Op draw(int ranks, std::mt19937& random) {
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    Op op;
    const int kind = below(10);
    op.kind = kind < 3   ? Kind::sum
              : kind < 6 ? Kind::sum_and_norm
              : kind < 8 ? Kind::gather_to_first
              : kind < 9 ? Kind::gather
                         : Kind::broadcast;
    op.hidden = below(3);
    op.rows = below(4) == 0 ? 1 + below(kMostRows) : 1 + below(4);
    if (op.is_sum()) {
      op.words = size(op.rows) * size(kHiddens[op.hidden]) / 2;
      op.from = size(below(1000)) * 4;
    } else if (op.kind == Kind::broadcast) {
      op.words = size(1 + below(below(4) == 0 ? 9000U : 64U));
    } else {
      const int unit = below(2) == 0 ? 4 : 1;
      for (int r = 0; r < ranks; ++r) op.columns.push_back(unit * (1 + below(300)));
      if (below(8) == 0) op.columns[size(below(static_cast<unsigned>(ranks)))] = 0;
      for (const int n : op.columns) op.words += size(op.rows) * size(n);
      op.from = size(below(1000)) * (unit == 4 ? 4 : 1);
    }
    op.to = log_words_;
    log_words_ += (op.words + 3) / 4 * 4;
    for (int r = 0; r < ranks; ++r) op.delay_us.push_back(below(6) == 0 ? below(120) : 0);
    return op;
  }

  std::vector<Op> ops_;
  std::size_t log_words_ = 0;
};

/// A rank's memory on its device.
struct Memory {
  Memory(const LocalRank& rank, const Words& from)
      : pool(rank, from), log(rank, kLogWords), weight(rank, Words(1024, 0x3F803F80)) {
    for (const int hidden : kHiddens) x.emplace_back(rank, Words(size(kMostRows * hidden / 2), 0));
  }
  RankMemory<std::uint32_t> pool, log, weight;
  std::vector<RankMemory<std::uint32_t>> x;
};

class Mix {
 public:
  Mix(LocalRanks& ranks, unsigned seed) : ranks_(ranks), random_(seed) {
    for (int r = 0; r < ranks.size(); ++r) {
      const auto bits = random_bf16(2 * kPoolWords, 1.0F, seed * 100 + static_cast<unsigned>(r));
      pools_.emplace_back(kPoolWords);
      std::memcpy(pools_.back().data(), bits.data(), 4 * kPoolWords);
      memories_.push_back(std::make_unique<Memory>(ranks[r], pools_.back()));
    }
    for (const int hidden : kHiddens) x_.emplace_back(size(kMostRows * hidden), Bf16{});
  }

  /// Runs a batch of calls `passes` times and compares; what is wrong, empty: nothing.
  std::string run(int ops, bool graphs, std::chrono::milliseconds patience) {
    const Batch batch(ops, ranks_.size(), random_);
    if (batch.log_words() > kLogWords) throw CudaError("the log is too short");
    const Words before = log_before(batch);
    for (std::size_t r = 0; r < memories_.size(); ++r) {
      memories_[r]->log.write(r == 0 ? before : Words(before.size(), 0xFFFFFFFF));
    }
    std::vector<Graph> recorded(memories_.size());
    if (graphs) {
      ranks_.each([&](LocalRank& rank) {
        recorded[size(rank.rank)] = Graph::record(rank.stream->get(), [&] { queue(batch, rank); });
      });
    }
    const int passes = graphs ? 3 : 1;
    ranks_.each([&](LocalRank& rank) {
      for (int pass = 0; pass < passes; ++pass) {
        if (graphs && pass != 1) {
          recorded[size(rank.rank)].launch(rank.stream->get());
        } else {
          queue(batch, rank);
        }
      }
    });
    const bool in_time = ranks_.finish(patience);
    if (!in_time) return "a rank waits in vain";
    for (int pass = 0; pass < passes; ++pass) apply(batch);
    calls_ += static_cast<std::size_t>(ops) * size(passes);
    return compare(batch, before);
  }
  std::size_t calls() const { return calls_; }

 private:
  void queue(const Batch& batch, LocalRank& rank) {
    Memory& m = *memories_[size(rank.rank)];
    RankExchange& exchange = *rank.exchange;
    const Stream stream = rank.stream->get();
    for (const Op& op : batch.ops()) {
      if (op.delay_us[size(rank.rank)] > 0) delay(op.delay_us[size(rank.rank)], stream);
      auto* const from = m.pool.get() + op.from;
      auto* const to = m.log.get() + op.to;
      if (op.is_sum()) {
        const bool norm = op.kind == Kind::sum_and_norm;
        exchange.add_reduced(reinterpret_cast<const Bf16*>(from),
                             reinterpret_cast<Bf16*>(m.x[size(op.hidden)].get()),
                             norm ? reinterpret_cast<const Bf16*>(m.weight.get()) : nullptr, kEps,
                             op.rows, kHiddens[op.hidden], reinterpret_cast<Bf16*>(to), stream);
      } else if (op.kind == Kind::gather_to_first) {
        exchange.gather_to_first(reinterpret_cast<const float*>(from), op.columns, op.rows,
                                 reinterpret_cast<float*>(to), stream);
      } else if (op.kind == Kind::gather) {
        std::vector<int> columns = op.columns;
        for (int& n : columns) n *= 2;
        exchange.gather(reinterpret_cast<const Bf16*>(from), columns, op.rows,
                        reinterpret_cast<Bf16*>(to), stream);
      } else {
        exchange.broadcast_from_first(reinterpret_cast<std::int32_t*>(to),
                                      static_cast<int>(op.words), stream);
      }
    }
  }

  /// Rank 0's log: what it broadcasts is there already.
  Words log_before(const Batch& batch) {
    Words log(batch.log_words(), 0xFFFFFFFF);
    for (const Op& op : batch.ops()) {
      if (op.kind != Kind::broadcast) continue;
      for (std::size_t i = 0; i < op.words; ++i) log[op.to + i] = random_();
    }
    return log;
  }

  void apply(const Batch& batch) {
    for (const Op& op : batch.ops()) {
      if (!op.is_sum()) continue;
      std::vector<const Bf16*> partials;
      for (const Words& pool : pools_) {
        partials.push_back(reinterpret_cast<const Bf16*>(pool.data() + op.from));
      }
      std::vector<Bf16>& x = x_[size(op.hidden)];
      for (std::size_t i = 0; i < 2 * op.words; ++i) {
        x[i] = added(x[i], partials.data(), partials.size(), i);
      }
    }
  }

  std::string compare(const Batch& batch, const Words& first) const {
    std::vector<Words> logs;
    for (const auto& memory : memories_) logs.push_back(memory->log.read());
    for (std::size_t r = 0; r < logs.size(); ++r) {
      const std::string of_rank = " of rank " + std::to_string(r);
      for (std::size_t h = 0; h < x_.size(); ++h) {
        const Words x = memories_[r]->x[h].read();
        if (std::memcmp(x.data(), x_[h].data(), 4 * x.size()) != 0) return "a sum" + of_rank;
      }
      for (const Op& op : batch.ops()) {
        const auto got = logs[r].begin() + static_cast<std::ptrdiff_t>(op.to);
        if (op.kind == Kind::sum || (op.kind == Kind::gather_to_first && r > 0)) continue;
        const Words want = op.kind == Kind::sum_and_norm ? part(logs[0], op)
                           : op.kind == Kind::broadcast  ? part(first, op)
                                                         : gathered(op);
        if (!std::equal(want.begin(), want.end(), got)) {
          return "output of kind " + std::to_string(static_cast<int>(op.kind)) + of_rank;
        }
      }
    }
    return "";
  }
  static Words part(const Words& log, const Op& op) {
    const auto begin = log.begin() + static_cast<std::ptrdiff_t>(op.to);
    return {begin, begin + static_cast<std::ptrdiff_t>(op.words)};
  }
  Words gathered(const Op& op) const {
    Words all;
    for (int row = 0; row < op.rows; ++row) {
      for (std::size_t r = 0; r < pools_.size(); ++r) {
        const auto begin = pools_[r].begin() + static_cast<std::ptrdiff_t>(op.from) +
                           std::ptrdiff_t{row} * op.columns[r];
        all.insert(all.end(), begin, begin + op.columns[r]);
      }
    }
    return all;
  }

  LocalRanks& ranks_;
  std::mt19937 random_;
  std::vector<Words> pools_;  // by rank
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::vector<Bf16>> x_;  // as it should be
  std::size_t calls_ = 0;
};

class RankMixTest : public RankTest {
 protected:
  /// So small that all protocols have several rounds.
  static RankExchangeOptions options() {
    RankExchangeOptions o{.hidden = 2048, .staged_bytes = 64 << 10};
    o.direct_bytes = (24 << 10) * static_cast<std::size_t>(GetParam().ranks - 1);
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, RankMixTest, ::testing::ValuesIn(kRankGroups), group_name);

TEST_P(RankMixTest, ThousandsOfCalls) {
  std::size_t calls = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    RankExchangeOptions o = options();
    o.pause = seed % 2 == 0 ? 0 : 30'000;
    o.first_call = seed == 3 ? 0xFFFFFF00U : seed == 4 ? 0x3FFFFF80U : 1;
    LocalRanks& ranks = group(o);
    Mix mix(ranks, seed);
    for (int batch = 0; batch < 12; ++batch) {
      ASSERT_EQ(mix.run(60, batch % 2 == 1, kPatience), "") << "seed " << seed << ", " << batch;
    }
    calls += mix.calls();
  }
  std::printf("  %zu calls\n", calls);
}

/// The others wait for it with as many CTAs as they have, and its delay and its own kernel want
/// their places beside them.
TEST_P(RankMixTest, ARankThatComesLateFindsAPlace) {
  constexpr int kRows = 512;
  for (const std::size_t direct : {std::size_t{0}, std::size_t{16} << 20}) {
    LocalRanks& ranks = group({.hidden = 2048, .direct_bytes = direct});
    for (const int hidden : {256, 2048}) {
      const Words zeros(size(kRows * hidden / 2), 0);
      std::vector<RankMemory<std::uint32_t>> partial, x;
      for (int r = 0; r < ranks.size(); ++r) {
        partial.emplace_back(ranks[r], zeros);
        x.emplace_back(ranks[r], zeros);
      }
      for (int late = 0; late < ranks.size(); ++late) {
        ranks.each([&](LocalRank& rank) {
          const Stream stream = rank.stream->get();
          const auto r = size(rank.rank);
          if (rank.rank == late) delay(500, stream);
          rank.exchange->add_reduced(reinterpret_cast<const Bf16*>(partial[r].get()),
                                     reinterpret_cast<Bf16*>(x[r].get()), nullptr, kEps, kRows,
                                     hidden, nullptr, stream);
        });
        ASSERT_TRUE(ranks.finish(kPatience)) << hidden << ", rank " << late << ", " << direct;
      }
    }
  }
}

TEST_P(RankMixTest, AFaultInTheProtocolIsFound) {
  RankExchangeOptions o = options();
  o.pause = 30'000;
  o.generations = 1;
  LocalRanks& ranks = group(o);
  Mix mix(ranks, 1);
  std::string found;
  for (int batch = 0; batch < 12 && found.empty(); ++batch) {
    found = mix.run(60, batch % 2 == 1, std::chrono::seconds(3));
  }
  std::printf("  after %zu calls: %s\n", mix.calls(), found.c_str());
  EXPECT_NE(found, "");
}

}  // namespace
}  // namespace baton::cuda
