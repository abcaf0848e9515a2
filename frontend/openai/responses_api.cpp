#include "frontend/openai/responses_api.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "frontend/chat/chat_template.h"
#include "frontend/openai/request_fields.h"
#include "frontend/openai/responses_input.h"
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

/// Tools that OpenAI's servers run, and those that are no functions, are left out by name. Whether
/// some were.
bool read_tools(FieldReader& fields, const OrderedJson& ordered, OrderedJson& out) {
  const Json* tools = take_objects(fields, "tools");
  if (tools == nullptr) return false;
  bool left_out = false;
  OrderedJson list = OrderedJson::array();
  const OrderedJson& all = ordered_member(ordered, "tools");
  for (std::size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    FieldReader tool(fields, (*tools)[i], "tools[" + std::to_string(i) + "]");
    const auto type = tool.string("type");
    if (tool.ok() && !type) tool.fail("type", "is missing");
    if (tool.ok() && *type != "function") {
      leave_out(tool, *type, "; only \"function\" is");
      left_out = true;
      if (tool.ok()) continue;
    }
    const auto name = tool.string("name");
    if (tool.ok() && !name) tool.fail("name", "is missing");
    tool.string("description");
    tool.boolean("strict");
    take_object(tool, "parameters");
    if (tool.finish()) {
      fields.fail(*tool.finish());
      return left_out;
    }
    const auto given = [&](const char* field) { return ordered_member(all[i], field); };
    list.push_back(
        function_tool(*name, given("description"), given("parameters"), given("strict")));
  }
  if (!list.empty()) out["tools"] = std::move(list);
  return left_out;
}

bool has_tool(const OrderedJson& out, std::string_view name) {
  const OrderedJson& tools = ordered_member(out, "tools");
  return std::any_of(tools.begin(), tools.end(),
                     [&](const OrderedJson& tool) { return tool["function"]["name"] == name; });
}

/// "none", "auto", "required", or {"type": "function", "name"}. `left_out`: what cannot be forced
/// may be one of the tools that were left out.
void read_tool_choice(FieldReader& fields, bool left_out, OrderedJson& out) {
  const Json* choice = fields.take("tool_choice");
  if (choice == nullptr) return;
  if (!choice->is_object()) {
    if (left_out && *choice == "required" && !out.contains("tools")) {
      fields.note("tool_choice");
    } else {
      out["tool_choice"] = *choice;
    }
    return;
  }
  FieldReader named(fields, *choice, "tool_choice");
  const auto type = named.string("type");
  if (named.ok() && !type) named.fail("type", "is missing");
  if (named.ok() && *type != "function") {
    leave_out(named, *type, "; only \"function\" is");
    if (!named.ok()) fields.fail(*named.finish());
    return;
  }
  const auto name = named.string("name");
  if (named.ok() && !name) named.fail("name", "is missing");
  if (name && left_out && !has_tool(out, *name)) {
    fields.note("tool_choice");
  } else if (name) {
    out["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  }
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

/// What asks for what is kept here, or done here, between requests. Whether "include" asks for
/// reasoning that can be sent back.
bool refuse_state(FieldReader& fields) {
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
  bool packed = false;
  const Json* include = fields.take("include");
  for (std::size_t i = 0; include != nullptr && include->is_array() && i < include->size(); ++i) {
    if ((*include)[i] == "message.output_text.logprobs") {
      fields.fail("include", "cannot hold log probabilities; /v1/chat/completions tells them");
    }
    packed = packed || (*include)[i] == "reasoning.encrypted_content";
  }
  return packed;
}

/// Members of a response that say what was asked for.
std::string echo_of(const OrderedJson& asked, const SamplingDefaults& sampling) {
  const OrderedJson defaults = {{"instructions", nullptr},
                                {"max_output_tokens", nullptr},
                                {"metadata", OrderedJson::object()},
                                {"parallel_tool_calls", true},
                                {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                                {"temperature", sampling.temperature.value_or(1.0F)},
                                {"text", {{"format", {{"type", "text"}}}}},
                                {"tool_choice", "auto"},
                                {"tools", OrderedJson::array()},
                                {"top_p", sampling.top_p.value_or(1.0F)},
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
  made.other.ignored.set_strict(context.strict_fields);
  FieldReader fields(json.value(), {}, &made.other.ignored);
  const bool packed = responses::refuse_state(fields);
  made.body["messages"] = responses::read_input(fields, model.chat_template != nullptr);
  const bool left_out = responses::read_tools(fields, ordered, made.body);
  responses::read_tool_choice(fields, left_out, made.body);
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
  made.other.make_reply = [echo = responses::echo_of(ordered, model.sampling), packed](ReplyGrounds grounds) {
    return responses_reply(std::move(grounds), echo, packed);
  };
  return parse_translated(std::move(made), context, model);
}

}  // namespace baton
