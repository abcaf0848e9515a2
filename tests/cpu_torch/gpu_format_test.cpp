// What the GPU backend decides about quantised weights without a GPU: where a weight lies, and
// which matrices stay quantised.
#include "workers/model/gpu_format.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "tests/cpu_torch/model_fixture.h"
#include "workers/cuda/linear/quantized_layout.h"

namespace baton::test {
namespace {

using cuda::WeightFormat;

/// mma.m16n8k16 as PTX defines it: register i of lane 4 g + t holds row g + 8 (i % 2) of the left
/// operand, and of the 16 inputs the pair 2 t + 8 (i / 2); the right operand's register r of lane 4
/// n + t holds the pair 2 t + 8 r of column n.
int input_of(int t, int instruction, int right_register, int odd) {
  return 16 * instruction + 2 * t + 8 * right_register + odd;
}

TEST(QuantizedLayout, GivesEveryLaneWhatItsInstructionsMultiply) {
  constexpr int kUnits = 3;
  for (const int row0 : {0, 32}) {
    for (const int unit : {0, 2}) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int j = 0; j < 4; ++j) {
          for (int i = 0; i < 4; ++i) {
            for (int odd = 0; odd < 2; ++odd) {
              const int row = row0 + lane / 4 + 8 * (i % 2);
              const int input = 64 * unit + input_of(lane % 4, j, i / 2, odd);
              const auto block = static_cast<std::size_t>(row0 / 16 * kUnits + unit);
              const auto int4 = cuda::place_of(WeightFormat::int4, kUnits, row, input);
              // One load of 16 bytes a lane; word j is instruction j; nibbles i and i + 4 are
              // register i.
              EXPECT_EQ(int4.word, (block * 32 + static_cast<std::size_t>(lane)) * 4 +
                                       static_cast<std::size_t>(j));
              EXPECT_EQ(int4.bit, 4 * (i + 4 * odd));
              const auto fp8 = cuda::place_of(WeightFormat::fp8, kUnits, row, input);
              // Two loads, one a half; two words an instruction, of registers 0 and 1, 2 and 3.
              const auto load = (block * 2 + static_cast<std::size_t>(j / 2)) * 32 +
                                static_cast<std::size_t>(lane);
              EXPECT_EQ(fp8.word, load * 4 + static_cast<std::size_t>(j % 2 * 2 + i / 2));
              EXPECT_EQ(fp8.bit, 8 * (i % 2 + 2 * odd));
            }
          }
        }
      }
    }
  }
}

TEST(QuantizedLayout, GivesEveryWeightItsOwnBits) {
  constexpr int kOut = 40;
  constexpr int kIn = 144;
  for (const auto& [format, bits] : {std::pair{WeightFormat::int4, 4}, {WeightFormat::fp8, 8}}) {
    std::set<std::pair<std::size_t, int>> used;
    for (int row = 0; row < kOut; ++row) {
      for (int input = 0; input < kIn; ++input) {
        const auto place = cuda::place_of(format, cuda::units_of(kIn), row, input);
        EXPECT_LT(place.word, cuda::weight_words(format, kOut, kIn));
        EXPECT_EQ(place.bit % bits, 0);
        EXPECT_LE(place.bit + bits, 32);
        EXPECT_TRUE(used.emplace(place.word, place.bit).second) << row << ", " << input;
      }
    }
  }
  std::set<std::size_t> scales;
  for (int row = 0; row < kOut; ++row) {
    for (int group = 0; group < 3; ++group) {
      const std::size_t at = cuda::scale_at(3, row, group);
      EXPECT_LT(at, cuda::scale_words(kOut, 3));
      EXPECT_TRUE(scales.insert(at).second);
    }
  }
  EXPECT_EQ(cuda::scale_at(3, 16 + 5, 1) + 1, cuda::scale_at(3, 16 + 13, 1));
}

TEST(GpuFormat, OrdersInputsByGroup) {
  const std::vector<std::int32_t> shuffled = {1, 0, 1, 0, 0, 1, 0, 1};
  EXPECT_EQ(order_by_group(shuffled, 2), (std::vector<std::int32_t>{1, 3, 4, 6, 0, 2, 5, 7}));
  const std::vector<std::int32_t> uneven = {1, 0, 1, 0, 0, 0, 0, 1};
  EXPECT_EQ(order_by_group(uneven, 2), std::nullopt);
  // The last group may be short, no other.
  EXPECT_NE(order_by_group(std::vector<std::int32_t>{1, 0, 0, 0, 0}, 2), std::nullopt);
  EXPECT_EQ(order_by_group(std::vector<std::int32_t>{1, 1, 0, 1, 1}, 2), std::nullopt);
}

ModelConfig quantized(QuantMethod method, int group) {
  ModelConfig c;
  c.quantization.method = method;
  (method == QuantMethod::fp8 ? c.quantization.block_columns : c.quantization.group) = group;
  return c;
}

