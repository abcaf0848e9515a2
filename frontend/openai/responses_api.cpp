#include "frontend/openai/responses_api.h"

#include <array>
#include <memory>
#include <utility>

#include "frontend/chat/chat_template.h"
#include "frontend/openai/request_fields.h"
#include "frontend/openai/responses_reply.h"
#include "frontend/openai/translation.h"

namespace baton {
namespace responses {
namespace {

using Json = nlohmann::json;

const FieldNames& field_names() {
  static const FieldNames kNames = {{"response_format.json_schema.schema", "text.format.schema"},
                                    {"response_format", "text.format"},
                                    {"reasoning_effort", "reasoning.effort"},
                                    {"max_tokens", "max_output_tokens"},
                                    {"messages", "input"}};
  return kNames;
}

/// Fields that ask for nothing only with one value.
void refuse_others(FieldReader& fields, const std::string& name, const Json& only,
                   const std::string& why) {
  const Json* value = fields.take(name);
  if (value != nullptr && *value != only) fields.fail(name, why);
}

/// "instructions" and "input" as messages of a chat.
class Input {
 public:
  Input(FieldReader& fields, const ServedModel& model)
      : fields_(fields), templated_(model.chat_template != nullptr) {}

  OrderedJson read() {
    if (const auto instructions = fields_.string("instructions")) {
      out_.push_back({{"role", "system"}, {"content", *instructions}});
    }
    const Json* input = fields_.take("input");
    if (input == nullptr) {
      fields_.fail("input", "is missing");
    } else if (input->is_string()) {
      out_.push_back({{"role", "user"}, {"content", *input}});
    } else if (const Json* items = take_objects(fields_, "input")) {
      if (items->empty()) fields_.fail("input", "must not be empty");
      for (std::size_t i = 0; i < items->size() && fields_.ok(); ++i) {
        FieldReader item(fields_, (*items)[i], "input[" + std::to_string(i) + "]");
        read_item(item);
        pass_over(item, {"id", "status", "phase"});
        if (item.finish()) fields_.fail(*item.finish());
      }
      say_pending();
    }
    return std::move(out_);
  }

 private:
  void read_item(FieldReader& item) {
    const auto type = item.string("type");
    if (!item.ok()) return;
    if (!type || type == "message") return read_message(item);
    if (!templated_ && (type == "function_call" || type == "function_call_output")) {
      item.fail("type", "is not supported: this model's chat format knows no tools");
      return;
    }
    if (type == "function_call") return read_call(item);
    if (type == "function_call_output") return read_output(item);
    if (type == "reasoning") return read_reasoning(item);
    item.fail("type", type == "item_reference"
                          ? "is not supported: this server keeps no items; send them whole"
                          : shown(*type) +
                                " is not supported; only message, function_call, "
                                "function_call_output and reasoning are");
  }

  void read_message(FieldReader& item) {
    const auto role = item.string("role");
    const Json* content = item.take("content");
    if (!role || content == nullptr) {
      item.fail(role ? "content" : "role", "is missing");
      return;
    }
    const std::string text = texts(item, "content", *content);
    if (*role == "assistant") {
      if (pending_.contains("content") || pending_.contains("tool_calls")) say_pending();
      pending_["content"] = text;
      return;
    }
    if (*role != "user" && *role != "system" && *role != "developer") {
      item.fail("role", "must be user, assistant, system or developer, not " + shown(*role));
      return;
    }
    say_pending();
    out_.push_back({{"role", *role}, {"content", text}});
  }

  /// A string, or parts of text.
  static std::string texts(FieldReader& owner, const std::string& name, const Json& value) {
    static constexpr std::array kTexts{"input_text", "output_text", "text", "summary_text",
                                       "reasoning_text"};
    if (value.is_string()) return value.get<std::string>();
    std::string text;
    const Json* parts = take_objects(owner, name);
    for (std::size_t i = 0; parts != nullptr && i < parts->size() && owner.ok(); ++i) {
      FieldReader part(owner, (*parts)[i], name + "[" + std::to_string(i) + "]");
      const auto type = part.string("type");
      const bool refusal = type == "refusal";
      bool known = refusal;
      for (const char* one : kTexts) known = known || (type && *type == one);
      if (part.ok() && !known) {
        part.fail("type", type ? shown(*type) + " is not supported; this model reads only text"
                               : std::string("is missing"));
      }
      const char* field = refusal ? "refusal" : "text";
      const auto piece = part.string(field);
      if (part.ok() && !piece) part.fail(field, "is missing");
      pass_over(part, {"annotations", "logprobs", "parsed"});  // of replies that are sent back
      if (part.finish()) owner.fail(*part.finish());
      text += piece.value_or("");
    }
    return text;
  }

