// What ranks on GPUs bring of layers that are computed by parts: every stored number once, and such
// parts that their sum is the whole. Which sizes GPUs share: gpu_cut.h.
#include "workers/model/gpu_layer_cut.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "workers/model/error.h"
#include "workers/model/gpu_formats.h"
#include "workers/model/gpu_limits.h"

namespace baton {
namespace {

std::string golden(const std::string& name) {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  return std::string(source != nullptr ? source : ".") + "/tests/golden/models/" + name;
}

/// A golden model of a family, and its checkpoint.
struct Model {
  explicit Model(const std::string& name)
      : config(load_model_config(golden(name))), files(golden(name)), reader(config, files) {}
  ModelConfig config;
  Checkpoint files;
  CheckpointReader reader;
};

/// How often each number of a stored matrix was brought, by where the matrix lies.
class Brought {
 public:
  void take(const MatrixPiece& p) {
    const cpu::MatrixSource& m = p.from->plain;
    ASSERT_LE(p.rows.end(), m.rows);
    ASSERT_LE(p.columns.end(), m.columns);
    std::vector<int>& times = of(m);
    for (std::int64_t r = p.rows.first; r < p.rows.end(); ++r) {
      for (std::int64_t c = p.columns.first; c < p.columns.end(); ++c) {
        ++times[static_cast<std::size_t>(r * m.columns + c)];
      }
    }
    bytes +=
        static_cast<std::uint64_t>(p.rows.count * p.columns.count * cpu::element_bytes(m.type));
  }
  void take(const std::vector<MatrixPiece>& pieces) {
    for (const MatrixPiece& p : pieces) take(p);
  }
  /// Rows [first, first + count) of a matrix: each number so often.
  void expect(const LinearSource& from, std::int64_t first, std::int64_t count, int times) {
    const std::vector<int>& got = of(from.plain);
    const std::int64_t columns = from.plain.columns;
    for (std::int64_t i = first * columns; i < (first + count) * columns; ++i) {
      ASSERT_EQ(got[static_cast<std::size_t>(i)], times) << "number " << i;
    }
  }
  void expect_once(const LinearSource& from) { expect(from, 0, from.rows(), 1); }

  std::uint64_t bytes = 0;

