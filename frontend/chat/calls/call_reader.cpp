#include "frontend/chat/calls/call_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "frontend/chat/ordered_json.h"
#include "frontend/chat/reply_marks.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
/// What may stand in front of a name and between marks; longer is no call.
constexpr std::size_t kMaxGap = 64;
constexpr std::size_t kMaxOpening = 1024;

bool blank(std::string_view text) { return trimmed_front(text).empty(); }

/// `text` is a proper beginning of `mark`.
bool begins(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

/// The member `name`, or nullptr.
const nlohmann::json* member(const nlohmann::json& object, std::string_view name) {
  const auto found = object.find(std::string(name));
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

std::string escape_controls(std::string_view json) {
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\' && i + 1 < json.size()) {
      out += c;
      out += json[++i];
      continue;
    }
    if (c == '"') in_string = !in_string;
    if (in_string && static_cast<unsigned char>(c) < 0x20) {
      append_json_escaped(out, json.substr(i, 1));
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<std::string> arguments_of(std::string_view json) {
  const std::string_view bare = trimmed_back(trimmed_front(json));
  if (bare.empty() || bare == "null") return "{}";
  const std::string text = escape_controls(bare);
  if (text.front() != '{' || !nlohmann::json::accept(text)) return std::nullopt;
  return copy_json(text, SpecialGuard());
}

CallReader::State CallReader::read(std::string_view text) {
  if (!ready_.empty()) {
    found_ = std::move(ready_.back());
    ready_.pop_back();
    return give(0);
  }
  switch (step_) {
    case Step::opening: {
      const State state = read_opening(text);
      const bool open = state == State::more && step_ == Step::opening;
      return open && text.size() > kMaxOpening ? State::failed : state;
    }
    case Step::item:
      return read_item(text);
    case Step::object:
    case Step::arguments:
      return read_json(text);
    case Step::parameters:
      return read_parameters(text);
    case Step::value:
      return read_value(text);
    case Step::python:
      return read_python(text);
    case Step::finished:
      break;
  }
  used_ = 0;
  return State::done;
}

CallReader::State CallReader::finish(std::string_view text) {
  final_ = true;
  const State state = read(text);
  if (state != State::more) return state;
  if (step_ == Step::object && json_.depth() == 1 && !json_.in_string()) {
    return end_object(std::string(text.substr(begin_)), text.size(), true);
  }
  if (step_ == Step::item && any_ && blank(text)) {
    used_ = text.size();
    return State::done;
  }
  return State::failed;
}

/// Up to where the name, the object or the list begins.
CallReader::State CallReader::read_opening(std::string_view text) {
  std::size_t begin = 0;
  const auto skip_space = [&] { begin = text.size() - trimmed_front(text.substr(begin)).size(); };
  for (const std::string_view open : format_->opens) {
    if (open.empty() || !text.starts_with(open)) continue;
    if (open == format_->name_begin) break;  // the call's own header
    begin = open.size();
    if (!format_->open.empty() && open != format_->open) {
      skip_space();
      const std::string_view rest = text.substr(begin);
      if (begins(rest, format_->open)) return State::more;
      if (!rest.starts_with(format_->open)) return State::failed;
      begin += format_->open.size();
    }
    break;
  }
  skip_space();
  if (format_->whole_reply()) {
    const std::string_view rest = text.substr(begin);
    if (begins(rest, kPythonTag)) return State::more;
    if (rest.starts_with(kPythonTag)) begin += kPythonTag.size();
    skip_space();
  }
  if (begin == text.size()) return State::more;
  const char first = text[begin];
  switch (format_->shape) {
    case CallShape::object:
      return first == '{' ? begin_json(text, begin, Step::object) : State::failed;
    case CallShape::list:
    case CallShape::either:
      if (first != '[') {
        return format_->shape == CallShape::list ? State::failed : read_name(text, begin);
      }
      in_list_ = true;
      step_ = Step::item;
      at_ = begin + 1;
      return read_item(text);
    case CallShape::named:
      return read_name(text, begin);
    case CallShape::xml:
      return read_function(text, begin);
    case CallShape::pairs:
      return read_pair_name(text, begin);
    case CallShape::pythonic:
      if (first != '[') return State::failed;
      begin_ = at_ = begin;
      step_ = Step::python;
      return read_python(text);
    case CallShape::channels:
      break;
  }
  return State::failed;
}

/// NAME and what stands between it and its arguments.
CallReader::State CallReader::read_name(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin);
  std::string_view name = rest;
  if (!format_->name_begin.empty()) {
    if (begins(rest, format_->name_begin)) return State::more;
    if (!rest.starts_with(format_->name_begin)) return State::failed;
    name.remove_prefix(format_->name_begin.size());
  }
  const bool either = format_->shape == CallShape::either;
  const std::string_view window = name.substr(0, kMaxNameBytes + format_->name_end.size());
  std::size_t end = window.find(format_->name_end);
  if (either) end = std::min({end, window.find(kCallIdMark), window.find('{')});
  if (end == window.npos) return window.size() < name.size() ? State::failed : State::more;
  std::size_t json = static_cast<std::size_t>(name.data() - text.data()) + end;
  name = trimmed_back(trimmed_front(name.substr(0, end)));
  if (either) {  // [CALL_ID]ID, [ARGS], both or neither
    std::string_view behind = text.substr(json);
    if (behind.starts_with(kCallIdMark)) {
      const std::string_view id = behind.substr(kCallIdMark.size(), kMaxNameBytes);
      const std::size_t id_end = std::min(id.find(kArgumentsMark), id.find('{'));
      if (id_end == id.npos) return id.size() == kMaxNameBytes ? State::failed : State::more;
      found_.id = trimmed_back(trimmed_front(id.substr(0, id_end)));
      json += kCallIdMark.size() + id_end;
      behind = text.substr(json);
    }
    if (behind.starts_with(kArgumentsMark)) json += kArgumentsMark.size();
  } else {
    json += format_->name_end.size();
  }
  if (format_->name == "kimi_k2") {  // functions.NAME:INDEX, which its template wants back
    found_.id = name;
    if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
    name = name.substr(0, name.rfind(':'));
  }
  if (!known(name)) return State::failed;
  json = text.size() - trimmed_front(text.substr(json)).size();
  if (json == text.size()) return State::more;
  found_.name = name;
  if (text[json] == '{') return begin_json(text, json, Step::arguments);
  const std::string_view behind = text.substr(json);
  if (may_close(behind)) return State::more;
  if (!closes(behind)) return State::failed;
  found_.arguments = "{}";
  return give(json);
}

/// The header of a function: <function=NAME>
CallReader::State CallReader::read_function(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin);
  const std::string_view opening = format_->name_begin;
  if (begins(rest, opening)) return State::more;
  if (!rest.starts_with(opening)) return State::failed;
  const std::string_view window = rest.substr(opening.size(), kMaxNameBytes + 1);
  const std::size_t end = window.find(format_->name_end);
  const std::size_t bad = window.find_first_of("<\r\n");
  if (bad < end) return State::failed;
  if (end == window.npos) return window.size() > kMaxNameBytes ? State::failed : State::more;
  const std::string_view name = trimmed_back(trimmed_front(window.substr(0, end)));
  return begin_parameters(text, name, begin + opening.size() + end + format_->name_end.size());
}

/// NAME, ended by a line, the first key, or the end of the call.
CallReader::State CallReader::read_pair_name(std::string_view text, std::size_t begin) {
  const std::string_view window = text.substr(begin, kMaxNameBytes + 1);
  const std::size_t end = window.find_first_of("<\n");
  if (end == window.npos) return window.size() > kMaxNameBytes ? State::failed : State::more;
  return begin_parameters(text, trimmed_back(window.substr(0, end)), begin + end);
}

CallReader::State CallReader::begin_parameters(std::string_view text, std::string_view name,
                                               std::size_t begin) {
  if (!known(name)) return State::failed;
  found_.name = name;
  found_.arguments = "{";
  given_.clear();
  step_ = Step::parameters;
  at_ = begin;
  return read_parameters(text);
}

CallReader::State CallReader::read_item(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n,", at_), text.size());
  if (begin == text.size()) return State::more;
  if (text[begin] == ']') {
    step_ = Step::finished;
    used_ = begin + 1;
    return any_ ? State::done : State::failed;
  }
  return text[begin] == '{' ? begin_json(text, begin, Step::object) : State::failed;
}

CallReader::State CallReader::begin_json(std::string_view text, std::size_t begin, Step step) {
  json_ = JsonScanner(JsonScanner::Controls::allowed);
  string_.clear();
  key_.clear();
  begin_ = at_ = begin;
  step_ = step;
  return read_json(text);
}

CallReader::State CallReader::read_json(std::string_view text) {
  for (; at_ < text.size() && !json_.done(); ++at_) {
    const char c = text[at_];
    const bool in_string = json_.in_string();
    if (!json_.feed(c)) {
      // Models leave the object's own bracket out.
      const std::string_view rest = text.substr(at_);
      if (step_ != Step::object || json_.depth() != 1) return State::failed;
      if (may_close(rest)) return State::more;
      if (!closes(rest)) return State::failed;
      return end_object(std::string(text.substr(begin_, at_ - begin_)), at_, true);
    }
    if (step_ == Step::object && json_.depth() == 1 && (in_string || json_.in_string())) {
      string_ += c;
      if (!json_.in_string() && !take_string()) return State::failed;
    }
  }
  if (!json_.done()) return State::more;
  const std::string json(text.substr(begin_, at_ - begin_));
  if (step_ == Step::object) return end_object(json, at_, false);
  return set_arguments(json) ? give(at_) : State::failed;
}

/// A key or a string of the object's own members. False: it shows that this is no call.
bool CallReader::take_string() {
  const auto value = nlohmann::json::parse(escape_controls(string_), nullptr, false);
  std::string text = value.is_string() ? value.get<std::string>() : "";
  string_.clear();
  if (!json_.is_key()) return key_ != format_->name_key || known(text);
  key_ = std::move(text);
  // A reply that is JSON for another reason is not held back to its end.
  static constexpr std::string_view kKeys[] = {"name", "type",      "function",   "arguments",
                                               "id",   "tool_name", "parameters", "tool_call_id"};
  return !format_->whole_reply() ||
         std::find(std::begin(kKeys), std::end(kKeys), key_) != std::end(kKeys);
}

/// An object with a name and arguments, perhaps inside of {"type": "function", "function": {...}}.
/// `open`: its last bracket is missing; then its arguments must have been said.
CallReader::State CallReader::end_object(const std::string& json, std::size_t end, bool open) {
  std::string text = escape_controls(json) + (open ? "}" : "");
  const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_object()) return State::failed;
  const nlohmann::json* object = &parsed;
  if (const auto* inner = member(*object, "function"); inner != nullptr && inner->is_object()) {
    text = copy_members(text, {"function"}, SpecialGuard())["function"];
    object = inner;
  }
  const auto* name = member(*object, format_->name_key);
  if (name == nullptr || !name->is_string() || !known(name->get<std::string>())) {
    return State::failed;
  }
  found_.name = name->get<std::string>();
  std::string_view key = format_->arguments_key;
  if (!object->contains(std::string(key))) key = key == "arguments" ? "parameters" : "arguments";
  const auto* given = member(*object, key);
  if (open && given == nullptr) return State::failed;
  if (given != nullptr && given->is_string()) {  // the object, written as a string once more
    if (!set_arguments(given->get<std::string>())) return State::failed;
  } else {
    auto copies = copy_members(text, {std::string(key)}, SpecialGuard());
    if (!set_arguments(given == nullptr ? "" : copies[std::string(key)])) return State::failed;
  }
  return give(end);
}

