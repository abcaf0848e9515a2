#include "frontend/core/rendered_reply.h"

#include <algorithm>

#include "frontend/core/dialect.h"
#include "frontend/core/told_timing.h"
#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

constexpr const char* kServerTiming = "Server-Timing";

}  // namespace

RenderedReply::RenderedReply(const Tokenizer& tokenizer, ParsedRequest& request, ReplyFrame frame,
                             ReplyFacts facts)
    : open_(tokenizer, request),
      frame_(std::move(frame)),
      facts_(std::move(facts)),
      headers_(std::move(request.headers)),
      content_type_(std::move(request.content_type)),
      streaming_(request.stream),
      timing_wanted_(request.timing) {
  frame_.load = facts_.load;
  frame_.limits = facts_.limits;
  // Only the end of the connection tells an HTTP/1.0 client where a stream ends.
  if (streaming_ && frame_.minor == 0) frame_.keep_alive = false;
}

bool RenderedReply::apply(const ReplyEvent& event, TimeNs time) {
  if (over_) return false;
  now_ = time;
  stopped_ = false;
  open_.set_time(time);
  std::visit([this](const auto& what) { handle(what); }, event);
  return stopped_;
}

ReplyFrame RenderedReply::frame_now() const {
  ReplyFrame frame = frame_;
  frame.date = facts_.unix_seconds(now_);
  return frame;
}

void RenderedReply::begin_stream() {
  if (!streaming_ || begun_) return;
  begun_ = true;
  bytes_ += format_stream_head(headers_, frame_now(), content_type_);
}

void RenderedReply::add_events() {
  if (streaming_) append_chunk(bytes_, open_.take_events(), frame_);
}

void RenderedReply::handle(const ChoiceBegins& event) {
  begin_stream();
  open_.begin(event.choice, event.prompt, event.cached_tokens);
  add_events();
}

void RenderedReply::handle(const TokenCame& event) {
  begin_stream();
  stopped_ = open_.take(event.choice, event.token, event.logprobs);
  add_events();
}

void RenderedReply::handle(const ChoiceEnds& event) {
  open_.end(event.choice, event.reason, event.score,
            {event.lifetime.begin(), event.lifetime.end()});
  if (!open_.all_ended()) {
    // Of a stream that has not begun they wait for its head.
    if (begun_) add_events();
    return;
  }
  over_ = true;
  if (streaming_) {
    begin_stream();
    append_chunk(bytes_, open_.finish(), frame_);
    append_last_chunk(bytes_, frame_);
    return;
  }
  HttpReply whole;
  whole.body = open_.finish();
  whole.headers = std::move(headers_);
  if (!content_type_.empty()) whole.content_type = content_type_;
  bytes_ += format_reply(whole, frame_now());
}

/// Something that means nothing, because the kernel of a client that left for good answers with a
/// reset.
void RenderedReply::handle(const ClientProbed& /*event*/) {
  if (!begun_) {
    if (frame_.minor > 0) bytes_ += kContinue;
  } else if (takes_comments()) {  // else no events; the stream's next bytes will show
    append_chunk(bytes_, kSseKeepAlive, frame_);
  }
}

void RenderedReply::handle(const ReplyFails& event) {
  over_ = true;
  write_failure(Status(event.code, std::string(event.message)), event.retry_after_s);
}

void RenderedReply::handle(const ReplyTimed& event) {
  ToldTiming timing;
  std::copy_n(event.spent.begin(), std::min(event.spent.size(), kParts), timing.spent.begin());
  timing.decode_steps = event.decode_steps;
  timing.median_gap = event.median_gap;
  if (timing_wanted_) open_.set_timing(timing);
  if (streaming_) return;
  std::erase_if(headers_, [](const auto& header) { return header.first == kServerTiming; });
  headers_.emplace_back(kServerTiming, server_timing(timing));
}

/// It may be the first thing that the client gets: the head goes out with it.
void RenderedReply::handle(const PromptGotOn& event) {
  if (!streaming_ || open_.begun(event.choice)) return;
  begin_stream();
  open_.progress({event.choice, 0, event.cached, event.done, event.took});
  add_events();
}

/// Likewise. What fails from now on is told as an event, since the status is out.
void RenderedReply::handle(const StreamIdled& /*event*/) {
  if (!takes_comments()) return;
  begin_stream();
  append_chunk(bytes_, kSseKeepAlive, frame_);
}

/// An error instead of the reply; of a stream that has begun, its last events.
void RenderedReply::write_failure(const Status& status, std::uint32_t retry_after_s) {
  if (begun_) {
    append_chunk(bytes_, open_.take_events() + open_.fail(status), frame_);
    append_last_chunk(bytes_, frame_);
    return;
  }
  HttpError error = http_error(status, {}, retry_after_s);
  error.stream = streaming_;
  const HttpHeaders retry = retry_headers(error);
  error = shaped(std::move(error), frame_);
  HttpReply whole;
  whole.status = status_ = error.status;
  whole.body = error.body;
  whole.headers = headers_;
  whole.headers.insert(whole.headers.end(), retry.begin(), retry.end());
  frame_.keep_alive = false;
  bytes_ += format_reply(whole, frame_now());
}

}  // namespace baton
