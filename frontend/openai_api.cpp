#include "frontend/openai_api.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "frontend/json_reader.h"
#include "frontend/openai_reply.h"
#include "frontend/request_fields.h"
#include "frontend/sse.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// The limits a client gave, before the prompt's length is known.
struct AskedLimits {
  std::optional<std::int64_t> max_tokens;
  std::string max_field = "max_tokens";
  std::int64_t min_tokens = 0;
};

/// What the body says, before anything is tokenised.
struct Asked {
  ParsedRequest request;
  AskedLimits limits;
  bool include_usage = false;
  bool ignore_eos = false;
  std::string unknown_model;

  // Of a completion: one of the two.
  std::optional<std::string_view> prompt_text;
  std::vector<Token> prompt_ids;
  // Of a chat.
  std::vector<ChatMessage> messages;
};

void read_limits(FieldReader& fields, OpenAiRoute route, AskedLimits& limits) {
  limits.max_tokens = fields.integer("max_tokens", 1, kMaxCount);
  if (route == OpenAiRoute::chat) {
    const auto newer = fields.integer("max_completion_tokens", 1, kMaxCount);
    if (newer && limits.max_tokens && *newer != *limits.max_tokens) {
      fields.fail("max_completion_tokens", "contradicts 'max_tokens'; give one of them");
    }
    if (newer) {
      limits.max_tokens = newer;
      limits.max_field = "max_completion_tokens";
    }
  }
  limits.min_tokens = fields.integer("min_tokens", 0, kMaxCount).value_or(0);
  if (limits.max_tokens && limits.min_tokens > *limits.max_tokens) {
    fields.fail("min_tokens", "is " + std::to_string(limits.min_tokens) + ", above '" +
                                  limits.max_field + "', which is " +
                                  std::to_string(*limits.max_tokens));
  }
}

void read_stream(FieldReader& fields, Asked& asked) {
  asked.request.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.take("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields.fail("stream_options", std::string("must be an object, not ") + kind_of(*options));
    return;
  }
  FieldReader inner(*options, "stream_options");
  asked.include_usage = inner.boolean("include_usage").value_or(false);
  inner.boolean("include_obfuscation");
  if (inner.boolean("continuous_usage_stats").value_or(false)) {
    inner.fail("continuous_usage_stats", "is not supported; only false is accepted");
  }
  if (inner.finish()) fields.fail(*inner.finish());
  if (!asked.request.stream) fields.fail("stream_options", "is only allowed when 'stream' is true");
}

void read_common(FieldReader& fields, OpenAiRoute route, const RequestContext& context,
                 const ServedModel& model, Asked& asked) {
  const auto name = fields.string("model");
  if (name && *name != model.name) asked.unknown_model = *name;
  asked.request.model = model.name;
  read_sampling(fields, context, model, 2, asked.request);
  asked.ignore_eos = read_stop_extras(fields, model, asked.request);
  read_limits(fields, route, asked.limits);
  read_stream(fields, asked);
  if (const auto n = fields.integer("n", 1, 128); n && *n > 1) {
    fields.fail("n", "above 1 is not supported yet");
  }
  ignore_neutral_fields(fields, route);
}

void read_prompt_ids(FieldReader& fields, const Json& ids, const std::string& name,
                     std::int64_t vocab, std::vector<Token>& out) {
  out.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Json& id = ids[i];
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocab) {
      fields.fail(name + "[" + std::to_string(i) + "]",
                  "must be a token id between 0 and " + std::to_string(vocab - 1));
      return;
    }
    out.push_back(id.get<Token>());
  }
}

void read_prompt(FieldReader& fields, const ServedModel& model, Asked& asked) {
  const Json* prompt = fields.take("prompt");
  if (prompt == nullptr) {
    fields.fail("prompt", "is missing");
    return;
  }
  std::string name = "prompt";
  if (prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number()) {
    if (prompt->size() > 1) {
      fields.fail("prompt", "holds " + std::to_string(prompt->size()) +
                                " prompts; only one a request is supported");
      return;
    }
    prompt = &(*prompt)[0];
    name = "prompt[0]";
  }
  if (prompt->is_string()) {
    asked.prompt_text = prompt->get_ref<const std::string&>();
  } else if (prompt->is_array()) {
    read_prompt_ids(fields, *prompt, name, model.tokenizer->vocab_size(), asked.prompt_ids);
  } else {
    fields.fail(name,
                std::string("must be a string or an array of token ids, not ") + kind_of(*prompt));
  }
}

