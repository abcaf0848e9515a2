// How a model family marks the parts of its reply: reasoning, answer, calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/chat/calls/call_format.h"
#include "ipc/status.h"

namespace baton {

/// Which formats are looked for in replies: "auto" (what the chat templates show), "none", or the
/// name of a vLLM parser.
struct ParserNames {
  std::string tool_calls = "auto";
  std::string reasoning = "auto";
};

struct ReplyGrammar {
  std::string think_open;  // empty: the family does not mark its reasoning
  std::string think_close;
  const CallFormat* calls = nullptr;  // nullptr: the family's format of calls is not known
  bool channels = false;  // the reply is messages, each with a header that says its channel

  /// Whether the family tells its reasoning from its answer.
  bool reasons() const { return channels || !think_open.empty(); }

  /// Of templates that hold `text`. A format that none of them shows is not looked for.
  static ReplyGrammar of_templates(std::string_view text);
  /// The same, but for the parts that `names` sets. An error lists the names that are known.
  static Result<ReplyGrammar> named(std::string_view text, const ParserNames& names);
  /// The texts that must reach a parser, special tokens or not.
  std::vector<std::string> marks(bool with_calls) const;
};

}  // namespace baton