  /// Calls that follow one another, a message and a reasoning are one turn of the assistant.
  void read_call(FieldReader& item) {
    const auto id = item.string("call_id");
    const auto name = item.string("name");
    const auto arguments = item.string("arguments");
    item.take("parsed_arguments");  // the client's parse() adds it
    for (const auto& [field, value] :
         {std::pair{"call_id", id}, std::pair{"name", name}, std::pair{"arguments", arguments}}) {
      if (item.ok() && !value) item.fail(field, "is missing");
    }
    if (!item.ok()) return;
    if (!parse_json_object(arguments->empty() ? "{}" : *arguments).ok()) {
      item.fail("arguments", "must be a string that holds a JSON object");
    }
    pending_["tool_calls"].push_back(function_call(*id, *name, *arguments));
  }

  void read_output(FieldReader& item) {
    const auto id = item.string("call_id");
    const Json* output = item.take("output");
    if (!id || output == nullptr) {
      item.fail(id ? "output" : "call_id", "is missing");
      return;
    }
    say_pending();
    out_.push_back(
        {{"role", "tool"}, {"tool_call_id", *id}, {"content", texts(item, "output", *output)}});
  }

  void read_reasoning(FieldReader& item) {
    item.take("encrypted_content");  // nobody can read it
    std::string text;
    for (const char* field : {"content", "summary"}) {
      const Json* given = item.take(field);
      if (given != nullptr && text.empty()) text = texts(item, field, *given);
    }
    if (pending_.contains("content") || pending_.contains("tool_calls")) say_pending();
    if (!text.empty()) pending_["reasoning_content"] = text;
  }

  void say_pending() {
    if (pending_.empty()) return;
    OrderedJson message = {{"role", "assistant"}, {"content", nullptr}};
    if (!pending_.contains("tool_calls")) message["content"] = "";
    message.update(pending_);
    out_.push_back(std::move(message));
    pending_ = OrderedJson::object();
  }

