// The whole front end but its main(), over real sockets, against a scheduler that the test plays.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/dialects/registry.h"
#include "frontend/frontend_loop.h"
#include "ipc/codec.h"
#include "ipc/zmq_channel.h"
#include "model_folder.h"

namespace baton {

using Tokens = std::vector<Token>;
inline constexpr TimeNs kPatience = 20 * kSecond;

/// The scheduler's end of the wire; answers hellos and heartbeats by itself.
class PlayedScheduler {
 public:
  explicit PlayedScheduler(std::string run_dir) : run_dir_(std::move(run_dir)) { start(1000); }

  void start(Epoch epoch) {
    server_.reset();
    lock_.reset();
    auto lock = LockFile::acquire(run_dir_ + "/scheduler.lock");
    ASSERT_TRUE(lock.ok()) << lock.status().message();
    lock_ = std::make_unique<LockFile>(std::move(lock).value());
    auto server = bind_server(*lock_, run_dir_ + "/frontends.sock");
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    epoch_ = epoch;
    greeted_ = false;
  }

  void send(const ToFrontend& message) {
    std::string bytes;
    std::visit([&](const auto& m) { encode(m, bytes); }, message);
    EXPECT_EQ(server_->send(peer_, bytes), SendResult::ok);
  }

  /// The next message of type M; others are answered or dropped.
  template <typename M>
  M expect() {
    const TimeNs until = now_ns() + kPatience;
    while (now_ns() < until) {
      std::string bytes;
      while (server_->receive(peer_, bytes)) {
        auto message = decode_frontend_message(bytes);
        EXPECT_TRUE(message.ok());
        answer(message.value());
        if (const M* wanted = std::get_if<M>(&message.value())) return *wanted;
      }
      Poller poller;
      poller.add(*server_);
      poller.wait(10 * kMillisecond);
    }
    ADD_FAILURE() << "no such message came";
    return M{};
  }

  void tokens(const Submit& of, std::uint32_t first, const Tokens& ids, bool end = false) {
    Events events;
    events.epoch = epoch_;
    events.counters = {of.request.counter};
    events.attempts = {of.attempt};
    events.first_index = {first};
    events.counts = {static_cast<std::uint32_t>(ids.size())};
    events.tokens = ids;
    const auto n = first + static_cast<std::uint32_t>(ids.size());
    if (end) events.terminals = {terminal(of, n)};
    send(events);
  }
  void fail(const Submit& of, ErrorCode code, std::uint32_t n, std::uint32_t retry_after_s = 0) {
    Events events;
    events.epoch = epoch_;
    events.terminals = {terminal(of, n)};
    events.terminals[0].code = code;
    events.terminals[0].message = "as the test wants";
    events.terminals[0].retry_after_s = retry_after_s;
    send(events);
  }

 private:
  static Terminal terminal(const Submit& of, std::uint32_t n) {
    Terminal terminal;
    terminal.counter = of.request.counter;
    terminal.attempt = of.attempt;
    terminal.n = {n};
    terminal.reason = {static_cast<std::uint32_t>(FinishReason::length)};
    return terminal;
  }
  void answer(const FrontendMessage& message) {
    if (std::holds_alternative<FrontendHello>(message)) greeted_ = true;
    if (!greeted_) {
      send(FrontendUnknown{epoch_});
    } else if (std::holds_alternative<FrontendHello>(message) ||
               std::holds_alternative<FrontendHeartbeat>(message)) {
      FrontendWelcome welcome;
      welcome.build = "played";
      welcome.epoch = epoch_;
      welcome.workers_ready = 1;
      welcome.max_context = 1000;
      welcome.running = 5;
      welcome.waiting = 2;
      welcome.tokens_per_block = 16;
      PoolUse pool;
      pool.blocks = 40;
      pool.owned = 3;
      pool.fenced = 1;
      pool.cached = 5;
      welcome.pools = {pool};
      send(welcome);
    }
  }

