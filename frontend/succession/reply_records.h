// What a journal says of one reply, as bytes: the opening, then the events. Decoding believes
// nothing; what it lets through is safe to give to RenderedReply.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "frontend/core/reply_facts.h"
#include "ipc/status.h"

namespace baton {

/// Where a reply stands in its connection's two streams of bytes.
struct ReplyPlace {
  std::uint64_t request_at = 0;  // the client's bytes before its request
  std::uint64_t begins_at = 0;   // bytes that the client was sent before this reply
  bool operator==(const ReplyPlace&) const = default;
};

/// The first record of a model's reply.
struct ReplyOpening {
  ReplyPlace place;
  ReplyFacts facts;
  std::optional<std::string> rendered;  // the chat as the model's template wrote it down, if it did
  std::uint64_t first_counter = 0;  // of the scheduler's requests that make it, one after another
  std::string fingerprint = {};     // ServedModel::fingerprint: another build has another one
  std::string entry = {};           // ServedModel::entry and identity: whose scheduler makes it
  std::uint64_t identity = 0;
  std::string model = {};  // of an entry: as clients called it, which may change; empty: an older
                           // build's, which noted no name
  bool operator==(const ReplyOpening&) const = default;
};

/// The only record of any other reply: its bytes.
struct WholeReply {
  ReplyPlace place;
  bool keep_alive = false;
  std::string bytes;
  bool operator==(const WholeReply&) const = default;
};

using AnyOpening = std::variant<ReplyOpening, WholeReply>;

std::string encode_opening(const ReplyOpening& opening);
std::string encode_whole(const ReplyPlace& place, bool keep_alive, std::string_view bytes);
Result<AnyOpening> decode_opening(std::string_view record);

/// A request of the reply is given to the scheduler, for the so manieth time.
struct AttemptSent {
  std::uint32_t request = 0;  // from the opening's first counter on
  std::uint32_t attempt = 0;
};
void encode_attempt(const AttemptSent& sent, std::string& out);

/// What an event's bytes are, so that who makes them again sees whether they are the same.
struct MadeBytes {
  std::uint32_t size = 0;
  std::uint32_t sum = 0;
  bool operator==(const MadeBytes&) const = default;
};
MadeBytes made(std::string_view bytes);

/// Appends the record of `event` to `out`.
void encode_event(const ReplyEvent& event, TimeNs time, const MadeBytes& bytes, std::string& out);

/// What the events of one reply may name.
struct EventBounds {
  std::uint32_t choices = 1;
  std::uint32_t requests = 1;
  std::uint32_t vocabulary = 0;
};

/// One decoded event, or attempt; `event` points into the rest. Decode into the same object again and again.
class DecodedEvent {
 public:
  DecodedEvent() = default;
  DecodedEvent(const DecodedEvent&) = delete;
  DecodedEvent& operator=(const DecodedEvent&) = delete;

  /// `record` must live as long as `event` is used.
  Status decode(std::string_view record, const EventBounds& bounds);

  std::optional<AttemptSent> attempt;  // then it is no event
  ReplyEvent event;
  TimeNs time = 0;
  MadeBytes bytes;

 private:
  Logprobs prompt_;
  LogprobReader::Entry entry_;
  std::vector<Token> tops_;
  std::vector<float> top_logprobs_;
  std::vector<float> vector_;
  std::vector<TimeNs> lifetime_;
  std::vector<TimeNs> spent_;
};

}  // namespace baton
