#include "frontend/chat/chat_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "text/gguf/gguf_folder.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFormatBytes = 1U << 20U;

/// Collects texts and special tokens. Neighbouring texts become one string before they are encoded,
/// since a tokeniser may join letters across the border.
class PromptBuilder {
 public:
  PromptBuilder(const Tokenizer& tokenizer, std::size_t limit)
      : tokenizer_(tokenizer), limit_(limit) {}

  void bos() {
    if (tokenizer_.bos() >= 0) ids_.push_back(tokenizer_.bos());
  }

  /// Part of the format: special pieces count.
  void format(std::string_view text) {
    while (!text.empty()) {
      std::size_t length = 1;
      const Token special = tokenizer_.special_at(text, &length);
      if (special >= 0) {
        encode_text();
        ids_.push_back(special);
        after_special_ = true;
      } else {
        text_.push_back(text.front());
      }
      text.remove_prefix(length);
    }
  }

  /// Said by somebody: only text.
  void content(std::string_view text) { text_ += text; }

  /// Empty when there are more ids than the limit.
  std::optional<std::vector<Token>> take() {
    encode_text();
    if (too_long_ || ids_.size() > limit_) return std::nullopt;
    return std::move(ids_);
  }

 private:
  void encode_text() {
    if (!text_.empty() && !too_long_) {
      const std::size_t room = limit_ - std::min(limit_, ids_.size());
      const auto ids = tokenizer_.encode_plain_within(text_, after_special_, room);
      too_long_ = !ids.has_value();
      if (ids) ids_.insert(ids_.end(), ids->begin(), ids->end());
    }
    text_.clear();
  }

  const Tokenizer& tokenizer_;
  std::vector<Token> ids_;
  std::string text_;
  std::size_t limit_;
  bool after_special_ = false;
  bool too_long_ = false;
};

std::optional<std::vector<std::string>> strings_of(const Json& value) {
  if (!value.is_array()) return std::nullopt;
  std::vector<std::string> strings;
  for (const Json& item : value) {
    if (!item.is_string()) return std::nullopt;
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

}  // namespace

Result<std::unique_ptr<PrefixChatFormat>> PrefixChatFormat::parse(std::string_view json,
                                                                  const std::string& where) {
  const Json root = Json::parse(json.begin(), json.end(), nullptr, false);
  if (!root.is_object()) return invalid(where + ": not a JSON object");
  auto format = std::make_unique<PrefixChatFormat>();
  for (const auto& [key, value] : root.items()) {
    if (key == "bos") {
      if (!value.is_boolean()) return invalid(where + ": 'bos' must be true or false");
      format->bos_ = value.get<bool>();
      continue;
    }
    const auto strings = strings_of(value);
    if (key == "stop") {
      if (!strings) return invalid(where + ": 'stop' must be a list of strings");
      for (const std::string& stop : *strings) {
        if (stop.empty()) return invalid(where + ": 'stop' holds an empty string");
      }
      format->stop_ = *strings;
      continue;
    }
    Turn* turn = key == "system"      ? &format->system_
                 : key == "user"      ? &format->user_
                 : key == "assistant" ? &format->assistant_
                                      : nullptr;
    if (turn == nullptr) return invalid(where + ": unknown key '" + key + "'");
    if (!strings || strings->size() != 2) {
      return invalid(where + ": '" + key + "' must be [prefix, suffix]");
    }
    *turn = {(*strings)[0], (*strings)[1], true};
  }
  if (!format->user_.given || !format->assistant_.given) {
    return invalid(where + ": 'user' and 'assistant' must be given");
  }
  return format;
}

const PrefixChatFormat::Turn* PrefixChatFormat::turn_of(std::string_view role) const {
  if (role == "system" || role == "developer") return &system_;
  if (role == "user") return &user_;
  if (role == "assistant") return &assistant_;
  return nullptr;
}

Result<ChatPrompt> PrefixChatFormat::render(const std::vector<ChatMessage>& messages,
                                            const Tokenizer& tokenizer,
                                            std::size_t max_tokens) const {
  PromptBuilder builder(tokenizer, max_tokens);
  if (bos_) builder.bos();
  for (const ChatMessage& message : messages) {
    const Turn* turn = turn_of(message.role);
    if (turn == nullptr || !turn->given) {
      return invalid("the chat format of this model has no role '" + message.role + "'");
    }
    builder.format(turn->prefix);
    builder.content(message.content);
    builder.format(turn->suffix);
  }
  builder.format(assistant_.prefix);

  ChatPrompt prompt;
  auto ids = builder.take();
  if (!ids) {
    return Status(ErrorCode::too_long,
                  "the chat has more than " + std::to_string(max_tokens) + " tokens");
  }
  prompt.ids = std::move(*ids);
  for (const std::string& stop : stop_) {
    std::size_t length = 0;
    const Token special = tokenizer.special_at(stop, &length);
    if (special >= 0 && length == stop.size()) {
      prompt.stop_ids.push_back(special);
    } else {
      prompt.stop.push_back(stop);
    }
  }
  return prompt;
}

Result<std::unique_ptr<ChatFormat>> load_chat_format(const std::string& dir) {
  const std::string path = dir + "/chat_format.json";
  const auto text = read_model_json(path, kMaxFormatBytes);
  if (!text.ok()) return text.status();
  if (!text.value()) return std::unique_ptr<ChatFormat>();
  auto format = PrefixChatFormat::parse(*text.value(), path);
  if (!format.ok()) return format.status();
  return std::unique_ptr<ChatFormat>(std::move(format).value());
}

}  // namespace baton
