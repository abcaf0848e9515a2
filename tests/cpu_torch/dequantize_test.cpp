// Quantised weights: the formats' bits by hand, and every layer of the golden checkpoints.
#include "workers/model/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "tests/cpu_torch/golden_file.h"
#include "tests/cpu_torch/model_fixture.h"
#include "workers/model/checkpoint_reader.h"

namespace baton::test {
namespace {

/// By two threads.
template <class F>
std::vector<float> filled(std::int64_t out, std::int64_t in, F fill) {
  static cpu::ThreadPool pool(2);
  std::vector<float> values(static_cast<std::size_t>(out * in));
  fill(pool, values.data());
  return values;
}
std::vector<float> gptq(const Int4Weight& w, int zero_offset) {
  return filled(w.out, w.in,
                [&](auto& pool, float* to) { dequantize_gptq(w, zero_offset, pool, to); });
}
std::vector<float> awq(const Int4Weight& w) {
  return filled(w.out, w.in, [&](auto& pool, float* to) { dequantize_awq(w, pool, to); });
}
std::vector<float> fp8(const Fp8Weight& w) {
  return filled(w.out, w.in, [&](auto& pool, float* to) { dequantize_fp8(w, pool, to); });
}

template <class T>
const std::byte* bytes(const std::vector<T>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}

/// Eight outputs of eight inputs; scales of two groups of inputs, 1 and 10.
struct Eight {
  std::vector<std::uint32_t> weights, zeros;
  std::vector<float> scales = std::vector<float>(16, 1.0F);
  Int4Weight weight;

