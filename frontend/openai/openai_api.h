// The OpenAI dialect: POST /v1/completions, POST /v1/chat/completions, GET /v1/models. Pure: JSON
// in, values out. Field names and shapes follow the public API reference and vLLM's extra
// parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "frontend/chat/reply_parser.h"
#include "frontend/core/dialect.h"
#include "frontend/core/generation.h"
#include "frontend/core/json_reader.h"
#include "frontend/core/served_model.h"
#include "frontend/http/http_error.h"
#include "frontend/openai/request_fields.h"

namespace baton {

/// Every field is checked: a wrong type, a value out of range, an unknown field, or a known field
/// whose function is not supported is a 400 that names it. An unknown model is a 404. Bounded work:
/// the caller bounds the body.
ParseOutcome parse_completion(std::string_view body, const RequestContext& context,
                              const ServedModel& model);
ParseOutcome parse_chat_completion(std::string_view body, const RequestContext& context,
                                   const ServedModel& model);

/// What another API's reply is made of, known before its first token.
struct ReplyGrounds {
  std::string id;  // of the request
  std::string model;
  std::int64_t created = 0;  // unix seconds
  std::uint32_t prompt_tokens = 0;
  bool stream = false;
  bool one_call = false;              // calls behind the first are left out
  std::optional<ReplyParser> parser;  // tells reasoning and calls apart; none: all is content
};

/// Where a request of another API, whose body was translated into one of this API, goes its own
/// way.
struct OtherApi {
  std::function<std::unique_ptr<ReplyWriter>(ReplyGrounds)> make_reply;
  IgnoredFields ignored;        // of the body as the client wrote it
  bool any_max_tokens = false;  // the client asked for what the context leaves
};

/// `body`: one choice, without log probabilities.
ParseOutcome parse_for_other_api(std::string_view body, OpenAiRoute route,
                                 const RequestContext& context, const ServedModel& model,
                                 OtherApi other);

/// Every field that the API knows, whatever it does with it.
std::vector<std::string> openai_fields(OpenAiRoute route, const ServedModel& model);

/// Body of GET /v1/models. `created`: unix seconds, when this server began to serve them.
std::string models_body(const std::vector<PageModel>& models, std::int64_t created);
/// Body of GET /v1/models/{id}; a 404 when `id` is none of them.
std::variant<std::string, HttpError> model_body(std::string_view id,
                                                const std::vector<PageModel>& models,
                                                std::int64_t created);

}  // namespace baton
