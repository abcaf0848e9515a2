// When a layer of a step over several ranks is told to other workers: not before each rank's keys
// and values are in the pool, for whoever has heard of it reads them all.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpu_torch/model_fixture.h"
#include "tests/cpu_torch/ranked_model.h"

namespace baton::test {
namespace {

constexpr std::uint32_t kRankBlocks = 6;
constexpr std::uint32_t kSlots = 16;

/// Bytes of one layer in all blocks of a table, of every head.
std::vector<std::byte> layer_bytes(const KvPoolView& pool, const std::vector<BlockId>& table,
                                   std::uint32_t layer) {
  const KvGeometry& g = pool.geometry;
  const std::uint64_t bytes = g.block_bytes / g.layers;
  std::vector<std::byte> all;
  for (const BlockId block : table) {
    const std::byte* from = pool.base + kv_offset(g, block, layer, KvPart::key, 0, 0);
    all.insert(all.end(), from, from + bytes);
  }
  return all;
}

class RankLayers : public testing::TestWithParam<std::string> {};

TEST_P(RankLayers, AreToldWhenAllRanksHaveWrittenThem) {
  const auto whole = load_golden(GetParam());
  const auto layers = static_cast<std::uint32_t>(whole->config().layers);
  const std::vector<Token> tokens = random_tokens(60, whole->config().vocab, 9);
  TestPool own(*whole, kRankBlocks, kSlots, 3);
  const std::vector<BlockId> table = own.table(tokens.size());
  const StepRow chunk{tokens, 0, table, LogitsWanted::none};
  whole->forward({&chunk, 1}, own.view());
  for (const int ranks : {2, 4}) {
    if (!can_cut(whole->config(), ranks).ok()) continue;
    SCOPED_TRACE("ranks " + std::to_string(ranks));
    RankedModel model(golden_folder() + "/models/" + GetParam(), ranks);
    const auto last = static_cast<std::size_t>(ranks - 1);
    // The last rank comes late to every layer.
    model.rank(last).set_dump([](const std::string&, const float*, int, int) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    for (const LogitsWanted wanted : {LogitsWanted::none, LogitsWanted::last}) {
      TestPool pool(*whole, kRankBlocks, kSlots, 3);
      ASSERT_EQ(pool.table(tokens.size()), table);
      std::uint32_t told = 0;
      LayerHooks hooks;
      hooks.written = [&](std::uint32_t n) {
        for (; told < n; ++told) {
          EXPECT_TRUE(layer_bytes(pool.view(), table, told) == layer_bytes(own.view(), table, told))
              << "layer " << told << " of " << layers;
        }
      };
      model.rank(0).set_layer_hooks(hooks);
      const StepRow row{tokens, 0, table, wanted};
      model.forward({&row, 1}, pool.view());
      EXPECT_EQ(told, layers);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RankLayers, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const std::string& name : distinct_models()) {
                             if (name != "mqa_linear_f16") names.push_back(name);  // 5 heads
                           }
                           return names;
                         }()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::test
