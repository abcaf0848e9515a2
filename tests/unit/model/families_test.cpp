// What each family's config.json becomes, and what is refused there. The files are those of the
// golden models, which cpu_model_test compares with transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "workers/model/config.h"
#include "workers/model/error.h"
#include "workers/model/gpu_limits.h"
#include "workers/model/rope.h"

namespace baton {
namespace {

using Json = nlohmann::json;

Json file_of(const std::string& name) {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(source != nullptr ? source : ".") + "/tests/golden/models/" +
                     name + "/config.json");
  return Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

ModelConfig parse(const Json& json) { return parse_model_config(json.dump(), "", "config.json"); }

std::string refusal(const Json& json) {
  try {
    parse(json);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

/// The lines of a spec that speak of layers and of what stands behind them.
std::string layers_of(const std::string& name) {
  const std::string text = describe(parse(file_of(name)));
  return text.substr(text.find("\nlayer") + 1);
}

TEST(Families, SpecsOfTheGoldenModels) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"llama_biases",
       "layer 0 to 1: attention scale 0.2886751345948129, q k v biases, o bias; mlp 50 silu with "
       "biases; norms before\nhead of its own\n"},
      {"ministral",
       "layer 0: attention scale 0.2886751345948129, window 30; mlp 44 silu; norms before\n"
       "layer 1: attention scale 0.2886751345948129; mlp 44 silu; norms before\n"
       "layer 2: attention scale 0.2886751345948129, window 30; mlp 44 silu; norms before\n"
       "head of its own\n"},
      {"granite",
       "layer 0 to 1: attention scale 0.3; mlp 50 silu; norms before; residual times 0.4\n"
       "head tied, logits times 2\n"},
      {"olmo2",
       "layer 0 to 1: attention scale 0.4082482904638631, q and k normed; mlp 50 silu; norms "
       "after\nhead of its own\n"},
      {"cohere2",
       "layer 0 to 2: attention scale 0.2886751345948129, window 30, q k v biases, o bias; mlp 50 "
       "silu; norms before; parallel\n"
       "layer 3: attention scale 0.2886751345948129, no rope, q k v biases, o bias; mlp 50 silu; "
       "norms before; parallel\nhead tied, logits times 0.3\n"},
      {"starcoder2",
       "layer 0 to 1: attention scale 0.2886751345948129, window 50, q k v biases, o bias; mlp 70 "
       "gelu_tanh without gate with biases; norms before\nhead tied\n"},
      {"gemma2",
       "layer 0: attention scale 0.22360679774997896, window 20, scores capped at 3; mlp 50 "
       "gelu_tanh; norms before and after\n"
       "layer 1: attention scale 0.22360679774997896, scores capped at 3; mlp 50 gelu_tanh; norms "
       "before and after\n"
       "layer 2: attention scale 0.22360679774997896, window 20, scores capped at 3; mlp 50 "
       "gelu_tanh; norms before and after\nhead tied, logits capped at 8\n"},
      {"gpt_oss",
       "layer 0: attention scale 0.25, window 20, q k v biases, o bias, sinks; 2 of 6 experts (36 "
       "silu with biases clamped at 7 alpha 1.702) by softmax, router bias, normalised; norms "
       "before\n"
       "layer 1: attention scale 0.25, q k v biases, o bias, sinks; 2 of 6 experts (36 silu with "
       "biases clamped at 7 alpha 1.702) by softmax, router bias, normalised; norms before\n"
       "layer 2: attention scale 0.25, window 20, q k v biases, o bias, sinks; 2 of 6 experts (36 "
       "silu with biases clamped at 7 alpha 1.702) by softmax, router bias, normalised; norms "
       "before\nhead of its own\n"},
      {"glm4_moe",
       "layer 0: attention scale 0.25, q and k heads normed, q k v biases; mlp 40 silu; norms "
       "before\n"
       "layer 1 to 2: attention scale 0.25, q and k heads normed, q k v biases; 3 of 8 experts (20 "
       "silu) by sigmoid, choice bias, 2 of 4 groups by pairs, normalised, times 1.7, shared (40 "
       "silu); norms before\nhead of its own\n"},
  };
  for (const auto& [name, want] : cases) EXPECT_EQ(layers_of(name), want) << name;
}

TEST(Families, AnglesOfTheGoldenModels) {
  const ModelConfig gemma = parse(file_of("gemma3"));
  ASSERT_EQ(gemma.ropes.size(), 2U);
  EXPECT_EQ(gemma.ropes[0].type, RopeType::linear);
  EXPECT_EQ(gemma.ropes[0].theta, 5000.0);
  EXPECT_EQ(gemma.ropes[1].type, RopeType::none);
  EXPECT_EQ(gemma.ropes[1].theta, 100.0);
  EXPECT_EQ(gemma.layer(0).attention.rope, 1);
  EXPECT_EQ(gemma.layer(1).attention.rope, 0);
  const ModelConfig olmo = parse(file_of("olmo3"));
  EXPECT_EQ(olmo.ropes[0].type, RopeType::yarn);
  EXPECT_EQ(olmo.ropes[1].type, RopeType::none);
  const ModelConfig glm = parse(file_of("glm4"));
  EXPECT_EQ(glm.ropes[0].dims, 8);
  EXPECT_TRUE(glm.ropes[0].interleaved);
  EXPECT_EQ(parse(file_of("phi3_long")).ropes[0].stretch[1], 1.7);
  EXPECT_EQ(parse(file_of("phi3_short")).ropes[0].stretch[1], 1.1);
  std::vector<int> smol;
  for (const LayerSpec& layer : parse(file_of("smollm3")).parts)
    smol.push_back(layer.attention.rope);
  EXPECT_EQ(smol, (std::vector<int>{0, 0, -1, 0, -1}));
  for (const LayerSpec& layer : parse(file_of("exaone4")).parts) {
    EXPECT_EQ(layer.attention.rope, layer.attention.window > 0 ? 0 : -1);
  }
  for (const LayerSpec& layer : parse(file_of("exaone4_full")).parts) {
    EXPECT_EQ(layer.attention.rope, 0);
  }
}

/// Files of transformers 4 say less, or the same in other words.
TEST(Families, OlderFilesSayTheSame) {
  Json gemma = file_of("gemma3");
  const std::string want = describe(parse(gemma));
  gemma.erase("rope_parameters");
  gemma["rope_theta"] = 5000.0;
  gemma["rope_local_base_freq"] = 100.0;
  gemma["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(describe(parse(gemma)), want);
  gemma.erase("layer_types");
  gemma["sliding_window_pattern"] = 2;
  EXPECT_EQ(describe(parse(gemma)), want);

  Json exaone = file_of("exaone4");
  const std::string listed = describe(parse(exaone));
  exaone.erase("layer_types");
  exaone["sliding_window_pattern"] = "LLLG";
  EXPECT_EQ(describe(parse(exaone)), listed);
  exaone["sliding_window_pattern"] = 4;
  EXPECT_EQ(describe(parse(exaone)), listed);

  Json phi = file_of("phi3_long");
  const std::string longrope = describe(parse(phi));
  Json rope = phi["rope_parameters"];
  phi.erase("rope_parameters");
  phi["partial_rotary_factor"] = rope["partial_rotary_factor"];
  phi["rope_theta"] = rope["rope_theta"];
  phi["rope_scaling"] = {
      {"type", "su"}, {"long_factor", rope["long_factor"]}, {"short_factor", rope["short_factor"]}};
  EXPECT_EQ(describe(parse(phi)), longrope);

  Json oss = file_of("gpt_oss");
  oss["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_EQ(describe(parse(oss)), describe(parse(file_of("gpt_oss"))));
}

/// The sizes and settings of folders that are published, as transformers 4 wrote them.
Json published_v3() {
  return Json::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "attention_bias": false, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
      "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
    "vocab_size": 129280})");
}

TEST(Families, DeepSeekAndKimiAsPublished) {
  const ModelConfig v3 = parse(published_v3());
  const std::string text = describe(v3);
  EXPECT_NE(
      text.find(
          "keys and values latent, 512; queries through 1536, 128 + 64 that turn; values 128\n"),
      std::string::npos)
      << text;
  // (0.1 ln 40 + 1)^2 / sqrt 192
  EXPECT_NEAR(v3.layer(0).attention.scale, 0.1352337788, 1e-9);
  EXPECT_NE(text.find("layer 3 to 60: "), std::string::npos) << text;
  EXPECT_NE(
      text.find("8 of 256 experts (2048 silu) by sigmoid, choice bias, 4 of 8 groups by pairs, "
                "normalised, times 2.5, shared (2048 silu)"),
      std::string::npos)
      << text;
  EXPECT_EQ(v3.pool_heads() * v3.pool_dim() * 2, 576);
  EXPECT_EQ(v3.ropes[0].dims, 64);
  EXPECT_EQ(v3.ropes[0].attention_factor, 1.0);
  EXPECT_EQ(v3.max_context, 163840);
  EXPECT_EQ(v3.names.other_parts.back(), "model.layers.61.");

  Json json = published_v3();
  json.update({{"model_type", "kimi_k2"},
               {"first_k_dense_replace", 1},
               {"n_group", 1},
               {"topk_group", 1},
               {"n_routed_experts", 384},
               {"num_attention_heads", 64},
               {"num_key_value_heads", 64},
               {"num_nextn_predict_layers", 0},
               {"rope_theta", 50000.0},
               {"routed_scaling_factor", 2.827},
               {"max_position_embeddings", 131072},
               {"vocab_size", 163840}});
  json["rope_scaling"].update({{"beta_fast", 1.0}, {"factor", 32.0}});
  const ModelConfig kimi = parse(json);
  EXPECT_EQ(kimi.heads, 64);
  EXPECT_EQ(kimi.experts().groups, 1);
  EXPECT_EQ(kimi.pool_dim(), 288);

  json = published_v3();
  json.erase("quantization_config");
  json.update({{"architectures", {"DeepseekV2ForCausalLM"}},
               {"model_type", "deepseek_v2"},
               {"hidden_size", 2048},
               {"num_attention_heads", 16},
               {"num_key_value_heads", 16},
               {"num_hidden_layers", 27},
               {"q_lora_rank", nullptr},
               {"n_routed_experts", 64},
               {"n_shared_experts", 2},
               {"num_experts_per_tok", 6},
               {"n_group", 1},
               {"topk_group", 1},
               {"first_k_dense_replace", 1},
               {"moe_intermediate_size", 1408},
               {"norm_topk_prob", false},
               {"topk_method", "greedy"},
               {"scoring_func", "softmax"},
               {"routed_scaling_factor", 1.0},
               {"num_nextn_predict_layers", nullptr}});
  json["rope_scaling"].update({{"mscale", 0.707}, {"mscale_all_dim", 0.707}});
  const ModelConfig lite = parse(json);
  EXPECT_EQ(lite.latent.q_rank, 0);
  EXPECT_EQ(lite.experts().shared.intermediate, 2816);
  EXPECT_NEAR(lite.layer(0).attention.scale, 1.2608037 * 1.2608037 / std::sqrt(192.0), 1e-7);
}

/// Gemma 3's folders leave most of their text_config out.
TEST(Families, TheTextHalfOfAModelThatSeesPictures) {
  const Json json = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                     {"model_type", "gemma3"},
                     {"eos_token_id", {1, 106}},
                     {"text_config",
                      {{"model_type", "gemma3_text"},
                       {"hidden_size", 2560},
                       {"intermediate_size", 10240},
                       {"num_hidden_layers", 34},
                       {"sliding_window", 1024},
                       {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}}}}};
  const ModelConfig c = parse(json);
  EXPECT_TRUE(c.text_half);
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.vocab, 262208);
  EXPECT_EQ(c.eos_ids, (std::vector<Token>{1, 106}));
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.layer(4).attention.window, 1024);
  EXPECT_EQ(c.layer(5).attention.window, 0);
  EXPECT_FALSE(parse(file_of("gemma3")).text_half);
  EXPECT_FALSE(parse(file_of("mistral3_pictures")).parts.empty());
  Json other = json;
  other["text_config"]["model_type"] = "gemma3n_text";
  EXPECT_NE(refusal(other).find("text_config: model_type: gemma3n_text"), std::string::npos);
  other = json;
  other["text_config"]["use_bidirectional_attention"] = true;
  EXPECT_NE(refusal(other).find("use_bidirectional_attention: true"), std::string::npos);
}

