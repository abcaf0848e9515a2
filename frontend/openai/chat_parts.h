// The parts of a parsed reply as members of the OpenAI API's objects.
#pragma once

#include <string>
#include <vector>

#include "frontend/chat/reply_parser.h"

namespace baton {

/// Without calls behind the first one, where `one_call` says that only one is wanted.
std::vector<ReplyPart> told_parts(bool one_call, std::vector<ReplyPart> parts);

/// Of a stream's "delta": "content", "reasoning_content", or "tool_calls" with one call that
/// begins, or more of its arguments.
std::string delta_members(const ReplyPart& part);

/// Of a whole "message", without its role: "content" (null when there are only calls), and
/// "reasoning_content" and "tool_calls" where there are some.
std::string message_members(const std::vector<ReplyPart>& parts);

}  // namespace baton
