// Whether a worker should take another role, from what is measured.
#include "scheduler/plan/auto_roles.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton::test {
namespace {

/// Measures the same for a while and does what it is told.
struct Table {
  explicit Table(const std::string& homes) {
    for (const char home : homes) {
      RoleSeat seat;
      seat.worker = static_cast<std::uint32_t>(seats.size());
      seat.home = seat.role = home == 'p'   ? Role::prefill
                              : home == 'd' ? Role::decode
                                            : Role::mixed;
      seat.free = seat.home != Role::mixed;
      seat.blocks = seat.tokens = 100;
      seats.push_back(seat);
    }
  }

  void run(TimeNs how_long, double queue_s, double prompt_load, double decode_load) {
    for (const TimeNs end = now + how_long; now < end; now += 50 * kMillisecond) {
      watch.pressure = {queue_s, prompt_load, decode_load};
      const auto change = choose_role(rules, seats, watch, now);
      if (!change) continue;
      watch.changed = now;
      seats[change->worker].role = change->role;
      seats[change->worker].since = now;
      why = change->why;
      ++changes;
    }
  }

  std::string roles() const {
    std::string text;
    for (const RoleSeat& seat : seats) {
      text += seat.role == Role::prefill ? 'p' : seat.role == Role::decode ? 'd' : 'm';
    }
    return text;
  }

  RoleRules rules;
  std::vector<RoleSeat> seats;
  RoleWatch watch;
  TimeNs now = 100 * kSecond;
  std::string why;
  int changes = 0;
};

TEST(RoleChoice, PromptsThatWaitTakeADecodeWorkerThatCanBeSpared) {
  Table t("ppdd");
  t.seats[2].sequences = 9;
  t.run(2 * kSecond, 1.5, 2, 0.5);
  EXPECT_EQ(t.roles(), "ppdp") << "the one with fewer sequences";
  EXPECT_EQ(t.why, "1.50 s of prompts wait, prompts take 2.00 of 2.0 workers, decoding 0.50 of 2");
}

TEST(RoleChoice, AMomentIsNotEnough) {
  Table t("ppdd");
  for (int i = 0; i < 20; ++i) {
    t.run(kSecond / 2, 1.5, 2, 0.5);
    t.run(kSecond / 2, 0, 2, 0.5);
  }
  EXPECT_EQ(t.changes, 0);
}

TEST(RoleChoice, FullDecodeWorkersTakeAPrefillWorkerThatCanBeSpared) {
  Table t("ppdd");
  t.run(2 * kSecond, 0, 0.4, 1.9);
  EXPECT_EQ(t.roles(), "dpdd");
}

TEST(RoleChoice, BothSidesPressedChangeNothing) {
  Table t("ppdd");
  t.run(60 * kSecond, 2, 2, 2);
  EXPECT_EQ(t.changes, 0);
}

TEST(RoleChoice, TheLastOneOfASideDoesBoth) {
  Table prompts("pd");
  prompts.run(5 * kSecond, 2, 1, 0.5);
  EXPECT_EQ(prompts.roles(), "pm");
  Table replies("pd");
  replies.run(5 * kSecond, 0, 0.3, 1);
  EXPECT_EQ(replies.roles(), "md");
}

TEST(RoleChoice, NobodyGoesHomeBeforeItsSideCouldDoWithIt) {
  Table t("ppdd");
  t.run(2 * kSecond, 1.5, 2, 0.5);
  ASSERT_EQ(t.roles(), "pppd");
  t.run(60 * kSecond, 0.2, 1.6, 0.5);  // it was turned at 2.0 of 2; two would just do
  EXPECT_EQ(t.roles(), "pppd");
  t.run(5 * kSecond, 0, 0.3, 0.5);
  EXPECT_EQ(t.roles(), "pppd") << "not at once";
  t.run(10 * kSecond, 0, 0.3, 0.5);
  EXPECT_EQ(t.roles(), "ppdd");
  t.run(60 * kSecond, 0, 0.3, 0.5);
  EXPECT_EQ(t.changes, 2);
}

TEST(RoleChoice, ALoadThatSwingsTurnsNobodyMoreOftenThanItMay) {
  Table t("ppdd");
  for (int i = 0; i < 60; ++i) {
    t.run(3 * kSecond, 2, 2, 0.2);
    t.run(3 * kSecond, 0, 0.2, 2.5);
  }
  EXPECT_GT(t.changes, 2);
  EXPECT_LE(t.changes, 360 / 10 * 4);
}

TEST(RoleChoice, AHeldOneAndAMixedOneStay) {
  Table t("pdd");
  t.seats[1].free = t.seats[2].free = false;
  t.run(60 * kSecond, 2, 1, 0.2);
  Table mixed("mm");
  mixed.run(60 * kSecond, 2, 1, 0.2);
  EXPECT_EQ(t.changes + mixed.changes, 0);
}

TEST(RoleChoice, TheLargestPoolStaysWithThoseWhoDecode) {
  Table t("pdd");
  t.seats[1].blocks = 200;  // a hand-off may need that many
  t.seats[2].sequences = 9;
  t.run(2 * kSecond, 2, 1, 0.4);
  EXPECT_EQ(t.roles(), "pdp");
  Table small("ppd");
  small.seats[0].blocks =
      200;  // requests that only it holds would be accepted, and it then goes home
  small.run(5 * kSecond, 0, 0.2, 1);
  EXPECT_EQ(small.roles(), "pdd");
}

TEST(RoleChoice, OneWithoutRoomForTheStepsOfARoleDoesNotTakeIt) {
  Table t("pdd");
  t.seats[1].roomy[static_cast<int>(Role::prefill)] = false;
  t.seats[1].roomy[static_cast<int>(Role::mixed)] = false;
  t.seats[2].sequences = 9;
  t.run(2 * kSecond, 2, 1, 0.4);
  EXPECT_EQ(t.roles(), "pdp");
}

TEST(RoleChoice, WhenTheLastDecodeWorkerDiesALentOneGoesHomeAtOnce) {
  Table t("pdd");
  t.run(2 * kSecond, 1.5, 1, 0.5);
  ASSERT_EQ(t.roles(), "ppd");
  t.seats.pop_back();
  t.run(2 * kSecond, 1.5, 1, 0);
  EXPECT_EQ(t.roles(), "pd");
  Table lent("ppd");
  lent.run(2 * kSecond, 0, 0.2, 1);
  ASSERT_EQ(lent.roles(), "dpd");
  lent.seats.pop_back();
  lent.seats.pop_back();
  lent.run(20 * kSecond, 0, 0.2, 1);
  EXPECT_EQ(lent.roles(), "d") << "one that is alone does both";
  t.seats.pop_back();
  t.run(2 * kSecond, 0, 0, 0);
  EXPECT_EQ(t.roles(), "p") << "nobody was lent away from decoding";
}

}  // namespace
}  // namespace baton::test
