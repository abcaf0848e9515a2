// The bytes of a reply's head. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/core/load_report.h"
#include "frontend/core/trace_context.h"

namespace baton {

class Dialect;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// "Sun, 06 Nov 1994 08:49:37 GMT", as the Date header has it.
std::string http_date(std::int64_t unix_seconds);

/// A whole reply.
struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
  std::string reason = {};  // of an error, for the log
};

/// What every reply to one request says.
struct ReplyFrame {
  std::string request_id;
  bool keep_alive = false;
  bool head_only = false;            // the method was HEAD
  int minor = 1;                     // HTTP/1.<minor> of the request
  std::int32_t api_key = -1;         // which one asked (ApiKeys::all()); -1: none is wanted
  const Dialect* dialect = nullptr;  // whose errors the client understands; null: the OpenAI API's
  const HttpHeaders* cors =
      nullptr;             // what browsers are told (frontend/http/cors.h); null: nothing
  std::int64_t date = 0;   // unix seconds when the head is made; 0: no Date header
  LoadFormat load_format = LoadFormat::none;  // in which the request wants to know the load
  std::string load = {};                      // in that form (load_report.h); empty: no header
  std::string limits = {};  // of its API key: whole header lines (KeyMeter::headers)
  std::string asked = {};  // "METHOD PATH" of the request, as the log tells it
  std::shared_ptr<const TraceContext> trace = {};  // the client's, if it has named one
};

/// In quotes, on one line, at most 300 bytes: for the log, where strangers' text must not begin a
/// line.
std::string log_text(std::string_view text);

/// "GET /health"; a part that is not known is "-", and of a long path its first 200 bytes are told.
std::string asked_text(std::string_view method, std::string_view path);

const char* reason_phrase(int status);

/// Status line and headers of a whole reply, and its body unless the frame says head_only. A 204
/// has no body and tells neither type nor length.
std::string format_reply(const HttpReply& reply, const ReplyFrame& frame);

/// Head of a stream of events. HTTP/1.1: chunked. HTTP/1.0: the end of the connection ends it.
/// `content_type` empty: text/event-stream.
std::string format_stream_head(const HttpHeaders& headers, const ReplyFrame& frame,
                               std::string_view content_type = {});

/// Before a reply: the request may go on.
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

/// Appends `data` as one chunk (HTTP/1.0: as it is). Empty data adds nothing.
void append_chunk(std::string& out, std::string_view data, const ReplyFrame& frame);
/// The end of a chunked body.
void append_last_chunk(std::string& out, const ReplyFrame& frame);

/// 1 to 128 characters out of A-Z a-z 0-9 . _ : -
bool valid_request_id(std::string_view id);

}  // namespace baton
