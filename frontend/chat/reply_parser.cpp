#include "frontend/chat/reply_parser.h"

#include <algorithm>
#include <utility>

#include "frontend/chat/reply_marks.h"

namespace baton {
namespace {

bool holds(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

/// The texts with which calls may begin, the usual one first.
std::vector<std::string_view> begins_of(CallStyle style) {
  switch (style) {
    case CallStyle::tagged:
      return {kCallOpen};
    case CallStyle::bracketed:
      return {kCallsMark};
    case CallStyle::xml:
      return {kCallOpen, kFunctionOpen};
    case CallStyle::none:
    case CallStyle::whole_json:
    case CallStyle::channels:
      break;
  }
  return {};
}

}  // namespace

ReplyGrammar ReplyGrammar::of_templates(std::string_view text) {
  ReplyGrammar grammar;
  if (holds(text, kChannelMark) && holds(text, kMessageMark)) {
    grammar.channels = true;
    grammar.calls = CallStyle::channels;
    return grammar;
  }
  if (holds(text, "</think>")) {
    grammar.think_open = "<think>";
    grammar.think_close = "</think>";
  } else if (holds(text, "[/THINK]")) {
    grammar.think_open = "[THINK]";
    grammar.think_close = "[/THINK]";
  }
  // Some families put something else than JSON between the same tags.
  const bool functions = holds(text, kFunctionOpen);
  const bool other_inside = functions || holds(text, "<arg_key>");
  if (holds(text, kCallOpen) && functions && holds(text, kParameterOpen)) {
    grammar.calls = CallStyle::xml;
  } else if (holds(text, kCallOpen) && !other_inside) {
    grammar.calls = CallStyle::tagged;
  } else if (holds(text, kCallsMark)) {
    grammar.calls = CallStyle::bracketed;
  } else if (holds(text, "ipython") && holds(text, "\"parameters\"")) {
    grammar.calls = CallStyle::whole_json;
  }
  return grammar;
}

std::vector<std::string> ReplyGrammar::marks(bool with_calls) const {
  std::vector<std::string> marks;
  const auto add = [&](std::string_view mark) { marks.emplace_back(mark); };
  if (!think_open.empty()) {
    add(think_open);
    add(think_close);
  }
  if (channels) {
    for (const std::string_view mark : {kStartMark, kChannelMark, kConstrainMark, kMessageMark,
                                        kEndMark, kCallMark, kReturnMark}) {
      add(mark);
    }
  }
  switch (with_calls ? calls : CallStyle::none) {
    case CallStyle::none:
    case CallStyle::channels:
      break;
    case CallStyle::tagged:
      add(kCallOpen);
      add(kCallClose);
      break;
    case CallStyle::bracketed:
      add(kCallsMark);
      add(kArgumentsMark);
      add(kCallIdMark);
      break;
    case CallStyle::whole_json:
      add(kPythonTag);
      break;
    case CallStyle::xml:
      for (const std::string_view mark : {kCallOpen, kCallClose, kFunctionOpen, kFunctionClose,
                                          kParameterOpen, kParameterClose}) {
        add(mark);
      }
      break;
  }
  return marks;
}

ReplyParser::ReplyParser(const ReplyGrammar& grammar, std::string_view prompt, bool with_calls,
                         std::string_view seed, std::shared_ptr<const ToolParameters> tools)
    : grammar_(grammar), seed_(seed), tools_(std::move(tools)) {
  if (!with_calls) grammar_.calls = CallStyle::none;
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

/// False: more text is needed.
bool ReplyParser::step(std::vector<ReplyPart>& parts) {
  switch (state_) {
    case State::start:
      return step_start(parts);
    case State::reasoning:
      return step_reasoning(parts);
    case State::content:
      return step_content(parts);
    case State::tagged_call:
      return step_tagged_call(parts);
    case State::rest_is_calls:
      return step_rest(parts);
    case State::arguments:
      return step_arguments(parts);
    case State::call_rest:
      return step_call_rest();
    case State::tagged_end:
      return step_tagged_end();
    case State::xml_call:
      return step_xml_call(parts);
    case State::xml_inside:
      return step_xml_inside(parts);
    case State::xml_value_begin:
      return step_xml_value_begin(parts);
    case State::xml_value:
      return step_xml_value(parts);
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
  const CallStyle style = grammar_.calls;
  if (style == CallStyle::none) {
    give_content(held_, parts);
    held_.clear();
    return false;
  }
  const std::string_view text = held_;
  if (style == CallStyle::whole_json) {
    const std::string_view inner = trimmed_front(text);
    if (at_beginning_ && (inner.empty() || kPythonTag.starts_with(inner))) return false;
    if (at_beginning_ && (inner.front() == '{' || inner.starts_with(kPythonTag))) {
      state_ = State::rest_is_calls;
      return true;
    }
    grammar_.calls = CallStyle::none;
    return true;
  }
  const std::vector<std::string_view> begins = begins_of(style);
  std::size_t at = text.npos;
  std::size_t open = 0;
  for (const std::string_view begin : begins) {
    at = std::min(at, text.find(begin));
    open = std::max(open, open_end(text, begin));
  }
  const std::size_t end = at != text.npos ? at : text.size() - open;
  const std::string_view safe = trimmed_back(text.substr(0, end));
  give_content(safe, parts);
  if (at == text.npos) {
    held_.erase(0, safe.size());
    return false;
  }
  // What turns out to be no call is given out as it was.
  space_ = text.substr(safe.size(), at - safe.size());
  held_.erase(0, at);
  searched_ = scanned_ = begins.front().size();
  state_ = style == CallStyle::tagged ? State::tagged_call
           : style == CallStyle::xml  ? State::xml_call
                                      : State::rest_is_calls;
  return true;
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
    case State::tagged_call:
      // Some models leave the last closing tag out.
      if (!give_call(std::string_view(held_).substr(kCallOpen.size()), parts)) {
        give_content(space_ + held_, parts);
      }
      break;
    case State::rest_is_calls:
      give_rest(parts);
      break;
    case State::xml_call:
      give_content(space_ + held_, parts);
      break;
    case State::arguments:  // cut off
    case State::call_rest:
    case State::xml_inside:
    case State::xml_value_begin:
    case State::xml_value:
      break;
    case State::tagged_end:
      at_border_ = true;
      give_content(held_, parts);
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