  std::string run_dir_;
  std::unique_ptr<LockFile> lock_;
  std::unique_ptr<ServerChannel> server_;
  std::string peer_;
  Epoch epoch_ = 0;
  bool greeted_ = false;
};

/// A blocking HTTP client.
class Client {
 public:
  explicit Client(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval patience{20, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void write(const std::string& bytes) {
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  /// The server may close before it has read all.
  void send_some(const std::string& bytes) {
    [[maybe_unused]] const auto n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void post(const std::string& body) { post_to("/generate", body); }
  void post_to(const std::string& path, const std::string& body) {
    write("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
          std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  std::string read_until(const std::string& mark) {
    char buffer[4096];
    while (text_.find(mark) == std::string::npos) {
      const ssize_t n = recv(fd_.get(), buffer, sizeof buffer, 0);
      if (n <= 0) break;
      text_.append(buffer, static_cast<std::size_t>(n));
    }
    return text_;
  }
  std::string read_all() { return read_until("\x01 never"); }
  void leave() { fd_.reset(); }
  bool silent() const {
    char byte;
    return recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }

 private:
  UniqueFd fd_;
  std::string text_;
};

class LoopTest : public ::testing::Test {
 protected:
  struct Setup {
    TimeNs sse_keepalive = 0;
    std::string keys = {};  // as their file has them; empty: none are wanted
    bool journals = false;  // clients' bytes and replies are kept for a successor
    WorkPool::Options pool = {.threads = 1};
  };
  LoopTest() : LoopTest(Setup{}) {}
  explicit LoopTest(Setup setup)
      : run_dir_(make_folder()),
        scheduler(run_dir_),
        alive_(run_dir_, "frontend0"),
        pool_(setup.pool) {
    RouteOptions route_options;
    route_options.models = {testing::tiny_model()};
    if (!setup.keys.empty()) {
      keys_ = std::make_shared<KeyBook>(ApiKeys::parse(setup.keys).value());
      route_options.keys = keys_;
    }
    if (setup.journals) make_journals();
    routes_ = std::make_unique<Routes>(std::move(route_options), facts_, jobs_,
                                       RouteHelpers{.pool = &pool_});
    HttpServerOptions http_options;
    http_options.port = 0;
    http_options.head_timeout = http_options.body_timeout = 1 * kSecond;
    http_options.max_connections = 64;
    http_options.pool = &pool_;
    http_options.journal = inputs_ ? &*inputs_ : nullptr;
    http_ = std::make_unique<HttpServers>();
    http_->add(http_options, routes_->table(dialects_), routes_->events(dialects_));
    const Status bound = http_->bind();
    EXPECT_TRUE(bound.ok()) << bound.message();
    const Status started = http_->start();
    EXPECT_TRUE(started.ok()) << started.message();
    LoopOptions options;
    options.identity = {"test", "frontend0", new_incarnation("/nonexistent"), getpid(), 0};
    options.drain = kSecond;
    options.max_reply_bytes = 12'000;
    options.sse_keepalive = setup.sse_keepalive;
    options.keys = keys_;
    options.journal = replies_ ? &*replies_ : nullptr;
    auto channel = connect_client(run_dir_ + "/frontends.sock",
                                  make_routing_id("frontend0", options.identity.incarnation));
    EXPECT_TRUE(channel.ok());
    std::vector<LinkOptions> links;
    links.push_back({.served = testing::tiny_model(), .channel = std::move(channel).value()});
    loop_ =
        std::make_unique<FrontendLoop>(std::move(options), std::move(links), *http_, jobs_, facts_);
    thread_ = std::thread([this] { exit_code_ = loop_->run(signals_, alive_); });
    scheduler.expect<FrontendHello>();
    const TimeNs until = now_ns() + kPatience;
    while (facts_.max_context[0].load() == 0 && now_ns() < until) usleep(1000);
  }
  ~LoopTest() override {
    stop();
    loop_.reset();
    pool_.stop();
    http_.reset();
    std::filesystem::remove_all(run_dir_);
  }

  /// SIGTERM as the launcher sends it; everybody has it blocked, the loop reads it.
  void stop() {
    if (!thread_.joinable()) return;
    kill(getpid(), SIGTERM);
    thread_.join();
  }
  void make_journals() {
    const InputGeometry inputs{.slots = 128, .extents = 1024};
    const JournalGeometry replies{.slots = 128, .extents = 1024, .max_extents = 256};
    input_memory_.resize(inputs.bytes() / sizeof(std::uint64_t) + 1);
    reply_memory_.resize(replies.bytes() / sizeof(std::uint64_t) + 1);
    inputs_.emplace(std::as_writable_bytes(std::span(input_memory_)), inputs);
    replies_.emplace(std::as_writable_bytes(std::span(reply_memory_)), replies, "test");
  }
  static std::string make_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "baton-loop-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    return name;
  }
  std::unique_ptr<Client> ask(const std::string& more = "") {
    auto client = std::make_unique<Client>(http_->port());
    client->post("{\"prompt\":\"hello\",\"max_length\":100,\"min_length\":0,\"temperature\":0" +
                 more + "}");
    return client;
  }
  std::unique_ptr<Client> stream() { return ask(",\"stream\":true"); }
  static Tokens ids(const std::string& text) {
    return testing::tiny_model().tokenizer->encode(text, false);
  }
  static std::string text_of(const Tokens& tokens) {
    return " " + testing::tiny_model().tokenizer->decode(tokens);  // it goes on from the prompt's
  }

  SignalFd signals_;  // before any thread
  std::string run_dir_;
  PlayedScheduler scheduler;
  AliveFile alive_;
  std::vector<std::uint64_t> input_memory_, reply_memory_;
  std::optional<InputJournal> inputs_;  // go after the connections, which jobs may hold
  std::optional<Journal> replies_;
  SharedFacts facts_;
  JobQueue jobs_{1000};
  WorkPool pool_;
  std::shared_ptr<KeyBook> keys_ = std::make_shared<KeyBook>();
  std::unique_ptr<Routes> routes_;
  const std::vector<const Dialect*> dialects_ = dialects_named({"openai", "lab"});
  std::unique_ptr<HttpServers> http_;
  std::unique_ptr<FrontendLoop> loop_;
  std::thread thread_;
  int exit_code_ = -1;
};

}  // namespace baton
