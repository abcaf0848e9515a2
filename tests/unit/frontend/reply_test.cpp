// The exact bytes that clients see.
#include "frontend/openai/openai_reply.h"

#include "api_fixture.h"
#include "frontend/dialects/lab.h"
#include "frontend/http/http_error.h"
#include "frontend/http/index_page.h"
#include "frontend/openai/openai_api.h"

namespace baton {
namespace {

using testing::error_of;
using testing::good;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

Ending ending(FinishReason reason) { return {.reason = reason, .stop_string = {}}; }
constexpr Usage kUsage{3, 5, 2};

/// begin, two texts (an empty one between them), end.
std::string play(ReplyWriter& reply, const Ending& end) {
  std::string bytes = reply.begin(0, nullptr);
  bytes += reply.text({0, "Hi \"you\"\n", 7});
  bytes += reply.text({0, "", 8});
  bytes += reply.text({0, "你", 9});
  bytes += reply.end(0, end);
  return bytes + reply.finish(kUsage);
}

/// As play(), up to a failure.
std::string play_failure(const ParseOutcome& outcome, const Status& status) {
  ReplyWriter& reply = *std::get<ParsedRequest>(outcome).reply;
  std::string bytes = reply.begin(0, nullptr);
  bytes += reply.text({0, "Hi", 7});
  return bytes + reply.fail(status);
}

std::string play_completion(const std::string& fields, const Ending& end) {
  const auto request =
      good(parse_completion(R"({"prompt":"hello")" + fields + "}", small_context(), tiny_model()));
  return play(*request.reply, end);
}

std::string play_chat(const std::string& fields, const Ending& end) {
  const auto request =
      good(parse_chat_completion(R"({"messages":[{"role":"user","content":"x"}])" + fields + "}",
                                 small_context(), tiny_model()));
  return play(*request.reply, end);
}

std::string play_generate(const std::string& fields, const Ending& end) {
  const auto request =
      good(parse_generate(R"({"prompt":"hello")" + fields + "}", small_context(), tiny_model()));
  return play(*request.reply, end);
}

TEST(Reply, WholeCompletion) {
  EXPECT_EQ(
      play_completion("", ending(FinishReason::length)),
      R"({"id":"cmpl-42","object":"text_completion","created":1700000000,"model":"tiny","system_fingerprint":"baton-test",)"
      R"("choices":[{"index":0,"text":"Hi \"you\"\n你","logprobs":null,"finish_reason":"length","stop_reason":null}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,)"
      R"("prompt_tokens_details":{"cached_tokens":2}}})");
}

TEST(Reply, WholeChat) {
  EXPECT_EQ(
      play_chat("", ending(FinishReason::stop)),
      R"({"id":"chatcmpl-42","object":"chat.completion","created":1700000000,"model":"tiny","system_fingerprint":"baton-test",)"
      R"("choices":[{"index":0,"message":{"role":"assistant","content":"Hi \"you\"\n你","refusal":null},)"
      R"("logprobs":null,"finish_reason":"stop","stop_reason":null}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,)"
      R"("prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":0}}})");
}

TEST(Reply, StreamedCompletion) {
  const std::string head =
      R"(data: {"id":"cmpl-42","object":"text_completion","created":1700000000,)"
      R"("model":"tiny","system_fingerprint":"baton-test","choices":[)";
  EXPECT_EQ(
      play_completion(R"(,"stream":true)", ending(FinishReason::stop)),
      head + R"({"index":0,"text":"Hi \"you\"\n","logprobs":null,"finish_reason":null}]})" +
          "\n\n" + head + R"({"index":0,"text":"你","logprobs":null,"finish_reason":null}]})" +
          "\n\n" + head +
          R"({"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}]})" +
          "\n\n" + "data: [DONE]\n\n");
}

TEST(Reply, StreamedChatWithUsage) {
  const std::string head =
      R"(data: {"id":"chatcmpl-42","object":"chat.completion.chunk",)"
      R"("created":1700000000,"model":"tiny","system_fingerprint":"baton-test","choices":[)";
  const std::string tail = R"(}],"usage":null})"
                           "\n\n";
  EXPECT_EQ(
      play_chat(R"(,"stream":true,"stream_options":{"include_usage":true})",
                ending(FinishReason::length)),
      head +
          R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null)" +
          tail + head +
          R"({"index":0,"delta":{"content":"Hi \"you\"\n"},"logprobs":null,"finish_reason":null)" +
          tail + head +
          R"({"index":0,"delta":{"content":"你"},"logprobs":null,"finish_reason":null)" + tail +
          head +
          R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null)" +
          tail + head + R"(],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,)" +
          R"("prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":0}}})" +
          "\n\n" + "data: [DONE]\n\n");
}

