// Layers in groups, whose windows give blocks back: the logits are those of one pool that keeps
// everything, to the bit. What is behind a window is overwritten with NaN here, and given to
// others.
#include <gtest/gtest.h>

#include <limits>

#include "tests/cpu_torch/model_fixture.h"

namespace baton::test {
namespace {

constexpr std::uint32_t kPerBlock = 4;
constexpr std::size_t kWindowTokens = 150;

std::unique_ptr<LlamaModel> load_grouped(const std::string& name, int threads = 1) {
  LoadOptions options;
  options.threads = threads;
  options.kv_groups_for = kPerBlock;
  return LlamaModel::load(golden_folder() + "/models/" + name, options);
}

/// One sequence in a pool that is as small as it may be. Blocks that no window reaches any more are
/// spoiled, and given out again before any other.
class Tight {
 public:
  Tight(const LlamaModel& model, std::uint32_t blocks)
      : geometry_(model.kv_geometry(blocks, kPerBlock)),
        memory_(*kv_pool_bytes(geometry_) / sizeof(float), kNaN) {
    for (std::uint32_t block = blocks; block > 1; --block) free_.push_back(block - 1);
  }
  KvPoolView view() { return {reinterpret_cast<std::byte*>(memory_.data()), geometry_}; }

  /// The table for the tokens [position, end).
  const std::vector<BlockId>& table(std::uint32_t position, std::uint32_t end) {
    const std::uint32_t groups = geometry_.groups.count;
    const std::uint32_t columns = (end + kPerBlock - 1) / kPerBlock;
    table_.resize(std::size_t{columns} * groups, kNoBlock);
    for (std::uint32_t g = 0; g < groups; ++g) {
      const std::uint32_t window = geometry_.groups.windows[g];
      const std::uint32_t first_key =
          window == 0 || position + 1 < window ? 0 : position + 1 - window;
      for (std::uint32_t c = 0; c < first_key / kPerBlock; ++c) give_back(c * groups + g);
    }
    for (std::uint32_t c = 0; c < columns; ++c) {
      for (std::uint32_t g = 0; g < groups; ++g) {
        BlockId& block = table_[std::size_t{c} * groups + g];
        if (block != kNoBlock) continue;
        if (free_.empty()) throw std::runtime_error("more blocks than the windows need");
        block = free_.back();
        free_.pop_back();
      }
    }
    return table_;
  }

 private:
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

  void give_back(std::size_t at) {
    const BlockId block = table_[at];
    if (block == 0) return;  // block 0 is nobody's: NaN for ever
    const std::size_t each = geometry_.block_bytes / sizeof(float);
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(block * each), each, kNaN);
    free_.push_back(block);
    table_[at] = 0;
  }

  KvGeometry geometry_;
  std::vector<float> memory_;
  std::vector<BlockId> free_;
  std::vector<BlockId> table_;
};

Logits grouped_logits(LlamaModel& model, const std::vector<Token>& tokens, std::size_t chunk,
                      std::uint32_t blocks) {
  Tight pool(model, blocks);
  Logits all;
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const std::size_t n = std::min(chunk, tokens.size() - at);
    const StepRow row{
        {tokens.data() + at, n},
        static_cast<std::int64_t>(at),
        pool.table(static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + n)),
        LogitsWanted::all};
    const Status status = model.check({&row, 1}, pool.view());
    if (!status.ok()) throw std::runtime_error(status.message());
    append(all, model.forward({&row, 1}, pool.view()));
  }
  return all;
}

class Grouped : public testing::TestWithParam<std::string> {};

TEST_P(Grouped, LogitsAreThoseOfAPoolThatKeepsAll) {
  const auto whole = load_golden(GetParam());
  const std::vector<Token> tokens = random_tokens(kWindowTokens, whole->config().vocab, 3);
  const Logits want = logits_of(*whole, tokens, 40);
  for (const int threads : {1, 3}) {
    const auto model = load_grouped(GetParam(), threads);
    const KvPlan& plan = model->kv_plan();
    ASSERT_TRUE(plan.groups.windowed());
    for (const std::size_t chunk : {1U, 2U, 7U, 16U, 33U, 150U}) {
      SCOPED_TRACE("threads " + std::to_string(threads) + ", chunk " + std::to_string(chunk));
      std::uint32_t blocks = 1;
      for (std::uint32_t g = 0; g < plan.groups.count; ++g) {
        const std::uint32_t window = plan.groups.windows[g];
        const std::size_t live =
            window == 0 ? kWindowTokens : std::min(kWindowTokens, window + chunk - 1);
        blocks += static_cast<std::uint32_t>((live + kPerBlock - 1) / kPerBlock + 1);
      }
      const Logits got = grouped_logits(*model, tokens, chunk, blocks);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_TRUE(same_bits(got[i], want[i])) << "position " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Grouped,
                         testing::Values("mistral_window", "gemma2", "gemma3", "gpt_oss",
                                         "ministral", "cohere2", "starcoder2", "olmo3", "exaone4",
                                         "phi3"),
                         [](const auto& test) { return test.param; });

TEST(Grouped, AModelWithoutWindowsHasOneGroup) {
  const auto model = load_grouped("mha");
  EXPECT_EQ(model->kv_plan().groups, KvGroups());
  EXPECT_EQ(model->kv_geometry(5), load_golden("mha")->kv_geometry(5));
}

}  // namespace
}  // namespace baton::test
