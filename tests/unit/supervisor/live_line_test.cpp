// The line of what goes on: from answers written by hand, and over a socket whose other end is this test.
#include "supervisor/live_line.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "supervisor/terminal.h"

namespace baton {
namespace {

std::string info(std::uint64_t epoch, int requests, int waiting, int tokens) {
  return R"({"epoch":)" + std::to_string(epoch) + R"(,"requests":)" + std::to_string(requests) +
         R"(,"waiting":)" + std::to_string(waiting) + R"(,"counters":{"tokens":)" +
         std::to_string(tokens) + "}}";
}

constexpr const char* kWorkers =
    R"([{"name":"prefill0","state":"ready","loading_percent":100},
        {"name":"decode0","state":"loading","loading_percent":40}])";
constexpr const char* kPools =
    R"([{"worker":"prefill0","part":"pool","total":200,"free":100,"owned":20,"cached":80,"fenced":0},
        {"worker":"prefill0","part":"host","total":100,"free":0,"owned":100,"cached":0,"fenced":0},
        {"worker":"decode0","part":"pool","total":0,"free":0,"owned":0,"cached":0,"fenced":0}])";

TEST(LiveText, SaysWhatRunsHowFastAndWhere) {
  std::optional<TokensAt> before;
  EXPECT_EQ(live_text({info(1, 5, 2, 100), "[]", "[]"}, 10, before),
            "3 running, 2 waiting | 0 tokens/s");
  EXPECT_EQ(live_text({info(1, 5, 2, 350), kWorkers, kPools}, 10.5, before),
            "3 running, 2 waiting | 500 tokens/s | KV 10 % prefill0, 0 % decode0 | decode0 loading 40 %");
}

TEST(LiveText, ANewSchedulerCountsFromZero) {
  std::optional<TokensAt> before;
  live_text({info(1, 0, 0, 1000), "[]", "[]"}, 10, before);
  EXPECT_EQ(live_text({info(2, 0, 0, 50), "[]", "[]"}, 11, before),
            "0 running, 0 waiting | 0 tokens/s");
  EXPECT_EQ(live_text({info(2, 0, 0, 60), "[]", "[]"}, 12, before),
            "0 running, 0 waiting | 10 tokens/s");
}

TEST(LiveText, AnswersThatAreNoneGiveNothing) {
  std::optional<TokensAt> before;
  for (const char* wrong : {"", "{}", "no such command", "[1]", R"({"epoch":"x"})"}) {
    EXPECT_FALSE(live_text({wrong, "[]", "[]"}, 1, before)) << wrong;
    EXPECT_FALSE(live_text({info(1, 0, 0, 0), wrong[0] ? "{\"a\":1}" : wrong, "[]"}, 1, before));
  }
}

class LiveLineSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("live" + std::to_string(::getpid()));
    listen();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void listen() {
    std::filesystem::remove(path_);
    server_.reset(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(server_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(server_.get(), 4), 0);
  }
  std::string hear(int fd) {
    char text[256];
    const ssize_t n = ::recv(fd, text, sizeof text, 0);
    return {text, static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
  }
  void say(int fd, const std::string& text) {
    ASSERT_EQ(::send(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }

  std::filesystem::path path_;
  UniqueFd server_;
};

TEST_F(LiveLineSocket, AsksOnceASecondOverOneConnection) {
  LiveLine line(path_);
  EXPECT_FALSE(line.look(0));
  UniqueFd scheduler(::accept(server_.get(), nullptr, nullptr));
  const std::string questions = "show info json\nshow workers json\nshow kv json\n";
  EXPECT_EQ(hear(scheduler.get()), questions);
  say(scheduler.get(), info(1, 1, 0, 5) + "\n\n[]");
  EXPECT_FALSE(line.look(0.1)) << "only a part has come";
  say(scheduler.get(), "\n\n[]\n\n");
  EXPECT_EQ(line.look(0.2), "1 running, 0 waiting | 0 tokens/s");
  EXPECT_FALSE(line.look(0.9));
  EXPECT_FALSE(line.look(1.0));
  EXPECT_EQ(hear(scheduler.get()), questions);
}

TEST_F(LiveLineSocket, ASchedulerThatIsSilentOrGoneIsSaid) {
  LiveLine line(path_);
  line.look(0);
  UniqueFd scheduler(::accept(server_.get(), nullptr, nullptr));
  EXPECT_EQ(line.look(1.0), "") << "asked, and silent for a second";
  line.look(2.0);  // asks over a new connection
  UniqueFd next(::accept(server_.get(), nullptr, nullptr));
  next.reset();
  EXPECT_EQ(line.look(2.1), "") << "it hung up";
  server_.reset();
  EXPECT_EQ(line.look(3.0), "") << "nobody listens";
  listen();
  EXPECT_FALSE(line.look(4.0));
  UniqueFd another(::accept(server_.get(), nullptr, nullptr));
  EXPECT_NE(hear(another.get()), "");
}

TEST_F(LiveLineSocket, AnAnswerWithoutEndIsGivenUp) {
  LiveLine line(path_);
  line.look(0);
  UniqueFd scheduler(::accept(server_.get(), nullptr, nullptr));
  const std::string much(60'000, 'x');
  std::optional<std::string> said;
  int sent = 0;
  for (; sent < 100 && !said; ++sent) {
    if (::send(scheduler.get(), much.data(), much.size(), MSG_NOSIGNAL) < 0) break;
    said = line.look(0.5);
  }
  EXPECT_EQ(said, "");
  EXPECT_LT(sent, 30) << "more than 1.8 MB was kept";
}

TEST(CutToColumns, CountsCodePointsAndKeepsThemWhole) {
  EXPECT_EQ(cut_to_columns("abc", 5), "abc");
  EXPECT_EQ(cut_to_columns("abc", 2), "ab");
  EXPECT_EQ(cut_to_columns("äöü", 2), "äö");
  EXPECT_EQ(cut_to_columns("äöü", 0), "");
}

TEST(LiveLines, EachStandsBehindItsName) {
  LiveLines lines;
  lines.add("small", "/nowhere/small.admin.sock");
  lines.add("big", "/nowhere/big.admin.sock");
  EXPECT_EQ(lines.look(1),
            "small: the scheduler does not answer || big: the scheduler does not answer");
  EXPECT_EQ(lines.look(1.5), std::nullopt) << "nobody has news";
  lines.note("small", "small.mixed0 cannot run: no such folder");
  EXPECT_EQ(lines.look(1.6),
            "big: the scheduler does not answer || "
            "small: small.mixed0 cannot run: no such folder | the scheduler does not answer")
      << "what serves comes first";
  lines.note("small", "small.mixed0 cannot run: no such folder");
  EXPECT_EQ(lines.look(1.7), std::nullopt) << "nor is this news";
  lines.note("small", "");
  EXPECT_EQ(lines.look(1.8),
            "small: the scheduler does not answer || big: the scheduler does not answer");
  LiveLines one;
  one.add("", "/nowhere/admin.sock");
  EXPECT_EQ(one.look(1), "the scheduler does not answer");
}

}  // namespace
}  // namespace baton
