// The exporter of spans beside collectors that take, refuse, hang or are not there; and which
// requests are told of.
#include "frontend/http/otlp_exporter.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "ipc/process.h"

namespace baton {
namespace {

using namespace std::chrono_literals;

ExplainedRequest request(const std::string& id) {
  ExplainedRequest made;
  made.request_id = id;
  made.asked = "POST /v1/completions";
  made.end = "stop";
  made.status = 200;
  return made;
}

/// A collector that answers as it is told to.
struct Collector {
  PostJson post() {
    return [this](const std::string& body, const std::atomic<bool>&) {
      std::unique_lock lock(mutex);
      bodies.push_back(body);
      changed.notify_all();
      changed.wait(lock, [this] { return !held; });
      if (answers.empty()) return PostOutcome{200, "", 0};
      const PostOutcome outcome = answers.front();
      answers.erase(answers.begin());
      return outcome;
    };
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, 20s, [&] { return bodies.size() >= count; }));
  }
  void release() {
    const std::lock_guard lock(mutex);
    held = false;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  std::vector<PostOutcome> answers;
  std::vector<std::string> bodies;
};

OtlpOptions quick() {
  OtlpOptions options;
  options.interval = 5 * kMillisecond;
  options.backoff = 5 * kMillisecond;
  return options;
}

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++found;
  return found;
}

TEST(OtlpExporter, SeveralRequestsGoInOneBody) {
  Collector collector;
  OtlpOptions options = quick();
  options.interval = 10 * kSecond;
  options.batch = 3;
  OtlpExporter exporter(options, collector.post());
  for (int i = 0; i < 3; ++i) exporter.add(request("r" + std::to_string(i)), {});
  collector.wait_for(1);
  exporter.stop();
  ASSERT_EQ(collector.bodies.size(), 1U);
  EXPECT_EQ(count_of(collector.bodies[0], "\"kind\":2"), 3U);
  EXPECT_EQ(exporter.counters().exported, 3U);
}

TEST(OtlpExporter, WhatFindsNoRoomIsDroppedAndNobodyWaits) {
  Collector collector;
  collector.held = true;
  OtlpOptions options = quick();
  options.queue = 4;
  options.batch = 1;
  OtlpExporter exporter(options, collector.post());
  exporter.add(request("first"), {});
  collector.wait_for(1);  // it hangs in the collector
  const TimeNs began = now_ns();
  for (int i = 0; i < 10; ++i) exporter.add(request("more"), {});
  EXPECT_LT(now_ns() - began, kSecond);
  EXPECT_EQ(exporter.counters().dropped, 6U);
  collector.release();
  exporter.stop();
  EXPECT_EQ(exporter.counters().exported, 5U);
}

TEST(OtlpExporter, TriesAgainWhatMayBeTakenLaterAndNothingElse) {
  for (const int status : {0, 429, 502, 503, 504}) {
    Collector collector;
    collector.answers = {{status, status == 0 ? "no route" : "", 0}, {200, "", 0}};
    OtlpExporter exporter(quick(), collector.post());
    exporter.add(request("a"), {});
    collector.wait_for(2);
    exporter.stop();
    EXPECT_EQ(collector.bodies[0], collector.bodies[1]) << "the same spans, ids and all";
    EXPECT_EQ(exporter.counters().exported, 1U);
  }
  for (const int status : {400, 401, 404, 500, 302}) {
    Collector collector;
    collector.answers = {{status, "", 0}};
    std::vector<std::string> lines;
    OtlpOptions options = quick();
    options.log = [&](const std::string& line) { lines.push_back(line); };
    OtlpExporter exporter(options, collector.post());
    exporter.add(request("a"), {});
    collector.wait_for(1);
    exporter.stop();
    EXPECT_EQ(collector.bodies.size(), 1U);
    EXPECT_EQ(exporter.counters().failed, 1U);
    EXPECT_EQ(lines, std::vector<std::string>{"status " + std::to_string(status)});
  }
}

TEST(OtlpExporter, GivesABatchUpAfterSoManyTriesAndComplainsOnce) {
  Collector collector;
  collector.answers.assign(6, {503, "", 0});
  OtlpOptions options = quick();
  options.attempts = 3;
  std::vector<std::string> lines;
  options.log = [&](const std::string& line) { lines.push_back(line); };
  OtlpExporter exporter(options, collector.post());
  exporter.add(request("a"), {});
  collector.wait_for(3);
  exporter.add(request("b"), {});
  collector.wait_for(6);
  exporter.stop();
  EXPECT_EQ(exporter.counters().failed, 2U);
  EXPECT_EQ(lines.size(), 1U);
}

