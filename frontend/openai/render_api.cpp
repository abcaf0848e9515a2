#include "frontend/openai/render_api.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/http/sse.h"
#include "frontend/openai/openai_api.h"

namespace baton {
namespace {

struct RenderFrame {
  std::string request_id;
  bool list = false;  // of an object for each prompt
};

std::string rendered_object(const std::vector<Token>& prompt, const RenderFrame& frame,
                            const ServedModel& model) {
  std::string out = "{\"request_id\":" + json_string(frame.request_id) +
                    ",\"model\":" + json_string(model.name) + ",\"token_ids\":[";
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (i != 0) out += ',';
    out += std::to_string(prompt[i]);
  }
  return out + "],\"features\":null}";
}

/// The tokens in place of the request; what is wrong with it stays as it is.
ParseOutcome as_tokens(ParseOutcome outcome, const RenderFrame& frame, const ServedModel& model) {
  auto* parsed = std::get_if<ParsedRequest>(&outcome);
  if (parsed == nullptr) {
    // An error of a request that asked for a stream: this reply is none.
    if (auto* error = std::get_if<HttpError>(&outcome)) error->stream = false;
    return outcome;
  }
  std::string body;
  for (const auto& prompt : parsed->prompts) {
    if (!body.empty()) body += ',';
    body += rendered_object(prompt, frame, model);
  }
  return Answer{.body = frame.list ? "[" + body + "]" : std::move(body),
                .headers = std::move(parsed->headers)};
}

class PendingRender : public PendingChat {
 public:
  PendingRender(std::unique_ptr<PendingChat> chat, RenderFrame frame)
      : chat_(std::move(chat)), frame_(std::move(frame)) {}

  const std::string& render_request() const override { return chat_->render_request(); }

  ParseOutcome finish(const Result<std::string>& rendered, const ServedModel& model) override {
    return as_tokens(chat_->finish(rendered, model), frame_, model);
  }

 private:
  std::unique_ptr<PendingChat> chat_;
  RenderFrame frame_;
};

}  // namespace

ParseOutcome parse_completion_render(std::string_view body, const RequestContext& context,
                                     const ServedModel& model) {
  return as_tokens(parse_completion(body, context, model), {context.request_id, true}, model);
}

ParseOutcome parse_chat_render(std::string_view body, const RequestContext& context,
                               const ServedModel& model) {
  RenderFrame frame{context.request_id, false};
  ParseOutcome outcome = parse_chat_completion(body, context, model);
  if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
    return std::make_unique<PendingRender>(std::move(*chat), std::move(frame));
  }
  return as_tokens(std::move(outcome), frame, model);
}

}  // namespace baton
