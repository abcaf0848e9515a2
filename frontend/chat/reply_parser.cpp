#include "frontend/chat/reply_parser.h"

#include <algorithm>
#include <utility>

#include "frontend/chat/ordered_json.h"
#include "frontend/json_reader.h"

namespace baton {
namespace {

constexpr std::string_view kCallOpen = "<tool_call>";
constexpr std::string_view kCallClose = "</tool_call>";
constexpr std::string_view kCallsMark = "[TOOL_CALLS]";
constexpr std::string_view kArgumentsMark = "[ARGS]";
constexpr std::string_view kCallIdMark = "[CALL_ID]";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kSpace = " \t\r\n";

bool holds(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::string_view trimmed_front(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

std::string_view trimmed_back(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
std::size_t open_end(std::string_view text, std::string_view mark) {
  for (std::size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  }
  return 0;
}

/// The JSON value that `text` begins with, an object or an array: its length; 0 when it has no end.
std::size_t json_length(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return 0;
      if (--depth == 0) return i + 1;
    }
  }
  return 0;
}

}  // namespace

ReplyGrammar ReplyGrammar::of_templates(std::string_view text) {
  ReplyGrammar grammar;
  if (holds(text, "</think>")) {
    grammar.think_open = "<think>";
    grammar.think_close = "</think>";
  } else if (holds(text, "[/THINK]")) {
    grammar.think_open = "[THINK]";
    grammar.think_close = "[/THINK]";
  }
  // Some families put something else than JSON between the same tags.
  const bool other_inside = holds(text, "<function=") || holds(text, "<arg_key>");
  if (holds(text, kCallOpen) && !other_inside) {
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
  switch (with_calls ? calls : CallStyle::none) {
    case CallStyle::none:
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
  }
  return marks;
}

ReplyParser::ReplyParser(const ReplyGrammar& grammar, std::string_view prompt, bool with_calls,
                         std::string_view seed)
    : grammar_(grammar), seed_(seed) {
  if (!with_calls) grammar_.calls = CallStyle::none;
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
      return false;
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
      return false;
    }
    grammar_.calls = CallStyle::none;
    return true;
  }
  const std::string_view mark = style == CallStyle::tagged ? kCallOpen : kCallsMark;
  const std::size_t at = text.find(mark);
  const std::size_t end = at != text.npos ? at : text.size() - open_end(text, mark);
  const std::string_view safe = trimmed_back(text.substr(0, end));
  give_content(safe, parts);
  if (at == text.npos) {
    held_.erase(0, safe.size());
    return false;
  }
  // What turns out to be no call is given out as it was.
  space_ = text.substr(safe.size(), at - safe.size());
  held_.erase(0, at);
  searched_ = mark.size();
  state_ = style == CallStyle::tagged ? State::tagged_call : State::rest_is_calls;
  return true;
}

bool ReplyParser::step_tagged_call(std::vector<ReplyPart>& parts) {
  const std::string_view text = held_;
  const std::size_t close = text.find(kCallClose, searched_);
  if (close == text.npos) {
    searched_ = std::max(kCallOpen.size(), text.size() - std::min(text.size(), kCallClose.size()));
    return false;
  }
  const std::size_t end = close + kCallClose.size();
  if (!give_call(text.substr(kCallOpen.size(), close - kCallOpen.size()), parts)) {
    give_content(space_ + held_.substr(0, end), parts);
  } else {
    at_border_ = true;
  }
  held_.erase(0, end);
  state_ = State::content;
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
  }
  held_.clear();
  return parts;
}

/// Calls from the front as far as they go, then content.
void ReplyParser::give_rest(std::vector<ReplyPart>& parts) {
  const std::string text = std::exchange(held_, {});
  const std::size_t taken = grammar_.calls == CallStyle::whole_json ? whole_calls(text, parts)
                                                                    : bracketed_calls(text, parts);
  const std::string_view rest = std::string_view(text).substr(taken);
  if (taken == 0) {
    give_content(space_ + text, parts);
  } else if (!trimmed_front(rest).empty()) {
    give_content(rest, parts);
  }
}