 private:
  std::vector<int>& of(const cpu::MatrixSource& m) {
    std::vector<int>& times = times_[m.data];
    times.resize(static_cast<std::size_t>(m.rows * m.columns));
    return times;
  }
  std::map<const std::byte*, std::vector<int>> times_;
};

std::uint64_t bytes_of(const LinearSource& from) {
  return static_cast<std::uint64_t>(from.rows() * from.columns() *
                                    cpu::element_bytes(from.plain.type));
}

/// The dense part of a layer, or one of its experts and what all tokens take.
std::vector<std::pair<FeedForwardSource, MlpSpec>> feed_forwards(Model& model, int index,
                                                                 const LayerSource& layer) {
  const LayerSpec& spec = model.config.layer(index);
  if (!spec.sparse()) return {{layer.dense, spec.mlp}};
  std::vector<std::pair<FeedForwardSource, MlpSpec>> parts{
      {model.reader.expert(index, 1), spec.experts.expert}};
  if (spec.experts.shared.intermediate > 0) parts.emplace_back(layer.shared, spec.experts.shared);
  return parts;
}

struct Case {
  std::string model;
  int ranks;
};
// Fused q, k, v (phi3) and gate, up (phi3, glm4, gpt_oss); no gate (starcoder2); experts; KV heads
// that several ranks have (the threes and fours, olmo2's six).
const Case kCases[] = {{"gpt_oss", 2},    {"gpt_oss", 4},      {"glm4", 2},   {"glm4_moe", 4},
                       {"starcoder2", 3}, {"phi3", 2},         {"phi3", 4},   {"olmo2", 2},
                       {"olmo2", 6},      {"cohere2", 2},      {"gemma3", 2}, {"qwen2_moe", 2},
                       {"granite", 3},    {"llama_biases", 3}, {"exaone4", 2}};

class LayerCuts : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, LayerCuts, testing::ValuesIn(kCases), [](const auto& test) {
  return test.param.model + "_" + std::to_string(test.param.ranks);
});

TEST_P(LayerCuts, RanksBringEveryNumberOnceAndKeysAsOftenAsTheyHaveThem) {
  const auto [name, ranks] = GetParam();
  Model model(name);
  const ModelConfig& c = model.config;
  ASSERT_TRUE(can_cut(c, ranks).ok()) << can_cut(c, ranks).message();
  const int repeats = std::max(1, ranks / c.kv_heads);
  EXPECT_EQ(kv_repeats(c, {0, ranks}), repeats);
  const std::int64_t q = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t kv = std::int64_t{c.kv_heads} * c.head_dim;
  for (const bool by_outputs : {false, true}) {
    for (int i = 0; i < c.layers; ++i) {
      const LayerSource layer = model.reader.layer(i);
      const auto parts = feed_forwards(model, i, layer);
      Brought brought;
      for (int rank = 0; rank < ranks; ++rank) {
        const GpuCut cut{{rank, ranks}, by_outputs};
        const LayerCut attention(c, cut, 0);
        brought.take(pieces_of_qkv(layer, c, attention));
        brought.take(piece_behind(layer.o, attention, attention.q));
        for (const auto& [from, spec] : parts) {
          const LayerCut own(c, cut, spec.intermediate);
          brought.take(pieces_of_up(from, spec, own));
          brought.take(piece_behind(from.down, own, own.middle));
        }
      }
      std::uint64_t stored = bytes_of(layer.o);
      const bool fused = layer.k.rows() == 0;
      brought.expect(layer.q, 0, q, 1);
      if (fused) brought.expect(layer.q, q, 2 * kv, repeats);
      if (!fused) brought.expect(layer.k, 0, kv, repeats);
      if (!fused) brought.expect(layer.v, 0, kv, repeats);
      const std::uint64_t row = bytes_of(layer.q) / static_cast<std::uint64_t>(layer.q.rows());
      stored += row * static_cast<std::uint64_t>(q + 2 * kv * repeats);
      brought.expect_once(layer.o);
      for (const auto& [from, spec] : parts) {
        for (const LinearSource* each : {&from.gate, &from.up, &from.down}) {
          if (each->rows() == 0) continue;
          brought.expect_once(*each);
          stored += bytes_of(*each);
        }
      }
      EXPECT_EQ(brought.bytes, stored);
    }
  }
}

/// Rows of q, k and v, numbers beside them and columns of o are of the same heads, and every head
/// of q has its keys.
TEST_P(LayerCuts, ARanksHeadsBelongTogether) {
  const auto [name, ranks] = GetParam();
  Model model(name);
  const ModelConfig& c = model.config;
  std::vector<float> places(static_cast<std::size_t>(c.qkv_columns()));
  std::iota(places.begin(), places.end(), 0.0F);
  const LayerSource layer = model.reader.layer(0);
  const auto dim = static_cast<std::size_t>(c.head_dim);
  for (int rank = 0; rank < ranks; ++rank) {
    const GpuCut cut{{rank, ranks}, false};
    const ModelConfig own = config_of_rank(c, cut);
    const LayerCut layer_cut(c, cut, c.layer(0).mlp.intermediate);
    const std::vector<float> mine = qkv_part(places, c, layer_cut);
    ASSERT_EQ(mine.size(), static_cast<std::size_t>(own.qkv_columns()));
    for (const MatrixPiece& p : pieces_of_qkv(layer, c, layer_cut)) {
      // The first number of what is q's, k's or v's tensor, among all three.
      const std::int64_t behind = p.from == &layer.q   ? 0
                                  : p.from == &layer.k ? layer.q.rows()
                                                       : layer.q.rows() + layer.k.rows();
      for (std::int64_t r = 0; r < p.rows.count; ++r) {
        const auto at = static_cast<std::size_t>(p.row + r);
        ASSERT_EQ(mine[at], static_cast<float>(behind + p.rows.first + r)) << at;
      }
    }
    const std::vector<float> queries = numbers_of(places, layer_cut.q);
    const Slice o = piece_behind(layer.o, layer_cut, layer_cut.q).columns;
    ASSERT_EQ(static_cast<std::size_t>(o.count), queries.size());
    EXPECT_EQ(queries.front(), static_cast<float>(o.first));
    EXPECT_EQ(numbers_of(places, cut.heads(c)).size(), static_cast<std::size_t>(own.heads));
    for (int h = 0; h < own.heads; ++h) {
      const auto query = static_cast<int>(mine[static_cast<std::size_t>(h) * dim]) / c.head_dim;
      const auto key_at = static_cast<std::size_t>(own.heads + h / own.group()) * dim;
      const int key = static_cast<int>(mine[key_at]) / c.head_dim - c.heads;
      EXPECT_EQ(key, query / c.group()) << "head " << h << " of rank " << rank;
    }
  }
}

/// A matrix on the device, of pieces: rows of gate and up by eights.
std::vector<std::vector<double>> placed(const std::vector<MatrixPiece>& pieces) {
  std::vector<std::vector<double>> rows;
  for (const MatrixPiece& p : pieces) {
    const cpu::MatrixSource& m = p.from->plain;
    for (std::int64_t r = 0; r < p.rows.count; ++r) {
      const auto at = static_cast<std::size_t>(p.row + (p.interleaved ? r / 8 * 16 + r % 8 : r));
      if (rows.size() <= at) rows.resize(at + 1);
      for (std::int64_t c = p.columns.first; c < p.columns.end(); ++c) {
        const std::int64_t element = (p.rows.first + r) * m.columns + c;
        rows[at].push_back(static_cast<double>(cpu::element(m.data, m.type, element)));
      }
    }
  }
  return rows;
}

std::vector<double> times(const std::vector<std::vector<double>>& w, const std::vector<double>& x) {
  std::vector<double> y;
  for (const auto& row : w) y.push_back(std::inner_product(row.begin(), row.end(), x.begin(), 0.0));
  return y;
}

/// What a feed-forward part gives without the bias behind it, from its stored tensors alone.
std::vector<double> whole_part(const FeedForwardSource& from, const MlpSpec& spec,
                               const std::vector<double>& x) {
  const auto plain = [](const LinearSource& w) {
    return placed({{&w, {0, w.rows()}, {0, w.columns()}, 0, false}});
  };
  const auto n = static_cast<std::size_t>(spec.intermediate);
  std::vector<double> both;  // gate's, then up's
  for (const LinearSource* w : {&from.gate, &from.up}) {
    if (w->rows() == 0) continue;
    const std::vector<double> y = times(plain(*w), x);
    both.insert(both.end(), y.begin(), y.end());
  }
  std::vector<double> gated;
  for (std::size_t i = 0; i < n; ++i) {
    const auto biased = [&](std::size_t at) {
      return both[at] + (from.up_bias.empty() ? 0.0 : static_cast<double>(from.up_bias[at]));
    };
    gated.push_back(std::tanh(biased(i)) * (spec.gated ? biased(n + i) : 1.0));
  }
  return times(plain(from.down), gated);
}

TEST_P(LayerCuts, PartsOfAFeedForwardAddUpToTheWhole) {
  const auto [name, ranks] = GetParam();
  Model model(name);
  const ModelConfig& c = model.config;
  std::vector<double> x;
  for (int i = 0; i < c.hidden; ++i) x.push_back(std::sin(0.7 * i));
  const int last = c.layers - 1;
  const LayerSource layer = model.reader.layer(last);
  for (const auto& [from, spec] : feed_forwards(model, last, layer)) {
    const std::vector<double> want = whole_part(from, spec, x);
    std::vector<double> sum(want.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const LayerCut cut(c, {{rank, ranks}, false}, spec.intermediate);
      const std::vector<double> both = times(placed(pieces_of_up(from, spec, cut)), x);
      const std::vector<float> bias = up_part(from.up_bias, spec, cut);
      const auto own = static_cast<std::size_t>(cut.middle.count);
      std::vector<double> gated;
      for (std::size_t i = 0; i < own; ++i) {
        const std::size_t at = spec.gated ? i / 8 * 16 + i % 8 : i;
        const double g = both[at] + (bias.empty() ? 0.0 : static_cast<double>(bias[i]));
        const double u = spec.gated ? both[at + 8] + (bias.empty() ? 0.0 : bias[own + i]) : 1.0;
        gated.push_back(std::tanh(g) * u);
      }
      const auto down = times(placed({piece_behind(from.down, cut, cut.middle)}), gated);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += down[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(sum[i], want[i], 1e-9 + 1e-9 * std::abs(want[i]));
    }
  }
}

std::string refusal(const ModelConfig& config, const GpuCut& cut) {
  try {
    check_gpu_ranks(config, cut);
    return {};
  } catch (const ModelError& e) {
    return e.what();
  }
}

/// gpt-oss's sizes, which eight GPUs do not share.
ModelConfig of_gpt_oss() {
  ModelConfig c = load_model_config(golden("gpt_oss"));
  c.hidden = 2880;
  c.heads = 64;
  c.kv_heads = 8;
  c.head_dim = 64;
  for (LayerSpec& layer : c.parts) layer.experts.expert.intermediate = 2880;
  return c;
}

TEST(GpuCuts, LayersByPartsAreSharedOrRefusedWithTheNumbersThatFit) {
  const ModelConfig gpt_oss = of_gpt_oss();
  ASSERT_FALSE(has_fused_layers(gpt_oss));
  EXPECT_EQ(refusal(gpt_oss, {{0, 2}, false}), "");
  EXPECT_EQ(refusal(gpt_oss, {{0, 4}, false}), "");
  EXPECT_EQ(refusal(gpt_oss, {{0, 8}, false}),
            "worker.ranks: 8 GPUs cannot share the 2880 features of an expert in multiples of 16; "
            "it can have 1, 2, 4");
  EXPECT_EQ(refusal(gpt_oss, {{0, 3}, false}),
            "worker.ranks: 3 ranks cannot share the model's 64 heads and 8 KV heads evenly; it can "
            "have 1, 2, 4, 8");
  EXPECT_EQ(refusal(gpt_oss, {{0, 2}, true}),
            "worker.ranks: experts in deterministic steps are not served by several GPUs yet");
  // In MXFP4 blocks of 32 are shared, not as many by each.
  ModelConfig in_blocks = gpt_oss;
  in_blocks.quantization.mxfp4 = true;
  EXPECT_EQ(refusal(in_blocks, {{0, 4}, false}), "");
  EXPECT_EQ(refusal(in_blocks, {{0, 8}, false}), "");
  for (LayerSpec& layer : in_blocks.parts) layer.experts.expert.intermediate = 96;
  EXPECT_EQ(refusal(in_blocks, {{0, 4}, false}),
            "worker.ranks: 4 GPUs cannot share the 96 features of an expert in multiples of 32; it "
            "can have 1, 2");

  ModelConfig dense = load_model_config(golden("olmo2"));
  dense.hidden = 4096 + 32;
  dense.heads = dense.kv_heads = 32;
  dense.head_dim = 128;
  for (LayerSpec& layer : dense.parts) layer.mlp.intermediate = 11008;
  EXPECT_EQ(refusal(dense, {{0, 8}, false}), "");
  EXPECT_EQ(refusal(dense, {{0, 2}, true}), "");
  EXPECT_EQ(
      refusal(dense, {{0, 4}, true}),
      "worker.ranks: 4 GPUs cannot share the 4128 features of hidden_size in multiples of 16; "
      "it can have 1, 2");
  ModelConfig shared = load_model_config(golden("qwen2_moe"));
  shared.heads = shared.kv_heads = 16;
  shared.head_dim = 128;
  for (LayerSpec& layer : shared.parts) {
    layer.mlp.intermediate = layer.sparse() ? 0 : 5632;
    if (!layer.sparse()) continue;
    layer.experts.expert.intermediate = 1408;
    layer.experts.shared.intermediate = 5616;
  }
  EXPECT_EQ(refusal(shared, {{0, 2}, false}),
            "worker.ranks: 2 GPUs cannot share the 5616 features of the expert that every token "
            "takes in multiples of 16; it can have 1");
}

/// Blocks of 32 share a scale and are not parted.
TEST(GpuCuts, ExpertsInMxfp4AreKeptWhole) {
  Model model("gpt_oss_mxfp4");
  for (LayerSpec& layer : model.config.parts) layer.experts.expert.intermediate = 96;
  const GpuCut whole;
  const GpuCut half{{1, 2}, false};
  const std::array<const Checkpoint*, 2> known{&model.files, nullptr};
  for (const Checkpoint* files : known) {
    EXPECT_EQ(GpuFormats(model.config, files, whole).experts(0), cuda::ExpertFormat::mxfp4);
    EXPECT_EQ(GpuFormats(model.config, files, half).experts(0), cuda::ExpertFormat::mxfp4);
  }
  const Model plain("gpt_oss");
  EXPECT_EQ(GpuFormats(plain.config, &plain.files, half).experts(0), cuda::ExpertFormat::bf16);
}

TEST(GpuCuts, BlocksOfFeaturesLieBehindEachOther) {
  ModelConfig c = of_gpt_oss();
  EXPECT_EQ(features_of(c, ModelCut{1, 4}, 2880), (Slice{720, 720}));
  c.quantization.mxfp4 = true;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    std::int64_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      const ModelCut cut{r, ranks};
      const Slice own = features_of(c, cut, 2880);
      EXPECT_EQ(own.first, next);
      EXPECT_EQ(own.count % 32, 0);
      EXPECT_LE(std::abs(own.count - 2880 / ranks), 32);
      EXPECT_EQ(LayerCut(c, {cut, false}, 2880).middle, own);
      EXPECT_EQ(config_of_rank(c, cut).experts().expert.intermediate, own.count);
      next = own.end();
    }
    EXPECT_EQ(next, 2880);
  }
}

