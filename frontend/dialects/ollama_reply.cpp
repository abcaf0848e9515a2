#include "frontend/dialects/ollama_reply.h"

#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "frontend/http/http_error.h"
#include "frontend/http/key_digest.h"
#include "frontend/http/sse.h"

namespace baton {
namespace ollama {
namespace {

using Kind = ReplyPart::Kind;

/// Calls are told whole: a list of objects would not grow by letters.
class Said {
 public:
  void take(const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      if (part.kind == Kind::content) text += part.text;
      if (part.kind == Kind::reasoning) thinking += part.text;
      if (part.kind == Kind::arguments) arguments_ += part.text;
      if (part.kind != Kind::call) continue;
      end_call();
      call_ = part.call;
      index_ = part.index;
    }
  }
  void end_call() {
    if (!call_) return;
    calls += (calls.empty() ? "" : ",") + std::string("{\"id\":") + json_string(call_->id) +
             ",\"function\":{\"index\":" + std::to_string(index_) +
             ",\"name\":" + json_string(call_->name) +
             ",\"arguments\":" + whole_arguments(arguments_) + "}}";
    call_.reset();
    arguments_.clear();
  }
  bool any() const { return !(text.empty() && thinking.empty() && calls.empty()); }
  void clear() {
    text.clear();
    thinking.clear();
    calls.clear();
  }

  std::string text, thinking, calls;

 private:
  std::optional<ToolCall> call_;  // whose arguments are not whole
  std::string arguments_;
  std::uint32_t index_ = 0;
};

class OllamaReply : public ReplyWriter {
 public:
  OllamaReply(ReplyGrounds grounds, const OllamaFacts& facts)
      : facts_(facts), stream_(grounds.stream), parts_(grounds), last_(facts.received) {
    head_ = "{\"model\":" + json_string(grounds.model) + ",\"created_at\":\"";
  }

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }

  std::string text(const ReplyPiece& piece) override {
    if (first_ == 0) first_ = piece.time;
    last_ = piece.time;
    said_.take(parts_.feed(piece.text));
    return stream_ ? line() : std::string();
  }

  std::string end(std::uint32_t, const Ending& ending) override {
    reason_ = ending.reason == FinishReason::length ? "length" : "stop";
    said_.take(parts_.finish());
    said_.end_call();
    return stream_ ? line() : std::string();
  }

  std::string finish(const Usage& usage) override {
    const TimeNs first = first_ == 0 ? last_ : first_;
    return object() + ",\"done\":true,\"done_reason\":\"" + reason_ +
           "\",\"total_duration\":" + std::to_string(last_ - facts_.received) +
           ",\"load_duration\":0,\"prompt_eval_count\":" + std::to_string(usage.prompt_tokens) +
           ",\"prompt_eval_duration\":" + std::to_string(first - facts_.received) +
           ",\"eval_count\":" + std::to_string(usage.completion_tokens) +
           ",\"eval_duration\":" + std::to_string(last_ - first) + "}" + (stream_ ? "\n" : "");
  }

  std::string fail(const Status& status) override {
    return ollama_error(http_error(status)) + "\n";
  }

  ReplySection section(std::uint32_t) const override { return parts_.section(); }

 private:
  std::string line() {
    if (!said_.any()) return {};
    std::string made = object() + ",\"done\":false}\n";
    said_.clear();
    return made;
  }

  std::string object() const {
    std::string made = head_ + iso_time(last_ + facts_.wall_offset) + "\"";
    const std::string text = json_string(said_.text);
    made += facts_.chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" + text
                        : ",\"response\":" + text;
    if (!said_.thinking.empty()) made += ",\"thinking\":" + json_string(said_.thinking);
    if (!said_.calls.empty()) made += ",\"tool_calls\":[" + said_.calls + "]";
    return facts_.chat ? made + "}" : made;
  }

  OllamaFacts facts_;
  bool stream_ = false;
  ReplyParts parts_;
  std::string head_;
  Said said_;  // and not told yet
  const char* reason_ = "stop";
  TimeNs first_ = 0;  // when the first token came
  TimeNs last_ = 0;
};

}  // namespace
}  // namespace ollama

std::unique_ptr<ReplyWriter> ollama_reply(ReplyGrounds grounds, const OllamaFacts& facts) {
  return std::make_unique<ollama::OllamaReply>(std::move(grounds), facts);
}

std::string iso_time(TimeNs unix_time) {
  using namespace std::chrono;
  const sys_time<nanoseconds> time{nanoseconds(unix_time)};
  const auto day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(time - day);
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02u-%02uT%02d:%02d:%02d.%09lldZ",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
                static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()),
                static_cast<long long>(clock.subseconds().count()));
  return text;
}

std::string ollama_digest(std::string_view model_name) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const std::uint8_t byte : digest_of(model_name)) {
    hex += kDigits[byte >> 4U];
    hex += kDigits[byte & 15U];
  }
  return hex;
}

std::string ollama_error(const HttpError& error) {
  return "{\"error\":" + json_string(error.message) + "}";
}

}  // namespace baton
