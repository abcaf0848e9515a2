// Angular frequencies by their formulas, and the table of angles.
#include "workers/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baton {
namespace {

RopeConfig with_dims(RopeConfig rope, int dims) {
  rope.dims = dims;
  return rope;
}

std::vector<float> frequencies_of(const RopeConfig& rope, int dims) {
  return rope_frequencies(with_dims(rope, dims));
}

TEST(Rope, FrequenciesFollowTheirFormulas) {
  RopeConfig rope;
  rope.theta = 10000.0;
  const std::vector<float> plain = frequencies_of(rope, 64);
  ASSERT_EQ(plain.size(), 32U);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(plain[i] * std::pow(10000.0, i / 32.0), 1.0, 1e-6);
  rope.type = RopeType::linear;
  rope.factor = 4.0;
  const std::vector<float> linear = frequencies_of(rope, 64);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(linear[i] * 4 / plain[i], 1.0, 1e-6);
  rope.type = RopeType::llama3;
  rope.factor = 8.0;
  rope.original_context = 8192;
  const std::vector<float> llama3 = frequencies_of(rope, 64);
  EXPECT_EQ(llama3.front(), plain.front());                  // short waves are kept
  EXPECT_NEAR(llama3.back() * 8 / plain.back(), 1.0, 1e-6);  // long ones stretched
  for (int i = 0; i < 32; ++i) {
    EXPECT_LE(llama3[i], plain[i]);
    EXPECT_GE(llama3[i], plain[i] / 8.001F);
  }
}

TEST(Rope, YarnKeepsFastPairsAndStretchesSlowOnes) {
  RopeConfig rope;
  const std::vector<float> plain = frequencies_of(rope, 128);
  rope.type = RopeType::yarn;
  rope.factor = 4.0;
  rope.original_context = 32768;
  const std::vector<float> yarn = frequencies_of(rope, 128);
  // 128 ln(32768 / (2 pi 32)) / (2 ln 10000) = 35.4 and 59.5: kept up to 35, stretched from 60.
  for (std::size_t i = 0; i < 64; ++i) {
    SCOPED_TRACE(i);
    const float ratio = yarn[i] / plain[i];
    EXPECT_EQ(ratio == 1.0F, i <= 35);
    EXPECT_EQ(ratio < 0.250001F, i >= 60);
    EXPECT_GE(ratio, 0.249999F);
  }
  rope.attention_factor = 1.5;
  RopeTable table(with_dims(rope, 128), 1000);
  EXPECT_EQ(table.at(0).cos[7], 1.5F);
  const RopeTable::Angles angles = table.at(999);
  EXPECT_NEAR(angles.cos[3] * angles.cos[3] + angles.sin[3] * angles.sin[3], 2.25, 1e-5);
}

TEST(Rope, LongropeStretchesEachPair) {
  RopeConfig rope;
  const std::vector<float> plain = frequencies_of(rope, 8);
  rope.type = RopeType::longrope;
  rope.stretch = {1.0, 2.0, 8.0, 3.5};
  const std::vector<float> longer = frequencies_of(rope, 8);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(longer[i] * rope.stretch[i] / plain[i], 1.0, 1e-6);
  }
}

/// The frequencies follow from the configuration alone: those of the longest sequence.
TEST(Rope, DynamicRaisesThetaForTheLongestSequence) {
  RopeConfig rope;
  rope.type = RopeType::dynamic;
  rope.factor = 3.0;
  rope.original_context = 1000;
  RopeConfig raised;
  raised.theta = 10000.0 * std::pow(3.0 * 3.0 - 2.0, 64.0 / 62.0);
  EXPECT_EQ(frequencies_of(rope, 64), frequencies_of(raised, 64));
}

TEST(Rope, TableIsCosineAndSineOfTheAngle) {
  RopeTable table(with_dims({}, 32), 40000);
  const std::vector<float> frequencies = frequencies_of(RopeConfig{}, 32);
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
