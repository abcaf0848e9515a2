// Who waits for whom where several owners' work waits for a few threads.
#include "frontend/core/work_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

namespace baton {
namespace {

TEST(FairQueue, owners_take_turns_and_each_keeps_its_order) {
  FairQueue<std::string> queue(10);
  for (const char* task : {"a1", "a2", "a3", "b1", "c1", "c2"}) {
    EXPECT_TRUE(queue.push(std::string(1, task[0]), task).taken);
  }
  std::string order;
  for (int i = 0; i < 3; ++i) order += *queue.pop() + " ";
  EXPECT_TRUE(queue.push("b", "b2").taken);
  for (int i = 0; i < 4; ++i) order += *queue.pop() + " ";
  EXPECT_EQ(order, "a1 b1 c1 a2 c2 b2 a3 ");
}

TEST(FairQueue, is_bounded_and_can_be_closed) {
  FairQueue<int> queue(2);
  EXPECT_TRUE(queue.push("a", 1).taken);
  EXPECT_TRUE(queue.push("b", 2).taken);
  EXPECT_FALSE(queue.push("c", 3).taken);
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_TRUE(queue.push("c", 3).taken);
  queue.close();
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_FALSE(queue.push("d", 4).taken);
}

TEST(FairQueue, the_owner_with_most_waiting_is_refused_first) {
  using Texts = std::vector<std::string>;
  FairQueue<std::string> queue(4);
  for (const char* task : {"a1", "a2", "a3", "a4"}) EXPECT_TRUE(queue.push("a", task).taken);
  const auto own = queue.push("a", "a5");
  EXPECT_FALSE(own.taken);
  EXPECT_TRUE(own.displaced.empty());
  EXPECT_EQ(queue.push("b", "b1").displaced, Texts{"a4"});
  EXPECT_EQ(queue.push("b", "b2").displaced, Texts{"a3"});
  EXPECT_FALSE(queue.push("b", "b3").taken) << "they have the same";
  EXPECT_FALSE(queue.push("a", "a3").taken);
  EXPECT_EQ(queue.push("c", "c1").displaced, Texts{"a2"}) << "the first of those with most";
  std::string order;
  for (int i = 0; i < 4; ++i) order += *queue.pop() + " ";
  EXPECT_EQ(order, "a1 b1 c1 b2 ");
}

TEST(FairQueue, an_owner_with_most_bytes_gives_way_too) {
  FairQueue<int> queue(100, 1000);
  EXPECT_FALSE(queue.push("a", 0, 1001).taken);
  EXPECT_TRUE(queue.push("a", 1, 400).taken);
  EXPECT_TRUE(queue.push("a", 2, 400).taken);
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_FALSE(queue.push("b", 3, 400).taken) << "as many wait of the other";
  EXPECT_EQ(queue.push("b", 4, 300).displaced, std::vector<int>{2}) << "what is worked on counts";
  EXPECT_FALSE(queue.push("c", 5, 301).taken);
  queue.finished(400);
  EXPECT_TRUE(queue.push("c", 6, 700).taken);
  EXPECT_EQ(queue.push("d", 7, 1).displaced, std::vector<int>{6});
}

TEST(WorkPool, tells_who_gives_way) {
  WorkPool pool({.threads = 1, .max_waiting = 2});
  std::promise<void> taken;
  std::promise<void> go;
  ASSERT_TRUE(pool.push("a", 0, [&] {
    taken.set_value();
    go.get_future().wait();
  }));
  taken.get_future().wait();
  std::string order;
  std::promise<void> done;
  ASSERT_TRUE(pool.push("a", 0, [&] { order += '1'; }));
  ASSERT_TRUE(pool.push(
      "a", 0, [&] { order += '2'; }, [&] { order += 'd'; }));
  ASSERT_TRUE(pool.push("b", 0, [&] { done.set_value(); }));
  EXPECT_EQ(order, "d");
  go.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, "d1");
}

TEST(WorkPool, bounds_what_waits_and_lets_nobody_wait_behind_anothers_heap) {
  WorkPool pool({.threads = 1, .max_waiting = 100, .max_bytes = 1000});
  std::promise<void> taken;
  std::promise<void> go;
  std::promise<void> done;
  std::string order;  // of the pool's one thread, until `done`
  ASSERT_TRUE(pool.push("a", 300, [&] {
    taken.set_value();
    go.get_future().wait();
    order += '1';
  }));
  taken.get_future().wait();
  const auto note = [&order](char name) { return [&order, name] { order += name; }; };
  ASSERT_TRUE(pool.push("a", 300, note('2')));
  ASSERT_TRUE(pool.push("a", 300, note('3')));
  EXPECT_FALSE(pool.push("a", 300, note('x'))) << "what is worked on counts, too";
  ASSERT_TRUE(pool.push("b", 0, note('b')));
  ASSERT_TRUE(pool.push("c", 0, note('c')));
  ASSERT_TRUE(pool.push("a", 0, [&done] { done.set_value(); }));
  go.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, "12bc3");
  pool.stop();
  EXPECT_FALSE(pool.push("a", 0, note('y')));
}

}  // namespace
}  // namespace baton
