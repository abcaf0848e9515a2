// Log probabilities as the public APIs show them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "frontend/core/generation.h"
#include "ipc/messages.h"
#include "text/text_stream.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

enum class ReplyShape : std::uint8_t { completion, chat };

/// The "logprobs" value of one choice, token by token.
///
/// Chat: {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}], "refusal": null}, with
/// exactly the asked number of most probable tokens. Completions: {"tokens", "token_logprobs",
/// "top_logprobs", "text_offset"}; top_logprobs[i] also holds the token itself, and where two
/// tokens read alike, the more probable one is kept; text_offset counts characters of the choice's
/// text. A token that is no text by itself is written "bytes:\xe4\xbd", as OpenAI's API did.
class LogprobsJson {
 public:
  /// `top`: how many of the most probable tokens are shown. `text`: options of the choice's own
  /// text; its stop strings are of no account here.
  LogprobsJson(ReplyShape shape, std::shared_ptr<const Tokenizer> tokenizer, std::uint32_t top,
               TextStreamOptions text);

  /// `logprobs` null: there are none (the first token of a prompt).
  void add(Token token, const LogprobReader::Entry* logprobs);
  /// The object of everything since the last call.
  std::string take();
  bool empty() const { return count_ == 0; }

 private:
  void add_to_chat(Token token, const LogprobReader::Entry* logprobs);
  void add_to_completion(Token token, const LogprobReader::Entry* logprobs);

  ReplyShape shape_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::uint32_t top_;
  TextStream text_;  // tells where a token's text begins
  std::uint64_t offset_ = 0;
  std::size_t count_ = 0;
  std::string tokens_, values_, tops_, offsets_;  // insides of the four arrays; chat: tokens_ alone
};

/// vLLM's "prompt_logprobs": null for the first token, then {"id": {"logprob", "rank",
/// "decoded_token"}} of the token and the `top` most probable ones. The rank of a token that is not
/// among them is not known: null.
std::string prompt_logprobs_json(const Tokenizer& tokenizer, std::span<const Token> prompt,
                                 const Logprobs* logprobs, std::uint32_t top);

/// A float with as many digits as tell it from its neighbours.
std::string json_number(float value);

}  // namespace baton
