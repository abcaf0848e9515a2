// Attention to keys on several GPUs, each computing what lies there, against the host in double
// precision and against the bits of one pool. With one GPU the other one is a second stream of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "tests/gpu/attention_expect.h"
#include "tests/gpu/travel_step.h"

namespace baton::cuda {
namespace {

constexpr int kInputBytes = 8 << 20;

int other_ordinal() { return device_count() > 1 ? 1 : 0; }

/// A case whose blocks lie in three pools: the own one, and two on the other device. Each holds NaN
/// where a block is not its own.
class SpreadCase {
 public:
  SpreadCase(const AttentionCase& c, const std::function<int(int block_of_row)>& pool_of)
      : c_(c), other_(other_ordinal(), 0, kInputBytes) {
    if (other_.ordinal() != 0) enable_peer_access(0, other_.ordinal());
    tables_ = c.table;
    std::vector<int> of_block(c.pool.size() / c.view.block_stride, -1);
    for (const AttentionRow& row : c.rows) {
      for (int i = 0; i < row.n_blocks; ++i) {
        std::int32_t& id = tables_[row.first_block + i];
        of_block[id] = pool_of(i);
        id |= of_block[id] << kPoolBlockBits;
      }
    }
    for (int pool = 0; pool < 3; ++pool) {
      auto all = c.pool;
      for (std::size_t b = 0; b < of_block.size(); ++b) {
        if (of_block[b] == pool) continue;
        std::fill_n(all.begin() + b * c.view.block_stride, c.view.block_stride, 0xFFFF);
      }
      pools_.push_back(array_on<std::uint16_t>(pool == 0 ? 0 : other_.ordinal(), all.size()));
      check(cudaMemcpy(pools_.back()->data(), all.data(), all.size() * 2, cudaMemcpyDefault),
            "copy");
    }
    nothing_ = array_on<std::uint16_t>(0, c.pool.size());
    nothing_->fill(0xFF);
  }

  /// `blind`: whoever reads a block that is not its device's finds NaN.
  std::vector<std::uint16_t> run(int fixed_split, bool blind, TravelPlan* plan = nullptr,
                                 bool over_link = false) const {
    DecodeAttention::Options options;
    options.shape = c_.shape;
    options.tokens_per_block = c_.tokens_per_block;
    options.max_rows = c_.n_rows;
    options.capped = c_.soft_cap > 0;
    options.fixed_split = fixed_split;
    const DecodeAttention attention(options);
    const DeviceArray<float> sinks{std::span<const float>(c_.sinks)};
    AttentionRule rule;
    rule.soft_cap = c_.soft_cap;
    rule.sinks = c_.sinks.empty() ? nullptr : sinks.data();
    const auto offset = [&](int pool) { return pools_[pool]->data() - pools_[0]->data(); };
    const std::int64_t none = nothing_->data() - pools_[0]->data();
    SeveralPools pools;
    pools.device = {0, 1, 1};
    pools.offsets = {{0, offset(1), offset(2)}, {none, offset(1), offset(2)}};
    if (blind) pools.offsets[0] = {0, none, none};
    TravelStep step(attention, c_.tokens_per_block, c_.rows, tables_, pools,
                    {over_link ? nullptr : &other_});
    if (plan != nullptr) *plan = step.plan();
    const DeviceArray<std::uint16_t> q{std::span<const std::uint16_t>(c_.qkv)};
    const std::vector<std::uint16_t> others(c_.qkv.rbegin(), c_.qkv.rend());
    const DeviceArray<std::uint16_t> q_before{std::span<const std::uint16_t>(others)};
    DeviceArray<std::uint16_t> out(static_cast<std::size_t>(c_.n_rows) * c_.shape.heads *
                                   c_.shape.head_dim);
    out.fill(0xFF);
    KvLayerView kv = c_.view;
    kv.pool = reinterpret_cast<Bf16*>(pools_[0]->data());
    const OwnedStream stream;
    check(cudaDeviceSynchronize(), "fill");
    // Again and again over the same workspace, as layers do it: their queries differ.
    for (const auto* queries : {&q, &q_before, &q_before, &q}) {
      step.attend(reinterpret_cast<const Bf16*>(queries->data()),
                  reinterpret_cast<Bf16*>(out.data()), kv, c_.scale, stream.get(), rule);
    }
    stream.synchronize();
    return out.read();
  }