/// One scale for all outputs is no matter of halves where there is no second half.
TEST(GpuCuts, FeedForwardPartsWithoutAGateStayInFp8) {
  ModelConfig c = load_model_config(golden("starcoder2"));
  c.quantization.method = QuantMethod::fp8;
  EXPECT_EQ(GpuFormats(c, nullptr, GpuCut{}).gate_up(0).format, cuda::WeightFormat::fp8);
  ModelConfig fused = load_model_config(golden("phi3"));
  fused.quantization.method = QuantMethod::fp8;
  EXPECT_EQ(GpuFormats(fused, nullptr, GpuCut{}).gate_up(0).format, cuda::WeightFormat::bf16);
}

/// A unit of 64 inputs has one scale, whoever has the unit.
TEST(GpuCuts, ExpertsInFp8AreKeptWhereUnitsHaveOneScale) {
  ModelConfig c = load_model_config(golden("qwen3_moe"));
  c.hidden = 256;
  c.quantization.method = QuantMethod::fp8;
  c.quantization.block_rows = 128;
  const auto kept = [&c](int intermediate, int ranks, int block) {
    for (LayerSpec& layer : c.parts) layer.experts.expert.intermediate = intermediate;
    c.quantization.block_columns = block;
    const GpuCut cut{{ranks - 1, ranks}, false};
    return GpuFormats(c, nullptr, cut).experts(c.layers - 1) == cuda::ExpertFormat::fp8;
  };
  EXPECT_TRUE(kept(128, 1, 128));
  EXPECT_TRUE(kept(128, 2, 128));
  EXPECT_FALSE(kept(128, 4, 128)) << "two ranks would share a unit";
  EXPECT_TRUE(kept(128, 4, 0)) << "one scale for all inputs";
  EXPECT_FALSE(kept(128, 1, 32)) << "a unit has two scales";
  EXPECT_TRUE(kept(96, 1, 128));
  EXPECT_FALSE(kept(112, 1, 128)) << "no whole halves of units";
  for (LayerSpec& layer : c.parts) layer.experts.expert.bias = true;
  EXPECT_FALSE(kept(128, 1, 128));
  // The checkpoint decides: its experts are not in FP8.
  const Model plain("qwen3_moe");
  ModelConfig said = plain.config;
  said.quantization.method = QuantMethod::fp8;
  for (int i = 0; i < said.layers; ++i) {
    if (!said.sparse(i)) continue;
    EXPECT_EQ(GpuFormats(said, &plain.files, GpuCut{}).experts(i), cuda::ExpertFormat::bf16);
  }
}

