// The whole front end but its main(), over real sockets, against a scheduler that this test plays.
#include "loop_fixture.h"

#include <future>
#include <set>

namespace baton {
namespace {

class QuietLoopTest : public LoopTest {
 protected:
  QuietLoopTest() : LoopTest(Setup{.sse_keepalive = 3 * kSecond / 2}) {}
};

/// The concatenated "text" of a /generate stream; the tests' texts need no unescaping.
std::string joined(const std::string& reply) {
  const std::string key = "data: {\"text\":";
  std::string text;
  for (std::size_t at = reply.find(key); at != std::string::npos; at = reply.find(key, at + 1)) {
    const std::size_t begin = reply.find('"', at + key.size()) + 1;
    text += reply.substr(begin, reply.find('"', begin) - begin);
  }
  return text;
}

TEST_F(LoopTest, routers_hear_what_the_scheduler_said) {
  const auto get = [&](const std::string& path) {
    Client client(http_->port());
    client.write("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    const std::string reply = client.read_all();
    return reply.substr(reply.find("\r\n\r\n") + 4);
  };
  EXPECT_EQ(get("/get_load"),
            R"([{"rid":null,"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":64}])");
  EXPECT_NE(get("/server_info").find("\"max_total_num_tokens\":640"), std::string::npos);
  EXPECT_NE(get("/metrics").find("\nvllm:kv_cache_usage_perc{model_name=\"tiny\"} 0.1\n"),
            std::string::npos);
}

TEST_F(LoopTest, gaps_repeats_and_stale_attempts_never_reach_the_client) {
  auto client = stream();
  const Submit submit = scheduler.expect<Submit>();
  const Tokens all = ids("hello world, hello again");
  ASSERT_GE(all.size(), 4U);
  scheduler.tokens(submit, 0, {all[0]});
  scheduler.tokens(submit, 2, {all[2]});  // 1 is missing
  FrontendHeartbeat beat;
  do {
    beat = scheduler.expect<FrontendHeartbeat>();
  } while (beat.counters.empty());
  EXPECT_EQ(beat.next, std::vector<std::uint32_t>{1});
  Submit other = submit;
  other.attempt = 7;
  scheduler.tokens(other, 1, {all[0], all[0]});
  scheduler.tokens(submit, 0, Tokens(all.begin(), all.begin() + 2));
  scheduler.tokens(submit, 0, all, true);
  scheduler.expect<Ack>();
  const std::string reply = client->read_all();
  EXPECT_EQ(reply.substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_EQ(joined(reply), text_of(all));
  EXPECT_NE(reply.find("\"finish_reason\":\"length\""), std::string::npos);
}

TEST_F(LoopTest, a_new_scheduler_continues_every_stream) {
  const Tokens all = ids("the scheduler owns every block");
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(stream());
    const Submit submit = scheduler.expect<Submit>();
    scheduler.tokens(submit, 0, Tokens(all.begin(), all.begin() + 2));
  }
  for (const auto& client : clients) client->read_until("data: ");
  scheduler.start(2000);
  std::uint64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    const Submit again = scheduler.expect<Submit>();
    EXPECT_GT(again.request.counter, last);
    last = again.request.counter;
    EXPECT_TRUE(again.again);
    EXPECT_EQ(again.attempt, 2U);
    EXPECT_EQ(again.generated, Tokens(all.begin(), all.begin() + 2));
    scheduler.tokens(again, 2, Tokens(all.begin() + 2, all.end()), true);
  }
  for (const auto& client : clients) EXPECT_EQ(joined(client->read_all()), text_of(all));
}

TEST_F(LoopTest, errors_before_and_after_the_first_token) {
  struct Case {
    ErrorCode code;
    const char* status;
  };
  for (const Case& c : {Case{ErrorCode::queue_full, "429"}, Case{ErrorCode::unavailable, "503"},
                        Case{ErrorCode::too_long, "400"}, Case{ErrorCode::worker_crashes, "500"},
                        Case{ErrorCode::deadline_exceeded, "504"}}) {
    for (const char* more : {"", ",\"stream\":true"}) {
      auto client = ask(more);
      scheduler.fail(scheduler.expect<Submit>(), c.code, 0, 7);
      const std::string reply = client->read_all();
      EXPECT_EQ(reply.substr(9, 3), c.status) << reply;
      EXPECT_NE(reply.find("as the test wants"), std::string::npos);
      EXPECT_NE(reply.find("Retry-After: 7"), std::string::npos);
    }
  }
  auto client = stream();
  const Submit submit = scheduler.expect<Submit>();
  scheduler.tokens(submit, 0, ids("hello"));
  client->read_until("data: ");
  scheduler.fail(submit, ErrorCode::worker_crashes,
                 static_cast<std::uint32_t>(ids("hello").size()));
  const std::string reply = client->read_all();
  EXPECT_EQ(reply.substr(9, 3), "200");
  EXPECT_NE(reply.find("data: {\"error\""), std::string::npos) << reply;
  EXPECT_EQ(reply.substr(reply.size() - 5), "0\r\n\r\n");
}

TEST_F(QuietLoopTest, a_stream_that_says_nothing_gets_comments) {
  auto client = stream();
  const Submit submit = scheduler.expect<Submit>();
  auto whole = ask();
  const Submit other = scheduler.expect<Submit>();
  EXPECT_TRUE(client->silent());
  const std::string waited = client->read_until(": keep-alive");
  EXPECT_EQ(waited.substr(9, 3), "200") << "the head goes out with it";
  EXPECT_EQ(waited.find("data:"), std::string::npos);
  EXPECT_TRUE(whole->silent()) << "no stream";
  scheduler.fail(submit, ErrorCode::worker_crashes, 0);
  const std::string reply = client->read_all();
  EXPECT_NE(reply.find("data: {\"error\""), std::string::npos) << "an event, since the head is out";
  EXPECT_EQ(reply.substr(reply.size() - 5), "0\r\n\r\n");
  scheduler.fail(other, ErrorCode::worker_crashes, 0);
  EXPECT_EQ(whole->read_all().substr(9, 3), "500");
}

TEST_F(LoopTest, how_far_the_prompt_is_comes_before_its_tokens) {
  auto client = std::make_unique<Client>(http_->port());
  client->post_to("/v1/completions",
                  R"({"prompt":"hello world","stream":true,"return_progress":true})");
  const Submit submit = scheduler.expect<Submit>();
  EXPECT_TRUE(submit.progress);
  const auto total = static_cast<std::uint32_t>(submit.prompt.size());
  Events events;
  events.epoch = submit.epoch;
  events.progress_counters = {submit.request.counter};
  events.progress_attempts = {submit.attempt};
  events.progress_done = {total};
  events.progress_cached = {1};
  events.progress_took = {250 * kMillisecond};
  scheduler.send(events);
  const std::string told = client->read_until("prompt_progress");
  EXPECT_EQ(told.substr(9, 3), "200");
  scheduler.tokens(submit, 0, ids("hello"), true);
  const std::string reply = client->read_all();
  EXPECT_NE(
      reply.find("\"prompt_progress\":{\"total\":" + std::to_string(total) +
                 ",\"cache\":1,\"processed\":" + std::to_string(total) + ",\"time_ms\":250}}"),
      std::string::npos)
      << reply;
  EXPECT_NE(reply.find("[DONE]"), std::string::npos);
}

TEST_F(LoopTest, a_stop_string_finishes_the_request) {
  auto client = ask(",\"stream\":true,\"stop\":\"again\"");
  const Submit submit = scheduler.expect<Submit>();
  const Tokens all = ids("hello world, hello again, hello hello");
  scheduler.tokens(submit, 0, all);
  const Finish finish = scheduler.expect<Finish>();
  EXPECT_EQ(finish.request, submit.request);
  EXPECT_LT(finish.n, all.size());
  const std::string reply = client->read_all();
  EXPECT_EQ(text_of(all).find(joined(reply)), 0U);
  EXPECT_EQ(joined(reply).find("again"), std::string::npos);
  EXPECT_NE(reply.find("\"finish_reason\":\"stop\""), std::string::npos);
  scheduler.expect<Finish>();  // repeated until it is answered
  scheduler.fail(submit, ErrorCode::ok, finish.n);
  EXPECT_EQ(scheduler.expect<Ack>().request, submit.request);
}

TEST_F(LoopTest, a_client_that_leaves_is_cancelled_waiting_or_reading) {
  auto waiting = ask();
  const Submit first = scheduler.expect<Submit>();
  auto reading = stream();
  const Submit second = scheduler.expect<Submit>();
  scheduler.tokens(second, 0, ids("hello"));
  reading->read_until("data: ");
  waiting->leave();
  EXPECT_EQ(scheduler.expect<Cancel>().request, first.request);
  scheduler.fail(first, ErrorCode::cancelled, 0);
  EXPECT_EQ(scheduler.expect<Ack>().request, first.request);
  reading->leave();
  EXPECT_EQ(scheduler.expect<Cancel>().request, second.request);
}

// Several choices and prompts are several requests to the scheduler, and one reply.
TEST_F(LoopTest, choices_of_one_reply) {
  Client client(http_->port());
  client.post_to("/v1/completions", R"({"prompt":["hello","the block"],"n":2,"seed":9})");
  std::vector<Submit> submits;
  for (int i = 0; i < 4; ++i) submits.push_back(scheduler.expect<Submit>());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(submits[i].prompt,
              testing::tiny_model().tokenizer->encode(i < 2 ? "hello" : "the block", true));
    EXPECT_EQ(submits[i].sampling.seed, 9 + i % 2);
  }
  const char* texts[] = {"one", "hello", "world", "block"};
  for (const std::size_t i : {3U, 1U, 0U, 2U}) scheduler.tokens(submits[i], 0, ids(texts[i]), true);
  const std::string reply = client.read_all();
  EXPECT_EQ(reply.substr(9, 3), "200");
  std::size_t at = 0;
  for (const char* text : texts) {
    at = reply.find(std::string("\"text\":\" ") + text, at);
    EXPECT_NE(at, std::string::npos) << text << " in " << reply;
  }
  const auto n = std::to_string(submits[0].prompt.size() + submits[2].prompt.size());
  EXPECT_NE(reply.find("\"prompt_tokens\":" + n + ","), std::string::npos);
  EXPECT_NE(reply.find("\"index\":3"), std::string::npos);
}

TEST_F(LoopTest, one_failed_choice_fails_the_reply_and_cancels_the_rest) {
  Client client(http_->port());
  client.post_to("/v1/completions", R"({"prompt":"hello","n":3})");
  std::vector<Submit> submits;
  for (int i = 0; i < 3; ++i) submits.push_back(scheduler.expect<Submit>());
  scheduler.tokens(submits[0], 0, ids("hello"), true);
  scheduler.fail(submits[1], ErrorCode::worker_crashes, 0);
  EXPECT_EQ(scheduler.expect<Cancel>().request, submits[2].request);
  const std::string reply = client.read_all();
  EXPECT_EQ(reply.substr(9, 3), "500");
  EXPECT_NE(reply.find("as the test wants"), std::string::npos);
}

TEST_F(LoopTest, a_reply_that_grows_too_large_is_an_error_and_is_cancelled) {
  Client client(http_->port());
  client.post_to("/v1/completions", R"({"prompt":"hello","n":2,"max_tokens":900})");
  const Submit first = scheduler.expect<Submit>(), second = scheduler.expect<Submit>();
  scheduler.tokens(first, 0, Tokens(600, ids("hello").front()));
  scheduler.tokens(second, 0, Tokens(600, ids("hello").front()));
  std::set<std::uint64_t> cancelled;
  while (cancelled.size() < 2) cancelled.insert(scheduler.expect<Cancel>().request.counter);
  const std::string reply = client.read_all();
  EXPECT_EQ(reply.substr(9, 3), "400");
  EXPECT_NE(reply.find("ask for fewer choices"), std::string::npos);
}

TEST_F(LoopTest, a_client_that_leaves_cancels_every_choice) {
  Client client(http_->port());
  client.post_to("/v1/completions", R"({"prompt":"hello","n":3,"stream":true})");
  std::vector<Submit> submits;
  for (int i = 0; i < 3; ++i) submits.push_back(scheduler.expect<Submit>());
  scheduler.tokens(submits[1], 0, ids("hello"));
  client.read_until("\"index\":1");
  client.leave();
  std::set<std::uint64_t> cancelled;
  while (cancelled.size() < 3) cancelled.insert(scheduler.expect<Cancel>().request.counter);
  EXPECT_EQ(cancelled,
            (std::set<std::uint64_t>{submits[0].request.counter, submits[1].request.counter,
                                     submits[2].request.counter}));
}

TEST_F(LoopTest, requests_that_never_end_are_told_and_closed) {
  Client head(http_->port()), body(http_->port()), idle(http_->port());
  head.write("POST /generate HTTP/1.1\r\nHost: localhost\r\nA: ");
  body.write("POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  for (Client* client : {&head, &body}) {
    const std::string reply = client->read_all();
    EXPECT_EQ(reply.substr(9, 3), "408") << reply;
    EXPECT_NE(reply.find("request_timeout"), std::string::npos);
  }
  idle.write("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");  // nothing was asked of it yet
  EXPECT_EQ(idle.read_until("}").substr(9, 3), "200");
  EXPECT_EQ(http_->counters().timed_out, 2U);
}

TEST_F(LoopTest, large_bodies_are_parsed_where_they_hold_up_nobody) {
  std::promise<void> go;
  pool_.push("others", 0, [gate = go.get_future().share()] { gate.wait(); });
  std::vector<std::unique_ptr<Client>> large;
  for (int i = 0; i < 8; ++i) {
    large.push_back(std::make_unique<Client>(http_->port()));
    large.back()->post_to("/v1/completions", "{\"prompt\":\"" + std::string(100'000, 'x') + "\"}");
  }
  for (int i = 0; i < 8; ++i) {
    Client small(http_->port());
    small.post_to("/v1/completions", "{}");
    EXPECT_EQ(small.read_all().substr(9, 3), "400");
  }
  for (const auto& client : large) EXPECT_TRUE(client->silent());
  go.set_value();
  for (const auto& client : large) {
    EXPECT_NE(client->read_all().find("context_length_exceeded"), std::string::npos);
  }
}

/// One thread reads large bodies, and four may wait for it.
class BusyLoopTest : public LoopTest {
 protected:
  BusyLoopTest()
      : LoopTest(Setup{.keys = "sk-many-0123456789\nsk-few-01234567890\n",
                       .pool = {.threads = 1, .max_waiting = 4}}) {
    pool_.push("gate", 0, [this] {
      at_gate_.set_value();
      go_.get_future().wait();
    });
    at_gate_.get_future().wait();
  }
  std::unique_ptr<Client> ask_large(const std::string& key) {
    auto client = std::make_unique<Client>(http_->port());
    const std::string body = "{\"prompt\":\"" + std::string(40'000, 'x') + "\"}";
    client->write("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " +
                  key + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client;
  }

  std::promise<void> at_gate_, go_;
};

TEST_F(BusyLoopTest, whoever_has_most_waiting_is_refused_first) {
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < 4; ++i) {
    many.push_back(ask_large("sk-many-0123456789"));
    for (int k = 0; k < 2000 && facts_.rendering.load() < static_cast<unsigned>(i) + 1; ++k) {
      usleep(1000);
    }
  }
  EXPECT_EQ(ask_large("sk-many-0123456789")->read_all().substr(9, 3), "429");
  const auto few = ask_large("sk-few-01234567890");
  EXPECT_EQ(many.back()->read_all().substr(9, 3), "429") << "its latest gives way";
  EXPECT_TRUE(few->silent());
  go_.set_value();
  EXPECT_NE(few->read_all().find("context_length_exceeded"), std::string::npos);
  many.pop_back();
  for (const auto& client : many) {
    EXPECT_NE(client->read_all().find("context_length_exceeded"), std::string::npos);
  }
}

TEST_F(BusyLoopTest, a_pipelined_request_that_nobody_can_read_is_told_so) {
  for (const char* other : {"a", "b", "c", "d"}) EXPECT_TRUE(pool_.push(other, 0, [] {}));
  const std::string get =
      "GET /version HTTP/1.1\r\nHost: localhost\r\n"
      "Authorization: Bearer sk-few-01234567890\r\nX-Request-Id: ";
  Client client(http_->port());
  client.write(get + "one\r\n\r\n" + get + "two\r\n\r\n" + get + "three\r\n\r\n");
  const std::string replies = client.read_all();
  EXPECT_EQ(replies.substr(9, 3), "200");
  const std::size_t second = replies.find("HTTP/1.1", 10);
  ASSERT_NE(second, std::string::npos) << replies;
  EXPECT_EQ(replies.substr(second + 9, 3), "429");
  EXPECT_NE(replies.find("X-Request-Id: two", second), std::string::npos);
  EXPECT_NE(replies.find("Retry-After", second), std::string::npos);
  EXPECT_EQ(replies.find("three"), std::string::npos);
  go_.set_value();
}

TEST_F(LoopTest, the_longest_idle_connections_make_room_for_new_ones) {
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(std::make_unique<Client>(http_->port()));
    usleep(500);
  }
  auto busy = stream();
  const Submit submit = scheduler.expect<Submit>();
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<Client>(http_->port()));
  // Two threads take them in, in any order: only behind them all is one new to the server, too.
  for (int i = 0; i < 2000 && http_->counters().accepted < 401; ++i) usleep(5000);
  Client newest(http_->port());
  newest.write("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(newest.read_until("}").substr(9, 3), "200");
  EXPECT_LE(http_->counters().open, 64U);
  EXPECT_GE(http_->counters().evicted, 200U);
  const Tokens all = ids("hello world");
  scheduler.tokens(submit, 0, all, true);
  EXPECT_EQ(joined(busy->read_all()), text_of(all));
}

// A front end's successor writes the reply again without knowing what came together.
TEST_F(LoopTest, how_tokens_come_together_changes_no_byte) {
  const Tokens all = ids("hello world, the block");
  ASSERT_GT(all.size(), 3U);
  const auto body_of = [&](std::size_t together) {
    auto client = stream();
    const Submit submit = scheduler.expect<Submit>();
    for (std::size_t at = 0; at < all.size(); at += together) {
      const std::size_t end = std::min(all.size(), at + together);
      const Tokens some(all.begin() + static_cast<std::ptrdiff_t>(at),
                        all.begin() + static_cast<std::ptrdiff_t>(end));
      scheduler.tokens(submit, static_cast<std::uint32_t>(at), some, end == all.size());
    }
    const std::string reply = client->read_all();
    EXPECT_EQ(joined(reply), text_of(all));
    return reply.substr(reply.find("\r\n\r\n"));
  };
  const std::string alone = body_of(1);
  EXPECT_EQ(body_of(all.size()), alone);
  EXPECT_EQ(body_of(2), alone);
}

TEST_F(LoopTest, an_http_1_0_stream_ends_with_its_connection) {
  Client client(http_->port());
  const std::string body = R"({"prompt":"hello","max_length":100,"min_length":0,"stream":true})";
  client.write("POST /generate HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body);
  const Tokens all = ids("hello world");
  scheduler.tokens(scheduler.expect<Submit>(), 0, all, true);
  const std::string reply = client.read_all();
  EXPECT_EQ(joined(reply), text_of(all));
  EXPECT_NE(reply.find("Connection: close"), std::string::npos);
  EXPECT_EQ(reply.find("chunked"), std::string::npos);
}

TEST_F(LoopTest, sigterm_waits_for_a_stream_and_says_goodbye) {
  auto client = stream();
  const Submit submit = scheduler.expect<Submit>();
  scheduler.tokens(submit, 0, ids("hello"));
  client->read_until("data: ");
  kill(getpid(), SIGTERM);
  usleep(100'000);
  scheduler.tokens(submit, 0, ids("hello world"), true);
  EXPECT_EQ(joined(client->read_all()), " hello world");
  scheduler.expect<FrontendBye>();
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(LoopTest, sigterm_ends_a_stream_that_does_not_end) {
  auto client = stream();
  const Submit submit = scheduler.expect<Submit>();
  scheduler.tokens(submit, 0, ids("hello"));
  client->read_until("data: ");
  stop();
  EXPECT_NE(client->read_all().find("shutting down"), std::string::npos);
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(LoopTest, a_refusal_ends_the_process_with_an_error) {
  scheduler.send(Refused{"the model differs"});
  thread_.join();
  EXPECT_EQ(exit_code_, 1);
}

}  // namespace
}  // namespace baton
