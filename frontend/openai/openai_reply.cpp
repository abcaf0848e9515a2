#include "frontend/openai/openai_reply.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"
#include "frontend/openai/chat_parts.h"

namespace baton {
namespace {

std::string usage_object(ReplyShape shape, const Usage& usage) {
  const std::uint64_t total = std::uint64_t{usage.prompt_tokens} + usage.completion_tokens;
  std::string text = "{\"prompt_tokens\":" + std::to_string(usage.prompt_tokens) +
                     ",\"completion_tokens\":" + std::to_string(usage.completion_tokens) +
                     ",\"total_tokens\":" + std::to_string(total) +
                     ",\"prompt_tokens_details\":{\"cached_tokens\":" +
                     std::to_string(usage.cached_tokens) + "}";
  if (shape == ReplyShape::chat) {
    text += ",\"completion_tokens_details\":{\"reasoning_tokens\":" +
            std::to_string(usage.reasoning_tokens) + "}";
  }
  return text + "}";
}

/// ,"timing":{...} where it was asked for and is known.
std::string timing_member(const Usage& usage) {
  return usage.timing ? ",\"timing\":" + timing_object(*usage.timing) : "";
}

/// {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":...,"choices":[
std::string opening(ReplyShape shape, bool stream, const OpenAiFacts& facts) {
  const bool chat = shape == ReplyShape::chat;
  const char* object = !chat    ? "text_completion"
                       : stream ? "chat.completion.chunk"
                                : "chat.completion";
  return "{\"id\":" + json_string((chat ? "chatcmpl-" : "cmpl-") + facts.id) + ",\"object\":\"" +
         object + "\",\"created\":" + std::to_string(facts.created) +
         ",\"model\":" + json_string(facts.model) + ",\"system_fingerprint\":" +
         (facts.fingerprint.empty() ? "null" : json_string(facts.fingerprint)) + ",\"choices\":[";
}

/// ,"finish_reason":...,"stop_reason":...  The second is vLLM's: the string or token that ended it.
/// A choice that stopped after calls stopped because of them, unless the client chose the call.
std::string ending_fields(const Ending& ending, const std::optional<ReplyParser>& parser,
                          bool named_call) {
  const bool called =
      parser && parser->calls() > 0 && ending.reason == FinishReason::stop && !named_call;
  std::string fields = ",\"finish_reason\":\"";
  fields += called ? "tool_calls" : to_string(ending.reason);
  fields += "\",\"stop_reason\":";
  if (ending.stop_string) return fields + json_string(*ending.stop_string);
  return fields + (ending.stop_token < 0 ? "null" : std::to_string(ending.stop_token));
}

std::optional<ReplyParser> parser_of(const OpenAiFacts& facts, std::size_t choice) {
  std::optional<ReplyParser> parser = facts.parser;
  if (parser) parser->set_choice(static_cast<std::uint32_t>(choice));
  return parser;
}

ReplySection section_of(const std::optional<ReplyParser>& parser) {
  return parser ? parser->section() : ReplySection::answer;
}

/// The choice's log probabilities, if they are told; with echo, those of the prompt first.
class ChoiceLogprobs {
 public:
  ChoiceLogprobs(ReplyShape shape, const OpenAiFacts& facts, const PromptFacts& prompt) {
    if (facts.logprobs < 0) return;
    TextStreamOptions options = prompt.options;
    if (facts.echo) options.continues_text = false;
    json_.emplace(shape, facts.tokenizer, static_cast<std::uint32_t>(facts.logprobs), options);
  }

  void add_prompt(const PromptFacts& prompt, const Logprobs* logprobs) {
    if (!json_) return;
    const Logprobs none;
    LogprobReader reader(logprobs == nullptr ? none : *logprobs);
    for (std::uint32_t i = 0; i < prompt.ids.size(); ++i) {
      LogprobReader::Entry entry;
      json_->add(prompt.ids[i], reader.take(i, entry) ? &entry : nullptr);
    }
  }
  void add(const ReplyPiece& piece) {
    if (json_ && piece.token >= 0) json_->add(piece.token, piece.logprobs);
  }
  bool any() const { return json_ && !json_->empty(); }
  /// What came since the last call; "null" if nothing did.
  std::string take() { return any() ? json_->take() : "null"; }

 private:
  std::optional<LogprobsJson> json_;
};

class WholeReply : public ReplyWriter {
 public:
  WholeReply(ReplyShape shape, OpenAiFacts facts)
      : shape_(shape), facts_(std::move(facts)), opening_(opening(shape, false, facts_)) {
    for (const PromptFacts& prompt : facts_.prompts) {
      for (std::uint32_t i = 0; i < facts_.made; ++i) {
        choices_.push_back(
            {prompt, ChoiceLogprobs(shape_, facts_, prompt), parser_of(facts_, choices_.size())});
      }
    }
  }

