#include "ipc/zmq_publisher.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <exception>
#include <optional>
#include <utility>
#include <vector>
#include <zmq.hpp>

namespace baton {
namespace {

constexpr std::uint64_t kEnd = ~std::uint64_t{0};  // -1
/// Messages of one replay in one call: the caller has other things to do.
constexpr int kBurst = 256;

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
      : limits_(limits), context_(1), pub_(context_, zmq::socket_type::pub) {
    pub_.set(zmq::sockopt::linger, 0);
    pub_.set(zmq::sockopt::sndhwm, static_cast<int>(limits.messages));
  }

  void bind(const std::string& endpoint, const std::string& replay_endpoint) {
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

  void serve_replays() override {
    if (!replay_) return;
    take_asked();
    std::erase_if(replays_, [this](Replay& replay) { return !go_on(replay); });
  }

 private:
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