/// Qwen2.5-VL as it was first published: the settings of both halves in one object.
TEST(Families, TextHalvesWithoutAPartOfTheirOwn) {
  Json json = file_of("qwen2_5_vl");
  const ModelConfig inside = parse(json);
  EXPECT_TRUE(inside.text_half);
  const Json text = json["text_config"];
  json.erase("text_config");
  for (const auto& [key, value] : text.items()) {
    if (key != "model_type" && key != "rope_parameters") json[key] = value;
  }
  json["rope_theta"] = text["rope_parameters"]["rope_theta"];
  json["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {1, 2, 2}}};
  const ModelConfig outside = parse(json);
  EXPECT_EQ(describe(outside), describe(inside));
  EXPECT_TRUE(outside.text_half);
  EXPECT_EQ(outside.names.roots, (std::vector<std::string>{"model.language_model.", "model."}));
  EXPECT_EQ(outside.eos_ids, inside.eos_ids);
}

/// Llava 1.5's text_config as published, but for what is not read: the rest are defaults.
TEST(Families, TextHalvesThatLeaveOutDefaults) {
  const Json json = {{"architectures", {"LlavaForConditionalGeneration"}},
                     {"model_type", "llava"},
                     {"text_config",
                      {{"architectures", {"LlamaForCausalLM"}},
                       {"max_position_embeddings", 4096},
                       {"model_type", "llama"},
                       {"rms_norm_eps", 1e-05},
                       {"vocab_size", 32064}}}};
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.hidden, 4096);
  EXPECT_EQ(c.layers, 32);
  EXPECT_EQ(c.kv_heads, 32);
  EXPECT_EQ(c.max_context, 4096);
  EXPECT_EQ(c.layer(0).mlp.intermediate, 11008);
  EXPECT_FALSE(c.tied_embeddings);
  Json alone = json["text_config"];
  EXPECT_NE(refusal(alone).find("hidden_size"), std::string::npos) << "no folder of texts says so";
}

