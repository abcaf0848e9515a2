// The part of ReplyParser that reads the harmony format: a reply is messages,
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
// whose first <|start|>assistant the prompt has said. A message to somebody names him as to=NAME,
// in front of the channel or behind it; <|constrain|> and a word tell the type of its text.
#include <algorithm>
#include <array>
#include <utility>

#include "frontend/chat/reply_marks.h"
#include "frontend/chat/reply_parser.h"

namespace baton {
namespace {

/// No header is longer; what is longer has none.
constexpr std::size_t kMostHeader = 512;

constexpr std::array kEnds = {kEndMark, kCallMark, kReturnMark, kStartMark};

struct FoundMark {
  std::size_t at = std::string_view::npos;
  std::string_view mark;
  std::size_t open = 0;  // bytes at the end that may begin a mark
};

/// The first of the marks.
template <class Marks>
FoundMark first_of(std::string_view text, const Marks& marks) {
  FoundMark found;
  for (const std::string_view mark : marks) {
    const std::size_t at = text.find(mark);
    if (at < found.at) found = {at, mark, found.open};
    found.open = std::max(found.open, open_end(text, mark));
  }
  return found;
}

bool may_begin_with(std::string_view text, std::string_view mark) {
  return text.starts_with(mark) || mark.starts_with(text);
}

/// The word behind `mark` in a header, up to a space or the next mark.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const std::size_t at = header.find(mark);
  if (at == header.npos) return {};
  const std::string_view rest = trimmed_front(header.substr(at + mark.size()));
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

}  // namespace

/// The prompt ends in the header of the reply's first message, or inside of a message that goes on.
void ReplyParser::begin_channels(std::string_view prompt) {
  const std::size_t start = prompt.rfind(kStartMark);
  state_ = State::between_messages;
  if (start == prompt.npos) return;
  state_ = State::header;
  std::string_view begun = prompt.substr(start + kStartMark.size());
  if (begun.starts_with("assistant")) begun.remove_prefix(9);
  feed(begun);
  kinds_told_.clear();
  message_told_ = false;
}

void ReplyParser::read_header(std::string_view header) {
  const std::string_view channel = word_behind(header, kChannelMark);
  const std::string_view recipient = word_behind(header, "to=");
  callee_.clear();
  searched_ = 0;
  message_told_ = false;
  message_kind_ = channel == "analysis" ? ReplyPart::Kind::reasoning : ReplyPart::Kind::content;
  if (recipient.starts_with(kFunctions) && grammar_.calls != nullptr) {
    callee_ = recipient.substr(kFunctions.size());
    message_kind_ = ReplyPart::Kind::arguments;
  } else if (!recipient.empty() && !recipient.starts_with(kFunctions)) {
    message_kind_ = ReplyPart::Kind::reasoning;
  }
}

bool ReplyParser::step_header(std::vector<ReplyPart>&) {
  const std::string_view text = held_;
  const std::array marks = {kMessageMark, kEndMark, kCallMark, kReturnMark, kStartMark};
  const FoundMark found = first_of(text, marks);
  if (found.at == text.npos) {
    // A reply without any header: what it says is its answer.
    const std::string_view first = trimmed_front(text);
    const bool header =
        first.empty() || may_begin_with(first, "<|") || may_begin_with(first, "to=");
    if (text.size() <= kMostHeader && (header || !at_beginning_)) return false;
    read_header({});
    state_ = State::message;
    return true;
  }
  const bool whole = found.mark == kMessageMark;
  if (whole) read_header(text.substr(0, found.at));
  at_beginning_ = false;
  state_ = whole                      ? State::message
           : found.mark == kStartMark ? State::header
                                      : State::between_messages;
  held_.erase(0, found.at + found.mark.size());
  return true;
}

bool ReplyParser::step_message(std::vector<ReplyPart>& parts) {
  const std::string_view text = held_;
  // A call's text is held until it is whole; what was searched holds no mark.
  const std::size_t from = callee_.empty() ? 0 : searched_;
  FoundMark found = first_of(text.substr(from), kEnds);
  if (found.at == text.npos) {
    const std::size_t safe = text.size() - found.open;
    if (!callee_.empty()) {
      searched_ = safe;
      return false;
    }
    give_message(text.substr(0, safe), parts);
    held_.erase(0, safe);
    return false;
  }
  found.at += from;
  give_message(text.substr(0, found.at), parts);
  callee_.clear();
  state_ = found.mark == kStartMark ? State::header : State::between_messages;
  held_.erase(0, found.at + found.mark.size());
  return true;
}

/// Models that leave <|start|> out go on with the channel.
bool ReplyParser::step_between(std::vector<ReplyPart>&) {
  const std::string_view text = trimmed_front(held_);
  held_.erase(0, held_.size() - text.size());
  if (held_.empty()) return false;
  if (held_.starts_with(kStartMark)) {
    held_.erase(0, kStartMark.size());
    state_ = State::header;
    return true;
  }
  if (kStartMark.starts_with(held_) ||
      (held_.size() < kChannelMark.size() && kChannelMark.starts_with(held_))) {
    return false;
  }
  if (held_.starts_with(kChannelMark)) {
    state_ = State::header;
    return true;
  }
  read_header({});
  state_ = State::message;
  return true;
}

void ReplyParser::give_message(std::string_view text, std::vector<ReplyPart>& parts) {
  ReplyPart::Kind kind = message_kind_;
  if (!callee_.empty()) {
    if (auto arguments = arguments_of(text); arguments && knows(callee_)) {
      // To the letter, as this format's official parser reports them.
      if (*arguments != "{}") arguments = escape_controls(trimmed_back(trimmed_front(text)));
      return give_call({"", callee_, std::move(*arguments)}, parts);
    }
    kind = ReplyPart::Kind::content;  // no call: what the model wrote is its answer
  }
  if (text.empty()) return;
  std::string told(text);
  if (!message_told_ && !kinds_told_.insert(kind).second) told.insert(0, "\n");
  message_told_ = true;
  parts.push_back({kind, std::move(told), {}, 0});
}

/// The token that ends a reply is not part of its text: a call ends with the reply, too.
void ReplyParser::finish_channels(std::vector<ReplyPart>& parts) {
  // Nothing but the beginning of what might have been a header.
  if (state_ == State::header && at_beginning_ && !trimmed_front(held_).starts_with("<|")) {
    read_header({});
    state_ = State::message;
  }
  if (state_ == State::message) {
    give_message(held_, parts);
  }
}

}  // namespace baton
