// A chat as a client sent it, checked, before anything is written down or tokenised.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton {

/// What an assistant asked to be called.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object
};

struct ChatMessage {
  std::string role;  // system, developer (= system), user, assistant; with a template also tool
  std::string content{};
  // The rest is for templates; empty: not given.
  bool has_content = true;  // false: null or left out
  std::string name{};
  std::string tool_call_id{};
  std::string reasoning{};
  std::vector<ToolCall> tool_calls{};
};

/// What tool_choice asks for, besides "auto" and "none".
struct ForcedChoice {
  bool forced = false;
  std::string name;     // of the function; empty: any of them
  bool several = true;  // parallel_tool_calls
  std::string tools;    // the definitions, JSON, in the client's order
  bool strict = false;  // some function that may be called is
};

struct Conversation {
  std::vector<ChatMessage> messages;
  // What only a template can do something with.
  std::string tools;      // JSON array of function definitions in the client's order; empty: none
  std::string variables;  // JSON object of chat_template_kwargs; empty: none
  std::string effort{};   // JSON members that reasoning_effort stands for; chat_template_kwargs win
  std::optional<std::uint32_t> reasoning_budget{};  // tokens
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  ForcedChoice forced;
};

}  // namespace baton
