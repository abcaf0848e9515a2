#include "ipc/zmq_channel.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <string_view>
#include <utility>
#include <zmq.hpp>

#include "ipc/spin.h"

namespace {

bool is_io_thread() {
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);
  return std::string_view(name).starts_with("ZMQbg/IO");
}

}  // namespace

/// Every message passes an I/O thread of libzmq at either end. They sleep here, and the library has
/// no option to let them look again for a while (ipc/spin.h): so this stands before the C library's
/// function, for them.
extern "C" __attribute__((visibility("default"))) int epoll_wait(int fd, epoll_event* events, int n,
                                                                 int timeout) {
  thread_local const bool io_thread = is_io_thread();
  if (!io_thread) return ::epoll_pwait(fd, events, n, timeout, nullptr);
  thread_local baton::Spin spin;
  const baton::TimeNs end = baton::now_ns() + timeout * baton::kMillisecond;
  int ready = 0;
  int left = timeout;  // the library's timers are not late for it
  while (ready == 0 && left != 0 && spin.again()) {
    ready = ::epoll_pwait(fd, events, n, 0, nullptr);
    if (timeout > 0)
      left =
          static_cast<int>(std::max<baton::TimeNs>(0, end - baton::now_ns()) / baton::kMillisecond);
  }
  if (ready == 0) ready = ::epoll_pwait(fd, events, n, left, nullptr);
  if (ready > 0) spin.heard();
  return ready;
}

namespace baton {
namespace {

constexpr int kHeartbeatMs = 2'000;
// A frozen peer is judged by the application; this only finds links that nobody closed.
constexpr int kHeartbeatTimeoutMs = 30'000;
constexpr int kReconnectMs = 20;
constexpr int kReconnectMaxMs = 500;

Status check_path(const std::string& path) {
  if (path.empty() || path.front() != '/') {
    return invalid("socket path '" + path + "' is not absolute");
  }
  if (path.size() > kMaxSocketPath) {
    return invalid("socket path '" + path + "' has " + std::to_string(path.size()) +
                   " bytes; a unix socket takes at most " + std::to_string(kMaxSocketPath) +
                   ": choose a shorter run_dir");
  }
  return {};
}

/// What ROUTER and DEALER share: one context (one I/O thread) each, so that a busy link does not
/// slow another one, and nothing lingers in the destructor.
class Socket {
 public:
  Socket(zmq::socket_type type, const ChannelOptions& options)
      : context_(1), socket_(context_, type), max_bytes_(options.max_message_bytes) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::sndhwm, options.send_queue);
    socket_.set(zmq::sockopt::rcvhwm, options.receive_queue);
    socket_.set(zmq::sockopt::maxmsgsize, options.max_message_bytes);
    socket_.set(zmq::sockopt::immediate, true);
    socket_.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
    socket_.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
    socket_.set(zmq::sockopt::heartbeat_ttl, kHeartbeatTimeoutMs);
  }