 private:
  const AttentionCase& c_;
  OtherDevice other_;
  std::vector<std::int32_t> tables_;
  std::vector<std::unique_ptr<DeviceArray<std::uint16_t>>> pools_;
  std::unique_ptr<DeviceArray<std::uint16_t>> nothing_;
};

AttentionCase case_of(HeadShape shape, int tokens_per_block, const std::vector<int>& lengths) {
  AttentionCase c(shape, tokens_per_block, 0);
  for (const int length : lengths) c.add(length - 1, 1);
  c.build();
  return c;
}

const std::vector<int> kLengths = {3000, 1, 17, 700, 300, 64, 65, 2000, 5, 1023, 1024, 1025};

TEST(Travel, EachDeviceAttendsToItsOwnKeys) {
  for (const HeadShape shape :
       {HeadShape{8, 2, 128}, {8, 2, 64}, {16, 1, 128}, {5, 5, 128}, {8, 1, 256}, {3, 3, 256}}) {
    for (const int tokens_per_block : {16, 48}) {
      const AttentionCase c = case_of(shape, tokens_per_block, kLengths);
      for (const int extent : {1, 7, 40}) {
        SCOPED_TRACE(extent);
        const SpreadCase spread(c, [&](int block) { return block / extent % 3; });
        TravelPlan plan;
        const auto out = spread.run(0, /*blind=*/true, &plan);
        EXPECT_GE(plan.merges.size(), 2U);
        expect_close(c, out, 1);
      }
    }
  }
}

/// The newest tokens alone are at home, or nothing is elsewhere.
TEST(Travel, AllOrNothingLiesElsewhere) {
  const AttentionCase c = case_of({8, 2, 128}, 16, {5000});
  const SpreadCase most(c, [](int block) { return block < 312 ? 1 : 0; });
  expect_close(c, most.run(0, true), 1);
  const SpreadCase none(c, [](int) { return 0; });
  TravelPlan plan;
  expect_close(c, none.run(0, true, &plan), 1);
  EXPECT_TRUE(plan.merges.empty());
}

/// A sink is one more score of the softmax, however many pieces a row has: it counts where these
/// meet, once. A cap is part of each key's score.
TEST(Travel, SinksCountOnceAndCapsOfEachKey) {
  for (const HeadShape shape : {HeadShape{16, 2, 64}, {10, 2, 128}, {6, 2, 256}}) {
    for (const float cap : {0.0F, 2.0F}) {
      if (cap > 0 && !takes_caps(shape)) continue;
      AttentionCase c = case_of(shape, 16, kLengths);
      c.soft_cap = cap;
      c.sinks = some_sinks(shape.heads);
      for (const int fixed : {0, 64}) {
        const SpreadCase spread(c, [](int block) { return block / 4 % 3; });
        TravelPlan plan;
        const auto out = spread.run(fixed, /*blind=*/true, &plan);
        EXPECT_GE(plan.merges.size(), 2U);
        expect_close(c, out, 1);
        if (fixed > 0) {
          DecodeAttention::Options options;
          options.fixed_split = fixed;
          EXPECT_EQ(out, c.run_decode(options));
        }
      }
    }
  }
}

/// Deterministic: a piece that lies on two devices is read over the link, and the bits are those of
/// one pool.
TEST(Travel, FixedPiecesHaveTheBitsOfOnePool) {
  for (const HeadShape shape : {HeadShape{8, 2, 128}, {12, 1, 64}, {4, 2, 256}}) {
    const AttentionCase c = case_of(shape, 16, kLengths);
    for (const int fixed : {64, 256}) {
      DecodeAttention::Options options;
      options.fixed_split = fixed;
      const auto one_pool = c.run_decode(options);
      for (const int extent : {5, 16, 33}) {
        const SpreadCase spread(c, [&](int block) { return block / extent % 3; });
        TravelPlan plan;
        EXPECT_EQ(spread.run(fixed, /*blind=*/false, &plan), one_pool);
        EXPECT_GE(plan.merges.size(), extent == 5 && fixed == 256 ? 0U : 2U);
      }
    }
  }
}

/// A rank's counterpart may lie on a GPU that its process has no kernels on: its pieces are the
/// same.
TEST(Travel, PiecesReadOverTheLinkHaveTheSameBits) {
  const AttentionCase c = case_of({8, 2, 128}, 16, kLengths);
  for (const int fixed : {0, 64}) {
    const SpreadCase spread(c, [](int block) { return block / 7 % 3; });
    EXPECT_EQ(spread.run(fixed, /*blind=*/true, nullptr, /*over_link=*/true),
              spread.run(fixed, /*blind=*/true));
  }
}

/// Whoever does not wait for the others finds what was there before now and then.
TEST(Travel, TwoRunsAgreeToTheBit) {
  const AttentionCase c = case_of({8, 2, 128}, 16, {4000, 900, 2500});
  const SpreadCase spread(c, [](int block) { return block / 32 % 3; });
  const auto first = spread.run(0, true);
  for (int turn = 0; turn < 20; ++turn) EXPECT_EQ(spread.run(0, true), first);
}

}  // namespace
}  // namespace baton::cuda
