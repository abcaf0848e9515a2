// Requests for vectors instead of text: /v1/embeddings, and a reranker's /v1/rerank and /v1/score.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "frontend/core/served_model.h"
#include "frontend/http/http_error.h"
#include "frontend/openai/pooled_reply.h"

namespace baton {

inline constexpr std::size_t kMaxInputs = 2048;  // of one request, as OpenAI's
inline constexpr std::size_t kMaxInstructionBytes = 4096;

/// input: a string, an array of strings, an array of token ids, or an array of such;
/// encoding_format, dimensions, truncate_prompt_tokens, add_special_tokens, priority, cache_salt,
/// timeout_s.
ParseOutcome parse_embeddings(std::string_view body, const RequestContext& context,
                              const ServedModel& model);

/// query, documents (strings, or objects with a text), top_n, return_documents, instruction.
ParseOutcome parse_rerank(std::string_view body, const RequestContext& context,
                          const ServedModel& model);

/// text_1, text_2 (one text against several, or as many against as many), instruction.
ParseOutcome parse_score(std::string_view body, const RequestContext& context,
                         const ServedModel& model);

/// Of another API's embeddings, whose field for the texts is `field`. Any model's name passes where
/// context.any_model says so.
ParseOutcome embed_texts(const nlohmann::json& body, const char* field, VectorShape shape,
                         const RequestContext& context, const ServedModel& model);

/// What the model is not served for; nothing: `task` is what it is served for.
std::optional<HttpError> refuse_task(ModelTask task, const ServedModel& model);

}  // namespace baton
