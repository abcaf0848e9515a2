#include "frontend/http/request_facts.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "frontend/core/percent_decoded.h"

namespace baton {

bool takes_any_model(const std::vector<const Dialect*>& dialects) {
  return std::any_of(dialects.begin(), dialects.end(), [](const Dialect* dialect) {
    return std::string_view(dialect->name()) == "tgi";
  });
}

std::shared_ptr<const TraceContext> trace_of(const HttpRequest& request) {
  const std::string* parent = request.header("traceparent");
  if (parent == nullptr) return nullptr;
  const std::string* state = request.header("tracestate");
  auto context = parse_trace_context(*parent, state == nullptr ? std::string() : *state);
  return context ? std::make_shared<const TraceContext>(std::move(*context)) : nullptr;
}

ReplyFrame reply_frame(const HttpRequest& request, const Dialect* dialect, const Cors& cors) {
  ReplyFrame frame;
  frame.dialect = dialect;
  frame.keep_alive = request.keep_alive;
  frame.head_only = request.method == "HEAD";
  frame.minor = request.minor;
  frame.asked = asked_text(request.method, request.path());
  frame.cors = &cors.reply_headers(request);
  frame.trace = trace_of(request);
  if (const std::string* asked = request.header(kLoadFormatHeader))
    frame.load_format = load_format(*asked);
  return frame;
}

std::optional<std::size_t> find_key(const HttpRequest& request, const ApiKeys& keys) {
  const std::string* bearer = request.header("authorization");
  const std::string* bare = request.header("x-api-key");
  const auto key = bearer == nullptr ? std::nullopt : keys.find(*bearer);
  return key || bare == nullptr ? key : keys.find_secret(*bare);
}

std::optional<std::string> query_value(const HttpRequest& request, std::string_view key) {
  std::string_view query = request.target;
  query.remove_prefix(std::min(request.path().size() + 1, query.size()));
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.starts_with(key) && pair.substr(key.size()).starts_with('=')) {
      return percent_decoded(pair.substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

RequestContext request_context(const HttpRequest& request, const ReplyFacts& facts,
                               const IntakeSettings& settings) {
  RequestContext context;
  context.request_id = facts.request_id;
  context.path = request.path();
  context.unix_seconds = facts.unix_seconds(facts.received);
  context.received = facts.received;
  context.wall_offset = facts.wall_offset;
  context.max_context = facts.max_context;
  context.max_choices = settings.max_choices;
  context.default_timeout = settings.default_timeout;
  context.max_timeout = settings.max_timeout;
  context.strict_fields = settings.strict_fields;
  context.drop_billing_header = settings.drop_billing_header;
  context.any_model = settings.any_model;
  context.zero_bytes = settings.zero_bytes;
  context.schemas = settings.schemas;
  return context;
}

}  // namespace baton
