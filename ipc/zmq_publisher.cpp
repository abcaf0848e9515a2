#include "ipc/zmq_publisher.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>
#include <zmq.hpp>

namespace baton {
namespace {

constexpr std::uint64_t kEnd = ~std::uint64_t{0};  // -1
/// Messages of one replay in one call: the caller has other things to do.
constexpr int kBurst = 256;

/// Subscriptions of one connection that are taken in one call; more wait in its socket.
constexpr int kSubscriptionsAtOnce = 64;
/// Longest message of a subscriber: the name of a command and a topic.
constexpr std::int64_t kMostAsked = 1024;
constexpr const char* kMonitor = "inproc://subscribers";

/// Both addresses of a connection; empty: it is none.
std::string ends_of(int fd) {
  std::string ends;
  for (const bool peer : {false, true}) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if ((peer ? ::getpeername(fd, generic, &size) : ::getsockname(fd, generic, &size)) != 0)
      return {};
    ends.append(reinterpret_cast<const char*>(&address),
                std::min<std::size_t>(size, sizeof address));
  }
  return ends;
}

std::string big_endian(std::uint64_t number) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; --i, number >>= 8U)
    bytes[static_cast<std::size_t>(i)] = static_cast<char>(number & 0xFFU);
  return bytes;
}

std::uint64_t from_big_endian(std::string_view bytes) {
  std::uint64_t number = 0;
  for (const char c : bytes) number = number << 8U | static_cast<unsigned char>(c);
  return number;
}

class ZmqPublisher final : public Publisher {
 public:
  explicit ZmqPublisher(const PublisherLimits& limits)
      : limits_(limits),
        context_(1),
        pub_(context_, zmq::socket_type::xpub),
        monitor_(context_, zmq::socket_type::pair) {
    pub_.set(zmq::sockopt::linger, 0);
    pub_.set(zmq::sockopt::sndhwm, static_cast<int>(limits.messages));
    pub_.set(zmq::sockopt::rcvhwm, kSubscriptionsAtOnce);
    pub_.set(zmq::sockopt::maxmsgsize, kMostAsked);
    pub_.set(zmq::sockopt::xpub_verbose, true);  // whoever else has the topic
    monitor_.set(zmq::sockopt::linger, 0);
    monitor_.set(zmq::sockopt::rcvhwm, 0);  // none may be lost; connections are what makes them
  }
  ~ZmqPublisher() override { (void)zmq_socket_monitor(pub_.handle(), nullptr, 0); }
  ZmqPublisher(const ZmqPublisher&) = delete;
  ZmqPublisher& operator=(const ZmqPublisher&) = delete;

  void bind(const std::string& endpoint, const std::string& replay_endpoint) {
    if (zmq_socket_monitor(pub_.handle(), kMonitor, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) !=
        0)
      throw zmq::error_t();
    monitor_.connect(kMonitor);
    pub_.bind(endpoint);
    if (replay_endpoint.empty()) return;
    replay_.emplace(context_, zmq::socket_type::router);
    replay_->set(zmq::sockopt::linger, 0);
    replay_->set(zmq::sockopt::router_mandatory, true);
    replay_->set(zmq::sockopt::sndhwm, kBurst * 4);
    replay_->set(zmq::sockopt::rcvhwm, 64);
    replay_->set(zmq::sockopt::maxmsgsize, std::int64_t{1024});
    replay_->bind(replay_endpoint);
  }

  void publish(const std::string& topic, std::string payload) override {
    const std::uint64_t number = first_ + kept_.size();
    (void)send(pub_, {topic, big_endian(number), payload});
    bytes_ += payload.size();
    kept_.push_back(std::move(payload));
    while (kept_.size() > limits_.messages || (bytes_ > limits_.bytes && kept_.size() > 1)) {
      bytes_ -= kept_.front().size();
      kept_.pop_front();
      ++first_;
    }
  }

  void serve_subscribers() override {
    take_connections();
    take_subscriptions();
    // That it was closed shows by an event of its own. Until that comes, the descriptor may already
    // be another's.
    for (const auto& [fd, subscriber] : subscribers_) {
      if (subscriber.refused && ends_of(fd) == subscriber.ends) ::shutdown(fd, SHUT_RDWR);
    }
  }

  void serve_replays() override {
    if (!replay_) return;
    take_asked();
    std::erase_if(replays_, [this](Replay& replay) { return !go_on(replay); });
  }

 private:
  struct Subscriber {
    std::size_t topics = 0;
    std::size_t bytes = 0;
    bool refused = false;
    std::string ends;
  };
  struct Replay {
    std::string client;
    std::uint64_t next = 0;
  };

