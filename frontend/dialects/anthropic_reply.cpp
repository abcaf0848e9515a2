#include "frontend/dialects/anthropic_reply.h"

#include <algorithm>
#include <utility>

#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"

namespace baton {
namespace anthropic {
namespace {

const char* error_type(const HttpError& error) {
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return error.status < 500 ? "invalid_request_error" : "api_error";
  }
}

/// `data` is an object that begins with its type, which is the event's name too.
std::string event(const std::string& name, const std::string& members) {
  return "event: " + name + "\n" + sse_event("{\"type\":\"" + name + "\"" + members + "}");
}

/// Clients add the three numbers of the prompt up: each of its tokens is in one of them. Every
/// prompt is cached, whether the client asks for it or not, so none counts as a cache's creation.
std::string usage_json(std::uint32_t prompt, std::uint32_t cached, std::uint32_t output) {
  cached = std::min(cached, prompt);
  return "{\"input_tokens\":" + std::to_string(prompt - cached) +
         ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":" +
         std::to_string(cached) + ",\"output_tokens\":" + std::to_string(output) + "}";
}

struct Block {
  ReplyPart::Kind kind = ReplyPart::Kind::content;
  ToolCall call;
  std::string text;  // of a call its arguments
};

/// As it begins, or as it is in the end.
std::string block_json(const Block& block) {
  switch (block.kind) {
    case ReplyPart::Kind::reasoning:
      return "{\"type\":\"thinking\",\"thinking\":" + json_string(block.text) +
             ",\"signature\":\"\"}";
    case ReplyPart::Kind::content:
      return "{\"type\":\"text\",\"text\":" + json_string(block.text) + "}";
    case ReplyPart::Kind::call:
    case ReplyPart::Kind::arguments:
      break;
  }
  return "{\"type\":\"tool_use\",\"id\":" + json_string(block.call.id) +
         ",\"name\":" + json_string(block.call.name) +
         ",\"input\":" + (block.text.empty() ? "{}" : whole_arguments(block.text)) + "}";
}

std::string delta_json(const Block& block, std::string_view text) {
  switch (block.kind) {
    case ReplyPart::Kind::reasoning:
      return "{\"type\":\"thinking_delta\",\"thinking\":" + json_string(text) + "}";
    case ReplyPart::Kind::content:
      return "{\"type\":\"text_delta\",\"text\":" + json_string(text) + "}";
    case ReplyPart::Kind::call:
    case ReplyPart::Kind::arguments:
      break;
  }
  return "{\"type\":\"input_json_delta\",\"partial_json\":" + json_string(text) + "}";
}

class MessageReply : public ReplyWriter {
 public:
  MessageReply(ReplyGrounds grounds, MessageWishes wishes)
      : wishes_(std::move(wishes)), stream_(grounds.stream), input_(grounds.prompt_tokens) {
    head_ = "{\"id\":" + json_string("msg_" + grounds.id) +
            ",\"type\":\"message\",\"role\":\"assistant\",\"model\":" + json_string(grounds.model) +
            ",\"content\":[";
    parts_.emplace(grounds);
  }

  void prompt_cached(std::uint32_t, std::uint32_t tokens) override { cached_ = tokens; }

  std::string begin(std::uint32_t, const Logprobs*) override {
    if (!stream_) return {};
    return event("message_start", ",\"message\":" + head_ +
                                      "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":" +
                                      usage_json(input_, cached_, 0) + "}") +
           event("ping", "");
  }

  std::string text(const ReplyPiece& piece) override { return take(parts_->feed(piece.text)); }
  ReplySection section(std::uint32_t) const override { return parts_->section(); }

  std::string end(std::uint32_t, const Ending& ending) override {
    ending_ = ending;
    const std::string events = take(parts_->finish());
    return events + close_block();
  }

