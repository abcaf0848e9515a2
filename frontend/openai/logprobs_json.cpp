#include "frontend/openai/logprobs_json.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "frontend/http/sse.h"
#include "ipc/utf8.h"

namespace baton {
namespace {

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Scan scan = scan_utf8(bytes);
    if (scan.state != Utf8State::valid) return false;
    bytes.remove_prefix(scan.length);
  }
  return true;
}

/// A name for a token: its text, or its bytes where they are no text.
std::string token_name(const Tokenizer& tokenizer, Token token) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  if (is_text(bytes)) return std::string(bytes);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return name;
}

void append_item(std::string& list, std::string_view item) {
  if (!list.empty()) list += ',';
  list += item;
}

std::uint64_t characters(std::string_view text) {
  return static_cast<std::uint64_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

TextStreamOptions without_stops(TextStreamOptions options) {
  options.stop.clear();
  return options;
}

/// {"token":...,"logprob":...,"bytes":[...] without the closing brace.
std::string chat_entry(const Tokenizer& tokenizer, Token token, const std::string& logprob) {
  std::string bytes;
  for (const char c : tokenizer.token_bytes(token)) {
    append_item(bytes, std::to_string(static_cast<unsigned char>(c)));
  }
  return "{\"token\":" + json_string(tokenizer.token_text(token)) + ",\"logprob\":" + logprob +
         ",\"bytes\":[" + bytes + "]";
}

}  // namespace

std::string json_number(float value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  return std::string(digits, end.ptr);
}

LogprobsJson::LogprobsJson(ReplyShape shape, std::shared_ptr<const Tokenizer> tokenizer,
                           std::uint32_t top, TextStreamOptions text)
    : shape_(shape),
      tokenizer_(std::move(tokenizer)),
      top_(top),
      text_(*tokenizer_, without_stops(std::move(text))) {}

void LogprobsJson::add(Token token, const LogprobReader::Entry* logprobs) {
  ++count_;
  if (shape_ == ReplyShape::chat) {
    add_to_chat(token, logprobs);
  } else {
    add_to_completion(token, logprobs);
  }
}

void LogprobsJson::add_to_chat(Token token, const LogprobReader::Entry* logprobs) {
  std::string tops;
  const std::size_t shown = logprobs == nullptr ? 0 : logprobs->top_tokens.size();
  for (std::size_t i = 0; i < std::min<std::size_t>(top_, shown); ++i) {
    const std::string value = json_number(logprobs->top_logprobs[i]);
    append_item(tops, chat_entry(*tokenizer_, logprobs->top_tokens[i], value) + "}");
  }
  const std::string value = logprobs == nullptr ? "null" : json_number(logprobs->logprob);
  append_item(tokens_, chat_entry(*tokenizer_, token, value) + ",\"top_logprobs\":[" + tops + "]}");
}

void LogprobsJson::add_to_completion(Token token, const LogprobReader::Entry* logprobs) {
  const std::string name = token_name(*tokenizer_, token);
  append_item(tokens_, json_string(name));
  append_item(offsets_, std::to_string(offset_));
  offset_ += characters(text_.feed({&token, 1}).text);
  if (logprobs == nullptr) {
    append_item(values_, "null");
    append_item(tops_, "null");
    return;
  }
  append_item(values_, json_number(logprobs->logprob));
  std::string tops;
  std::set<std::string> shown;
  const auto show = [&](std::string top, float value) {
    if (!shown.insert(top).second) return;
    append_item(tops, json_string(top) + ":" + json_number(value));
  };
  const std::size_t count = std::min<std::size_t>(top_, logprobs->top_tokens.size());
  for (std::size_t i = 0; i < count; ++i) {
    show(token_name(*tokenizer_, logprobs->top_tokens[i]), logprobs->top_logprobs[i]);
  }
  show(name, logprobs->logprob);
  append_item(tops_, "{" + tops + "}");
}

std::string LogprobsJson::take() {
  count_ = 0;
  const std::string tokens = std::exchange(tokens_, {});
  if (shape_ == ReplyShape::chat) return "{\"content\":[" + tokens + "],\"refusal\":null}";
  return "{\"tokens\":[" + tokens + "],\"token_logprobs\":[" + std::exchange(values_, {}) +
         "],\"top_logprobs\":[" + std::exchange(tops_, {}) + "],\"text_offset\":[" +
         std::exchange(offsets_, {}) + "]}";
}

std::string prompt_logprobs_json(const Tokenizer& tokenizer, std::span<const Token> prompt,
                                 const Logprobs* logprobs, std::uint32_t top) {
  const Logprobs none;
  LogprobReader reader(logprobs == nullptr ? none : *logprobs);
  std::string list;
  for (std::uint32_t i = 0; i < prompt.size(); ++i) {
    LogprobReader::Entry entry;
    if (!reader.take(i, entry)) {
      append_item(list, "null");
      continue;
    }
    std::string tokens;
    const auto show = [&](Token token, float value, const std::string& rank) {
      append_item(tokens, "\"" + std::to_string(token) + "\":{\"logprob\":" + json_number(value) +
                              ",\"rank\":" + rank + ",\"decoded_token\":" +
                              json_string(tokenizer.token_text(token)) + "}");
    };
    bool among_top = false;
    for (std::size_t k = 0; k < std::min<std::size_t>(top, entry.top_tokens.size()); ++k) {
      show(entry.top_tokens[k], entry.top_logprobs[k], std::to_string(k + 1));
      among_top = among_top || entry.top_tokens[k] == prompt[i];
    }
    if (!among_top) show(prompt[i], entry.logprob, "null");
    append_item(list, "{" + tokens + "}");
  }
  return "[" + list + "]";
}

}  // namespace baton
