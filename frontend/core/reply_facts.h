// What a reply is made of beside the request: all that its bytes depend on and that the request
// does not say. Whoever knows the request's bytes, these facts and the events in their order can
// write the same reply again, byte for byte (docs/adr/0013-a-front-ends-successor.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ipc/messages.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// Known before the first byte of the reply.
struct ReplyFacts {
  std::string request_id;         // the client's own, or one that this process made up
  TimeNs received = 0;            // when the request was whole; monotonic
  TimeNs wall_offset = 0;         // of unix time above monotonic time, then
  std::uint32_t max_context = 0;  // that requests were checked against
  std::uint64_t seed = 0;         // of the first choice, whoever chose it
  std::string load = {};          // what its head says of the load then; empty: nothing
  std::string limits = {};        // ... of its key's limits: whole lines; empty: nothing

  /// The unix second of a monotonic time, as this reply counts: a clock that is set meanwhile
  /// changes nothing.
  std::int64_t unix_seconds(TimeNs time) const { return (time + wall_offset) / kSecond; }
  bool operator==(const ReplyFacts&) const = default;
};

/// What happens to a reply after that. Nothing else adds bytes to it. They point at what they do
/// not own, for as long as the call lasts that takes them.
struct ChoiceBegins {
  std::uint32_t choice = 0;
  std::uint32_t cached_tokens = 0;   // of its prompt, found in a prefix cache
  const Logprobs* prompt = nullptr;  // of the prompt's tokens, where the request asked for them
};
struct TokenCame {
  std::uint32_t choice = 0;
  Token token = -1;
  const LogprobReader::Entry* logprobs = nullptr;  // where the request asked for them
};
struct ChoiceEnds {
  std::uint32_t choice = 0;
  FinishReason reason = FinishReason::none;  // stop or length
  std::optional<float> score = {};           // of a beam search
  std::span<const TimeNs> lifetime = {};     // as in Ending
};
/// The client sends nothing more, and is asked whether it still reads.
struct ClientProbed {};
struct ReplyFails {
  ErrorCode code = ErrorCode::internal;
  std::string_view message;
  std::uint32_t retry_after_s = 0;
};

/// Where its time went so far: told with its end. Of a stream only if the request asked.
struct ReplyTimed {
  std::span<const TimeNs> spent;  // by Part
  std::uint32_t decode_steps = 0;
  TimeNs median_gap = 0;
};

/// Of a stream that asked: how much of a choice's prompt is there. Comes before ChoiceBegins.
struct PromptGotOn {
  std::uint32_t choice = 0;
  std::uint32_t done = 0;    // tokens
  std::uint32_t cached = 0;  // of these, found in a prefix cache
  TimeNs took = 0;           // since the first of them was computed
};

/// Of a stream: nothing was sent for a while, and whoever waits shall see that it goes on.
struct StreamIdled {};

using ReplyEvent = std::variant<ChoiceBegins, TokenCame, ChoiceEnds, ClientProbed, ReplyFails,
                                ReplyTimed, PromptGotOn, StreamIdled>;

}  // namespace baton
