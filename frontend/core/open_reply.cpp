#include "frontend/core/open_reply.h"

#include <algorithm>
#include <utility>

#include "frontend/core/text_stream_options.h"

namespace baton {

namespace {

std::uint32_t max_tokens_of(const ParsedRequest& request, const std::vector<Token>& prompt) {
  if (request.max_context == 0) return request.sampling.max_tokens;
  const auto room = request.max_context - static_cast<std::uint32_t>(prompt.size());
  return std::min(request.sampling.max_tokens, room);
}

/// Stop strings end the answer, and nothing in front of it.
TextStream::Stops stops_in(ReplySection section) {
  switch (section) {
    case ReplySection::answer:
      return TextStream::Stops::on;
    case ReplySection::border:
      return TextStream::Stops::behind_space;
    case ReplySection::reasoning:
    case ReplySection::header:
      break;
  }
  return TextStream::Stops::off;
}

// As JSON: of a token its text and marks, of a log probability the token and the number.
constexpr std::size_t kTokenBytes = 8;
constexpr std::size_t kLogprobBytes = 48;

}  // namespace

std::vector<NewRequest> fan_out(const ParsedRequest& request, TimeNs deadline) {
  std::vector<NewRequest> requests;
  const std::uint32_t each = request.sampling.beams() ? 1 : request.choices;
  requests.reserve(request.prompts.size() * each);
  for (const std::vector<Token>& prompt : request.prompts) {
    for (std::uint32_t i = 0; i < each; ++i) {
      NewRequest one;
      one.prompt = prompt;
      one.sampling = request.sampling;
      one.sampling.seed += i;
      one.sampling.max_tokens = max_tokens_of(request, prompt);
      one.deadline = deadline;
      one.priority = request.priority;
      one.lifetime = request.lifetime;
      one.progress = request.progress;
      one.cache_salt = request.cache_salt;
      requests.push_back(std::move(one));
    }
  }
  return requests;
}

OpenReply::OpenReply(const Tokenizer& tokenizer, ParsedRequest& request)
    : writer_(std::move(request.reply)),
      stop_ids_(request.sampling.stop_ids),
      told_stop_ids_(std::move(request.told_stop_ids)),
      min_tokens_(request.sampling.min_tokens),
      choices_each_(request.choices),
      include_stop_(request.include_stop_in_output),
      prompt_only_(request.prompt_only),
      echo_(request.echo),
      stream_(request.stream) {
  std::sort(stop_ids_.begin(), stop_ids_.end());
  choices_.reserve(request.prompts.size() * request.choices);
  for (const std::vector<Token>& prompt : request.prompts) {
    prompt_tokens_ += static_cast<std::uint32_t>(prompt.size());
    const TextStreamOptions options = text_stream_options(tokenizer, request, prompt);
    for (std::uint32_t i = 0; i < request.choices; ++i) {
      choices_.push_back({.text = TextStream(tokenizer, options),
                          .max_tokens = max_tokens_of(request, prompt),
                          .prompt_tokens = static_cast<std::uint32_t>(prompt.size())});
    }
  }
}

void OpenReply::begin(std::uint32_t choice, const Logprobs* prompt, std::uint32_t cached_tokens) {
  choices_[choice].begun = true;
  choices_[choice].cached_tokens = cached_tokens;
  if (echo_) held_ += choices_[choice].prompt_tokens * kTokenBytes;
  if (prompt != nullptr)
    held_ += (prompt->items.size() + prompt->top_tokens.size()) * kLogprobBytes;
  writer_->prompt_cached(choice, cached_tokens);
  events_ += writer_->begin(choice, prompt);
}

void OpenReply::progress(PromptProgress progress) {
  progress.total = choices_[progress.choice].prompt_tokens;
  events_ += writer_->progress(progress);
}

bool OpenReply::take(std::uint32_t index, Token token, const LogprobReader::Entry* logprobs) {
  Choice& choice = choices_[index];
  if (choice.text.matched() != nullptr) return false;  // it has ended
  ++choice.tokens;
  if (prompt_only_) return false;
  // The scheduler ends a choice in the same way; the text of what ended it is not part of the
  // reply.
  const bool ends =
      choice.tokens > min_tokens_ && std::binary_search(stop_ids_.begin(), stop_ids_.end(), token);
  const ReplySection before = writer_->section(index);
  choice.text.set_stops(stops_in(before));
  TextStream::Output out;
  if (!ends || include_stop_) out = choice.text.feed({&token, 1});
  if (ends) choice.stop_token = token;
  const bool last = ends || out.stopped || choice.tokens >= choice.max_tokens;
  held_ += kTokenBytes + out.text.size();
  if (logprobs != nullptr) {
    held_ += (1 + logprobs->top_tokens.size()) * kLogprobBytes +
             logprobs->vector.size() * kVectorValueBytes;
  }
  events_ += writer_->text({index, out.text, token, logprobs, now_, last});
  // A mark around the reasoning counts with it.
  if (before == ReplySection::reasoning || writer_->section(index) == ReplySection::reasoning) {
    ++choice.reasoning_tokens;
  }
  return out.stopped;
}

void OpenReply::end(std::uint32_t index, FinishReason reason, std::optional<float> score,
                    const std::vector<TimeNs>& lifetime) {
  Choice& choice = choices_[index];
  if (!choice.begun) begin(index, nullptr);
  ++ended_;
  choice.ended = true;
  Ending ending{.reason = prompt_only_ ? FinishReason::length : reason,
                .stop_string = {},
                .score = score,
                .lifetime = lifetime};
  if (const std::string* stop = choice.text.matched()) {
    ending.reason = FinishReason::stop;
    ending.stop_string = *stop;
  } else {
    const auto rest = choice.text.flush();
    if (!rest.text.empty())
      events_ += writer_->text({.choice = index, .text = rest.text, .time = now_});
    const auto told = std::find(told_stop_ids_.begin(), told_stop_ids_.end(), choice.stop_token);
    if (told != told_stop_ids_.end()) ending.stop_token = choice.stop_token;
  }
  events_ += writer_->end(index, ending);
}

std::string OpenReply::finish() {
  const std::string events = take_events();
  Usage all = usage();
  all.timing = timing_;
  return events + writer_->finish(all);
}

std::string OpenReply::take_events() {
  if (stream_) held_ = 0;
  return std::exchange(events_, {});
}

Usage OpenReply::usage() const {
  Usage usage;
  usage.prompt_tokens = prompt_tokens_;
  // A prompt counts once: what one of its choices had to compute was not in a cache.
  for (std::size_t first = 0; first < choices_.size(); first += choices_each_) {
    std::uint32_t least = choices_[first].cached_tokens;
    for (std::size_t i = first; i < first + choices_each_; ++i) {
      least = std::min(least, choices_[i].cached_tokens);
    }
    usage.cached_tokens += least;
  }
  if (prompt_only_) return usage;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.tokens;
    usage.reasoning_tokens += choice.reasoning_tokens;
  }
  return usage;
}

}  // namespace baton
