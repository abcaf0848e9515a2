// A model's mathematics as data: what it says in words, what makes two of them differ, and what is
// wrong with one that cannot be computed.
#include "workers/model/spec.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "workers/model/families/family.h"

namespace baton {
namespace {

ModelSpec small() {
  ModelSpec s;
  s.hidden = 64;
  s.layers = 3;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_dim = 16;
  s.vocab = 100;
  s.ropes = {RopeConfig{.dims = 16}};
  LayerSpec layer;
  layer.attention.scale = 0.25;
  layer.mlp.intermediate = 96;
  s.parts.assign(3, layer);
  return s;
}

TEST(ModelSpec, SaysWhatItIs) {
  ModelSpec s = small();
  EXPECT_EQ(
      describe(s),
      "hidden 64, 4 heads, 2 of keys and values, of 16, vocabulary 100; rms norms, eps 1e-06\n"
      "rope 0: plain, theta 10000, 16 dims\n"
      "layer 0 to 2: attention scale 0.25; mlp 96 silu; norms before\n"
      "head of its own\n");
  s.parts[1].attention.window = 8;
  s.parts[1].attention.rope = -1;
  s.parts[2].mlp = {};
  s.parts[2].experts = {.count = 8, .active = 2, .expert = {.intermediate = 24}};
  s.parts[2].experts.router = RouterKind::sigmoid;
  s.logits_cap = 30;
  EXPECT_EQ(
      describe(s),
      "hidden 64, 4 heads, 2 of keys and values, of 16, vocabulary 100; rms norms, eps 1e-06\n"
      "rope 0: plain, theta 10000, 16 dims\n"
      "layer 0: attention scale 0.25; mlp 96 silu; norms before\n"
      "layer 1: attention scale 0.25, no rope, window 8; mlp 96 silu; norms before\n"
      "layer 2: attention scale 0.25; 2 of 8 experts (24 silu) by sigmoid; norms before\n"
      "head of its own, logits capped at 30\n");
  EXPECT_EQ(s.experts().count, 8);
  EXPECT_EQ(s.intermediate(), 96);
  EXPECT_FALSE(s.one_window());
  EXPECT_EQ(flaw(s), "");
}

/// The fingerprint of a model is made of this text: nothing that changes a result may be missing.
TEST(ModelSpec, EveryNumberOfItIsInTheText) {
  ModelSpec s = small();
  s.parts[0].mlp = {};
  s.parts[0].experts = {.count = 8, .active = 2, .expert = {.intermediate = 24}};
  s.parts[0].experts.groups = 2;
  s.parts[0].experts.shared = {.intermediate = 5};
  s.ropes = {RopeConfig{.type = RopeType::yarn, .dims = 16},
             RopeConfig{.type = RopeType::llama3, .dims = 16},
             RopeConfig{.type = RopeType::longrope, .dims = 4, .stretch = {1, 2}}};
  const std::string before = describe(s);
  const std::vector<std::function<void(ModelSpec&)>> changes = {
      [](ModelSpec& m) { m.hidden = 65; },
      [](ModelSpec& m) { m.heads = 8; },
      [](ModelSpec& m) { m.kv_heads = 1; },
      [](ModelSpec& m) { m.head_dim = 18; },
      [](ModelSpec& m) { m.vocab = 101; },
      [](ModelSpec& m) { m.latent.rank = 8; },
      [](ModelSpec& m) { m.norm.eps = 1.0000000000000002e-6; },
      [](ModelSpec& m) { m.norm.kind = NormKind::layer; },
      [](ModelSpec& m) { m.norm.offset = true; },
      [](ModelSpec& m) { m.norm.bias = true; },
      [](ModelSpec& m) { m.embedding_scale = 2; },
      [](ModelSpec& m) { m.tied_embeddings = true; },
      [](ModelSpec& m) { m.logits_scale = 0.5; },
      [](ModelSpec& m) { m.logits_cap = 1; },
      [](ModelSpec& m) { m.ropes[0].theta = 9999; },
      [](ModelSpec& m) { m.ropes[0].dims = 8; },
      [](ModelSpec& m) { m.ropes[0].interleaved = true; },
      [](ModelSpec& m) { m.ropes[0].factor = 2; },
      [](ModelSpec& m) { m.ropes[0].original_context = 2; },
      [](ModelSpec& m) { m.ropes[0].beta_fast = 2; },
      [](ModelSpec& m) { m.ropes[0].beta_slow = 2; },
      [](ModelSpec& m) { m.ropes[0].truncate = false; },
      [](ModelSpec& m) { m.ropes[0].attention_factor = 2; },
      [](ModelSpec& m) { m.ropes[1].low_freq_factor = 2; },
      [](ModelSpec& m) { m.ropes[1].high_freq_factor = 2; },
      [](ModelSpec& m) { m.ropes[2].stretch[1] = 3; },
      [](ModelSpec& m) { m.parts[1].norm = NormPlace::both; },
      [](ModelSpec& m) { m.parts[1].parallel = true; },
      [](ModelSpec& m) { m.parts[1].residual = 0.5; },
      [](ModelSpec& m) { m.parts[1].attention.window = 4; },
      [](ModelSpec& m) { m.parts[1].attention.rope = 1; },
      [](ModelSpec& m) { m.parts[1].attention.qk_norm = QkNorm::head; },
      [](ModelSpec& m) { m.parts[1].attention.qk_norm = QkNorm::whole; },
      [](ModelSpec& m) { m.parts[1].attention.qkv_bias = true; },
      [](ModelSpec& m) { m.parts[1].attention.o_bias = true; },
      [](ModelSpec& m) { m.parts[1].attention.sinks = true; },
      [](ModelSpec& m) { m.parts[1].attention.scale = 0.5; },
      [](ModelSpec& m) { m.parts[1].attention.soft_cap = 50; },
      [](ModelSpec& m) { m.parts[1].mlp.intermediate = 97; },
      [](ModelSpec& m) { m.parts[1].mlp.activation = Activation::gelu; },
      [](ModelSpec& m) { m.parts[1].mlp.gated = false; },
      [](ModelSpec& m) { m.parts[1].mlp.bias = true; },
      [](ModelSpec& m) { m.parts[1].mlp.limit = 7; },
      [](ModelSpec& m) { m.parts[0].experts.count = 16; },
      [](ModelSpec& m) { m.parts[0].experts.active = 3; },
      [](ModelSpec& m) { m.parts[0].experts.expert.intermediate = 3; },
      [](ModelSpec& m) { m.parts[0].experts.router = RouterKind::sigmoid; },
      [](ModelSpec& m) { m.parts[0].experts.router_bias = true; },
      [](ModelSpec& m) { m.parts[0].experts.choice_bias = true; },
      [](ModelSpec& m) { m.parts[0].experts.groups = 4; },
      [](ModelSpec& m) { m.parts[0].experts.active_groups = 2; },
      [](ModelSpec& m) { m.parts[0].experts.group_pairs = false; },
      [](ModelSpec& m) { m.parts[0].experts.normalise = true; },
      [](ModelSpec& m) { m.parts[0].experts.scale = 2.5; },
      [](ModelSpec& m) { m.parts[0].experts.shared.intermediate = 6; },
      [](ModelSpec& m) { m.parts[0].experts.shared_gate = true; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    ModelSpec changed = s;
    changes[i](changed);
    EXPECT_FALSE(changed == s) << i;
    EXPECT_NE(describe(changed), before) << i;
  }
}

TEST(ModelSpec, LatentKeysAndValues) {
  ModelSpec s = small();
  s.kv_heads = 4;
  s.head_dim = 18;
  s.latent = {.rank = 20, .q_rank = 0, .plain = 12, .value = 10, .rope = 6};
  s.ropes[0].dims = 6;
  EXPECT_EQ(flaw(s), "");
  EXPECT_EQ(s.attended_columns(), 40);
  EXPECT_EQ(s.pool_heads(), 1);
  EXPECT_EQ(s.pool_dim(), 13);
  EXPECT_NE(describe(s).find("keys and values latent, 20; queries 12 + 6 that turn; values 10\n"),
            std::string::npos)
      << describe(s);
  for (int LatentSpec::*size : {&LatentSpec::rank, &LatentSpec::plain, &LatentSpec::rope}) {
    ModelSpec changed = s;
    ++(changed.latent.*size);
    EXPECT_NE(flaw(changed).find("latent"), std::string::npos);
  }
  s.parts[1].attention.sinks = true;
  EXPECT_NE(flaw(s).find("latent"), std::string::npos);
}

TEST(ModelSpec, NamesWhatCannotBeComputed) {
  const std::vector<std::pair<std::string, std::function<void(ModelSpec&)>>> cases = {
      {"as many parts", [](ModelSpec& m) { m.parts.pop_back(); }},
      {"turn positions", [](ModelSpec& m) { m.ropes.clear(); }},
      {"dims 18", [](ModelSpec& m) { m.ropes[0].dims = 18; }},
      {"dims 7", [](ModelSpec& m) { m.ropes[0].dims = 7; }},
      {"stretch", [](ModelSpec& m) { m.ropes[0].stretch = {1.0}; }},
      {"rope that is not there", [](ModelSpec& m) { m.parts[2].attention.rope = 1; }},
      {"scale", [](ModelSpec& m) { m.parts[2].attention.scale = 0; }},
      {"parallel",
       [](ModelSpec& m) {
         m.parts[0].parallel = true;
         m.parts[0].norm = NormPlace::both;
       }},
      {"without a feed-forward", [](ModelSpec& m) { m.parts[0].mlp.intermediate = 0; }},
      {"differ between layers",
       [](ModelSpec& m) {
         m.parts[0].experts = {.count = 8, .active = 2, .expert = {.intermediate = 24}};
         m.parts[1].experts = {.count = 4, .active = 2, .expert = {.intermediate = 24}};
       }},
      {"groups",
       [](ModelSpec& m) {
         m.parts[0].experts = {.count = 8, .active = 5, .expert = {.intermediate = 24}};
         m.parts[0].experts.groups = 2;
       }},
  };
  EXPECT_EQ(flaw(small()), "");
  for (const auto& [word, change] : cases) {
    ModelSpec s = small();
    change(s);
    EXPECT_NE(flaw(s).find(word), std::string::npos) << word << ": " << flaw(s);
  }
}

/// Whoever reads these tables takes them for granted.
TEST(Families, TablesAreSound) {
  const std::vector<Family>& all = families();
  ASSERT_GE(all.size(), 6U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].architecture);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_TRUE(all[i].architecture.empty() || all[i].architecture != all[j].architecture);
      EXPECT_NE(all[i].model_type, all[j].model_type);
    }
    EXPECT_FALSE(all[i].model_type.empty());
    for (const std::string& key : all[i].reads) {
      // What is said of angles is refused where it is read (rope_config.cpp).
      bool known = key == "long_factor" || key == "llama_4_scaling_beta";
      for (const MathematicsKey& k : mathematics_keys()) known = known || k.key == key;
      EXPECT_TRUE(known) << key << " is in no list of what other families refuse";
    }
    if (all[i].text_of.empty()) continue;
    bool found = false;
    for (const Family& family : all) found = found || family.model_type == all[i].text_of;
    EXPECT_TRUE(found) << all[i].text_of;
  }
}

}  // namespace
}  // namespace baton
