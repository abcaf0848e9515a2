#include "frontend/chat/message_fields.h"

#include <algorithm>
#include <array>
#include <utility>

#include "frontend/chat/chat_fields.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr const char* kOnlyText = "is not supported; this model reads only text";

/// Takes what does nothing in a part, and passes on what is wrong with it.
void close_part(FieldReader& message, FieldReader& part) {
  for (const char* marker : {"prompt_cache_breakpoint", "cache_control"}) {
    part.take(marker);  // beginnings are cached wherever they end
  }
  if (part.finish()) message.fail(*part.finish());
}

/// One part of "content". What an assistant refused with is text, too.
std::string read_part(FieldReader& message, const Json& value, const std::string& name,
                      std::string_view role) {
  FieldReader part(message, value, name);
  const auto type = part.string("type");
  const bool refusal = role == "assistant" && type == "refusal";
  const bool earlier = role == "assistant" || role == "tool";
  if (part.ok() && type && earlier && type != "text" && !refusal && !part.strict()) {
    part.note(std::string(*type));
    return role == "tool" ? omitted_part(*type) : std::string();
  }
  if (part.ok() && type != "text" && !refusal) {
    part.fail("type", type ? shown(*type) + " " + kOnlyText : std::string("is missing"));
  }
  const char* field = refusal ? "refusal" : "text";
  const auto piece = part.string(field);
  if (part.ok() && !piece) part.fail(field, "is missing");
  close_part(message, part);
  return std::string(piece.value_or(""));
}

/// "content": a string, or a list of {"type": "text", "text": ...}.
std::string read_content(FieldReader& message, std::string_view role) {
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
    text += read_part(message, part, name, role);
  }
  return text;
}

void check_role(FieldReader& message, std::string_view role, bool templated) {
  if (role == "system" || role == "developer" || role == "user" || role == "assistant") return;
  if ((role == "tool" || role == "function") && templated) return;
  if (role == "tool" || role == "function") {
    message.fail("role", "'" + std::string(role) + "' is not supported: tools are not");
    return;
  }
  message.fail("role", std::string("must be system, developer, user") +
                           (templated ? ", assistant or tool" : " or assistant") + ", not " +
                           shown(role));
}

/// {"name": ..., "arguments": "{...}"}
void read_called_function(FieldReader& call, const std::string& field, ToolCall& out) {
  const Json* function = call.take(field);
  if (function == nullptr || !function->is_object()) {
    call.fail(field, function == nullptr ? "is missing" : "must be an object");
    return;
  }
  FieldReader reader(call, *function, field);
  const auto name = reader.string("name");
  if (reader.ok() && !name) reader.fail("name", "is missing");
  out.name = name.value_or("");
  const Json* arguments = reader.take("arguments");
  if (arguments == nullptr || arguments->is_string()) {
    out.arguments = earlier_arguments(
        reader, "arguments", arguments == nullptr ? "" : arguments->get_ref<const std::string&>());
  } else {
    out.arguments = earlier_arguments(reader, "arguments", arguments->dump());
  }
  reader.take("parsed_arguments");  // the openai client's parse() adds it, and sends it back
  if (reader.finish()) call.fail(*reader.finish());
}

void read_tool_calls(FieldReader& message, ChatMessage& out) {
  const Json* calls = message.take("tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array() || calls->size() > kMaxTools) {
    message.fail("tool_calls", calls->is_array()
                                   ? "holds more than " + std::to_string(kMaxTools) + " calls"
                                   : "must be an array");
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
    read_called_function(call, "function", made);
    if (call.finish()) message.fail(*call.finish());
    out.tool_calls.push_back(std::move(made));
  }
}

/// What else replies of this and other servers carry: an assistant's are left out by name.
void take_extras(FieldReader& message, bool templated, ChatMessage& out) {
  message.take("parsed");  // of the openai client's parse(): what `content` holds
  static constexpr std::array kExtras{"refusal", "audio", "function_call", "annotations",
                                      "tool_calls"};
  for (const char* reasoning : {"reasoning_content", "reasoning"}) message.string(reasoning);
  for (const char* extra : kExtras) {
    const std::string_view name = extra;
    if (templated && (name == "tool_calls" || name == "function_call")) continue;
    const Json* given = message.take(extra);
    if (given == nullptr || *given == "" || (given->is_structured() && given->empty())) continue;
    const bool said = name == "refusal" && out.role == "assistant" && given->is_string();
    if (said && out.content.empty()) {
      out.content = given->get<std::string>();
      out.has_content = true;
    } else if (out.role == "assistant" && name != "tool_calls" && !message.strict()) {
      message.note(extra);
    } else if (!said) {
      message.fail(extra, "is not supported; only null or an empty value is accepted");
    }
  }
}

void read_for_template(FieldReader& message, ChatMessage& out) {
  if (out.role == "assistant") {
    read_tool_calls(message, out);
    if (message.take("function_call") != nullptr && message.ok()) {
      read_called_function(message, "function_call", out.tool_calls.emplace_back());
    }
    const auto newer = message.string("reasoning_content");
    const auto older = message.string("reasoning");
    out.reasoning = newer ? *newer : older.value_or("");
  } else if (out.role == "tool") {
    out.tool_call_id = message.string("tool_call_id").value_or("");
  }
  for (const char* field : {"tool_calls", "function_call"}) {
    const Json* calls = message.take(field);
    if (calls != nullptr && !calls->empty() && out.role != "assistant") {
      message.fail(field, "belongs to messages of the assistant");
    }
  }
}

void read_message(FieldReader& fields, const Json& value, std::size_t index, bool templated,
                  std::vector<ChatMessage>& messages) {
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
    out.role = *role == "function" ? "tool" : *role;  // the older name
  } else if (message.ok()) {
    message.fail("role", "is missing");
  }
  out.content = read_content(message, out.role);
  out.has_content = message.take("content") != nullptr;
  if (message.ok() && !value.contains("content") && out.role != "assistant") {
    message.fail("content", "is missing");
  }
  out.name = message.string("name").value_or("");
  take_extras(message, templated, out);
  if (templated) read_for_template(message, out);
  if (message.finish()) {
    fields.fail(*message.finish());
    return;
  }
  messages.push_back(std::move(out));
}

}  // namespace

bool is_tool_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !text.empty() && text.size() <= kMaxToolNameBytes &&
         std::all_of(text.begin(), text.end(), allowed);
}

void read_messages(FieldReader& fields, bool templated, std::vector<ChatMessage>& messages) {
  const Json* given = fields.take("messages");
  if (given == nullptr || !given->is_array() || given->empty()) {
    fields.fail("messages", given == nullptr ? std::string("is missing")
                            : !given->is_array()
                                ? std::string("must be an array, not ") + kind_of(*given)
                                : std::string("must not be empty"));
    return;
  }
  for (std::size_t i = 0; i < given->size() && fields.ok(); ++i) {
    read_message(fields, (*given)[i], i, templated, messages);
  }
}

std::string omitted_part(std::string_view type) {
  for (const char* kind : {"image", "audio", "video", "file", "document"}) {
    if (type.find(kind) != type.npos) return std::string("[") + kind + " omitted]";
  }
  return "[part omitted]";
}

std::string earlier_arguments(FieldReader& call, const std::string& field, std::string_view given) {
  if (given.empty()) return "{}";
  if (parse_json_object(given).ok()) return std::string(given);
  if (given != "null") call.note(field);
  return "{}";
}

}  // namespace baton
