// The seam between HTTP dialects (JSON in, JSON out) and the rest of the front end. A dialect turns a
// body into a ParsedRequest and events into bytes; it knows no socket, no scheduler and no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// How one request ended, as every dialect needs it.
struct Ending {
  FinishReason reason = FinishReason::none;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  bool stop_string = false;  // a stop string matched (reason is then `stop`)
  ErrorCode code = ErrorCode::ok;
  std::string message;
};

/// Formats one reply. Made by a dialect for one request; pure: returns bytes, keeps only what the
/// reply's own shape needs (an id, a creation time that was passed in). Never throws.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  /// Bytes before the first token of a stream (role chunk, say); empty for a whole reply.
  virtual std::string begin() = 0;
  /// New text of `tokens` tokens: the event(s) of a stream; a whole reply collects and returns "".
  /// `text` may be empty (half a character is held back, a stop string may be beginning).
  virtual std::string text(std::string_view text, std::uint32_t tokens) = 0;
  /// The end: the last events of a stream, or the whole body. Also used for errors after a stream
  /// began (an error event); errors before it go through `error_body`.
  virtual std::string end(const Ending& ending) = 0;
};

/// A request that passed every check of its dialect, tokenised.
struct ParsedRequest {
  std::string model;
  std::vector<Token> prompt;
  SamplingParams sampling;
  bool seed_given = false;              // otherwise the caller draws sampling.seed
  std::vector<std::string> stop;        // stop strings; bounded number and length
  bool include_stop_in_output = false;
  bool stream = false;
  TimeNs timeout = 0;                   // from timeout_s, or the configured default
  std::vector<std::pair<std::string, std::string>> headers;  // extra reply headers (clamps told)
  std::unique_ptr<ReplyWriter> reply;
};

/// Status code and JSON body of an error, in the dialect's own shape.
struct HttpError {
  int status = 500;
  std::string body;
  std::uint32_t retry_after_s = 0;  // > 0: sent as Retry-After
};

/// Values a dialect needs that are not in the body.
struct RequestContext {
  std::string request_id;        // X-Request-Id, also the reply's id
  std::int64_t unix_seconds = 0; // creation time for replies
  std::uint32_t max_context = 0; // prompt + output tokens the cluster can hold
  TimeNs default_timeout = 0;
  TimeNs max_timeout = 0;
};

}  // namespace baton