  Eight(std::vector<std::uint32_t> w, std::vector<std::uint32_t> z)
      : weights(std::move(w)), zeros(std::move(z)) {
    std::fill(scales.begin() + 8, scales.end(), 10.0F);
    weight.weights = bytes(weights);
    weight.zeros = bytes(zeros);
    weight.scales = {bytes(scales), cpu::ElementType::f32, 2, 8};
    weight.group = {0, 0, 0, 0, 1, 1, 1, 1};
    weight.out = 8;
    weight.in = 8;
  }
};

TEST(Dequantize, GptqWordsRunAlongTheInputs) {
  // Output 0 holds 0..7, output 1 holds 15, 0, ...; zero points 1 + (stored 0..7), then all 16.
  std::vector<std::uint32_t> words(8, 0);
  words[0] = 0x76543210;
  words[1] = 0x0000000F;
  Eight e(words, {0x76543210, 0xFFFFFFFF});
  std::vector<float> w = gptq(e.weight, 1);
  EXPECT_EQ(w[1], 0.0F);           // 1 - (0 + 1)
  EXPECT_EQ(w[3], 2.0F);           // 3 - 1
  EXPECT_EQ(w[4], 40.0F);          // group 1: (4 - (15 + 1) mod 16) * 10
  EXPECT_EQ(w[8 + 0], 13.0F);      // 15 - (1 + 1)
  EXPECT_EQ(w[8 + 1], -2.0F);      // 0 - 2
  EXPECT_EQ(w[7 * 8 + 0], -8.0F);  // 0 - (7 + 1)
  w = gptq(e.weight, 0);
  EXPECT_EQ(w[1], 1.0F);
  EXPECT_EQ(w[4], -110.0F);  // (4 - 15) * 10
  // Act-order: groups in no order at all.
  e.weight.group = {1, 0, 1, 0, 1, 0, 0, 0};
  w = gptq(e.weight, 0);
  EXPECT_EQ(w[1], 1.0F);
  EXPECT_EQ(w[2], -130.0F);
}

TEST(Dequantize, AwqWordsRunAlongTheOutputsInTheirOwnOrder) {
  // Nibbles 0, 4, 1, 5, 2, 6, 3, 7 of 0x75316420 are 0..7.
  std::vector<std::uint32_t> words(8, 0x75316420);
  words[7] = 0;
  const Eight e(words, {0, 0x75316420});
  const std::vector<float> w = awq(e.weight);
  for (std::size_t o = 0; o < 8; ++o) {
    EXPECT_EQ(w[o * 8], static_cast<float>(o));
    EXPECT_EQ(w[o * 8 + 4], 0.0F);                            // the zero point is the value
    EXPECT_EQ(w[o * 8 + 7], -10.0F * static_cast<float>(o));  // 0 - o, group 1
  }
}

TEST(Dequantize, Fp8ValuesAndBlocks) {
  const std::vector<std::pair<int, float>> known = {
      {0x00, 0.0F},    {0x38, 1.0F},    {0xB8, -1.0F}, {0x7E, 448.0F},     {0xFE, -448.0F},
      {0x01, 0x1p-9F}, {0x08, 0x1p-6F}, {0x3C, 1.5F},  {0x07, 7 * 0x1p-9F}};
  for (const auto& [bits, value] : known) {
    const std::vector<std::uint8_t> byte(1, static_cast<std::uint8_t>(bits));
    const std::vector<float> one = {1.0F};
    const Fp8Weight w{bytes(byte), {bytes(one), cpu::ElementType::f32, 1, 1}, 1, 1, 1, 1};
    EXPECT_EQ(fp8(w)[0], value) << bits;
  }
  const std::vector<std::uint8_t> ones(3 * 5, 0x38);
  const std::vector<float> scales = {1, 2, 3, 4};
  const Fp8Weight w{bytes(ones), {bytes(scales), cpu::ElementType::f32, 2, 2}, 3, 5, 2, 3};
  EXPECT_EQ(fp8(w), (std::vector<float>{1, 1, 1, 2, 2, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4}));
  const std::vector<std::uint8_t> nan(1, 0x7F);
  EXPECT_TRUE(
      std::isnan(fp8({bytes(nan), {bytes(scales), cpu::ElementType::f32, 1, 1}, 1, 1, 1, 1})[0]));
}

/// The fp32 bits of every quantised layer are those that the script computed on its own.
TEST(Dequantize, GoldenCheckpointsHoldTheScriptsValues) {
  for (const std::string& name : quantized_models()) {
    SCOPED_TRACE(name);
    const std::string folder = golden_folder() + "/models/" + name;
    const ModelConfig c = load_model_config(folder);
    const Checkpoint checkpoint(folder);
    CheckpointReader reader(c, checkpoint, nullptr, 2);
    const std::string text = read_file(golden_folder() + "/logits_" + name + ".safetensors");
    ASSERT_FALSE(text.empty());
    const std::int64_t q = std::int64_t{c.heads} * c.head_dim;
    const std::int64_t kv = std::int64_t{c.kv_heads} * c.head_dim;
    const LatentSpec& l = c.latent;
    using Shapes = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;
    const Shapes attention = {{"q_proj", {q, c.hidden}},
                              {"k_proj", {kv, c.hidden}},
                              {"v_proj", {kv, c.hidden}},
                              {"o_proj", {c.hidden, c.attended_columns()}},
                              {"q_a_proj", {l.q_rank, c.hidden}},
                              {"q_b_proj", {q, l.q_rank}},
                              {"kv_a_proj_with_mqa", {l.rank + l.rope, c.hidden}},
                              {"kv_b_proj", {c.heads * (l.plain + l.value), l.rank}}};
    int checked = 0;
    for (const auto& [key, view] :
         parse_safetensors(reinterpret_cast<const std::byte*>(text.data()), text.size(), name)) {
      if (!key.starts_with("crc32.")) continue;
      const std::string layer = key.substr(6, key.size() - 6 - std::string(".weight").size());
      const bool shared = layer.find("shared_experts") != std::string::npos;
      const bool expert = layer.find(".experts.") != std::string::npos;
      const std::int64_t middle = shared   ? c.experts().shared.intermediate
                                  : expert ? c.experts().expert.intermediate
                                           : c.intermediate();
      Shapes shapes = attention;
      shapes["gate_proj"] = shapes["up_proj"] = {middle, c.hidden};
      shapes["down_proj"] = {c.hidden, middle};
      const auto [out, in] = shapes.at(layer.substr(layer.rfind('.') + 1));
      const LinearSource source = reader.linear(layer, out, in);
      const cpu::MatrixSource matrix = reader.dequantized(source);
      ASSERT_EQ(matrix.type, cpu::ElementType::f32);
      const std::string_view memory(reinterpret_cast<const char*>(matrix.data),
                                    static_cast<std::size_t>(out * in) * sizeof(float));
      EXPECT_EQ(crc32_of(memory), static_cast<std::uint32_t>(values<std::int64_t>(view).at(0)))
          << layer;
      // FP8, and groups in no order or with a rest, have no whole numbers.
      const bool whole = name == "awq" || name == "gptq_sym";
      EXPECT_TRUE(source.grouped.has_value() || !whole) << layer;
      if (source.grouped) {
        std::vector<float> wide(static_cast<std::size_t>(out * in));
        cpu::ThreadPool pool(2);
        cpu::widen(reader.grouped(source), pool, wide.data());
        EXPECT_EQ(std::memcmp(wide.data(), matrix.data, memory.size()), 0) << layer;
      }
      ++checked;
    }
    // Those of one tensor for all experts are no layers of their own: golden_test.cpp.
    const std::string root = decoder_root(c.names, checkpoint);
    const int latent = c.latent.q_rank > 0 ? 5 : 4;  // q in two products, k and v in two, o
    int expected = 0;
    for (int i = 0; i < c.layers; ++i) {
      const ExpertSpec& e = c.layer(i).experts;
      const int shared = e.shared.intermediate > 0 ? 1 : 0;
      expected += c.latent.rank > 0 ? latent : 4;
      const std::string experts = root + "layers." + std::to_string(i) + "." + c.names.experts;
      const int apart = experts_apart(c.names, &checkpoint, experts) ? e.count : 0;
      expected += 3 * (c.sparse(i) ? apart + shared : 1);
    }
    EXPECT_EQ(checked, expected);
  }
}

}  // namespace
}  // namespace baton::test