TEST(Reply, TellsWhereTheTimeWentIfItIsAsked) {
  Usage usage = kUsage;
  usage.timing = ToldTiming{.decode_steps = 4, .median_gap = 20 * kMillisecond};
  usage.timing->spent[static_cast<std::size_t>(Part::queue)] = 1'500'000;
  usage.timing->spent[static_cast<std::size_t>(Part::decode)] = 80'000'000;
  EXPECT_EQ(server_timing(*usage.timing), "queue;dur=1.500, decode;dur=80.000, total;dur=81.500");
  for (const std::string stream : {"", R"("stream":true,)"}) {
    const auto request = good(parse_completion(
        R"({"prompt":"hello",)" + stream + R"("stream_options":{"include_timing":true}})",
        small_context(), tiny_model()));
    EXPECT_TRUE(request.timing);
    std::string bytes = request.reply->begin(0, nullptr);
    request.reply->end(0, ending(FinishReason::stop));
    bytes = request.reply->finish(usage);
    if (!stream.empty()) bytes = bytes.substr(6, bytes.find('\n') - 6);
    const Json told = Json::parse(bytes);
    EXPECT_EQ(told.contains("usage"), stream.empty());
    const Json& timing = told.at("timing");
    EXPECT_EQ(timing.size(), kParts + 3);
    EXPECT_EQ(timing.at("total_ms"), 81.5);
    EXPECT_EQ(timing.at("queue_ms"), 1.5);
    EXPECT_EQ(timing.at("read_ms"), 0.0);
    EXPECT_EQ(timing.at("decode_steps"), 4);
    EXPECT_EQ(timing.at("median_gap_ms"), 20.0);
  }
}

TEST(Reply, StreamsTellTheUsageSoFar) {
  const std::string bytes = play_completion(
      R"(,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})",
      ending(FinishReason::stop));
  const auto prompt = static_cast<int>(tiny_model().tokenizer->encode("hello", true).size());
  std::vector<int> made;
  std::size_t at = 0;
  while ((at = bytes.find("data: {", at)) != bytes.npos) {
    const Json event = Json::parse(bytes.substr(at + 6, bytes.find('\n', at) - at - 6));
    at += 6;
    if (event.at("choices").empty()) continue;
    const Json& usage = event.at("usage");
    EXPECT_EQ(usage.at("prompt_tokens"), prompt);
    made.push_back(usage.at("completion_tokens"));
    EXPECT_EQ(usage.at("total_tokens"), prompt + made.back());
  }
  EXPECT_EQ(made, (std::vector<int>{1, 3, 3}));  // the second token has no text of its own
}

TEST(Reply, Generate) {
  EXPECT_EQ(play_generate("", ending(FinishReason::stop)),
            R"({"generated_text":"helloHi \"you\"\n你"})");
  EXPECT_EQ(play_generate(R"(,"stream":true)", ending(FinishReason::stop)),
            "data: {\"text\":\"Hi \\\"you\\\"\\n\"}\n\ndata: {\"text\":\"你\"}\n\n"
            "data: {\"finish_reason\":\"stop\",\"prompt_tokens\":3,\"completion_tokens\":5}\n\n"
            "data: [DONE]\n\n");
}

// Whatever comes as text, every event is JSON; nothing can break out of it.
TEST(Reply, EveryEventIsJson) {
  const std::string nasty = std::string("\0\x1b\xFF\"\\\n\ndata: x\r\n", 16);
  for (const char* options :
       {R"("stream":true)", R"("stream":true,"stream_options":{"include_usage":true})"}) {
    auto context = small_context();
    context.request_id = "a\"b\n";
    const auto request = good(
        parse_completion(std::string(R"({"prompt":"x",)") + options + "}", context, tiny_model()));
    std::string bytes = request.reply->begin(0, nullptr);
    bytes += request.reply->text({0, nasty, 5});
    bytes += request.reply->end(0, {FinishReason::stop, nasty});
    bytes += request.reply->finish(kUsage);
    int events = 0;
    while (!bytes.empty()) {
      const auto end = bytes.find("\n\n");
      ASSERT_NE(end, bytes.npos);
      const std::string event = bytes.substr(0, end);
      bytes.erase(0, end + 2);
      ASSERT_EQ(event.find('\n'), event.npos);
      ASSERT_EQ(event.substr(0, 6), "data: ");
      if (event != "data: [DONE]") {
        EXPECT_TRUE(Json::parse(event.substr(6)).contains("choices"));
      }
      ++events;
    }
    EXPECT_GE(events, 3);
  }
}

