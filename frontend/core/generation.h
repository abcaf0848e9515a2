// The seam between HTTP dialects (JSON in, JSON out) and the rest of the front end. A dialect turns
// a body into a ParsedRequest and events into bytes; it knows no socket, no scheduler and no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/core/reply_section.h"
#include "frontend/core/told_timing.h"
#include "ipc/messages.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// New text of one choice, token by token.
struct ReplyPiece {
  std::uint32_t choice = 0;
  std::string_view text;  // may be empty (half a character is held back, a stop string may begin)
  Token token = -1;       // -1: text that was held back, at the end
  const LogprobReader::Entry* logprobs = nullptr;  // of the token, where the request asked for it
  TimeNs time = 0;                                 // when the token came; monotonic
  bool last = false;  // the choice ends with this token, as far as can be told before end()
};

/// How one choice ended by itself. Of `stop`: by a stop string, by a token that the client named,
/// or (neither) as the model ends what it says.
struct Ending {
  FinishReason reason = FinishReason::none;  // stop or length
  std::optional<std::string> stop_string;
  Token stop_token = -1;
  std::optional<float> score = {};  // of a beam search: sum of logs / length ^ length_penalty
  std::vector<TimeNs> lifetime =
      {};  // by LifetimeMoment, monotonic, 0: never; empty: not asked for, or lost
};

struct Usage {
  std::uint32_t prompt_tokens = 0;  // each prompt once
  std::uint32_t completion_tokens = 0;
  std::uint32_t cached_tokens =
      0;  // of the prompts' tokens, found in a prefix cache by every choice
  std::uint32_t reasoning_tokens = 0;     // of completion_tokens
  std::optional<ToldTiming> timing = {};  // where the reply's time went, if that is known
};

/// How much of a choice's prompt is there, before its first token.
struct PromptProgress {
  std::uint32_t choice = 0;
  std::uint32_t total = 0;   // tokens of the prompt
  std::uint32_t cached = 0;  // of these, found in a prefix cache
  std::uint32_t done = 0;    // of these, found or computed
  TimeNs took = 0;           // since the first of them was computed
};

/// Formats one reply of one or more choices. Made by a dialect for one request; pure: returns
/// bytes, keeps only what the reply's own shape needs (an id, a creation time that was passed in).
/// A whole reply collects, and returns all of it from finish(). Never throws.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  /// Before begin(): so many tokens of the choice's prompt were found in a prefix cache.
  virtual void prompt_cached(std::uint32_t /*choice*/, std::uint32_t /*tokens*/) {}
  /// Before the first piece of a choice, once (a role chunk, the echo of the prompt). `prompt`: log
  /// probabilities of the prompt's tokens, where the request asked for them.
  virtual std::string begin(std::uint32_t choice, const Logprobs* prompt) = 0;
  /// Before that, of a stream that asked for it.
  virtual std::string progress(const PromptProgress& /*progress*/) { return {}; }
  virtual std::string text(const ReplyPiece& piece) = 0;
  virtual std::string end(std::uint32_t choice, const Ending& ending) = 0;
  /// The end of the reply, when every choice has ended.
  virtual std::string finish(const Usage& usage) = 0;
  /// The end of a stream that failed after it began; before, `http_error` is the reply.
  virtual std::string fail(const Status& status) = 0;
  /// Where the choice's next token stands, as far as its text so far tells.
  virtual ReplySection section(std::uint32_t /*choice*/) const { return ReplySection::answer; }
};

/// A reply's header: what of its JSON Schemas is not enforced.
inline constexpr const char* kUnenforcedHeader = "X-Baton-Schema-Unenforced";

/// How JSON Schemas are taken; of a request, what it says itself.
struct SchemaDefaults {
  bool open = false;    // objects hold any keys that the standard allows, in any order
  bool refuse = false;  // a keyword that cannot be enforced is an error
};
struct AskedSchemas {
  std::optional<bool> open;
  std::optional<bool> refuse;
};

/// A request that passed every check of its dialect, tokenised.
struct ParsedRequest {
  std::vector<std::vector<Token>> prompts;  // one or more
  std::uint32_t choices = 1;                // of each prompt; of a beam search num_return_sequences
  std::uint32_t max_context = 0;            // bounds max_tokens of each prompt; 0: it is settled
  SamplingParams sampling;
  bool seed_given = false;           // otherwise the caller draws sampling.seed
  std::vector<Token> told_stop_ids;  // those of stop_ids that the client named
  std::vector<std::string> stop;     // stop strings of the answer; bounded number and length
  bool include_stop_in_output = false;
  std::string grammar_field;          // what asked for sampling.grammar, for errors about it
  AskedSchemas schemas;               // of sampling.grammar, and of tools
  std::vector<Token> shown_specials;  // special tokens that are text for the reply's writer
  bool skip_special_tokens = true;
  bool prompt_only = false;  // max_tokens 0: the one token that is made is not told
  bool stream = false;
  bool echo = false;          // each choice repeats its prompt
  std::int32_t priority = 0;  // lower is earlier
  bool lifetime = false;      // Ending::lifetime is wanted
  bool timing = false;        // Usage::timing is wanted, of a stream too
  bool progress = false;      // of a stream: ReplyWriter::progress is wanted
  std::string cache_salt;     // shares cached blocks only with requests of the same one
  TimeNs timeout = 0;         // from timeout_s, or the configured default
  std::vector<std::pair<std::string, std::string>> headers;  // extra reply headers (clamps told)
  std::vector<std::string> ignored_fields;  // of the body, as the headers tell them: for the log
  std::string content_type;                 // of the reply; empty: JSON, or a stream of events
  std::unique_ptr<ReplyWriter> reply;
};

/// An error as it goes out. `body` is made from message, param and code: in the shape of the OpenAI
/// API until a dialect gives it its own (Dialect::shape).
struct HttpError {
  int status = 500;
  std::string body;
  std::uint32_t retry_after_s = 0;  // > 0: sent as Retry-After
  std::string message;
  std::string param;    // the field at fault; empty: none
  std::string code;     // a short name such as "queue_full"
  std::string log;      // for logs and spans: like `message`, but without the client's text
  bool stream = false;  // the request asked for a stream, which has not begun
};

/// Values a dialect needs that are not in the body.
struct RequestContext {
  std::string request_id;         // X-Request-Id, also the reply's id
  std::string path;               // of the request, without a query
  std::int64_t unix_seconds = 0;  // creation time for replies
  TimeNs received = 0;            // when the request was whole; monotonic
  TimeNs wall_offset = 0;         // of unix time above monotonic time
  std::uint32_t max_context = 0;  // prompt + output tokens the cluster can hold
  std::uint32_t max_choices = 1;  // of all prompts of a request together
  TimeNs default_timeout = 0;
  TimeNs max_timeout = 0;
  bool strict_fields = false;       // of OpenAI's API: unknown fields are errors
  bool drop_billing_header = true;  // of Anthropic's: a first system line of Claude Code
  bool any_model = false;           // whatever model a body names, it is the one that is served
  bool zero_bytes = false;          // DistServe's streams: a zero byte behind each object
  SchemaDefaults schemas;           // where a request says nothing
};

}  // namespace baton
