// A trace of requests, as Mooncake publishes its own: JSON lines of {"timestamp": milliseconds
// since the first request, "input_length", "output_length", "hash_ids": one id for each 512 tokens
// of the prompt, the last of which may be partly used}. Equal ids stand for equal tokens. Pure:
// text in, values out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

constexpr std::uint32_t kTraceBlockTokens = 512;

struct TraceRequest {
  double at_ms = 0;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::vector<std::int64_t> hash_ids;  // empty: a prompt like no other
};

/// Lines in order of time, at most a million; empty lines are passed over, other keys too. A bad
/// line is an error that names its number.
Result<std::vector<TraceRequest>> read_trace(std::string_view text);

/// Replaces `prompt` by request number `index`'s tokens, each in [low, high). They follow from the
/// hash ids; where there are none, from `seed` and `index`. Needs low < high.
void make_prompt(const TraceRequest& request, std::size_t index, std::uint64_t seed, Token low,
                 Token high, std::vector<Token>& prompt);

}  // namespace baton
