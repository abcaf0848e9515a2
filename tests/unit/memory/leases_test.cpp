// One pool a name, one writer, and only for who reads its bytes in the same way.
#include "memory/leases.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr TimeNs kNow = 100 * kSecond;

Lease lease_of(Incarnation incarnation) {
  Lease lease;
  lease.worker = "decode0";
  lease.incarnation = incarnation;
  lease.allocation = 1000 + incarnation;
  lease.key.model_fingerprint = 7;
  lease.key.weights = "bf16";
  lease.key.layers = 2;
  lease.key.tokens_per_block = 16;
  lease.key.block_bytes = 4096;
  lease.key.layout = 1;
  lease.blocks = 10;
  return lease;
}

/// The first process has a pool, and has ended.
Leases left_by_one(bool spoiled = false) {
  Leases leases;
  leases.ask(lease_of(1), kNow);
  leases.ended("decode0", 1, spoiled, kNow);
  return leases;
}

TEST(Leases, TheFirstProcessGetsAFreshPool) {
  Leases leases;
  const LeaseAnswer answer = leases.ask(lease_of(1), kNow);
  EXPECT_EQ(answer.ruling, Ruling::lease);
  EXPECT_FALSE(answer.pool.kept);
  EXPECT_EQ(answer.pool.allocation, 1001U);
  EXPECT_EQ(answer.why, "");
}

TEST(Leases, TheNextProcessGetsThePoolOfTheDeadOne) {
  Leases leases = left_by_one();
  const LeaseAnswer answer = leases.ask(lease_of(2), kNow);
  EXPECT_EQ(answer.ruling, Ruling::lease);
  EXPECT_TRUE(answer.pool.kept);
  EXPECT_EQ(answer.pool.allocation, 1001U);
  EXPECT_EQ(answer.pool.holder, 2U);
}

TEST(Leases, NobodyGetsItWhileTheOlderProcessLives) {
  Leases leases;
  leases.ask(lease_of(1), kNow);
  EXPECT_EQ(leases.ask(lease_of(2), kNow).ruling, Ruling::wait);
  leases.ended("decode0", 1, false, kNow);
  EXPECT_TRUE(leases.ask(lease_of(2), kNow).pool.kept);
  // The end of a process that held it before says nothing of the one that holds it now.
  leases.ended("decode0", 1, false, kNow);
  EXPECT_EQ(leases.ask(lease_of(3), kNow).ruling, Ruling::wait);
}

TEST(Leases, AnOlderProcessIsRefused) {
  Leases leases;
  leases.ask(lease_of(2), kNow);
  const LeaseAnswer answer = leases.ask(lease_of(1), kNow);
  EXPECT_EQ(answer.ruling, Ruling::refuse);
  EXPECT_EQ(answer.why, "a younger process has the name decode0");
}

TEST(Leases, WhoAsksAgainGetsTheSameAnswer) {
  Leases leases = left_by_one();
  leases.ask(lease_of(2), kNow);
  const LeaseAnswer again = leases.ask(lease_of(2), kNow);
  EXPECT_TRUE(again.pool.kept);
  EXPECT_EQ(again.pool.allocation, 1001U);
}

TEST(Leases, WorkersDoNotShareAPool) {
  Leases leases = left_by_one();
  Lease other = lease_of(2);
  other.worker = "decode1";
  EXPECT_FALSE(leases.ask(other, kNow).pool.kept);
}

TEST(Leases, WhatIsReadDifferentlyIsGivenUpWithAReason) {
  const auto why = [](auto change) {
    Leases leases = left_by_one();
    Lease lease = lease_of(2);
    change(lease);
    const LeaseAnswer answer = leases.ask(lease, kNow);
    EXPECT_FALSE(answer.pool.kept);
    EXPECT_EQ(answer.pool.allocation, 1002U);
    EXPECT_EQ(answer.given_up, 1001U);
    return answer.why;
  };
  EXPECT_EQ(why([](Lease& l) { l.key.layers = 3; }), "layers was 2 and is 3");
  EXPECT_EQ(why([](Lease& l) { l.key.model_fingerprint = 8; }),
            "the model's fingerprint was 7 and is 8");
  EXPECT_EQ(why([](Lease& l) { l.key.weights = "f32"; }), "the weights' type was bf16 and is f32");
  EXPECT_EQ(why([](Lease& l) { l.key.dtype = 2; }), "the KV dtype was 0 and is 2");
  EXPECT_EQ(why([](Lease& l) { l.key.layout = 2; }), "the layout's version was 1 and is 2");
  EXPECT_EQ(why([](Lease& l) { l.blocks = 11; }), "blocks was 10 and is 11");
  EXPECT_EQ(why([](Lease& l) { l.host_blocks = 1; }), "blocks of its host part was 0 and is 1");
}

TEST(Leases, ASizeThatNobodyHasConfiguredIsThatOfTheKeptPool) {
  Leases leases = left_by_one();
  Lease lease = lease_of(2);
  lease.blocks = 8;  // less memory is free than before: the kept pool has it
  lease.planned = true;
  const LeaseAnswer answer = leases.ask(lease, kNow);
  EXPECT_TRUE(answer.pool.kept);
  EXPECT_EQ(answer.pool.blocks, 10U);
}

TEST(Leases, WhatAFaultMayHaveWrittenIsGivenUp) {
  Leases leases = left_by_one(/*spoiled=*/true);
  const LeaseAnswer answer = leases.ask(lease_of(2), kNow);
  EXPECT_FALSE(answer.pool.kept);
  EXPECT_EQ(answer.why, "the process that wrote it died of a fault");
  // The fresh one has a clean record.
  leases.ended("decode0", 2, false, kNow);
  EXPECT_TRUE(leases.ask(lease_of(3), kNow).pool.kept);
}

TEST(Leases, APoolThatNobodyComesBackForIsGivenUp) {
  Leases leases = left_by_one();
  EXPECT_TRUE(leases.expire(kNow + kKeepIdle - 1).empty());
  const auto over = leases.expire(kNow + kKeepIdle);
  ASSERT_EQ(over.size(), 1U);
  EXPECT_EQ(over[0].allocation, 1001U);
  EXPECT_FALSE(leases.ask(lease_of(2), kNow + kKeepIdle).pool.kept);
  EXPECT_TRUE(leases.expire(kNow + 10 * kKeepIdle).empty()) << "it is held";
}

TEST(Leases, DroppedIsOnlyWhatNobodyHolds) {
  Leases leases;
  EXPECT_EQ(leases.drop("decode0").status().message(), "there is none of that name");
  leases.ask(lease_of(1), kNow);
  EXPECT_EQ(leases.drop("decode0").status().message(), "decode0 holds it");
  leases.ended("decode0", 1, false, kNow);
  const auto dropped = leases.drop("decode0");
  ASSERT_TRUE(dropped.ok());
  EXPECT_EQ(dropped.value().allocation, 1001U);
  EXPECT_FALSE(leases.ask(lease_of(2), kNow).pool.kept);
}

}  // namespace
}  // namespace baton