  std::string begin(std::uint32_t index, const Logprobs* logprobs) override {
    Choice& choice = choices_[index];
    if (facts_.echo) {
      choice.text = choice.prompt.text;
      choice.logprobs.add_prompt(choice.prompt, logprobs);
    }
    if (facts_.prompt_logprobs >= 0) {
      choice.prompt_logprobs =
          prompt_logprobs_json(*facts_.tokenizer, choice.prompt.ids, logprobs,
                               static_cast<std::uint32_t>(facts_.prompt_logprobs));
    }
    return {};
  }

  std::string text(const ReplyPiece& piece) override {
    Choice& choice = choices_[piece.choice];
    if (choice.parser) {
      choice.take(told_parts(facts_.one_call, choice.parser->feed(piece.text)));
    } else {
      choice.text += piece.text;
    }
    choice.logprobs.add(piece);
    if (piece.logprobs != nullptr) {
      choice.sum += piece.logprobs->logprob;
      ++choice.tokens;
    }
    return {};
  }

  std::string end(std::uint32_t choice, const Ending& ending) override {
    choices_[choice].ending = ending;
    std::optional<ReplyParser>& parser = choices_[choice].parser;
    if (parser) choices_[choice].take(told_parts(facts_.one_call, parser->finish()));
    return {};
  }

  std::string finish(const Usage& usage) override {
    std::string body = opening_;
    std::uint32_t index = 0;
    for (std::size_t first = 0; first < choices_.size(); first += facts_.made) {
      for (Choice* choice : best(first)) {
        if (index > 0) body += ',';
        append_choice(body, *choice, index++);
      }
    }
    body += "],\"usage\":" + usage_object(shape_, usage) + timing_member(usage);
    if (shape_ == ReplyShape::chat && facts_.prompt_logprobs >= 0) {
      body += ",\"prompt_logprobs\":" + choices_.front().prompt_logprobs;
    }
    return body + "}";
  }

  std::string fail(const Status& status) override { return error_json(status); }

  ReplySection section(std::uint32_t choice) const override {
    return section_of(choices_[choice].parser);
  }

 private:
  struct Choice {
    const PromptFacts& prompt;
    ChoiceLogprobs logprobs;
    std::optional<ReplyParser> parser;
    std::vector<ReplyPart> parts = {};  // with a parser
    std::string text = {};              // without one
    std::string prompt_logprobs = {};
    Ending ending = {};
    double sum = 0;  // of the log probabilities
    std::uint32_t tokens = 0;

    void take(std::vector<ReplyPart> more) {
      std::move(more.begin(), more.end(), std::back_inserter(parts));
    }
    double mean() const {
      return tokens == 0 ? -std::numeric_limits<double>::infinity() : sum / tokens;
    }
  };

  /// The choices of a prompt that are told. Equally good ones keep the order of their seeds.
  std::vector<Choice*> best(std::size_t first) {
    std::vector<Choice*> order;
    for (std::size_t i = first; i < first + facts_.made; ++i) order.push_back(&choices_[i]);
    if (facts_.told < facts_.made) {
      std::stable_sort(order.begin(), order.end(),
                       [](const Choice* a, const Choice* b) { return a->mean() > b->mean(); });
      order.resize(facts_.told);
    }
    return order;
  }

  void append_choice(std::string& body, Choice& choice, std::uint32_t index) {
    const bool chat = shape_ == ReplyShape::chat;
    body += "{\"index\":" + std::to_string(index);
    if (chat) {
      if (!choice.parser) {
        choice.parts = {{ReplyPart::Kind::content, std::move(choice.text), {}, 0}};
      }
      body += ",\"message\":{\"role\":\"assistant\"," + message_members(choice.parts) + "}";
    } else {
      body += ",\"text\":" + json_string(choice.text);
    }
    body += ",\"logprobs\":" + choice.logprobs.take() +
            ending_fields(choice.ending, choice.parser, facts_.named_call);
    if (!chat && facts_.prompt_logprobs >= 0) {
      body += ",\"prompt_logprobs\":" + choice.prompt_logprobs;
    }
    body += "}";
  }

  ReplyShape shape_;
  OpenAiFacts facts_;
  std::string opening_;
  std::vector<Choice> choices_;
};

class StreamReply : public ReplyWriter {
 public:
  StreamReply(ReplyShape shape, OpenAiFacts facts) : shape_(shape), facts_(std::move(facts)) {
    head_ = "data: " + opening(shape, true, facts_);
    const bool chat = shape == ReplyShape::chat;
    before_text_ = chat ? ",\"delta\":{\"content\":\"" : ",\"text\":\"";
    after_text_ = std::string(chat ? "\"}" : "\"") + ",\"logprobs\":";
    after_logprobs_ = ",\"finish_reason\":null";
    tokens_.resize(facts_.prompts.size() * facts_.made);
    for (const PromptFacts& prompt : facts_.prompts) {
      for (std::uint32_t i = 0; i < facts_.made; ++i) {
        parsers_.push_back(parser_of(facts_, parsers_.size()));
        logprobs_.emplace_back(shape_, facts_, prompt);
      }
    }
  }

  std::string begin(std::uint32_t choice, const Logprobs* logprobs) override {
    if (shape_ == ReplyShape::chat) {
      return head_ + "{\"index\":" + std::to_string(choice) +
             ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null" +
             after_logprobs_ + close(choice);
    }
    if (!facts_.echo) return {};
    const PromptFacts& prompt = facts_.prompts[choice / facts_.made];
    logprobs_[choice].add_prompt(prompt, logprobs);
    return event(choice, prompt.text);
  }