TEST(Reply, ErrorsEndAStreamWithAnErrorEvent) {
  const Status status(ErrorCode::deadline_exceeded, "5 s are over");
  const auto completion = [&](const std::string& fields) {
    return play_failure(
        parse_completion(R"({"prompt":"hello")" + fields + "}", small_context(), tiny_model()),
        status);
  };
  const auto chat = [&](const std::string& fields) {
    return play_failure(
        parse_chat_completion(R"({"messages":[{"role":"user","content":"x"}])" + fields + "}",
                              small_context(), tiny_model()),
        status);
  };
  const auto generate = [&](const std::string& fields) {
    return play_failure(
        parse_generate(R"({"prompt":"hello")" + fields + "}", small_context(), tiny_model()),
        status);
  };
  const std::string error =
      R"({"error":{"message":"5 s are over","type":"timeout_error","param":null,"code":"deadline_exceeded"}})";
  const auto ends_with = [](const std::string& bytes, const std::string& tail) {
    return bytes.size() >= tail.size() &&
           bytes.compare(bytes.size() - tail.size(), tail.size(), tail) == 0;
  };
  const std::string tail = "\n\ndata: " + error + "\n\ndata: [DONE]\n\n";
  for (const std::string& bytes : {completion(R"(,"stream":true)"), chat(R"(,"stream":true)"),
                                   generate(R"(,"stream":true)")}) {
    EXPECT_TRUE(ends_with(bytes, tail)) << bytes;
    EXPECT_EQ(bytes.find(R"("finish_reason":")"), bytes.npos) << "looks finished";
  }
  EXPECT_EQ(completion(""), error);
  EXPECT_EQ(chat(""), error);
  EXPECT_EQ(generate(""), error);
}

TEST(HttpErrors, StatusOfEveryCode) {
  const std::pair<ErrorCode, int> table[] = {
      {ErrorCode::invalid_argument, 400}, {ErrorCode::too_long, 400},
      {ErrorCode::queue_full, 429},       {ErrorCode::deadline_exceeded, 504},
      {ErrorCode::cancelled, 499},        {ErrorCode::worker_crashes, 500},
      {ErrorCode::kv_exhausted, 500},     {ErrorCode::unavailable, 503},
      {ErrorCode::internal, 500},
  };
  for (const auto& [code, status] : table) {
    const HttpError error = http_error(Status(code, "why\n\"x\""), "field");
    EXPECT_EQ(error.status, status);
    EXPECT_EQ(error_of(error)["message"], "why\n\"x\"");
    EXPECT_EQ(error_of(error)["param"], "field");
    EXPECT_EQ(error.retry_after_s, status == 429 || status == 503 ? 1U : 0U);
  }
  EXPECT_EQ(http_error(Status(ErrorCode::queue_full, "x"), "", 9).retry_after_s, 9U);
  EXPECT_EQ(
      http_error(404, "no route", "not_found").body,
      R"({"error":{"message":"no route","type":"invalid_request_error","param":null,"code":"not_found"}})");
  EXPECT_EQ(http_error(500, "x", "y").body,
            R"({"error":{"message":"x","type":"server_error","param":null,"code":"y"}})");
}

TEST(HttpErrors, EndingsWithoutAMessageStillSayWhy) {
  const Status cancelled = ending_status(FinishReason::cancelled, ErrorCode::ok, "");
  EXPECT_EQ(cancelled.code(), ErrorCode::cancelled);
  EXPECT_FALSE(cancelled.message().empty());
  EXPECT_EQ(ending_status(FinishReason::error, ErrorCode::ok, "").code(), ErrorCode::internal);
  EXPECT_EQ(ending_status(FinishReason::error, ErrorCode::too_long, "x").message(), "x");
  EXPECT_TRUE(ending_status(FinishReason::stop, ErrorCode::ok, "").ok());
  EXPECT_TRUE(ending_status(FinishReason::length, ErrorCode::ok, "").ok());
}

TEST(IndexPage, TextForCurlAndEscapedHtmlForBrowsers) {
  IndexFacts facts;
  facts.model = "it's <b>";
  facts.version = "0.1";
  facts.address = "localhost:8000";
  facts.state = "2 workers ready";
  facts.ready = true;
  facts.max_context = 32768;
  facts.doors = {{"openai", {"POST /v1/completions"}}, {"tgi", {"POST /generate_stream"}}};
  const IndexPage text = index_page(facts, "*/*");
  EXPECT_EQ(text.content_type, "text/plain; charset=utf-8");
  EXPECT_NE(text.body.find("http://localhost:8000/v1/chat/completions"), std::string::npos);
  EXPECT_NE(text.body.find("\"it'\\''s <b>\""), std::string::npos);
  EXPECT_NE(text.body.find("32768 tokens"), std::string::npos);
  EXPECT_NE(text.body.find("tgi\n    POST /generate_stream"), std::string::npos);
  EXPECT_EQ(text.body.find("min_length"), std::string::npos) << "the lab is not spoken there";
  const IndexPage html = index_page(facts, "text/html,application/xhtml+xml");
  EXPECT_EQ(html.content_type, "text/html; charset=utf-8");
  EXPECT_EQ(html.body.find("<b>"), std::string::npos);
  facts.address = "evil'; rm -rf /";
  EXPECT_EQ(index_page(facts, "").body.find("evil"), std::string::npos);
}

}  // namespace
}  // namespace baton