TEST(Families, WhoTiesTheHead) {
  Json json = file_of("qwen2_vl");
  const auto tied = [&json](const Json& outside, const Json& inside) {
    for (auto [object, value] : {std::pair(&json, &outside), {&json["text_config"], &inside}}) {
      object->erase("tie_word_embeddings");
      if (!value->is_null()) (*object)["tie_word_embeddings"] = *value;
    }
    return parse(json).tied_embeddings;
  };
  EXPECT_TRUE(tied(true, nullptr));
  EXPECT_TRUE(tied(false, true));
  EXPECT_TRUE(tied(nullptr, true));
  EXPECT_FALSE(tied(false, nullptr));
  EXPECT_FALSE(tied(nullptr, nullptr));
  json = file_of("gemma3_pictures");
  EXPECT_TRUE(tied(nullptr, nullptr)) << "as the family is";
  EXPECT_FALSE(tied(false, nullptr));
  json = file_of("qwen3_vl_moe");
  EXPECT_FALSE(tied(false, true)) << "the outer object says so, also in files of transformers";
  EXPECT_TRUE(tied(true, false));
  EXPECT_TRUE(tied(nullptr, true));
}

TEST(Families, LayersThatGuessAheadArePassedOverUnderEveryRoot) {
  Json json = file_of("glm4v_moe");
  json["text_config"]["num_nextn_predict_layers"] = 1;
  const std::vector<std::string> others = parse(json).names.other_parts;
  for (const char* name : {"model.language_model.layers.3.", "model.layers.3."}) {
    EXPECT_NE(std::find(others.begin(), others.end(), name), others.end()) << name;
  }
}

