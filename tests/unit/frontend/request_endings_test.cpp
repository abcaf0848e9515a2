// However a connection ends, nothing of what it sent stays in any sum.
#include <cstddef>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "loop_fixture.h"

namespace baton {
namespace {

const std::string kKey = "Authorization: Bearer sk-0123456789abcdef\r\n";
const std::string kGenerate =
    R"({"prompt":"hello","max_length":100,"min_length":0,"temperature":0,"stream":true})";

std::string post(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
std::string get(const std::string& path, const std::string& headers) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}

class EndingsTest : public LoopTest {
 protected:
  explicit EndingsTest(bool journals = true)
      : LoopTest(Setup{.keys = "sk-0123456789abcdef\n", .journals = journals}) {}

  std::size_t held() { return http_->counters().held_bytes; }
  void expect_nothing_held(const std::string& ending) {
    const TimeNs until = now_ns() + kPatience;
    while ((held() != 0 || http_->counters().open != 0) && now_ns() < until) usleep(5000);
    EXPECT_EQ(held(), 0U) << ending;
    EXPECT_EQ(http_->counters().open, 0U) << ending;
    if (inputs_) {
      EXPECT_EQ(inputs_->used(), 0U) << ending;
    }
  }
  void wait_until_held(std::size_t bytes) {
    const TimeNs until = now_ns() + kPatience;
    while (held() < bytes && now_ns() < until) usleep(1000);
    EXPECT_GE(held(), bytes);
  }

  /// Sends `bytes`; then the client leaves at once, or after the whole reply.
  void all_endings();
};

class EndingsWithoutJournalTest : public EndingsTest {
 protected:
  EndingsWithoutJournalTest() : EndingsTest(false) {}
};

void EndingsTest::all_endings() {
  const std::string large(40'000, 'x');
  const std::string half = post("/generate", large, kKey).substr(0, 20'000);
  const std::map<std::string, std::string> replied = {
      {"Connection: close", get("/version", kKey + "Connection: close\r\n")},
      {"HTTP/1.0", "GET /version HTTP/1.0\r\n" + kKey + "\r\n"},
      {"400, framing", "POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n" + large},
      {"400, no JSON", post("/generate", large, kKey)},
      {"400, the host", get("/version", "Host: b\r\n") + large},
      {"401", post("/generate", large, "")},
      {"401, a wrong key", post("/generate", large, "Authorization: Bearer wrong\r\n")},
      {"404", post("/nothing", large, kKey)},
      {"405", post("/version", large, kKey)},
      {"413", "POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n" + large},
      {"431", get("/version", "A: " + large + "\r\n")},
      {"501", "BREW / HTTP/1.1\r\nHost: localhost\r\n" + kKey + "\r\n"},
      {"505", "GET / HTTP/3.0\r\n\r\n" + large},
      {"pipelined", get("/version", kKey) + get("/version", kKey) + get("/nothing", kKey) + large},
      {"a time-out in the head", "GET /version HTTP/1.1\r\nA: " + large.substr(0, 20'000)},
      {"a time-out in the body", half},
  };
  for (const auto& [ending, bytes] : replied) {
    Client client(http_->port());
    client.send_some(bytes);
    EXPECT_NE(client.read_all(), "") << ending;
    client.leave();
    expect_nothing_held(ending);
  }
  const std::map<std::string, std::string> left = {
      {"nothing", ""},
      {"empty lines", "\r\n\r\n"},
      {"in the head", half.substr(0, 50)},
      {"in the body", half},
      {"in a chunk", "POST /generate HTTP/1.1\r\nHost: localhost\r\n" + kKey +
                         "Transfer-Encoding: chunked\r\n\r\n9000\r\n" + large.substr(0, 30'000)},
      {"a body that is expected", "POST /generate HTTP/1.1\r\nHost: localhost\r\n" + kKey +
                                      "Expect: 100-continue\r\nContent-Length: 50\r\n\r\n"},
      {"a whole request", get("/version", kKey)},
      {"a large one", post("/v1/completions", "{\"prompt\":\"" + large + "\"}", kKey)},
      {"pipelined", get("/version", kKey) + get("/version", kKey) + half},
  };
  for (const auto& [ending, bytes] : left) {
    Client client(http_->port());
    client.send_some(bytes);
    if (ending == "in the body") wait_until_held(19'900);
    client.leave();
    expect_nothing_held("left: " + ending);
  }
}

TEST_F(EndingsTest, each_gives_back_what_it_held) { all_endings(); }
TEST_F(EndingsWithoutJournalTest, each_gives_back_what_it_held) { all_endings(); }

TEST_F(EndingsTest, clients_that_keep_their_connections) {
  Client client(http_->port());
  client.write(get("/version", kKey));
  client.read_until("}");
  wait_until_held(0);
  const TimeNs until = now_ns() + kPatience;
  while (held() != 0 && now_ns() < until) usleep(1000);
  EXPECT_EQ(held(), 0U) << "nothing of it is unfinished";
  client.write(get("/version", kKey) + post("/generate", kGenerate, kKey).substr(0, 100));
  wait_until_held(100);
  client.leave();
  expect_nothing_held("kept alive");
}

TEST_F(EndingsTest, streams) {
  for (const bool leaves : {true, false}) {
    for (const std::string& connection : {std::string(), std::string("Connection: close\r\n")}) {
      Client client(http_->port());
      client.write(post("/generate", kGenerate, kKey + connection));
      const Submit submit = scheduler.expect<Submit>();
      scheduler.tokens(submit, 0, ids("hello"));
      client.read_until("data: ");
      EXPECT_GT(held(), 0U) << "a successor would need it";
      if (leaves) {
        client.leave();
        scheduler.expect<Cancel>();
      } else {
        const Tokens more = ids(" world");
        scheduler.tokens(submit, static_cast<std::uint32_t>(ids("hello").size()), more, true);
        client.read_until("[DONE]");
        client.leave();
      }
      expect_nothing_held(leaves ? "left in a stream" : "a stream's end");
    }
  }
}

TEST_F(EndingsTest, the_metric_leaves_the_scrape_out) {
  const auto metric = [&] {
    Client client(http_->port());
    client.write(get("/metrics", kKey + "Connection: close\r\n"));
    const std::string text = client.read_all();
    std::smatch found;
    const bool any = std::regex_search(
        text, found, std::regex("\nbaton_held_request_bytes(?:\\{[^}]*\\})? ([0-9]+)\n"));
    EXPECT_TRUE(any);
    return any ? std::stoi(found[1]) : -1;
  };
  EXPECT_EQ(metric(), 0);
  Client half(http_->port());
  half.write(post("/generate", kGenerate, kKey).substr(0, 100));
  wait_until_held(100);
  EXPECT_EQ(metric(), 100);
}

}  // namespace
}  // namespace baton
