// The beginning of a call, {"name": "f", "arguments": {, read letter by letter: from where on it is
// sure that a call is being made, and its arguments may be passed on while they arrive.
#pragma once

#include <cstdint>
#include <string>

#include "frontend/chat/json_scanner.h"

namespace baton {

/// A value.
class CallHead {
 public:
  enum class State : std::uint8_t {
    open,    // more is needed
    sure,    // the last letter opened the arguments, and the name is known
    ended,   // the object ended without that: a call without arguments, or none
    unsure,  // only the whole text will show: the arguments come first, or are no object
  };

  State feed(char c);
  const std::string& name() const { return name_; }
  /// When `sure`: stands behind the bracket that opens the arguments, at depth 2.
  const JsonScanner& scanner() const { return scanner_; }

 private:
  void take_string();

  JsonScanner scanner_;
  std::string text_;  // of the string at depth 1 that is being read, quotes included
  std::string key_;
  std::string name_;
};

}  // namespace baton
