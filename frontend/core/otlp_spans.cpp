#include "frontend/core/otlp_spans.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "frontend/core/trace_context.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

// Enums are numbers in OTLP's JSON.
constexpr int kInternal = 1;
constexpr int kServer = 2;
constexpr int kFailed = 2;  // of a status
constexpr std::uint32_t kSampled = 1;
constexpr std::uint32_t kKnowsParent = 0x100;  // the next flag means something
constexpr std::uint32_t kRemoteParent = 0x200;
constexpr std::size_t kLongestText = 300;

/// 64-bit numbers are decimal strings there.
std::string decimal(std::uint64_t value) { return std::to_string(value); }
std::string unix_ns(std::uint64_t base, TimeNs since) {
  return decimal(base + static_cast<std::uint64_t>(std::max<TimeNs>(0, since)));
}

class Attributes {
 public:
  Attributes& text(const char* key, std::string_view value) {
    return add(key, {{"stringValue", value.substr(0, kLongestText)}});
  }
  Attributes& number(const char* key, std::int64_t value) {
    return add(key, {{"intValue", std::to_string(value)}});
  }
  Attributes& real(const char* key, double value) { return add(key, {{"doubleValue", value}}); }
  Attributes& flag(const char* key, bool value) { return add(key, {{"boolValue", value}}); }
  Attributes& texts(const char* key, const std::vector<std::string>& values) {
    Json list = Json::array();
    for (const std::string& value : values)
      list.push_back({{"stringValue", value.substr(0, kLongestText)}});
    return add(key, {{"arrayValue", {{"values", std::move(list)}}}});
  }
  Json take() { return std::move(list_); }

 private:
  Attributes& add(const char* key, Json value) {
    list_.push_back({{"key", key}, {"value", std::move(value)}});
    return *this;
  }
  Json list_ = Json::array();
};

double in_seconds(TimeNs time) { return static_cast<double>(time) * 1e-9; }
double milliseconds(TimeNs time) { return static_cast<double>(time) * 1e-6; }

/// "POST /v1/completions" -> method and path.
std::pair<std::string, std::string> asked_parts(const std::string& asked) {
  const std::size_t blank = asked.find(' ');
  if (blank == std::string::npos) return {asked, ""};
  return {asked.substr(0, blank), asked.substr(blank + 1)};
}

const char* operation_of(std::string_view path) {
  for (const char* word : {"chat", "messages", "responses"}) {
    if (path.find(word) != std::string_view::npos) return "chat";
  }
  return "text_completion";
}

/// Then a part's span is as long as all its times together, which may have been several.
bool interrupted(const ExplainedRequest& request) {
  const auto spent = [&](Part part) {
    const auto i = static_cast<std::size_t>(part);
    return i < request.spent.size() && request.spent[i] > 0;
  };
  return request.timing.preemptions > 0 || request.timing.deaths > 0 || request.attempts > 1 ||
         spent(Part::requeue) || spent(Part::recompute) || spent(Part::away);
}

class Spans {
 public:
  Spans(const SpanSource& source, const std::function<std::uint64_t()>& random)
      : source_(source), random_(random) {}

  void add(const FinishedRequest& finished);
  Json take() { return std::move(spans_); }

 private:
  std::string new_id() {
    std::uint64_t id = random_();
    if (id == 0) id = 1;  // all zero is no id
    std::array<std::uint8_t, 8> bytes{};
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(id);
      id >>= 8U;
    }
    return hex_text(bytes);
  }
  Json root(const FinishedRequest& finished, const std::string& trace, const std::string& id);
  Json about(const FinishedRequest& finished, const std::string& method, const std::string& path);
  static Json events(const ExplainedRequest& request);
  void parts(const FinishedRequest& finished, const std::string& trace, const std::string& parent);

  const SpanSource& source_;
  const std::function<std::uint64_t()>& random_;
  Json spans_ = Json::array();
};

void Spans::add(const FinishedRequest& finished) {
  const std::string trace = hex_text(finished.facts.trace);
  const std::string id = new_id();
  spans_.push_back(root(finished, trace, id));
  parts(finished, trace, id);
}

