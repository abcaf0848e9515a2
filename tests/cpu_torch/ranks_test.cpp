// One model over several ranks: logits and keys and values are those of one rank, to the bit, for
// every model of the fixtures and every number of ranks that it can have. Threads stand for the
// processes; exchange memory and pool are the same.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "bench/random_model.h"
#include "tests/cpu_torch/model_fixture.h"
#include "tests/cpu_torch/ranked_model.h"
#include "tests/support/temp_dir.h"
#include "workers/model/error.h"
#include "workers/model/rank_fit.h"

namespace baton::test {
namespace {

/// Two sequences of the same tokens beside each other, in chunks and then token by token; of some
/// rows the last logits alone are wanted, of some none.
template <typename M>
Logits mixed_run(M& model, LlamaModel& shape, const std::vector<Token>& tokens,
                 std::vector<float>* bytes = nullptr) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  TestPool pool(shape, 24, 16, 5);
  const std::vector<BlockId> a = pool.table(tokens.size());
  const std::vector<BlockId> b = pool.table(tokens.size());
  Logits all;
  std::int64_t at = 0;
  for (const std::int64_t chunk : {41, 17, 1, 1, 1, 5, 1}) {
    const std::int64_t size = std::min(chunk, n - at);
    const std::span<const Token> part(tokens.data() + at, static_cast<std::size_t>(size));
    const std::vector<StepRow> rows = {
        {part, at, a, LogitsWanted::all},
        {part, at, b, at == 0 ? LogitsWanted::none : LogitsWanted::last}};
    append(all, model.forward(rows, pool.view()));
    const StepRow none{part, at, a, LogitsWanted::none};  // writes the same again
    model.forward({&none, 1}, pool.view());
    at += size;
  }
  if (bytes != nullptr) {
    const auto* data = reinterpret_cast<const float*>(pool.view().base);
    for (const BlockId block : a) {
      const std::size_t floats = pool.view().geometry.block_bytes / sizeof(float);
      bytes->insert(bytes->end(), data + block * floats, data + (block + 1) * floats);
    }
  }
  return all;
}

/// Makes the last number of a tensor of 32-bit floats one that is none.
void poison_last(const std::string& folder, const std::string& tensor) {
  const std::string path = folder + "/model.safetensors";
  const Checkpoint checkpoint(folder);
  const TensorView* view = checkpoint.find(tensor);
  ASSERT_NE(view, nullptr);
  const std::size_t each = view->dtype == "F32" ? 4 : 2;
  const std::string last(reinterpret_cast<const char*>(view->data), view->bytes);
  std::ifstream in(path, std::ios::binary);
  std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::size_t at = file.find(last);
  ASSERT_NE(at, std::string::npos);
  file.replace(at + last.size() - each, each, std::string(each, '\x7F'));
  file[at + last.size() - 2] = '\xC0';  // 0x7FC07F7F, or 0x7FC0
  std::ofstream(path, std::ios::binary) << file;
}

std::string path_of(const std::string& name) { return golden_folder() + "/models/" + name; }

class Ranks : public testing::TestWithParam<std::string> {};

TEST_P(Ranks, SameBitsAsOneRank) {
  const auto whole = load_golden(GetParam());
  const std::vector<Token> tokens = random_tokens(67, whole->config().vocab, 9);
  std::vector<float> want_bytes;
  const Logits want = mixed_run(*whole, *whole, tokens, &want_bytes);
  int cut = 0;
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE("ranks " + std::to_string(ranks));
    if (const Status status = can_cut(whole->config(), ranks); !status.ok()) {
      LoadOptions options;
      options.cut = {0, ranks};
      EXPECT_THROW(LlamaModel::load(path_of(GetParam()), options), ModelError);
      continue;
    }
    ++cut;
    RankedModel model(path_of(GetParam()), ranks, 1 + ranks % 2, /*seal=*/ranks != 3);
    std::vector<float> bytes;
    const Logits got = mixed_run(model, *whole, tokens, &bytes);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_TRUE(same_bits(got[i], want[i])) << i;
    EXPECT_TRUE(same_bits(bytes, want_bytes)) << "keys and values";
  }
  EXPECT_GE(cut, 1) << "no number of ranks fits this model: it tests nothing";
}

