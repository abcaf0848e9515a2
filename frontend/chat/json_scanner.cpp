#include "frontend/chat/json_scanner.h"

namespace baton {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

bool JsonScanner::feed(char c) {
  if (in_string()) return feed_string(c);
  if (mode_ == Mode::word) {
    if (word_.front() != c) return false;
    word_.remove_prefix(1);
    if (word_.empty()) mode_ = Mode::after_value;
    return true;
  }
  if (mode_ == Mode::number) {
    if (feed_number(c)) return true;
    if (!number_may_end()) return false;
    const Mode before = mode_;
    mode_ = Mode::after_value;
    if (feed(c)) return true;
    mode_ = before;
    return false;
  }
  if (is_space(c)) return true;
  switch (mode_) {
    case Mode::first_value:
      if (c == ']') return close(c);
      return begin_value(c);
    case Mode::value:
      return begin_value(c);
    case Mode::first_key:
      if (c == '}') return close(c);
      return c == '"' && begin_string(true);
    case Mode::key:
      return c == '"' && begin_string(true);
    case Mode::colon:
      if (c != ':') return false;
      mode_ = Mode::value;
      return true;
    case Mode::after_value:
      if (c != ',') return close(c);
      mode_ = open_.back() == '{' ? Mode::key : Mode::value;
      return true;
    default:
      return false;  // done
  }
}

bool JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') {
    if (open_.size() == kMaxDepth) return false;
    open_.push_back(c);
    mode_ = c == '{' ? Mode::first_key : Mode::first_value;
    return true;
  }
  if (open_.empty()) return false;
  if (c == '"') return begin_string(false);
  if (c == 't' || c == 'f' || c == 'n') {
    word_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
    mode_ = Mode::word;
    return true;
  }
  if (c != '-' && !is_digit(c)) return false;
  digits_ = c == '-' ? Digits::minus : c == '0' ? Digits::zero : Digits::whole;
  mode_ = Mode::number;
  return true;
}

bool JsonScanner::begin_string(bool key) {
  key_ = key;
  mode_ = Mode::string;
  return true;
}

bool JsonScanner::close(char bracket) {
  if (bracket != (open_.back() == '{' ? '}' : ']')) return false;
  open_.pop_back();
  mode_ = open_.empty() ? Mode::done : Mode::after_value;
  return true;
}

bool JsonScanner::feed_string(char c) {
  if (mode_ == Mode::hex) {
    if (!is_hex(c)) return false;
    if (--hex_left_ == 0) mode_ = Mode::string;
    return true;
  }
  if (mode_ == Mode::escape) {
    if (c == 'u') {
      hex_left_ = 4;
      mode_ = Mode::hex;
      return true;
    }
    if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) return false;
    mode_ = Mode::string;
    return true;
  }
  if (static_cast<unsigned char>(c) < 0x20) return controls_ == Controls::allowed;
  if (c == '\\') mode_ = Mode::escape;
  if (c == '"') mode_ = key_ ? Mode::colon : Mode::after_value;
  return true;
}

bool JsonScanner::feed_number(char c) {
  const auto to = [this](Digits next) {
    digits_ = next;
    return true;
  };
  const bool e = c == 'e' || c == 'E';
  switch (digits_) {
    case Digits::minus:
      return is_digit(c) && to(c == '0' ? Digits::zero : Digits::whole);
    case Digits::zero:
      return (c == '.' && to(Digits::point)) || (e && to(Digits::e));
    case Digits::whole:
      return is_digit(c) || (c == '.' && to(Digits::point)) || (e && to(Digits::e));
    case Digits::point:
      return is_digit(c) && to(Digits::fraction);
    case Digits::fraction:
      return is_digit(c) || (e && to(Digits::e));
    case Digits::e:
      return ((c == '+' || c == '-') && to(Digits::sign)) || (is_digit(c) && to(Digits::exponent));
    case Digits::sign:
      return is_digit(c) && to(Digits::exponent);
    case Digits::exponent:
      return is_digit(c);
  }
  return false;
}

bool JsonScanner::number_may_end() const {
  return digits_ == Digits::zero || digits_ == Digits::whole || digits_ == Digits::fraction ||
         digits_ == Digits::exponent;
}

}  // namespace baton
