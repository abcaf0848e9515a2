#include "frontend/openai/openai_dialect.h"

#include "frontend/http_error.h"
#include "frontend/openai/openai_api.h"
#include "frontend/openai/tokenize_api.h"

namespace baton {
namespace {

using Page = std::variant<Answer, HttpError>;

ParseOutcome no_responses(std::string_view, const RequestContext&, const ServedModel&) {
  return http_error(501,
                    "/v1/responses is not served: this server keeps no conversations; use "
                    "/v1/chat/completions, which takes the same messages and tools",
                    "not_served");
}

ParseOutcome no_embeddings(std::string_view, const RequestContext&, const ServedModel&) {
  return http_error(501,
                    "/v1/embeddings is not served: this server's model generates text and has no "
                    "embeddings",
                    "not_served");
}

Page models_page(const PageFacts& facts, const ServedModel& model) {
  return Answer{models_body(model, facts.created, facts.max_context)};
}

Page model_page(const PageFacts& facts, const ServedModel& model) {
  const std::string_view id = std::string_view(facts.path).substr(facts.path.rfind('/') + 1);
  auto outcome = model_body(id, model, facts.created, facts.max_context);
  if (auto* error = std::get_if<HttpError>(&outcome)) return std::move(*error);
  return Answer{std::move(std::get<std::string>(outcome))};
}

class OpenAiDialect : public Dialect {
 public:
  const char* name() const override { return "openai"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/v1/completions", &parse_completion},
            {"POST", "/v1/chat/completions", &parse_chat_completion},
            {"POST", "/tokenize", &parse_tokenize},
            {"POST", "/detokenize", &parse_detokenize},
            {"POST", "/v1/responses", &no_responses},
            {"POST", "/v1/embeddings", &no_embeddings},
            {"GET", "/v1/models", &models_page},
            {"GET", "/v1/models/:id", &model_page}};
  }
};

}  // namespace

const Dialect& openai_dialect() {
  static const OpenAiDialect kDialect;
  return kDialect;
}

}  // namespace baton
