// Where in a reply its next token stands.
#pragma once

#include <cstdint>

namespace baton {

enum class ReplySection : std::uint8_t {
  answer,     // what the client asked for: text, calls
  border,     // in front of it: whitespace that comes next belongs to nothing
  reasoning,  // in front of it
  header,     // of a message, in formats that have headers
};

}  // namespace baton
