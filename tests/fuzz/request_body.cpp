// Bodies of chats and completions with all that may stand in them, grammars and tools too, up to
// what the loop would get.
#include <array>
#include <cstdlib>
#include <string>

#include "frontend/chat/chat_format.h"
#include "frontend/dialects/registry.h"
#include "frontend/openai/openai_api.h"
#include "frontend/openai/tokenize_api.h"
#include "tests/fuzz/fuzz.h"

namespace {

baton::ServedModel load() {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  const std::string folder = std::string(root == nullptr ? "." : root) + "/demo/model";
  auto tokenizer = baton::Tokenizer::load(folder);
  baton::fuzz::require(tokenizer.ok(), "demo/model can be read (BATON_SOURCE_DIR)");
  baton::ServedModel model;
  model.name = "demo";
  model.tokenizer = std::move(tokenizer).value();
  auto chat = baton::load_chat_format(folder);
  baton::fuzz::require(chat.ok(), "demo/model has a chat format");
  model.chat = std::move(chat).value();
  return model;
}

struct Route {
  const char* dialect;
  std::string_view path;
};
/// APIs whose bodies are translated.
constexpr std::array<Route, 5> kTranslated{{{"anthropic", "/v1/messages"},
                                            {"anthropic", "/v1/messages/count_tokens"},
                                            {"openai", "/v1/responses"},
                                            {"ollama", "/api/chat"},
                                            {"ollama", "/api/generate"}}};

baton::ParseOutcome parse_route(const Route& wanted, std::string_view body,
                                const baton::RequestContext& context,
                                const baton::ServedModel& model) {
  for (const baton::DialectRoute& route : baton::dialect_named(wanted.dialect)->routes()) {
    if (wanted.path == route.path)
      return std::get<baton::ParseBody>(route.answer)(body, context, model);
  }
  std::abort();
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const baton::ServedModel model = load();
  if (size == 0) return 0;
  baton::RequestContext context;
  context.request_id = "id";
  context.max_context = 256;
  context.max_choices = 16;
  context.default_timeout = context.max_timeout = baton::kSecond;
  context.strict_fields = (data[0] & 4U) != 0;
  const std::string_view body = baton::fuzz::text_of(data + 1, size - 1);
  const auto parse = [&]() -> baton::ParseOutcome {
    if ((data[0] & 64U) != 0) {
      const Route& route = kTranslated[data[0] % kTranslated.size()];
      return parse_route(route, body, context, model);
    }
    switch (data[0] % 4U) {
      case 0:
        return baton::parse_completion(body, context, model);
      case 1:
        return baton::parse_chat_completion(body, context, model);
      case 2:
        return baton::parse_tokenize(body, context, model);
      default:
        return baton::parse_detokenize(body, context, model);
    }
  };
  const baton::ParseOutcome outcome = parse();
  if (const auto* error = std::get_if<baton::HttpError>(&outcome)) {
    baton::fuzz::require(error->status >= 400 && error->status < 600, "an error has its status");
    baton::fuzz::require(error->body.size() < 100'000, "an error does not grow with the body");
  }
  if (const auto* request = std::get_if<baton::ParsedRequest>(&outcome)) {
    baton::fuzz::require(!request->prompts.empty() && request->choices > 0,
                         "a request asks for something");
    baton::fuzz::require(request->prompts.size() * request->choices <= context.max_choices,
                         "choices are bounded");
    for (const auto& prompt : request->prompts) {
      baton::fuzz::require(prompt.size() <= context.max_context, "prompts are bounded");
    }
  }
  return 0;
}
