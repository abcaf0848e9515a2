#include "frontend/chat/chat_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "frontend/chat/chat_template.h"
#include "frontend/chat/ordered_json.h"
#include "frontend/chat/reasoning_fields.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

using Json = nlohmann::json;

bool is_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !text.empty() && text.size() <= kMaxToolNameBytes &&
         std::all_of(text.begin(), text.end(), allowed);
}

/// "content": a string, or a list of {"type": "text", "text": ...}; what an assistant refused with
/// is text, too.
std::string read_content(FieldReader& message, bool assistant) {
  const Json* content = message.take("content");
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    message.fail("content",
                 std::string("must be a string or an array of parts, not ") + kind_of(*content));
    return {};
  }
  std::string text;
  for (std::size_t i = 0; i < content->size() && message.ok(); ++i) {
    const std::string name = "content[" + std::to_string(i) + "]";
    const Json& part = (*content)[i];
    if (!part.is_object()) {
      message.fail(name, std::string("must be an object, not ") + kind_of(part));
      return {};
    }
    FieldReader reader(message, part, name);
    const auto type = reader.string("type");
    const bool refusal = assistant && type == "refusal";
    if (reader.ok() && type != "text" && !refusal) {
      reader.fail("type", type ? shown(*type) + " is not supported; this model reads only text"
                               : "is missing");
    }
    const char* field = refusal ? "refusal" : "text";
    const auto piece = reader.string(field);
    if (reader.ok() && !piece) reader.fail(field, "is missing");
    for (const char* marker : {"prompt_cache_breakpoint", "cache_control"}) {
      reader.take(marker);  // beginnings are cached wherever they end
    }
    if (reader.finish()) {
      message.fail(*reader.finish());
      return {};
    }
    text += *piece;
  }
  return text;
}

void check_role(FieldReader& message, std::string_view role, bool templated) {
  if (role == "system" || role == "developer" || role == "user" || role == "assistant") return;
  if (role == "tool" && templated) return;
  if (role == "tool" || role == "function") {
    message.fail("role", "'" + std::string(role) + "' is not supported: tools are not");
    return;
  }
  message.fail("role", std::string("must be system, developer, user") +
                           (templated ? ", assistant or tool" : " or assistant") + ", not " +
                           shown(role));
}

/// {"name": ..., "arguments": "{...}"}
void read_called_function(FieldReader& call, ToolCall& out) {
  const Json* function = call.take("function");
  if (function == nullptr || !function->is_object()) {
    call.fail("function", function == nullptr ? "is missing" : "must be an object");
    return;
  }
  FieldReader reader(call, *function, "function");
  const auto name = reader.string("name");
  if (name && is_name(*name)) {
    out.name = *name;
  } else if (reader.ok()) {
    reader.fail("name", "must be 1 to 64 characters out of A-Z a-z 0-9 . _ -");
  }
  const auto arguments = reader.string("arguments");
  out.arguments = arguments && !arguments->empty() ? *arguments : "{}";
  if (!parse_json_object(out.arguments).ok()) {
    reader.fail("arguments", "must be a string that holds a JSON object");
  }
  reader.take("parsed_arguments");  // the openai client's parse() adds it, and sends it back
  if (reader.finish()) call.fail(*reader.finish());
}

void read_tool_calls(FieldReader& message, ChatMessage& out) {
  const Json* calls = message.take("tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array() || calls->size() > kMaxTools) {
    message.fail("tool_calls",
                 calls->is_array() ? "holds more than 128 calls" : "must be an array");
    return;
  }
  for (std::size_t i = 0; i < calls->size() && message.ok(); ++i) {
    const std::string name = "tool_calls[" + std::to_string(i) + "]";
    const Json& value = (*calls)[i];
    if (!value.is_object()) {
      message.fail(name, std::string("must be an object, not ") + kind_of(value));
      return;
    }
    FieldReader call(message, value, name);
    ToolCall made;
    made.id = call.string("id").value_or("");
    if (const auto type = call.string("type"); type && *type != "function") {
      call.fail("type", "must be \"function\"");
    }
    call.integer("index", 0, static_cast<std::int64_t>(kMaxTools));  // of a stream's delta
    read_called_function(call, made);
    if (call.finish()) message.fail(*call.finish());
    out.tool_calls.push_back(std::move(made));
  }
}

/// What replies of this and other servers carry, so that a client can send them back as they are.
void refuse_extras(FieldReader& message, bool templated) {
  message.take("parsed");  // of the openai client's parse(): what `content` holds
  static constexpr std::array kExtras{"refusal", "audio", "function_call", "annotations",
                                      "tool_calls"};
  for (const char* reasoning : {"reasoning_content", "reasoning"}) message.string(reasoning);
  for (const char* extra : kExtras) {
    const std::string_view name = extra;
    if (templated && name == "tool_calls") continue;
    const Json* given = message.take(extra);
    if (given != nullptr && *given != "" && !(given->is_structured() && given->empty())) {
      message.fail(extra, "is not supported; only null or an empty value is accepted");
    }
  }
}

void read_for_template(FieldReader& message, ChatMessage& out) {
  if (out.role == "assistant") {
    read_tool_calls(message, out);
    const auto newer = message.string("reasoning_content");
    const auto older = message.string("reasoning");
    out.reasoning = newer ? *newer : older.value_or("");
  } else if (out.role == "tool") {
    out.tool_call_id = message.string("tool_call_id").value_or("");
  }
  const Json* calls = message.take("tool_calls");
  if (calls != nullptr && !calls->empty() && out.role != "assistant") {
    message.fail("tool_calls", "belongs to messages of the assistant");
  }
}

void read_message(FieldReader& fields, const Json& value, std::size_t index, bool templated,
                  Conversation& conversation) {
  const std::string name = "messages[" + std::to_string(index) + "]";
  if (!value.is_object()) {
    fields.fail(name, std::string("must be an object, not ") + kind_of(value));
    return;
  }
  FieldReader message(fields, value, name);
  for (const char* harmless : {"id", "cache_control"}) message.take(harmless);
  ChatMessage out;
  const auto role = message.string("role");
  if (role) {
    check_role(message, *role, templated);
    out.role = *role;
  } else if (message.ok()) {
    message.fail("role", "is missing");
  }
  out.content = read_content(message, out.role == "assistant");
  out.has_content = message.take("content") != nullptr;
  if (message.ok() && !out.has_content && out.role != "assistant") {
    message.fail("content", "is missing");
  }
  out.name = message.string("name").value_or("");
  refuse_extras(message, templated);
  if (templated) read_for_template(message, out);
  if (message.finish()) {
    fields.fail(*message.finish());
    return;
  }
  conversation.messages.push_back(std::move(out));
}

void read_messages(FieldReader& fields, bool templated, Conversation& conversation) {
  const Json* messages = fields.take("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", messages == nullptr ? std::string("is missing")
                            : !messages->is_array()
                                ? std::string("must be an array, not ") + kind_of(*messages)
                                : std::string("must not be empty"));
    return;
  }
  for (std::size_t i = 0; i < messages->size() && fields.ok(); ++i) {
    read_message(fields, (*messages)[i], i, templated, conversation);
  }
}

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
    if (reader.ok() && !(name && is_name(*name))) {
      reader.fail("name", "must be 1 to 64 characters out of A-Z a-z 0-9 . _ -");
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
    if (inner.ok() && !(name && is_name(*name))) inner.fail("name", "must name one of 'tools'");
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
                             ? std::string("holds more than 128 tools")
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
  return !name.empty() && letter(name.front()) && name.size() <= kMaxToolNameBytes &&
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
  read_messages(fields, templated, conversation);
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