TEST(RankedModels, RoundInputsAsOneRankDoes) {
  for (const std::string& name : whole_number_models()) {
    SCOPED_TRACE(name);
    LoadOptions options;
    options.activations = Activations::int8;
    const auto whole = LlamaModel::load(path_of(name), options);
    const std::vector<Token> tokens = random_tokens(67, whole->config().vocab, 9);
    std::vector<float> want_bytes;
    const Logits want = mixed_run(*whole, *whole, tokens, &want_bytes);
    int cut = 0;
    for (const int ranks : {2, 4}) {
      if (!can_cut(whole->config(), ranks).ok()) continue;
      SCOPED_TRACE("ranks " + std::to_string(ranks));
      ++cut;
      RankedModel model(path_of(name), ranks, 1 + ranks / 2 % 2, /*seal=*/ranks == 2,
                        Activations::int8);
      std::vector<float> bytes;
      const Logits got = mixed_run(model, *whole, tokens, &bytes);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_TRUE(same_bits(got[i], want[i])) << i;
      EXPECT_TRUE(same_bits(bytes, want_bytes)) << "keys and values";
    }
    EXPECT_GE(cut, 1) << "no number of ranks fits this model: it tests nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Ranks, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const std::string& name : all_models()) {
                             if (name != "mqa_linear_f16") names.push_back(name);  // 5 heads
                           }
                           return names;
                         }()),
                         [](const auto& test) { return test.param; });

TEST(RanksTest, WhatDoesNotDivideIsRefusedWithWhatDoes) {
  ModelSpec spec;
  spec.heads = 12;
  spec.kv_heads = 4;
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(can_cut(spec, ranks).ok()) << ranks;
  for (const int ranks : {0, 3, 5, 6, 8, 9, 12}) EXPECT_FALSE(can_cut(spec, ranks).ok()) << ranks;
  EXPECT_EQ(can_cut(spec, 3).message(),
            "worker.ranks: 3 ranks cannot share the model's 12 heads and 4 KV heads evenly; it can "
            "have 1, 2, 4");
  spec.kv_heads = 2;  // repeated, where there are more ranks
  EXPECT_TRUE(can_cut(spec, 4).ok());
  const ModelCut third{2, 4};
  EXPECT_EQ(third.kv_heads(spec), (Slice{1, 1}));
  EXPECT_TRUE(third.writes_kv(spec));
  EXPECT_FALSE((ModelCut{3, 4}.writes_kv(spec)));
}

/// Every output has one owner, and owner() agrees with part_of().
TEST(RanksTest, PartsCoverEverythingOnce) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const std::int64_t total : {1, 5, 8, 61, 100}) {
      std::int64_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        const Slice part = ModelCut{0, ranks}.part_of(r, total);
        EXPECT_EQ(part.first, next);
        next = part.end();
        for (std::int64_t i = part.first; i < part.end(); ++i) {
          EXPECT_EQ((ModelCut{0, ranks}.owner(total, i)), r);
        }
      }
      EXPECT_EQ(next, total);
    }
  }
}

/// Bytes of the checkpoint that each rank reads. Matrices are read once by all ranks together; what
/// every rank reads is small: norms, biases, a router.
class BytesRead : public testing::TestWithParam<std::string> {};

TEST_P(BytesRead, EachRankReadsItsPart) {
  const std::uint64_t all = load_golden(GetParam())->bytes_read();
  const Checkpoint checkpoint(path_of(GetParam()));
  std::uint64_t stored = 0;
  std::uint64_t repeated = 0;  // by every rank
  for (const auto& [name, view] : checkpoint.tensors()) {
    stored += view.bytes;
    const bool router = name.find("mlp.gate.") != std::string::npos ||
                        name.find("block_sparse_moe.gate.") != std::string::npos ||
                        name.find("shared_expert_gate") != std::string::npos;
    if (view.shape.size() == 1 || router) repeated += view.bytes;
  }
  EXPECT_EQ(all, stored);
  RankedModel two(path_of(GetParam()), 2);
  const RankWeights told = rank_weights(load_model_config(path_of(GetParam())), checkpoint,
                                        TensorBytes::stored);  // what doctor says of it
  std::uint64_t together = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::uint64_t read = two.rank(rank).bytes_read();
    together += read;
    EXPECT_LE(read, repeated + (stored - repeated) * 55 / 100) << "rank " << rank;
    EXPECT_LE(read, told.of_largest(2)) << "rank " << rank;
    EXPECT_GE(read, told.of_largest(2) * 85 / 100) << "rank " << rank;
  }
  // Biases of experts are read by whoever has the expert.
  EXPECT_LE(together, stored + repeated);
  EXPECT_GE(together, stored);
}