  /// 0 or errno. A message whose first frame was taken is taken whole.
  static int send(zmq::socket_t& socket, const std::vector<std::string_view>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      while (zmq_send(socket.handle(), frames[i].data(), frames[i].size(),
                      ZMQ_DONTWAIT | more) < 0) {
        if (zmq_errno() != EINTR) return zmq_errno();
      }
    }
    return 0;
  }

  /// An event is two frames: its number (2 bytes) and value (4), and the endpoint.
  void take_connections() {
    while ((monitor_.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) {
      zmq::message_t event;
      zmq::message_t endpoint;
      if (zmq_msg_recv(event.handle(), monitor_.handle(), ZMQ_DONTWAIT) < 0) return;
      if (event.more()) (void)zmq_msg_recv(endpoint.handle(), monitor_.handle(), ZMQ_DONTWAIT);
      if (event.size() < 6) continue;
      std::uint16_t what = 0;
      std::int32_t fd = 0;
      std::memcpy(&what, event.data(), sizeof what);
      std::memcpy(&fd, static_cast<const char*>(event.data()) + sizeof what, sizeof fd);
      if (what == ZMQ_EVENT_DISCONNECTED) {
        subscribers_.erase(fd);
      } else {
        const bool refused = subscribers_.size() >= limits_.subscribers;
        subscribers_[fd] = {0, 0, refused, ends_of(fd)};
      }
    }
  }

  /// A subscription is the byte 1 and the topic, 0 takes it back.
  void take_subscriptions() {
    for (int taken = 0; (pub_.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0; ++taken) {
      zmq::message_t message;
      if (zmq_msg_recv(message.handle(), pub_.handle(), ZMQ_DONTWAIT) < 0) return;
      const int fd = zmq_msg_get(message.handle(), ZMQ_SRCFD);
      const auto at = subscribers_.find(fd);
      if (at == subscribers_.end() || message.size() == 0) continue;
      Subscriber& subscriber = at->second;
      const bool asks = *static_cast<const char*>(message.data()) == 1;
      if (!asks) continue;  // a topic that comes and goes counts each time
      ++subscriber.topics;
      subscriber.bytes += message.size() - 1;
      subscriber.refused = subscriber.refused || subscriber.topics > limits_.topics ||
                           subscriber.bytes > limits_.topic_bytes;
    }
  }

  void take_asked() {
    while ((replay_->get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) {
      std::vector<std::string> frames;
      bool more = true;
      while (more) {
        zmq::message_t frame;
        if (zmq_msg_recv(frame.handle(), replay_->handle(), ZMQ_DONTWAIT) < 0) return;
        more = frame.more();
        if (frames.size() < 4) frames.push_back(frame.to_string());
      }
      if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) continue;
      if (replays_.size() == limits_.replays) continue;
      replays_.push_back({std::move(frames[0]), from_big_endian(frames[2])});
    }
  }

  /// False: it is over.
  bool go_on(Replay& replay) {
    replay.next = std::max(replay.next, first_);
    for (int i = 0; i < kBurst; ++i) {
      const bool end = replay.next >= first_ + kept_.size();
      const std::string_view payload =
          end ? std::string_view()
              : std::string_view(kept_[static_cast<std::size_t>(replay.next - first_)]);
      const int error =
          send(*replay_, {replay.client, "", big_endian(end ? kEnd : replay.next), payload});
      if (error == EAGAIN) return true;
      if (error != 0 || end) return false;
      ++replay.next;
    }
    return true;
  }

  PublisherLimits limits_;
  zmq::context_t context_;
  zmq::socket_t pub_;
  zmq::socket_t monitor_;                            // of its connections
  std::unordered_map<int, Subscriber> subscribers_;  // by descriptor
  std::optional<zmq::socket_t> replay_;
  std::deque<std::string> kept_;
  std::uint64_t first_ = 0;  // number of the oldest one kept
  std::size_t bytes_ = 0;
  std::vector<Replay> replays_;
};

}  // namespace

Result<std::unique_ptr<Publisher>> bind_publisher(const std::string& endpoint,
                                                  const std::string& replay_endpoint,
                                                  const PublisherLimits& limits) {
  try {
    auto publisher = std::make_unique<ZmqPublisher>(limits);
    publisher->bind(endpoint, replay_endpoint);
    return std::unique_ptr<Publisher>(std::move(publisher));
  } catch (const std::exception& error) {
    return Status(ErrorCode::unavailable, "cannot bind " + endpoint +
                                              (replay_endpoint.empty() ? "" : " and ") +
                                              replay_endpoint + ": " + error.what());
  }
}

}  // namespace baton
