#include "frontend/openai_reply.h"

#include "frontend/http_error.h"
#include "frontend/sse.h"

namespace baton {
namespace {

std::string usage_object(const Ending& ending) {
  const std::uint64_t total = std::uint64_t{ending.prompt_tokens} + ending.completion_tokens;
  return "{\"prompt_tokens\":" + std::to_string(ending.prompt_tokens) +
         ",\"completion_tokens\":" + std::to_string(ending.completion_tokens) +
         ",\"total_tokens\":" + std::to_string(total) + "}";
}

/// {"id":...,"object":...,"created":...,"model":...,"choices":[
std::string opening(ReplyShape shape, bool stream, const ReplyFacts& facts) {
  const bool chat = shape == ReplyShape::chat;
  const char* object = !chat    ? "text_completion"
                       : stream ? "chat.completion.chunk"
                                : "chat.completion";
  return "{\"id\":" + json_string((chat ? "chatcmpl-" : "cmpl-") + facts.id) + ",\"object\":\"" +
         object + "\",\"created\":" + std::to_string(facts.created) +
         ",\"model\":" + json_string(facts.model) + ",\"choices\":[";
}

class WholeReply : public ReplyWriter {
 public:
  WholeReply(ReplyShape shape, const ReplyFacts& facts)
      : shape_(shape), opening_(opening(shape, false, facts)) {}

  std::string begin() override { return {}; }

  std::string text(std::string_view text, std::uint32_t) override {
    text_ += text;
    return {};
  }

  std::string end(const Ending& ending) override {
    if (is_error(ending)) return error_json(status_of(ending));
    std::string body = opening_;
    body += shape_ == ReplyShape::chat
                ? "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
                : "{\"index\":0,\"text\":\"";
    append_json_escaped(body, text_);
    body += shape_ == ReplyShape::chat ? "\"}" : "\"";
    body += ",\"logprobs\":null,\"finish_reason\":\"";
    body += to_string(ending.reason);
    body += "\"}],\"usage\":" + usage_object(ending) + "}";
    return body;
  }

 private:
  ReplyShape shape_;
  std::string opening_;
  std::string text_;
};

class StreamReply : public ReplyWriter {
 public:
  StreamReply(ReplyShape shape, const ReplyFacts& facts)
      : shape_(shape), include_usage_(facts.include_usage) {
    head_ = "data: " + opening(shape, true, facts);
    const bool chat = shape == ReplyShape::chat;
    before_text_ =
        head_ + (chat ? "{\"index\":0,\"delta\":{\"content\":\"" : "{\"index\":0,\"text\":\"");
    const std::string close = include_usage_ ? "}],\"usage\":null}\n\n" : "}]}\n\n";
    after_text_ =
        std::string(chat ? "\"}" : "\"") + ",\"logprobs\":null,\"finish_reason\":null" + close;
    close_ = close;
  }

  std::string begin() override {
    if (shape_ != ReplyShape::chat) return {};
    return head_ +
           "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
           "\"finish_reason\":null" +
           close_;
  }

  std::string text(std::string_view text, std::uint32_t) override {
    std::string event;
    if (text.empty()) return event;
    event.reserve(before_text_.size() + text.size() + after_text_.size() + 16);
    event += before_text_;
    append_json_escaped(event, text);
    event += after_text_;
    return event;
  }

  std::string end(const Ending& ending) override {
    if (is_error(ending)) {
      return sse_event(error_json(status_of(ending))) + std::string(kSseDone);
    }
    std::string events = head_;
    events +=
        shape_ == ReplyShape::chat ? "{\"index\":0,\"delta\":{}" : "{\"index\":0,\"text\":\"\"";
    events += ",\"logprobs\":null,\"finish_reason\":\"";
    events += to_string(ending.reason);
    events += "\"" + close_;
    if (include_usage_) events += head_ + "],\"usage\":" + usage_object(ending) + "}\n\n";
    events += kSseDone;
    return events;
  }

 private:
  ReplyShape shape_;
  bool include_usage_;
  std::string head_;  // "data: " and the fields before the choices
  std::string before_text_;
  std::string after_text_;
  std::string close_;  // from the end of the choice to the end of the event
};

}  // namespace

bool is_error(const Ending& ending) {
  return ending.reason != FinishReason::stop && ending.reason != FinishReason::length;
}

Status status_of(const Ending& ending) {
  ErrorCode code = ending.code;
  if (code == ErrorCode::ok) {
    code = ending.reason == FinishReason::cancelled ? ErrorCode::cancelled : ErrorCode::internal;
  }
  std::string message = ending.message;
  if (message.empty()) {
    message = code == ErrorCode::cancelled ? "the request was cancelled"
                                           : std::string("the request failed: ") + to_string(code);
  }
  return Status(code, std::move(message));
}

std::unique_ptr<ReplyWriter> openai_whole_reply(ReplyShape shape, const ReplyFacts& facts) {
  return std::make_unique<WholeReply>(shape, facts);
}

std::unique_ptr<ReplyWriter> openai_stream_reply(ReplyShape shape, const ReplyFacts& facts) {
  return std::make_unique<StreamReply>(shape, facts);
}

}  // namespace baton