INSTANTIATE_TEST_SUITE_P(Models, BytesRead,
                         testing::Values("mistral_window", "qwen2_bias", "qwen3_norms", "mixtral",
                                         "phi3"),
                         [](const auto& test) { return test.param; });

/// What belongs to another rank may be damaged: it is not looked at. What is one's own is.
TEST(RanksTest, ReadsNothingOfOthers) {
  const TempDir copy;
  const std::string folder = copy / "model";
  std::filesystem::copy(path_of("mistral_window"), folder);
  // Its last row is rank 1's.
  poison_last(folder, "model.layers.0.mlp.up_proj.weight");
  const auto load_rank = [&](int rank) {
    LoadOptions options;
    options.cut = {rank, 2};
    return LlamaModel::load(folder, options);
  };
  EXPECT_NO_THROW(load_rank(0));
  EXPECT_THROW(load_rank(1), ModelError);
}

/// A rank that computes something else ends the step on all ranks: nobody serves nonsense.
TEST(RanksTest, RanksThatDifferAreNoticed) {
  const std::string folder = path_of("mistral_window");
  const auto memory = ExchangeMemory::create(2);
  const auto whole = load(folder);
  const TestPool pool(*whole, 8, 16, 1);
  const std::vector<BlockId> table = {0, 1};
  const std::vector<Token> tokens = random_tokens(20, whole->config().vocab, 4);
  std::vector<Token> others = tokens;
  others.back() = (others.back() + 1) % whole->config().vocab;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Collective group(memory.value(), rank);
      LoadOptions options;
      options.cut = {rank, 2};
      options.group = &group;
      const auto model = LlamaModel::load(folder, options);
      const StepRow row{rank == 0 ? tokens : others, 0, table, LogitsWanted::last};
      EXPECT_THROW(model->forward({&row, 1}, pool.view()), RanksDiffer);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Whoever waits for a rank sees it get on, in every part of every layer: else a long step on a
/// slow machine would be taken for one that has stopped.
TEST(RanksTest, AStepIsSeenToGetOn) {
  for (const std::string name : {"mistral_window", "mixtral"}) {
    SCOPED_TRACE(name);
    RankedModel model(path_of(name), 2);
    const auto whole = load_golden(name);
    TestPool pool(*whole, 8, 16, 1);
    const std::vector<BlockId> table = pool.table(60);
    const std::vector<Token> tokens = random_tokens(60, whole->config().vocab, 4);
    const StepRow row{tokens, 0, table, LogitsWanted::last};
    for (std::size_t r = 0; r < model.ranks(); ++r) EXPECT_EQ(model.progress(r), 0U);
    model.forward({&row, 1}, pool.view());
    // q, k, v; attention; its projection; gate and up; down.
    const auto least = static_cast<std::uint32_t>(5 * whole->config().layers);
    for (std::size_t r = 0; r < model.ranks(); ++r) EXPECT_GE(model.progress(r), least) << r;
  }
}

/// What a step costs in messages and bytes, by the number of ranks: neither grows with it.
TEST(RanksTest, RoundsOfADecodeStep) {
  for (const int ranks : {2, 4}) {
    RankedModel model(path_of("mistral_window"), ranks);
    const auto whole = load_golden("mistral_window");
    TestPool pool(*whole, 8, 16, 1);
    const std::vector<BlockId> table = pool.table(16);
    const std::vector<Token> tokens = {3};
    const StepRow row{tokens, 0, table, LogitsWanted::last};
    const std::uint64_t before = model.figures(0).rounds;
    std::uint64_t bytes = 0;
    for (std::size_t r = 0; r < model.ranks(); ++r) bytes -= model.figures(r).bytes;
    model.forward({&row, 1}, pool.view());
    for (std::size_t r = 0; r < model.ranks(); ++r) bytes += model.figures(r).bytes;
    // Embedding, four a layer (attention, o, gate and up, down), logits, the end; and one a layer
    // where KV heads are repeated.
    const std::uint64_t layers = 3;
    EXPECT_EQ(model.figures(0).rounds - before, 1 + layers * (ranks == 4 ? 5 : 4) + 2);
    // Together they give each number once: x, what attention and each half of a part leaves, and
    // logits; and a sum each.
    const ModelConfig& c = whole->config();
    const int a_layer = c.heads * c.head_dim + 2 * c.hidden + c.intermediate();
    const auto numbers = static_cast<std::uint64_t>(c.hidden + c.layers * a_layer + c.vocab);
    EXPECT_EQ(bytes, numbers * 4 + static_cast<std::uint64_t>(ranks) * 8);
  }
}

}  // namespace
}  // namespace baton::test