  std::string finish(const Usage& usage) override {
    const std::string usage_told =
        usage_json(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens);
    if (stream_) {
      return event("message_delta", ",\"delta\":{" + stop_members() + "},\"usage\":" + usage_told) +
             event("message_stop", "");
    }
    return head_ + content_ + "]," + stop_members() + ",\"usage\":" + usage_told + "}";
  }

  std::string fail(const Status& status) override {
    return "event: error\n" + sse_event(anthropic_error(http_error(status)));
  }

 private:
  std::string take(const std::vector<ReplyPart>& parts) {
    std::string events;
    for (const ReplyPart& part : parts) {
      const bool goes_on = part.kind == ReplyPart::Kind::arguments ||
                           (open_ && part.kind == block_.kind && !called_now());
      if (!goes_on) {
        events += close_block();
        events += open_block(part);
      }
      if (part.kind != ReplyPart::Kind::call) events += lengthen(part.text);
    }
    return events;
  }

  bool called_now() const { return block_.kind == ReplyPart::Kind::call; }

  std::string open_block(const ReplyPart& part) {
    open_ = true;
    block_ = {part.kind, part.call, {}};
    called_ = called_ || called_now();
    if (!stream_) return {};
    return event("content_block_start", ",\"index\":" + std::to_string(index_) +
                                            ",\"content_block\":" + block_json(block_));
  }

  std::string lengthen(std::string_view text) {
    if (text.empty()) return {};
    if (block_.kind == ReplyPart::Kind::reasoning && wishes_.omit_thinking) return {};
    if (!stream_) {
      block_.text += text;
      return {};
    }
    return event("content_block_delta",
                 ",\"index\":" + std::to_string(index_) + ",\"delta\":" + delta_json(block_, text));
  }

  std::string close_block() {
    if (!open_) return {};
    open_ = false;
    if (stream_) return event("content_block_stop", ",\"index\":" + std::to_string(index_++));
    content_ += (content_.empty() ? "" : ",") + block_json(block_);
    return {};
  }

  /// "stop_reason" and "stop_sequence". Strings of the model's own chat format are no sequences of
  /// the client's.
  std::string stop_members() const {
    const auto& asked = wishes_.stop_sequences;
    const bool sequence = ending_.stop_string && std::find(asked.begin(), asked.end(),
                                                           *ending_.stop_string) != asked.end();
    const char* reason = ending_.reason == FinishReason::length ? "max_tokens"
                         : sequence                             ? "stop_sequence"
                         : called_                              ? "tool_use"
                                                                : "end_turn";
    return std::string("\"stop_reason\":\"") + reason +
           "\",\"stop_sequence\":" + (sequence ? json_string(*ending_.stop_string) : "null");
  }

  MessageWishes wishes_;
  bool stream_ = false;
  std::uint32_t input_ = 0;   // tokens of the prompt
  std::uint32_t cached_ = 0;  // of these, found in a prefix cache
  std::string head_;
  std::optional<ReplyParts> parts_;
  Block block_;          // the last one
  bool open_ = false;    // it may become longer
  bool called_ = false;  // some block is a call
  std::uint32_t index_ = 0;
  std::string content_;  // of a whole reply
  Ending ending_;
};

}  // namespace
}  // namespace anthropic

std::unique_ptr<ReplyWriter> anthropic_reply(ReplyGrounds grounds, MessageWishes wishes) {
  return std::make_unique<anthropic::MessageReply>(std::move(grounds), std::move(wishes));
}

std::string anthropic_error(const HttpError& error) {
  // By these words clients know that they must shorten the conversation.
  const std::string too_long =
      error.code == "context_length_exceeded" ? "prompt is too long: " : "";
  const std::string details =
      error.param == kThreadField
          ? R"(,"details":{"error_code":"thread_unsupported_request","unsupported":["thread"]})"
          : "";
  return std::string("{\"type\":\"error\",\"error\":{\"type\":\"") + anthropic::error_type(error) +
         "\",\"message\":" + json_string(too_long + error.message) + details + "}}";
}

}  // namespace baton
