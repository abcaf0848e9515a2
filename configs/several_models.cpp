#include "configs/several_models.h"

#include <algorithm>
#include <map>
#include <utility>

#include "configs/options.h"
#include "ipc/joined.h"

namespace baton {
namespace {

bool holds(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_name(const Assignment& a) { return a.section.empty() && a.key == "name"; }

/// A key that is none at all is left to the table of options, which has more to say of it.
Status check_entry_key(const Assignment& a) {
  if (a.section == "telemetry" || a.section == "listen") {
    return error_at(a, "belongs at the top level: one front end serves all models");
  }
  if (a.section == "frontend" && !holds(entry_frontend_keys(), a.key) && !home_of(a.key).empty()) {
    return error_at(a,
                    "belongs at the top level: one front end serves all models; an entry may say " +
                        joined(entry_frontend_keys()));
  }
  if (a.section.empty() && !is_name(a) && !holds(entry_top_keys(), a.key) &&
      home_of(a.key) == "the top level") {
    return error_at(a, "belongs at the top level: all processes share it");
  }
  return {};
}

/// Of keys that would mean the same socket, file or name for every model.
Status check_shared_key(const Assignment& a) {
  static const std::vector<std::string> kOwn = {"admin_socket", "event_log", "kv_events",
                                                "kv_events_replay"};
  const bool own = (a.section == "scheduler" && holds(kOwn, a.key)) ||
                   (a.section.empty() && a.key == "model_name");
  return own ? error_at(a, "belongs in an entry of models: each has its own") : Status();
}

Status check_name(const YamlContent& entry, const std::string& label) {
  for (const Assignment& a : entry.assignments) {
    if (!is_name(a)) continue;
    WorkerConfig like_a_worker;  // the same rule
    const Status status = set_option(worker_name_option(), like_a_worker, a.text, a.quoted, a.base);
    return status.ok() ? status : error_at(a, status.message());
  }
  return invalid(entry.mark.where + ": " + label + ".name: is missing");
}

}  // namespace

const std::vector<std::string>& entry_top_keys() {
  static const std::vector<std::string> kKeys = {"model", "model_name", "model_task",
                                                 "max_context"};
  return kKeys;
}

const std::vector<std::string>& entry_frontend_keys() {
  static const std::vector<std::string> kKeys = {"tokenizer",          "chat_template",
                                                 "default_max_tokens", "generation_config",
                                                 "tool_call_parser",   "reasoning_parser"};
  return kKeys;
}

std::string entry_name(const YamlContent& entry) {
  for (const Assignment& a : entry.assignments) {
    if (is_name(a)) return a.text;
  }
  return {};
}

Status check_models(const YamlContent& file, const CommandLine& line) {
  for (const auto* list : {&file.assignments, &line.assignments}) {
    for (const Assignment& a : *list) {
      if (const Status status = check_shared_key(a); !status.ok()) return status;
    }
  }
  for (const Assignment& a : line.assignments) {
    if (a.section.empty() && a.key == "model") {
      return error_at(a, "the configuration has a list of models, each with its own");
    }
  }
  std::map<std::string, std::string> taken;
  for (std::size_t i = 0; i < file.models.size(); ++i) {
    const YamlContent& entry = file.models[i];
    const std::string label = "models[" + std::to_string(i) + "]";
    if (const Status status = check_name(entry, label); !status.ok()) return status;
    const auto [other, fresh] = taken.emplace(entry_name(entry), entry.mark.where);
    if (!fresh) {
      return invalid(entry.mark.where + ": " + label + ".name: '" + other->first +
                     "' is the name of the model at " + other->second);
    }
    for (const Assignment& a : entry.assignments) {
      if (const Status status = check_entry_key(a); !status.ok()) return status;
    }
  }
  return {};
}

YamlContent content_beside(const YamlContent& file) {
  YamlContent content;
  content.listen = file.listen;
  for (const Assignment& a : file.assignments) {
    if (a.section != "workers") content.assignments.push_back(a);
  }
  return content;
}

YamlContent content_of(const YamlContent& file, std::size_t index) {
  const YamlContent& entry = file.models[index];
  const bool own_workers = entry.says_workers;
  YamlContent content = content_beside(file);
  content.entries = own_workers ? entry.entries : file.entries;
  if (!own_workers) {
    for (const Assignment& a : file.assignments) {
      if (a.section == "workers") content.assignments.push_back(a);
    }
  }
  for (const Assignment& a : entry.assignments) {
    if (!is_name(a)) content.assignments.push_back(a);
  }
  return content;
}

Status check_entries(const YamlContent& file, const std::string& front_end) {
  for (std::size_t i = 0; i < file.models.size(); ++i) {
    const YamlContent& entry = file.models[i];
    const std::string label = entry.mark.where + ": models[" + std::to_string(i) + "]";
    if (entry_name(entry) == front_end) {
      return invalid(label + ".name: '" + front_end + "' is the name of the front end");
    }
    const YamlContent content = content_of(file, i);
    const bool has_model = std::any_of(
        content.assignments.begin(), content.assignments.end(), [](const Assignment& a) {
          return a.section.empty() && a.key == "model" && !a.text.empty();
        });
    if (!has_model) return invalid(label + ".model: is missing; name the model's folder");
  }
  return {};
}

Status gather(Config& config) {
  std::map<std::string, std::string> taken;  // what, and whose it is
  config.workers.clear();
  for (const Config& model : config.models) {
    const SchedulerConfig& s = model.scheduler;
    for (const auto& [key, value] :
         {std::pair<std::string, std::string>("model_name", model.model_name),
          {"scheduler.admin_socket", s.admin_socket},
          {"scheduler.event_log", s.event_log},
          {"scheduler.kv_events", s.kv_events},
          {"scheduler.kv_events_replay", s.kv_events_replay}}) {
      if (value.empty()) continue;
      const auto [other, fresh] = taken.emplace(key + " " + value, model.entry);
      if (!fresh) {
        return invalid("models: '" + other->second + "' and '" + model.entry + "' both have " +
                       key + " " + value);
      }
    }
    for (const WorkerConfig& worker : model.workers) {
      const std::string name = worker.name.substr(model.named("").size());
      if (name.size() == 1 && name[0] >= '0' && name[0] <= '9') {
        return invalid("models: '" + model.entry + "' has a worker '" + name +
                       "': with one digit it would be called like a rank");
      }
    }
    config.workers.insert(config.workers.end(), model.workers.begin(), model.workers.end());
  }
  if (config.workers.size() > kMaxWorkers) {
    return invalid("models: have " + std::to_string(config.workers.size()) +
                   " workers together; at most " + std::to_string(kMaxWorkers));
  }
  for (Config& model : config.models) model.all_workers = config.workers;
  return {};
}

Result<Config> pick(Program who, Config config, const std::string& entry) {
  std::vector<std::string> names;
  for (Config& model : config.models) {
    if (!entry.empty() && model.entry == entry) return std::move(model);
    names.push_back(model.entry);
  }
  if (!entry.empty()) {
    return invalid("command line: --for: there is no model '" + entry + "'; the file has " +
                   joined(names));
  }
  if (who == Program::scheduler || who == Program::worker) {
    return invalid("command line: --for: is missing; the file has the models " + joined(names));
  }
  return config;
}

}  // namespace baton