bool CallReader::set_arguments(std::string_view json) {
  auto arguments = arguments_of(json);
  if (!arguments) return false;
  found_.arguments = std::move(*arguments);
  return true;
}

CallReader::State CallReader::give(std::size_t end) {
  any_ = true;
  used_ = end;
  at_ = 0;
  step_ = in_list_ ? Step::item : Step::finished;
  return State::call;
}

bool CallReader::known(std::string_view name) const {
  return !name.empty() && (tools_ == nullptr || tools_->find(name) != tools_->end());
}

bool CallReader::closes(std::string_view text) const {
  return std::any_of(format_->closes.begin(), format_->closes.end(), [&](std::string_view mark) {
    return !mark.empty() && text.starts_with(mark);
  });
}

bool CallReader::may_close(std::string_view text) const {
  return !final_ && std::any_of(format_->closes.begin(), format_->closes.end(),
                                [&](std::string_view mark) { return begins(text, mark); });
}

/// Before a parameter, or the end of the parameters.
CallReader::State CallReader::read_parameters(std::string_view text) {
  const std::size_t begin = text.size() - trimmed_front(text.substr(at_)).size();
  const std::string_view rest = text.substr(begin);
  if (rest.size() == 0 || begins(rest, format_->key_begin) ||
      begins(rest, format_->arguments_end) || may_close(rest)) {
    return text.size() - at_ > kMaxOpening ? State::failed : State::more;
  }
  if (rest.starts_with(format_->arguments_end) || closes(rest)) {
    found_.arguments += "}";
    const bool ends = rest.starts_with(format_->arguments_end);
    return give(begin + (ends ? format_->arguments_end.size() : 0));
  }
  if (!rest.starts_with(format_->key_begin)) return State::failed;
  const std::string_view window = rest.substr(format_->key_begin.size(), kMaxNameBytes + 16);
  const std::size_t end = window.find(format_->key_end);
  if (window.find_first_of("\r\n") < end) return State::failed;
  if (end == window.npos) return window.size() > kMaxNameBytes ? State::failed : State::more;
  std::size_t value = format_->key_begin.size() + end + format_->key_end.size();
  if (!format_->value_begin.empty()) {
    const std::string_view behind = trimmed_front(rest.substr(value));
    if (begins(behind, format_->value_begin)) {
      return rest.size() - value > kMaxOpening ? State::failed : State::more;
    }
    if (!behind.starts_with(format_->value_begin)) return State::failed;
    value = rest.size() - behind.size() + format_->value_begin.size();
  } else if (format_->value_in_lines) {
    if (value == rest.size()) return State::more;
    if (rest[value] == '\n') ++value;
  }
  parameter_ = trimmed_back(trimmed_front(window.substr(0, end)));
  if (parameter_.empty()) return State::failed;
  begin_ = at_ = begin + value;
  step_ = Step::value;
  return read_value(text);
}

