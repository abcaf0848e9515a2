// config.json: what is read, and what is refused by name.
#include "workers/model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "workers/model/error.h"
#include "workers/model/gpu_cut.h"
#include "workers/model/gpu_limits.h"

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
  EXPECT_EQ(c.intermediate(), 96);
  EXPECT_EQ(c.vocab, 100);
  EXPECT_EQ(c.max_context, 2048);
  EXPECT_EQ(c.norm.eps, 1e-5);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.ropes[0].type, RopeType::none);
  EXPECT_EQ(c.ropes[0].theta, 500000.0);
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

TEST(ModelConfig, PythonsConstantsMayStandWhereNothingIsRead) {
  const auto with = [](const std::string& key, const std::string& value) {
    return "{\"" + key + "\": " + value + ", " + base().dump().substr(1);
  };
  for (const char* value : {"Infinity", "-Infinity", "NaN"}) {
    EXPECT_EQ(refusal(with("router_jitter_noise", value)), "");
    Json json = base();
    json.erase("rms_norm_eps");
    std::string text = json.dump();
    text = "{\"rms_norm_eps\": " + std::string(value) + ", " + text.substr(1);
    EXPECT_EQ(refusal(text),
              "config.json: rms_norm_eps: " + std::string(value) + " is not a finite number");
  }
}

