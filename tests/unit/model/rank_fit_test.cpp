// What doctor says of a model and a machine: sums by the number of ranks, from headers alone. That
// they are what ranks really read: tests/cpu_torch/ranks_test.cpp.
#include "workers/model/rank_fit.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace baton {
namespace {

constexpr std::uint64_t kMib = 1U << 20U;

/// A golden model, or "demo": that one has sizes that GPUs serve.
std::string folder_of(const std::string& name) {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  return std::string(source != nullptr ? source : ".") +
         (name == "demo" ? "/demo/model" : "/tests/golden/models/" + name);
}

struct Model {
  explicit Model(const std::string& name)
      : config(load_model_config(folder_of(name))), files(folder_of(name)) {}
  FitAnswer fit(const MachineMemory& machine, std::uint32_t context = 0) const {
    return fit_model({config, files, "model", context}, machine);
  }
  ModelConfig config;
  Checkpoint files;
};

MachineMemory machine_of(std::uint64_t host_mib, std::vector<std::uint64_t> gpu_mib = {}) {
  MachineMemory machine;
  machine.host = host_mib * kMib;
  machine.cores = 4;
  for (const std::uint64_t mib : gpu_mib) machine.gpus.push_back(mib * kMib);
  return machine;
}

/// The line that begins so; empty: there is none.
std::string line_of(const FitAnswer& answer, const std::string& begin) {
  for (const std::string& line : answer.lines) {
    if (line.substr(9).starts_with("model " + begin)) return line;
  }
  return {};
}

TEST(RankFit, PartsAreDividedAndTheRestRepeated) {
  RankWeights w;
  w.repeated = 10;
  w.cut = 1001;
  w.kv = 80;
  w.kv_heads = 2;
  w.experts = 700;
  w.expert_count = 7;
  EXPECT_EQ(w.of_largest(1), 10U + 1001 + 80 + 700);
  EXPECT_EQ(w.of_largest(2), 10U + 501 + 40 + 400);  // four of the seven experts
  EXPECT_EQ(w.of_largest(4), 10U + 251 + 40 + 200);  // two ranks have the same KV head
  EXPECT_EQ(w.of_all(1), w.of_largest(1));
  EXPECT_EQ(w.of_all(2), 20U + 1001 + 80 + 700);
  EXPECT_EQ(w.of_all(4), 40U + 1001 + 160 + 700);
}

TEST(RankFit, EveryTensorThatIsServedCountsOnce) {
  for (const char* name : {"mistral_window", "phi3", "mixtral", "deepseek_v3", "gptq_sym"}) {
    SCOPED_TRACE(name);
    const Model model(name);
    std::uint64_t stored = 0;
    for (const auto& [tensor, view] : model.files.tensors()) stored += view.bytes;
    EXPECT_EQ(rank_weights(model.config, model.files, TensorBytes::stored).of_all(1), stored);
  }
  // Of a model that sees pictures, too, the text half alone.
  const Model pictures("gemma3_pictures");
  std::uint64_t stored = 0;
  for (const auto& [tensor, view] : pictures.files.tensors()) stored += view.bytes;
  EXPECT_LT(rank_weights(pictures.config, pictures.files, TensorBytes::stored).of_all(1), stored);
}

TEST(RankFit, NamesTheNumbersOfRanksThatTheModelCanHave) {
  const Model model("mistral_window");
  const FitAnswer answer = model.fit(machine_of(8192));
  EXPECT_TRUE(answer.somewhere);
  EXPECT_TRUE(line_of(answer, "on CPUs, 1 rank:").starts_with("ok "));
  EXPECT_TRUE(line_of(answer, "on CPUs, 2 ranks:").starts_with("ok "));
  EXPECT_TRUE(line_of(answer, "on CPUs, 4 ranks:").starts_with("ok "));
  EXPECT_EQ(line_of(answer, "on CPUs, 8 ranks:"), "") << "there are four cores";
  EXPECT_EQ(line_of(answer, "on CPUs, 3 ranks:"), "") << "its heads do not divide";
  EXPECT_EQ(line_of(answer, "on GPUs"), "") << "there is none";

  const FitAnswer on_gpus = Model("demo").fit(machine_of(8192, {8192, 8192, 8192}));
  EXPECT_TRUE(line_of(on_gpus, "on GPUs, 1 rank:").starts_with("ok "));
  EXPECT_TRUE(line_of(on_gpus, "on GPUs, 2 ranks, each:").starts_with("ok "));
  EXPECT_EQ(line_of(on_gpus, "on GPUs, 3 ranks, each:"), "") << "its heads do not divide";
  EXPECT_EQ(line_of(on_gpus, "on GPUs, 6 ranks, each:"), "") << "there are three GPUs";
  // What GPUs do not serve at all is told once, with the reason.
  EXPECT_NE(line_of(Model("deepseek_v3").fit(machine_of(8192, {8192})), "on GPUs: latent")
                .find("not served"),
            std::string::npos);
}

TEST(RankFit, SaysWhatIsMissingAndWhichContextFits) {
  const Model model("demo");
  const FitAnswer nowhere = model.fit(machine_of(50, {500}));
  EXPECT_FALSE(nowhere.somewhere);
  EXPECT_NE(line_of(nowhere, "on CPUs, 1 rank:").find("only 0.04 GiB may be taken"),
            std::string::npos);
  EXPECT_TRUE(line_of(nowhere, "on GPUs, 1 rank:").starts_with("note "));

  // Room for the weights, and for half of the context.
  MachineMemory machine = machine_of(8192);
  machine.shared = 1;
  const FitAnswer shared = model.fit(machine);
  EXPECT_FALSE(shared.somewhere);
  EXPECT_NE(line_of(shared, "on CPUs, 1 rank:").find("are free in /dev/shm"), std::string::npos);
  const auto context = static_cast<std::uint64_t>(model.config.max_context);
  const std::uint64_t token =
      std::uint64_t{2} * 4 *
      static_cast<std::uint64_t>(model.config.layers * model.config.pool_heads() *
                                 model.config.pool_dim());
  ASSERT_GE(context, 512U);
  machine.shared = context / 2 * token;
  const FitAnswer half = model.fit(machine);
  EXPECT_FALSE(half.somewhere);
  const std::uint64_t fits = context / 2 / 256 * 256;
  EXPECT_NE(line_of(half, "on CPUs, 1 rank:")
                .find("--max_context " + std::to_string(fits) + " would fit"),
            std::string::npos)
      << line_of(half, "on CPUs, 1 rank:");
  EXPECT_TRUE(model.fit(machine, static_cast<std::uint32_t>(fits)).somewhere);
}

/// Whatever a worker of several GPUs would refuse at its start is no number that fits.
TEST(RankFit, GpusShareWhatTheyServeTogetherAlone) {
  Model model("demo");
  model.config.logits_cap = 30;  // computed part by part
  const FitAnswer parts = model.fit(machine_of(8192, {8192, 8192}));
  EXPECT_TRUE(line_of(parts, "on GPUs, 2 ranks, each:").starts_with("ok "));

  for (LayerSpec& layer : model.config.parts) layer.mlp.intermediate = 528;
  const FitAnswer answer = model.fit(machine_of(8192, {8192, 8192}));
  EXPECT_TRUE(line_of(answer, "on GPUs, 1 rank:").starts_with("ok "));
  EXPECT_EQ(line_of(answer, "on GPUs, 2 ranks, each:"), "");
  EXPECT_NE(line_of(answer, "on GPUs: worker.ranks:").find("528 features of a layer"),
            std::string::npos);
}

/// Bytes of all experts in tiles of 16 features by units of 64 inputs, `features` of each.
std::uint64_t in_units(const ModelConfig& c, int features, int unit_bytes) {
  std::uint64_t units = 0;
  for (int i = 0; i < c.layers; ++i) {
    if (!c.sparse(i)) continue;
    const int up = 2 * features / 16 * ((c.hidden + 63) / 64);
    const int down = c.hidden / 16 * ((features + 63) / 64);
    units += static_cast<std::uint64_t>(c.layer(i).experts.count * (up + down));
  }
  return units * static_cast<std::uint64_t>(unit_bytes);
}

/// Each GPU has some features of every expert; those in MXFP4 are kept, in whole blocks of 32.
TEST(RankFit, GpusCutExpertsByFeatures) {
  const Model plain("gpt_oss");
  const Model packed("gpt_oss_mxfp4");
  const RankWeights cpus = rank_weights(plain.config, plain.files, TensorBytes::stored);
  const RankWeights gpus = rank_weights(plain.config, plain.files, TensorBytes::on_gpu);
  EXPECT_GT(cpus.experts, 0U);
  EXPECT_EQ(gpus.experts, 0U);
  Model odd("gpt_oss_mxfp4");  // sizes that no block of kept ones has
  for (LayerSpec& layer : odd.config.parts) layer.experts.expert.intermediate = 48;
  const RankWeights widened = rank_weights(odd.config, odd.files, TensorBytes::on_gpu);
  std::uint64_t as_bf16 = 0;
  for (const auto& [name, view] : packed.files.tensors()) {
    if (name.ends_with("_blocks")) as_bf16 += 4 * view.bytes;
  }
  const RankWeights kept = rank_weights(packed.config, packed.files, TensorBytes::on_gpu);
  const int features = packed.config.experts().expert.intermediate;
  const std::uint64_t in_fours = in_units(packed.config, features, 512 + 32);
  EXPECT_EQ(widened.cut - as_bf16, kept.cut - in_fours);
  EXPECT_EQ(widened.repeated, kept.repeated);

  // Of three blocks one of two GPUs has two, and the plan is for two like it.
  Model uneven("gpt_oss_mxfp4");
  for (LayerSpec& layer : uneven.config.parts) layer.experts.expert.intermediate = 96;
  const RankWeights shared = rank_weights(uneven.config, uneven.files, TensorBytes::on_gpu, 2);
  EXPECT_EQ(shared.cut - 2 * in_units(packed.config, 64, 512 + 32), kept.cut - in_fours);
}

/// Experts in int4 are kept with a word of scale for 64 numbers, or become bf16, on all GPUs if one
/// of them widens them.
TEST(RankFit, GpusKeepExpertsInInt4) {
  Model model("gptq_v2_experts");
  model.config.quantization.group = 64;
  for (LayerSpec& layer : model.config.parts) {
    layer.experts.expert.intermediate = 96;
    layer.experts.expert.bias = true;
  }
  const RankWeights widened = rank_weights(model.config, model.files, TensorBytes::on_gpu);
  for (LayerSpec& layer : model.config.parts) layer.experts.expert.bias = false;
  const RankWeights kept = rank_weights(model.config, model.files, TensorBytes::on_gpu);
  std::uint64_t as_bf16 = 0;
  for (const auto& [name, view] : model.files.tensors()) {
    if (name.find(".experts.") == std::string::npos) continue;
    as_bf16 += view.dtype == "I32" && view.shape.size() > 1 ? 4 * view.bytes : view.bytes;
  }
  EXPECT_EQ(widened.cut - as_bf16, kept.cut - in_units(model.config, 96, 512 + 64));
  // Of 384 features in groups of 128 the second of four GPUs has half a unit at its ends.
  for (LayerSpec& layer : model.config.parts) layer.experts.expert.intermediate = 384;
  model.config.quantization.group = 128;
  EXPECT_EQ(rank_weights(model.config, model.files, TensorBytes::on_gpu, 4).cut, widened.cut);
  EXPECT_EQ(rank_weights(model.config, model.files, TensorBytes::on_gpu, 2).cut -
                (kept.cut - in_units(model.config, 96, 512 + 64)),
            2 * in_units(model.config, 192, 512 + 64));
}

/// So are other layers, or not.
TEST(RankFit, GpusWidenSmallGroups) {
  Model model("awq");  // groups of 16
  const RankWeights widened = rank_weights(model.config, model.files, TensorBytes::on_gpu);
  model.config.quantization.group = 32;
  const RankWeights kept = rank_weights(model.config, model.files, TensorBytes::on_gpu);
  std::uint64_t words = 0;
  for (const auto& [name, view] : model.files.tensors()) {
    if (view.dtype == "I32" && view.shape.size() > 1) words += view.bytes;
  }
  EXPECT_EQ(widened.of_all(1) - kept.of_all(1), 3 * words);
}

TEST(RankFit, EachGpuHasTheWholeEmbedding) {
  const Model model("demo");
  const auto table = static_cast<std::uint64_t>(model.config.vocab) *
                     static_cast<std::uint64_t>(model.config.hidden) * 2;
  const RankWeights cpus = rank_weights(model.config, model.files, TensorBytes::stored);
  const RankWeights gpus = rank_weights(model.config, model.files, TensorBytes::on_gpu);
  EXPECT_LT(cpus.repeated, table);
  EXPECT_GE(gpus.repeated, table);
  EXPECT_LT(gpus.repeated, table + table / 2);
}

/// On GPUs a rank has its part of the weights and its heads of the pool: what one cannot hold, two
/// can.
TEST(RankFit, TwoGpusHoldWhatOneCannot) {
  const Model model("demo");
  const auto needs = [&](int ranks) {
    const RankWeights w = rank_weights(model.config, model.files, TensorBytes::on_gpu);
    const auto heads = static_cast<std::uint64_t>(model.config.pool_heads() / ranks);
    return w.of_largest(ranks) + 1024 * kMib +
           std::uint64_t{2} * 2 * heads *
               static_cast<std::uint64_t>(model.config.layers * model.config.pool_dim() *
                                          model.config.max_context);
  };
  ASSERT_GT(needs(1), needs(2));
  MachineMemory machine = machine_of(8192);
  machine.fraction = 1.0;
  machine.gpus.assign(2, (needs(1) + needs(2)) / 2);
  const FitAnswer answer = model.fit(machine);
  EXPECT_TRUE(line_of(answer, "on GPUs, 1 rank:").starts_with("note "));
  EXPECT_TRUE(line_of(answer, "on GPUs, 2 ranks, each:").starts_with("ok "));
  machine.gpus[1] = 1024 * kMib;  // the fullest of them decides
  EXPECT_TRUE(line_of(model.fit(machine), "on GPUs, 2 ranks, each:").starts_with("note "));
}

}  // namespace
}  // namespace baton
