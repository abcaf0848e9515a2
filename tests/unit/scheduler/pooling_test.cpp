// Requests for a vector: one prompt, no decode step, the vector beside token 0 until it is
// acknowledged.
#include <gtest/gtest.h>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

struct Vectors {
  std::vector<std::uint64_t> counters;
  std::vector<std::vector<float>> values;  // beside them
};

class PoolingTest : public ::testing::Test {
 protected:
  static Submit asked(Cluster& cluster, std::uint64_t counter, std::uint32_t prompt) {
    Submit m = cluster.request(counter, prompt, 1);
    m.sampling.stop_ids.clear();
    m.sampling.pooling = Pooling::last_hidden;
    return m;
  }
  /// The oldest step's result: rows whose prompt ends say token 0 and `size` values, all of them
  /// `value`.
  static StepResult result(Cluster& cluster, const std::string& worker, std::size_t size,
                           float value) {
    StepResult m = cluster.result_of(cluster.worker(worker), 0);
    for (std::size_t i = 0; i < m.tokens.size(); ++i) {
      m.logprobs.push(static_cast<std::uint32_t>(i), 0, {}, {}, std::vector<float>(size, value));
    }
    return m;
  }
  /// One event, and what it makes the front end hear.
  static Vectors after(Cluster& cluster, Event event) {
    apply(cluster.state, std::move(event), cluster.now, cluster.out);
    Vectors heard;
    for (const Events& events : cluster.out.events) {
      heard.counters.insert(heard.counters.end(), events.counters.begin(), events.counters.end());
      LogprobReader reader(events.logprobs);
      while (!reader.done()) {
        LogprobReader::Entry entry;
        reader.take(reader.item(), entry);
        heard.values.emplace_back(entry.vector.begin(), entry.vector.end());
      }
    }
    cluster.tick();  // collects the outbox
    return heard;
  }
  static FrontendHeartbeat ask_again(const Cluster& cluster,
                                     const std::vector<std::uint64_t>& counters) {
    FrontendHeartbeat beat;
    beat.epoch = cluster.state.epoch;
    beat.counters = counters;
    beat.attempts.assign(counters.size(), 1);
    beat.next.assign(counters.size(), 0);
    return beat;
  }
};

TEST_F(PoolingTest, EndsWithItsPromptAndTellsTheVectorUntilItIsAcknowledged) {
  Cluster cluster;
  const LinkId worker = cluster.ready_worker("mixed0", Role::mixed);
  cluster.from_frontend(cluster.frontend, asked(cluster, 1, 6));
  cluster.turn();
  ASSERT_EQ(cluster.last_plan(worker).rows.size(), 1U);
  const Vectors heard = after(cluster, FromWorker{worker, result(cluster, "mixed0", 3, 0.5F)});
  EXPECT_EQ(heard.values, (std::vector<std::vector<float>>{{0.5F, 0.5F, 0.5F}}));
  ASSERT_NE(cluster.terminal(1), nullptr) << "nothing is left to decode";
  EXPECT_EQ(cluster.terminal(1)->n, std::vector<std::uint32_t>{1});
  EXPECT_EQ(cluster.terminal(1)->code, ErrorCode::ok);
  const Vectors again = after(cluster, FromFrontend{cluster.frontend, ask_again(cluster, {1})});
  EXPECT_EQ(again.values, heard.values) << "it may have been lost on its way";
}

TEST_F(PoolingTest, OfAPairStaysWhereItIsPrefilled) {
  Cluster cluster;
  const LinkId prefill = cluster.ready_worker("prefill0", Role::prefill, 400);
  const LinkId decode = cluster.ready_worker("decode0", Role::decode, 400);
  Submit submit = asked(cluster, 1, 600);  // more than a chunk
  cluster.from_frontend(cluster.frontend, submit);
  Vectors heard;
  for (int i = 0; i < 20 && heard.values.empty(); ++i) {
    cluster.turn();
    heard = after(cluster, FromWorker{prefill, result(cluster, "prefill0", 2, 1)});
  }
  EXPECT_EQ(heard.values.size(), 1U);
  EXPECT_NE(cluster.terminal(1), nullptr);
  EXPECT_TRUE(cluster.pulls[decode].empty()) << "no block is moved for it";
}