/// The first Gemma's files say gelu, and mean its approximation.
TEST(Families, TheFirstGemmasGelu) {
  Json json = file_of("gemma");
  const std::string want = describe(parse(json));
  json["hidden_act"] = "gelu";
  EXPECT_EQ(describe(parse(json)), want);
  json["hidden_act"] = "silu";
  EXPECT_NE(refusal(json).find("hidden_act: silu"), std::string::npos);
}

/// A text half's own types are no folders.
TEST(Families, TextHalvesAreNamedByTextConfigAlone) {
  Json json = file_of("glm4v");
  EXPECT_EQ(describe(parse(json)).find("glm4v"), std::string::npos);
  json["text_config"]["model_type"] = "glm4v";
  EXPECT_NE(refusal(json).find("glm4v is not supported as the text half"), std::string::npos);
  json["architectures"] = {""};
  EXPECT_NE(refusal(json).find("architectures"), std::string::npos);
}

/// MiniMax M2 as published: how much of a head turns is a number of components.
TEST(Families, MiniMaxAsPublished) {
  Json json = file_of("minimax_m2");
  const std::string want = describe(parse(json));
  const Json rope = json["rope_parameters"];
  json.erase("rope_parameters");
  json["rope_theta"] = rope["rope_theta"];
  json["rotary_dim"] = 6;
  json["use_qk_norm"] = true;
  json["scoring_func"] = "sigmoid";
  json["num_mtp_modules"] = 3;
  json["quantization_config"] = {{"quant_method", "fp8"},
                                 {"fmt", "float8_e4m3fn"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {128, 128}}};
  EXPECT_EQ(describe(parse(json)), want);
  json["rotary_dim"] = 5;
  EXPECT_NE(refusal(json), "");
  json["rotary_dim"] = 6;
  json["use_qk_norm"] = false;
  EXPECT_NE(describe(parse(json)), want);
  Json llama = file_of("mha");
  llama["rotary_dim"] = 6;
  EXPECT_NE(refusal(llama).find("rotary_dim"), std::string::npos);
}

/// Ministral 3, as a text and as the text half of what Mistral publishes.
TEST(Families, QueriesGrowWithTheirPosition) {
  Json json = file_of("ministral3");
  const ModelConfig c = parse(json);
  ASSERT_EQ(c.ropes.size(), 1U);
  EXPECT_EQ(c.ropes[0].query_growth, 0.4);
  EXPECT_EQ(c.ropes[0].query_context, 40);
  EXPECT_EQ(c.ropes[0].attention_factor, 1);
  EXPECT_NE(describe(c).find("query growth 0.4"), std::string::npos);
  EXPECT_EQ(query_factor(c.ropes[0], 39), 1);
  EXPECT_NEAR(query_factor(c.ropes[0], 40), 1 + 0.4 * std::log(2.0), 1e-6);
  EXPECT_NEAR(query_factor(c.ropes[0], 159), 1 + 0.4 * std::log(4.0), 1e-6);

  Json pictures = file_of("mistral3_pictures");
  pictures["text_config"] = json;
  pictures["tie_word_embeddings"] = json["tie_word_embeddings"];
  EXPECT_EQ(describe(parse(pictures)), describe(c));

  // What transformers takes where the file says nothing.
  Json silent = json;
  silent.erase("rope_parameters");
  const RopeConfig rope = parse(silent).ropes[0];
  EXPECT_EQ(rope.query_growth, 0.1);
  EXPECT_EQ(rope.query_context, 16384);
  EXPECT_EQ(rope.original_context, 16384);
  EXPECT_EQ(rope.theta, 1e6);
  EXPECT_EQ(parse(silent).max_context, 16384 * 16);
  Json null = json;
  null["rope_parameters"] = nullptr;
  EXPECT_EQ(describe(parse(null)), describe(parse(silent)));
  pictures["text_config"] = null;
  EXPECT_EQ(describe(parse(pictures)), describe(parse(silent)));
  Json capped = file_of("gemma3_pictures");
  capped["text_config"]["final_logit_softcapping"] = 1.0;
  EXPECT_NE(refusal(capped).find("final_logit_softcapping"), std::string::npos);
  Json latent_null = file_of("mistral4");
  latent_null["text_config"]["rope_parameters"] = nullptr;
  EXPECT_EQ(parse(latent_null).ropes[0].type, RopeType::yarn);

  // Mistral 4 says what share of a latent query turns.
  Json latent = file_of("mistral4");
  const ModelConfig m = parse(latent);
  EXPECT_EQ(m.ropes[0].dims, 6);
  EXPECT_EQ(m.ropes[0].query_growth, 0.4);
  EXPECT_TRUE(m.layer(1).experts.normalise && m.layer(1).experts.group_pairs);
  EXPECT_FALSE(m.sparse(0));
  EXPECT_EQ(m.names.expert_storage, ExpertStorage::stacked);
  latent["text_config"]["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_NE(refusal(latent).find("partial_rotary_factor"), std::string::npos);

  Json bad = json;
  bad["rope_parameters"]["llama_4_scaling_beta"] = -1;
  EXPECT_NE(refusal(bad).find("llama_4_scaling_beta"), std::string::npos);
  bad["rope_parameters"] = {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}};
  EXPECT_NE(refusal(bad).find("original_max_position_embeddings"), std::string::npos);
  Json other = file_of("mha");
  other["rope_parameters"] = json["rope_parameters"];
  EXPECT_NE(refusal(other).find("llama_4_scaling_beta"), std::string::npos);
  other["rope_parameters"]["llama_4_scaling_beta"] = 0;
  EXPECT_EQ(refusal(other), "");
}

