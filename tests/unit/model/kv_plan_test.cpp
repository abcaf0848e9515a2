// Which layers share blocks, for the shapes that people run.
#include "workers/model/kv_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace baton {
namespace {

/// `layers` layers, of which every `every`-th one sees everything (0: none).
ModelSpec model(int layers, int window, int every) {
  ModelSpec spec;
  spec.layers = layers;
  for (int i = 0; i < layers; ++i) {
    LayerSpec layer;
    layer.attention.window = every > 0 && (i + 1) % every == 0 ? 0 : window;
    spec.parts.push_back(layer);
  }
  return spec;
}

/// No two layers have one place, and each group has layers of its window alone.
void expect_sound(const KvPlan& plan, const ModelSpec& spec) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> places;
  ASSERT_EQ(plan.places.size(), spec.parts.size());
  for (std::size_t i = 0; i < plan.places.size(); ++i) {
    const KvPlan::Place& place = plan.places[i];
    EXPECT_TRUE(places.insert({place.group, place.layer}).second);
    EXPECT_LT(place.group, plan.groups.count);
    EXPECT_LT(place.layer, plan.layers_in_block);
    EXPECT_EQ(plan.groups.windows[place.group],
              static_cast<std::uint32_t>(spec.parts[i].attention.window));
  }
}

TEST(KvPlan, WithoutWindowsThereIsOneGroup) {
  const KvPlan plan = plan_kv_groups(model(32, 0, 0), 131072, 16);
  EXPECT_EQ(plan.groups, KvGroups());
  EXPECT_EQ(plan.layers_in_block, 32U);
}

TEST(KvPlan, OneWindowEverywhereIsOneGroup) {
  const ModelSpec spec = model(32, 4096, 0);
  const KvPlan plan = plan_kv_groups(spec, 32768, 16);
  EXPECT_EQ(plan.groups.count, 1U);
  EXPECT_EQ(plan.groups.windows[0], 4096U);
  EXPECT_EQ(plan.layers_in_block, 32U);
  expect_sound(plan, spec);
}

TEST(KvPlan, AWindowAsLongAsTheContextIsNone) {
  EXPECT_EQ(plan_kv_groups(model(32, 4096, 0), 4096, 16).groups, KvGroups());
}

/// gpt-oss-20b: every other layer of 24 has a window of 128.
TEST(KvPlan, HalfAndHalfIsTwoGroups) {
  const ModelSpec spec = model(24, 128, 2);
  const KvPlan plan = plan_kv_groups(spec, 131072, 16);
  EXPECT_EQ(plan.groups.count, 2U);
  EXPECT_EQ(plan.layers_in_block, 12U);
  EXPECT_EQ(plan.groups.windows[0], 0U);
  EXPECT_EQ(plan.groups.windows[1], 128U);
  expect_sound(plan, spec);
}

/// Gemma 3 12B: every sixth of 48 layers sees everything, the others 1024 tokens.
TEST(KvPlan, EightAndFortyAreSixGroups) {
  const ModelSpec spec = model(48, 1024, 6);
  const KvPlan plan = plan_kv_groups(spec, 131072, 16);
  EXPECT_EQ(plan.groups.count, 6U);
  EXPECT_EQ(plan.layers_in_block, 8U);
  expect_sound(plan, spec);
}

/// Gemma 3 27B: 10 of 62 layers see everything; what does not divide leaves a little unused, and
/// all the same a long sequence takes a sixth of the bytes.
TEST(KvPlan, WhatDoesNotDivideIsPadded) {
  const ModelSpec spec = model(62, 1024, 6);
  const KvPlan plan = plan_kv_groups(spec, 131072, 16);
  expect_sound(plan, spec);
  EXPECT_LE(plan.groups.count, kMaxKvGroups);
  const std::uint64_t slots =
      TableShape(16, plan.groups).live_blocks(131072) * plan.layers_in_block;
  EXPECT_LT(slots, TableShape(16).live_blocks(131072) * 62 / 5);
}

TEST(KvPlan, WhatSavesLittleIsLeft) {
  EXPECT_EQ(plan_kv_groups(model(24, 3900, 2), 4096, 16).groups, KvGroups());
}

}  // namespace
}  // namespace baton
