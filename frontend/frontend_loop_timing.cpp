// What the loop tells, and keeps, of where requests' time went.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "frontend/frontend_loop.h"

namespace baton {

void FrontendLoop::keep_times() {
  if (options_.timing_file.empty()) return;
  Result<TimingRing> ring = TimingRing::open(options_.timing_file);
  if (ring.ok()) {
    ring_ = std::move(ring.value());
  } else {
    spdlog::warn("where requests' time goes is not kept: {}", ring.status().message());
  }
}

/// Before the last choice ends, since the reply ends with it: what a head and a last event can say.
void FrontendLoop::tell_timing(Reply& reply) {
  if (!reply.rendered.tells_timing()) return;
  const LastEnd& end = *reply.last_end;
  FrontendMarks marks = reply.marks;
  marks.submitted = end.submitted;
  marks.written = now_;
  const PartTimes spent = split_time(marks, end.timing ? &*end.timing : nullptr);
  ReplyTimed told{.spent = spent};
  if (end.timing) {
    // Of a stop string the scheduler does not know yet.
    told.decode_steps = end.timing->ended ? end.timing->decode_steps : std::max(end.n, 1U) - 1;
    told.median_gap = end.timing->median_gap;
  }
  apply(reply, told);
}

/// Once its last byte is out, and the scheduler has said its last word of it.
void FrontendLoop::explain_later(Reply& reply, const std::string& end, int status) {
  if (tracer_.on()) trace_end(reply, end, status);
  EndedRequest ended;
  const Usage usage = reply.rendered.usage();
  ended.request.request_id = reply.frame().request_id;
  ended.request.asked = reply.frame().asked;
  ended.request.front_end = options_.identity.name;
  ended.request.generation = options_.identity.generation;
  ended.request.end = end;
  ended.request.status = static_cast<std::uint32_t>(status);
  ended.request.choices = static_cast<std::uint32_t>(reply.counters.size());
  ended.request.prompt_tokens = usage.prompt_tokens;
  ended.request.tokens = usage.completion_tokens;
  ended.marks = reply.marks;
  ended.wall_offset = reply.rendered.facts().wall_offset;
  if (reply.times.first_token != 0)
    ended.request.first_token = reply.times.first_token - reply.marks.first_byte;
  std::uint64_t counter = reply.counters.empty() ? 0 : reply.counters.front();
  if (reply.last_end) {
    counter = reply.last_end->counter;
    ended.marks.submitted = reply.last_end->submitted;
    ended.request.attempts = reply.last_end->attempts;
    ended.timing = std::move(reply.last_end->timing);
  }
  if (ended.marks.ended == 0) ended.marks.ended = now_;
  if (!reply.last_end || !reply.last_end->told) ended.awaited = counter;
  ended.request.name = {options_.identity.incarnation, counter};
  ended.span = std::move(reply.span);
  ended.model = reply.model;
  explainer_.ended(reply.connection->id(), std::move(ended));
}

void FrontendLoop::keep(EndedRequest ended) {
  ExplainedRequest& request = ended.request;
  if (request.told) links_[ended.model]->metrics.request_parts(request.spent);
  if (ended.span && options_.spans != nullptr) options_.spans->add(request, std::move(*ended.span));
  if (ring_) ring_->add(std::move(request));
}

// ------------------------------------------------------------------------- spans of requests

/// `request`: one that generates; null: it was refused before it was one.
std::unique_ptr<SpanFacts> FrontendLoop::open_span(const ReplyFrame& frame, const char* route,
                                                   const ClientConnection& connection,
                                                   const ParsedRequest* request) {
  if (options_.spans == nullptr) return nullptr;
  auto span = options_.spans->open(frame.trace.get());
  if (!span) return nullptr;
  span->client = connection.peer;
  if (std::string_view(route) != kNoRoute) span->route = route;
  if (request == nullptr) return span;
  span->generates = true;
  span->stream = request->stream;
  span->max_tokens = request->sampling.max_tokens;
  span->temperature = request->sampling.temperature;
  span->top_p = request->sampling.top_p;
  span->top_k = request->sampling.top_k;
  return span;
}

/// One of the API's that was refused: pages that browsers and probes ask for are none of a trace's
/// business.
void FrontendLoop::tell_refusal(const Job& job, const HttpReply& reply) {
  if (!job.frame.asked.starts_with("POST ")) return;
  auto span = open_span(job.frame, job.route, *job.connection, nullptr);
  if (!span) return;
  span->error = reply.reason;
  ExplainedRequest request;
  request.request_id = job.frame.request_id;
  request.asked = job.frame.asked;
  request.front_end = options_.identity.name;
  request.end = std::to_string(reply.status);
  request.status = static_cast<std::uint32_t>(reply.status);
  const TimeNs received = job.received == 0 ? now_ : job.received;
  const FrontendMarks marks{.first_byte = std::min(job.connection->first_byte, received),
                            .whole = received,
                            .opened = now_,
                            .written = now_};
  const PartTimes spent = split_time(marks, nullptr);
  request.spent.assign(spent.begin(), spent.end());
  request.total = marks.written - marks.first_byte;
  request.at = static_cast<std::uint64_t>(wall_ns() - now_ns() + marks.first_byte);
  options_.spans->add(std::move(request), std::move(*span));
}

// ---------------------------------------------------------------------- while somebody traces

void FrontendLoop::look_for_trace() {
  if (!tracer_.look(now_)) return;
  for (const auto& [connection, reply] : replies_) trace_request(reply);
}

void FrontendLoop::trace_request(const Reply& reply) {
  if (reply.counters.empty()) return;
  const FrontendMarks& marks = reply.marks;
  TraceRecord record{
      .kind = TraceKind::request, .at = marks.first_byte, .took = marks.whole - marks.first_byte};
  record.args = {options_.identity.incarnation, reply.counters.front(),
                 std::uint64_t{reply.counters.size()} << 32U | reply.rendered.usage().prompt_tokens,
                 static_cast<std::uint64_t>(marks.opened)};
  tracer_.add(record, reply.frame().request_id);
}

void FrontendLoop::trace_first_token(const Reply& reply) {
  TraceRecord record{.kind = TraceKind::first_token, .at = now_};
  record.args = {options_.identity.incarnation, reply.counters.front()};
  tracer_.add(record);
}

void FrontendLoop::trace_end(const Reply& reply, const std::string& end, int status) {
  if (reply.counters.empty()) return;
  const TimeNs first_byte = reply.marks.first_byte;
  TraceRecord record{.kind = TraceKind::request_end, .at = first_byte, .took = now_ - first_byte};
  record.args = {options_.identity.incarnation, reply.counters.front(),
                 reply.rendered.usage().completion_tokens, static_cast<std::uint64_t>(status)};
  tracer_.add(record, end);
}

void FrontendLoop::trace_refusal(const Job& job, int status) {
  const TimeNs first_byte = std::min(job.connection->first_byte, job.received);
  TraceRecord record{.kind = TraceKind::refused, .at = first_byte, .took = now_ - first_byte};
  record.args = {static_cast<std::uint64_t>(status)};
  tracer_.add(record, job.frame.asked);
}

}  // namespace baton