  /// As llama-server tells it, in an event that adds nothing to the choice.
  std::string progress(const PromptProgress& progress) override {
    return head_ + "{\"index\":" + std::to_string(progress.choice) +
           (shape_ == ReplyShape::chat ? ",\"delta\":{}" : ",\"text\":\"\"") +
           ",\"logprobs\":null" + after_logprobs_ +
           "}],\"prompt_progress\":{\"total\":" + std::to_string(progress.total) +
           ",\"cache\":" + std::to_string(progress.cached) +
           ",\"processed\":" + std::to_string(progress.done) +
           ",\"time_ms\":" + std::to_string(progress.took / kMillisecond) + "}" +
           (facts_.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
  }

  std::string text(const ReplyPiece& piece) override {
    logprobs_[piece.choice].add(piece);
    if (piece.token >= 0) ++tokens_[piece.choice];
    if (parsers_[piece.choice]) {
      return events_of(piece.choice,
                       told_parts(facts_.one_call, parsers_[piece.choice]->feed(piece.text)));
    }
    if (piece.text.empty() && !logprobs_[piece.choice].any()) return {};
    return event(piece.choice, piece.text);
  }

  std::string end(std::uint32_t choice, const Ending& ending) override {
    std::optional<ReplyParser>& parser = parsers_[choice];
    std::string events;
    // It may end with a call.
    if (parser) events = events_of(choice, told_parts(facts_.one_call, parser->finish()));
    return events + head_ + "{\"index\":" + std::to_string(choice) +
           (shape_ == ReplyShape::chat ? ",\"delta\":{}" : ",\"text\":\"\"") +
           ",\"logprobs\":null" + ending_fields(ending, parser, facts_.named_call) + close(choice);
  }

  std::string finish(const Usage& usage) override {
    std::string events;
    if (facts_.include_usage || usage.timing) {
      events = head_ + "]";
      if (facts_.include_usage) events += ",\"usage\":" + usage_object(shape_, usage);
      events += timing_member(usage) + "}\n\n";
    }
    events += kSseDone;
    return events;
  }

  std::string fail(const Status& status) override {
    return sse_event(error_json(status)) + std::string(kSseDone);
  }

  ReplySection section(std::uint32_t choice) const override { return section_of(parsers_[choice]); }

 private:
  /// One event a part; log probabilities go with the first of them, or alone.
  std::string events_of(std::uint32_t choice, const std::vector<ReplyPart>& parts) {
    const std::string index = head_ + "{\"index\":" + std::to_string(choice) + ",\"delta\":{";
    std::string events;
    for (const ReplyPart& part : parts) {
      events += index + delta_members(part) + "},\"logprobs\":" + logprobs_[choice].take() +
                after_logprobs_ + close(choice);
    }
    if (logprobs_[choice].any()) {
      events +=
          index + "},\"logprobs\":" + logprobs_[choice].take() + after_logprobs_ + close(choice);
    }
    return events;
  }

  std::string event(std::uint32_t choice, std::string_view text) {
    std::string event;
    event.reserve(head_.size() + before_text_.size() + text.size() + after_text_.size() +
                  after_logprobs_.size() + 72);
    event += head_;
    event += "{\"index\":";
    event += std::to_string(choice);
    event += before_text_;
    append_json_escaped(event, text);
    event += after_text_;
    event += logprobs_[choice].take();
    event += after_logprobs_;
    event += close(choice);
    return event;
  }

  /// From the end of the choice to the end of its event.
  std::string close(std::uint32_t choice) const {
    if (!facts_.include_usage) return "}]}\n\n";
    if (!facts_.usage_so_far) return "}],\"usage\":null}\n\n";
    const std::uint64_t prompt = facts_.prompts[choice / facts_.made].tokens;
    const std::uint64_t made = tokens_[choice];
    return "}],\"usage\":{\"prompt_tokens\":" + std::to_string(prompt) +
           ",\"completion_tokens\":" + std::to_string(made) +
           ",\"total_tokens\":" + std::to_string(prompt + made) + "}}\n\n";
  }

  ReplyShape shape_;
  OpenAiFacts facts_;
  std::vector<ChoiceLogprobs> logprobs_;             // by choice
  std::vector<std::optional<ReplyParser>> parsers_;  // likewise
  std::vector<std::uint32_t> tokens_;                // likewise, so far
  std::string head_;                                 // "data: " and the fields before the choices
  std::string before_text_;
  std::string after_text_;
  std::string after_logprobs_;
};

}  // namespace

std::unique_ptr<ReplyWriter> openai_whole_reply(ReplyShape shape, OpenAiFacts facts) {
  return std::make_unique<WholeReply>(shape, std::move(facts));
}

std::unique_ptr<ReplyWriter> openai_stream_reply(ReplyShape shape, OpenAiFacts facts) {
  return std::make_unique<StreamReply>(shape, std::move(facts));
}

}  // namespace baton
