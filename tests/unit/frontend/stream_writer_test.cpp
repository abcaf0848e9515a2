// The writer against real sockets: clients that read, leave, or never read.
#include "frontend/http/stream_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "tests/unit/frontend/clients_fixture.h"

namespace baton {
namespace {

class WriterTest : public ClientsTest {
 protected:
  WriterTest() : writer({4096, 30 * kSecond}) {}

  std::vector<DroppedClient> drops() {
    writer.poll(now);
    return writer.take_drops();
  }

  StreamWriter writer;
};

TEST_F(WriterTest, a_reply_goes_out_at_once_and_the_turn_goes_back) {
  UniqueFd client;
  const auto c = connect(&client);
  writer.open(c, now);
  writer.send(c->id(), "hello ", now);
  writer.finish(c->id(), "world", true, now);
  EXPECT_EQ(read_all(client), "hello world");
  EXPECT_EQ(c->phase(), ConnectionPhase::reading);
  EXPECT_EQ(writer.open_count(), 0U);
  EXPECT_EQ(writer.queued_bytes(), 0U);
}

TEST_F(WriterTest, what_came_before_its_turn_is_told_and_what_was_lost_closes) {
  UniqueFd client, other;
  const auto c = connect(&client), d = connect(&other);
  c->backlog = "GET";
  d->lost = true;
  for (const auto& connection : {c, d}) {
    writer.open(connection, now);
    writer.finish(connection->id(), "bye", true, now);
  }
  EXPECT_EQ(read_all(client), "bye");
  EXPECT_EQ(c->phase(), ConnectionPhase::resuming);
  const auto turns = writer.take_turns();
  ASSERT_EQ(turns.size(), 1U);
  EXPECT_EQ(turns[0], c);
  EXPECT_TRUE(writer.take_turns().empty());
  EXPECT_EQ(read_all(other), "bye");
  EXPECT_EQ(d->phase(), ConnectionPhase::closing);
  char byte;
  EXPECT_EQ(::read(other.get(), &byte, 1), 0) << "the server's direction must be closed";
}

TEST_F(WriterTest, a_client_asks_again_only_when_it_has_read) {
  UniqueFd client;
  const auto c = connect(&client);
  writer.open(c, now);
  writer.finish(c->id(), std::string(100'000, 'x'), true, now);
  EXPECT_EQ(c->phase(), ConnectionPhase::replying) << "its next request must wait";
  while (writer.queued_bytes() > 0) {
    ASSERT_FALSE(read_all(client).empty());
    writer.poll(now);
  }
  EXPECT_EQ(c->phase(), ConnectionPhase::reading);
  EXPECT_TRUE(drops().empty());
}

TEST_F(WriterTest, what_all_leave_unread_together_is_bounded) {
  StreamWriter bounded({.buffer_bytes = 4096, .total_bytes = 250'000});
  UniqueFd clients[3];
  std::shared_ptr<ClientConnection> connections[3];
  for (int i = 0; i < 3; ++i) {
    connections[i] = connect(&clients[i]);
    bounded.open(connections[i], now);
    bounded.finish(connections[i]->id(), std::string(100'000, 'x'), true, now);
    now += kSecond;
  }
  EXPECT_LE(bounded.queued_bytes(), 250'000U);
  const auto dropped = bounded.take_drops();
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped[0].connection, connections[0]->id()) << "the slowest of equals";
  EXPECT_EQ(dropped[0].reason, DropReason::overflow);
}

TEST_F(WriterTest, who_sends_nothing_more_may_still_read) {
  UniqueFd client;
  const auto c = connect(&client);
  writer.open(c, now);
  shutdown(client.get(), SHUT_WR);
  EXPECT_TRUE(drops().empty());
  const auto half_closed = writer.take_half_closed();
  ASSERT_EQ(half_closed.size(), 1U);
  EXPECT_EQ(half_closed[0], c);
  EXPECT_TRUE(drops().empty());
  EXPECT_TRUE(writer.take_half_closed().empty());
  c->ended = true;  // as whoever reads finds out
  writer.finish(c->id(), "all of it", true, now);
  EXPECT_EQ(read_all(client), "all of it");
  EXPECT_EQ(c->phase(), ConnectionPhase::closing);
}

TEST_F(WriterTest, what_a_full_socket_does_not_take_is_queued_and_flushed_in_order) {
  UniqueFd client;
  const auto c = connect(&client);
  writer.open(c, now);
  std::string expected, got;
  const std::string big(100'000, 'x');
  writer.send(c->id(), big, now);
  EXPECT_GT(writer.queued_bytes(), 0U);
  expected = big;
  writer.finish(c->id(), "", false, now);
  for (int i = 0; i < 1000 && writer.open_count() > 0; ++i) {
    got += read_all(client);
    writer.poll(now);
  }
  got += read_all(client);
  EXPECT_TRUE(got == expected) << got.size() << " bytes of " << expected.size();
  EXPECT_EQ(writer.open_count(), 0U);
  EXPECT_EQ(writer.queued_bytes(), 0U);
  EXPECT_EQ(c->phase(), ConnectionPhase::closing);
}

TEST_F(WriterTest, a_client_that_never_reads_is_dropped_and_memory_stays_bounded) {
  UniqueFd client;
  const auto c = connect(&client);
  writer.open(c, now);
  std::size_t most = 0;
  std::vector<DroppedClient> dropped;
  for (int i = 0; i < 10000 && dropped.empty(); ++i) {
    writer.send(c->id(), std::string(100, 'x'), now);
    most = std::max(most, writer.queued_bytes());
    dropped = writer.take_drops();
  }
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped[0].reason, DropReason::overflow);
  EXPECT_LE(most, 4096U + 100U);
  EXPECT_EQ(writer.queued_bytes(), 0U);
  EXPECT_EQ(writer.open_count(), 0U);
  writer.send(c->id(), "more", now);  // ignored
  EXPECT_TRUE(drops().empty());
}

TEST_F(WriterTest, a_queue_that_does_not_move_is_dropped_after_its_time) {
  UniqueFd client;
  const auto c = connect(&client);
  writer.open(c, now);
  writer.send(c->id(), std::string(50'000, 'x'), now);
  now += 29 * kSecond;
  writer.check_stalls(now);
  EXPECT_TRUE(drops().empty());
  read_all(client);
  writer.poll(now);  // moved
  now += 29 * kSecond;
  writer.check_stalls(now);
  EXPECT_TRUE(drops().empty());
  now += 2 * kSecond;
  writer.restart_clocks(now);
  writer.check_stalls(now);
  EXPECT_TRUE(drops().empty()) << "this process itself stood still";
  now += 31 * kSecond;
  writer.check_stalls(now);
  const auto dropped = drops();
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped[0].reason, DropReason::stalled);
}

TEST_F(WriterTest, a_client_that_leaves_is_noticed_while_it_waits) {
  UniqueFd client, other;
  const auto c = connect(&client);
  const auto d = connect(&other);
  writer.open(c, now);
  writer.open(d, now);
  EXPECT_TRUE(drops().empty());
  client.reset();
  const auto dropped = drops();
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped[0].connection, c->id());
  EXPECT_EQ(dropped[0].reason, DropReason::left);
  EXPECT_EQ(c->phase(), ConnectionPhase::closing);
  writer.finish(d->id(), "still here", true, now);
  EXPECT_EQ(read_all(other), "still here");
}

TEST_F(WriterTest, writing_to_a_client_that_left_raises_no_signal) {
  UniqueFd client;
  const auto c = connect(&client);
  writer.open(c, now);
  client.reset();
  writer.send(c->id(), "x", now);
  ASSERT_EQ(drops().size(), 1U);
  writer.finish(c->id(), "y", true, now);
  EXPECT_TRUE(drops().empty()) << "each once";
}

TEST_F(WriterTest, the_turn_comes_when_the_last_byte_is_out) {
  UniqueFd client;
  const auto c = connect(&client);
  std::vector<std::uint64_t> ended;
  writer.on_end = [&](const ClientConnection& connection) { ended.push_back(connection.put); };
  writer.open(c, now);
  writer.finish(c->id(), std::string(100'000, 'a'), true, now);
  EXPECT_EQ(c->phase(), ConnectionPhase::replying);
  EXPECT_TRUE(ended.empty()) << "a successor may still have to write the rest";
  std::string got;
  for (int i = 0; i < 1000 && writer.open_count() > 0; ++i) {
    got += read_all(client);
    writer.poll(now);
  }
  EXPECT_EQ(c->phase(), ConnectionPhase::reading);
  EXPECT_EQ(ended, std::vector<std::uint64_t>{100'000});
  c->begin_reply(now);
  writer.open(c, now);
  writer.finish(c->id(), std::string(10, 'b'), true, now);
  got += read_all(client);
  EXPECT_TRUE(got == std::string(100'000, 'a') + std::string(10, 'b')) << got.size();
  EXPECT_EQ(ended, (std::vector<std::uint64_t>{100'000, 100'010}));
}

TEST_F(WriterTest, a_reply_ends_for_its_journal_when_its_client_is_dropped) {
  UniqueFd client;
  const auto c = connect(&client);
  int ended = 0;
  writer.on_end = [&](const ClientConnection&) { ++ended; };
  writer.open(c, now);
  client.reset();
  writer.send(c->id(), "x", now);
  writer.poll(now);
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace baton
