#include "frontend/chat/call_history.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace baton {
namespace {

bool is_instruction(const ChatMessage& message) {
  return message.role == "system" || message.role == "developer";
}

/// The calls of one turn that have no result yet.
class OpenCalls {
 public:
  void begin(const std::vector<ToolCall>& calls) {
    calls_ = &calls;
    open_.clear();
    for (std::size_t i = 0; i < calls.size(); ++i) open_.insert(open_.end(), {calls[i].id, i});
  }

  void answered(const std::string& id) {
    const auto found = open_.lower_bound({id, 0});
    if (found != open_.end() && found->first == id) open_.erase(found);
  }

  /// The id of the call that a result of `name` answers; empty: none is open.
  std::string take(std::string_view name) {
    auto best = open_.end();
    bool named = false;
    for (auto at = open_.begin(); at != open_.end(); ++at) {
      const bool same = !name.empty() && (*calls_)[at->second].name == name;
      if (named && !same) continue;
      const bool earlier = best == open_.end() || (same && !named) || at->second < best->second;
      if (earlier) best = at;
      named = named || same;
    }
    if (best == open_.end()) return {};
    std::string id = best->first;
    open_.erase(best);
    return id;
  }

 private:
  const std::vector<ToolCall>* calls_ = nullptr;
  std::set<std::pair<std::string, std::size_t>> open_;  // ids and places
};

std::string numbered_id(std::uint32_t number) {
  const std::string digits = std::to_string(number);
  return "call" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

}  // namespace

void join_leading_system(std::vector<ChatMessage>& messages) {
  std::size_t count = 0;
  while (count < messages.size() && is_instruction(messages[count])) ++count;
  if (count < 2) return;
  std::string& text = messages.front().content;
  for (std::size_t i = 1; i < count; ++i) {
    const std::string& more = messages[i].content;
    if (!text.empty() && !more.empty()) text += "\n\n";
    text += more;
  }
  messages.front().has_content = true;
  messages.erase(messages.begin() + 1, messages.begin() + static_cast<std::ptrdiff_t>(count));
}

void match_calls(std::vector<ChatMessage>& messages) {
  std::uint32_t made = 0;
  OpenCalls open;
  for (ChatMessage& message : messages) {
    if (!message.tool_calls.empty()) {
      for (ToolCall& call : message.tool_calls) {
        if (call.id.empty()) call.id = numbered_id(made++);
      }
      open.begin(message.tool_calls);
    } else if (message.role == "tool" && message.tool_call_id.empty()) {
      message.tool_call_id = open.take(message.name);
    } else if (message.role == "tool") {
      open.answered(message.tool_call_id);
    }
  }
}

}  // namespace baton