/// "content": a string, or a list of {"type": "text", "text": ...}.
std::string read_content(FieldReader& message) {
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
    FieldReader reader(part, message.path_of(name));
    const auto type = reader.string("type");
    if (reader.ok() && type != "text") {
      reader.fail("type", type ? "'" + std::string(type->substr(0, 64)) +
                                     "' is not supported; this model reads only text"
                               : "is missing");
    }
    const auto piece = reader.string("text");
    if (reader.ok() && !piece) reader.fail("text", "is missing");
    if (reader.finish()) {
      message.fail(*reader.finish());
      return {};
    }
    text += *piece;
  }
  return text;
}

void check_role(FieldReader& message, std::string_view role) {
  if (role == "system" || role == "developer" || role == "user" || role == "assistant") return;
  if (role == "tool" || role == "function") {
    message.fail("role", "'" + std::string(role) + "' is not supported: tools are not");
    return;
  }
  message.fail("role", "must be system, developer, user or assistant, not '" +
                           std::string(role.substr(0, 64)) + "'");
}

void read_message(FieldReader& fields, const Json& value, std::size_t index, Asked& asked) {
  const std::string name = "messages[" + std::to_string(index) + "]";
  if (!value.is_object()) {
    fields.fail(name, std::string("must be an object, not ") + kind_of(value));
    return;
  }
  FieldReader message(value, name);
  ChatMessage out;
  const auto role = message.string("role");
  if (role) {
    check_role(message, *role);
    out.role = *role;
  } else if (message.ok()) {
    message.fail("role", "is missing");
  }
  out.content = read_content(message);
  if (message.ok() && message.take("content") == nullptr && out.role != "assistant") {
    message.fail("content", "is missing");
  }
  message.string("name");
  // What replies of this and other servers carry, so that a client can send them back as they are.
  for (const char* empty : {"refusal", "audio", "tool_calls", "function_call", "annotations",
                            "reasoning_content", "reasoning"}) {
    const Json* given = message.take(empty);
    if (given != nullptr && !((given->is_structured() || given->is_string()) && given->empty())) {
      message.fail(empty, "is not supported; only null or an empty value is accepted");
    }
  }
  if (message.finish()) {
    fields.fail(*message.finish());
    return;
  }
  asked.messages.push_back(std::move(out));
}

void read_messages(FieldReader& fields, Asked& asked) {
  const Json* messages = fields.take("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", messages == nullptr ? std::string("is missing")
                            : !messages->is_array()
                                ? std::string("must be an array, not ") + kind_of(*messages)
                                : std::string("must not be empty"));
    return;
  }
  for (std::size_t i = 0; i < messages->size() && fields.ok(); ++i) {
    read_message(fields, (*messages)[i], i, asked);
  }
}

HttpError unknown_model(const std::string& name, const ServedModel& model) {
  return http_error(404,
                    "the model '" + name.substr(0, 200) +
                        "' does not exist here; this server has '" + model.name + "'",
                    "model_not_found", "model");
}

/// Fits the asked lengths to the context, now that the prompt is tokenised.
Status settle_limits(const AskedLimits& limits, const RequestContext& context,
                     const ServedModel& model, ParsedRequest& request) {
  if (Status status = check_prompt(request.prompt.size(), context); !status.ok()) return status;
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t room = context.max_context - prompt;
  const std::int64_t wanted = std::max(limits.max_tokens.value_or(0), limits.min_tokens);
  if (wanted > room) {
    return Status(ErrorCode::too_long,
                  "the prompt has " + std::to_string(prompt) + " tokens and '" +
                      (wanted == limits.min_tokens ? "min_tokens" : limits.max_field) + "' is " +
                      std::to_string(wanted) + ": " + std::to_string(prompt + wanted) +
                      " tokens together; this model's context holds " +
                      std::to_string(context.max_context));
  }
  const std::int64_t fallback = std::max<std::int64_t>(model.default_max_tokens, limits.min_tokens);
  request.sampling.max_tokens =
      static_cast<std::uint32_t>(limits.max_tokens.value_or(std::min(fallback, room)));
  request.sampling.min_tokens = static_cast<std::uint32_t>(limits.min_tokens);
  return {};
}

