#include "frontend/load_models.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "frontend/chat/chat_template.h"
#include "ipc/process.h"
#include "text/model_task.h"

namespace baton {
namespace {

/// "baton-0.1.0-1a2b3c4d5e6f": version and commit.
std::string fingerprint() {
  std::string text = "baton-" + std::string(build_version());
  std::erase_if(text, [](char c) { return c == '(' || c == ')'; });
  std::replace(text.begin(), text.end(), ' ', '-');
  return text;
}

/// What the model is served for, and what that needs to be known.
Status load_task(const Config& config, ServedModel& model) {
  const auto task = find_task(config.model, config.model_task);
  if (!task.ok()) return task.status();
  model.task = task.value();
  if (model.task == ModelTask::embed) {
    const auto size = vector_size(config.model);
    if (!size.ok()) return size.status();
    model.vector_size = size.value();
  }
  if (model.task != ModelTask::rerank) return {};
  for (const auto& [text, token] :
       {std::pair("no", &model.no_token), std::pair("yes", &model.yes_token)}) {
    const std::vector<Token> ids = model.tokenizer->encode_plain(text, true);
    if (ids.size() != 1) {
      return invalid(config.model + ": '" + text + "' is " + std::to_string(ids.size()) +
                     " tokens; a reranker answers with one (model_task: rerank)");
    }
    *token = ids.front();
  }
  return {};
}

}  // namespace

Result<ServedModel> load_model(const Config& config) {
  auto tokenizer = Tokenizer::load(config.model, config.frontend.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  ServedModel model;
  model.name = config.model_name;
  model.entry = config.entry;
  model.folder = config.model;
  model.fingerprint = fingerprint();
  model.tokenizer = std::move(tokenizer).value();
  model.identity = model_identity(config.entry, config.model, model.tokenizer->vocab_size());
  const std::string& own_template = config.frontend.chat_template;
  if (own_template.empty()) {
    auto chat = load_chat_format(config.model);
    if (!chat.ok()) return chat.status();
    model.chat = std::move(chat).value();
  }
  if (model.chat == nullptr) {
    auto made =
        ChatTemplate::load(config.model, *model.tokenizer, own_template,
                           {config.frontend.tool_call_parser, config.frontend.reasoning_parser});
    if (!made.ok()) return made.status();
    model.chat_template = std::move(made).value();
  }
  model.default_max_tokens = config.frontend.default_max_tokens;
  if (config.frontend.generation_config == "auto") {
    const auto sampling = read_sampling_defaults(config.model);
    if (!sampling.ok()) return sampling.status();
    model.sampling = sampling.value();
  }
  if (const Status task = load_task(config, model); !task.ok()) return task;
  return model;
}

Result<ServedModels> load_models(const Config& config, const std::function<void()>& alive) {
  ServedModels models;
  Status first_fault;
  std::size_t loaded = 0;
  for (const Config* one : config.served()) {
    auto model = load_model(*one);
    alive();
    if (model.ok()) {
      ++loaded;
      models.push_back(std::move(model).value());
      continue;
    }
    if (first_fault.ok()) first_fault = model.status();
    ServedModel& faulty = models.emplace_back();
    faulty.name = one->model_name;
    faulty.entry = one->entry;
    faulty.fault = load_fault(model.status().message());
  }
  if (loaded == 0) return first_fault;
  return models;
}

}  // namespace baton
