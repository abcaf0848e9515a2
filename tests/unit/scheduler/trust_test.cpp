// What is left of a pool when its worker dies in the middle of its work.
#include "scheduler/state/trust.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr std::uint32_t kSlots = 4;  // of a block

std::vector<SlotWrite> step(std::vector<BlockId> blocks, std::uint32_t position,
                            std::uint32_t tokens) {
  std::vector<SlotWrite> writes;
  add_step_writes(blocks, position, tokens, kSlots, writes);
  return writes;
}

TEST(Trust, WithoutWorkEverythingIsAsItWas) {
  const Trust trust(3, kSlots, {});
  for (BlockId block = 0; block < 3; ++block) EXPECT_TRUE(trust.whole(block));
  EXPECT_EQ(trust.tokens(std::vector<BlockId>{2, 0}, 7), 7U);
}

TEST(Trust, AStepWritesTheSlotsOfItsTokens) {
  EXPECT_EQ(step({5, 6, 7}, 4, 1), (std::vector<SlotWrite>{{6, 0}}));
  EXPECT_EQ(step({5, 6, 7}, 6, 1), (std::vector<SlotWrite>{{6, 2}}));
  EXPECT_EQ(step({5, 6, 7}, 3, 6), (std::vector<SlotWrite>{{5, 3}, {6, 0}, {7, 0}}));
  EXPECT_TRUE(step({5}, 4, 0).empty());
}

TEST(Trust, APartlyWrittenBlockKeepsTheSlotsOfEndedSteps) {
  // Six tokens are computed; the steps of the seventh and the eighth have not answered.
  const std::vector<BlockId> blocks{1, 0};
  std::vector<SlotWrite> writes = step(blocks, 6, 1);
  for (const SlotWrite& write : step(blocks, 7, 1)) writes.push_back(write);
  const Trust trust(2, kSlots, writes);
  EXPECT_TRUE(trust.whole(1));
  EXPECT_EQ(trust.good_slots(0), 2U);
  EXPECT_EQ(trust.tokens(blocks, 6), 6U);
}

TEST(Trust, TheOrderOfWhatIsUnansweredDoesNotMatter) {
  const std::vector<SlotWrite> writes{{0, 3}, {0, 1}, {0, 2}};
  EXPECT_EQ(Trust(1, kSlots, writes).good_slots(0), 1U);
}

TEST(Trust, ACopyThatIsNotAnsweredTakesTheWholeBlock) {
  // The second of three blocks was being copied from the host part: what is behind it may be there,
  // and is of no use without it.
  const std::vector<SlotWrite> writes{{4, 0}};
  const Trust trust(6, kSlots, writes);
  EXPECT_EQ(trust.tokens(std::vector<BlockId>{3, 4, 5}, 12), 4U);
  EXPECT_TRUE(trust.whole(5)) << "for others that name it";
}

TEST(Trust, NothingIsTrustedThatWasNotComputed) {
  const Trust trust(2, kSlots, {});
  EXPECT_EQ(trust.tokens(std::vector<BlockId>{0, 1}, 5), 5U);
  EXPECT_EQ(trust.tokens(std::vector<BlockId>{}, 0), 0U);
}

}  // namespace
}  // namespace baton
