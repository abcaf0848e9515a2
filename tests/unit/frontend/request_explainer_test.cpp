#include "frontend/core/request_explainer.h"

#include <gtest/gtest.h>

#include <numeric>

namespace baton {
namespace {

constexpr TimeNs kMs = kMillisecond;

EndedRequest ended(const std::string& id, std::uint64_t awaited) {
  EndedRequest made;
  made.request.request_id = id;
  made.marks = {.first_byte = 0,
                .whole = 1 * kMs,
                .opened = 2 * kMs,
                .submitted = 2 * kMs,
                .ended = 50 * kMs};
  made.awaited = awaited;
  return made;
}

RequestTiming last_word(std::uint64_t counter) {
  RequestTiming timing;
  timing.counter = counter;
  timing.begin = 3 * kMs;
  timing.spent.resize(kParts);
  timing.spent[static_cast<std::size_t>(Part::prefill)] = 40 * kMs;
  timing.until = 43 * kMs;
  timing.ended = true;
  return timing;
}

struct Explainer : testing::Test {
  std::vector<ExplainedRequest> done;
  std::vector<std::string> told;  // spans' clients
  RequestExplainer explainer{[this](EndedRequest ended) {
    done.push_back(std::move(ended.request));
    if (ended.span) told.push_back(ended.span->client);
  }};

  void expect_whole(std::size_t count) {
    ASSERT_EQ(done.size(), count);
    const auto& spent = done.back().spent;
    EXPECT_EQ(std::accumulate(spent.begin(), spent.end(), TimeNs{0}), done.back().total);
  }
};

TEST_F(Explainer, IsDoneWhenTheLastByteIsOut) {
  EndedRequest request = ended("a", 0);
  request.timing = last_word(1);
  explainer.ended(7, std::move(request));
  EXPECT_TRUE(done.empty());
  explainer.written(7, 60 * kMs);
  expect_whole(1);
  EXPECT_EQ(done[0].total, 60 * kMs);
  EXPECT_TRUE(done[0].told);
  explainer.written(7, 70 * kMs);
  EXPECT_EQ(done.size(), 1U) << "once";
}

TEST_F(Explainer, HandsOnWhatASpanTells) {
  EndedRequest request = ended("a", 0);
  request.span = std::make_unique<SpanFacts>();
  request.span->client = "192.0.2.7";
  explainer.ended(7, std::move(request));
  explainer.ended(8, ended("b", 0));
  explainer.written(8, 60 * kMs);
  EXPECT_TRUE(told.empty());
  explainer.written(7, 60 * kMs);
  EXPECT_EQ(told, std::vector<std::string>{"192.0.2.7"});
}

TEST_F(Explainer, AwaitsTheSchedulersLastWord) {
  explainer.ended(7, ended("before", 1));
  explainer.ended(8, ended("after", 2));
  explainer.told(last_word(1));  // before its last byte is out
  explainer.written(7, 60 * kMs);
  expect_whole(1);
  explainer.written(8, 61 * kMs);
  EXPECT_EQ(done.size(), 1U);
  explainer.told(last_word(2));
  expect_whole(2);
  EXPECT_EQ(done[1].request_id, "after");
  EXPECT_EQ(done[1].spent[static_cast<std::size_t>(Part::prefill)], 40 * kMs);
}

TEST_F(Explainer, DoesNotWaitForEver) {
  explainer.ended(7, ended("a", 1));
  explainer.written(7, 60 * kMs);
  explainer.tick(kSecond);
  EXPECT_TRUE(done.empty());
  explainer.tick(3 * kSecond);
  expect_whole(1);
  EXPECT_FALSE(done[0].told);
  explainer.told(last_word(1));
  EXPECT_EQ(done.size(), 1U);
}

TEST_F(Explainer, OfWhoLeftTheSendingIsToldLater) {
  EndedRequest request = ended("gone", 5);
  request.marks.submitted = 0;
  explainer.ended(7, std::move(request));
  explainer.written(7, 60 * kMs);
  StreamEnd end;
  end.counter = 5;
  end.submitted = 2 * kMs;
  end.attempts = 1;
  explainer.abandoned(end);
  explainer.told(last_word(5));
  expect_whole(1);
  EXPECT_EQ(done[0].attempts, 1U);
}

}  // namespace
}  // namespace baton