/// Bytes of `text` that are calls: {...}; {...}
std::size_t ReplyParser::whole_calls(std::string_view text, std::vector<ReplyPart>& parts) {
  std::size_t taken = 0;
  for (;;) {
    std::string_view rest = trimmed_front(text.substr(taken));
    if (taken == 0 && rest.starts_with(kPythonTag)) {
      rest = trimmed_front(rest.substr(kPythonTag.size()));
    } else if (taken > 0 && rest.starts_with(';')) {
      rest = trimmed_front(rest.substr(1));
    }
    const std::size_t length = rest.starts_with('{') ? json_length(rest) : 0;
    if (length == 0 || !give_call(rest.substr(0, length), parts)) return taken;
    taken = static_cast<std::size_t>(rest.data() - text.data()) + length;
  }
}

/// Bytes of `text` that are calls: a mark with a list of them, or a mark, a name and arguments each.
std::size_t ReplyParser::bracketed_calls(std::string_view text, std::vector<ReplyPart>& parts) {
  std::size_t taken = 0;
  for (;;) {
    std::string_view rest = trimmed_front(text.substr(taken));
    if (!rest.starts_with(kCallsMark)) return taken;
    rest = trimmed_front(rest.substr(kCallsMark.size()));
    if (rest.starts_with('[')) {
      const std::size_t length = json_length(rest);
      if (length == 0) return taken;
      const char* end = rest.data() + length;
      std::size_t found = 0;
      rest = rest.substr(1, length - 2);
      for (;; ++found) {
        rest = rest.substr(std::min(rest.find_first_not_of(" \t\r\n,"), rest.size()));
        const std::size_t item = rest.starts_with('{') ? json_length(rest) : 0;
        if (item == 0 || !give_call(rest.substr(0, item), parts)) break;
        rest.remove_prefix(item);
      }
      if (found == 0) return taken;
      taken = static_cast<std::size_t>(end - text.data());
      continue;
    }
    const std::size_t brace = rest.find('{');
    const std::size_t length = brace == rest.npos ? 0 : json_length(rest.substr(brace));
    if (length == 0) return taken;
    std::string_view name = rest.substr(0, brace);
    name = trimmed_back(name.substr(0, std::min(name.find(kArgumentsMark), name.find(kCallIdMark))));
    if (!give_named_call(std::string(name), std::string(rest.substr(brace, length)), parts)) {
      return taken;
    }
    taken = static_cast<std::size_t>(rest.data() - text.data()) + brace + length;
  }
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

/// {"name": ..., "arguments" or "parameters": {...}}; false when it is something else.
bool ReplyParser::give_call(std::string_view json, std::vector<ReplyPart>& parts) {
  const auto parsed = parse_json_object(json);
  if (!parsed.ok()) return false;
  const auto name = parsed.value().find("name");
  if (name == parsed.value().end() || !name->is_string()) return false;
  auto copies = copy_members(json, {"arguments", "parameters"}, SpecialGuard());
  const char* key = copies.contains("arguments") ? "arguments" : "parameters";
  std::string arguments = copies.contains(key) ? copies[key] : "{}";
  // Now and then the object is written as a string once more.
  const auto given = parsed.value().find(key);
  if (given != parsed.value().end() && given->is_string()) arguments = given->get<std::string>();
  return give_named_call(name->get<std::string>(), std::move(arguments), parts);
}

bool ReplyParser::give_named_call(std::string name, std::string arguments,
                                  std::vector<ReplyPart>& parts) {
  if (name.empty() || !parse_json_object(arguments).ok()) return false;
  ReplyPart part;
  part.kind = ReplyPart::Kind::call;
  part.call = {call_id(), std::move(name), copy_json(arguments, SpecialGuard())};
  part.index = calls_++;
  at_beginning_ = false;
  parts.push_back(std::move(part));
  return true;
}

/// Nine letters and digits, which is what Mistral's templates want to be given back.
std::string ReplyParser::call_id() const {
  static constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : seed_ + "/" + std::to_string(calls_)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  std::string id = grammar_.calls == CallStyle::bracketed ? "" : "call_";
  for (int i = 0; i < 9; ++i) {
    id.push_back(kDigits[hash % kDigits.size()]);
    hash /= kDigits.size();
  }
  return id;
}

}  // namespace baton
