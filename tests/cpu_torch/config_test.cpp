// config.json: what is read, and what is refused by name.
#include "workers/model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "workers/model/error.h"
#include "workers/model/rope.h"

namespace baton {
namespace {

using Json = nlohmann::json;

Json base() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", 64},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 96},
          {"vocab_size", 100},
          {"max_position_embeddings", 2048},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", true},
          {"attention_bias", false},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

ModelConfig parse(const Json& config, const std::string& generation = "") {
  return parse_model_config(config.dump(), generation, "config.json");
}

/// The message of the refusal; empty if the configuration was taken.
std::string refusal(const std::string& config, const std::string& generation = "") {
  try {
    parse_model_config(config, generation, "config.json");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, ReadsAPlainConfiguration) {
  const ModelConfig c = parse(base());
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.group(), 2);
  EXPECT_EQ(c.qkv_columns(), 128);
  EXPECT_EQ(c.intermediate, 96);
  EXPECT_EQ(c.vocab, 100);
  EXPECT_EQ(c.max_context, 2048);
  EXPECT_EQ(c.rms_eps, 1e-5);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.rope.type, RopeType::none);
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_EQ(c.eos_ids, std::vector<Token>{2});
  EXPECT_EQ(c.bos_id, 1);
}

TEST(ModelConfig, HeadDimAndKvHeadsHaveDefaults) {
  Json json = base();
  json.erase("num_key_value_heads");
  json["head_dim"] = 40;
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 40);
}

TEST(ModelConfig, GenerationConfigNamesTheEndIds) {
  EXPECT_EQ(parse(base(), R"({"eos_token_id": [7, 8]})").eos_ids, (std::vector<Token>{7, 8}));
  EXPECT_EQ(parse(base(), R"({"temperature": 0.5})").eos_ids, std::vector<Token>{2});
  EXPECT_NE(refusal(base().dump(), R"({"eos_token_id": 100})").find("eos_token_id"),
            std::string::npos);
}

TEST(ModelConfig, BothSpellingsOfRopeScaling) {
  Json old_style = base();
  old_style["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(parse(old_style).rope.type, RopeType::linear);
  EXPECT_EQ(parse(old_style).rope.factor, 4.0);
  EXPECT_EQ(parse(old_style).rope.theta, 500000.0);

  Json new_style = base();
  new_style.erase("rope_theta");
  new_style.erase("rope_scaling");
  new_style["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 20000.0},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 512}};
  const RopeConfig rope = parse(new_style).rope;
  EXPECT_EQ(rope.type, RopeType::llama3);
  EXPECT_EQ(rope.theta, 20000.0);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(rope.original_context, 512.0);
  new_style["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 30000.0}};
  EXPECT_EQ(parse(new_style).rope.type, RopeType::none);
  EXPECT_EQ(parse(new_style).rope.theta, 30000.0);
}

TEST(ModelConfig, RefusesByNameWhatWouldChangeTheMathematics) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"architectures", {"MistralForCausalLM"}},
      {"architectures", Json::array()},
      {"architectures", nullptr},
      {"model_type", "qwen2"},
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"quantization_config", {{"bits", 4}}},
      {"sliding_window", 4096},
      {"final_logit_softcapping", 30.0},
      {"partial_rotary_factor", 0.5},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_scaling", {{"type", "linear"}}},
      {"rope_scaling",
       {{"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 4.0},
        {"high_freq_factor", 1.0}}},
      {"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}},
      {"layer_types", {"full_attention", "sliding_attention"}},
  };
  for (const auto& [key, value] : cases) {
    Json json = base();
    json[key] = value;
    EXPECT_NE(refusal(json.dump()).find(key), std::string::npos)
        << key << " = " << value << ": " << refusal(json.dump());
  }
}

TEST(ModelConfig, RefusesSizesOutOfRangeAndWrongTypes) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"hidden_size", 0},
      {"hidden_size", -64},
      {"hidden_size", "64"},
      {"hidden_size", 64.5},
      {"hidden_size", 1e300},
      {"hidden_size", 18446744073709551615ULL},
      {"num_hidden_layers", 5000},
      {"num_attention_heads", 3},
      {"num_key_value_heads", 3},
      {"head_dim", 15},
      {"head_dim", 2000},
      {"vocab_size", nullptr},
      {"max_position_embeddings", 0},
      {"rms_norm_eps", 0},
      {"rope_theta", -1},
      {"tie_word_embeddings", "yes"},
      {"eos_token_id", 100},
      {"eos_token_id", {1, -1}},
      {"bos_token_id", "x"},
  };
  for (const auto& [key, value] : cases) {
    Json json = base();
    json[key] = value;
    EXPECT_NE(refusal(json.dump()).find(key), std::string::npos)
        << key << " = " << value << ": " << refusal(json.dump());
  }
  for (const char* text : {"", "[]", "{", "null", "{\"hidden_size\": 1"}) {
    EXPECT_NE(refusal(text).find("config.json"), std::string::npos) << text;
  }
}

TEST(ModelConfig, MissingFolderNamesTheFile) {
  try {
    load_model_config("/nonexistent/model");
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/model/config.json"), std::string::npos);
  }
}

TEST(Rope, FrequenciesFollowTheirFormulas) {
  RopeConfig rope;
  rope.theta = 10000.0;
  const std::vector<float> plain = rope_frequencies(rope, 64);
  ASSERT_EQ(plain.size(), 32U);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(plain[i] * std::pow(10000.0, i / 32.0), 1.0, 1e-6);
  rope.type = RopeType::linear;
  rope.factor = 4.0;
  const std::vector<float> linear = rope_frequencies(rope, 64);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(linear[i] * 4 / plain[i], 1.0, 1e-6);
  rope.type = RopeType::llama3;
  rope.factor = 8.0;
  rope.original_context = 8192;
  const std::vector<float> llama3 = rope_frequencies(rope, 64);
  EXPECT_EQ(llama3.front(), plain.front());                  // short waves are kept
  EXPECT_NEAR(llama3.back() * 8 / plain.back(), 1.0, 1e-6);  // long ones stretched
  for (int i = 0; i < 32; ++i) {
    EXPECT_LE(llama3[i], plain[i]);
    EXPECT_GE(llama3[i], plain[i] / 8.001F);
  }
}

TEST(Rope, TableIsCosineAndSineOfTheAngle) {
  RopeTable table(RopeConfig{}, 32, 40000);
  const std::vector<float> frequencies = rope_frequencies(RopeConfig{}, 32);
  for (const std::int64_t position : {0, 1, 255, 256, 300, 39999}) {
    const RopeTable::Angles angles = table.at(position);
    for (int i = 0; i < 16; ++i) {
      const double angle = static_cast<float>(position) * frequencies[i];
      EXPECT_NEAR(angles.cos[i] * angles.cos[i] + angles.sin[i] * angles.sin[i], 1.0, 1e-6);
      EXPECT_NEAR(angles.cos[i], std::cos(angle), 4e-3);
      EXPECT_NEAR(angles.sin[i], std::sin(angle), 4e-3);
    }
  }
}

}  // namespace
}  // namespace baton
