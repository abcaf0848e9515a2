#include "frontend/chat/reply_parser.h"

#include <algorithm>
#include <utility>

#include "frontend/chat/reply_marks.h"
#include "ipc/fnv1a.h"

namespace baton {
namespace {

/// More opening marks without a call behind them, and a reply is not searched for calls any more.
constexpr std::uint32_t kMaxRefused = 64;

}  // namespace

ReplyParser::ReplyParser(const ReplyGrammar& grammar, std::string_view prompt, bool with_calls,
                         std::string_view seed, std::shared_ptr<const ToolParameters> tools)
    : grammar_(grammar), seed_(seed), tools_(std::move(tools)) {
  if (!with_calls) grammar_.calls = nullptr;
  if (grammar_.channels) begin_channels(prompt);
  if (grammar_.think_open.empty()) return;
  const std::string_view end = trimmed_back(prompt);
  if (end.ends_with(grammar_.think_open)) {
    state_ = State::reasoning;
    at_border_ = true;
  } else if (!end.ends_with(grammar_.think_close)) {
    state_ = State::start;
  }
}

std::vector<ReplyPart> ReplyParser::feed(std::string_view text) {
  std::vector<ReplyPart> parts;
  held_ += text;
  while (!held_.empty() && step(parts)) {
  }
  return parts;
}

ReplySection ReplyParser::section() const {
  switch (state_) {
    case State::reasoning:
      return ReplySection::reasoning;
    case State::header:
    case State::between_messages:
      return ReplySection::header;
    case State::message:
      return message_kind_ == ReplyPart::Kind::reasoning ? ReplySection::reasoning
                                                         : ReplySection::answer;
    case State::start:
      return ReplySection::border;
    case State::content:
      return at_border_ && at_beginning_ ? ReplySection::border : ReplySection::answer;
    case State::call:
    case State::behind_call:
      break;
  }
  return ReplySection::answer;
}

/// False: more text is needed.
bool ReplyParser::step(std::vector<ReplyPart>& parts) {
  switch (state_) {
    case State::start:
      return step_start(parts);
    case State::reasoning:
      return step_reasoning(parts);
    case State::content:
      return step_content(parts);
    case State::call:
      return step_call(parts);
    case State::behind_call:
      return step_behind_call();
    case State::header:
      return step_header(parts);
    case State::message:
      return step_message(parts);
    case State::between_messages:
      return step_between(parts);
  }
  return false;
}

bool ReplyParser::step_start(std::vector<ReplyPart>&) {
  const std::string_view text = trimmed_front(held_);
  if (text.starts_with(grammar_.think_open)) {
    held_.erase(0, held_.size() - text.size() + grammar_.think_open.size());
    state_ = State::reasoning;
    at_border_ = true;
    return true;
  }
  if (std::string_view(grammar_.think_open).starts_with(text)) return false;
  state_ = State::content;
  return true;
}

bool ReplyParser::step_reasoning(std::vector<ReplyPart>& parts) {
  const std::string_view text = held_;
  const std::size_t close = text.find(grammar_.think_close);
  if (close == text.npos) {
    // A mark that is not whole yet, and whitespace that may turn out to stand before one.
    std::string_view safe = text.substr(0, text.size() - open_end(text, grammar_.think_close));
    safe = trimmed_back(safe);
    give_reasoning(safe, parts);
    held_.erase(0, safe.size());
    return false;
  }
  give_reasoning(trimmed_back(text.substr(0, close)), parts);
  held_.erase(0, close + grammar_.think_close.size());
  state_ = State::content;
  at_border_ = true;
  return true;
}

bool ReplyParser::step_content(std::vector<ReplyPart>& parts) {
  const CallFormat* format = grammar_.calls;
  if (format == nullptr || format->shape == CallShape::channels) {
    give_content(held_, parts);
    held_.clear();
    return false;
  }
  const std::string_view text = held_;
  if (format->whole_reply()) {
    if (trimmed_front(text).empty()) return false;
    if (at_beginning_) {
      begin_reader(0);
    } else {
      grammar_.calls = nullptr;
    }
    return true;
  }
  std::size_t at = text.npos;
  std::size_t open = 0;
  for (const std::string_view mark : format->opens) {
    if (mark.empty()) continue;
    at = std::min(at, text.find(mark));
    open = std::max(open, open_end(text, mark));
  }
  const std::size_t end = at != text.npos ? at : text.size() - open;
  const std::string_view safe = trimmed_back(text.substr(0, end));
  give_content(safe, parts);
  if (at == text.npos) {
    held_.erase(0, safe.size());
    return false;
  }
  held_.erase(0, safe.size());
  begin_reader(at - safe.size());
  return true;
}

/// A call may begin behind `space` bytes of whitespace, which are content if none does.
void ReplyParser::begin_reader(std::size_t space) {
  space_ = held_.substr(0, space);
  held_.erase(0, space);
  reader_.emplace(*grammar_.calls, tools_);
  reader_gave_ = false;
  state_ = State::call;
}

bool ReplyParser::step_call(std::vector<ReplyPart>& parts) {
  switch (reader_->read(held_)) {
    case CallReader::State::more:
      return false;
    case CallReader::State::call:
      held_.erase(0, reader_->used());
      give_call(reader_->take(), parts);
      return true;
    case CallReader::State::done:
      held_.erase(0, reader_->used());
      state_ = State::behind_call;
      return true;
    case CallReader::State::failed:
      refuse_call(parts);
      return true;
  }
  return false;
}

/// The mark is content, and what stands behind it may begin a call.
void ReplyParser::refuse_call(std::vector<ReplyPart>& parts) {
  const CallFormat& format = *grammar_.calls;
  state_ = State::content;
  if (format.whole_reply() || ++refused_ > kMaxRefused) grammar_.calls = nullptr;
  if (reader_gave_) {
    at_border_ = true;
    return;
  }
  std::size_t mark = 0;
  for (const std::string_view open : format.opens) {
    if (!open.empty() && held_.starts_with(open)) mark = open.size();
  }
  give_content(std::exchange(space_, {}) + held_.substr(0, mark), parts);
  held_.erase(0, mark);
}

/// Closing marks and separators belong to no part.
bool ReplyParser::step_behind_call() {
  const CallFormat& format = *grammar_.calls;
  const std::string_view text = trimmed_front(held_);
  const auto drop = [&](std::size_t bytes) { held_.erase(0, held_.size() - text.size() + bytes); };
  if (text.empty()) return false;
  for (const std::string_view mark : format.closes) {
    if (mark.empty()) continue;
    if (text.starts_with(mark)) {
      drop(mark.size());
      return true;
    }
    if (mark.starts_with(text)) return false;
  }
  if (format.whole_reply() && !format.separator.empty()) {
    std::string_view next = text;
    if (next.starts_with(format.separator)) next.remove_prefix(format.separator.size());
    next = trimmed_front(next);
    if (next.empty()) return false;
    if (next.front() == '{') {
      const std::size_t bytes = text.size() - next.size();
      space_ = text.substr(0, bytes);
      drop(bytes);
      const std::string before = space_;
      begin_reader(0);
      space_ = before;
      return true;
    }
  }
  for (const std::string_view mark : {format.opens[0], format.opens[1], format.open}) {
    if (mark.empty()) continue;
    if (text.starts_with(mark)) {
      drop(0);
      begin_reader(0);
      return true;
    }
    if (mark.starts_with(text)) return false;
  }
  at_border_ = true;
  if (format.whole_reply()) grammar_.calls = nullptr;
  state_ = State::content;
  return true;
}

void ReplyParser::give_call(FoundCall call, std::vector<ReplyPart>& parts) {
  ReplyPart part;
  part.kind = ReplyPart::Kind::call;
  part.call = {call.id.empty() ? call_id() : std::move(call.id), std::move(call.name), ""};
  part.index = calls_++;
  at_beginning_ = false;
  reader_gave_ = true;
  space_.clear();
  const std::uint32_t index = part.index;
  parts.push_back(std::move(part));
  parts.push_back({ReplyPart::Kind::arguments, std::move(call.arguments), {}, index});
}

/// Nine letters and digits, which is what Mistral's templates want to be given back.
std::string ReplyParser::call_id() const {
  static constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = fnv1a(seed_ + "/" + std::to_string(calls_));
  std::string id = grammar_.calls->shape == CallShape::either ? "" : "call_";
  for (int i = 0; i < 9; ++i) {
    id.push_back(kDigits[hash % kDigits.size()]);
    hash /= kDigits.size();
  }
  return id;
}

std::vector<ReplyPart> ReplyParser::finish() {
  std::vector<ReplyPart> parts;
  switch (state_) {
    case State::reasoning:
      give_reasoning(trimmed_back(held_), parts);
      break;
    case State::start:
    case State::content:
      give_content(held_, parts);
      break;
    case State::call:
    case State::behind_call:
      finish_calls(parts);
      break;
    case State::header:
    case State::message:
    case State::between_messages:
      finish_channels(parts);
      break;
  }
  held_.clear();
  return parts;
}

/// Calls as far as they are whole; the rest is content, to the letter.
void ReplyParser::finish_calls(std::vector<ReplyPart>& parts) {
  while (state_ == State::call) {
    switch (reader_->finish(held_)) {
      case CallReader::State::call:
        held_.erase(0, reader_->used());
        give_call(reader_->take(), parts);
        break;
      case CallReader::State::done:
        held_.erase(0, reader_->used());
        state_ = State::behind_call;
        break;
      case CallReader::State::more:
      case CallReader::State::failed:
        at_border_ = reader_gave_;
        give_content(space_ + held_, parts);
        return;
    }
    while (state_ == State::behind_call && !held_.empty() && step_behind_call()) {
    }
  }
  at_border_ = true;
  give_content(held_, parts);
}

void ReplyParser::give_reasoning(std::string_view text, std::vector<ReplyPart>& parts) {
  if (at_border_) text = trimmed_front(text);
  if (text.empty()) return;
  at_border_ = false;
  parts.push_back({ReplyPart::Kind::reasoning, std::string(text), {}, 0});
}

void ReplyParser::give_content(std::string_view text, std::vector<ReplyPart>& parts) {
  if (at_border_) text = trimmed_front(text);
  if (text.empty()) return;
  at_border_ = false;
  at_beginning_ = false;
  parts.push_back({ReplyPart::Kind::content, std::string(text), {}, 0});
}

}  // namespace baton
