#include "frontend/openai/openai_dialect.h"

#include <algorithm>
#include <string>
#include <string_view>

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

Page models_page(const PageFacts& facts, const ServedModel& model) {
  return Answer{models_body(model, facts.created, facts.max_context)};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/// %2F and its like as the letters they stand for; what is no such sequence stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : hex_digit(text[i + 2]);
    if (low < 0) {
      out += text[i];
    } else {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

/// A name may hold a slash, which clients send as it is or as %2F.
Page model_page(const PageFacts& facts, const ServedModel& model) {
  std::string_view id = facts.path;
  id.remove_prefix(std::min(kModels.size(), id.size()));
  if (id.ends_with('/')) id.remove_suffix(1);
  auto outcome = model_body(percent_decoded(id), model, facts.created, facts.max_context);
  if (auto* error = std::get_if<HttpError>(&outcome)) return std::move(*error);
  return Answer{std::move(std::get<std::string>(outcome))};
}

class OpenAiDialect : public Dialect {
 public:
  const char* name() const override { return "openai"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/v1/completions", &parse_completion},
            {"POST", "/v1/chat/completions", &parse_chat_completion},
            {"POST", "/v1/completions/render", &parse_completion_render},
            {"POST", "/v1/chat/completions/render", &parse_chat_render},
            {"POST", "/tokenize", &parse_tokenize},
            {"POST", "/detokenize", &parse_detokenize},
            {"POST", "/v1/responses", &parse_response},
            {"POST", "/v1/embeddings", &parse_embeddings},
            {"POST", "/v1/rerank", &parse_rerank},
            {"POST", "/v2/rerank", &parse_rerank},
            {"POST", "/rerank", &parse_rerank},
            {"POST", "/v1/score", &parse_score},
            {"POST", "/score", &parse_score},
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