TEST(GpuCuts, ExpertsInInt4AreKeptWhereUnitsHaveOneScale) {
  ModelConfig c = load_model_config(golden("qwen3_moe"));
  c.hidden = 256;
  c.quantization.method = QuantMethod::gptq;
  const auto kept = [&c](int intermediate, int rank, int ranks, int group) {
    for (LayerSpec& layer : c.parts) layer.experts.expert.intermediate = intermediate;
    c.quantization.group = group;
    return GpuFormats(c, nullptr, {{rank, ranks}, false}).experts(c.layers - 1) ==
           cuda::ExpertFormat::int4;
  };
  for (const QuantMethod method : {QuantMethod::gptq, QuantMethod::awq, QuantMethod::packed}) {
    c.quantization.method = method;
    EXPECT_TRUE(kept(128, 0, 1, 128));
    EXPECT_TRUE(kept(128, 0, 1, 64));
    EXPECT_TRUE(kept(128, 0, 1, 0)) << "one scale for all inputs";
    EXPECT_FALSE(kept(128, 0, 1, 32)) << "a unit has two scales";
    EXPECT_FALSE(kept(112, 0, 1, 128)) << "no whole halves of units";
    EXPECT_TRUE(kept(256, 1, 2, 128));
    EXPECT_TRUE(kept(256, 3, 4, 128)) << "half of a group";
    EXPECT_TRUE(kept(768, 1, 4, 128)) << "from within a group into the next one, by units";
    EXPECT_FALSE(kept(384, 1, 4, 128)) << "and by half a unit";
  }
  EXPECT_TRUE(kept(384, 1, 2, 128));
  const ExpertParts parts = gpu_expert_parts(c, nullptr, c.layers - 1, {{1, 2}, false});
  EXPECT_EQ(parts.down.groups, 3) << "of 64 inputs: 192 to 255, 256 to 319, 320 to 383";
  EXPECT_EQ(parts.down.group_shift, 6);
  EXPECT_TRUE(kept(512, 1, 2, 128));
  const ExpertParts halves = gpu_expert_parts(c, nullptr, c.layers - 1, {{1, 2}, false});
  EXPECT_EQ(halves.gate_up.groups, 2);
  EXPECT_EQ(halves.down.groups, 2);
  EXPECT_EQ(halves.down.group_shift, 7);
  c.quantization.bits = 8;
  EXPECT_FALSE(kept(128, 0, 1, 128));
  c.quantization.bits = 4;
  c.quantization.method = QuantMethod::gptq;
  c.quantization.act_order = true;
  EXPECT_FALSE(kept(128, 0, 1, 64)) << "inputs in an order of their own";
  c.quantization.act_order = false;
  EXPECT_TRUE(kept(128, 0, 1, 64));
  for (LayerSpec& layer : c.parts) layer.experts.expert.bias = true;
  EXPECT_FALSE(kept(128, 0, 1, 64));
  // The checkpoint decides: groups of 16, and none at all.
  const Model small("gptq_v2_experts");
  EXPECT_EQ(GpuFormats(small.config, &small.files, GpuCut{}).experts(0), cuda::ExpertFormat::bf16);
  const Model plain("qwen3_moe");
  ModelConfig said = plain.config;
  said.quantization.method = QuantMethod::awq;
  said.quantization.group = 64;
  EXPECT_EQ(GpuFormats(said, &plain.files, GpuCut{}).experts(1), cuda::ExpertFormat::bf16);
}