Status tokenise_completion(const RequestContext& context, const ServedModel& model, Asked& asked) {
  if (!asked.prompt_text) {
    asked.request.prompt = std::move(asked.prompt_ids);
    return {};
  }
  auto ids = model.tokenizer->encode_within(*asked.prompt_text, model.tokenizer->add_bos(),
                                            tokenise_limit(context));
  if (!ids) return far_too_long(context);
  asked.request.prompt = std::move(*ids);
  return {};
}

Status tokenise_chat(const RequestContext& context, const ServedModel& model, Asked& asked) {
  auto prompt = model.chat->render(asked.messages, *model.tokenizer, tokenise_limit(context));
  if (prompt.status().code() == ErrorCode::too_long) return far_too_long(context);
  if (!prompt.ok()) return prompt.status();
  ParsedRequest& request = asked.request;
  request.prompt = std::move(prompt.value().ids);
  if (asked.ignore_eos) return {};
  for (const Token id : prompt.value().stop_ids) request.sampling.stop_ids.push_back(id);
  for (std::string& stop : prompt.value().stop) request.stop.push_back(std::move(stop));
  return {};
}

ParseOutcome parse(std::string_view body, OpenAiRoute route, const RequestContext& context,
                   const ServedModel& model) {
  const bool chat = route == OpenAiRoute::chat;
  if (chat && model.chat == nullptr) {
    return http_error(
        invalid("the model '" + model.name + "' has no chat format; use /v1/completions"),
        "messages");
  }
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());

  Asked asked;
  FieldReader fields(json.value());
  read_common(fields, route, context, model, asked);
  if (chat) {
    read_messages(fields, asked);
  } else {
    read_prompt(fields, model, asked);
  }
  if (const auto& error = fields.finish()) return field_error(*error);
  if (!asked.unknown_model.empty()) return unknown_model(asked.unknown_model, model);

  ParsedRequest& request = asked.request;
  Status status =
      chat ? tokenise_chat(context, model, asked) : tokenise_completion(context, model, asked);
  if (status.ok()) status = settle_limits(asked.limits, context, model, request);
  if (!status.ok()) {
    const char* field = chat ? "messages" : "prompt";
    return http_error(status, http_status(status.code()) == 400 ? field : "");
  }

  auto& ids = request.sampling.stop_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const ReplyFacts facts{context.request_id, model.name, context.unix_seconds, asked.include_usage};
  const ReplyShape shape = chat ? ReplyShape::chat : ReplyShape::completion;
  request.reply =
      request.stream ? openai_stream_reply(shape, facts) : openai_whole_reply(shape, facts);
  return std::move(request);
}

std::string model_object(const ServedModel& model, std::int64_t created,
                         std::uint32_t max_context) {
  return "{\"id\":" + json_string(model.name) +
         ",\"object\":\"model\",\"created\":" + std::to_string(created) +
         ",\"owned_by\":\"baton\",\"max_model_len\":" +
         (max_context == 0 ? "null" : std::to_string(max_context)) + "}";
}

}  // namespace

ParseOutcome parse_completion(std::string_view body, const RequestContext& context,
                              const ServedModel& model) {
  return parse(body, OpenAiRoute::completion, context, model);
}

ParseOutcome parse_chat_completion(std::string_view body, const RequestContext& context,
                                   const ServedModel& model) {
  return parse(body, OpenAiRoute::chat, context, model);
}

std::string models_body(const ServedModel& model, std::int64_t created, std::uint32_t max_context) {
  return "{\"object\":\"list\",\"data\":[" + model_object(model, created, max_context) + "]}";
}

std::variant<std::string, HttpError> model_body(std::string_view id, const ServedModel& model,
                                                std::int64_t created, std::uint32_t max_context) {
  if (id != model.name) return unknown_model(std::string(id), model);
  return model_object(model, created, max_context);
}

}  // namespace baton