/// Whether a parameter (or the end of them all) follows in `text`, behind a little whitespace.
CallReader::Match CallReader::follows(std::string_view text, bool parameter) const {
  const std::string_view rest = trimmed_front(text);
  if (text.size() - rest.size() > kMaxGap) return Match::no;
  if (closes(rest)) return Match::yes;
  if (rest.empty()) return !final_ ? Match::more : parameter ? Match::yes : Match::no;
  bool more = may_close(rest);
  if (parameter) {
    for (const std::string_view mark : {format_->key_begin, format_->arguments_end}) {
      if (rest.starts_with(mark)) return Match::yes;
      more = more || begins(rest, mark);
    }
  }
  return more ? Match::more : Match::no;
}

/// A value may hold marks: its end is one that is followed by what the format has next. Where the
/// closing mark was left out, a line that begins with another parameter of the tool, or with the
/// end of the whole call, ends it.
CallReader::Match CallReader::ends_value(std::string_view text, std::size_t at,
                                         std::size_t& length) const {
  const std::string_view rest = text.substr(at);
  length = format_->value_end.size();
  if (rest.starts_with(format_->value_end)) return follows(rest.substr(length), true);
  if (!final_ && begins(rest, format_->value_end)) return Match::more;
  length = 0;
  if (format_->shape != CallShape::xml || text[at - 1] != '\n') return Match::no;
  if (rest.starts_with(format_->arguments_end)) {
    return follows(rest.substr(format_->arguments_end.size()), false);
  }
  if (rest.starts_with(format_->key_begin)) {
    const std::string_view window = rest.substr(format_->key_begin.size(), kMaxNameBytes);
    const std::size_t end = window.find(format_->key_end);
    if (end == window.npos) {
      return final_ || window.size() == kMaxNameBytes ? Match::no : Match::more;
    }
    const std::string_view key = window.substr(0, end);
    const bool other = tools_ != nullptr && key != parameter_ && !given_.contains(key) &&
                       tools_->find(found_.name)->second.contains(key);
    return other ? Match::yes : Match::no;
  }
  const bool open = begins(rest, format_->arguments_end) || begins(rest, format_->key_begin);
  return open && !final_ ? Match::more : Match::no;
}