/// In one tensor for all experts as well as one by one, if the checkpoint has them so.
TEST(GpuCuts, ExpertsInFp8OfOneTensorAreKept) {
  const auto kept = [](const char* name) {
    const Model model(name);
    ModelConfig said = model.config;
    said.hidden = 256;
    said.quantization.method = QuantMethod::fp8;
    said.quantization.block_rows = said.quantization.block_columns = 0;
    for (LayerSpec& layer : said.parts) layer.experts.expert.intermediate = 128;
    return GpuFormats(said, &model.files, GpuCut{}).experts(said.layers - 1) ==
           cuda::ExpertFormat::fp8;
  };
  EXPECT_TRUE(kept("mistral4_fp8"));
  EXPECT_FALSE(kept("mistral4"));
  EXPECT_FALSE(kept("mistral4_each"));
}

TEST(GpuCuts, ScalesOfAUnitAreThoseOfItsRowAndInputs) {
  std::vector<float> scales(2 * 3);  // of blocks of 16 x 128
  std::iota(scales.begin(), scales.end(), 1.0F);
  LinearSource source;
  source.fp8 = Fp8Weight{};
  source.fp8->out = 32;
  source.fp8->in = 320;
  source.fp8->block_rows = 16;
  source.fp8->block_columns = 128;
  source.fp8->scales.data = reinterpret_cast<const std::byte*>(scales.data());
  source.fp8->scales.type = cpu::ElementType::f32;
  source.fp8->scales.rows = 2;
  source.fp8->scales.columns = 3;
  const std::vector<float> all = fp8_unit_scales({{&source, {0, 32}, {0, 320}, 0, false}}, 32);
  ASSERT_EQ(all.size(), 32U * 5);
  EXPECT_EQ(std::vector<float>(all.begin(), all.begin() + 5), (std::vector<float>{1, 1, 2, 2, 3}));
  EXPECT_EQ(std::vector<float>(all.end() - 5, all.end()), (std::vector<float>{4, 4, 5, 5, 6}));
  // Some rows of two matrices in turns of eight, and some of their inputs.
  const std::vector<float> some = fp8_unit_scales(
      {{&source, {0, 8}, {64, 128}, 0, true}, {&source, {16, 8}, {64, 128}, 8, true}}, 16);
  ASSERT_EQ(some.size(), 16U * 2);
  for (std::size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(some[2 * row], row < 8 ? 1 : 4);
    EXPECT_EQ(some[2 * row + 1], row < 8 ? 2 : 5);
  }
}

