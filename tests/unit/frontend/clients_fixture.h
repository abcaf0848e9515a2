// A connection and the client's end of it, for what writes to clients.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "frontend/http/client_connection.h"

namespace baton {

class ClientsTest : public ::testing::Test {
 protected:
  /// Begins a reply on it. What the kernel takes for a client that does not read is little.
  std::shared_ptr<ClientConnection> connect(UniqueFd* client) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    const int size = 4096;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    client->reset(ends[1]);
    auto connection =
        std::make_shared<ClientConnection>(++id, UniqueFd(ends[0]), FramingLimits{}, now);
    connection->begin_reply(now);
    return connection;
  }
  std::string read_all(const UniqueFd& client) {
    std::string text(1 << 20, '\0');
    const ssize_t n = ::read(client.get(), text.data(), text.size());
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }

  TimeNs now = 1000 * kSecond;
  std::uint64_t id = 0;
};

}  // namespace baton
