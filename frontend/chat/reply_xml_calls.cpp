// The part of ReplyParser that reads calls written as
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...</function>\n</tool_call>
// Values are raw text. The format is that of Qwen3-Coder's chat template; what is let pass besides
// (no <tool_call> in front, a </parameter> left out) is what vLLM's parser of it lets pass.
#include <algorithm>
#include <array>
#include <utility>

#include "frontend/chat/reply_marks.h"
#include "frontend/chat/reply_parser.h"
#include "frontend/http/sse.h"
#include "ipc/utf8.h"

namespace baton {
namespace {

constexpr std::size_t kMaxNameBytes = 256;

/// What stands at the beginning of a text.
struct Mark {
  enum class Kind : std::uint8_t { more, none, open, close };
  Kind kind = Kind::none;
  std::string_view name = {};
  std::size_t length = 0;
};

/// `opening` NAME ">"
Mark read_named(std::string_view text, std::string_view opening) {
  if (opening.starts_with(text)) return {Mark::Kind::more};
  if (!text.starts_with(opening)) return {Mark::Kind::none};
  const std::string_view rest = text.substr(opening.size(), kMaxNameBytes + 1);
  const std::size_t end = rest.find_first_of("<>\r\n");
  if (end == rest.npos) return {rest.size() > kMaxNameBytes ? Mark::Kind::none : Mark::Kind::more};
  const std::string_view name = trimmed_back(trimmed_front(rest.substr(0, end)));
  if (rest[end] != '>' || name.empty()) return {Mark::Kind::none};
  return {Mark::Kind::open, name, opening.size() + end + 1};
}

/// <parameter=KEY>, or the end of the function. An end of the call ends its function, too.
Mark read_inside(std::string_view text) {
  for (const std::string_view close : {kFunctionClose, kCallClose}) {
    if (close.starts_with(text) && text.size() < close.size()) return {Mark::Kind::more};
  }
  if (text.starts_with(kFunctionClose)) return {Mark::Kind::close, {}, kFunctionClose.size()};
  if (text.starts_with(kCallClose)) return {Mark::Kind::close, {}, 0};
  return read_named(text, kParameterOpen);
}

/// Where a </parameter> was left out, a line that goes on with the function ends the value. None of
/// these can begin inside of another one.
constexpr std::array<std::string_view, 3> kValueEnds{kParameterClose,
                                                     "\n<parameter=", "\n</function>"};

/// `text` without the beginning of a character at its end.
std::string_view whole_characters(std::string_view text) {
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, text.size()); ++n) {
    const std::string_view last = text.substr(text.size() - n);
    if ((static_cast<unsigned char>(last.front()) & 0xC0U) == 0x80U) continue;
    const bool open = scan_utf8(last).state == Utf8State::unfinished;
    return open ? text.substr(0, text.size() - n) : text;
  }
  return text;
}

/// `text` without an end that may turn out not to belong to the value.
std::string_view certain(std::string_view text) {
  std::size_t open = open_end(text, "\n</parameter>");
  for (const std::string_view end : kValueEnds) open = std::max(open, open_end(text, end));
  return whole_characters(text.substr(0, text.size() - open));
}

/// The inside of a JSON string.
std::string escaped(std::string_view text) {
  std::string out;
  append_json_escaped(out, text);
  return out;
}

}  // namespace

/// A call is sure as soon as a named function is followed by a parameter or its end.
bool ReplyParser::step_xml_call(std::vector<ReplyPart>& parts) {
  std::string_view rest = held_;
  const std::string_view begin = rest.starts_with(kCallOpen) ? kCallOpen : kFunctionOpen;
  if (begin == kCallOpen) rest = trimmed_front(rest.substr(kCallOpen.size()));
  const Mark function = read_named(rest, kFunctionOpen);
  if (function.kind == Mark::Kind::more) return false;
  if (function.kind == Mark::Kind::open) {
    rest = trimmed_front(rest.substr(function.length));
    const Mark inside = read_inside(rest);
    if (inside.kind == Mark::Kind::more) return false;
    if (inside.kind != Mark::Kind::none) {
      function_ = function.name;
      given_.clear();
      begin_call(function_, parts);
      give_arguments("{", parts);
      held_.erase(0, held_.size() - rest.size());
      state_ = State::xml_inside;
      return true;
    }
  }
  give_content(std::exchange(space_, {}) + std::string(begin), parts);
  held_.erase(0, begin.size());
  state_ = State::content;
  return true;
}

/// Between two parameters. Where neither one nor the end of the function follows, the arguments
/// stop unfinished, and the rest is content.
bool ReplyParser::step_xml_inside(std::vector<ReplyPart>& parts) {
  const std::string_view rest = trimmed_front(held_);
  const Mark mark = read_inside(rest);
  if (mark.kind == Mark::Kind::more) return false;
  if (mark.kind == Mark::Kind::open) {
    begin_value(std::string(mark.name), parts);
  } else if (mark.kind == Mark::Kind::close) {
    give_arguments("}", parts);
    state_ = State::tagged_end;
  } else {
    at_border_ = true;
    state_ = State::content;
  }
  held_.erase(0, held_.size() - rest.size() + mark.length);
  return true;
}

/// Of a parameter that is written twice, the first value counts: it has been passed on.
void ReplyParser::begin_value(const std::string& key, std::vector<ReplyPart>& parts) {
  static const ParameterType text{{"string"}, false};  // as vLLM takes what no schema names
  value_type_ = text;
  if (tools_ != nullptr && tools_->contains(function_)) {
    const auto& types = tools_->find(function_)->second;
    if (const auto found = types.find(key); found != types.end()) value_type_ = found->second;
  }
  repeated_ = !given_.insert(key).second;
  if (!repeated_) give_arguments((given_.size() > 1 ? "," : "") + json_string(key) + ":", parts);
  searched_ = 0;
  state_ = State::xml_value_begin;
}

/// One line break in front of a value and one behind it belong to the format.
bool ReplyParser::step_xml_value_begin(std::vector<ReplyPart>& parts) {
  if (held_.front() == '\n') held_.erase(0, 1);
  if (value_type_.verbatim() && !repeated_) give_arguments("\"", parts);
  state_ = State::xml_value;
  return true;
}

/// Strings are passed on as they arrive; what has to be converted is held back until it is whole.
bool ReplyParser::step_xml_value(std::vector<ReplyPart>& parts) {
  const std::string_view text = held_;
  const bool verbatim = value_type_.verbatim();
  std::size_t end = text.npos;
  for (const std::string_view mark : kValueEnds) end = std::min(end, text.find(mark, searched_));
  if (end == text.npos) {
    searched_ = text.size() - std::min(text.size(), kParameterClose.size());
    if (!verbatim) return false;
    const std::string_view safe = certain(text);
    if (!repeated_) give_arguments(escaped(safe), parts);
    held_.erase(0, safe.size());
    searched_ = 0;
    return false;
  }
  std::string_view value = text.substr(0, end);
  const bool closed = text.substr(end).starts_with(kParameterClose);
  if (closed && value.ends_with('\n')) value.remove_suffix(1);
  if (!repeated_) {
    give_arguments(verbatim ? escaped(value) + "\"" : value_json(value, value_type_), parts);
  }
  held_.erase(0, end + (closed ? kParameterClose.size() : 0));
  state_ = State::xml_inside;
  return true;
}

}  // namespace baton
