// GPTQ of eight bits, compressed-tensors' packed integers and NVFP4: values against plain loops
// that are written from the formats' descriptions, and the same values as whole numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/temp_dir.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/error.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kOut = 40;
constexpr std::int64_t kIn = 64;

/// Tensors of one layer, "l".
class Layer {
 public:
  explicit Layer(Json quantization) : quantization_(std::move(quantization)) {}

  template <class T>
  void add(const std::string& name, const std::string& dtype,
           const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
    const std::size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    header_["l." + name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }
  Json& header() { return header_; }

  /// Reads the layer and compares it with these values, twice.
  void expect(const std::function<float(std::int64_t, std::int64_t)>& value, bool grouped = true) {
    read([&](CheckpointReader& reader) {
      const LinearSource source = reader.linear("l", kOut, kIn);
      EXPECT_EQ(source.rows(), kOut);
      const cpu::MatrixSource found = reader.dequantized(source);
      for (std::int64_t r = 0; r < kOut; ++r) {
        for (std::int64_t i = 0; i < kIn; ++i) {
          ASSERT_EQ(cpu::element(found.data, found.type, r * kIn + i), value(r, i))
              << r << ", " << i;
        }
      }
      const cpu::MatrixSource some = reader.dequantized(source, {3, 17});  // as a rank asks
      ASSERT_EQ(some.rows, 17);
      EXPECT_EQ(
          std::memcmp(some.data, found.data + 3 * kIn * sizeof(float), 17 * kIn * sizeof(float)),
          0);
      ASSERT_EQ(source.grouped.has_value(), grouped);
      if (!grouped) return;
      cpu::ThreadPool pool(1);
      std::vector<float> wide(kOut * kIn);
      cpu::widen(reader.grouped(source), pool, wide.data());
      EXPECT_EQ(std::memcmp(wide.data(), found.data, wide.size() * sizeof(float)), 0);
      reader.expect_all_taken();
    });
  }
  std::string refusal() {
    try {
      read([](CheckpointReader& reader) { reader.dequantized(reader.linear("l", kOut, kIn)); });
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  }

 private:
  void read(const std::function<void(CheckpointReader&)>& use) {
    const TempDir folder;
    const Json config = {{"architectures", {"LlamaForCausalLM"}},
                         {"hidden_size", 64},
                         {"num_hidden_layers", 1},
                         {"num_attention_heads", 4},
                         {"intermediate_size", 96},
                         {"vocab_size", 100},
                         {"max_position_embeddings", 2048},
                         {"quantization_config", quantization_}};
    std::string head = header_.dump();
    head.append((8 - head.size() % 8) % 8, ' ');
    const std::uint64_t size = head.size();
    folder.write("model.safetensors",
                 std::string(reinterpret_cast<const char*>(&size), 8) + head + data_);
    const ModelConfig parsed = parse_model_config(config.dump(), "", "config.json");
    const Checkpoint checkpoint(folder.path());
    CheckpointReader reader(parsed, checkpoint);
    use(reader);
  }

  Json quantization_;
  Json header_ = Json::object();
  std::string data_;
};

std::vector<std::uint8_t> random_bytes(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(n);
  for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(random());
  return bytes;
}

std::vector<float> random_scales(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> scales(n);
  for (float& s : scales) s = static_cast<float>(random() % 2000 + 1) / 65536.0F;
  return scales;
}

TEST(PackedFormats, GptqOfEightBits) {
  for (const bool old : {true, false}) {
    Layer layer({{"quant_method", "gptq"},
                 {"bits", 8},
                 {"group_size", 32},
                 {"checkpoint_format", old ? "gptq" : "gptq_v2"}});
    const auto q = random_bytes(kOut * kIn, 1);      // [in / 4][out] words of four inputs
    const auto zeros = random_bytes(2 * kOut, 2);    // [groups][out / 4] words of four outputs
    const auto scales = random_scales(2 * kOut, 3);  // [groups][out]
    layer.add("qweight", "I32", {kIn / 4, kOut}, q);
    layer.add("qzeros", "I32", {2, kOut / 4}, zeros);
    layer.add("scales", "F32", {2, kOut}, scales);
    layer.expect([&](std::int64_t r, std::int64_t i) {
      const int weight = q[static_cast<std::size_t>((i / 4 * kOut + r) * 4 + i % 4)];
      const int zero = (zeros[static_cast<std::size_t>(i / 32 * kOut + r)] + (old ? 1 : 0)) & 255;
      return static_cast<float>(weight - zero) *
             scales[static_cast<std::size_t>(i / 32 * kOut + r)];
    });
  }
}

Json packed(int bits, const char* strategy, bool symmetric) {
  Json weights = {{"num_bits", bits},
                  {"type", "int"},
                  {"strategy", strategy},
                  {"symmetric", symmetric},
                  {"dynamic", false}};
  if (strategy == std::string("group")) weights["group_size"] = 16;
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

TEST(PackedFormats, PackedIntegers) {
  for (const int bits : {4, 8}) {
    for (const char* strategy : {"group", "channel"}) {
      for (const bool symmetric : {true, false}) {
        SCOPED_TRACE(std::to_string(bits) + strategy + (symmetric ? " symmetric" : ""));
        const std::int64_t groups = strategy == std::string("group") ? kIn / 16 : 1;
        const int each = 32 / bits;
        Layer layer(packed(bits, strategy, symmetric));
        const auto q = random_bytes(static_cast<std::size_t>(kOut * kIn * bits / 8), 1);
        const auto scales = random_scales(static_cast<std::size_t>(kOut * groups), 2);
        const auto zeros = random_bytes(static_cast<std::size_t>(kOut / each * groups * 4), 3);
        layer.add("weight_packed", "I32", {kOut, kIn / each}, q);
        layer.add("weight_scale", "F32", {kOut, groups}, scales);
        layer.add("weight_shape", "I64", {2}, std::vector<std::int64_t>{kOut, kIn});
        if (!symmetric) layer.add("weight_zero_point", "I32", {kOut / each, groups}, zeros);
        const int middle = 1 << (bits - 1);  // signed numbers are stored with this added
        const auto number = [&](const std::vector<std::uint8_t>& from, std::int64_t word,
                                std::int64_t place) {
          std::uint32_t bits32;
          std::memcpy(&bits32, from.data() + word * 4, 4);
          return static_cast<int>(bits32 >> (place * bits) & ((1U << bits) - 1U)) - middle;
        };
        layer.expect([&](std::int64_t r, std::int64_t i) {
          const std::int64_t g = i / (kIn / groups);
          const int zero = symmetric ? 0 : number(zeros, r / each * groups + g, r % each);
          return static_cast<float>(number(q, r * (kIn / each) + i / each, i % each) - zero) *
                 scales[static_cast<std::size_t>(r * groups + g)];
        });
      }
    }
  }
}

float e2m1(unsigned code) {
  const float sign = (code & 8U) != 0 ? -1.0F : 1.0F;
  const unsigned exponent = code >> 1U & 3U;
  const auto fraction = static_cast<float>(code & 1U);
  return sign * (exponent == 0 ? fraction / 2
                               : (1.0F + fraction / 2) * static_cast<float>(1U << (exponent - 1)));
}

float e4m3(unsigned bits) {
  const float sign = (bits & 128U) != 0 ? -1.0F : 1.0F;
  const int exponent = static_cast<int>(bits >> 3U & 15U);
  const auto fraction = static_cast<float>(bits & 7U) / 8.0F;
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1.0F + fraction, exponent - 7));
}

TEST(PackedFormats, Nvfp4) {
  for (const bool modelopt : {true, false}) {
    Json weights = {{"num_bits", 4},    {"type", "float"},   {"strategy", "tensor_group"},
                    {"group_size", 16}, {"symmetric", true}, {"dynamic", false}};
    Layer layer(modelopt ? Json{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}
                         : Json{{"quant_method", "compressed-tensors"},
                                {"format", "nvfp4-pack-quantized"},
                                {"quantization_status", "compressed"},
                                {"config_groups",
                                 {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}});
    const auto q = random_bytes(kOut * kIn / 2, 1);
    auto scales = random_bytes(kOut * kIn / 16, 2);
    for (std::uint8_t& s : scales) s &= 0x77U;  // positive, no NaN
    const float whole = modelopt ? 0.0037F : 270.3F;
    layer.add(modelopt ? "weight" : "weight_packed", "U8", {kOut, kIn / 2}, q);
    layer.add("weight_scale", "F8_E4M3", {kOut, kIn / 16}, scales);
    // On a border of four bytes whatever is in front.
    layer.add(modelopt ? "weight_scale_2" : "weight_global_scale", "F32",
              modelopt ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1},
              std::vector<float>{whole});
    layer.add(modelopt ? "input_scale" : "input_global_scale", "F32", {1},
              std::vector<float>{1.5F});
    layer.expect([&](std::int64_t r, std::int64_t i) {
      const unsigned code = q[static_cast<std::size_t>((r * kIn + i) / 2)] >> (i % 2 * 4) & 15U;
      const float step = e4m3(scales[static_cast<std::size_t>(r * (kIn / 16) + i / 16)]);
      return e2m1(code) * (modelopt ? step * whole : step / whole);
    });
  }
}

TEST(PackedFormats, WhatDoesNotFitIsNamed) {
  Layer shape(packed(4, "channel", true));
  shape.add("weight_packed", "I32", {kOut, kIn / 8}, random_bytes(kOut * kIn / 2, 1));
  shape.add("weight_scale", "F32", {kOut, 1}, random_scales(kOut, 2));
  shape.add("weight_shape", "I64", {2}, std::vector<std::int64_t>{kOut, kIn + 1});
  EXPECT_NE(shape.refusal().find("l.weight_shape: is not the shape"), std::string::npos)
      << shape.refusal();
  Layer order({{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 32}, {"desc_act", true}});
  std::vector<std::int32_t> groups(kIn);
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<std::int32_t>(i % 2);
  order.add("qweight", "I32", {kIn / 4, kOut}, random_bytes(kOut * kIn, 1));
  order.add("qzeros", "I32", {2, kOut / 4}, random_bytes(2 * kOut, 2));
  order.add("scales", "F32", {2, kOut}, random_scales(2 * kOut, 3));
  order.add("g_idx", "I32", {kIn}, groups);
  EXPECT_NE(order.refusal().find("not supported"), std::string::npos) << order.refusal();
}

}  // namespace
}  // namespace baton