TEST(ModelConfig, BracketsWithoutEndAreRefused) {
  const std::string deep(1'500'000, '[');
  const std::string said = "config.json: the JSON is nested more than 64 deep";
  EXPECT_EQ(refusal(deep), said);
  EXPECT_EQ(refusal("{\"architectures\": " + deep + std::string(1'500'000, ']') + "}"), said);
  EXPECT_NE(refusal(base().dump(), deep).find("nested more than 64 deep"), std::string::npos);
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
  EXPECT_EQ(parse(old_style).ropes[0].type, RopeType::linear);
  EXPECT_EQ(parse(old_style).ropes[0].factor, 4.0);
  EXPECT_EQ(parse(old_style).ropes[0].theta, 500000.0);

  Json new_style = base();
  new_style.erase("rope_theta");
  new_style.erase("rope_scaling");
  new_style["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 20000.0},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 512}};
  const RopeConfig rope = parse(new_style).ropes[0];
  EXPECT_EQ(rope.type, RopeType::llama3);
  EXPECT_EQ(rope.theta, 20000.0);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(rope.original_context, 512.0);
  new_style["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 30000.0}};
  EXPECT_EQ(parse(new_style).ropes[0].type, RopeType::none);
  EXPECT_EQ(parse(new_style).ropes[0].theta, 30000.0);
}

/// Yarn's defaults, how its attention factor is inferred, and the context that a scaling reaches.
TEST(ModelConfig, ScalingsThatStretchTheContext) {
  Json json = base();
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  RopeConfig rope = parse(json).ropes[0];
  EXPECT_EQ(rope.type, RopeType::yarn);
  EXPECT_EQ(rope.original_context, 2048.0);
  EXPECT_EQ(rope.beta_fast, 32.0);
  EXPECT_EQ(rope.beta_slow, 1.0);
  EXPECT_TRUE(rope.truncate);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(4.0) + 1.0);
  EXPECT_EQ(parse(json).max_context, 8192);

  json["rope_scaling"] = {{"rope_type", "yarn"},
                          {"factor", 4.0},
                          {"original_max_position_embeddings", 100},
                          {"mscale", 2.0},
                          {"mscale_all_dim", 0.5}};
  rope = parse(json).ropes[0];
  EXPECT_DOUBLE_EQ(rope.attention_factor,
                   (0.2 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0));
  EXPECT_EQ(parse(json).max_context, 2048);  // as the file says: more than 4 * 100
  json["rope_scaling"]["attention_factor"] = 0.75;
  EXPECT_EQ(parse(json).ropes[0].attention_factor, 0.75);
  json["original_max_position_embeddings"] = 512;
  EXPECT_EQ(parse(json).ropes[0].original_context, 512.0);
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", nullptr}};
  EXPECT_EQ(parse(json).ropes[0].factor, 4.0);  // 2048 / 512

  Json dynamic = base();
  dynamic["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.5}};
  EXPECT_EQ(parse(dynamic).ropes[0].type, RopeType::dynamic);
  EXPECT_EQ(parse(dynamic).ropes[0].original_context, 2048.0);
  EXPECT_EQ(parse(dynamic).max_context, 5120);
  dynamic.erase("rope_scaling");
  dynamic["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 1000.0}};
  EXPECT_EQ(parse(dynamic).ropes[0].type, RopeType::dynamic);
  EXPECT_EQ(parse(dynamic).ropes[0].theta, 1000.0);
}

Json family(const std::string& architecture, const std::string& type) {
  Json json = base();
  json["architectures"] = {architecture};
  json["model_type"] = type;
  return json;
}

TEST(ModelConfig, FamiliesDifferInTheirSettings) {
  const ModelConfig llama = parse(base());
  EXPECT_FALSE(llama.layer(0).attention.qkv_bias);
  EXPECT_EQ(llama.layer(0).attention.qk_norm, QkNorm::none);
  EXPECT_EQ(llama.layer(0).attention.window, 0);

  Json mistral = family("MistralForCausalLM", "mistral");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(parse(mistral).layer(0).attention.window, 0);
  mistral["sliding_window"] = 4096;
  EXPECT_EQ(parse(mistral).layer(0).attention.window, 4096);
  mistral["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(parse(mistral).layer(0).attention.window, 4096);
  EXPECT_FALSE(parse(mistral).layer(0).attention.qkv_bias);

  Json qwen2 = family("Qwen2ForCausalLM", "qwen2");
  qwen2.update({{"use_sliding_window", false}, {"sliding_window", 32}, {"max_window_layers", 2}});
  EXPECT_TRUE(parse(qwen2).layer(0).attention.qkv_bias);
  EXPECT_EQ(parse(qwen2).layer(0).attention.qk_norm, QkNorm::none);
  EXPECT_EQ(parse(qwen2).layer(0).attention.window, 0);
  EXPECT_EQ(parse(qwen2).layer(2).attention.window, 0);
  qwen2["use_sliding_window"] = true;
  EXPECT_EQ(parse(qwen2).layer(1).attention.window, 0);
  EXPECT_EQ(parse(qwen2).layer(2).attention.window, 32);
  qwen2.erase("sliding_window");
  EXPECT_EQ(parse(qwen2).layer(2).attention.window, 4096);
  qwen2.erase("max_window_layers");
  EXPECT_EQ(parse(qwen2).layer(2).attention.window, 0);

  Json qwen3 = family("Qwen3ForCausalLM", "qwen3");
  qwen3.update({{"head_dim", 32}, {"layer_types", {"full_attention", "full_attention"}}});
  EXPECT_EQ(parse(qwen3).layer(0).attention.qk_norm, QkNorm::head);
  EXPECT_FALSE(parse(qwen3).layer(0).attention.qkv_bias);
  EXPECT_EQ(parse(qwen3).head_dim, 32);
  EXPECT_EQ(parse(qwen3).layer(0).attention.window, 0);
}

TEST(ModelConfig, ExpertsAreDataOfTheFamily) {
  EXPECT_EQ(parse(base()).experts().count, 0);
  EXPECT_FALSE(parse(base()).sparse(0));

  Json mixtral = family("MixtralForCausalLM", "mixtral");
  mixtral.update({{"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"sliding_window", 32}});
  ModelConfig c = parse(mixtral);
  EXPECT_EQ(c.experts().count, 8);
  EXPECT_EQ(c.experts().active, 2);
  EXPECT_EQ(c.experts().expert.intermediate, 96);
  EXPECT_TRUE(c.experts().normalise);
  EXPECT_EQ(c.names.experts + "0." + c.names.expert_up, "block_sparse_moe.experts.0.w3");
  EXPECT_TRUE(c.sparse(0) && c.sparse(2));
  EXPECT_EQ(c.layer(0).attention.window, 32);
  mixtral.erase("rope_theta");
  EXPECT_EQ(parse(mixtral).ropes[0].theta, 1e6);

  Json qwen = family("Qwen3MoeForCausalLM", "qwen3_moe");
  qwen.update({{"num_experts", 8}, {"num_experts_per_tok", 3}, {"moe_intermediate_size", 24}});
  c = parse(qwen);
  EXPECT_EQ(c.experts().expert.intermediate, 24);
  EXPECT_FALSE(c.experts().normalise);
  EXPECT_EQ(c.layer(0).attention.qk_norm, QkNorm::head);
  EXPECT_TRUE(c.sparse(0) && c.sparse(1) && c.sparse(2));
  qwen.update({{"norm_topk_prob", true}, {"decoder_sparse_step", 2}});
  c = parse(qwen);
  EXPECT_TRUE(c.experts().normalise);
  EXPECT_TRUE(!c.sparse(0) && c.sparse(1) && !c.sparse(2));
  qwen["mlp_only_layers"] = {1};
  EXPECT_FALSE(parse(qwen).sparse(1));
  qwen["mlp_only_layers"] = Json::array();
  qwen["num_local_experts"] = qwen["num_experts"];  // transformers 5
  qwen.erase("num_experts");
  EXPECT_EQ(parse(qwen).experts().count, 8);

  const std::vector<std::pair<std::string, Json>> cases = {
      {"num_local_experts", 0},   {"num_local_experts", 100000},    {"num_experts_per_tok", 9},
      {"num_experts_per_tok", 0}, {"num_experts_per_tok", nullptr}, {"decoder_sparse_step", 0},
      {"mlp_only_layers", {3}},   {"mlp_only_layers", {-1}},        {"moe_intermediate_size", 0},
      {"norm_topk_prob", "yes"},  {"attention_bias", true},         {"use_sliding_window", "yes"},
  };
  for (const auto& [key, value] : cases) {
    Json json = qwen;
    json[key] = value;
    EXPECT_NE(refusal(json.dump()).find(key), std::string::npos)
        << key << " = " << value << ": " << refusal(json.dump());
  }
}

TEST(GpuLimits, NameWhatOnlyTheCpuServes) {
  const auto against = [](const Json& json) -> std::string {
    try {
      check_gpu_limits(parse(json));
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  };
  Json json = base();
  EXPECT_EQ(against(json), "");
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(against(json), "");
  json["intermediate_size"] = 100;
  EXPECT_NE(against(json).find("intermediate_size"), std::string::npos);
  json = family("MixtralForCausalLM", "mixtral");
  json.update({{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  EXPECT_EQ(against(json), "");
  json["intermediate_size"] = 100;
  EXPECT_NE(against(json).find("expert"), std::string::npos);
  EXPECT_NE(against(json).find("cuda"), std::string::npos);
  json = base();
  json["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}};
  EXPECT_EQ(against(json), "");
}

TEST(GpuCut, ARankIsAModelOfItsOwn) {
  Json json = base();
  json.update({{"hidden_size", 256},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 2},
               {"head_dim", 32},
               {"intermediate_size", 512}});
  const ModelConfig whole = parse(json);
  const ModelConfig half = config_of_rank(whole, ModelCut{1, 2});
  EXPECT_EQ(half.heads, 4);
  EXPECT_EQ(half.kv_heads, 1);
  EXPECT_EQ(half.intermediate(), 256);
  EXPECT_EQ(half.hidden, whole.hidden);
  EXPECT_EQ(half.vocab, whole.vocab);
  const ModelConfig eighth = config_of_rank(whole, ModelCut{5, 8});
  EXPECT_EQ(eighth.heads, 1);
  EXPECT_EQ(eighth.kv_heads, 1);
  EXPECT_EQ(describe(config_of_rank(whole, {})), describe(whole));
}

TEST(GpuCut, NamesWhatSeveralGpusDoNotServe) {
  Json json = base();
  json.update({{"hidden_size", 256},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 2},
               {"head_dim", 32},
               {"intermediate_size", 96}});
  const auto against = [&json](int ranks, bool by_outputs) -> std::string {
    try {
      check_gpu_ranks(parse(json), {{0, ranks}, by_outputs});
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(against(2, false), "");
  EXPECT_EQ(against(1, true), "");
  EXPECT_TRUE(against(4, false).ends_with("it can have 1, 2"));  // three do not share the heads
  EXPECT_NE(against(3, false).find("8 heads"), std::string::npos);
  EXPECT_EQ(against(2, true), "");
  json = family("MixtralForCausalLM", "mixtral");
  json.update({{"num_local_experts", 8},
               {"num_experts_per_tok", 2},
               {"hidden_size", 256},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 2},
               {"head_dim", 32},
               {"intermediate_size", 64}});
  EXPECT_EQ(against(2, false), "");
  EXPECT_NE(against(2, true).find("deterministic"), std::string::npos);
}

TEST(ModelConfig, RefusesWhatAFamilyDoesNotHave) {
  Json mistral = family("MistralForCausalLM", "mistral");
  mistral["sliding_window"] = 64;
  Json qwen2 = family("Qwen2ForCausalLM", "qwen2");
  Json qwen3 = family("Qwen3ForCausalLM", "qwen3");
  qwen3["head_dim"] = 16;
  struct Case {
    Json json;
    std::string key;
    Json value;
  };
  const std::vector<Case> cases = {
      {mistral, "sliding_window", 0},
      {mistral, "sliding_window", -5},
      {mistral, "sliding_window", "64"},
      {mistral, "layer_types", {"sliding_attention", "full_attention"}},
      {mistral, "mlp_bias", true},
      {mistral, "model_type", "llama"},
      {mistral, "architectures", {"MistralForCausalLM", "LlamaForCausalLM"}},
      {qwen2, "layer_types", {"full_attention", "sliding_attention"}},
      {qwen2, "model_type", "qwen2_vl"},
      {qwen2, "use_mrope", true},
      {qwen3, "attention_bias", true},
      {qwen3, "num_experts", 8},
      {qwen3, "architectures", {"Qwen3NextForCausalLM"}},
  };
  for (Case c : cases) {
    ASSERT_EQ(refusal(c.json.dump()), "");
    c.json[c.key] = c.value;
    EXPECT_NE(refusal(c.json.dump()).find(c.key), std::string::npos)
        << c.key << " = " << c.value << ": " << refusal(c.json.dump());
  }
  // Their absence means a number that differs from family to family.
  mistral.erase("sliding_window");
  EXPECT_NE(refusal(mistral.dump()).find("sliding_window: is missing"), std::string::npos);
  qwen2.erase("num_key_value_heads");
  EXPECT_NE(refusal(qwen2.dump()).find("num_key_value_heads: is missing"), std::string::npos);
  qwen3.erase("head_dim");
  EXPECT_NE(refusal(qwen3.dump()).find("head_dim: is missing"), std::string::npos);
}

TEST(ModelConfig, RefusesByNameWhatWouldChangeTheMathematics) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"architectures", {"MambaForCausalLM"}},
      {"num_local_experts", 8},
      {"architectures", Json::array()},
      {"architectures", nullptr},
      {"model_type", "qwen2"},
      {"hidden_act", "gelu"},
      {"use_bias", true},
      {"logit_scale", 2.0},
      {"quantization_config", 4},
      {"sliding_window", 4096},
      {"final_logit_softcapping", 30.0},
      {"partial_rotary_factor", 0.5},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 0.5}}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", 1}, {"beta_slow", 2}}},
      {"rope_scaling", {{"rope_type", "dynamic"}, {"alpha", 1000.0}}},
      {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 1e9}}},
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

}  // namespace
}  // namespace baton
