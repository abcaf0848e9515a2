#include "frontend/openai/responses_reply.h"

#include <utility>
#include <vector>

#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"
#include "frontend/openai/responses_input.h"

namespace baton {
namespace responses {
namespace {

using Kind = ReplyPart::Kind;

struct Item {
  Kind kind = Kind::content;
  std::string id;
  ToolCall call;
  std::string text;  // of a call its arguments
};

/// The one part of an item's content.
std::string part_json(const Item& item, std::string_view text) {
  if (item.kind == Kind::reasoning) {
    return "{\"type\":\"reasoning_text\",\"text\":" + json_string(text) + "}";
  }
  return "{\"type\":\"output_text\",\"text\":" + json_string(text) +
         ",\"annotations\":[],\"logprobs\":[]}";
}

/// `begun`: as it is told first, without what it holds. `packed`: a reasoning can be sent back as
/// its "encrypted_content".
std::string item_json(const Item& item, const char* status, bool begun, bool packed) {
  const std::string head = "{\"id\":" + json_string(item.id) + ",\"type\":";
  const std::string state = std::string(",\"status\":\"") + status + "\"";
  if (item.kind == Kind::call) {
    return head + "\"function_call\"" + state + ",\"call_id\":" + json_string(item.call.id) +
           ",\"name\":" + json_string(item.call.name) +
           ",\"arguments\":" + json_string(begun ? "" : item.text) + "}";
  }
  const std::string content = ",\"content\":[" + (begun ? "" : part_json(item, item.text)) + "]}";
  if (item.kind == Kind::reasoning) {
    const std::string text = begun ? "" : packed_reasoning(item.text);
    return head + "\"reasoning\"" + state + ",\"summary\":[]" +
           (packed ? ",\"encrypted_content\":" + json_string(text) : "") + content;
  }
  return head + "\"message\"" + state + ",\"role\":\"assistant\"" + content;
}

std::string usage_json(const Usage& usage) {
  const std::uint64_t total = std::uint64_t{usage.prompt_tokens} + usage.completion_tokens;
  return "{\"input_tokens\":" + std::to_string(usage.prompt_tokens) +
         ",\"input_tokens_details\":{\"cached_tokens\":" + std::to_string(usage.cached_tokens) +
         "},\"output_tokens\":" + std::to_string(usage.completion_tokens) +
         ",\"output_tokens_details\":{\"reasoning_tokens\":" +
         std::to_string(usage.reasoning_tokens) + "},\"total_tokens\":" + std::to_string(total) +
         "}";
}

class ResponseReply : public ReplyWriter {
 public:
  ResponseReply(ReplyGrounds grounds, std::string echo, bool packed)
      : id_(grounds.id),
        stream_(grounds.stream),
        packed_(packed),
        parts_(grounds),
        echo_(std::move(echo)) {
    head_ = "{\"id\":" + json_string("resp_" + id_) +
            ",\"object\":\"response\",\"created_at\":" + std::to_string(grounds.created) +
            ",\"model\":" + json_string(grounds.model);
  }

  std::string begin(std::uint32_t, const Logprobs*) override {
    if (!stream_) return {};
    const std::string response =
        ",\"response\":" + response_json("in_progress", "null", "null", "null");
    std::string events = event("response.created", response);
    return events += event("response.in_progress", response);
  }

  std::string text(const ReplyPiece& piece) override { return take(parts_.feed(piece.text)); }

  std::string end(std::uint32_t, const Ending& ending) override {
    cut_off_ = ending.reason == FinishReason::length;
    std::string events = take(parts_.finish());
    if (!open_ && output_.empty()) events += open_item({});  // clients look for a message
    return events += close_item(cut_off_ ? "incomplete" : "completed");
  }

  std::string finish(const Usage& usage) override {
    const char* status = cut_off_ ? "incomplete" : "completed";
    const std::string response =
        response_json(status, "null", cut_off_ ? "{\"reason\":\"max_output_tokens\"}" : "null",
                      usage_json(usage));
    if (!stream_) return response;
    return event(std::string("response.") + status, ",\"response\":" + response);
  }

  ReplySection section(std::uint32_t) const override { return parts_.section(); }

  std::string fail(const Status& status) override {
    const HttpError error = http_error(status);
    const char* code = error.status == 429 ? "rate_limit_exceeded" : "server_error";
    const std::string told =
        std::string("{\"code\":\"") + code + "\",\"message\":" + json_string(error.message) + "}";
    return event("response.failed",
                 ",\"response\":" + response_json("failed", told, "null", "null"));
  }

