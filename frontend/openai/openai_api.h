// The OpenAI dialect: POST /v1/completions, POST /v1/chat/completions, GET /v1/models. Pure: JSON
// in, values out. Field names and shapes follow the public API reference and vLLM's extra
// parameters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "frontend/core/generation.h"
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

/// Every field that the API knows, whatever it does with it.
std::vector<std::string> openai_fields(OpenAiRoute route, const ServedModel& model);

/// Body of GET /v1/models. `created`: unix seconds, when this server began to serve it.
std::string models_body(const ServedModel& model, std::int64_t created, std::uint32_t max_context);
/// Body of GET /v1/models/{id}; a 404 when `id` is another model.
std::variant<std::string, HttpError> model_body(std::string_view id, const ServedModel& model,
                                                std::int64_t created, std::uint32_t max_context);

}  // namespace baton
