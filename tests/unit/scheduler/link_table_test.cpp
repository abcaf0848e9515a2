// Connections that come and go leave nothing behind.
#include "scheduler/link_table.h"

#include <gtest/gtest.h>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {
namespace {

using Links = LinkTable<int>;

TEST(LinkTable, ForgetsThoseThatAreSilentAndNotUsed) {
  Links links;
  const LinkId kept = links.heard("kept", 0);
  for (int i = 0; i < 1000; ++i) links.heard("peer" + std::to_string(i), 0);
  const LinkId late = links.heard("late", Links::kForgetAfter / 2);
  links.forget_silent(Links::kForgetAfter, [&](LinkId link) { return link != kept; });
  EXPECT_EQ(links.size(), 2U);
  ASSERT_NE(links.find(kept), nullptr);
  EXPECT_EQ(links.find(late)->routing_id, "late");
  const LinkId again = links.heard("peer1", 2 * Links::kForgetAfter);
  EXPECT_GT(again, late) << "no number is used twice";
  EXPECT_EQ(links.heard("kept", 2 * Links::kForgetAfter), kept);
}

TEST(LinkTable, TheCoreNamesThoseOfPeersThatLive) {
  Cluster c;
  const LinkId first = c.ready_worker("mixed0", Role::mixed);
  EXPECT_FALSE(forget_link(c.state, first));
  EXPECT_FALSE(forget_link(c.state, c.frontend));
  EXPECT_TRUE(forget_link(c.state, 4711));
  c.gone(first);
  EXPECT_TRUE(forget_link(c.state, first));
  EXPECT_EQ(c.state.worker_links.count(first), 0U);
  const LinkId second = c.ready_worker("mixed0", Role::mixed, 100, 2);
  EXPECT_FALSE(forget_link(c.state, second));
  c.from_frontend(c.frontend, FrontendBye{1});
  EXPECT_TRUE(forget_link(c.state, c.frontend));
  EXPECT_EQ(c.state.frontend_links.count(c.frontend), 0U);
}

}  // namespace
}  // namespace baton::test
