// Spans of requests as OTLP in JSON, against the rules of its JSON encoding; and the trace context
// of clients.
#include "frontend/core/otlp_spans.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "frontend/core/trace_context.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, ReadsWhatTheStandardShows) {
  const auto context = parse_trace_context(kParent, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  ASSERT_TRUE(context);
  EXPECT_EQ(hex_text(context->trace), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(hex_text(context->span), "b7ad6b7169203331");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(context->state, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_FALSE(
      parse_trace_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "")->sampled);
  EXPECT_TRUE(
      parse_trace_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", "")->sampled);
  EXPECT_EQ(*parse_trace_context("  " + std::string(kParent) + "\t", ""),
            *parse_trace_context(kParent, ""));
}

TEST(TraceContext, RefusesWhatTheStandardRefuses) {
  for (const char* bad : {
           "",
           "00",
           "x",
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",  // no trace
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",  // no span
           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",  // a version that is none
           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",  // upper case
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",  // not in version 00
           "00-0af7651916cd43dd8448eb211c80319cb7ad6b7169203331-01x",
           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
       }) {
    EXPECT_FALSE(parse_trace_context(bad, "")) << bad;
  }
  EXPECT_FALSE(parse_trace_context(std::string(kParent) + std::string(1000, '-'), ""));
  // Of a version to come, what this one has.
  EXPECT_TRUE(parse_trace_context(
      "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes", ""));
  EXPECT_TRUE(parse_trace_context("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", ""));
}

TEST(TraceContext, AStateThatNobodyMayHandOnIsLeftOut) {
  EXPECT_EQ(parse_trace_context(kParent, std::string(513, 'a'))->state, "");
  EXPECT_EQ(parse_trace_context(kParent, "a=1\x01")->state, "");
  EXPECT_EQ(parse_trace_context(kParent, std::string("a=\xc3\xa4"))->state, "");
}

constexpr std::uint64_t kAt = 1'800'000'000'123'456'789;

FinishedRequest finished() {
  FinishedRequest one;
  ExplainedRequest& request = one.request;
  request.request_id = "mine";
  request.asked = "POST /v1/chat/completions";
  one.facts.route = "/v1/chat/completions";
  request.front_end = "frontend0";
  request.at = kAt;
  request.end = "length";
  request.status = 200;
  request.choices = 1;
  request.prompt_tokens = 20;
  request.tokens = 7;
  request.attempts = 1;
  request.first_token = 40 * kMillisecond;
  request.told = true;
  request.spent.assign(kParts, 0);
  const auto spend = [&](Part part, TimeNs took) {
    request.spent[static_cast<std::size_t>(part)] = took;
    request.total += took;
  };
  spend(Part::read, 1 * kMillisecond);
  spend(Part::tokenise, 2 * kMillisecond);
  spend(Part::queue, 10 * kMillisecond);
  spend(Part::prefill, 20 * kMillisecond);
  spend(Part::handoff, 3 * kMillisecond);
  spend(Part::decode, 50 * kMillisecond);
  spend(Part::write, 500);
  request.timing.cached_tokens = 4;
  request.timing.computed_tokens = 16;
  request.timing.decode_steps = 6;
  request.timing.median_gap = 8 * kMillisecond;
  request.timing.reasons = {{"others are ahead of it", 10 * kMillisecond}};
  request.timing.workers = {"prefill0", "decode0"};
  Moment chunk;
  chunk.kind = static_cast<std::uint32_t>(MomentKind::chunk);
  chunk.at = 10 * kMillisecond;
  chunk.took = 20 * kMillisecond;
  chunk.tokens = 16;
  request.timing.moments = {chunk};
  const auto context = parse_trace_context(kParent, "a=1");
  one.facts.trace = context->trace;
  one.facts.parent = context->span;
  one.facts.state = context->state;
  one.facts.client = "192.0.2.7";
  one.facts.generates = true;
  one.facts.max_tokens = 7;
  one.facts.temperature = 0.5F;
  return one;
}

/// All spans of what is sent, checked by the encoding's rules on the way.
struct Sent {
  explicit Sent(const std::vector<FinishedRequest>& requests) {
    std::uint64_t next = 1;
    std::size_t count = 0;
    const SpanSource source{"baton", "demo", "0.1.0", "frontend0", "frontend0-9", "host", 42};
    all = json::parse(otlp_json(
        requests, source, [&] { return next++; }, &count));
    EXPECT_EQ(all.size(), 1U);
    const json& resource = all.at("resourceSpans").at(0);
    service = attributes(resource.at("resource")).at("service.name").at("stringValue");
    for (const json& span : resource.at("scopeSpans").at(0).at("spans")) check(span);
    EXPECT_EQ(count, spans.size());
  }
  void check(const json& span) {
    static const std::regex kTrace("[0-9a-f]{32}"), kSpan("[0-9a-f]{16}"), kDecimal("[0-9]{1,20}");
    EXPECT_TRUE(std::regex_match(span.at("traceId").get<std::string>(), kTrace));
    const std::string id = span.at("spanId");
    EXPECT_TRUE(std::regex_match(id, kSpan));
    EXPECT_TRUE(ids.insert(id).second) << "an id twice: " << id;
    for (const char* time : {"startTimeUnixNano", "endTimeUnixNano"})
      EXPECT_TRUE(std::regex_match(span.at(time).get<std::string>(), kDecimal)) << span;
    EXPECT_LE(span["startTimeUnixNano"].get<std::string>(),
              span["endTimeUnixNano"].get<std::string>());
    EXPECT_TRUE(span.at("kind").is_number_integer());
    for (const auto& [key, value] : attributes(span)) {
      ASSERT_EQ(value.size(), 1U) << key;
      if (value.contains("intValue")) {
        EXPECT_TRUE(value["intValue"].is_string()) << key;
      }
    }
    spans.push_back(span);
  }
  static std::map<std::string, json> attributes(const json& of) {
    std::map<std::string, json> found;
    if (of.contains("attributes")) {
      for (const json& one : of["attributes"]) found[one.at("key")] = one.at("value");
    }
    return found;
  }
  static std::uint64_t time(const json& span, const char* which) {
    return std::stoull(span.at(which).get<std::string>());
  }

  json all;
  std::string service;
  std::vector<json> spans;
  std::set<std::string> ids;
};

TEST(OtlpSpans, ARequestIsARootUnderItsClientsSpanWithItsPartsInOrder) {
  const Sent sent({finished()});
  EXPECT_EQ(sent.service, "baton");
  ASSERT_EQ(sent.spans.size(), 8U);
  const json& root = sent.spans[0];
  EXPECT_EQ(root["name"], "POST /v1/chat/completions");
  EXPECT_EQ(Sent::attributes(root).at("http.route").at("stringValue"), "/v1/chat/completions");
  EXPECT_EQ(root["kind"], 2);
  EXPECT_EQ(root["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(root["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(root["traceState"], "a=1");
  EXPECT_EQ(root["flags"], 0x301);
  EXPECT_FALSE(root.contains("status"));
  EXPECT_EQ(Sent::time(root, "startTimeUnixNano"), kAt);
  EXPECT_EQ(Sent::time(root, "endTimeUnixNano"), kAt + 86'000'500);
  std::vector<std::string> names;
  std::uint64_t at = kAt;
  for (std::size_t i = 1; i < sent.spans.size(); ++i) {
    const json& part = sent.spans[i];
    names.push_back(part["name"]);
    EXPECT_EQ(part["parentSpanId"], root["spanId"]);
    EXPECT_EQ(part["traceId"], root["traceId"]);
    EXPECT_EQ(part["kind"], 1);
    EXPECT_EQ(Sent::time(part, "startTimeUnixNano"), at);
    at = Sent::time(part, "endTimeUnixNano");
  }
  EXPECT_EQ(at, Sent::time(root, "endTimeUnixNano"));
  EXPECT_EQ(names, (std::vector<std::string>{"read", "tokenise", "queue", "prefill", "handoff",
                                             "decode", "write"}));
}

TEST(OtlpSpans, AttributesAreThoseOfTheConventions) {
  const Sent sent({finished()});
  const auto root = Sent::attributes(sent.spans[0]);
  const std::map<std::string, std::string> texts = {
      {"http.request.method", "POST"},   {"url.path", "/v1/chat/completions"},
      {"gen_ai.operation.name", "chat"}, {"gen_ai.provider.name", "baton"},
      {"gen_ai.request.model", "demo"},  {"gen_ai.response.id", "mine"},
      {"client.address", "192.0.2.7"}};
  for (const auto& [key, value] : texts) EXPECT_EQ(root.at(key).at("stringValue"), value) << key;
  const std::map<std::string, std::string> numbers = {{"http.response.status_code", "200"},
                                                      {"gen_ai.usage.input_tokens", "20"},
                                                      {"gen_ai.usage.output_tokens", "7"},
                                                      {"gen_ai.usage.cache_read.input_tokens", "4"},
                                                      {"gen_ai.request.max_tokens", "7"}};
  for (const auto& [key, value] : numbers) EXPECT_EQ(root.at(key).at("intValue"), value) << key;
  EXPECT_EQ(root.at("gen_ai.response.finish_reasons"),
            json::parse(R"({"arrayValue": {"values": [{"stringValue": "length"}]}})"));
  EXPECT_DOUBLE_EQ(root.at("gen_ai.response.time_to_first_chunk").at("doubleValue"), 0.04);
  EXPECT_EQ(root.count("error.type"), 0U);
  EXPECT_EQ(root.at("baton.parts_are_sums").at("boolValue"), false);
  const json& events = sent.spans[0]["events"];
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["name"], "chunk");
  EXPECT_EQ(Sent::time(events[0], "timeUnixNano"), kAt + 13'000'000);  // 3 ms before the scheduler
  EXPECT_EQ(events[1]["name"], "first_token");
  EXPECT_EQ(Sent::attributes(sent.spans[3])
                .at("baton.queue.reasons")
                .at("arrayValue")
                .at("values")
                .size(),
            1U);
}

TEST(OtlpSpans, ANameIsOfFewWhateverClientsAskFor) {
  FinishedRequest one = finished();
  one.request.asked = "POST /tell me a secret";
  one.facts.route.clear();
  const Sent unrouted({one});
  EXPECT_EQ(unrouted.spans[0]["name"], "POST");
  EXPECT_EQ(Sent::attributes(unrouted.spans[0]).count("http.route"), 0U);
  one.facts.route = "/mii/:name";
  EXPECT_EQ(Sent({one}).spans[0]["name"], "POST /mii/:name");
}

TEST(OtlpSpans, OneThatItsClientDidNotPlaceInATraceIsARootOfItsOwn) {
  FinishedRequest one = finished();
  one.facts.parent = {};
  one.facts.state.clear();
  one.request.asked = "POST /v1/completions";
  one.request.timing.deaths = 1;
  const Sent sent({one});
  EXPECT_FALSE(sent.spans[0].contains("parentSpanId"));
  EXPECT_FALSE(sent.spans[0].contains("traceState"));
  EXPECT_EQ(sent.spans[0]["flags"], 0x101);
  const auto root = Sent::attributes(sent.spans[0]);
  EXPECT_EQ(root.at("gen_ai.operation.name").at("stringValue"), "text_completion");
  EXPECT_EQ(root.at("baton.parts_are_sums").at("boolValue"), true);
}

TEST(OtlpSpans, OnlyTheServersOwnErrorsFailASpan) {
  const auto root = [](const std::string& end, std::uint32_t status) {
    FinishedRequest one = finished();
    one.request.end = end;
    one.request.status = status;
    one.facts.error = status == 200 ? "" : "why";
    return Sent({one}).spans[0];
  };
  const json refused = root("400", 400);
  EXPECT_FALSE(refused.contains("status"));
  EXPECT_EQ(Sent::attributes(refused).at("error.type").at("stringValue"), "400");
  EXPECT_EQ(Sent::attributes(refused).at("baton.error").at("stringValue"), "why");
  const json failed = root("worker_crashes", 500);
  EXPECT_EQ(failed.at("status").at("code"), 2);
  EXPECT_EQ(failed.at("status").at("message"), "why");
  const json broken = root("worker_crashes", 200);  // in the middle of its stream
  EXPECT_EQ(broken.at("status").at("message"), "worker_crashes");
  const json left = root("client gone", 0);
  EXPECT_FALSE(left.contains("status"));
  EXPECT_EQ(Sent::attributes(left).count("http.response.status_code"), 0U);
}

TEST(OtlpSpans, ARefusedRequestHasNothingOfAModel) {
  FinishedRequest one = finished();
  one.facts.generates = false;
  one.request.status = 404;
  one.request.end = "404";
  one.request.timing = {};
  one.request.asked = "POST /\xff" + std::string(1000, 'x');
  const Sent sent({one, finished()});
  for (const auto& [key, value] : Sent::attributes(sent.spans[0]))
    EXPECT_NE(key.rfind("gen_ai.", 0), 0U) << key;
  EXPECT_EQ(sent.spans.size(), 16U);
}

}  // namespace
}  // namespace baton
