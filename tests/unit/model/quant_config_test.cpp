// quantization_config and quantize_config.json: what is read, and what is refused by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "workers/model/config.h"
#include "workers/model/error.h"

namespace baton {
namespace {

using Json = nlohmann::json;

Json model() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"intermediate_size", 96},
          {"vocab_size", 100},
          {"max_position_embeddings", 2048}};
}

Quantization parse(const Json& quantization, const std::string& file = "") {
  Json json = model();
  if (!quantization.is_null()) json["quantization_config"] = quantization;
  return parse_model_config(json.dump(), "", "config.json", file).quantization;
}

std::string refusal(const Json& quantization, const std::string& file = "") {
  try {
    parse(quantization, file);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

Json gptq() {
  return {{"quant_method", "gptq"},
          {"bits", 4},
          {"group_size", 128},
          {"desc_act", true},
          {"sym", false}};
}

Json awq() {
  return {{"quant_method", "awq"},
          {"bits", 4},
          {"group_size", 64},
          {"version", "GEMM"},
          {"zero_point", true}};
}

Json fp8() {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 64}}};
}

Json compressed(const std::string& strategy) {
  const Json weights = {{"num_bits", 8},
                        {"type", "float"},
                        {"strategy", strategy},
                        {"symmetric", true},
                        {"dynamic", false}};
  const Json inputs = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}};
  const Json group = {{"targets", {"Linear"}},
                      {"weights", weights},
                      {"input_activations", inputs},
                      {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"kv_cache_scheme", nullptr},
          {"ignore", {"lm_head"}},
          {"config_groups", {{"group_0", group}}}};
}

TEST(Quantization, NoneIsTheDefault) { EXPECT_EQ(parse(nullptr).method, QuantMethod::none); }

TEST(Quantization, GptqInConfigAndInAFileOfItsOwn) {
  Quantization q = parse(gptq());
  EXPECT_EQ(q.method, QuantMethod::gptq);
  EXPECT_EQ(q.group, 128);
  EXPECT_EQ(q.zero_offset, 1);
  EXPECT_TRUE(q.act_order);
  Json json = gptq();
  json["checkpoint_format"] = "gptq_v2";
  json["group_size"] = -1;
  EXPECT_EQ(parse(json).zero_offset, 0);
  EXPECT_EQ(parse(json).group, 0);

  q = parse(nullptr, R"({"bits": 4, "group_size": 32, "desc_act": false, "sym": true})");
  EXPECT_EQ(q.method, QuantMethod::gptq);
  EXPECT_EQ(q.group, 32);
  EXPECT_FALSE(q.act_order);
  EXPECT_EQ(parse(awq(), R"({"bits": 3})").method, QuantMethod::awq);  // config.json comes first
}

TEST(Quantization, AwqAndFp8) {
  EXPECT_EQ(parse(awq()).method, QuantMethod::awq);
  EXPECT_EQ(parse(awq()).group, 64);
  EXPECT_EQ(parse(awq()).zero_offset, 0);

  const Quantization block = parse(fp8());
  EXPECT_EQ(block.method, QuantMethod::fp8);
  EXPECT_EQ(block.block_rows, 128);
  EXPECT_EQ(block.block_columns, 64);
  EXPECT_EQ(block.scale, "weight_scale_inv");

  Json whole = fp8();  // as Mistral publishes it
  whole["activation_scheme"] = "static";
  whole["weight_block_size"] = nullptr;
  EXPECT_EQ(parse(whole).block_rows, 0);
  EXPECT_EQ(parse(whole).block_columns, 0);

  const Quantization channel = parse(compressed("channel"));
  EXPECT_EQ(channel.method, QuantMethod::fp8);
  EXPECT_EQ(channel.block_rows, 1);
  EXPECT_EQ(channel.block_columns, 0);
  EXPECT_EQ(channel.scale, "weight_scale");
  EXPECT_EQ(parse(compressed("tensor")).block_rows, 0);
  Json fixed = compressed("tensor");  // one scale for all inputs, which is left alone
  fixed["config_groups"]["group_0"]["input_activations"] = {{"dynamic", false},
                                                            {"strategy", "tensor"}};
  EXPECT_EQ(parse(fixed).block_rows, 0);
  Json json = compressed("block");
  json["config_groups"]["group_0"]["weights"]["block_structure"] = {128, 128};
  EXPECT_EQ(parse(json).block_rows, 128);
}

TEST(Quantization, RefusesByNameWhatIsNotRead) {
  struct Case {
    Json json;
    std::string path;  // a JSON pointer
    Json value;
  };
  const std::string weights = "/config_groups/group_0/weights/";
  const std::vector<Case> cases = {
      {gptq(), "/quant_method", "bitsandbytes"},
      {gptq(), "/quant_method", nullptr},
      {gptq(), "/bits", 3},
      {gptq(), "/bits", nullptr},
      {gptq(), "/group_size", 0},
      {gptq(), "/group_size", nullptr},
      {gptq(), "/checkpoint_format", "marlin"},
      {gptq(), "/is_marlin_format", true},
      {gptq(), "/pack_dtype", "int16"},
      {gptq(), "/dynamic", {{"+:.*down.*", {{"bits", 8}}}}},
      {awq(), "/bits", 8},
      {awq(), "/version", "gemv"},
      {awq(), "/zero_point", false},
      {fp8(), "/fmt", "e5m2"},
      {fp8(), "/activation_scheme", "none"},
      {fp8(), "/weight_block_size", {128}},
      {fp8(), "/weight_block_size", {0, 128}},
      {fp8(), "/weight_block_size", {-1, 128}},
      {compressed("channel"), "/format", "marlin-24"},
      {compressed("channel"), "/kv_cache_scheme", {{"num_bits", 8}}},
      {compressed("channel"), "/sparsity_config", {{"format", "sparse-24-bitmask"}}},
      {compressed("channel"), "/config_groups", Json::object()},
      {compressed("channel"), weights + "num_bits", 4},
      {compressed("channel"), weights + "type", "int"},
      {compressed("channel"), weights + "type", nullptr},
      {compressed("channel"), weights + "strategy", "group"},
      {compressed("block"), weights + "block_structure", "128x128"},
      {compressed("channel"), "/config_groups/group_0/targets", {"re:.*q_proj"}},
      {compressed("channel"), "/config_groups/group_0/input_activations/dynamic", false},
  };
  for (Case c : cases) {
    c.json[Json::json_pointer(c.path)] = c.value;
    const std::string key = c.path.substr(c.path.rfind('/') + 1);
    EXPECT_NE(refusal(c.json).find(key + ":"), std::string::npos)
        << c.path << " = " << c.value << ": " << refusal(c.json);
  }
  EXPECT_NE(refusal(nullptr, R"({"bits": 2, "group_size": 128})").find("quantize_config.json"),
            std::string::npos);
}

}  // namespace
}  // namespace baton