 private:
  std::string response_json(const char* status, const std::string& error,
                            const std::string& incomplete, const std::string& usage) const {
    return head_ + ",\"status\":\"" + status + "\",\"error\":" + error +
           ",\"incomplete_details\":" + incomplete + ",\"output\":[" + output_ +
           "],\"usage\":" + usage + echo_ + "}";
  }

  /// Numbered: events are made in the order in which they are sent.
  std::string event(const std::string& type, const std::string& members) {
    return "event: " + type + "\n" +
           sse_event("{\"type\":\"" + type +
                     "\",\"sequence_number\":" + std::to_string(sequence_++) + members + "}");
  }

  /// Of the item at hand.
  std::string place() const {
    return ",\"item_id\":" + json_string(item_.id) + ",\"output_index\":" + std::to_string(index_);
  }
  std::string content_place() const { return place() + ",\"content_index\":0"; }
  std::string item_event(const char* type, const char* status, bool begun) {
    return event(type, ",\"output_index\":" + std::to_string(index_) +
                           ",\"item\":" + item_json(item_, status, begun, packed_));
  }

  std::string take(const std::vector<ReplyPart>& parts) {
    std::string events;
    for (const ReplyPart& part : parts) {
      const bool goes_on = part.kind == Kind::arguments ||
                           (open_ && part.kind == item_.kind && item_.kind != Kind::call);
      if (!goes_on) {
        events += close_item("completed");
        events += open_item(part);
      }
      if (part.kind != Kind::call) events += lengthen(part.text);
    }
    return events;
  }

  std::string open_item(const ReplyPart& part) {
    static constexpr const char* kReasoning = "rs_";
    const char* prefix = part.kind == Kind::reasoning ? kReasoning
                         : part.kind == Kind::call    ? "fc_"
                                                      : "msg_";
    open_ = true;
    item_ = {part.kind, prefix + id_ + "_" + std::to_string(index_), part.call, {}};
    if (!stream_) return {};
    std::string events = item_event("response.output_item.added", "in_progress", true);
    if (item_.kind != Kind::call) {
      events += event("response.content_part.added",
                      content_place() + ",\"part\":" + part_json(item_, ""));
    }
    return events;
  }

  std::string lengthen(std::string_view text) {
    if (text.empty()) return {};
    item_.text += text;
    if (!stream_) return {};
    const std::string delta = ",\"delta\":" + json_string(text);
    switch (item_.kind) {
      case Kind::reasoning:
        return event("response.reasoning_text.delta", content_place() + delta);
      case Kind::content:
        return event("response.output_text.delta", content_place() + delta + ",\"logprobs\":[]");
      case Kind::call:
      case Kind::arguments:
        break;
    }
    return event("response.function_call_arguments.delta", place() + delta);
  }

  std::string close_item(const char* status) {
    if (!open_) return {};
    open_ = false;
    output_ += (output_.empty() ? "" : ",") + item_json(item_, status, false, packed_);
    std::string events;
    if (stream_) {
      events = done_events();
      events += item_event("response.output_item.done", status, false);
    }
    ++index_;
    return events;
  }

  /// What the item at hand holds is whole.
  std::string done_events() {
    if (item_.kind == Kind::call) {
      return event("response.function_call_arguments.done",
                   place() + ",\"name\":" + json_string(item_.call.name) +
                       ",\"arguments\":" + json_string(item_.text));
    }
    const std::string text = content_place() + ",\"text\":" + json_string(item_.text);
    std::string events = item_.kind == Kind::reasoning
                             ? event("response.reasoning_text.done", text)
                             : event("response.output_text.done", text + ",\"logprobs\":[]");
    return events += event("response.content_part.done",
                           content_place() + ",\"part\":" + part_json(item_, item_.text));
  }

  std::string id_;
  bool stream_ = false;
  bool packed_ = false;
  ReplyParts parts_;
  std::string head_;
  std::string echo_;
  std::string output_;  // items that are whole
  Item item_;           // the last one
  bool open_ = false;   // it may become longer
  bool cut_off_ = false;
  std::uint32_t index_ = 0;
  std::uint32_t sequence_ = 0;
};

}  // namespace
}  // namespace responses

std::unique_ptr<ReplyWriter> responses_reply(ReplyGrounds grounds, std::string echo, bool packed) {
  return std::make_unique<responses::ResponseReply>(std::move(grounds), std::move(echo), packed);
}

}  // namespace baton
