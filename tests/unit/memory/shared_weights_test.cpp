// Who packs weights and who shares them, as values.
#include "memory/shared_weights.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

WeightsAsk ask_of(const std::string& worker, std::uint64_t fingerprint = 7) {
  WeightsAsk ask;
  ask.worker = worker;
  ask.key.model_fingerprint = fingerprint;
  ask.key.format = "stored";
  ask.key.layout = 1;
  return ask;
}

TEST(SharedWeights, TheFirstPacksAndTheOthersWaitUntilTheyAreSealed) {
  SharedWeights weights;
  EXPECT_EQ(weights.ask(1, ask_of("a"), 0), WeightsRuling::fill);
  EXPECT_EQ(weights.ask(2, ask_of("b"), 0), WeightsRuling::wait);
  EXPECT_EQ(weights.sealed(2, 0), nullptr) << "it packs nothing";
  ASSERT_NE(weights.sealed(1, 5), nullptr);
  EXPECT_EQ(weights.sealed(1, 5), nullptr) << "sealed once";
  EXPECT_EQ(weights.ask(2, ask_of("b"), 6), WeightsRuling::map);
  EXPECT_EQ(weights.copies().begin()->second.users.size(), 2U);
}

TEST(SharedWeights, APackerThatDiesLeavesNothingAndTheNextOnePacks) {
  SharedWeights weights;
  weights.ask(1, ask_of("a"), 0);
  weights.ask(2, ask_of("b"), 0);
  weights.gone(1, 1);
  EXPECT_TRUE(weights.copies().empty());
  EXPECT_EQ(weights.ask(2, ask_of("b"), 2), WeightsRuling::fill);
  EXPECT_EQ(weights.ask(3, ask_of("a"), 2), WeightsRuling::wait);
}

TEST(SharedWeights, AWaiterThatLeavesChangesNothing) {
  SharedWeights weights;
  weights.ask(1, ask_of("a"), 0);
  weights.ask(2, ask_of("b"), 0);
  weights.gone(2, 1);
  EXPECT_NE(weights.sealed(1, 2), nullptr);
}

TEST(SharedWeights, EveryPartOfTheKeyTellsCopiesApart) {
  SharedWeights weights;
  LinkNumber link = 0;
  WeightsAsk other = ask_of("a");
  EXPECT_EQ(weights.ask(++link, other, 0), WeightsRuling::fill);
  other = ask_of("a");
  other.key.model_fingerprint = 8;
  EXPECT_EQ(weights.ask(++link, other, 0), WeightsRuling::fill);
  other = ask_of("a");
  other.key.files = 1;
  EXPECT_EQ(weights.ask(++link, other, 0), WeightsRuling::fill);
  other = ask_of("a");
  other.key.format = "bf16";
  EXPECT_EQ(weights.ask(++link, other, 0), WeightsRuling::fill);
  other = ask_of("a");
  other.key.layout = 2;
  EXPECT_EQ(weights.ask(++link, other, 0), WeightsRuling::fill);
  EXPECT_EQ(weights.ask(++link, ask_of("a"), 0), WeightsRuling::wait);
}

TEST(SharedWeights, WhatNobodyUsesIsKeptForAWhileAndTakenOutOnce) {
  SharedWeights weights;
  WeightsKey key;
  weights.ask(1, ask_of("a"), 0);
  weights.sealed(1, 0);
  EXPECT_FALSE(weights.expire(10 * kKeepWeights, key)) << "in use";
  weights.gone(1, 100);
  EXPECT_FALSE(weights.expire(100 + kKeepWeights - 1, key));
  EXPECT_EQ(weights.ask(2, ask_of("a"), 200), WeightsRuling::map) << "its worker is back";
  weights.gone(2, 300);
  EXPECT_FALSE(weights.expire(300 + kKeepWeights - 1, key));
  ASSERT_TRUE(weights.expire(300 + kKeepWeights, key));
  EXPECT_EQ(key.model_fingerprint, 7U);
  EXPECT_FALSE(weights.expire(300 + kKeepWeights, key));
}

TEST(SharedWeights, DroppedIsOnlyWhatNobodyUses) {
  SharedWeights weights;
  WeightsKey key;
  weights.ask(1, ask_of("a"), 0);
  const std::string name = weights.copies().begin()->second.name;
  EXPECT_NE(weights.drop("nothing", key), "");
  EXPECT_EQ(weights.drop(name, key), "a is packing them");
  weights.sealed(1, 0);
  EXPECT_EQ(weights.drop(name, key), "a uses them");
  weights.gone(1, 0);
  EXPECT_EQ(weights.drop(name, key), "");
  EXPECT_EQ(key.model_fingerprint, 7U);
  EXPECT_TRUE(weights.copies().empty());
}

TEST(SharedWeights, CopiesHaveABound) {
  SharedWeights weights;
  for (std::uint64_t i = 0; i < kMostCopies; ++i)
    EXPECT_EQ(weights.ask(i, ask_of("a", i), 0), WeightsRuling::fill);
  EXPECT_EQ(weights.ask(1000, ask_of("a", 1000), 0), WeightsRuling::refuse);
  weights.gone(0, 0);
  EXPECT_EQ(weights.ask(1000, ask_of("a", 1000), 0), WeightsRuling::fill);
}

}  // namespace
}  // namespace baton
