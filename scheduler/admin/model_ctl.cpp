#include "scheduler/admin/model_ctl.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ipc/joined.h"

namespace baton {
namespace {

std::string names_of(const std::vector<ModelSocket>& models) {
  return joined(models, &ModelSocket::model);
}

}  // namespace

Result<std::vector<ModelSocket>> choose_models(const std::vector<ModelSocket>& all,
                                               const std::string& model) {
  if (model.empty()) return all;
  for (const ModelSocket& one : all) {
    if (one.model == model) return std::vector<ModelSocket>{one};
  }
  if (all.size() == 1 && all.front().model.empty()) {
    return invalid("--model " + model + ": one model runs here, without a name: leave it out");
  }
  return invalid("--model " + model + ": there is no such model; there are " + names_of(all));
}

Result<std::vector<ModelSocket>> asked_models(const std::vector<std::string>& words,
                                              const std::vector<ModelSocket>& models) {
  if (models.size() == 1 || words.empty()) return models;
  if (words[0] == "help") return std::vector<ModelSocket>{models.front()};  // all say the same
  if (words[0] == "show" || words[0] == "audit") return models;
  for (const ModelSocket& one : models) {
    for (const std::string& word : words) {
      if (word.starts_with(one.model + ".")) return std::vector<ModelSocket>{one};
    }
  }
  return invalid("several models run here: name one with --model (" + names_of(models) + ")");
}

std::string with_full_name(const std::vector<std::string>& words, const std::string& model) {
  const bool of_worker =
      words.size() > 2 && (words[0] == "set" || words[0] == "wait") && words[1] == "worker";
  std::string line;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool shortened =
        of_worker && i == 2 && !model.empty() && !words[i].starts_with(model + ".");
    line += (line.empty() ? "" : " ") + (shortened ? model + "." : "") + words[i];
  }
  return line;
}

int ask_models(const std::vector<ModelSocket>& models, bool json,
               const std::function<std::optional<std::string>(const ModelSocket&)>& ask,
               std::string& text) {
  int worst = 0;
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const ModelSocket& one : models) {
    const auto answer = ask(one);
    const bool wrong = !answer || answer->rfind("error:", 0) == 0;
    if (wrong) worst = 1;
    const std::string said = answer.value_or("error: its scheduler does not answer\n");
    if (json) {
      auto value = nlohmann::ordered_json::parse(said, nullptr, /*allow_exceptions=*/false);
      object[one.model] = value.is_discarded() ? nlohmann::ordered_json{{"error", said}} : value;
    } else {
      text += "[" + one.model + "]\n" + said;
    }
  }
  if (json) text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return worst;
}

}  // namespace baton
