// What a journal says of one reply, as bytes: the opening, then the events. Decoding believes
// nothing; what it lets through is safe to give to RenderedReply.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/core/reply_facts.h"
#include "ipc/status.h"

namespace baton {

/// The first record of a reply.
struct ReplyOpening {
  ReplyFacts facts;
  std::string request;                  // as the client sent it, head and body
  std::optional<std::string> rendered;  // the chat as the model's template wrote it down, if it did
  std::uint64_t begins_at = 0;          // bytes that the connection was sent before this reply
  bool operator==(const ReplyOpening&) const = default;
};

std::string encode_opening(const ReplyOpening& opening);
Result<ReplyOpening> decode_opening(std::string_view record);

/// Appends the record of `event` to `out`.
void encode_event(const ReplyEvent& event, TimeNs time, std::string& out);

/// What the events of one reply may name.
struct EventBounds {
  std::uint32_t choices = 1;
  std::uint32_t vocabulary = 0;
};

/// One decoded event; `event` points into the rest. Decode into the same object again and again.
class DecodedEvent {
 public:
  DecodedEvent() = default;
  DecodedEvent(const DecodedEvent&) = delete;
  DecodedEvent& operator=(const DecodedEvent&) = delete;

  /// `record` must live as long as `event` is used.
  Status decode(std::string_view record, const EventBounds& bounds);

  ReplyEvent event;
  TimeNs time = 0;

 private:
  Logprobs prompt_;
  LogprobReader::Entry entry_;
  std::vector<Token> tops_;
  std::vector<float> top_logprobs_;
  std::vector<TimeNs> lifetime_;
};

}  // namespace baton