/// The growth counts in the original context, whatever the angles' type makes of it.
TEST(Families, QueriesGrowByTheirOwnContext) {
  Json json = file_of("ministral3");
  const auto rope = [&json](const Json& parameters) {
    json["rope_parameters"] = parameters;
    return parse(json).ropes[0];
  };
  for (const char* type : {"default", "linear", "dynamic"}) {
    const RopeConfig r = rope({{"rope_type", type},
                               {"factor", 2.0},
                               {"original_max_position_embeddings", 40},
                               {"llama_4_scaling_beta", 0.4}});
    EXPECT_NEAR(query_factor(r, 40), 1 + 0.4 * std::log(2.0), 1e-6) << type;
    EXPECT_NEAR(query_factor(r, 512), 1 + 0.4 * std::log(13.0), 1e-6) << type;
  }
  for (const char* type : {"linear", "dynamic"}) {
    json["rope_parameters"] = {{"rope_type", type}, {"factor", 2.0}, {"llama_4_scaling_beta", 0.4}};
    EXPECT_NE(refusal(json).find("original_max_position_embeddings"), std::string::npos) << type;
  }
  // Where there is none, yarn's is the longest context.
  EXPECT_EQ(
      rope({{"rope_type", "yarn"}, {"factor", 2.0}, {"llama_4_scaling_beta", 0.4}}).query_context,
      512);

  // As Devstral 2 has it: no growth, and no ratio of magnitudes.
  const RopeConfig none = rope({{"rope_type", "yarn"},
                                {"factor", 64.0},
                                {"original_max_position_embeddings", 4096},
                                {"mscale", 1.0},
                                {"mscale_all_dim", 0.0},
                                {"llama_4_scaling_beta", 0}});
  EXPECT_EQ(query_factor(none, 100'000), 1);
  EXPECT_NEAR(none.attention_factor, 1.41589, 1e-5);
}

/// What transformers takes for keys that are not there, or are null; found by
/// tests/golden/fuzz_configs.py, as what follows.
TEST(Families, DefaultsAreThoseOfTransformers) {
  Json v3 = file_of("deepseek_v3");
  const auto experts = [](const Json& json) { return parse(json).experts(); };
  v3.erase("routed_scaling_factor");
  EXPECT_EQ(experts(v3).scale, 2.5);
  EXPECT_TRUE(parse(v3).ropes[0].interleaved);
  v3["rope_interleave"] = nullptr;
  EXPECT_FALSE(parse(v3).ropes[0].interleaved);
  EXPECT_TRUE(experts(v3).normalise);
  v3["norm_topk_prob"] = nullptr;
  EXPECT_FALSE(experts(v3).normalise);
  v3["n_routed_experts"] = 16;
  v3["num_experts_per_tok"] = 2;
  v3.erase("n_group");
  v3.erase("topk_group");
  EXPECT_EQ(experts(v3).groups, 8);
  EXPECT_EQ(experts(v3).active_groups, 4);

  Json v2 = file_of("deepseek_v2");
  EXPECT_GT(experts(v2).groups, 1);
  v2.erase("topk_method");
  EXPECT_EQ(experts(v2).groups, 1);
  Json lite = file_of("glm4_moe_lite");
  lite.erase("routed_scaling_factor");
  EXPECT_EQ(experts(lite).scale, 1.8);

  Json oss = file_of("gpt_oss");
  for (const char* how : {"absent", "null"}) {
    oss.erase("rope_parameters");
    if (how == std::string("null")) oss["rope_parameters"] = nullptr;
    const RopeConfig rope = parse(oss).ropes[0];
    EXPECT_EQ(rope.type, RopeType::yarn) << how;
    EXPECT_EQ(rope.factor, 32) << how;
    EXPECT_EQ(rope.theta, 1.5e5) << how;
    EXPECT_FALSE(rope.truncate) << how;
  }
  // Without a window in any layer, and said that there is one, EXAONE 4 turns nothing.
  Json exaone = file_of("exaone4_full");
  EXPECT_EQ(parse(exaone).layer(0).attention.rope, 0);
  exaone["sliding_window"] = 7;
  EXPECT_EQ(parse(exaone).layer(0).attention.rope, -1);
  // Two kinds of angles do not know the outer key; groups are of families that have them.
  Json mellum = file_of("mellum");
  const std::string inner = describe(parse(mellum));
  mellum["original_max_position_embeddings"] = 20;
  EXPECT_EQ(describe(parse(mellum)), inner);
  Json hy = file_of("hy_v3");
  hy["n_group"] = 2;
  EXPECT_EQ(experts(hy).groups, 1);
  EXPECT_EQ(experts(hy).scale, 1.7);
  // Only some families read where their windows are.
  for (const char* name : {"olmo3", "gpt_oss", "gemma2", "ministral", "mellum", "cwm"}) {
    Json json = file_of(name);
    json.erase("layer_types");
    const std::string before = describe(parse(json));
    json["sliding_window_pattern"] = 2;
    EXPECT_EQ(describe(parse(json)), before) << name;
  }
  // Two kinds of angles are each of what the file says is the longest context.
  Json gemma3 = file_of("gemma3");
  const Json yarn = {{"rope_type", "yarn"}, {"rope_theta", 100.0}, {"factor", 4.0}};
  gemma3["rope_parameters"] = {{"full_attention", yarn}, {"sliding_attention", yarn}};
  EXPECT_EQ(parse(gemma3).ropes[0].original_context, 512);
  EXPECT_EQ(parse(gemma3).ropes[1].original_context, 512);
  EXPECT_EQ(parse(gemma3).max_context, 2048);
  Json olmo3 = file_of("olmo3");
  olmo3["rope_theta"] = 3e5;
  EXPECT_NE(refusal(olmo3).find("rope_theta"), std::string::npos);
  mellum["rope_theta"] = 1e6;
  EXPECT_NE(refusal(mellum).find("rope_theta"), std::string::npos);
  hy["first_k_dense_replace"] = 0;
  EXPECT_FALSE(parse(hy).sparse(0));
  Json granite = file_of("granitemoeshared");
  granite["shared_intermediate_size"] = 0;
  EXPECT_EQ(experts(granite).shared.intermediate, 0);
  Json phi = file_of("phi3_long");
  phi.erase("original_max_position_embeddings");
  EXPECT_EQ(parse(phi).ropes[0].original_context, 4096);
  // A number with two names.
  Json ernie = file_of("ernie4_5_moe");
  ernie["num_experts_per_tok"] = ernie["moe_k"];
  EXPECT_EQ(refusal(ernie), "");
  ernie["num_experts_per_tok"] = 1;
  EXPECT_NE(refusal(ernie).find("moe_k"), std::string::npos);
}

TEST(Families, DotsAsPublished) {
  Json json = Json::parse(R"({
    "architectures": ["Dots1ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 10944, "max_position_embeddings": 32768,
    "max_window_layers": 62, "model_type": "dots1", "moe_intermediate_size": 1408,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 2,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 6,
    "num_hidden_layers": 62, "num_key_value_heads": 32, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000,
    "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "sliding_window": 4096,
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 152064})");
  const auto windowed = [&json] {
    const ModelConfig c = parse(json);
    int count = 0;
    for (int i = 0; i < c.layers; ++i) count += c.layer(i).attention.window > 0 ? 1 : 0;
    return count;
  };
  EXPECT_EQ(parse(json).head_dim, 128);
  EXPECT_EQ(parse(json).layer(1).experts.router, RouterKind::sigmoid);
  EXPECT_EQ(windowed(), 0);
  json["max_window_layers"] = 60;
  EXPECT_EQ(windowed(), 2);
  EXPECT_EQ(parse(json).layer(61).attention.window, 4096);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(windowed(), 0);
  json["scoring_func"] = "softmax";
  EXPECT_NE(refusal(json).find("scoring_func"), std::string::npos);
  Json other = file_of("glm4_moe");
  other["scoring_func"] = "noaux_tc";
  EXPECT_NE(refusal(other).find("scoring_func"), std::string::npos);
}

TEST(Families, MinistralAsPublished) {
  const Json json = Json::parse(R"({
    "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16",
    "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": false,
    "projector_hidden_act": "gelu",
    "quantization_config": {"activation_scheme": "static", "dequantize": false,
      "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
      "quant_method": "fp8", "weight_block_size": null},
    "spatial_merge_size": 2,
    "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
      "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
      "num_hidden_layers": 34, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0,
        "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn",
        "type": "yarn"},
      "sliding_window": null, "tie_word_embeddings": false, "use_cache": true,
      "vocab_size": 131072},
    "vision_config": {"model_type": "pixtral"}, "vision_feature_layer": -1})");
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.max_context, 262144);
  EXPECT_EQ(c.ropes[0].query_growth, 0.1);
  EXPECT_EQ(c.quantization.method, QuantMethod::fp8);
  EXPECT_EQ(c.quantization.block_rows, 0);
  EXPECT_FALSE(c.tied_embeddings);
}

