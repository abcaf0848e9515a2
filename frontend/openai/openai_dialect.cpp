#include "frontend/openai/openai_dialect.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "frontend/core/percent_decoded.h"
#include "frontend/openai/openai_api.h"
#include "frontend/openai/pooling_api.h"
#include "frontend/openai/render_api.h"
#include "frontend/openai/responses_api.h"
#include "frontend/openai/server_pages.h"
#include "frontend/openai/tokenize_api.h"

namespace baton {
namespace {

using Page = std::variant<Answer, HttpError>;

constexpr std::string_view kModels = "/v1/models/";
constexpr ModelNamed kBody = ModelNamed::in_body;

Page models_page(const PageFacts& facts, const ServedModel& model) {
  return Answer{models_body(facts.listed(model), facts.created)};
}

/// A name may hold a slash, which clients send as it is or as %2F.
Page model_page(const PageFacts& facts, const ServedModel& model) {
  std::string_view id = facts.path;
  id.remove_prefix(std::min(kModels.size(), id.size()));
  if (id.ends_with('/')) id.remove_suffix(1);
  auto outcome = model_body(percent_decoded(id), facts.listed(model), facts.created);
  if (auto* error = std::get_if<HttpError>(&outcome)) return std::move(*error);
  return Answer{std::move(std::get<std::string>(outcome))};
}

class OpenAiDialect : public Dialect {
 public:
  const char* name() const override { return "openai"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/v1/completions", &parse_completion, kBody},
            {"POST", "/v1/chat/completions", &parse_chat_completion, kBody},
            {"POST", "/v1/completions/render", &parse_completion_render, kBody},
            {"POST", "/v1/chat/completions/render", &parse_chat_render, kBody},
            {"POST", "/tokenize", &parse_tokenize, kBody},
            {"POST", "/detokenize", &parse_detokenize, kBody},
            {"POST", "/v1/responses", &parse_response, kBody},
            {"POST", "/v1/embeddings", &parse_embeddings, kBody},
            {"POST", "/v1/rerank", &parse_rerank, kBody},
            {"POST", "/v2/rerank", &parse_rerank, kBody},
            {"POST", "/rerank", &parse_rerank, kBody},
            {"POST", "/v1/score", &parse_score, kBody},
            {"POST", "/score", &parse_score, kBody},
            {"GET", "/v1/models", &models_page},
            {"GET", "/v1/models/:id", &model_page},
            {"GET", "/v1/models/:owner/:id", &model_page},
            {"GET", "/server_info", &server_info_page},
            {"GET", "/get_server_info", &server_info_page},
            {"GET", "/model_info", &model_info_page},
            {"GET", "/get_model_info", &model_info_page},
            {"GET", "/get_load", &load_page}};
  }
};

}  // namespace

const Dialect& openai_dialect() {
  static const OpenAiDialect kDialect;
  return kDialect;
}

}  // namespace baton
