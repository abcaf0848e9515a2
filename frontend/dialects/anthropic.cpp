#include "frontend/dialects/anthropic.h"

#include <array>
#include <memory>
#include <utility>

#include "frontend/chat/chat_template.h"
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
      {"reasoning_effort", "output_config.effort"}};
  return kNames;
}

/// What else an object says of itself, and what does nothing here.
constexpr std::array kMarkers{"cache_control", "citations", "caller", "toolset_name"};

class Messages {
 public:
  Messages(FieldReader& fields, const OrderedJson& ordered, const ServedModel& model)
      : fields_(fields),
        ordered_(ordered_member(ordered, "messages")),
        templated_(model.chat_template != nullptr) {}

  /// "system" and "messages" as messages of the OpenAI API.
  OrderedJson read() {
    if (const Json* system = fields_.take("system")) {
      out_.push_back({{"role", "system"}, {"content", texts(fields_, "system", *system)}});
    }
    const Json* messages = take_objects(fields_, "messages");
    if (messages == nullptr || messages->empty()) {
      fields_.fail("messages", messages == nullptr ? "is missing" : "must not be empty");
      return out_;
    }
    for (at_ = 0; at_ < messages->size() && fields_.ok(); ++at_) read_message((*messages)[at_]);
    return out_;
  }

  /// The last message is an assistant's, which the reply goes on with.
  bool prefilled() const { return !out_.empty() && out_.back()["role"] == "assistant"; }

 private:
  void read_message(const Json& value) {
    FieldReader message(fields_, value, "messages[" + std::to_string(at_) + "]");
    const auto role = message.string("role");
    const Json* content = message.take("content");
    if (message.ok() && (!role || (role != "user" && role != "assistant" && role != "system"))) {
      message.fail("role", role ? "must be user, assistant or system, not " + shown(*role)
                                : std::string("is missing"));
    } else if (message.ok() && content == nullptr) {
      message.fail("content", "is missing");
    }
    if (message.ok()) {
      if (content->is_string() || role == "system") {
        out_.push_back({{"role", *role}, {"content", texts(message, "content", *content)}});
      } else if (const Json* blocks = take_objects(message, "content")) {
        role == "user" ? read_user(message, *blocks) : read_assistant(message, *blocks);
      }
    }
    if (message.finish()) fields_.fail(*message.finish());
  }

  /// A string, or the texts of blocks of text.
  static std::string texts(FieldReader& owner, const std::string& name, const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    std::string text;
    const Json* blocks = take_objects(owner, name);
    for (std::size_t i = 0; blocks != nullptr && i < blocks->size() && owner.ok(); ++i) {
      FieldReader block(owner, (*blocks)[i], name + "[" + std::to_string(i) + "]");
      const auto type = block.string("type");
      if (type == "text") {
        text += required_string(block, "text").value_or("");
      } else {
        refuse(block, type);
      }
      close(owner, block);
    }
    return text;
  }

  static void refuse(FieldReader& block, const std::optional<std::string_view>& type) {
    if (!block.ok()) return;
    block.fail("type", type ? shown(*type) + " is not supported here; this model reads only text"
                            : std::string("is missing"));
  }

  static void close(FieldReader& owner, FieldReader& block) {
    for (const char* marker : kMarkers) block.take(marker);
    if (block.finish()) owner.fail(*block.finish());
  }

  /// Texts between results are messages of their own, so that all of it keeps its order.
  void read_user(FieldReader& message, const Json& blocks) {
    std::optional<std::string> text;
    const auto say = [&] {
      if (text) out_.push_back({{"role", "user"}, {"content", std::move(*text)}});
      text.reset();
    };
    for (std::size_t i = 0; i < blocks.size() && message.ok(); ++i) {
      FieldReader block(message, blocks[i], "content[" + std::to_string(i) + "]");
      const auto type = block.string("type");
      if (type == "text") {
        if (!text) text.emplace();
        *text += required_string(block, "text").value_or("");
      } else if (type == "tool_result") {
        say();
        read_result(block);
      } else {
        refuse(block, type);
      }
      close(message, block);
    }
    if (blocks.empty()) text = "";
    say();
  }

  void read_result(FieldReader& block) {
    const auto id = required_string(block, "tool_use_id");
    block.boolean("is_error");  // what went wrong stands in the content
    const Json* content = block.take("content");
    const std::string text = content == nullptr ? "" : texts(block, "content", *content);
    need_template(block);
    if (!block.ok()) return;
    out_.push_back({{"role", "tool"}, {"tool_call_id", *id}, {"content", text}});
  }

  void need_template(FieldReader& block) const {
    if (!templated_ && block.ok()) {
      block.fail("type", "is not supported: this model's chat format knows no tools");
    }
  }