  FieldReader& fields_;
  bool templated_ = false;
  OrderedJson out_ = OrderedJson::array();
  OrderedJson pending_ = OrderedJson::object();
};

void read_tools(FieldReader& fields, const OrderedJson& ordered, OrderedJson& out) {
  const Json* tools = take_objects(fields, "tools");
  if (tools == nullptr) return;
  OrderedJson list = OrderedJson::array();
  const OrderedJson& all = ordered_member(ordered, "tools");
  for (std::size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    FieldReader tool(fields, (*tools)[i], "tools[" + std::to_string(i) + "]");
    const auto type = tool.string("type");
    if (tool.ok() && type != "function") {
      tool.fail("type", type ? shown(*type) + " is not supported; only \"function\" is"
                             : std::string("is missing"));
    }
    const auto name = tool.string("name");
    if (tool.ok() && !name) tool.fail("name", "is missing");
    tool.string("description");
    tool.boolean("strict");
    take_object(tool, "parameters");
    if (tool.finish()) {
      fields.fail(*tool.finish());
      return;
    }
    const auto given = [&](const char* field) { return ordered_member(all[i], field); };
    list.push_back(
        function_tool(*name, given("description"), given("parameters"), given("strict")));
  }
  out["tools"] = std::move(list);
}

/// "none", "auto", "required", or {"type": "function", "name"}
void read_tool_choice(FieldReader& fields, OrderedJson& out) {
  const Json* choice = fields.take("tool_choice");
  if (choice == nullptr) return;
  if (!choice->is_object()) {
    out["tool_choice"] = *choice;
    return;
  }
  FieldReader named(fields, *choice, "tool_choice");
  const auto type = named.string("type");
  const auto name = named.string("name");
  if (named.ok() && type != "function") {
    named.fail("type", type ? shown(*type) + " is not supported; only \"function\" is"
                            : std::string("is missing"));
  }
  if (named.ok() && !name) named.fail("name", "is missing");
  if (name) out["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  if (named.finish()) fields.fail(*named.finish());
}

/// {"format": {"type", "schema", ...}, "verbosity"}
void read_text(FieldReader& fields, const OrderedJson& ordered, OrderedJson& out) {
  const Json* given = take_object(fields, "text");
  if (given == nullptr) return;
  FieldReader text(fields, *given, "text");
  pass_fields(text, {"verbosity"}, out);
  if (const Json* format = take_object(text, "format")) {
    FieldReader inner(text, *format, "format");
    const auto type = inner.string("type");
    if (type == "json_schema") {
      const Json* schema = take_object(inner, "schema", true);
      inner.string("name");
      inner.string("description");
      const bool strict = inner.boolean("strict").value_or(false);
      if (inner.ok() && schema != nullptr) {
        out["response_format"] = schema_format(
            ordered_member(ordered_member(ordered_member(ordered, "text"), "format"), "schema"));
        if (strict) out["response_format"]["json_schema"]["strict"] = true;
      }
    } else if (type == "json_object") {
      out["response_format"] = {{"type", "json_object"}};
    } else if (inner.ok() && type != "text") {
      inner.fail("type", "must be \"text\", \"json_object\" or \"json_schema\"");
    }
    if (inner.finish()) text.fail(*inner.finish());
  }
  if (text.finish()) fields.fail(*text.finish());
}

void read_reasoning(FieldReader& fields, OrderedJson& out) {
  const Json* given = take_object(fields, "reasoning");
  if (given == nullptr) return;
  FieldReader reasoning(fields, *given, "reasoning");
  if (const auto effort = reasoning.string("effort")) out["reasoning_effort"] = *effort;
  pass_over(reasoning, {"summary", "generate_summary", "context"});  // it is told as it is
  if (reasoning.finish()) fields.fail(*reasoning.finish());
}

/// What asks for what is kept here, or done here, between requests.
void refuse_state(FieldReader& fields) {
  const std::string stateless =
      "is not supported: this server keeps no responses; send the whole "
      "conversation as 'input'";
  refuse_others(fields, "previous_response_id", nullptr, stateless);
  refuse_others(fields, "conversation", nullptr, stateless);
  refuse_others(fields, "background", false, "is not supported: this server keeps no responses");
  refuse_others(fields, "prompt", nullptr, "is not supported: this server keeps no prompts");
  refuse_others(fields, "truncation", "disabled",
                "is not supported; only \"disabled\" is accepted");
  refuse_others(fields, "top_logprobs", 0,
                "is not supported here; /v1/chat/completions tells them");
  const Json* include = fields.take("include");
  for (std::size_t i = 0; include != nullptr && include->is_array() && i < include->size(); ++i) {
    if ((*include)[i] == "message.output_text.logprobs") {
      fields.fail("include", "cannot hold log probabilities; /v1/chat/completions tells them");
    }
  }
}

/// Members of a response that say what was asked for.
std::string echo_of(const OrderedJson& asked) {
  const OrderedJson defaults = {{"instructions", nullptr},
                                {"max_output_tokens", nullptr},
                                {"metadata", OrderedJson::object()},
                                {"parallel_tool_calls", true},
                                {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                                {"temperature", 1.0},
                                {"text", {{"format", {{"type", "text"}}}}},
                                {"tool_choice", "auto"},
                                {"tools", OrderedJson::array()},
                                {"top_p", 1.0},
                                {"user", nullptr}};
  OrderedJson echo = OrderedJson::object();
  for (const auto& [name, value] : defaults.items()) {
    const bool given = asked.contains(name) && !asked[name].is_null();
    echo[name] = given ? asked[name] : value;
  }
  echo["background"] = false;
  echo["previous_response_id"] = nullptr;
  echo["store"] = false;
  echo["truncation"] = "disabled";
  const std::string text = echo.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return "," + text.substr(1, text.size() - 2);
}

}  // namespace
}  // namespace responses

ParseOutcome parse_response(std::string_view body, const RequestContext& context,
                            const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  const OrderedJson ordered = parse_ordered_json(body);
  Translation made;
  FieldReader fields(json.value(), {}, context.strict_fields ? nullptr : &made.other.ignored);
  responses::refuse_state(fields);
  made.body["messages"] = responses::Input(fields, model).read();
  responses::read_tools(fields, ordered, made.body);
  responses::read_tool_choice(fields, made.body);
  responses::read_text(fields, ordered, made.body);
  responses::read_reasoning(fields, made.body);
  if (const auto most = fields.integer("max_output_tokens", 1, kMaxCount)) {
    made.body["max_tokens"] = *most;
  }
  pass_fields(fields, {"model", "temperature", "top_p", "parallel_tool_calls", "stream"},
              made.body);
  // Baton's own, as in a chat.
  pass_fields(fields, {"seed", "min_tokens", "timeout_s", "priority", "cache_salt"}, made.body);
  pass_over(fields,
            {"store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key",
             "prompt_cache_retention", "prompt_cache_options", "max_tool_calls", "stream_options"});
  if (const auto& error = fields.finish()) return field_error(*error);
  made.names = responses::field_names();
  made.other.make_reply = [echo = responses::echo_of(ordered)](ReplyGrounds grounds) {
    return responses_reply(std::move(grounds), echo);
  };
  return parse_translated(std::move(made), context, model);
}

}  // namespace baton
