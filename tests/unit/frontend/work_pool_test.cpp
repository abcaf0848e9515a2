// Who waits for whom where several owners' work waits for a few threads.
#include "frontend/core/work_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

namespace baton {
namespace {

TEST(FairQueue, owners_take_turns_and_each_keeps_its_order) {
  FairQueue<std::string> queue(10);
  for (const char* task : {"a1", "a2", "a3", "b1", "c1", "c2"}) {
    EXPECT_TRUE(queue.push(std::string(1, task[0]), task));
  }
  std::string order;
  for (int i = 0; i < 3; ++i) order += *queue.pop() + " ";
  EXPECT_TRUE(queue.push("b", "b2"));
  for (int i = 0; i < 4; ++i) order += *queue.pop() + " ";
  EXPECT_EQ(order, "a1 b1 c1 a2 c2 b2 a3 ");
}

TEST(FairQueue, is_bounded_and_can_be_closed) {
  FairQueue<int> queue(2);
  EXPECT_TRUE(queue.push("a", 1));
  EXPECT_TRUE(queue.push("b", 2));
  EXPECT_FALSE(queue.push("c", 3));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_TRUE(queue.push("c", 3));
  queue.close();
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_FALSE(queue.push("d", 4));
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
  EXPECT_FALSE(pool.push("b", 300, note('x'))) << "what is worked on counts, too";
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