TEST(GpuFormat, GroupsOfAPowerOfTwoStayQuantised) {
  const std::array<std::string, 1> part = {"layer"};
  const auto of = [&](QuantMethod method, int group, int in) {
    return gpu_linear_format(quantized(method, group), nullptr, part, in);
  };
  EXPECT_EQ(of(QuantMethod::none, 0, 256).format, WeightFormat::bf16);
  const LinearFormat gptq = of(QuantMethod::gptq, 128, 4096);
  EXPECT_EQ(gptq.format, WeightFormat::int4);
  EXPECT_EQ(gptq.groups, 32);
  EXPECT_EQ(gptq.group_shift, 7);
  EXPECT_EQ(of(QuantMethod::awq, 32, 144).groups, 5);
  EXPECT_EQ(of(QuantMethod::awq, 16, 144).format, WeightFormat::bf16);
  EXPECT_EQ(of(QuantMethod::awq, 96, 192).format, WeightFormat::bf16);
  EXPECT_EQ(of(QuantMethod::gptq, 0, 144).groups, 1);
  EXPECT_EQ(of(QuantMethod::gptq, 256, 144).groups, 1);
  EXPECT_EQ(of(QuantMethod::fp8, 0, 144).groups, 1);
  EXPECT_EQ(of(QuantMethod::fp8, 128, 144).groups, 2);
  EXPECT_EQ(of(QuantMethod::fp8, 32, 144).format, WeightFormat::bf16);
  // Of a rank: 192 inputs from within a group on.
  const auto some = [&](QuantMethod method, int group, const Slice& inputs) {
    return gpu_linear_format(quantized(method, group), nullptr, part, 768, inputs);
  };
  for (const QuantMethod method : {QuantMethod::gptq, QuantMethod::awq, QuantMethod::packed}) {
    EXPECT_EQ(some(method, 128, {192, 192}).format, WeightFormat::int4);
    EXPECT_EQ(some(method, 128, {192, 192}).groups, 3);
    EXPECT_EQ(some(method, 128, {192, 192}).group_shift, 6);
    EXPECT_EQ(some(method, 128, {96, 96}).group_shift, 5);
    EXPECT_EQ(some(method, 128, {48, 96}).format, WeightFormat::bf16) << "groups of 16";
    EXPECT_EQ(some(method, 128, {192, 64}).groups, 1) << "within one";
    EXPECT_EQ(some(method, 128, {128, 192}).group_shift, 7);
  }
  EXPECT_EQ(some(QuantMethod::fp8, 128, {192, 192}).format, WeightFormat::bf16);
  ModelConfig ordered = quantized(QuantMethod::gptq, 128);
  ordered.quantization.act_order = true;
  EXPECT_EQ(gpu_linear_format(ordered, nullptr, part, 768, {192, 192}).format, WeightFormat::bf16);
}

TEST(GpuFormat, EightRowsShareTheScalesOfBlocks) {
  const std::array<std::string, 1> part = {"layer"};
  const auto shared = [&](QuantMethod method, int rows, int columns, int in) {
    ModelConfig c = quantized(method, columns);
    c.quantization.block_rows = rows;
    c.head_dim = 128;
    return gpu_linear_format(c, nullptr, part, in).shared_scales;
  };
  EXPECT_TRUE(shared(QuantMethod::fp8, 128, 128, 4096));
  EXPECT_TRUE(shared(QuantMethod::fp8, 8, 128, 144));
  EXPECT_FALSE(shared(QuantMethod::fp8, 4, 128, 4096));
  EXPECT_FALSE(shared(QuantMethod::fp8, 128, 64, 4096));
  EXPECT_FALSE(shared(QuantMethod::fp8, 128, 128, 128));  // one group
  EXPECT_FALSE(shared(QuantMethod::fp8, 0, 0, 4096));     // a scale an output
  EXPECT_FALSE(shared(QuantMethod::gptq, 128, 128, 4096));
}

TEST(GpuFormat, TheCheckpointDecides) {
  const auto of = [](const std::string& name, std::vector<std::string> parts, int group = -1) {
    const std::string folder = golden_folder() + "/models/" + name;
    ModelConfig config = load_model_config(folder);
    if (group >= 0) config.quantization.group = group;
    for (std::string& part : parts) part = "model.layers.0." + part;
    return gpu_linear_format(config, std::make_unique<Checkpoint>(folder).get(), parts,
                             config.hidden);
  };
  const std::vector<std::string> qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  EXPECT_EQ(of("fp8_channel", qkv).format, WeightFormat::fp8);
  EXPECT_EQ(of("fp8_channel", {"self_attn.q_proj", "input_layernorm"}).format, WeightFormat::bf16);
  EXPECT_EQ(of("fp8_block", qkv).groups, 2);
  EXPECT_EQ(of("awq", qkv).format, WeightFormat::bf16);  // groups of 16
  EXPECT_EQ(of("awq", qkv, 32).format, WeightFormat::int4);
  EXPECT_FALSE(of("gptq_sym", qkv).ordered);
  EXPECT_EQ(of("gptq_sym", qkv).format, WeightFormat::int4);
  // Act-order of q, k and v on their own: no order of x serves all three.
  EXPECT_EQ(of("gptq_act_order", qkv).format, WeightFormat::bf16);
}

}  // namespace
}  // namespace baton::test