  void read_assistant(FieldReader& message, const Json& blocks) {
    std::string text, reasoning;
    OrderedJson calls = OrderedJson::array();
    const OrderedJson& ordered = ordered_member(ordered_[at_], "content");
    for (std::size_t i = 0; i < blocks.size() && message.ok(); ++i) {
      FieldReader block(message, blocks[i], "content[" + std::to_string(i) + "]");
      const auto type = block.string("type");
      if (type == "text") {
        text += required_string(block, "text").value_or("");
      } else if (type == "thinking") {
        reasoning += required_string(block, "thinking").value_or("");
        block.take("signature");
      } else if (type == "redacted_thinking") {
        block.take("data");  // nobody can read it
      } else if (type == "tool_use") {
        const auto id = required_string(block, "id");
        const auto name = required_string(block, "name");
        take_object(block, "input", true);
        need_template(block);
        if (block.ok()) {
          calls.push_back(function_call(*id, *name, ordered_member(ordered[i], "input").dump()));
        }
      } else {
        refuse(block, type);
      }
      close(message, block);
    }
    OrderedJson out = {{"role", "assistant"}, {"content", nullptr}};
    if (!text.empty() || calls.empty()) out["content"] = text;
    if (!reasoning.empty()) out["reasoning_content"] = reasoning;
    if (!calls.empty()) out["tool_calls"] = std::move(calls);
    out_.push_back(std::move(out));
  }

  FieldReader& fields_;
  const OrderedJson& ordered_;  // "messages"
  bool templated_ = false;
  std::size_t at_ = 0;
  OrderedJson out_ = OrderedJson::array();
};

void read_tools(FieldReader& fields, const OrderedJson& ordered, OrderedJson& out) {
  const Json* tools = take_objects(fields, "tools");
  if (tools == nullptr) return;
  OrderedJson list = OrderedJson::array();
  const OrderedJson& all = ordered_member(ordered, "tools");
  for (std::size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    FieldReader tool(fields, (*tools)[i], "tools[" + std::to_string(i) + "]");
    const auto type = tool.string("type");
    if (type && *type != "custom") {
      tool.fail("type", shown(*type) +
                            " is not supported: only tools that the client runs "
                            "(\"custom\") are");
    }
    const auto name = required_string(tool, "name");
    take_object(tool, "input_schema", true);
    tool.string("description");
    tool.boolean("strict");
    pass_over(tool, {"cache_control", "eager_input_streaming", "defer_loading", "allowed_callers",
                     "input_examples"});
    if (tool.finish()) {
      fields.fail(*tool.finish());
      return;
    }
    const OrderedJson& given = all[i];
    list.push_back(function_tool(*name, given.value("description", OrderedJson()),
                                 given["input_schema"], given.value("strict", OrderedJson())));
  }
  out["tools"] = std::move(list);
}

/// {"type": "auto", "any", "tool" or "none", "name", "disable_parallel_tool_use"}
void read_tool_choice(FieldReader& fields, const Json* tools, OrderedJson& out) {
  const Json* given = take_object(fields, "tool_choice");
  if (given == nullptr) return;
  FieldReader choice(fields, *given, "tool_choice");
  const auto type = choice.string("type");
  const auto single = choice.boolean("disable_parallel_tool_use");
  if (single) out["parallel_tool_calls"] = !*single;
  if (type == "auto" || type == "none") {
    out["tool_choice"] = *type;
  } else if (type == "any") {
    out["tool_choice"] = "required";
  } else if (type == "tool") {
    const auto name = required_string(choice, "name");
    bool known = false;
    for (std::size_t i = 0; name && tools != nullptr && i < tools->size(); ++i) {
      known = known || (*tools)[i].value("name", Json()) == *name;
    }
    if (choice.ok() && !known) choice.fail("name", "must name one of 'tools'");
    if (name) out["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
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
  thinking.integer("budget_tokens", 0, kMaxCount);  // budgets are not kept to
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
  refuse_unless(fields, "container", nullptr, "nothing is run here");
  refuse_unless(fields, "mcp_servers", Json::array(), "this server calls nobody");
}

ParseOutcome parse(std::string_view body, Route route, const RequestContext& context,
                   const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  const OrderedJson ordered = parse_ordered_json(body);
  Translation made;
  MessageWishes wishes;
  FieldReader fields(json.value(), {}, context.strict_fields ? nullptr : &made.other.ignored);
  read_rest(fields, route, made.body, wishes);
  Messages messages(fields, ordered, model);
  made.body["messages"] = messages.read();
  read_tools(fields, ordered, made.body);
  read_tool_choice(fields, fields.take("tools"), made.body);
  read_thinking(fields, made.body, wishes);
  read_output(fields, ordered, made.body);
  fields.take("cache_control");
  if (fields.ok() && messages.prefilled()) {
    if (made.body["messages"].back().contains("tool_calls")) {
      fields.fail("messages", "end with calls of tools, whose results must follow");
    }
    if (model.chat_template == nullptr) {
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