CallReader::State CallReader::read_value(std::string_view text) {
  for (;;) {
    at_ = text.find('<', at_);
    if (at_ == text.npos) {
      at_ = text.size();
      return State::more;
    }
    std::size_t length = 0;
    const Match match = ends_value(text, at_, length);
    if (match == Match::more) return State::more;
    if (match == Match::yes) {
      std::string_view value = text.substr(begin_, at_ - begin_);
      const bool line = format_->value_in_lines && value.ends_with('\n');
      if (line) value.remove_suffix(1);
      if (!add_value(parameter_, value)) return State::failed;
      at_ += length;
      step_ = Step::parameters;
      return read_parameters(text);
    }
    ++at_;
  }
}

/// Of a parameter that is written twice, the first value counts.
bool CallReader::add_value(std::string_view key, std::string_view raw) {
  static const ParameterType kText{{"string"}, false};  // as vLLM takes what no schema names
  if (!given_.insert(std::string(key)).second) return true;
  const ParameterType* type = &kText;
  if (tools_ != nullptr) {
    const auto& types = tools_->find(found_.name)->second;
    if (const auto found = types.find(key); found != types.end()) type = &found->second;
  }
  if (given_.size() > 1) found_.arguments += ',';
  found_.arguments += json_string(key) + ":";
  found_.arguments += type->verbatim() ? json_string(raw) : value_json(raw, *type);
  return true;
}

