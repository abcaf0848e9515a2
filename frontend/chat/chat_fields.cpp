#include "frontend/chat/chat_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "frontend/chat/call_history.h"
#include "frontend/chat/chat_template.h"
#include "frontend/chat/message_fields.h"
#include "frontend/chat/ordered_json.h"
#include "frontend/chat/reasoning_fields.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// {"type": "function", "function": {"name", "description", "parameters", "strict"}}
void check_tool(FieldReader& fields, const Json& value, std::size_t index) {
  const std::string path = "tools[" + std::to_string(index) + "]";
  if (!value.is_object()) {
    fields.fail(path, std::string("must be an object, not ") + kind_of(value));
    return;
  }
  FieldReader tool(fields, value, path);
  tool.take("cache_control");
  const auto type = tool.string("type");
  if (tool.ok() && type != "function") tool.fail("type", "must be \"function\"");
  const Json* function = tool.take("function");
  if (function == nullptr || !function->is_object()) {
    tool.fail("function", function == nullptr ? "is missing" : "must be an object");
  } else {
    FieldReader reader(tool, *function, "function");
    const auto name = reader.string("name");
    if (reader.ok() && !(name && is_tool_name(*name))) {
      reader.fail("name", kToolNameRule);
    }
    reader.string("description");
    reader.boolean("strict");
    const Json* parameters = reader.take("parameters");
    if (parameters != nullptr && !parameters->is_object()) {
      reader.fail("parameters", std::string("must be an object, not ") + kind_of(*parameters));
    }
    if (reader.finish()) tool.fail(*reader.finish());
  }
  if (tool.finish()) fields.fail(*tool.finish());
}

/// "required", or {"type": "function", "function": {"name"}}
void read_forced(FieldReader& fields, const Json& choice, ForcedChoice& forced) {
  forced.forced = true;
  if (choice == "required") return;
  if (!choice.is_object()) {
    fields.fail("tool_choice",
                "must be \"none\", \"auto\", \"required\" or an object that names a function");
    return;
  }
  FieldReader named(fields, choice, "tool_choice");
  if (const auto type = named.string("type"); named.ok() && type != "function") {
    named.fail("type", "must be \"function\"");
  }
  const Json* function = named.take("function");
  if (function == nullptr || !function->is_object()) {
    named.fail("function", function == nullptr ? "is missing" : "must be an object");
  } else {
    FieldReader inner(named, *function, "function");
    const auto name = inner.string("name");
    if (inner.ok() && !(name && is_tool_name(*name)))
      inner.fail("name", "must name one of 'tools'");
    forced.name = name.value_or("");
    if (inner.finish()) named.fail(*inner.finish());
  }
  if (named.finish()) fields.fail(*named.finish());
}

/// Whether the function that must be called is one of the tools.
void check_forced(FieldReader& fields, const Json* tools, const ForcedChoice& forced) {
  if (!forced.forced || !fields.ok()) return;
  if (tools == nullptr) {
    fields.fail("tool_choice", "forces a call, but there are no 'tools'");
  } else if (!forced.name.empty() &&
             std::none_of(tools->begin(), tools->end(), [&](const Json& tool) {
               return tool["function"]["name"] == forced.name;
             })) {
    fields.fail("tool_choice.function.name", "must name one of 'tools'");
  }
}

bool any_strict(const Json& tools) {
  return std::any_of(tools.begin(), tools.end(), [](const Json& tool) {
    const auto strict = tool["function"].find("strict");
    return strict != tool["function"].end() && *strict == true;
  });
}

