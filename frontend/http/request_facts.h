// What a request's head says about its reply, and what its dialect gets to know besides the body:
// the same when a request is read and when a successor reads it again. Pure.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/core/dialect.h"
#include "frontend/core/reply_facts.h"
#include "frontend/http/api_keys.h"
#include "frontend/http/cors.h"
#include "frontend/http/http_framing.h"

namespace baton {

/// From the configuration, and of the port.
struct IntakeSettings {
  std::uint32_t max_choices = 1;
  TimeNs default_timeout = 0;
  TimeNs max_timeout = 0;
  bool strict_fields = false;  // this and the next three: as in RequestContext
  bool drop_billing_header = true;
  bool any_model = false;
  bool zero_bytes = false;
  SchemaDefaults schemas;
};

/// TGI's clients call the model of its chat route "tgi", or anything.
bool takes_any_model(const std::vector<const Dialect*>& dialects);

/// All of a frame but its request's id and key. `cors` must outlive it.
ReplyFrame reply_frame(const HttpRequest& request, const Dialect* dialect, const Cors& cors);

/// What its traceparent and tracestate say; null if it has none, or none that is valid.
std::shared_ptr<const TraceContext> trace_of(const HttpRequest& request);

/// The slot of its key: of the Authorization header, or of the one that Anthropic's clients send.
std::optional<std::size_t> find_key(const HttpRequest& request, const ApiKeys& keys);

/// What the query has of `key`, decoded; nothing: it has no such key.
std::optional<std::string> query_value(const HttpRequest& request, std::string_view key);

RequestContext request_context(const HttpRequest& request, const ReplyFacts& facts,
                               const IntakeSettings& settings);

}  // namespace baton
