// Replies, metrics and health as values.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "frontend/core/json_reader.h"
#include "frontend/core/metrics.h"
#include "frontend/http/health.h"
#include "frontend/http/http_error.h"
#include "frontend/http/http_reply.h"
#include "frontend/http/server_events.h"

namespace baton {
namespace {

TEST(HttpReply, a_whole_reply) {
  HttpReply reply;
  reply.status = 429;
  reply.body = "{}";
  reply.headers = {{"Retry-After", "3"}};
  EXPECT_EQ(format_reply(reply, {"id-1", false, false, 1}),
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
            "X-Request-Id: id-1\r\nConnection: close\r\nRetry-After: 3\r\nContent-Length: 2\r\n"
            "\r\n{}");
  const std::string head = format_reply(reply, {"id-1", true, true, 1});
  EXPECT_EQ(head.substr(head.size() - 4), "\r\n\r\n") << "HEAD has no body";
  EXPECT_NE(head.find("Content-Length: 2"), std::string::npos);
}

TEST(HttpReply, a_head_tells_the_date) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  ReplyFrame frame;
  frame.date = 784111777;
  const std::string said = "\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
  for (const int status : {200, 204, 500}) {
    HttpReply reply;
    reply.status = status;
    EXPECT_NE(format_reply(reply, frame).find(said), std::string::npos) << status;
  }
  EXPECT_NE(format_stream_head({}, frame).find(said), std::string::npos);
}

TEST(HttpReply, what_strangers_wrote_cannot_begin_a_line_of_the_log) {
  EXPECT_EQ(log_text("a\nb\"c"), "\"a b c\"");
  EXPECT_LT(log_text(std::string(10'000, 'x')).size(), 400U);
}

TEST(HttpReply, what_the_log_says_was_asked) {
  EXPECT_EQ(asked_text("GET", "/health"), "GET /health");
  EXPECT_EQ(asked_text("", ""), "- -");
  EXPECT_LT(asked_text("GET", "/" + std::string(2000, 'x')).size(), 220U);
}

TEST(HttpError, does_not_grow_with_what_it_quotes) {
  const std::string long_text(1'000'000, '\x01');
  EXPECT_LT(http_error(invalid(long_text), long_text).body.size(), 30'000U);
  EXPECT_LT(http_error(404, long_text, "not_found", long_text).body.size(), 30'000U);
  EXPECT_LT(error_json(invalid(long_text)).size(), 30'000U);
}

TEST(HttpError, the_log_says_where_and_not_what) {
  const auto of_json = [](const char* body) {
    return http_error(parse_json_object(body).status());
  };
  const HttpError broken = of_json("{\"prompt\": \"my secret\", secret}");
  EXPECT_NE(broken.message.find("last read"), std::string::npos) << broken.message;
  EXPECT_EQ(broken.log, "invalid_argument: not valid JSON at line 1, column 25");
  EXPECT_EQ(of_json("{\"secret\":1,\"secret\":1}").log, "invalid_argument");
  EXPECT_EQ(http_error(invalid("'stop[0]' is 'secret'"), "stop[0]").log,
            "invalid_argument: stop[0]");
  EXPECT_EQ(http_error(404, "the model 'secret' does not exist", "model_not_found", "model").log,
            "model_not_found: model");
  EXPECT_LT(http_error(invalid("unknown field"), std::string(5000, 'x')).log.size(), 100U);
  // What quotes nothing is told as it is.
  EXPECT_EQ(http_error(Status(ErrorCode::too_long, "the prompt has 9 tokens"), "prompt").log,
            "the prompt has 9 tokens");
  EXPECT_EQ(http_error(Status(ErrorCode::queue_full, "full")).log, "full");
  EXPECT_EQ(logged_reason(invalid("a grammar: secret")), "invalid_argument");
  EXPECT_EQ(logged_reason(Status(ErrorCode::worker_crashes, "it died")), "it died");
}

TEST(HttpReply, no_content) {
  HttpReply reply;
  reply.status = 204;
  reply.headers = {{"Allow", "POST"}};
  EXPECT_EQ(format_reply(reply, {"id-1", true, false, 1}),
            "HTTP/1.1 204 No Content\r\nX-Request-Id: id-1\r\nConnection: keep-alive\r\n"
            "Allow: POST\r\n\r\n");
}

TEST(HttpReply, what_browsers_are_told_is_in_every_head) {
  const HttpHeaders cors = {{"Access-Control-Allow-Origin", "http://a"}, {"Vary", "Origin"}};
  ReplyFrame frame;
  frame.cors = &cors;
  const std::string said = "\r\nAccess-Control-Allow-Origin: http://a\r\nVary: Origin\r\n";
  for (const int status : {200, 204, 401, 500}) {
    HttpReply reply;
    reply.status = status;
    EXPECT_NE(format_reply(reply, frame).find(said), std::string::npos) << status;
  }
  EXPECT_NE(format_stream_head({}, frame).find(said), std::string::npos);
}

TEST(HttpReply, a_header_value_cannot_begin_another_header) {
  HttpReply reply;
  reply.headers = {{"X-A", "b\r\nX-Evil: 1"}};
  EXPECT_EQ(format_reply(reply, {}).find("\r\nX-Evil"), std::string::npos);
}

TEST(HttpReply, chunks) {
  const ReplyFrame now{"", true, false, 1};
  const ReplyFrame old{"", false, false, 0};
  std::string out;
  append_chunk(out, "", now);
  append_chunk(out, std::string(26, 'x'), now);
  append_last_chunk(out, now);
  EXPECT_EQ(out, "1a\r\n" + std::string(26, 'x') + "\r\n0\r\n\r\n");
  out.clear();
  append_chunk(out, "abc", old);
  append_last_chunk(out, old);
  EXPECT_EQ(out, "abc");
  EXPECT_NE(format_stream_head({}, now).find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_EQ(format_stream_head({}, old).find("Transfer-Encoding"), std::string::npos);
}

TEST(HttpReply, request_ids) {
  EXPECT_TRUE(valid_request_id("a"));
  EXPECT_TRUE(valid_request_id("req-1.2_3:4"));
  EXPECT_TRUE(valid_request_id(std::string(128, 'a')));
  for (const std::string& bad :
       {std::string(), std::string(129, 'a'), std::string("a b"), std::string("a\n"),
        std::string("\"x\""), std::string("\xc3\xa4")}) {
    EXPECT_FALSE(valid_request_id(bad)) << bad;
  }
}

TEST(Metrics, histograms_are_cumulative) {
  Histogram histogram({1, 2, 4});
  for (const double value : {0.5, 1.0, 1.5, 4.0, 100.0}) histogram.observe(value);
  std::string out;
  histogram.expose(out, "h", "l=\"x\"");
  EXPECT_EQ(
      out,
      "h_bucket{l=\"x\",le=\"1\"} 2\nh_bucket{l=\"x\",le=\"2\"} 3\nh_bucket{l=\"x\",le=\"4\"} 4\n"
      "h_bucket{l=\"x\",le=\"+Inf\"} 5\nh_sum{l=\"x\"} 107\nh_count{l=\"x\"} 5\n");
}

/// The rules of Prometheus' text format that a scraper insists on.
TEST(Metrics, the_text_is_well_formed) {
  Metrics metrics("a \"model\"\n");
  metrics.reply_sent("/generate", 200);
  metrics.reply_sent("/generate", 400);
  metrics.client_dropped(DropReason::overflow);
  metrics.request_accepted(10);
  metrics.first_token(5 * kMillisecond);
  metrics.next_token(kMillisecond);
  metrics.tokens_delivered(2);
  metrics.prompt_looked_up(10, 4);
  metrics.request_ended(FinishReason::stop, 2,
                        {.received = kSecond, .begun = kSecond, .first_token = 2 * kSecond},
                        3 * kSecond);
  MetricsView view;
  view.version = "v";
  view.scheduler.pools = {{"prefill0", Role::prefill, 100, 5, 2, 30},
                          {"decode0", Role::decode, 60, 9, 0, 0}};
  std::istringstream lines(metrics.expose(view));
  std::set<std::string> declared, samples;
  std::string current, type, line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string hash, kind, name;
    if (line[0] == '#') {
      words >> hash >> kind >> name;
      if (kind == "TYPE") {
        words >> type;
        current = name;
        EXPECT_TRUE(declared.insert(name).second) << name << " declared twice";
      }
      continue;
    }
    EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << "twice: " << line;
    name = line.substr(0, line.find_first_of("{ "));
    if (type == "histogram") {
      EXPECT_EQ(name.find(current), 0U) << line;
    } else {
      EXPECT_EQ(name, current) << line;
      if (type == "counter") {
        EXPECT_EQ(name.substr(name.size() - 6), "_total") << line;
      }
    }
    EXPECT_EQ(std::count(line.begin(), line.end(), '{'), std::count(line.begin(), line.end(), '}'));
  }
  for (const char* name :
       {"vllm:num_requests_running",        "vllm:num_requests_waiting",
        "vllm:prompt_tokens_total",         "vllm:generation_tokens_total",
        "vllm:request_success_total",       "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds", "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",  "vllm:prefix_cache_hits_total",
        "vllm:request_queue_time_seconds",  "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds",
        "vllm:num_preemptions_total",       "vllm:cache_config_info",
        "process_resident_memory_bytes",    "baton_http_replies_total"}) {
    EXPECT_TRUE(declared.count(name)) << name;
  }
}

void expect_lines(const std::string& text, std::initializer_list<const char*> lines) {
  for (const char* line : lines) {
    EXPECT_NE(text.find(std::string("\n") + line + "\n"), std::string::npos) << line;
  }
}

TEST(Metrics, what_pools_are_used_for) {
  MetricsView view;
  view.scheduler.pools = {{"prefill0", Role::prefill, 100, 5, 2, 30},
                          {"decode0", Role::decode, 60, 9, 0, 0}};
  view.scheduler.tokens_per_block = 16;
  view.scheduler.preemptions = 7;
  expect_lines(
      Metrics("m").expose(view),
      {"baton_kv_blocks{model_name=\"m\",worker=\"prefill0\",role=\"prefill\",state=\"owned\"} 5",
       "baton_kv_blocks{model_name=\"m\",worker=\"prefill0\",role=\"prefill\",state=\"fenced\"} 2",
       "baton_kv_blocks{model_name=\"m\",worker=\"prefill0\",role=\"prefill\",state=\"cached\"} 30",
       "baton_kv_blocks{model_name=\"m\",worker=\"prefill0\",role=\"prefill\",state=\"free\"} 63",
       "baton_kv_blocks{model_name=\"m\",worker=\"decode0\",role=\"decode\",state=\"free\"} 51",
       "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.1",
       "vllm:cache_config_info{model_name=\"m\",block_size=\"16\",num_gpu_blocks=\"160\"} 1",
       "vllm:num_preemptions_total{model_name=\"m\"} 7"});
  expect_lines(Metrics("m").expose({}), {"vllm:kv_cache_usage_perc{model_name=\"m\"} 0"});
}

TEST(Metrics, how_long_each_phase_took) {
  Metrics metrics("m");
  metrics.prompt_looked_up(10, 4);
  metrics.request_ended(FinishReason::stop, 2, {kSecond, 3 * kSecond, 6 * kSecond}, 10 * kSecond);
  metrics.request_ended(FinishReason::stop, 2, {kSecond, 0, 6 * kSecond},
                        7 * kSecond);  // of another scheduler
  metrics.request_ended(FinishReason::cancelled, 0, {kSecond, 0, 0}, 7 * kSecond);
  expect_lines(metrics.expose({}), {"vllm:request_queue_time_seconds_sum{model_name=\"m\"} 2",
                                    "vllm:request_queue_time_seconds_count{model_name=\"m\"} 1",
                                    "vllm:request_prefill_time_seconds_sum{model_name=\"m\"} 3",
                                    "vllm:request_decode_time_seconds_sum{model_name=\"m\"} 5",
                                    "vllm:request_decode_time_seconds_count{model_name=\"m\"} 2",
                                    "vllm:request_inference_time_seconds_sum{model_name=\"m\"} 7",
                                    "vllm:prefix_cache_queries_total{model_name=\"m\"} 10",
                                    "vllm:prefix_cache_hits_total{model_name=\"m\"} 4"});
}

TEST(Metrics, large_numbers_are_exact) {
  MetricsView view;
  view.process.resident_bytes = 12'345'678'901;
  view.process.started = 1'795'347'691;
  expect_lines(Metrics("m").expose(view), {"process_resident_memory_bytes 12345678901",
                                           "process_start_time_seconds 1795347691"});
}

TEST(Metrics, what_the_scheduler_says_of_host_parts) {
  MetricsView view;
  view.scheduler.host_blocks = 160;
  view.scheduler.host_blocks_used = 31;
  view.scheduler.blocks_out = 70;
  view.scheduler.blocks_in = 12;
  view.scheduler.damaged_blocks = 3;
  view.scheduler.computed_tokens = 900;
  view.scheduler.resumed = 5;
  expect_lines(Metrics("m").expose(view),
               {"baton_prompt_tokens_computed_total{model_name=\"m\"} 900",
                "baton_sequences_resumed_total{model_name=\"m\"} 5",
                "baton_kv_host_blocks{model_name=\"m\"} 160",
                "baton_kv_host_blocks_used{model_name=\"m\"} 31",
                "baton_kv_blocks_out_total{model_name=\"m\"} 70",
                "baton_kv_blocks_in_total{model_name=\"m\"} 12",
                "baton_kv_blocks_damaged_total{model_name=\"m\"} 3"});
}

struct HealthCase {
  const char* name;
  bool draining, welcomed;
  Epoch epoch;
  std::uint32_t ready, running;
  TimeNs heard_ago, progress_ago;
  const char* status;
};

TEST(Health, is_judged_by_progress) {
  const HealthCase cases[] = {
      {"nobody yet", false, false, 0, 0, 0, 0, 0, "loading"},
      {"idle", false, true, 1, 2, 0, kSecond, 100 * kSecond, "ok"},
      {"busy", false, true, 1, 2, 5, kSecond, kSecond, "ok"},
      {"stuck", false, true, 1, 2, 5, kSecond, 20 * kSecond, "stuck"},
      {"no worker", false, true, 1, 0, 0, 0, 0, "loading"},
      {"silent", false, true, 1, 2, 0, 4 * kSecond, 0, "no_scheduler"},
      {"between two schedulers", false, false, 1, 2, 0, 0, 0, "no_scheduler"},
      {"draining", true, true, 1, 2, 0, 0, 0, "draining"},
  };
  const TimeNs now = 1000 * kSecond;
  for (const HealthCase& c : cases) {
    SchedulerView view;
    view.welcomed = c.welcomed;
    view.epoch = c.epoch;
    view.workers_ready = c.ready;
    view.running = c.running;
    view.heard_at = now - c.heard_ago;
    view.progress_at = now - c.progress_ago;
    const Health health = judge_health(view, c.draining, now);
    EXPECT_EQ(health.status, c.status) << c.name;
    EXPECT_EQ(health.ok, std::string(c.status) == "ok") << c.name;
    EXPECT_FALSE(health.reason.empty());
    EXPECT_EQ(health_body(health, view, "m\"", "v").find("\n"),
              health_body(health, view, "m\"", "v").size() - 1);
  }
}

TEST(ServerEvents, UrlsOfClientApps) {
  const auto url = parse_http_url("http://127.0.0.1:8000/some/prefix/");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url.value().host, "127.0.0.1");
  EXPECT_EQ(url.value().port, "8000");
  EXPECT_EQ(url.value().prefix, "/some/prefix");
  EXPECT_EQ(parse_http_url("http://host").value().port, "80");
  for (const char* bad : {"", "host:1", "https://host", "http://", "http://:80", "http://h:x",
                          "http://h:123456", "http://h:1\r\nX: y"}) {
    EXPECT_FALSE(parse_http_url(bad).ok()) << bad;
  }
  const Status nobody =
      post_json(parse_http_url("http://127.0.0.1:9").value(), "/event", "{}", kSecond);
  EXPECT_EQ(nobody.code(), ErrorCode::unavailable);
  EXPECT_EQ(nobody.message(), "http://127.0.0.1:9/event cannot be reached");
}

}  // namespace
}  // namespace baton