  zmq::socket_t& raw() { return socket_; }
  int fd() const { return static_cast<int>(socket_.get(zmq::sockopt::fd)); }
  bool readable() { return (socket_.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0; }
  const ChannelCounters& counters() const { return counters_; }

  bool too_large(std::string_view bytes) const {
    return std::cmp_greater(bytes.size(), max_bytes_);
  }

  /// zmq_send without an exception for what happens every day; 0 or errno.
  int send(std::string_view bytes, int flags) {
    while (zmq_send(socket_.handle(), bytes.data(), bytes.size(), flags | ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() != EINTR) {
        return zmq_errno();
      }
    }
    return 0;
  }

  void count_sent(std::string_view bytes) {
    ++counters_.messages_sent;
    counters_.bytes_sent += bytes.size();
  }

  /// The next frame of a message; false when there is none.
  bool receive_frame(std::string& into) {
    while (zmq_msg_recv(frame_.handle(), socket_.handle(), ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() != EINTR) {
        return false;
      }
    }
    into.assign(static_cast<const char*>(frame_.data()), frame_.size());
    return true;
  }

  bool more() const { return frame_.more(); }

  /// Reads the last frame of a message into `bytes`. False if more frames follow (no message of
  /// ours: they are thrown away) or there is none.
  bool receive_last(std::string& bytes) {
    if (!receive_frame(bytes)) {
      return false;
    }
    if (!more()) {
      ++counters_.messages_received;
      counters_.bytes_received += bytes.size();
      return true;
    }
    while (more() && receive_frame(bytes)) {
    }
    return false;
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  zmq::message_t frame_;
  std::int64_t max_bytes_;
  ChannelCounters counters_;
};

class ZmqServer final : public ServerChannel {
 public:
  explicit ZmqServer(const ChannelOptions& options) : socket_(zmq::socket_type::router, options) {
    socket_.raw().set(zmq::sockopt::router_mandatory, true);
    // A link that broke without our noticing and comes back under its id replaces the old one; it
    // would be mute otherwise.
    socket_.raw().set(zmq::sockopt::router_handover, true);
  }

  void bind(const std::string& path) { socket_.raw().bind("ipc://" + path); }

  SendResult send(const std::string& routing_id, std::string_view bytes) override {
    if (socket_.too_large(bytes)) {
      return SendResult::too_large;
    }
    switch (socket_.send(routing_id, ZMQ_SNDMORE)) {
      case 0:
        break;
      case EAGAIN:
        return SendResult::again;
      default:
        return SendResult::unreachable;
    }
    // The first frame took the place in the queue; the second one follows without a check.
    if (socket_.send(bytes, 0) != 0) {
      return SendResult::unreachable;
    }
    socket_.count_sent(bytes);
    return SendResult::ok;
  }

  bool receive(std::string& routing_id, std::string& bytes) override {
    while (socket_.receive_frame(routing_id)) {
      if (socket_.more() && socket_.receive_last(bytes)) {
        return true;
      }
    }
    return false;
  }

  int fd() const override { return socket_.fd(); }
  bool readable() override { return socket_.readable(); }
  ChannelCounters counters() const override { return socket_.counters(); }

 private:
  Socket socket_;
};

class ZmqClient final : public ClientChannel {
 public:
  ZmqClient(const std::string& routing_id, const ChannelOptions& options)
      : socket_(zmq::socket_type::dealer, options) {
    socket_.raw().set(zmq::sockopt::routing_id, routing_id);
    socket_.raw().set(zmq::sockopt::reconnect_ivl, kReconnectMs);
    socket_.raw().set(zmq::sockopt::reconnect_ivl_max, kReconnectMaxMs);
  }

  void connect(const std::string& path) { socket_.raw().connect("ipc://" + path); }

  SendResult send(std::string_view bytes) override {
    if (socket_.too_large(bytes)) {
      return SendResult::too_large;
    }
    if (socket_.send(bytes, 0) != 0) {
      return SendResult::again;
    }
    socket_.count_sent(bytes);
    return SendResult::ok;
  }

  bool receive(std::string& bytes) override {
    // A multi-part message is none of ours: skip it, but not what follows it.
    while (socket_.readable()) {
      if (socket_.receive_last(bytes)) {
        return true;
      }
    }
    return false;
  }

  int fd() const override { return socket_.fd(); }
  bool readable() override { return socket_.readable(); }
  ChannelCounters counters() const override { return socket_.counters(); }

 private:
  Socket socket_;
};

}  // namespace

Result<std::unique_ptr<ServerChannel>> bind_server(const LockFile& held,
                                                   const std::string& socket_path,
                                                   const ChannelOptions& options) {
  Status path = check_path(socket_path);
  if (!path.ok()) {
    return path;
  }
  const std::string directory = held.path().substr(0, held.path().find_last_of('/') + 1);
  if (socket_path.compare(0, directory.size(), directory) != 0 ||
      socket_path.find('/', directory.size()) != std::string::npos) {
    return invalid("socket " + socket_path + " is not in the directory that " + held.path() +
                   " locks");
  }
  try {
    auto server = std::make_unique<ZmqServer>(options);
    server->bind(socket_path);
    ::chmod(socket_path.c_str(), 0600);
    return std::unique_ptr<ServerChannel>(std::move(server));
  } catch (const std::exception& error) {
    return Status(ErrorCode::unavailable, "cannot bind " + socket_path + ": " + error.what());
  }
}

Result<std::unique_ptr<ClientChannel>> connect_client(const std::string& socket_path,
                                                      const std::string& routing_id,
                                                      const ChannelOptions& options) {
  Status path = check_path(socket_path);
  if (!path.ok()) {
    return path;
  }
  if (routing_id.empty() || routing_id.size() > 255 || routing_id.front() == '\0') {
    return invalid("a routing id has 1 to 255 bytes, the first not zero");
  }
  try {
    auto client = std::make_unique<ZmqClient>(routing_id, options);
    client->connect(socket_path);
    return std::unique_ptr<ClientChannel>(std::move(client));
  } catch (const std::exception& error) {
    return Status(ErrorCode::unavailable, "cannot connect to " + socket_path + ": " + error.what());
  }
}

std::string make_routing_id(const std::string& name, std::uint64_t incarnation) {
  static std::atomic<std::uint64_t> calls{0};
  return name.substr(0, 200) + "#" + std::to_string(incarnation) + "#" + std::to_string(++calls);
}

}  // namespace baton
