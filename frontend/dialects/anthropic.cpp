#include "frontend/dialects/anthropic.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "frontend/chat/chat_template.h"
#include "frontend/dialects/anthropic_messages.h"
#include "frontend/dialects/anthropic_reply.h"
#include "frontend/dialects/common.h"
#include "frontend/openai/translation.h"

namespace baton {
namespace anthropic {
namespace {

using Json = nlohmann::json;

/// The fields of the OpenAI API that a translated body has, and what they were.
const FieldNames& field_names() {
  static const FieldNames kNames = {
      {"stop", "stop_sequences"},
      {"response_format.json_schema.schema", "output_config.format.schema"},
      {"response_format", "output_config.format"},
      {"reasoning_effort", "output_config.effort"},
      {"thinking_token_budget", "thinking.budget_tokens"}};
  return kNames;
}

/// The last message is an assistant's, which the reply goes on with.
bool prefilled(const OrderedJson& messages) {
  return !messages.empty() && messages.back()["role"] == "assistant";
}

/// Tools that Anthropic's servers run, or whose schemas only its models know, are left out by name.
/// Whether some were.
bool read_tools(FieldReader& fields, const OrderedJson& ordered, OrderedJson& out) {
  const Json* tools = take_objects(fields, "tools");
  if (tools == nullptr) return false;
  bool left_out = false;
  OrderedJson list = OrderedJson::array();
  const OrderedJson& all = ordered_member(ordered, "tools");
  for (std::size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    FieldReader tool(fields, (*tools)[i], "tools[" + std::to_string(i) + "]");
    const auto type = tool.string("type");
    if (type && *type != "custom") {
      leave_out(tool, *type, R"(: only tools with a schema ("custom") are)");
      left_out = true;
      if (tool.ok()) continue;
    }
    const auto name = required_string(tool, "name");
    take_object(tool, "input_schema", true);
    tool.string("description");
    tool.boolean("strict");
    pass_over(tool, {"cache_control", "eager_input_streaming", "defer_loading", "allowed_callers",
                     "input_examples"});
    if (tool.finish()) {
      fields.fail(*tool.finish());
      return left_out;
    }
    const OrderedJson& given = all[i];
    list.push_back(function_tool(*name, given.value("description", OrderedJson()),
                                 given["input_schema"], given.value("strict", OrderedJson())));
  }
  if (!list.empty()) out["tools"] = std::move(list);
  return left_out;
}

bool has_tool(const OrderedJson& out, std::string_view name) {
  const OrderedJson& tools = ordered_member(out, "tools");
  return std::any_of(tools.begin(), tools.end(),
                     [&](const OrderedJson& tool) { return tool["function"]["name"] == name; });
}

/// {"type": "auto", "any", "tool" or "none", "name", "disable_parallel_tool_use"}. `left_out`: what
/// cannot be forced may be one of the tools that were left out.
void read_tool_choice(FieldReader& fields, bool left_out, OrderedJson& out) {
  const Json* given = take_object(fields, "tool_choice");
  if (given == nullptr) return;
  FieldReader choice(fields, *given, "tool_choice");
  const auto type = choice.string("type");
  const auto single = choice.boolean("disable_parallel_tool_use");
  if (single) out["parallel_tool_calls"] = !*single;
  if (type == "auto" || type == "none") {
    out["tool_choice"] = *type;
  } else if (type == "any") {
    if (left_out && !out.contains("tools")) {
      fields.note("tool_choice");
    } else {
      out["tool_choice"] = "required";
    }
  } else if (type == "tool") {
    const auto name = required_string(choice, "name");
    if (name && has_tool(out, *name)) {
      out["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
    } else if (left_out && choice.ok()) {
      fields.note("tool_choice");
    } else if (choice.ok()) {
      choice.fail("name", "must name one of 'tools'");
    }
  } else if (choice.ok()) {
    choice.fail("type", R"(must be "auto", "any", "tool" or "none")");
  }
  if (choice.finish()) fields.fail(*choice.finish());
}

/// {"type": "enabled", "disabled", "adaptive" or "between_tools", "budget_tokens", "display"}
void read_thinking(FieldReader& fields, OrderedJson& out, MessageWishes& wishes) {
  const Json* given = take_object(fields, "thinking");
  if (given == nullptr) return;
  FieldReader thinking(fields, *given, "thinking");
  const auto type = thinking.string("type");
  const auto budget = thinking.integer("budget_tokens", 0, kMaxCount);
  if (budget && type == "enabled") out["thinking_token_budget"] = *budget;
  const auto display = thinking.string("display");
  wishes.omit_thinking = display == "omitted";
  if (display && *display != "omitted" && *display != "summarized") {
    thinking.fail("display", R"(must be "summarized" or "omitted")");
  }
  if (type == "enabled" || type == "disabled") {
    out["thinking"] = {{"type", *type}};
  } else if (type == "adaptive" || type == "between_tools") {
    out["thinking"] = {{"type", "adaptive"}};
  } else if (thinking.ok()) {
    thinking.fail("type", R"(must be "enabled", "disabled" or "adaptive")");
  }
  if (thinking.finish()) fields.fail(*thinking.finish());
}

/// {"effort", "format": {"type": "json_schema", "schema"}}; the format was "output_format", too.
void read_output(FieldReader& fields, const OrderedJson& ordered, OrderedJson& out) {
  const auto read_format = [&](FieldReader& owner, const char* name, const OrderedJson& text) {
    const Json* given = take_object(owner, name);
    if (given == nullptr) return;
    FieldReader format(owner, *given, name);
    const auto type = format.string("type");
    if (format.ok() && type != "json_schema") format.fail("type", "must be \"json_schema\"");
    const Json* schema = take_object(format, "schema", true);
    if (format.ok() && schema != nullptr) {
      out["response_format"] = schema_format(ordered_member(ordered_member(text, name), "schema"));
    }
    if (format.finish()) owner.fail(*format.finish());
  };
  read_format(fields, "output_format", ordered);
  const Json* given = take_object(fields, "output_config");
  if (given == nullptr) return;
  FieldReader config(fields, *given, "output_config");
  const auto effort = config.string("effort");
  const bool silent = out.contains("thinking") && out["thinking"]["type"] == "disabled";
  if (effort && !silent) out["reasoning_effort"] = *effort;
  read_format(config, "format", ordered_member(ordered, "output_config"));
  if (config.finish()) fields.fail(*config.finish());
}

std::vector<std::string> texts_of(const Json* list) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; list != nullptr && list->is_array() && i < list->size(); ++i) {
    if ((*list)[i].is_string()) texts.push_back((*list)[i].get<std::string>());
  }
  return texts;
}

enum class Route : std::uint8_t { message, count };

void read_rest(FieldReader& fields, Route route, OrderedJson& out, MessageWishes& wishes) {
  if (fields.take(kThreadField) != nullptr) {
    fields.fail(kThreadField, "is not supported: this server keeps no messages; send all of them");
  }
  pass_fields(fields, {"model"}, out);
  if (route == Route::count) {
    out["max_tokens"] = 1;
    return;
  }
  const auto most = fields.integer("max_tokens", 1, kMaxCount);
  if (most) out["max_tokens"] = *most;
  if (fields.ok() && !most) fields.fail("max_tokens", "is missing");
  const Json* stops = fields.take("stop_sequences");
  if (stops != nullptr && !stops->is_array()) {
    fields.fail("stop_sequences",
                std::string("must be an array of strings, not ") + kind_of(*stops));
  } else if (stops != nullptr) {
    out["stop"] = *stops;
    wishes.stop_sequences = texts_of(stops);
  }
  pass_fields(fields, {"stream", "temperature", "top_p", "top_k"}, out);
  // Baton's own, as in the OpenAI API.
  pass_fields(fields, {"seed", "min_tokens", "timeout_s", "priority", "cache_salt"}, out);
  pass_over(fields, {"metadata", "service_tier", "inference_geo", "speed"});
  for (const char* name : {"container", "mcp_servers"}) {
    const Json* value = fields.take(name);
    if (value != nullptr && !value->empty()) {
      fields.ignore_or_fail(name, "is not supported: this server runs no tools");
    }
  }
}

ParseOutcome parse(std::string_view body, Route route, const RequestContext& context,
                   const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  const OrderedJson ordered = parse_ordered_json(body);
  Translation made;
  MessageWishes wishes;
  made.other.ignored.set_strict(context.strict_fields);
  FieldReader fields(json.value(), {}, &made.other.ignored);
  read_rest(fields, route, made.body, wishes);
  const bool templated = model.chat_template != nullptr;
  made.body["messages"] = read_messages(fields, ordered, {templated, context.drop_billing_header});
  const bool left_out = read_tools(fields, ordered, made.body);
  read_tool_choice(fields, left_out, made.body);
  read_thinking(fields, made.body, wishes);
  read_output(fields, ordered, made.body);
  fields.take("cache_control");
  if (fields.ok() && prefilled(made.body["messages"])) {
    if (made.body["messages"].back().contains("tool_calls")) {
      fields.fail("messages", "end with calls of tools, whose results must follow");
    }
    if (!templated) {
      fields.fail("messages",
                  "end with one of the assistant, which needs a chat template to go on");
    }
    made.body["continue_final_message"] = true;
  }
  if (const auto& error = fields.finish()) return field_error(*error);
  made.names = field_names();
  made.other.make_reply = [wishes = std::move(wishes)](ReplyGrounds grounds) {
    return anthropic_reply(std::move(grounds), wishes);
  };
  return parse_translated(std::move(made), context, model);
}

ParseOutcome parse_message(std::string_view body, const RequestContext& context,
                           const ServedModel& model) {
  return parse(body, Route::message, context, model);
}

/// What the same body would tell as its input_tokens.
ParseOutcome parse_count(std::string_view body, const RequestContext& context,
                         const ServedModel& model) {
  return when_parsed(parse(body, Route::count, context, model), [](ParseOutcome made) {
    const auto* request = std::get_if<ParsedRequest>(&made);
    if (request == nullptr) return made;
    Answer answer{"{\"input_tokens\":" + std::to_string(request->prompts.front().size()) + "}"};
    answer.headers = request->headers;
    return ParseOutcome(std::move(answer));
  });
}

class Anthropic : public Dialect {
 public:
  const char* name() const override { return "anthropic"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/v1/messages", &parse_message, ModelNamed::in_body},
            {"POST", "/v1/messages/count_tokens", &parse_count, ModelNamed::in_body}};
  }
  HttpError shape(HttpError error) const override {
    error.body = anthropic_error(error);
    return error;
  }
};

}  // namespace
}  // namespace anthropic

const Dialect& anthropic_dialect() {
  static const anthropic::Anthropic kDialect;
  return kDialect;
}

}  // namespace baton