Json Spans::root(const FinishedRequest& finished, const std::string& trace, const std::string& id) {
  const ExplainedRequest& request = finished.request;
  const SpanFacts& facts = finished.facts;
  const auto [method, path] = asked_parts(request.asked);
  const bool remote =
      std::any_of(facts.parent.begin(), facts.parent.end(), [](auto byte) { return byte != 0; });
  Json span = {{"traceId", trace}, {"spanId", id}};
  if (!facts.state.empty()) span["traceState"] = facts.state;
  if (remote) span["parentSpanId"] = hex_text(facts.parent);
  span["flags"] = kSampled | kKnowsParent | (remote ? kRemoteParent : 0U);
  // Clients choose paths that no route has.
  span["name"] = facts.route.empty() ? method : method + " " + facts.route;
  span["kind"] = kServer;
  span["startTimeUnixNano"] = unix_ns(request.at, 0);
  span["endTimeUnixNano"] = unix_ns(request.at, request.total);
  span["attributes"] = about(finished, method, path);
  Json happened = events(request);
  if (!happened.empty()) span["events"] = std::move(happened);
  // Of a server's span only its own errors are failures, by the conventions for HTTP. A status of
  // 200 whose stream failed later is one, too.
  const bool good = request.end == "length" || request.end == "stop";
  const bool client_left = request.status == 0;
  if (request.status >= 500 || (request.status < 400 && !good && !client_left)) {
    span["status"] = {
        {"code", kFailed},
        {"message", facts.error.empty() ? request.end : facts.error.substr(0, kLongestText)}};
  }
  return span;
}

Json Spans::about(const FinishedRequest& finished, const std::string& method,
                  const std::string& path) {
  const ExplainedRequest& request = finished.request;
  const SpanFacts& facts = finished.facts;
  Attributes all;
  all.text("http.request.method", method).text("url.path", path);
  if (!facts.route.empty()) all.text("http.route", facts.route);
  if (request.status != 0) all.number("http.response.status_code", request.status);
  if (!facts.client.empty()) all.text("client.address", facts.client);
  const bool good = request.end == "length" || request.end == "stop";
  if (!good || request.status >= 400) all.text("error.type", request.end);
  if (!facts.error.empty()) all.text("baton.error", facts.error);
  all.text("baton.request_id", request.request_id);
  if (!facts.generates) return all.take();
  const RequestTiming& timing = request.timing;
  const std::string& model = facts.model.empty() ? source_.model : facts.model;
  all.text("gen_ai.operation.name", operation_of(path))
      .text("gen_ai.provider.name", "baton")
      .text("gen_ai.request.model", model)
      .text("gen_ai.response.model", model)
      .text("gen_ai.response.id", request.request_id)
      .number("gen_ai.request.max_tokens", facts.max_tokens)
      .real("gen_ai.request.temperature", facts.temperature)
      .real("gen_ai.request.top_p", facts.top_p)
      .number("gen_ai.usage.input_tokens", request.prompt_tokens)
      .number("gen_ai.usage.output_tokens", request.tokens);
  if (facts.top_k > 0) all.number("gen_ai.request.top_k", facts.top_k);
  if (request.choices != 1) all.number("gen_ai.request.choice.count", request.choices);
  if (good) all.texts("gen_ai.response.finish_reasons", {request.end});
  if (request.first_token != 0)
    all.real("gen_ai.response.time_to_first_chunk", in_seconds(request.first_token));
  all.flag("baton.stream", facts.stream)
      .number("baton.attempts", request.attempts)
      .number("baton.preemptions", timing.preemptions)
      .number("baton.deaths", timing.deaths);
  if (request.told)
    all.number("gen_ai.usage.cache_read.input_tokens",
               std::int64_t{timing.cached_tokens} + timing.pulled_tokens);
  all.flag("baton.parts_are_sums", interrupted(request));
  return all.take();
}

