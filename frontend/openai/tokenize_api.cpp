#include "frontend/openai/tokenize_api.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frontend/chat/chat_fields.h"
#include "frontend/chat/chat_template.h"
#include "frontend/core/json_reader.h"
#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"
#include "frontend/openai/request_fields.h"
#include "text/text_stream.h"

namespace baton {
namespace {

using Headers = decltype(Answer::headers);

struct Wanted {
  std::uint32_t max_context = 0;
  bool token_strs = false;
  Headers headers;
};

ParseOutcome answer(const std::vector<Token>& ids, const Wanted& wanted, const ServedModel& model) {
  std::string tokens, strings;
  for (const Token id : ids) {
    if (!tokens.empty()) tokens += ',';
    tokens += std::to_string(id);
    if (!wanted.token_strs) continue;
    if (!strings.empty()) strings += ',';
    strings += json_string(model.tokenizer->token_text(id));
  }
  return Answer{.body = "{\"count\":" + std::to_string(ids.size()) + ",\"max_model_len\":" +
                        std::to_string(wanted.max_context) + ",\"tokens\":[" + tokens +
                        "],\"token_strs\":" + (wanted.token_strs ? "[" + strings + "]" : "null") +
                        "}",
                .headers = wanted.headers};
}

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

/// TGI's list: each token with the text that it completes, and where that stands in the input, in
/// characters.
std::string placed_tokens(const std::vector<Token>& ids, const Tokenizer& tokenizer) {
  TextStream stream(tokenizer, {});
  std::string list;
  std::size_t start = 0;
  for (const Token id : ids) {
    const std::string_view text = stream.feed(std::span(&id, 1)).text;
    const std::size_t stop = start + character_count(text);
    list += (list.empty() ? "{\"id\":" : ",{\"id\":") + std::to_string(id) +
            ",\"text\":" + json_string(text) + ",\"start\":" + std::to_string(start) +
            ",\"stop\":" + std::to_string(stop) + "}";
    start = stop;
  }
  return "[" + list + "]";
}

/// The header that names what was ignored; nothing: none of it.
Headers told(const IgnoredFields& ignored) {
  if (ignored.names().empty()) return {};
  return {{kIgnoredFieldsHeader, ignored.joined()}};
}

ParseOutcome answer_chat(Result<ChatPrompt> prompt, const RequestContext& context,
                         const Wanted& wanted, const ServedModel& model) {
  if (prompt.ok()) return answer(prompt.value().ids, wanted, model);
  const Status status =
      prompt.status().code() == ErrorCode::too_long ? far_too_long(context) : prompt.status();
  return http_error(status, http_status(status.code()) == 400 ? "messages" : "");
}

class TemplatedCount : public PendingChat {
 public:
  TemplatedCount(std::string request, RequestContext context, Wanted wanted)
      : request_(std::move(request)), context_(std::move(context)), wanted_(wanted) {}

  const std::string& render_request() const override { return request_; }

  ParseOutcome finish(const Result<std::string>& rendered, const ServedModel& model) override {
    if (!rendered.ok()) return answer_chat(rendered.status(), context_, wanted_, model);
    return answer_chat(
        model.chat_template->tokenise(rendered.value(), *model.tokenizer, tokenise_limit(context_)),
        context_, wanted_, model);
  }

 private:
  std::string request_;
  RequestContext context_;
  Wanted wanted_;
};

ParseOutcome tokenize_chat(FieldReader& fields, std::string_view body,
                           const RequestContext& context, const ServedModel& model, Wanted wanted,
                           const IgnoredFields& ignored) {
  if (model.chat == nullptr && model.chat_template == nullptr) {
    return http_error(invalid("the model '" + model.name + "' has no chat format"), "messages");
  }
  Conversation conversation;
  read_conversation(fields, body, model, conversation);
  if (const auto& error = fields.finish()) return field_error(*error);
  wanted.headers = told(ignored);
  if (model.chat_template != nullptr) {
    return std::make_unique<TemplatedCount>(model.chat_template->render_request(conversation),
                                            context, wanted);
  }
  return answer_chat(
      model.chat->render(conversation.messages, *model.tokenizer, tokenise_limit(context)), context,
      wanted, model);
}

}  // namespace

ParseOutcome parse_tokenize(std::string_view body, const RequestContext& context,
                            const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  IgnoredFields ignored;
  FieldReader fields(json.value(), {}, context.strict_fields ? nullptr : &ignored);
  const auto name = fields.string("model");
  Wanted wanted{context.max_context, fields.boolean("return_token_strs").value_or(false), {}};
  if (fields.ok() && name && *name != model.name && !context.any_model)
    return unknown_model(*name, model);
  if (context.max_context == 0) return http_error(far_too_long(context));
  if (json.value().contains("messages")) {
    return tokenize_chat(fields, body, context, model, std::move(wanted), ignored);
  }
  // TGI's form has another name for the prompt and another reply; its parameters say nothing about
  // tokens.
  const bool placed = json.value().contains("inputs");
  const std::string field = placed ? "inputs" : "prompt";
  if (placed) fields.take("parameters");
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  const auto prompt = fields.string(field);
  if (fields.ok() && !prompt) fields.fail(field, "is missing, and so is 'messages'");
  if (const auto& error = fields.finish()) return field_error(*error);
  wanted.headers = told(ignored);
  const auto ids = model.tokenizer->encode_within(*prompt, special && model.tokenizer->add_bos(),
                                                  tokenise_limit(context));
  if (!ids) return http_error(far_too_long(context), field);
  if (placed)
    return Answer{.body = placed_tokens(*ids, *model.tokenizer), .headers = wanted.headers};
  return answer(*ids, wanted, model);
}

ParseOutcome parse_detokenize(std::string_view body, const RequestContext& context,
                              const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  IgnoredFields ignored;
  FieldReader fields(json.value(), {}, context.strict_fields ? nullptr : &ignored);
  const auto name = fields.string("model");
  if (context.max_context == 0) return http_error(far_too_long(context));
  const nlohmann::json* tokens = fields.take("tokens");
  std::vector<Token> ids;
  if (tokens == nullptr || !tokens->is_array()) {
    fields.fail("tokens", "must be an array of token ids");
  } else if (tokens->size() > context.max_context) {
    fields.fail("tokens", "has " + std::to_string(tokens->size()) +
                              " token ids; the context holds " +
                              std::to_string(context.max_context));
  } else {
    ids = read_token_ids(fields, *tokens, "tokens", model);
  }
  if (const auto& error = fields.finish()) return field_error(*error);
  if (name && *name != model.name && !context.any_model) return unknown_model(*name, model);
  return Answer{.body = "{\"prompt\":" + json_string(model.tokenizer->decode(ids, false)) + "}",
                .headers = told(ignored)};
}

}  // namespace baton