TEST(Families, SparseLayersBySpan) {
  Json json = file_of("ernie4_5_moe");
  const auto sparse = [&json] {
    const ModelConfig c = parse(json);
    std::string found;
    for (int i = 0; i < c.layers; ++i) found += c.sparse(i) ? 'x' : '-';
    return found;
  };
  EXPECT_EQ(sparse(), "-x-x-");
  json["moe_layer_interval"] = 1;
  EXPECT_EQ(sparse(), "-xxx-");
  json["moe_layer_end_index"] = -1;
  EXPECT_EQ(sparse(), "-xxxx");
  json["use_bias"] = true;
  EXPECT_NE(refusal(json).find("use_bias"), std::string::npos);
  json["use_bias"] = false;
  json["moe_norm_min"] = 0;
  EXPECT_EQ(refusal(json), "");
  json["moe_norm_min"] = 0.1;
  EXPECT_NE(refusal(json).find("moe_norm_min"), std::string::npos);
}

TEST(Families, SparseLayersByName) {
  Json json = file_of("glm4_moe_lite");
  ModelConfig c = parse(json);
  EXPECT_FALSE(c.sparse(0));
  EXPECT_TRUE(c.sparse(1) && c.sparse(2));
  json["mlp_layer_types"] = {"dense", "dense", "sparse"};
  c = parse(json);
  EXPECT_FALSE(c.sparse(1));
  json["mlp_layer_types"] = {"dense", "wide", "sparse"};
  EXPECT_NE(refusal(json).find("mlp_layer_types: wide"), std::string::npos);
  json.erase("mlp_layer_types");
  json["first_k_dense_replace"] = 2;
  EXPECT_EQ(describe(parse(json)), describe(c));
}