/// Whether the template is to be given tools.
bool read_tools(FieldReader& fields, const ServedModel& model, ForcedChoice& forced) {
  const Json* tools = fields.take("tools");
  const Json* choice = fields.take("tool_choice");
  const bool given = tools != nullptr && !(tools->is_structured() && tools->empty());
  const bool none = choice != nullptr && *choice == "none";
  forced.several = fields.boolean("parallel_tool_calls").value_or(true);
  if (choice != nullptr && !none && *choice != "auto") read_forced(fields, *choice, forced);
  if (!given) {
    check_forced(fields, nullptr, forced);
    return false;
  }
  if (model.chat_template == nullptr || !model.chat_template->takes_tools()) {
    fields.fail("tools", model.chat_template == nullptr
                             ? "is not supported; only an empty value is accepted"
                             : "is not supported: the chat template of this model takes none");
    return false;
  }
  if (!tools->is_array() || tools->size() > kMaxTools) {
    fields.fail("tools", tools->is_array()
                             ? "holds more than " + std::to_string(kMaxTools) + " tools"
                             : std::string("must be an array, not ") + kind_of(*tools));
    return false;
  }
  for (std::size_t i = 0; i < tools->size() && fields.ok(); ++i) check_tool(fields, (*tools)[i], i);
  check_forced(fields, tools, forced);
  forced.strict = fields.ok() && !none && any_strict(*tools);
  return !none;
}

bool is_variable(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !name.empty() && letter(name.front()) && name.size() <= kMaxVariableNameBytes &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

/// Whether there are variables of the client's own.
bool read_variables(FieldReader& fields, const ServedModel& model) {
  static constexpr std::array kTaken{"messages",
                                     "tools",
                                     "documents",
                                     "chat_template",
                                     "tokenize",
                                     "add_generation_prompt",
                                     "continue_final_message"};
  const Json* given = fields.take("chat_template_kwargs");
  if (given == nullptr || (given->is_structured() && given->empty())) return false;
  const std::string field = "chat_template_kwargs";
  if (model.chat_template == nullptr) {
    fields.fail(field, "is not supported; only an empty value is accepted");
  } else if (!given->is_object()) {
    fields.fail(field, std::string("must be an object, not ") + kind_of(*given));
  } else if (given->size() > kMaxVariables || given->dump().size() > kMaxVariableBytes) {
    fields.fail(field, "must hold at most 64 values and 16,384 bytes");
  } else {
    for (const auto& [name, value] : given->items()) {
      if (!is_variable(name) || std::find(kTaken.begin(), kTaken.end(), name) != kTaken.end()) {
        fields.fail(field, "may not hold " + shown(name));
      }
    }
  }
  return fields.ok();
}

void read_ending(FieldReader& fields, const ServedModel& model, Conversation& conversation) {
  conversation.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  conversation.add_generation_prompt =
      fields.boolean("add_generation_prompt").value_or(!conversation.continue_final_message);
  if (model.chat_template == nullptr) {
    if (conversation.continue_final_message) {
      fields.fail("continue_final_message", "is not supported; only false is accepted");
    }
    if (!conversation.add_generation_prompt) {
      fields.fail("add_generation_prompt", "is not supported; only true is accepted");
    }
  } else if (conversation.continue_final_message && conversation.add_generation_prompt) {
    fields.fail(
        "continue_final_message",
        "contradicts 'add_generation_prompt': the final message goes on, or a new one begins");
  }
}

}  // namespace

void read_conversation(FieldReader& fields, std::string_view body, const ServedModel& model,
                       Conversation& conversation) {
  const bool templated = model.chat_template != nullptr;
  if (fields.take("chat_template") != nullptr) {
    fields.fail("chat_template", "is not supported: only the model's own template is used");
  }
  read_messages(fields, templated, conversation.messages);
  join_leading_system(conversation.messages);
  match_calls(conversation.messages);
  read_ending(fields, model, conversation);
  const bool tools = read_tools(fields, model, conversation.forced);
  const bool variables = read_variables(fields, model);
  read_reasoning(fields, model, conversation);
  if (!fields.ok() || !(tools || variables)) return;
  auto copies = copy_members(body, {"tools", "chat_template_kwargs"}, model.chat_template->guard());
  if (tools) conversation.tools = std::move(copies["tools"]);
  if (conversation.forced.forced || conversation.forced.strict) {
    conversation.forced.tools = std::move(copy_members(body, {"tools"}, SpecialGuard())["tools"]);
  }
  if (variables) conversation.variables = std::move(copies["chat_template_kwargs"]);
}

}  // namespace baton
