// The promise of LlamaModel: a token's logits and KV do not depend, to the bit, on anything but the
// tokens before it and the weights.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "bench/random_model.h"
#include "tests/cpu_torch/model_fixture.h"
#include "tests/support/temp_dir.h"

namespace baton::test {
namespace {

constexpr std::size_t kTokens = 150;

void expect_same(const Logits& got, const Logits& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(same_bits(got[i], want[i])) << "position " << i;
  }
}

std::vector<cpu::Isa> isas() {
  std::vector<cpu::Isa> found = {cpu::Isa::avx2};
  if (cpu::isa_supported(cpu::Isa::avx512)) found.push_back(cpu::Isa::avx512);
  return found;
}

class Invariance : public testing::TestWithParam<std::string> {};

TEST_P(Invariance, ChunksThreadsBlocksAndVariant) {
  const auto reference = load_golden(GetParam(), 1, cpu::Isa::avx2);
  const std::vector<Token> tokens = random_tokens(kTokens, reference->config().vocab, 3);
  const Logits want = logits_of(*reference, tokens, 1);  // token by token: decode
  ASSERT_EQ(want.size(), kTokens);
  ASSERT_FALSE(same_bits(want[3], want[4]));
  for (const cpu::Isa isa : isas()) {
    for (const int threads : {1, 2, 3}) {
      const auto model = load_golden(GetParam(), threads, isa);
      SCOPED_TRACE(std::string(model->isa_name()) + ", threads " + std::to_string(threads));
      for (const std::size_t chunk : {1U, 2U, 3U, 7U, 16U, 17U, 64U, 100U, 150U}) {
        SCOPED_TRACE("chunk " + std::to_string(chunk));
        expect_same(logits_of(*model, tokens, chunk), want);
      }
      for (const std::uint32_t block : {1U, 5U, 32U, 256U}) {
        SCOPED_TRACE("tokens a block " + std::to_string(block));
        expect_same(logits_of(*model, tokens, 40, block, 9 + block), want);
      }
    }
  }
}

/// One sequence of a mixed run: it takes a random number of tokens a step.
struct Walker {
  std::vector<Token> tokens;
  std::vector<BlockId> table;
  std::size_t done = 0;
  Logits got;
};

/// Many sequences in one pool, each step with a random choice of them, prompt chunks and single
/// tokens mixed: every line of logits is that of the sequence alone.
TEST_P(Invariance, Neighbours) {
  const auto model = load_golden(GetParam(), 2);
  const auto solo = load_golden(GetParam(), 1);
  std::mt19937 rng(11);
  TestPool pool(*model, 400, 16, 4);
  std::vector<Walker> walkers(33);
  for (std::size_t i = 0; i < walkers.size(); ++i) {
    const std::size_t n = 20 + rng() % 130;
    walkers[i].tokens = random_tokens(n, model->config().vocab, static_cast<std::uint32_t>(i));
    walkers[i].table = pool.table(n);
  }
  for (bool busy = true; busy;) {
    busy = false;
    std::vector<StepRow> rows;
    std::vector<Walker*> wants;
    for (Walker& w : walkers) {
      const std::size_t left = w.tokens.size() - w.done;
      if (left == 0) continue;
      busy = true;
      if (rng() % 4 == 0) continue;
      const std::size_t n = std::min<std::size_t>(left, rng() % 3 == 0 ? 1 + rng() % 60 : 1);
      rows.push_back({{w.tokens.data() + w.done, n},
                      static_cast<std::int64_t>(w.done),
                      w.table,
                      LogitsWanted::all});
      w.done += n;
      wants.insert(wants.end(), n, &w);
    }
    ASSERT_TRUE(model->check(rows, pool.view()).ok());
    const LogitsView logits = model->forward(rows, pool.view());
    ASSERT_EQ(static_cast<std::size_t>(logits.rows), wants.size());
    for (std::size_t r = 0; r < wants.size(); ++r) {
      const std::span<float> row = logits.row(static_cast<int>(r));
      wants[r]->got.emplace_back(row.begin(), row.end());
    }
  }
  for (const Walker& w : walkers) expect_same(w.got, logits_of(*solo, w.tokens, w.tokens.size()));
}

/// What is wanted of a step changes which rows run through the last layer, never their bits.
TEST_P(Invariance, LogitsWanted) {
  const auto model = load_golden(GetParam(), 2);
  const std::vector<Token> tokens = random_tokens(90, model->config().vocab, 5);
  const Logits want = logits_of(*model, tokens, 90);
  TestPool pool(*model, 40, 16, 6);
  std::vector<std::vector<BlockId>> tables;
  for (int i = 0; i < 4; ++i) tables.push_back(pool.table(90));
  const std::vector<StepRow> first = {
      {{tokens.data(), 50}, 0, tables[0], LogitsWanted::none},
      {{tokens.data(), 60}, 0, tables[1], LogitsWanted::last},
      {{tokens.data(), 20}, 0, tables[2], LogitsWanted::all},
      {{tokens.data(), 1}, 0, tables[3], LogitsWanted::none},
  };
  Logits got;
  append(got, model->forward(first, pool.view()));
  ASSERT_EQ(got.size(), 21U);
  EXPECT_TRUE(same_bits(got[0], want[59]));
  for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(same_bits(got[1 + i], want[i]));

  const StepRow none{{tokens.data() + 50, 10}, 50, tables[0], LogitsWanted::none};
  EXPECT_EQ(model->forward({&none, 1}, pool.view()).rows, 0);
  const StepRow last{{tokens.data() + 60, 30}, 60, tables[0], LogitsWanted::last};
  const LogitsView end = model->forward({&last, 1}, pool.view());
  ASSERT_EQ(end.rows, 1);
  const std::span<float> row = end.row(0);
  EXPECT_TRUE(same_bits({row.begin(), row.end()}, want[89]));
  EXPECT_EQ(model->forward({}, pool.view()).rows, 0);
}

/// The KV itself: a block written by prefill is that written by decode, byte for byte, and lies
/// where kv_layout.h says.
TEST_P(Invariance, PoolBytes) {
  const auto model = load_golden(GetParam(), 2);
  const std::vector<Token> tokens = random_tokens(48, model->config().vocab, 8);
  TestPool whole(*model, 3, 16, 1);
  TestPool single(*model, 3, 16, 2);
  const std::vector<BlockId> whole_table = whole.table(48);
  const std::vector<BlockId> single_table = single.table(48);
  const StepRow all{tokens, 0, whole_table, LogitsWanted::none};
  model->forward({&all, 1}, whole.view());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const StepRow one{
        {&tokens[i], 1}, static_cast<std::int64_t>(i), single_table, LogitsWanted::none};
    model->forward({&one, 1}, single.view());
  }
  const std::uint64_t bytes = whole.view().geometry.block_bytes;
  for (std::size_t b = 0; b < 3; ++b) {
    const std::byte* x = whole.view().base + bytes * whole_table[b];
    const std::byte* y = single.view().base + bytes * single_table[b];
    EXPECT_EQ(std::memcmp(x, y, bytes), 0) << "block " << b;
    for (std::uint64_t i = 0; i < bytes; i += 4) {
      float value;
      std::memcpy(&value, x + i, 4);
      ASSERT_EQ(value, value) << "never written: byte " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, testing::ValuesIn(distinct_models()),
                         [](const auto& model) { return model.param; });

/// The golden models are so small that a step is hardly worth sharing between threads. This one is
/// of the demo's width: every operation is cut into many chunks.
TEST(InvarianceOfAWideModel, ThreadsChunksAndNeighbours) {
  const TempDir temp;
  const std::string& folder = temp.path();
  RandomModelShape shape;
  shape.layers = 3;
  write_random_model(folder, shape, 4);
  const std::vector<Token> tokens = random_tokens(200, shape.vocab, 3);
  const auto reference = load(folder, 1, cpu::Isa::avx2);
  const Logits want = logits_of(*reference, tokens, 1);
  for (const cpu::Isa isa : isas()) {
    for (const int threads : {1, 2, 3, 4}) {
      const auto model = load(folder, threads, isa);
      SCOPED_TRACE(std::string(model->isa_name()) + ", threads " + std::to_string(threads));
      for (const std::size_t chunk : {1U, 3U, 49U, 130U, 200U}) {
        expect_same(logits_of(*model, tokens, chunk), want);
      }
      // 40 copies of the sequence, each at its own place, one token a step for all of them.
      TestPool pool(*model, 40 * 13, 16, 2);
      std::vector<std::vector<BlockId>> tables;
      std::vector<StepRow> prompts;
      for (std::size_t i = 0; i < 40; ++i) tables.push_back(pool.table(200));
      for (std::size_t i = 0; i < 40; ++i) {
        prompts.push_back({{tokens.data(), 10 + 4 * i}, 0, tables[i], LogitsWanted::none});
      }
      model->forward(prompts, pool.view());
      for (std::size_t step = 0; step < 5; ++step) {
        std::vector<StepRow> rows;
        for (std::size_t i = 0; i < 40; ++i) {
          const std::size_t at = 10 + 4 * i + step;
          rows.push_back(
              {{&tokens[at], 1}, static_cast<std::int64_t>(at), tables[i], LogitsWanted::last});
        }
        Logits got;
        append(got, model->forward(rows, pool.view()));
        for (std::size_t i = 0; i < 40; ++i) {
          ASSERT_TRUE(same_bits(got[i], want[10 + 4 * i + step])) << "sequence " << i;
        }
      }
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(LlamaModelCheck, RefusesRowsThatDoNotFit) {
  const auto model = load_golden("mha");
  TestPool pool(*model, 8, 16, 1);
  const std::vector<Token> tokens = random_tokens(40, model->config().vocab, 1);
  const std::vector<BlockId> table = pool.table(40);
  const StepRow good{tokens, 0, table, LogitsWanted::last};
  ASSERT_TRUE(model->check({&good, 1}, pool.view()).ok());
  const auto refused = [&](const StepRow& row, const KvPoolView& view, const std::string& word) {
    const Status status = model->check({&row, 1}, view);
    EXPECT_FALSE(status.ok()) << word;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  };
  StepRow row = good;
  row.tokens = {};
  refused(row, pool.view(), "without tokens");
  row = good;
  row.position = -1;
  refused(row, pool.view(), "context");
  row.position = model->config().max_context - 39;
  refused(row, pool.view(), "context");
  row.position = std::numeric_limits<std::int64_t>::max();
  refused(row, pool.view(), "context");
  row = good;
  row.position = 9;
  refused(row, pool.view(), "block table");
  const std::vector<BlockId> outside = {table[0], 8, table[1]};
  row = good;
  row.block_table = outside;
  refused(row, pool.view(), "block 8");
  std::vector<Token> strange = tokens;
  strange[7] = model->config().vocab;
  row = good;
  row.tokens = strange;
  refused(row, pool.view(), "token");
  strange[7] = -1;
  refused(row, pool.view(), "token");
  KvPoolView view = pool.view();
  view.geometry.head_dim /= 2;
  view.geometry.block_bytes /= 2;
  refused(good, view, "model");
  view = pool.view();
  view.base = nullptr;
  refused(good, view, "memory");
}

}  // namespace
}  // namespace baton::test