TEST(Families, RefuseWhatTheirSpecsCannotSay) {
  struct Case {
    const char* name;
    const char* key;
    Json value;
  };
  const std::vector<Case> cases = {
      {"olmo2", "sliding_window", 8},
      {"olmoe", "clip_qkv", 8.0},
      {"seed_oss", "attention_out_bias", true},
      {"cohere", "use_qk_norm", true},
      {"olmo2", "logits_scaling", 2.0},
      {"olmo2", "hidden_act", "gelu"},
      {"olmo3", "layer_types", {"full_attention"}},
      {"olmo3",
       "layer_types",
       {"full_attention", "linear_attention", "full_attention", "full_attention"}},
      {"olmo3", "sliding_window", nullptr},
      {"granite", "attention_multiplier", -1.0},
      {"granite", "attention_multiplier", nullptr},
      {"smollm3", "no_rope_layers", {1, 0}},
      {"smollm3", "use_sliding_window", true},
      {"qwen2_moe", "use_sliding_window", true},
      {"phi3", "partial_rotary_factor", 1.5},
      {"starcoder2", "hidden_act", "relu"},
      {"cohere2", "use_qk_norm", true},
      {"cohere2", "sliding_window_pattern", 0},
      {"exaone4", "sliding_window_pattern", "LXG"},
      {"exaone4", "attention_bias", true},
      {"glm4", "logit_scale", 0.5},
      {"glm4_moe", "n_group", 3},
      {"glm4_moe", "topk_group", 5},
      {"glm4_moe", "routed_scaling_factor", 0},
      {"glm4_moe", "kv_lora_rank", 16},
      {"gemma2", "hidden_activation", "silu"},
      {"gemma2", "query_pre_attn_scalar", 0},
      {"gemma2", "rope_local_base_freq", 100.0},
      {"gpt_oss", "swiglu_limit", -7.0},
      {"qwen2_moe", "shared_expert_intermediate_size", 0},
      {"deepseek_v2", "topk_method", "random"},
      {"deepseek_v3", "topk_method", "greedy"},
      {"dots1", "topk_method", "greedy"},
      {"deepseek_v2", "rope_interleave", false},
      {"glm4", "rope_interleave", false},
      {"mha", "is_causal", false},
      {"llava", "is_causal", false},
      {"minimax_m2", "norm_topk_prob", false},
      {"gpt_oss", "norm_topk_prob", false},
      {"gemma3", "attn_logit_softcapping", 1.0},
      {"gemma3", "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 50.0}}},
      {"gemma3", "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
      {"deepseek_v3", "qk_rope_head_dim", 5},
      {"deepseek_v3", "kv_lora_rank", nullptr},
      {"deepseek_v3", "attention_bias", true},
      {"deepseek_v3", "scoring_func", "softmax"},
      {"deepseek_v3", "moe_layer_freq", 2},
      {"deepseek_v3", "model_type", "deepseek_v32"},
      {"deepseek_v3", "index_topk", 2048},
      {"deepseek_v2", "norm_topk_prob", true},
      {"deepseek_v2", "model_type", "kimi_k2"},
  };
  for (const Case& c : cases) {
    Json json = file_of(c.name);
    ASSERT_EQ(refusal(json), "") << c.name;
    if (std::string(c.key) == "sliding_window_pattern") json.erase("layer_types");
    json[c.key] = c.value;
    EXPECT_NE(refusal(json).find(c.key), std::string::npos)
        << c.name << ": " << c.key << " = " << c.value << ": " << refusal(json);
  }
  Json phi = file_of("phi3_long");
  phi["rope_parameters"]["long_factor"] = {1.0, 2.0};
  EXPECT_NE(refusal(phi).find("long_factor"), std::string::npos);
  Json gemma = file_of("gemma3");
  gemma["rope_parameters"]["chunked_attention"] = {{"rope_type", "default"}};
  EXPECT_NE(refusal(gemma).find("chunked_attention"), std::string::npos);
}

/// Sizes of which every kernel takes multiples.
Json sized(const std::string& name) {
  Json json = file_of(name);
  Json& text = json.contains("text_config") ? json["text_config"] : json;
  text["hidden_size"] = 64;
  text["intermediate_size"] = 64;
  for (const char* key : {"moe_intermediate_size", "shared_expert_intermediate_size"}) {
    if (text.contains(key)) text[key] = 32;
  }
  return json;
}

std::string gpu_refusal(const Json& json) {
  try {
    check_gpu_limits(parse(json));
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

/// Which families GPUs compute with fused kernels, and which part by part.
TEST(Families, GpusTakeAllAndFuseLlamasPattern) {
  const std::vector<std::pair<std::string, bool>> cases = {
      {"mha", true},           {"qwen2_bias", true},
      {"qwen3_norms", true},   {"mistral_window", true},
      {"mixtral", true},       {"qwen3_moe", true},
      {"phi3", true},          {"phi3_short", true},
      {"phi3_long", false},    {"mistral3_pictures", true},
      {"llama_biases", false}, {"ministral", false},
      {"qwen2_moe", false},    {"granite", false},
      {"smollm3", false},      {"olmo2", false},
      {"olmo3", false},        {"cohere2", false},
      {"starcoder2", false},   {"glm", false},
      {"glm4", false},         {"exaone4", false},
      {"exaone4_full", false}, {"gemma2", false},
      {"gemma3", false},       {"gemma3_pictures", false},
      {"gpt_oss", false},      {"glm4_moe", false},
      {"llava", true},         {"qwen2_5_vl", true},
      {"qwen3_vl", true},      {"qwen3_vl_moe", true},
      {"seed_oss", true},      {"olmoe", false},
      {"minimax_m2", false},   {"gemma", false},
      {"ministral3", false},   {"vaultgemma", false},
      {"dots1", false},        {"ernie4_5_moe", false},
      {"granitemoe", false},   {"granitemoeshared", false},
      {"granite4", false},     {"hyperclovax", false},
      {"exaone_moe", false},   {"hy_v3", false},
      {"cwm", false},          {"mellum", false},
  };
  for (const auto& [name, fused] : cases) {
    EXPECT_EQ(has_fused_layers(parse(file_of(name))), fused) << name;
  }
  for (const char* name : {"ministral", "granite", "smollm3", "olmo2", "gemma2", "gemma3",
                           "gpt_oss", "qwen2_moe", "mistral3_pictures", "seed_oss", "olmoe",
                           "minimax_m2", "gemma", "cohere", "qwen3_vl_moe", "ministral3"}) {
    Json json = sized(name);
    Json& text = json.contains("text_config") ? json["text_config"] : json;
    text["head_dim"] = 16;
    EXPECT_EQ(gpu_refusal(json), "") << name;
  }
  EXPECT_EQ(windows_of(parse(file_of("ministral"))), (std::set<int>{0, 30}));
}

TEST(Families, GpusTakeQuantisedOnesOfAnyFamily) {
  const Json gptq = {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 32}};
  for (const char* name : {"olmo3", "phi3", "gemma3", "qwen2_moe"}) {
    Json json = sized(name);
    json["head_dim"] = 16;
    json["quantization_config"] = gptq;
    EXPECT_EQ(gpu_refusal(json), "") << name;
  }
}

/// What of them GPUs do not compute, by name.
TEST(Families, GpusNameWhatTheyDoNotCompute) {
  const auto expect = [](Json json, const std::string& key, const Json& value,
                         const std::string& word) {
    json[key] = value;
    const std::string said = gpu_refusal(json);
    EXPECT_NE(said.find(word), std::string::npos) << key << ": " << said;
    EXPECT_NE(said.find("device cuda"), std::string::npos) << key << ": " << said;
  };
  expect(sized("gemma3"), "head_dim", 320, "head_dim");
  expect(sized("ministral"), "head_dim", 12, "head_dim");
  Json narrow = sized("ministral");
  narrow["head_dim"] = 16;
  expect(narrow, "hidden_size", 40, "hidden_size");
  expect(sized("qwen2_moe"), "moe_intermediate_size", 20, "expert");
  expect(sized("qwen2_moe"), "shared_expert_intermediate_size", 20, "every token takes");
  expect(sized("glm4_moe"), "head_dim", 12, "head_dim");
  EXPECT_NE(gpu_refusal(file_of("deepseek_v3")).find("latent keys and values"), std::string::npos);
}

}  // namespace
}  // namespace baton
