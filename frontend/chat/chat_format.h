// Messages of a chat to token ids, by the model folder's chat_format.json:
//   {"bos": true, "system": [prefix, suffix], "user": [prefix, suffix],
//    "assistant": [prefix, suffix], "stop": ["<|end|>"]}
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/chat/conversation.h"
#include "ipc/status.h"
#include "ipc/types.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// The prompt of a chat, and what ends the reply besides the model's end-of-sequence ids.
struct ChatPrompt {
  std::vector<Token> ids;
  std::vector<Token> stop_ids;
  std::vector<std::string> stop;
};

/// How a model wants a conversation written down. Const and safe for several threads.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  /// All messages, then the beginning of the assistant's turn. An unknown role is the caller's
  /// fault; more than `max_tokens` ids are too_long.
  virtual Result<ChatPrompt> render(const std::vector<ChatMessage>& messages,
                                    const Tokenizer& tokenizer, std::size_t max_tokens) const = 0;
};

/// Prefixes and suffixes around each message. Special pieces written in them become their tokens;
/// what a message says never does. Neighbouring texts are encoded together, as one string.
class PrefixChatFormat : public ChatFormat {
 public:
  /// `where` names the source in errors. An unknown key is an error.
  static Result<std::unique_ptr<PrefixChatFormat>> parse(std::string_view json,
                                                         const std::string& where);

  Result<ChatPrompt> render(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer,
                            std::size_t max_tokens) const override;

 private:
  struct Turn {
    std::string prefix;
    std::string suffix;
    bool given = false;
  };
  const Turn* turn_of(std::string_view role) const;

  bool bos_ = true;
  Turn system_, user_, assistant_;
  std::vector<std::string> stop_;
};

/// chat_format.json of a model folder; a null pointer when the folder has none.
Result<std::unique_ptr<ChatFormat>> load_chat_format(const std::string& dir);

}  // namespace baton
