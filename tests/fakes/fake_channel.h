// A server and any number of clients in one process, without sockets: what is sent is there at
// once. For tests of loops that live on channels. One thread.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "ipc/channel.h"
#include "ipc/process.h"

namespace baton::testing {

/// The wire between them; shared by both ends. A test may look into it, cut it, or lose messages.
struct FakeWire {
  struct Peer {
    std::deque<std::string> to_client;
    bool connected = true;
    int client_fd = -1;  // the client's eventfd, owned by the client
  };
  std::deque<std::pair<std::string, std::string>> to_server;  // peer, bytes
  std::map<std::string, Peer> peers;
  std::size_t queue_limit = 1000;  // messages a direction (and peer); beyond: `again`
  int server_fd = -1;

  static void signal(int fd) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(fd, &one, sizeof one);
  }
  static void clear(int fd) {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = ::read(fd, &count, sizeof count);
  }
};

class FakeServer final : public ServerChannel {
 public:
  explicit FakeServer(std::shared_ptr<FakeWire> wire)
      : wire_(std::move(wire)), fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    wire_->server_fd = fd_.get();
  }
  ~FakeServer() override {
    wire_->server_fd = -1;
    wire_->to_server.clear();
  }

  SendResult send(const std::string& peer, std::string_view bytes) override {
    const auto found = wire_->peers.find(peer);
    if (found == wire_->peers.end() || !found->second.connected) {
      return SendResult::unreachable;
    }
    if (found->second.to_client.size() >= wire_->queue_limit) {
      return SendResult::again;
    }
    found->second.to_client.emplace_back(bytes);
    FakeWire::signal(found->second.client_fd);
    ++counters_.messages_sent;
    counters_.bytes_sent += bytes.size();
    return SendResult::ok;
  }

  bool receive(std::string& peer, std::string& bytes) override {
    if (wire_->to_server.empty()) {
      FakeWire::clear(fd_.get());
      return false;
    }
    peer = std::move(wire_->to_server.front().first);
    bytes = std::move(wire_->to_server.front().second);
    wire_->to_server.pop_front();
    ++counters_.messages_received;
    counters_.bytes_received += bytes.size();
    return true;
  }

  int fd() const override { return fd_.get(); }
  bool readable() override { return !wire_->to_server.empty(); }
  ChannelCounters counters() const override { return counters_; }

 private:
  std::shared_ptr<FakeWire> wire_;
  UniqueFd fd_;
  ChannelCounters counters_;
};

class FakeClient final : public ClientChannel {
 public:
  FakeClient(std::shared_ptr<FakeWire> wire, std::string id)
      : wire_(std::move(wire)), id_(std::move(id)), fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    wire_->peers[id_].client_fd = fd_.get();
  }
  ~FakeClient() override { wire_->peers.erase(id_); }

  SendResult send(std::string_view bytes) override {
    if (wire_->server_fd < 0 || !self().connected ||
        wire_->to_server.size() >= wire_->queue_limit) {
      return SendResult::again;
    }
    wire_->to_server.emplace_back(id_, bytes);
    FakeWire::signal(wire_->server_fd);
    ++counters_.messages_sent;
    counters_.bytes_sent += bytes.size();
    return SendResult::ok;
  }

  bool receive(std::string& bytes) override {
    if (self().to_client.empty()) {
      FakeWire::clear(fd_.get());
      return false;
    }
    bytes = std::move(self().to_client.front());
    self().to_client.pop_front();
    ++counters_.messages_received;
    counters_.bytes_received += bytes.size();
    return true;
  }

  int fd() const override { return fd_.get(); }
  bool readable() override { return !self().to_client.empty(); }
  ChannelCounters counters() const override { return counters_; }

 private:
  FakeWire::Peer& self() { return wire_->peers[id_]; }

  std::shared_ptr<FakeWire> wire_;
  std::string id_;
  UniqueFd fd_;
  ChannelCounters counters_;
};

}  // namespace baton::testing
