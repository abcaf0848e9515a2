// A sequence over several pools, computed through a PoolWindow: every line of logits is that of the
// same tokens in one pool, to the bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "ipc/shm_region.h"
#include "tests/cpu_torch/model_fixture.h"
#include "workers/pool/pool_window.h"

namespace baton::test {
namespace {

constexpr std::uint32_t kPerBlock = 5;  // blocks that are no whole pages
constexpr std::uint32_t kPools = 3;
constexpr std::uint32_t kBlocks = 12;  // of each

/// Three pools in shared memory, and the window of each worker. What is not written is NaN.
struct Pools {
  explicit Pools(const LlamaModel& model) : geometry(model.kv_geometry(kBlocks, kPerBlock)) {
    for (std::uint32_t i = 0; i < kPools; ++i) {
      const std::string name = "baton-spans-" + std::to_string(getpid()) + "-" + std::to_string(i);
      auto made = ShmRegion::create(name, *kv_pool_bytes(geometry));
      EXPECT_TRUE(made.ok()) << made.status().message();
      regions[i] = std::move(made).value();
      auto* floats = reinterpret_cast<float*>(regions[i].writable_data());
      std::fill_n(floats, regions[i].size() / sizeof(float),
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
  std::span<std::byte> pool(std::uint32_t i) {
    return {regions[i].writable_data(), regions[i].size()};
  }

  KvGeometry geometry;
  std::array<ShmRegion, kPools> regions;
};

class Spans : public testing::TestWithParam<std::string> {};

TEST_P(Spans, AreOnePoolToTheBit) {
  const auto model = load_golden(GetParam(), 2);
  const std::vector<Token> tokens = random_tokens(150, model->config().vocab, 3);
  const Logits want = logits_of(*model, tokens, 7, kPerBlock);
  Pools pools(*model);
  // Extents of so many blocks, one after another, back in the first pool at the end.
  constexpr std::array<std::pair<std::uint32_t, std::uint32_t>, 4> kExtents = {
      {{0, 7}, {1, 11}, {2, 9}, {0, 3}}};
  std::array<std::uint32_t, kPools> used{};
  std::vector<TablePart> before;
  std::vector<BlockId> table;
  std::size_t at = 0;
  Logits got;
  for (const auto& [master, blocks] : kExtents) {
    PoolWindow window(master, pools.pool(master), pools.geometry.block_bytes);
    for (std::uint32_t i = 0; i < kPools; ++i) ASSERT_TRUE(window.add(i, pools.pool(i)).ok());
    for (std::uint32_t i = 0; i < blocks; ++i) table.push_back(kBlocks - ++used[master]);
    BatchRow row;
    row.blocks = table;
    row.before = before;
    std::vector<BlockId> ids;
    ASSERT_TRUE(window.resolve(row, ids));
    KvPoolView view{window.base(), pools.geometry};
    view.geometry.blocks = window.ids();
    for (const std::size_t end = table.size() * kPerBlock; at < end;) {
      const std::size_t n = std::min<std::size_t>(at % 3 == 0 ? 1 : 4, end - at);
      const StepRow chunk{
          {tokens.data() + at, n}, static_cast<std::int64_t>(at), ids, LogitsWanted::all};
      const Status status = model->check({&chunk, 1}, view);
      ASSERT_TRUE(status.ok()) << status.message();
      append(got, model->forward({&chunk, 1}, view));
      at += n;
    }
    before.push_back({master, blocks});
  }
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(same_bits(got[i], want[i])) << "position " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Spans, testing::ValuesIn(distinct_models()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::test
