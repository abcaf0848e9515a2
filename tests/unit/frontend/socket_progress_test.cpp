#include "frontend/succession/socket_progress.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/unit/frontend/tcp_pair.h"

namespace baton {
namespace {

/// A connection with what each side has done to it.
struct Pair {
  UniqueFd listener = listen_tcp();
  Client client{connect_tcp(port_of(listener.get()))};
  UniqueFd server = accept_tcp(listener.get());
  std::uint64_t written = 0;
  std::uint64_t consumed = 0;
  bool shut_by_server = false;
  bool shut_by_client = false;

  void expect_counts() const {
    const auto progress = socket_progress(server.get());
    ASSERT_TRUE(progress.ok()) << progress.status().message();
    EXPECT_FALSE(progress.value().gone);
    EXPECT_EQ(progress.value().written, written);
    EXPECT_EQ(progress.value().consumed, consumed);
    EXPECT_EQ(progress.value().fin_sent, shut_by_server);
    // A client's FIN may wait behind bytes that the server has no room for.
    EXPECT_TRUE(shut_by_client || !progress.value().fin_received);
  }
  bool gone() const {
    const auto progress = socket_progress(server.get());
    return progress.ok() && progress.value().gone;
  }
};

void send_request(Pair& pair, std::size_t bytes) {
  const std::string request(bytes, 'q');
  [[maybe_unused]] const auto n =
      ::send(pair.client.fd.get(), request.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void read_request(Pair& pair, std::size_t bytes) {
  std::string request(bytes, '\0');
  const ssize_t n = ::recv(pair.server.get(), request.data(), bytes, MSG_DONTWAIT);
  if (n > 0) pair.consumed += static_cast<std::uint64_t>(n);
}

void do_anything(Pair& pair, std::mt19937& random) {
  const std::size_t bytes = 1 + random() % (1U << (random() % 20));
  switch (random() % 20) {
    case 0:
      if (random() % 8 == 0) {
        ::shutdown(pair.server.get(), SHUT_WR);
        pair.shut_by_server = true;
      }
      return;
    case 1:
      if (random() % 8 == 0) {
        ::shutdown(pair.client.fd.get(), SHUT_WR);
        pair.shut_by_client = true;
      }
      return;
    case 2:  // until nothing more goes in
      if (random() % 8 == 0 && !pair.shut_by_server) {
        while (const std::size_t n = write_reply(pair.server.get(), pair.written, 1U << 18U))
          pair.written += n;
      }
      return;
    case 3:
    case 4:
    case 5:
      return send_request(pair, bytes);
    case 6:
    case 7:
    case 8:
      return read_request(pair, bytes);
    case 9:
    case 10:
    case 11:
    case 12:
      return pair.client.read(bytes);
    default:
      if (!pair.shut_by_server) pair.written += write_reply(pair.server.get(), pair.written, bytes);
  }
}

TEST(SocketProgress, CountsEveryByteWhateverBothSidesDo) {
  std::mt19937 random(7);
  for (int connection = 0; connection < 60; ++connection) {
    Pair pair;
    ASSERT_TRUE(pair.server);
    pair.expect_counts();
    for (int step = 0; step < 60; ++step) {
      do_anything(pair, random);
      if (pair.gone()) break;  // after the FINs of both sides nothing counts
      pair.expect_counts();
      ASSERT_FALSE(::testing::Test::HasFailure())
          << "connection " << connection << " step " << step;
    }
    pair.client.read(pair.written);
    EXPECT_FALSE(pair.client.wrong);
  }
}

TEST(SocketProgress, TheEndOfBothDirectionsCountsUntilTheLastByteIsTaken) {
  Pair pair;
  while (const std::size_t n = write_reply(pair.server.get(), pair.written, 1U << 18U))
    pair.written += n;
  send_request(pair, 1000);
  read_request(pair, 300);
  ::shutdown(pair.client.fd.get(), SHUT_WR);
  pair.shut_by_client = true;
  pair.expect_counts();
  ::shutdown(pair.server.get(), SHUT_WR);  // behind bytes that the client has no room for
  pair.shut_by_server = true;
  pair.expect_counts();
  pair.client.read(pair.written / 2);
  pair.expect_counts();
  pair.client.read_to_end();
  EXPECT_EQ(pair.client.got, pair.written);
  EXPECT_TRUE(pair.gone());
}

TEST(SocketProgress, AConnectionThatTheClientResetIsGone) {
  Pair pair;
  const linger at_once{1, 0};
  ::setsockopt(pair.client.fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  pair.client.fd.reset();
  EXPECT_TRUE(pair.gone());
}

TEST(SocketProgress, OtherDescriptorsAreErrors) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const UniqueFd in(pipe[0]), out(pipe[1]);
  EXPECT_FALSE(socket_progress(in.get()).ok());
  EXPECT_EQ(socket_cookie(in.get()), 0U);
  const UniqueFd local(::socket(AF_UNIX, SOCK_STREAM, 0));
  EXPECT_FALSE(socket_progress(local.get()).ok());
  EXPECT_FALSE(socket_progress(listen_tcp().get()).ok());
  EXPECT_FALSE(socket_progress(-1).ok());
}

TEST(SocketProgress, ACookieIsTheConnections) {
  const Pair one, other;
  const UniqueFd again(::dup(one.server.get()));
  EXPECT_NE(socket_cookie(one.server.get()), 0U);
  EXPECT_EQ(socket_cookie(again.get()), socket_cookie(one.server.get()));
  EXPECT_NE(socket_cookie(other.server.get()), socket_cookie(one.server.get()));
}

}  // namespace
}  // namespace baton
