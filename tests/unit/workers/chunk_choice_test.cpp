// Which rows of a step gather their keys.
#include "workers/execute/chunk_choice.h"

#include <gtest/gtest.h>

#include <limits>

namespace baton {
namespace {

using Chosen = std::vector<bool>;

TEST(ChunkChoice, AShortRowDoesNotTakeTheRoomOfALongOne) {
  const ChunkRow rows[] = {{16, 4'000}, {2'048, 130'000}, {1, 90'000}};
  EXPECT_EQ(choose_chunks(rows, 128, 131'072), (Chosen{false, true, false}));
  EXPECT_EQ(choose_chunks(rows, 128, 135'000), (Chosen{true, true, false}));
}

TEST(ChunkChoice, WhatFindsNoRoomLeavesItToOthers) {
  const ChunkRow rows[] = {{2'048, 140'000}, {512, 100'000}, {256, 40'000}, {2, 30'000}};
  EXPECT_EQ(choose_chunks(rows, 128, 131'072), (Chosen{false, true, false, true}));
}

TEST(ChunkChoice, KeysTakeUpWholeTiles) {
  const ChunkRow rows[] = {{20, 129}, {10, 10}};
  EXPECT_EQ(choose_chunks(rows, 128, 383), (Chosen{true, false}));
  EXPECT_EQ(choose_chunks(rows, 128, 384), (Chosen{true, true}));
}

TEST(ChunkChoice, RowsOfFewTokensAreSingleOnes) {
  const ChunkRow rows[] = {{63, 63, 64}, {64, 5'000, 64}, {127, 90'000, 128}};
  EXPECT_EQ(choose_chunks(rows, 128, 131'072), (Chosen{false, true, false}));
}

TEST(ChunkChoice, WhoeverGathersNothingHasRoomForAll) {
  const ChunkRow rows[] = {{2, 1'000'000}, {1, 5}, {2'048, 1'000'000}};
  EXPECT_EQ(choose_chunks(rows, 128, std::numeric_limits<std::int64_t>::max()),
            (Chosen{true, false, true}));
  EXPECT_EQ(choose_chunks(rows, 128, 0), (Chosen{false, false, false}));
}

}  // namespace
}  // namespace baton