/// Latent vectors are one head's: every rank has all of what leads to them.
TEST(GpuCuts, LatentSizesThatGpusServe) {
  ModelConfig c = load_model_config(golden("deepseek_v3"));
  const auto refused = [&c] {
    try {
      check_gpu_limits(c);
    } catch (const ModelError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused().find("sizes are no multiples of 8"), std::string::npos);
  c.hidden = 256;
  c.heads = c.kv_heads = 8;
  c.latent = {.rank = 512, .q_rank = 96, .plain = 128, .value = 128, .rope = 64};
  c.head_dim = 192;
  for (LayerSpec& layer : c.parts) {
    layer.mlp.intermediate = layer.sparse() ? 0 : 512;
    if (!layer.sparse()) continue;
    layer.experts.expert.intermediate = layer.experts.shared.intermediate = 128;
  }
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(refusal(c, {{0, 4}, false}), "");
  const ModelConfig own = config_of_rank(c, {1, 4});
  EXPECT_EQ(own.heads, 2);
  EXPECT_EQ(own.pool_heads(), 1);
  EXPECT_EQ(own.pool_dim(), 288);
  EXPECT_EQ(own.attended_columns(), 256);
  c.latent.rank = 1024;
  EXPECT_NE(refused().find("more than 512 and 128 numbers"), std::string::npos);
}

TEST(GpuCuts, WhatEveryTokenTakesIsKeptWhereARankHasWholeGroups) {
  ModelConfig c = load_model_config(golden("qwen2_moe"));
  c.quantization.method = QuantMethod::awq;
  c.quantization.bits = 4;
  c.quantization.group = 32;
  const auto kept = [&c](int intermediate) {
    for (LayerSpec& layer : c.parts) layer.experts.shared.intermediate = intermediate;
    const GpuCut half{{1, 2}, false};
    return GpuFormats(c, nullptr, half).shared_down(c.layers - 1);
  };
  EXPECT_EQ(kept(128).format, cuda::WeightFormat::int4);
  EXPECT_EQ(kept(128).groups, 2);
  EXPECT_EQ(kept(96).format, cuda::WeightFormat::bf16);
}

TEST(GpuCuts, ARankIsAModelOfItsHeadsAndFeatures) {
  const ModelConfig whole = of_gpt_oss();
  const ModelConfig own = config_of_rank(whole, {3, 4});
  EXPECT_EQ(own.heads, 16);
  EXPECT_EQ(own.kv_heads, 2);
  EXPECT_EQ(own.experts().expert.intermediate, 720);
  EXPECT_EQ(own.experts().count, whole.experts().count);
  EXPECT_EQ(own.hidden, whole.hidden);
  const ModelConfig shared = load_model_config(golden("qwen2_moe"));
  EXPECT_EQ(config_of_rank(shared, {0, 2}).experts().shared.intermediate,
            shared.experts().shared.intermediate / 2);
}

}  // namespace
}  // namespace baton
