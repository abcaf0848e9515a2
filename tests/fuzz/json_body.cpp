// Bodies of strangers as JSON: objects, the order of keys, and the scanner of replies that are not
// whole.
#include "frontend/chat/json_scanner.h"
#include "frontend/core/json_reader.h"
#include "frontend/http/sse.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = baton::fuzz::text_of(data, size);
  const auto json = baton::parse_json_object(text);
  if (json.ok()) {
    const auto again = baton::parse_json_object(json.value().dump());
    baton::fuzz::require(again.ok() && again.value() == json.value(),
                         "what was read can be written");
  }
  baton::JsonScanner scanner;
  for (const char c : text) {
    if (!scanner.feed(c)) break;
    baton::fuzz::require(scanner.depth() <= baton::JsonScanner::kMaxDepth, "its depth is bounded");
  }
  const auto quoted = baton::parse_json_object("{\"a\":" + baton::json_string(text) + "}");
  baton::fuzz::require(quoted.ok(), "every text can be told as a string");
  return 0;
}