/// The scheduler's moments, each at its time.
Json Spans::events(const ExplainedRequest& request) {
  Json list = Json::array();
  const auto add = [&](TimeNs at, const char* name, Json attributes) {
    Json event = {{"timeUnixNano", unix_ns(request.at, at)}, {"name", name}};
    if (!attributes.empty()) event["attributes"] = std::move(attributes);
    list.push_back(std::move(event));
  };
  TimeNs before = 0;  // the scheduler had it
  for (const Part part : {Part::read, Part::tokenise, Part::unsent, Part::submit}) {
    const auto i = static_cast<std::size_t>(part);
    if (i < request.spent.size()) before += request.spent[i];
  }
  const RequestTiming& timing = request.timing;
  for (const Moment& moment : timing.moments) {
    Attributes what;
    if (moment.worker < timing.workers.size())
      what.text("baton.worker", timing.workers[moment.worker]);
    if (moment.took > 0) what.real("baton.took_ms", milliseconds(moment.took));
    if (moment.tokens > 0) {
      const bool blocks = moment.kind == static_cast<std::uint32_t>(MomentKind::pull);
      what.number(blocks ? "baton.blocks" : "baton.tokens", moment.tokens);
    }
    if (moment.kind == static_cast<std::uint32_t>(MomentKind::gap))
      what.text("baton.cause", to_string(static_cast<GapCause>(moment.cause)));
    add(std::min(before + moment.at, request.total),
        to_string(static_cast<MomentKind>(moment.kind)), what.take());
  }
  if (request.first_token != 0) add(request.first_token, "first_token", Json::array());
  std::stable_sort(list.begin(), list.end(), [](const Json& a, const Json& b) {
    const auto& x = a["timeUnixNano"].get_ref<const std::string&>();
    const auto& y = b["timeUnixNano"].get_ref<const std::string&>();
    return x.size() != y.size() ? x.size() < y.size() : x < y;
  });
  return list;
}

/// One after another, as a request that nothing interrupts goes through them; they end with it.
void Spans::parts(const FinishedRequest& finished, const std::string& trace,
                  const std::string& parent) {
  const ExplainedRequest& request = finished.request;
  const RequestTiming& timing = request.timing;
  TimeNs at = 0;
  for (std::size_t i = 0; i < std::min(request.spent.size(), kParts); ++i) {
    const TimeNs took = request.spent[i];
    if (took <= 0) continue;
    const auto part = static_cast<Part>(i);
    Attributes what;
    if (part == Part::queue && !timing.reasons.empty()) {
      std::vector<std::string> reasons;
      for (const QueueReason& reason : timing.reasons) reasons.push_back(reason.why);
      what.texts("baton.queue.reasons", reasons).number("baton.queue.ahead", timing.ahead);
    } else if (part == Part::prefill) {
      what.number("baton.computed_tokens", timing.computed_tokens);
    } else if (part == Part::decode) {
      what.number("baton.steps", timing.decode_steps);
      what.real("baton.median_gap_ms", milliseconds(timing.median_gap));
    }
    Json span = {{"traceId", trace},
                 {"spanId", new_id()},
                 {"parentSpanId", parent},
                 {"flags", kSampled | kKnowsParent},
                 {"name", to_string(part)},
                 {"kind", kInternal},
                 {"startTimeUnixNano", unix_ns(request.at, at)},
                 {"endTimeUnixNano", unix_ns(request.at, at + took)}};
    if (Json attributes = what.take(); !attributes.empty())
      span["attributes"] = std::move(attributes);
    spans_.push_back(std::move(span));
    at += took;
  }
}

Json resource_of(const SpanSource& source) {
  Attributes all;
  all.text("service.name", source.service)
      .text("service.version", source.version)
      .text("service.instance.id", source.instance)
      .text("host.name", source.host)
      .number("process.pid", source.pid)
      .text("baton.front_end", source.front_end);
  return {{"attributes", all.take()}};
}

}  // namespace

std::string otlp_json(const std::vector<FinishedRequest>& requests, const SpanSource& source,
                      const std::function<std::uint64_t()>& random, std::size_t* spans) {
  Spans made(source, random);
  for (const FinishedRequest& request : requests) made.add(request);
  Json list = made.take();
  if (spans != nullptr) *spans = list.size();
  const Json scope = {{"scope", {{"name", "baton"}, {"version", source.version}}},
                      {"spans", std::move(list)}};
  const Json all = {{"resourceSpans", Json::array({{{"resource", resource_of(source)},
                                                    {"scopeSpans", Json::array({scope})}}})}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton
