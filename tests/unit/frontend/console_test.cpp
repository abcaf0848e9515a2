// The console: who may see it, who reads it how slowly, and whom its front end asks.
#include "frontend/http/console.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "frontend/core/live_feed.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/frontend/clients_fixture.h"

namespace baton {
namespace {

TEST(Console, IsOffWhereTheNetworkAsksAndNoKeyProtectsIt) {
  EXPECT_FALSE(console_refusal(/*local=*/true, /*keys=*/false));
  EXPECT_FALSE(console_refusal(true, true));
  EXPECT_FALSE(console_refusal(false, true));
  const auto refusal = console_refusal(false, false);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 403);
  EXPECT_NE(refusal->message.find("frontend.api_keys"), std::string::npos);
}

class WatchersTest : public ClientsTest {
 protected:
  std::shared_ptr<ClientConnection> connect(UniqueFd* client) {
    auto connection = ClientsTest::connect(client);
    writer.open(connection, now);
    return connection;
  }

  StreamWriter writer{{.buffer_bytes = 1 << 16}};
  Watchers watchers{writer};
};

TEST_F(WatchersTest, AllGetTheSame) {
  UniqueFd one, other;
  watchers.add(connect(&one), {}, "me", now);
  watchers.add(connect(&other), {}, "me", now);
  EXPECT_NE(read_all(one).find("text/event-stream"), std::string::npos);
  read_all(other);
  watchers.tell("{}", now);
  EXPECT_EQ(read_all(one), "a\r\ndata: {}\n\n\r\n");
  EXPECT_EQ(read_all(other), "a\r\ndata: {}\n\n\r\n");
  watchers.end_all(now);
  EXPECT_EQ(read_all(one), "0\r\n\r\n");
  EXPECT_TRUE(watchers.empty());
}

TEST_F(WatchersTest, WhoHasNotReadTheLastOneMissesTheNext) {
  UniqueFd client;
  const auto slow = connect(&client);
  watchers.add(slow, {}, "me", now);
  const std::string large(12'000, 'x');
  watchers.tell(large, now);
  const std::size_t queued = writer.queued(slow->id());
  ASSERT_GT(queued, 0U);
  for (int i = 0; i < 100; ++i) watchers.tell(large, now);
  EXPECT_EQ(writer.queued(slow->id()), queued);
  while (writer.queued(slow->id()) > 0) {
    ASSERT_FALSE(read_all(client).empty());
    writer.poll(now);
  }
  read_all(client);
  watchers.tell("{}", now);
  EXPECT_EQ(read_all(client), "a\r\ndata: {}\n\n\r\n");
}

TEST_F(WatchersTest, AHeadAloneIsNobodyWhoWatches) {
  UniqueFd client;
  ReplyFrame frame;
  frame.head_only = true;
  watchers.add(connect(&client), frame, "me", now);
  EXPECT_TRUE(watchers.empty());
  EXPECT_TRUE(read_all(client).ends_with("\r\n\r\n"));
}

TEST_F(WatchersTest, AreBounded) {
  std::vector<UniqueFd> clients(Watchers::kMost);
  for (UniqueFd& client : clients) {
    EXPECT_LT(watchers.count(), Watchers::kMost);
    watchers.add(connect(&client), {}, "me", now);
  }
  EXPECT_EQ(watchers.count(), Watchers::kMost);
  EXPECT_TRUE(watchers.left(id));
  EXPECT_FALSE(watchers.left(id));
  EXPECT_LT(watchers.count(), Watchers::kMost);
}

TEST_F(WatchersTest, OneCallerCannotHoldEveryPlace) {
  Watchers others{writer};
  const std::vector<Watchers*> all = {&watchers, &others};
  std::vector<UniqueFd> clients(Watchers::kMost);
  for (std::size_t i = 0; i < clients.size(); ++i) {
    ASSERT_TRUE(make_place(all, "many", now));
    (i % 2 == 0 ? others : watchers).add(connect(&clients[i]), {}, "many", now);
    read_all(clients[i]);
  }
  EXPECT_FALSE(make_place(all, "many", now));
  UniqueFd few;
  ASSERT_TRUE(make_place(all, "few", now)) << "the other gives one up";
  watchers.add(connect(&few), {}, "few", now);
  EXPECT_EQ(watchers.count() + others.count(), Watchers::kMost);
  EXPECT_EQ(read_all(clients[0]), "0\r\n\r\n") << "its oldest";
  EXPECT_EQ(read_all(clients[1]), "");
  EXPECT_FALSE(make_place(all, "many", now));
  for (std::size_t i = 1; i < Watchers::kMost / 2; ++i) {
    UniqueFd& client = clients[i - 1];
    ASSERT_TRUE(make_place(all, "few", now));
    watchers.add(connect(&client), {}, "few", now);
  }
  EXPECT_FALSE(make_place(all, "few", now)) << "they have as many";
}

/// Answers every line on a unix socket, and counts them.
class Scheduler {
 public:
  explicit Scheduler(const std::string& path, std::string answer) : answer_(std::move(answer)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 4), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~Scheduler() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int asked() const { return asked_.load(); }

 private:
  void run() {
    while (true) {
      UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      if (!client) return;
      char line[256];
      while (::read(client.get(), line, sizeof line) > 0) {
        asked_.fetch_add(1);
        const std::string text = answer_ + "\n\n";
        if (::write(client.get(), text.data(), text.size()) < 0) break;
      }
    }
  }
  std::string answer_;
  UniqueFd listener_;
  std::atomic<int> asked_{0};
  std::thread thread_;
};

std::string next(LiveFeed& feed) {
  for (int i = 0; i < 2000; ++i) {
    if (const auto line = feed.take()) return *line;
    usleep(5000);
  }
  return "nothing came";
}

TEST(LiveFeed, AsksOnlyWhileSomebodyWatches) {
  const TempDir folder;
  const std::string path = folder / "admin.sock";
  Scheduler scheduler(path, "{\"at_s\":1}");
  LiveFeed feed({.admin_socket = path, .every = 10 * kMillisecond});
  usleep(50'000);
  EXPECT_EQ(scheduler.asked(), 0);
  feed.watch(true);
  EXPECT_EQ(next(feed), "{\"at_s\":1}");
  EXPECT_EQ(next(feed), "{\"at_s\":1}");
  feed.watch(false);
  EXPECT_EQ(feed.take(), nullptr);
  usleep(50'000);
  const int asked = scheduler.asked();
  usleep(100'000);
  EXPECT_EQ(scheduler.asked(), asked);
}

TEST(LiveFeed, TellsThatNobodyAnswers) {
  const TempDir folder;
  const std::string path = folder / "admin.sock";
  LiveFeed feed({.admin_socket = path, .every = 10 * kMillisecond, .patience = 50 * kMillisecond});
  feed.watch(true);
  EXPECT_EQ(next(feed), LiveFeed::kAway);
  const Scheduler scheduler(path, "error: what?");
  EXPECT_EQ(next(feed), LiveFeed::kAway);
}

}  // namespace
}  // namespace baton
