// What a subscriber may cost whoever publishes.
#include "ipc/zmq_publisher.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "ipc/process.h"

namespace baton {
namespace {

class PublisherTest : public testing::Test {
 protected:
  void open(const PublisherLimits& limits) {
    endpoint_ = "ipc:///tmp/baton-publisher-" + std::to_string(::getpid());
    auto bound = bind_publisher(endpoint_, "", limits);
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    publisher_ = std::move(bound).value();
  }
  ~PublisherTest() override { ::unlink(endpoint_.substr(6).c_str()); }

  std::unique_ptr<zmq::socket_t> subscriber(const std::vector<std::string>& topics) {
    auto socket = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::sub);
    socket->set(zmq::sockopt::linger, 0);
    socket->set(zmq::sockopt::sndhwm, 0);
    socket->set(zmq::sockopt::reconnect_ivl, -1);  // what is closed stays closed
    for (const std::string& topic : topics) socket->set(zmq::sockopt::subscribe, topic);
    socket->connect(endpoint_);
    return socket;
  }
  /// Publishes for a while; how many messages the socket got.
  int heard(zmq::socket_t& socket, TimeNs how_long = kSecond) {
    int count = 0;
    for (const TimeNs end = now_ns() + how_long; now_ns() < end;) {
      publisher_->publish("kv@a", "payload");
      publisher_->serve_subscribers();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      zmq::message_t message;
      while (socket.recv(message, zmq::recv_flags::dontwait)) ++count;
    }
    return count;
  }

  std::string endpoint_;
  std::unique_ptr<Publisher> publisher_;
  zmq::context_t context_{1};
};

TEST_F(PublisherTest, SubscriptionsHaveABound) {
  open({});
  const auto honest = subscriber({"kv@"});
  EXPECT_GT(heard(*honest), 0);
  const std::size_t before = ::mallinfo2().uordblks;
  std::vector<std::string> topics;
  for (int i = 0; i < 20'000; ++i) {
    std::string topic = std::to_string(i) + "@";
    topic.resize(200, static_cast<char>('a' + i % 26));
    topics.push_back(std::move(topic));
  }
  auto greedy = subscriber(topics);
  EXPECT_GT(heard(*honest, 2 * kSecond), 0);
  greedy.reset();  // its own side of them
  EXPECT_GT(heard(*honest), 0);
  EXPECT_LT(::mallinfo2().uordblks, before + (std::size_t{16} << 20U));
}

TEST_F(PublisherTest, WhoAsksForMoreThanItMayIsCutOff) {
  PublisherLimits limits;
  limits.topics = 4;
  open(limits);
  const auto few = subscriber({"kv@", "b", "c", "d"});
  const auto many = subscriber({"kv@", "b", "c", "d", "e"});
  const auto long_topic = subscriber({"kv@", std::string(5000, 'x')});
  (void)heard(*few);
  (void)heard(*many);
  (void)heard(*long_topic);
  EXPECT_GT(heard(*few), 0);
  EXPECT_EQ(heard(*many), 0);
  EXPECT_EQ(heard(*long_topic), 0);
}

TEST_F(PublisherTest, SubscribersHaveABound) {
  PublisherLimits limits;
  limits.subscribers = 2;
  open(limits);
  auto first = subscriber({"kv@"});
  EXPECT_GT(heard(*first), 0);
  const auto second = subscriber({"kv@"});
  EXPECT_GT(heard(*second), 0);
  const auto third = subscriber({"kv@"});
  (void)heard(*third);
  EXPECT_EQ(heard(*third), 0);
  first.reset();
  (void)heard(*second);
  const auto fourth = subscriber({"kv@"});
  EXPECT_GT(heard(*fourth), 0) << "the first has left its place";
}

}  // namespace
}  // namespace baton