TEST(OtlpExporter, LeavesInTimeThoughTheCollectorNeverTakes) {
  Collector collector;
  collector.answers.assign(1000, {503, "", 0});
  OtlpOptions options = quick();
  options.attempts = 1000;
  options.backoff = 20 * kSecond;
  options.farewell = 300 * kMillisecond;
  OtlpExporter exporter(options, collector.post());
  exporter.add(request("a"), {});
  collector.wait_for(1);
  const TimeNs began = now_ns();
  exporter.stop();
  EXPECT_LT(now_ns() - began, 5 * kSecond);
  EXPECT_EQ(exporter.counters().failed, 1U);
}

TEST(OtlpExporter, TheClientsWordOnSamplingHoldsElseChanceDoes) {
  Collector collector;
  OtlpOptions options = quick();
  options.sample_ratio = 0.25;
  OtlpExporter exporter(options, collector.post());
  TraceContext client;
  client.trace.fill(7);
  client.span.fill(9);
  client.state = "a=1";
  EXPECT_EQ(exporter.open(&client), nullptr);
  client.sampled = true;
  const auto told = exporter.open(&client);
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(told->trace, client.trace);
  EXPECT_EQ(told->parent, client.span);
  EXPECT_EQ(told->state, "a=1");
  int sampled = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto own = exporter.open(nullptr);
    if (!own) continue;
    ++sampled;
    EXPECT_EQ(own->parent, decltype(own->parent){});
    EXPECT_TRUE(
        std::any_of(own->trace.begin(), own->trace.end(), [](auto byte) { return byte != 0; }));
  }
  EXPECT_NEAR(sampled, 1000, 200);
  OtlpOptions none = quick();
  none.sample_ratio = 0;
  OtlpExporter silent(none, collector.post());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(silent.open(nullptr), nullptr);
  OtlpExporter all(quick(), collector.post());
  for (int i = 0; i < 100; ++i) EXPECT_NE(all.open(nullptr), nullptr);
}

/// A server of one answer, for libcurl.
struct Answering {
  explicit Answering(std::string reply)
      : text(std::move(reply)), fd(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd.get(), 8), 0);
    socklen_t size = sizeof address;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/v1/traces";
    thread = std::thread([this] {
      const UniqueFd client(::accept(fd.get(), nullptr, nullptr));
      char bytes[4096];
      while (asked.find("\r\n\r\n{}") == std::string::npos) {
        const ssize_t n = ::read(client.get(), bytes, sizeof bytes);
        if (n <= 0) break;
        asked.append(bytes, static_cast<std::size_t>(n));
      }
      if (text.empty()) {
        ::read(client.get(), bytes, sizeof bytes);  // until it gives up
      } else {
        EXPECT_EQ(::write(client.get(), text.data(), text.size()),
                  static_cast<ssize_t>(text.size()));
      }
    });
  }
  ~Answering() {
    if (thread.joinable()) thread.join();
  }
  std::string text, url, asked;
  UniqueFd fd;
  std::thread thread;
};

TEST(CurlPost, TellsTheStatusAndHowLongToWait) {
  const std::atomic<bool> stop{false};
  Answering server("HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}");
  const PostOutcome outcome = curl_post(server.url, 5 * kSecond)("{}", stop);
  server.thread.join();
  EXPECT_EQ(outcome.status, 503);
  EXPECT_EQ(outcome.retry_after, 7 * kSecond);
  EXPECT_NE(server.asked.find("POST /v1/traces HTTP/1.1\r\n"), std::string::npos);
  EXPECT_NE(server.asked.find("Content-Type: application/json\r\n"), std::string::npos);
  EXPECT_EQ(server.asked.find("Expect:"), std::string::npos);
}

TEST(CurlPost, HasABoundAndSaysWhyNobodyAnswered) {
  const std::atomic<bool> stop{false};
  {
    Answering server("");
    const TimeNs began = now_ns();
    const PostOutcome outcome = curl_post(server.url, 300 * kMillisecond)("{}", stop);
    EXPECT_LT(now_ns() - began, 5 * kSecond);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_NE(outcome.error, "");
  }
  const PostOutcome refused = curl_post("http://127.0.0.1:1/v1/traces", kSecond)("{}", stop);
  EXPECT_EQ(refused.status, 0);
  EXPECT_NE(refused.error, "");
  EXPECT_EQ(curl_post("file:///etc/passwd", kSecond)("{}", stop).status, 0);
}

}  // namespace
}  // namespace baton
