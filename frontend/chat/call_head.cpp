#include "frontend/chat/call_head.h"

#include <nlohmann/json.hpp>

namespace baton {

CallHead::State CallHead::feed(char c) {
  const bool in_string = scanner_.in_string();
  const std::size_t depth = scanner_.depth();
  if (!scanner_.feed(c)) return State::unsure;
  if (depth == 0) return scanner_.depth() == 0 || c == '{' ? State::open : State::unsure;
  if (depth == 1 && (in_string || scanner_.in_string())) {
    text_.push_back(c);
    if (!scanner_.in_string()) take_string();
    const bool arguments = key_ == "arguments" || key_ == "parameters";
    return arguments && !scanner_.is_key() ? State::unsure : State::open;
  }
  if (scanner_.done()) return State::ended;
  if (depth == 1 && scanner_.depth() == 2 && (key_ == "arguments" || key_ == "parameters")) {
    return c == '{' && !name_.empty() ? State::sure : State::unsure;
  }
  return State::open;
}

void CallHead::take_string() {
  const auto value = nlohmann::json::parse(text_, nullptr, false);
  std::string text = value.is_string() ? value.get<std::string>() : "";
  text_.clear();
  if (scanner_.is_key()) {
    key_ = std::move(text);
  } else if (key_ == "name") {
    name_ = std::move(text);
  }
}

}  // namespace baton
