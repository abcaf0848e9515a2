// Replies of the OpenAI dialect as bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/chat/reply_parser.h"
#include "frontend/core/generation.h"
#include "frontend/openai/logprobs_json.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// What a reply repeats of one prompt.
struct PromptFacts {
  std::uint32_t tokens = 0;
  std::vector<Token> ids;     // with echo or prompt_logprobs; else empty
  std::string text;           // with echo
  TextStreamOptions options;  // of the text that follows it; with logprobs
};

struct OpenAiFacts {
  std::string id;  // without "cmpl-" or "chatcmpl-"
  std::string model;
  std::string fingerprint;   // empty: null
  std::int64_t created = 0;  // unix seconds
  bool include_usage = false;
  bool usage_so_far = false;  // each event of a choice tells its own usage, too

  std::vector<PromptFacts> prompts = {{}};
  std::uint32_t made = 1;  // choices of each prompt
  std::uint32_t told =
      1;  // of these, so many: the best by mean log probability (whole replies only)
  std::int32_t logprobs = -1;         // -1: none; else the number of most probable tokens shown
  std::int32_t prompt_logprobs = -1;  // likewise, in the shape of vLLM (whole replies only)
  bool echo = false;                  // completions only
  bool named_call = false;            // the client named the function: a call is no reason to stop
  bool one_call = false;              // calls behind the first are left out
  std::optional<ReplyParser> parser;  // of a chat: what tells reasoning and calls apart
  std::shared_ptr<const Tokenizer> tokenizer;  // with log probabilities of either kind
};

/// The whole reply as one JSON object.
std::unique_ptr<ReplyWriter> openai_whole_reply(ReplyShape shape, OpenAiFacts facts);

/// Server-sent events, one a call of text() that has text or log probabilities. What costs time at
/// each token is formatted once.
std::unique_ptr<ReplyWriter> openai_stream_reply(ReplyShape shape, OpenAiFacts facts);

}  // namespace baton
