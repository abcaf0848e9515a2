// Lists for people: "a, b, c".
#pragma once

#include <functional>
#include <string>

namespace baton {

/// name(each) of all, in order.
template <typename Range, typename Name = std::identity>
std::string joined(const Range& all, Name name = {}) {
  std::string text;
  for (const auto& each : all) {
    if (!text.empty()) text += ", ";
    text += std::invoke(name, each);
  }
  return text;
}

}  // namespace baton
