// A model with a chat template and the real renderer, for tests of what models get to read.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "api_fixture.h"
#include "frontend/chat/chat_template.h"
#include "frontend/chat/template_process.h"
#include "frontend/openai/openai_api.h"

namespace baton::testing {

inline constexpr const char* kTemplatedConfig =
    R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})";

/// A model with one template and its renderer.
class Templated {
 public:
  /// `tokenizer`: a folder of tests/golden/tokenizers instead of the tiny model's.
  explicit Templated(const std::string& text, const std::string& tokenizer = {}) {
    const ModelFolder folder;
    folder.write("chat_template.jinja", text);
    folder.write("tokenizer_config.json", kTemplatedConfig);
    model_.name = "tiny";
    model_.tokenizer = load_tokenizer(folder);
    if (!tokenizer.empty()) {
      auto loaded = Tokenizer::load("tests/golden/tokenizers/" + tokenizer);
      if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
      model_.tokenizer = std::move(loaded).value();
    }
    auto made = ChatTemplate::load(folder.path(), *model_.tokenizer);
    if (!made.ok()) throw std::runtime_error(made.status().message());
    model_.chat_template = std::move(made).value();
    TemplateSetup setup;
    setup.templates = model_.chat_template->templates();
    setup.start_time = 60 * kSecond;
    setup.render_time = 5 * kSecond;
    auto process = TemplateProcess::start(setup);
    if (!process.ok()) throw std::runtime_error(process.status().message());
    process_ = std::move(process).value();
  }

  const ServedModel& model() const { return model_; }
  const Tokenizer& tokenizer() const { return *model_.tokenizer; }
  ParseOutcome parse(const std::string& body) const {
    RequestContext context = small_context();
    context.max_context = 100'000;
    return parse_chat_completion(body, context, model_);
  }
  /// `retry`: what the template refuses is rewritten.
  Result<std::string> render(const std::string& body, bool retry = true) {
    ParseOutcome outcome = parse(body);
    if (auto* error = std::get_if<HttpError>(&outcome)) {
      throw std::runtime_error("refused: " + error->body);
    }
    std::string request = std::get<std::unique_ptr<PendingChat>>(outcome)->render_request();
    const std::string on = R"("retry":true})";
    if (!retry) request.replace(request.size() - on.size(), on.size(), R"("retry":false})");
    return process_->render(request);
  }
  ParseOutcome finish(const std::string& body) {
    ParseOutcome outcome = parse(body);
    auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome);
    if (chat == nullptr) return outcome;
    return (*chat)->finish(process_->render((*chat)->render_request()), model_);
  }

 private:
  ServedModel model_;
  std::unique_ptr<TemplateProcess> process_;
};

}  // namespace baton::testing