TEST_F(PoolingTest, AMessageHoldsABoundedNumberOfVectors) {
  Cluster cluster;
  const LinkId worker = cluster.ready_worker("mixed0", Role::mixed, 4000);
  const std::size_t size = SamplingParams::kMaxPooled;
  std::vector<std::uint64_t> all;
  for (std::uint64_t id = 1; id <= 100; ++id) {
    all.push_back(id);
    cluster.from_frontend(cluster.frontend, asked(cluster, id, 4));
  }
  for (int i = 0; i < 100 && cluster.terminal(100) == nullptr; ++i) {
    cluster.turn();
    after(cluster, FromWorker{worker, result(cluster, "mixed0", size, 2)});
  }
  ASSERT_NE(cluster.terminal(100), nullptr);
  Vectors heard = after(cluster, FromFrontend{cluster.frontend, ask_again(cluster, all)});
  EXPECT_EQ(heard.values.size(), (1U << 20U) / size) << "4 MiB";
  for (int i = 0; i < 3 && !all.empty(); ++i) {  // the front end asks for what is missing
    for (const std::uint64_t counter : heard.counters) std::erase(all, counter);
    heard = after(cluster, FromFrontend{cluster.frontend, ask_again(cluster, all)});
  }
  EXPECT_TRUE(all.empty());
}

TEST_F(PoolingTest, ComesFromTheNextWorkerIfItsOwnDies) {
  Cluster cluster;
  LinkId worker = cluster.ready_worker("mixed0", Role::mixed);
  cluster.from_frontend(cluster.frontend, asked(cluster, 1, 6));
  cluster.turn();
  cluster.gone(worker);
  worker = cluster.ready_worker("mixed0", Role::mixed, 100, 2);
  cluster.turn();
  EXPECT_EQ(after(cluster, FromWorker{worker, result(cluster, "mixed0", 1, 3)}).values.size(), 1U);
  EXPECT_EQ(cluster.code(1), ErrorCode::ok);
}

TEST_F(PoolingTest, AStaticBatchLeavesItsLimitsAlone) {
  Settings settings;
  settings.batching = Batching::static_batch;
  settings.static_batch_size = 2;
  Cluster cluster(settings);
  cluster.ready_worker("mixed0", Role::mixed);
  cluster.from_frontend(cluster.frontend, asked(cluster, 1, 6));
  cluster.submit(2, 4, 3);
  cluster.turn();
  ASSERT_EQ(cluster.state.group.size(), 2U);
  for (const std::uint64_t counter : {1U, 2U}) {
    const Request& request = *cluster.find(counter);
    EXPECT_TRUE(request.grouped);
    EXPECT_EQ(request.sampling.max_tokens, request.sampling.pools() ? 1U : 3U);
  }
}

TEST_F(PoolingTest, WhatContradictsItIsRefused) {
  Cluster cluster;
  cluster.ready_worker("mixed0", Role::mixed);
  const auto refused = [&](std::uint64_t counter, auto change) {
    Submit m = asked(cluster, counter, 4);
    change(m.sampling);
    cluster.from_frontend(cluster.frontend, m);
    return cluster.code(counter) == ErrorCode::invalid_argument;
  };
  EXPECT_TRUE(refused(1, [](SamplingParams& p) { p.max_tokens = 2; }));
  EXPECT_TRUE(refused(2, [](SamplingParams& p) { p.stop_ids = {0}; }));
  EXPECT_TRUE(refused(3, [](SamplingParams& p) { p.logprobs = 1; }));
  EXPECT_TRUE(refused(4, [](SamplingParams& p) { p.allowed_tokens = {1}; }));
  EXPECT_TRUE(refused(5, [](SamplingParams& p) { p.pooling = Pooling::token_logits; }));
}

TEST(Vectors, BesideLogProbabilitiesKeepTheirPlaces) {
  Logprobs all;
  const Token tops[] = {7};
  const float values[] = {-0.5F};
  all.push(0, -1, tops, values);
  all.push(1, 0, {}, {}, std::vector<float>{1, 2});
  all.push(3, -2, tops, values);
  Logprobs more;
  more.push(4, -3, tops, values);
  all.append(more);
  ASSERT_TRUE(all.agrees());
  LogprobReader reader(all);
  std::vector<std::size_t> sizes;
  LogprobReader::Entry entry;
  while (!reader.done()) {
    reader.take(reader.item(), entry);
    sizes.push_back(entry.vector.size());
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{0, 2, 0, 0}));
  all.vectors.pop_back();
  EXPECT_FALSE(all.agrees());
  Logprobs huge;
  huge.push(0, 0, {}, {}, std::vector<float>(SamplingParams::kMaxPooled + 1));
  EXPECT_FALSE(huge.agrees());
}

}  // namespace
}  // namespace baton::test
