#include "frontend/openai/chat_parts.h"

#include "frontend/http/sse.h"

namespace baton {
namespace {

std::string function_members(const ToolCall& call) {
  return "\"id\":" + json_string(call.id) +
         ",\"type\":\"function\",\"function\":{\"name\":" + json_string(call.name) +
         ",\"arguments\":" + json_string(call.arguments) + "}";
}

}  // namespace

std::vector<ReplyPart> told_parts(bool one_call, std::vector<ReplyPart> parts) {
  if (one_call) {
    std::erase_if(parts, [](const ReplyPart& part) {
      const bool of_call =
          part.kind == ReplyPart::Kind::call || part.kind == ReplyPart::Kind::arguments;
      return of_call && part.index > 0;
    });
  }
  return parts;
}

std::string delta_members(const ReplyPart& part) {
  switch (part.kind) {
    case ReplyPart::Kind::reasoning:
      return "\"reasoning_content\":" + json_string(part.text);
    case ReplyPart::Kind::content:
      return "\"content\":" + json_string(part.text);
    case ReplyPart::Kind::call:
      return "\"tool_calls\":[{\"index\":" + std::to_string(part.index) + "," +
             function_members(part.call) + "}]";
    case ReplyPart::Kind::arguments:
      return "\"tool_calls\":[{\"index\":" + std::to_string(part.index) +
             ",\"function\":{\"arguments\":" + json_string(part.text) + "}}]";
  }
  return {};
}

std::string message_members(const std::vector<ReplyPart>& parts) {
  std::string content, reasoning, calls;
  std::vector<ToolCall> made;
  for (const ReplyPart& part : parts) {
    if (part.kind == ReplyPart::Kind::content) content += part.text;
    if (part.kind == ReplyPart::Kind::reasoning) reasoning += part.text;
    if (part.kind == ReplyPart::Kind::call) made.push_back(part.call);
    if (part.kind == ReplyPart::Kind::arguments) made.back().arguments += part.text;
  }
  for (const ToolCall& call : made) {
    calls += (calls.empty() ? "{" : ",{") + function_members(call) + "}";
  }
  std::string out = "\"content\":";
  out += content.empty() && !calls.empty() ? "null" : json_string(content);
  out += ",\"refusal\":null";
  if (!reasoning.empty()) out += ",\"reasoning_content\":" + json_string(reasoning);
  if (!calls.empty()) out += ",\"tool_calls\":[" + calls + "]";
  return out;
}

}  // namespace baton
