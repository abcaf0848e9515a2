#include "text/model_task.h"

#include <nlohmann/json.hpp>

#include "ipc/types.h"
#include "text/gguf/gguf_folder.h"

namespace baton {
namespace {

using TaskJson = nlohmann::json;

constexpr std::size_t kMaxTaskFileBytes = 4U << 20U;

/// Null where there is no such file.
Result<TaskJson> read_task_file(const std::string& path) {
  const auto text = read_model_json(path, kMaxTaskFileBytes);
  if (!text.ok()) return text.status();
  if (!text.value()) return TaskJson();
  TaskJson value = TaskJson::parse(*text.value(), nullptr, false);
  if (value.is_discarded()) return invalid(path + ": is not JSON");
  return value;
}

/// The member as text, or nothing.
std::string text_of(const TaskJson& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string()) return {};
  return object[key].get<std::string>();
}

/// How a Pooling module pools: of "pooling_mode": "lasttoken", and of older files'
/// "pooling_mode_lasttoken": true.
Status check_pooling(const std::string& path) {
  const auto file = read_task_file(path);
  if (!file.ok()) return file.status();
  if (!file.value().is_object()) return invalid(path + ": is missing, or not a JSON object");
  const std::string prefix = "pooling_mode_";
  std::string mode = text_of(file.value(), "pooling_mode");
  for (const auto& [key, value] : file.value().items()) {
    if (key.compare(0, prefix.size(), prefix) != 0 || !value.is_boolean() || !value.get<bool>())
      continue;
    mode += (mode.empty() ? "" : " and ") + key.substr(prefix.size());
  }
  if (mode == "lasttoken") return {};
  return invalid(path + ": pools by '" + mode.substr(0, 100) +
                 "'; only lasttoken is served (model_task: generate serves the model's text)");
}

}  // namespace

Result<ModelTask> find_task(const std::string& folder, const std::string& asked) {
  if (asked == "generate") return ModelTask::generate;
  if (asked == "rerank") return ModelTask::rerank;
  const std::string path = folder + "/modules.json";
  const auto modules = read_task_file(path);
  if (!modules.ok()) return modules.status();
  if (modules.value().is_null()) return asked == "embed" ? ModelTask::embed : ModelTask::generate;
  if (!modules.value().is_array()) return invalid(path + ": is not an array");
  for (const TaskJson& part : modules.value()) {
    const std::string type = text_of(part, "type");
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Pooling") {
      const Status status = check_pooling(folder + "/" + text_of(part, "path") + "/config.json");
      if (!status.ok()) return status;
    } else if (name != "Transformer" && name != "Normalize") {
      return invalid(path + ": has a part of type '" + type.substr(0, 100) +
                     "', which is not computed; Transformer, Pooling and Normalize are");
    }
  }
  return ModelTask::embed;
}

Result<std::uint32_t> vector_size(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const auto file = read_task_file(path);
  if (!file.ok()) return file.status();
  const TaskJson& config = file.value();
  const bool outer = config.is_object() && config.contains("text_config");
  const TaskJson& of = outer ? config["text_config"] : config;
  if (!of.is_object() || !of.contains("hidden_size") || !of["hidden_size"].is_number_integer())
    return invalid(path + ": hidden_size is missing");
  const auto size = of["hidden_size"].get<std::int64_t>();
  if (size < 1 || size > static_cast<std::int64_t>(SamplingParams::kMaxPooled)) {
    return invalid(path + ": hidden_size is " + std::to_string(size) + "; a vector has 1 to " +
                   std::to_string(SamplingParams::kMaxPooled) + " values");
  }
  return static_cast<std::uint32_t>(size);
}

}  // namespace baton
