// Requests as they come out of pieces of bytes: their order, their owners' shares, and what is
// refused by its head alone. Clients are sockets that nobody reads; bytes are handed in by the
// tests.
#include "frontend/http/request_intake.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using Connection = RequestIntake::Connection;
using Phase = ConnectionPhase;
using Turn = ClientConnection::Turn;

std::string get(const std::string& path, const std::string& more = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + more + "\r\n";
}

/// The head of a POST with so many bytes of body.
std::string head(std::size_t length, const std::string& more = "") {
  return "POST /p HTTP/1.1\r\nHost: a\r\n" + more + "Content-Length: " + std::to_string(length) +
         "\r\n\r\n";
}

class IntakeTest : public ::testing::Test {
 protected:
  explicit IntakeTest(IntakeOptions options = small()) : intake(options, routes(), events()) {
    listener.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(1, 0);
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener.get(), 100), 0);
  }
  static IntakeOptions small() {
    IntakeOptions options;
    options.max_connections = 8;
    options.max_partial_bytes = 10'000;
    options.peer_share = 0.5;
    return options;
  }
  static sockaddr_in loopback(int last, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0x7F000000U + static_cast<unsigned>(last));
    address.sin_port = htons(port);
    return address;
  }
  /// A client at 127.0.0.`last`.
  Connection client(int last = 1) {
    sockaddr_in at{};
    socklen_t size = sizeof at;
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size);
    UniqueFd end(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from = loopback(last, 0);
    EXPECT_EQ(bind(end.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
    EXPECT_EQ(connect(end.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    UniqueFd ours(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ends.push_back(std::move(end));
    return intake.admit(std::move(ours));
  }
  /// What was asked since the last call, "path:body" or a status.
  std::vector<std::string> asked() { return std::exchange(asked_, {}); }
  /// The reply is out, and the client may ask again.
  Turn reply(const Connection& c) {
    const Turn turn = c->end_reply(now_ns());
    if (turn == Turn::resume) c->resume(c);
    return turn;
  }

  using List = std::vector<std::string>;
  bool worth_a_body = true;
  List asked_;
  std::vector<UniqueFd> ends;
  UniqueFd listener;
  RequestIntake intake;

 private:
  std::vector<HttpRoute> routes() {
    const auto note = [this](const Connection&, const HttpRequest& request) {
      asked_.push_back(std::string(request.path()) + ":" + request.body);
    };
    return {{"GET", "/:x", "x", note}, {"POST", "/p", "p", note}};
  }
  HttpEvents events() {
    HttpEvents events;
    events.unrouted = [this](const Connection&, const HttpRequest&, const std::string& allowed) {
      asked_.push_back("unrouted " + allowed);
    };
    events.refused = [this](const Connection&, const HttpRequest&, const FramingFault& fault) {
      asked_.push_back(std::to_string(fault.status));
    };
    events.expects_continue = [this](const Connection&) { asked_.push_back("continue"); };
    events.worth_a_body = [this](const ClientConnection&, const HttpRequest&) {
      return worth_a_body;
    };
    return events;
  }
};

TEST_F(IntakeTest, requests_are_read_in_order_and_one_at_a_time) {
  const Connection c = client();
  std::string all = get("/a") + head(3) +
                    "b"
                    "cd" +
                    get("/e") + get("/f").substr(0, 10);
  for (std::size_t i = 0; i < all.size(); i += 7) intake.take(c, all.substr(i, 7));
  EXPECT_EQ(asked(), List{"/a:"});
  EXPECT_EQ(reply(c), Turn::resume);
  EXPECT_EQ(asked(), List{"/p:bcd"});
  intake.take(c, get("/f").substr(10));
  EXPECT_EQ(reply(c), Turn::resume);
  EXPECT_EQ(asked(), List{"/e:"});
  EXPECT_EQ(reply(c), Turn::resume);
  EXPECT_EQ(asked(), List{"/f:"});
  EXPECT_EQ(reply(c), Turn::read);
  intake.take(c, get("/g"));
  EXPECT_EQ(asked(), List{"/g:"});
}

TEST_F(IntakeTest, half_a_request_before_its_turn_is_awaited) {
  const Connection c = client();
  intake.take(c, get("/a") + head(4) + "12");
  EXPECT_EQ(reply(c), Turn::resume);
  EXPECT_EQ(c->phase(), Phase::reading);
  intake.take(c, "34");
  EXPECT_EQ(asked(), (List{"/a:", "/p:1234"}));
}

TEST_F(IntakeTest, nothing_behind_an_error_is_a_request) {
  const Connection c = client();
  intake.take(c, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n" + get("/a"));
  intake.take(c, get("/b"));
  EXPECT_EQ(asked(), List{"400"});
  EXPECT_EQ(reply(c), Turn::close);
}

class RoomyIntakeTest : public IntakeTest {
 protected:
  RoomyIntakeTest() : IntakeTest(IntakeOptions{}) {}
};

TEST_F(RoomyIntakeTest, a_backlog_is_bounded_and_what_it_holds_is_answered) {
  const Connection c = client();
  intake.take(c, get("/a") + get("/b"));
  for (int i = 0; i < 30; ++i) intake.take(c, std::string(60'000, 'x'));
  EXPECT_LE(c->held.bytes(), 1U << 20U);
  EXPECT_EQ(reply(c), Turn::resume);
  EXPECT_EQ(asked(), (List{"/a:", "/b:"}));
  EXPECT_EQ(reply(c), Turn::resume);
  EXPECT_EQ(c->phase(), Phase::replying) << "what follows is no request";
  EXPECT_EQ(asked(), List{"431"});
  const Connection d = client();
  intake.take(d, get("/a"));
  for (int i = 0; i < 40; ++i) intake.take(d, std::string(60'000, 'x'));
  EXPECT_EQ(d->phase(), Phase::closing) << "it sends on and on";
}

TEST_F(IntakeTest, a_backlog_that_is_in_the_way_of_others_is_dropped) {
  const Connection c = client();
  intake.take(c, get("/a") + get("/b") + std::string(20'000, 'x'));
  EXPECT_EQ(c->held.bytes(), 0U);
  EXPECT_EQ(asked(), List{"/a:"});
  EXPECT_EQ(reply(c), Turn::close);
}

TEST_F(IntakeTest, who_says_all_at_once_is_answered) {
  const Connection c = client();
  intake.take(c, get("/a") + get("/b"));
  intake.end(c);
  EXPECT_EQ(intake.counters().open, 1U);
  EXPECT_EQ(reply(c), Turn::resume);
  EXPECT_EQ(asked(), (List{"/a:", "/b:"}));
  EXPECT_EQ(reply(c), Turn::close);
  c->begin_closing(now_ns());
  intake.reap(now_ns());
  EXPECT_EQ(intake.counters().open, 0U);
  const Connection idle = client();
  intake.end(idle);
  EXPECT_EQ(intake.counters().open, 0U);
}

TEST_F(IntakeTest, a_head_may_be_refused_before_its_body) {
  worth_a_body = false;
  const Connection c = client();
  intake.take(c, head(4'000'000, "Expect: 100-continue\r\n"));
  EXPECT_EQ(asked(), List{"/p:"});
  intake.take(c, std::string(100'000, 'x'));
  EXPECT_EQ(c->held.bytes(), 0U);
  EXPECT_EQ(reply(c), Turn::close);
  EXPECT_TRUE(asked().empty());
}

TEST_F(IntakeTest, empty_lines_do_not_restart_the_idle_clock) {
  const Connection c = client();
  const TimeNs since = c->since();
  for (int i = 0; i < 10; ++i) intake.take(c, "\r\n");
  EXPECT_EQ(c->since(), since);
  EXPECT_EQ(c->request_began.load(), 0);
  intake.reap(since + 76 * kSecond);
  EXPECT_EQ(c->phase(), Phase::closing);
}

TEST_F(IntakeTest, the_largest_and_slowest_gives_way) {
  // Two addresses, each within its half.
  const Connection slow = client(1), small = client(2);
  intake.take(slow, head(9'000) + std::string(4'000, 'x'));
  intake.take(small, head(9'000) + "x");
  const Connection quick = client(2), other = client(3);
  intake.take(quick, head(9'000) + std::string(4'000, 'x'));
  EXPECT_TRUE(asked().empty());
  intake.take(other, head(9'000) + std::string(4'000, 'x'));
  EXPECT_EQ(asked(), List{"503"});
  EXPECT_EQ(slow->phase(), Phase::replying);
  EXPECT_EQ(slow->held.bytes(), 0U);
  for (const Connection& c : {small, quick, other}) EXPECT_EQ(c->phase(), Phase::reading);
  EXPECT_EQ(intake.counters().evicted, 1U);
}

TEST_F(IntakeTest, an_address_has_its_share_of_memory) {
  const Connection other = client(2);
  intake.take(other, head(9'000) + std::string(4'500, 'x'));
  const Connection first = client(1), second = client(1);
  intake.take(first, head(9'000) + std::string(3'000, 'x'));
  intake.take(second, head(9'000) + std::string(2'500, 'x'));
  EXPECT_EQ(asked(), List{"503"});
  EXPECT_EQ(first->phase(), Phase::replying);
  EXPECT_EQ(other->phase(), Phase::reading) << "the largest, but not of the address at fault";
}

TEST_F(IntakeTest, an_address_has_its_share_of_connections) {
  std::vector<Connection> busy;
  for (int i = 0; i < 4; ++i) {
    busy.push_back(client(1));
    intake.take(busy.back(), get("/a"));
  }
  EXPECT_EQ(client(1), nullptr) << "half of all are its own";
  EXPECT_NE(client(2), nullptr);
  reply(busy[2]);
  EXPECT_NE(client(1), nullptr) << "an idle one makes room";
  EXPECT_EQ(intake.counters().evicted, 1U);
  EXPECT_EQ(intake.counters().open, 5U);
}

/// They left while they were owed replies, which are given up before the second is over.
TEST_F(IntakeTest, who_has_left_is_in_nobodys_way) {
  for (int i = 0; i < 4; ++i) {
    const Connection c = client(1);
    ASSERT_NE(c, nullptr);
    intake.take(c, get("/a"));
    intake.end(c);
    c->begin_closing(now_ns());
  }
  EXPECT_EQ(intake.counters().open, 4U);
  EXPECT_NE(client(1), nullptr);
  EXPECT_EQ(intake.counters().open, 1U);
}

/// A test must break an invariant for this: a connection that is over, and that nobody releases.
TEST_F(IntakeTest, bytes_that_no_connection_holds_are_found) {
  const Connection slow = client(1), stuck = client(2);
  intake.take(slow, head(9'000) + std::string(3'000, 'x'));
  intake.take(stuck, head(9'000) + std::string(2'000, 'x'));
  const std::size_t all = slow->held.bytes() + stuck->held.bytes();
  const TimeNs begin = now_ns();
  for (int s = 0; s < 25; ++s) intake.reap(begin + s * kSecond);
  EXPECT_EQ(intake.counters().held_bytes, all);
  EXPECT_EQ(intake.counters().unowned_bytes, 0U) << "slow uploads are in order";
  stuck->begin_closing(begin);
  intake.reap(begin + 13 * kSecond);
  intake.reap(begin + 22 * kSecond);
  EXPECT_EQ(intake.counters().unowned_bytes, 0U) << "it may be on its way";
  intake.reap(begin + 23 * kSecond);
  EXPECT_EQ(intake.counters().unowned_bytes, stuck->held.bytes());
  EXPECT_GT(intake.counters().unowned_bytes, 2'000U);
  stuck->release();
  intake.reap(begin + 24 * kSecond);
  EXPECT_EQ(intake.counters().unowned_bytes, 0U);
  EXPECT_EQ(intake.counters().held_bytes, slow->held.bytes());
}

TEST_F(IntakeTest, the_last_owner_of_a_connection_gives_its_bytes_back) {
  const Connection c = client(1);
  intake.take(c, head(9'000) + std::string(3'000, 'x'));
  EXPECT_GT(c->use->bytes.load(), 3'000U);
  const std::shared_ptr<PeerUse> use = c->use;
  intake.end(c);
  EXPECT_EQ(use->bytes.load(), 0U);
  const auto ledger = std::make_shared<ByteLedger>();
  {
    ByteCharge charge;
    charge.enter(ledger, use);
    charge.set(7);
    EXPECT_EQ(ledger->total(), 7U);
    EXPECT_EQ(ledger->unowned({&charge}), 0U);
    EXPECT_EQ(ledger->unowned({}), 7U);
  }
  EXPECT_EQ(ledger->total(), 0U);
  EXPECT_EQ(use->bytes.load(), 0U);
}

class NarrowIntakeTest : public IntakeTest {
 protected:
  static IntakeOptions narrow() {
    IntakeOptions options = small();
    options.max_connections = 2;
    return options;
  }
  NarrowIntakeTest() : IntakeTest(narrow()) {}
};

TEST_F(NarrowIntakeTest, an_address_whose_only_connection_makes_room_keeps_its_record) {
  for (int i = 0; i < 3; ++i) {
    const Connection idle = client(1);
    ASSERT_NE(idle, nullptr);
    EXPECT_EQ(idle->use->connections.load(), 1U);
  }
  const Connection busy = client(1);
  intake.take(busy, get("/a"));
  EXPECT_EQ(client(1), nullptr);
  EXPECT_EQ(intake.counters().open, 1U);
}

TEST(RouteTable, methods_and_paths) {
  const auto nothing = [](const Connection&, const HttpRequest&) {};
  const RouteTable table({{"GET", "/", "/", nothing},
                          {"GET", "/a", "a", nothing},
                          {"POST", "/a", "a", nothing},
                          {"GET", "/m/:id", "m", nothing},
                          {"GET", "/m/:owner/:id", "mm", nothing}});
  const auto name = [&](const char* method, const char* path) {
    const auto found = table.find(method, path);
    return found.route == nullptr ? "-" + found.allowed
                                  : found.route->method + " " + found.route->name;
  };
  EXPECT_EQ(name("GET", "/"), "GET /");
  EXPECT_EQ(name("HEAD", "/a"), "GET a");
  EXPECT_EQ(name("POST", "//a/"), "POST a");
  EXPECT_EQ(name("GET", "/m/x"), "GET m");
  EXPECT_EQ(name("GET", "/m/x/y"), "GET mm");
  EXPECT_EQ(name("GET", "/m"), "-");
  EXPECT_EQ(name("GET", "/m/x/y/z"), "-");
  EXPECT_EQ(name("DELETE", "/a"), "-GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(name("POST", "/m/x"), "-GET, HEAD, OPTIONS");
  EXPECT_TRUE(table.find("DELETE", "/a").known_method);
  EXPECT_FALSE(table.find("BREW", "/a").known_method);
}

}  // namespace
}  // namespace baton
