// The part of ReplyParser that finds calls.
#include <algorithm>
#include <utility>

#include "frontend/chat/ordered_json.h"
#include "frontend/chat/reply_marks.h"
#include "frontend/chat/reply_parser.h"
#include "frontend/core/json_reader.h"
#include "ipc/fnv1a.h"

namespace baton {
namespace {

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

void ReplyParser::begin_call(std::string name, std::vector<ReplyPart>& parts) {
  ReplyPart part;
  part.kind = ReplyPart::Kind::call;
  part.call = {call_id(), std::move(name), ""};
  part.index = calls_++;
  at_beginning_ = false;
  space_.clear();
  parts.push_back(std::move(part));
}

void ReplyParser::give_arguments(std::string text, std::vector<ReplyPart>& parts) {
  if (text.empty()) return;
  ReplyPart part;
  part.kind = ReplyPart::Kind::arguments;
  part.text = std::move(text);
  part.index = calls_ - 1;
  parts.push_back(std::move(part));
}

/// The bracket of the arguments is the last of the `taken` bytes of held_. `scanner` stands behind
/// it.
void ReplyParser::commit(std::string name, const JsonScanner& scanner, std::size_t taken,
                         std::vector<ReplyPart>& parts) {
  begin_call(std::move(name), parts);
  give_arguments("{", parts);
  json_ = scanner;
  arguments_depth_ = json_.depth();
  held_.erase(0, taken);
  head_.reset();
  searched_ = scanned_ = 0;
  state_ = State::arguments;
}

/// Reads on with the head of a call. False: held_ is used up.
bool ReplyParser::scan_head(CallHead::State& found) {
  while (scanned_ < held_.size()) {
    found = head_->feed(held_[scanned_++]);
    if (found != CallHead::State::open) return true;
  }
  return false;
}

/// Before the arguments begin, a closing mark ends everything, wherever it stands.
bool ReplyParser::step_tagged_call(std::vector<ReplyPart>& parts) {
  if (!head_) head_.emplace();
  if (!held_to_end_) {
    CallHead::State found = CallHead::State::open;
    const bool stopped = scan_head(found);
    const bool closed = std::string_view(held_).substr(0, scanned_).find(kCallClose, searched_) !=
                        std::string::npos;
    if (stopped && !closed && found == CallHead::State::sure) {
      const std::string name = head_->name();
      const JsonScanner scanner = head_->scanner();
      commit(name, scanner, scanned_, parts);
      return true;
    }
    held_to_end_ = stopped;
  }
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
  head_.reset();
  held_to_end_ = false;
  state_ = State::content;
  return true;
}

/// Whitespace between the parts of the arguments is left out; all else goes on as it is. What is no
/// JSON any more is content.
bool ReplyParser::step_arguments(std::vector<ReplyPart>& parts) {
  std::string fragment;
  std::size_t used = 0;
  while (used < held_.size() && json_.depth() >= arguments_depth_) {
    const char c = held_[used];
    const bool kept = json_.in_string() || kSpace.find(c) == kSpace.npos;
    if (!json_.feed(c)) {
      state_ = State::content;
      break;
    }
    if (kept) fragment.push_back(c);
    ++used;
  }
  held_.erase(0, used);
  give_arguments(std::move(fragment), parts);
  if (json_.depth() < arguments_depth_) state_ = State::call_rest;
  return state_ != State::arguments;
}

/// What stands behind the arguments in the call's own object says nothing. A bracket that is
/// missing is not missed.
bool ReplyParser::step_call_rest() {
  std::size_t used = 0;
  while (used < held_.size() && !json_.done() && json_.feed(held_[used])) ++used;
  if (used == held_.size() && !json_.done()) {
    held_.clear();
    return false;
  }
  held_.erase(0, used);
  state_ = grammar_.calls == CallStyle::tagged ? State::tagged_end : State::rest_is_calls;
  return true;
}

bool ReplyParser::step_tagged_end() {
  const std::string_view text = trimmed_front(held_);
  if (kCallClose.starts_with(text) && text.size() < kCallClose.size()) return false;
  if (text.starts_with(kCallClose)) {
    held_.erase(0, held_.size() - text.size() + kCallClose.size());
  }
  at_border_ = true;
  state_ = State::content;
  return true;
}

/// Where the next call of the rest may begin.
ReplyParser::Start ReplyParser::find_whole_json() {
  std::string_view rest = trimmed_front(held_);
  if (calls_ == 0) {
    if (kPythonTag.starts_with(rest) && rest.size() < kPythonTag.size()) return Start::more;
    if (rest.starts_with(kPythonTag)) rest = trimmed_front(rest.substr(kPythonTag.size()));
  } else if (rest.starts_with(';')) {
    rest = trimmed_front(rest.substr(1));
  }
  if (rest.empty()) return Start::more;
  if (rest.front() != '{') return Start::none;
  scanned_ = held_.size() - rest.size();
  return Start::object;
}

ReplyParser::Start ReplyParser::find_bracketed() {
  constexpr std::string_view kBetween = " \t\r\n,";
  const auto object = [&](std::string_view rest) {
    rest = rest.substr(std::min(rest.find_first_not_of(kBetween), rest.size()));
    scanned_ = held_.size() - rest.size();
    return rest.empty() ? Start::more : rest.front() == '{' ? Start::object : Start::none;
  };
  std::string_view rest = held_;
  if (in_list_) {
    const Start start = object(rest);
    if (start != Start::none) return start;
    in_list_ = false;
    if (held_[scanned_] != ']') return start;
    held_.erase(0, scanned_ + 1);
    rest = held_;
  }
  rest = trimmed_front(rest);
  if (kCallsMark.starts_with(rest) && rest.size() < kCallsMark.size()) {
    held_.erase(0, held_.size() - rest.size());  // the end of a list is not looked at again
    return Start::more;
  }
  if (!rest.starts_with(kCallsMark)) {
    held_.erase(0, held_.size() - rest.size());
    return Start::none;
  }
  const std::string_view behind = trimmed_front(rest.substr(kCallsMark.size()));
  if (behind.empty()) return Start::more;
  if (behind.front() == '[') return object(behind.substr(1));
  const std::size_t begin = held_.size() - behind.size();
  scanned_ = held_.find('{', std::max(begin, searched_));
  searched_ = held_.size();
  return scanned_ == std::string::npos ? Start::more : Start::arguments;
}

bool ReplyParser::step_rest(std::vector<ReplyPart>& parts) {
  if (held_to_end_) return false;
  if (!head_) {
    const bool whole = grammar_.calls == CallStyle::whole_json;
    const Start start = whole ? find_whole_json() : find_bracketed();
    if (start == Start::more) return false;
    // A mark with no call behind it is text to the end, whether or not calls came before it.
    if (start == Start::none && calls_ > 0 && (whole || !held_.starts_with(kCallsMark))) {
      if (whole) grammar_.calls = CallStyle::none;
      at_border_ = true;
      state_ = State::content;
      return true;
    }
    if (start == Start::arguments) return commit_named(parts);
    held_to_end_ = start == Start::none;
    if (held_to_end_) return false;
    head_.emplace();
    head_begin_ = scanned_;
  }
  CallHead::State found = CallHead::State::open;
  if (!scan_head(found)) return false;
  const std::size_t begin = head_begin_;
  const bool in_list = grammar_.calls == CallStyle::bracketed;  // it has begun with its first call
  if (found == CallHead::State::sure) {
    in_list_ = in_list;
    const std::string name = head_->name();
    const JsonScanner scanner = head_->scanner();
    commit(name, scanner, scanned_, parts);
    return true;
  }
  const auto text = std::string_view(held_).substr(begin, scanned_ - begin);
  if (found == CallHead::State::ended && give_call(text, parts)) {
    in_list_ = in_list;
    held_.erase(0, scanned_);
    head_.reset();
    searched_ = scanned_ = 0;
    return true;
  }
  held_to_end_ = true;
  return false;
}

/// [TOOL_CALLS]name[ARGS]{, up to the bracket.
bool ReplyParser::commit_named(std::vector<ReplyPart>& parts) {
  std::string_view name = std::string_view(held_).substr(0, scanned_);
  name = trimmed_front(trimmed_front(name).substr(kCallsMark.size()));
  name = trimmed_back(name.substr(0, std::min(name.find(kArgumentsMark), name.find(kCallIdMark))));
  if (name.empty()) {
    held_to_end_ = true;
    return false;
  }
  JsonScanner scanner;
  scanner.feed('{');
  commit(std::string(name), scanner, scanned_ + 1, parts);
  return true;
}

/// At the end: calls from the front as far as they go, then content.
void ReplyParser::give_rest(std::vector<ReplyPart>& parts) {
  const std::string text = std::exchange(held_, {});
  std::string_view rest = text;
  if (in_list_) {
    rest = trimmed_front(rest.substr(list_calls(rest, parts)));
    if (rest.starts_with(']')) rest.remove_prefix(1);
  }
  rest.remove_prefix(grammar_.calls == CallStyle::whole_json ? whole_calls(rest, parts)
                                                             : bracketed_calls(rest, parts));
  if (calls_ == 0) {
    give_content(space_ + text, parts);
  } else if (!trimmed_front(rest).empty()) {
    give_content(rest, parts);
  }
}

/// Bytes of `text` that are the calls of a list: {...}, {...}
std::size_t ReplyParser::list_calls(std::string_view text, std::vector<ReplyPart>& parts) {
  std::string_view rest = text;
  std::size_t taken = 0;
  for (;;) {
    rest = rest.substr(std::min(rest.find_first_not_of(" \t\r\n,"), rest.size()));
    const std::size_t item = rest.starts_with('{') ? json_length(rest) : 0;
    if (item == 0 || !give_call(rest.substr(0, item), parts)) return taken;
    rest.remove_prefix(item);
    taken = text.size() - rest.size();
  }
}

/// Bytes of `text` that are calls: {...}; {...}
std::size_t ReplyParser::whole_calls(std::string_view text, std::vector<ReplyPart>& parts) {
  std::size_t taken = 0;
  for (;;) {
    std::string_view rest = trimmed_front(text.substr(taken));
    if (taken == 0 && calls_ == 0 && rest.starts_with(kPythonTag)) {
      rest = trimmed_front(rest.substr(kPythonTag.size()));
    } else if (taken + calls_ > 0 && rest.starts_with(';')) {
      rest = trimmed_front(rest.substr(1));
    }
    const std::size_t length = rest.starts_with('{') ? json_length(rest) : 0;
    if (length == 0 || !give_call(rest.substr(0, length), parts)) return taken;
    taken = static_cast<std::size_t>(rest.data() - text.data()) + length;
  }
}

/// Bytes of `text` that are calls: a mark with a list of them, or a mark, a name and arguments
/// each.
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
      if (list_calls(rest.substr(1, length - 2), parts) == 0) return taken;
      taken = static_cast<std::size_t>(end - text.data());
      continue;
    }
    const std::size_t brace = rest.find('{');
    const std::size_t length = brace == rest.npos ? 0 : json_length(rest.substr(brace));
    if (length == 0) return taken;
    std::string_view name = rest.substr(0, brace);
    name =
        trimmed_back(name.substr(0, std::min(name.find(kArgumentsMark), name.find(kCallIdMark))));
    if (!give_named_call(std::string(name), std::string(rest.substr(brace, length)), parts)) {
      return taken;
    }
    taken = static_cast<std::size_t>(rest.data() - text.data()) + brace + length;
  }
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
  begin_call(std::move(name), parts);
  give_arguments(copy_json(arguments, SpecialGuard()), parts);
  return true;
}

/// Nine letters and digits, which is what Mistral's templates want to be given back.
std::string ReplyParser::call_id() const {
  static constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = fnv1a(seed_ + "/" + std::to_string(calls_));
  std::string id = grammar_.calls == CallStyle::bracketed ? "" : "call_";
  for (int i = 0; i < 9; ++i) {
    id.push_back(kDigits[hash % kDigits.size()]);
    hash /= kDigits.size();
  }
  return id;
}

}  // namespace baton