/// From "[" to the bracket that closes it.
CallReader::State CallReader::read_python(std::string_view text) {
  const std::string_view head = trimmed_front(text.substr(begin_ + 1, kMaxNameBytes));
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' || c == '-' ||
           (c >= '0' && c <= '9');
  };
  std::size_t name = 0;
  while (name < head.size() && letter(head[name])) ++name;
  if (name < head.size() ? name == 0 || head[name] != '(' || !known(head.substr(0, name))
                         : head.size() == kMaxNameBytes) {
    return State::failed;
  }
  for (; at_ < text.size(); ++at_) {
    const char c = text[at_];
    if (quote_ != 0) {
      if (!escape_ && c == quote_) quote_ = 0;
      escape_ = !escape_ && c == '\\';
      continue;
    }
    if (c == '\'' || c == '"') {
      quote_ = c;
      escape_ = false;
    } else if (c == '[' || c == '(' || c == '{') {
      brackets_ += c == '[' ? ']' : c == '(' ? ')' : '}';
    } else if (c == ']' || c == ')' || c == '}') {
      if (brackets_.empty() || brackets_.back() != c) return State::failed;
      brackets_.pop_back();
      if (!brackets_.empty()) continue;
      auto calls = read_python_calls(text.substr(begin_, ++at_ - begin_));
      if (!calls) return State::failed;
      for (const FoundCall& call : *calls) {
        if (!known(call.name)) return State::failed;
      }
      std::reverse(calls->begin(), calls->end());
      ready_ = std::move(*calls);
      const std::size_t end = at_;
      found_ = std::move(ready_.back());
      ready_.pop_back();
      return give(end);
    }
  }
  return State::more;
}

}  // namespace baton
