#include "configs/config.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "configs/assignment.h"
#include "configs/dialects.h"
#include "configs/gpu_memory.h"
#include "configs/options.h"
#include "configs/several_models.h"
#include "ipc/joined.h"
#include "ipc/process.h"

namespace baton {
namespace {

// sun_path of a unix socket, without the final zero.
constexpr std::size_t kMaxSocketPathBytes = 107;

template <typename Section>
Status unknown(const std::vector<Option<Section>>& options, const Assignment& a) {
  if (const std::string now = successor(a.key); !now.empty()) {
    return error_at(a, "no such key any more; it is " + now);
  }
  const std::string home = home_of(a.key);
  if (!home.empty()) {
    return error_at(a, "belongs in " + home + ", not here");
  }
  std::vector<std::string> names;
  for (const Option<Section>& option : options) {
    names.emplace_back(option.name);
  }
  const std::string near = nearest(a.key, names);
  return error_at(a, near.empty() ? "no such key" : "no such key; did you mean " + near + "?");
}

template <typename Section>
Status assign(const std::vector<Option<Section>>& options, Section& section, const Assignment& a) {
  for (const Option<Section>& option : options) {
    if (a.key == option.name) {
      Status status = set_option(option, section, a.text, a.quoted, a.base);
      return status.ok() ? status : error_at(a, status.message());
    }
  }
  return unknown(options, a);
}

Status assign_worker(WorkerConfig& worker, const Assignment& a) {
  if (a.key == worker_name_option().name) {
    Status status = set_option(worker_name_option(), worker, a.text, a.quoted, a.base);
    return status.ok() ? status : error_at(a, status.message());
  }
  return assign(worker_options(), worker, a);
}

/// With a host and no blank; whether somebody answers there is found out later.
bool is_http_url(const std::string& text) {
  for (const std::string scheme : {"http://", "https://"}) {
    if (text.rfind(scheme, 0) != 0) continue;
    const std::string rest = text.substr(scheme.size());
    return !rest.empty() && rest.front() != '/' && rest.front() != ':' &&
           rest.find(' ') == std::string::npos;
  }
  return false;
}

/// Everything that was said, applied in order: defaults, file, command line; an entry of `workers`
/// starts from the section `worker`, whoever set that.
class Builder {
 public:
  /// `entry`: of `models`, whose content is built; empty: there is none.
  explicit Builder(Program who, std::string entry = {}) : who_(who) {
    config_.entry = std::move(entry);
  }

  Status build(const YamlContent& yaml, const CommandLine& line) {
    entries_ = yaml.entries;
    for (const auto* list : {&yaml.assignments, &line.assignments}) {
      for (const Assignment& a : *list) {
        Status status = simple(a);
        if (!status.ok()) {
          return status;
        }
      }
    }
    Status status = listeners(yaml, line);
    if (status.ok()) {
      status = workers(yaml);
    }
    if (status.ok() && who_ == Program::worker) {
      status = self(line);
    }
    if (status.ok()) {
      status = names();
    }
    if (status.ok()) {
      status = finish();
    }
    // Among all processes of a machine; nothing here looks for them after this.
    for (WorkerConfig& worker : config_.workers) worker.name = config_.named(worker.name);
    if (!config_.self.name.empty()) config_.self.name = config_.named(config_.self.name);
    return status;
  }

  Config take() { return std::move(config_); }

 private:
  Status simple(const Assignment& a) {
    said_[a.section + "." + a.key] = a.where + ": " + a.label;
    if (a.section.empty()) {
      return assign(top_options(), config_, a);
    }
    if (a.section == "scheduler") {
      return assign(scheduler_options(), config_.scheduler, a);
    }
    if (a.section == "frontend") {
      return assign(frontend_options(), config_.frontend, a);
    }
    if (a.section == "telemetry") {
      return assign(telemetry_options(), config_.telemetry, a);
    }
    return a.section == "worker" ? assign(worker_options(), config_.worker, a) : Status();
  }

  /// The list, from the command line if it names one, else from the file, else made of port and
  /// dialects. On the command line those two are about the list's first entry.
  Status listeners(const YamlContent& yaml, const CommandLine& line) {
    const bool on_line = !line.listen.empty();
    const std::vector<EntryMark>& marks = on_line ? line.listen : yaml.listen;
    FrontendConfig& f = config_.frontend;
    if (marks.empty()) {
      f.listen = {{.host = f.host, .port = f.port, .dialects = f.dialects}};
      return one_owner(f.listen.front(), place("frontend", "dialects"));
    }
    f.listen.assign(marks.size(), {.host = f.host, .port = 0, .dialects = ListenConfig().dialects});
    std::vector<ListenWords> words(marks.size());
    for (std::size_t i = 0; i < marks.size(); ++i) {
      words[i].entry = marks[i].where + ": frontend.listen[" + std::to_string(i) + "]";
    }
    Status status = listen_words(on_line ? line.assignments : yaml.assignments, on_line, words);
    for (const Assignment& a : line.assignments) {
      if (status.ok() && is_simple_listen(a)) status = listen_word(a, 0, words);
    }
    for (std::size_t i = 0; i < marks.size() && status.ok(); ++i) {
      status = check_listen(i, words);
    }
    f.port = f.listen.front().port;
    f.dialects = f.listen.front().dialects;
    return status;
  }

  /// Where the words on one entry of frontend.listen stand.
  struct ListenWords {
    std::string entry;
    std::string port;
    std::string dialects;
  };

  static bool is_simple_listen(const Assignment& a) {
    return a.section == "frontend" && (a.key == "port" || a.key == "dialects");
  }

  Status listen_words(const std::vector<Assignment>& all, bool on_line,
                      std::vector<ListenWords>& words) {
    for (const Assignment& a : all) {
      if (is_simple_listen(a) && !on_line) {
        return error_at(a, "stands beside frontend.listen, which says it for each port");
      }
      Status status = a.section == "listen"
                          ? listen_word(a, static_cast<std::size_t>(a.entry), words)
                          : Status();
      if (!status.ok()) {
        return status;
      }
    }
    return {};
  }

  Status listen_word(const Assignment& a, std::size_t entry, std::vector<ListenWords>& words) {
    if (a.key == "port") words[entry].port = a.where + ": " + a.label;
    if (a.key == "dialects") words[entry].dialects = a.where + ": " + a.label;
    return assign(listen_options(), config_.frontend.listen[entry], a);
  }

  Status check_listen(std::size_t entry, const std::vector<ListenWords>& words) const {
    const std::vector<ListenConfig>& all = config_.frontend.listen;
    const ListenConfig& one = all[entry];
    if (words[entry].port.empty()) {
      return invalid(words[entry].entry + ".port: is missing");
    }
    for (std::size_t j = 0; j < entry; ++j) {
      if (all[j].port == one.port && one.port != 0 && all[j].host == one.host) {
        return invalid(words[entry].port + ": " + std::to_string(one.port) + " is the port of " +
                       words[j].entry);
      }
    }
    const std::string& at = words[entry].dialects;
    return one_owner(one, at.empty() ? words[entry].entry + ".dialects" : at);
  }

  /// Each path of a port belongs to one dialect.
  static Status one_owner(const ListenConfig& listen, const std::string& at) {
    const auto clash = find_clash(listen.dialects);
    if (!clash) {
      return {};
    }
    const bool same = clash->first_path == clash->second_path;
    return invalid(at + ": " + clash->first + " and " + clash->second + " both own " +
                   clash->method + " " + clash->first_path +
                   (same ? "" : " (" + clash->second_path + ")") +
                   "; give one of them another port in frontend.listen");
  }

  Status workers(const YamlContent& yaml) {
    config_.workers.assign(entries_.size(), config_.worker);
    for (const Assignment& a : yaml.assignments) {
      if (a.section == "workers") {
        Status status = assign_worker(config_.workers[static_cast<std::size_t>(a.entry)], a);
        if (!status.ok()) {
          return status;
        }
      }
    }
    return {};
  }

  /// Alive files and logs are called by name, so that names are unique among all processes.
  Status names() {
    std::map<std::string, std::string> taken = {{"scheduler", "the scheduler"},
                                                {config_.frontend.name, "the front end"}};
    if (config_.frontend.name == "scheduler") {
      return invalid(place("frontend", "name") + ": 'scheduler' is the name of the scheduler");
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const std::string& name = config_.workers[i].name;
      const std::string label = ": workers[" + std::to_string(i) + "].name: ";
      if (name.empty()) {
        return invalid(entries_[i].where + label + "is missing");
      }
      const auto [other, fresh] = taken.emplace(name, "the worker at " + entries_[i].where);
      if (!fresh) {
        return invalid(entries_[i].where + label + "'" + name + "' is the name of " +
                       other->second);
      }
      if (Status status = ranks(config_.workers[i], entries_[i].where); !status.ok()) return status;
    }
    return {};
  }

  static Status ranks(const WorkerConfig& worker, const std::string& where) {
    const std::string label = where + ": worker " + worker.name + ": ";
    if (worker.device == "cuda" && !worker.fake) {
      if (const auto gpus = gpus_of(worker); !gpus.ok()) {
        return invalid(label + gpus.status().message());
      }
    }
    if (worker.ranks > 1 && worker.device == "cuda") {
      if (worker.host_pool_blocks > 0 || worker.host_pool_mib > 0) {
        return invalid(label + "host parts are not served by several GPUs yet");
      }
      if (worker.check_pulls) {
        return invalid(label + "check_pulls is not served by several GPUs yet");
      }
    }
    if (worker.activations == "int8" && worker.device == "cuda") {
      return invalid(label + "activations int8 needs device cpu");
    }
    if (worker.ranks > 1 && worker.fake) return invalid(label + "ranks above 1 needs fake: false");
    if (worker.rank >= worker.ranks) {
      return invalid(label + "rank " + std::to_string(worker.rank) + " of " +
                     std::to_string(worker.ranks) + " ranks, which count from 0");
    }
    return {};
  }

  Status self(const CommandLine& line) {
    WorkerConfig wanted;
    bool role = false;
    for (const Assignment& a : line.assignments) {
      if (a.section == "self" && a.key == "name") {
        Status status = assign_worker(wanted, a);
        if (!status.ok()) {
          return status;
        }
      }
      role = role || (a.section == "self" && a.key == "role");
    }
    const auto entry = std::find_if(config_.workers.begin(), config_.workers.end(),
                                    [&](const WorkerConfig& w) { return w.name == wanted.name; });
    if (wanted.name.empty() || (entry == config_.workers.end() && !role)) {
      return invalid("command line: --name: " +
                     (wanted.name.empty() ? std::string("is missing")
                                          : "there is no worker '" + wanted.name + "'") +
                     "; the file has " + worker_names() +
                     " (a worker beside them needs --name and --role)");
    }
    config_.self = entry != config_.workers.end() ? *entry : config_.worker;
    config_.self.name = wanted.name;
    for (const Assignment& a : line.assignments) {
      if (a.section == "self") {
        Status status = assign_worker(config_.self, a);
        if (!status.ok()) {
          return status;
        }
      }
    }
    return ranks(config_.self, "command line");
  }

  std::string worker_names() const {
    return config_.workers.empty() ? "none" : joined(config_.workers, &WorkerConfig::name);
  }

  /// Where a value came from: "FILE:LINE: KEY", or the key with a hint that it is the default.
  std::string place(const std::string& section, const std::string& key) const {
    const auto found = said_.find(section + "." + key);
    return found != said_.end() ? found->second
                                : "default: " + (section.empty() ? "" : section + ".") + key;
  }

  /// Defaults that depend on other values, and the bounds between two of them.
  Status finish() {
    if (config_.run_dir.empty()) {
      // Not XDG_RUNTIME_DIR: that is removed at the user's last logout, under a server in tmux.
      config_.run_dir = "/tmp/baton-" + std::to_string(::geteuid());
    }
    if (config_.scheduler.admin_socket.empty()) {
      config_.scheduler.admin_socket = config_.run_dir + "/" + config_.named("admin.sock");
    }
    if (config_.model_name.empty()) config_.model_name = config_.entry;
    if (config_.model_name.empty()) {
      const std::filesystem::path model = config_.model;
      const bool gguf = model.extension() == ".gguf" || model.extension() == ".GGUF";
      config_.model_name = (gguf ? model.stem() : model.filename()).string();
    }
    for (const auto& [path, from] :
         {std::pair(config_.frontends_socket(), place("", "run_dir")),
          std::pair(config_.scheduler.admin_socket, place("scheduler", "admin_socket"))}) {
      if (path.size() > kMaxSocketPathBytes) {
        return invalid(from + ": the socket " + path + " has " + std::to_string(path.size()) +
                       " bytes; a unix socket takes at most " +
                       std::to_string(kMaxSocketPathBytes));
      }
    }
    if (config_.frontend.timeout_s > config_.frontend.max_timeout_s) {
      return invalid(place("frontend", "timeout_s") + ": is larger than frontend.max_timeout_s");
    }
    const std::string& otlp = config_.telemetry.otlp_url;
    if (!otlp.empty() && !is_http_url(otlp)) {
      return invalid(place("telemetry", "otlp_url") + ": is '" + otlp.substr(0, 100) +
                     "'; it may be http://HOST[:PORT]/PATH or https://..., as "
                     "http://127.0.0.1:4318/v1/traces");
    }
    const bool needs_model =
        who_ == Program::frontend || (who_ == Program::worker && !config_.self.fake);
    if (needs_model && config_.model.empty()) {
      return invalid(config_.entry.empty()
                         ? "model: is missing; name the model's folder in the file or with --model"
                         : "models: '" + config_.entry + "' has no model: name its folder");
    }
    return {};
  }

  Program who_;
  Config config_;
  std::vector<EntryMark> entries_;
  std::map<std::string, std::string> said_;  // "section.key" -> place of the last word on it
};

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return invalid(path + ": no such file");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return invalid(path + ": cannot be read");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));  // one byte more than allowed shows
  return text;
}

/// The whole of a file with `models`, each of them as it is alone. Of those that are not the
/// process's own as little is wanted as of a tool's.
Result<Config> build_models(Program who, const YamlContent& content, const CommandLine& line) {
  if (const Status status = check_models(content, line); !status.ok()) return status;
  Builder whole(Program::tool);
  Status status = whole.build(content_beside(content), line);
  if (!status.ok()) return status;
  Config config = whole.take();
  status = check_entries(content, config.frontend.name);
  if (!status.ok()) return status;
  for (std::size_t i = 0; i < content.models.size(); ++i) {
    const std::string name = entry_name(content.models[i]);
    const bool own = who == Program::frontend || name == line.entry;
    Builder builder(own ? who : Program::tool, name);
    status = builder.build(content_of(content, i), line);
    if (!status.ok()) return status;
    config.models.push_back(builder.take());
  }
  status = gather(config);
  if (!status.ok()) return status;
  return pick(who, std::move(config), line.entry);
}

Result<Config> build(Program who, const std::string& yaml, const std::string& file,
                     const CommandLine& line) {
  Result<YamlContent> content = yaml.empty() ? YamlContent() : read_yaml(yaml, file);
  if (!content.ok()) {
    return content.status();
  }
  if (!content.value().models.empty()) {
    return build_models(who, content.value(), line);
  }
  if (!line.entry.empty()) {
    return invalid("command line: --for " + line.entry +
                   ": the configuration has no list of models");
  }
  Builder builder(who);
  Status status = builder.build(content.value(), line);
  if (!status.ok()) {
    return status;
  }
  return builder.take();
}

Result<Config> read_all(Program who, const CommandLine& line) {
  std::string yaml;
  if (!line.config_file.empty()) {
    Result<std::string> text = read_file(line.config_file);
    if (!text.ok()) {
      return text.status();
    }
    yaml = std::move(text).value();
  }
  return build(who, yaml, line.config_file, line);
}

}  // namespace

std::uint32_t largest_step(const SchedulerConfig& scheduler, Role role) {
  const TokenBudget& budget = scheduler.token_budget;
  const std::uint32_t tokens = scheduler.roles == Roles::automatic
                                   ? std::max({budget.prefill, budget.decode, budget.mixed})
                                   : budget.of(role);
  return std::max(tokens, scheduler.max_running);
}

Result<Config> parse_config(const std::string& yaml, const std::string& file) {
  return build(Program::tool, yaml, file, CommandLine());
}

Loaded load_config(Program who, int argc, const char* const* argv, std::ostream& out,
                   std::ostream& err) {
  Loaded loaded;
  Result<CommandLine> line = read_command_line(who, argc, argv);
  if (line.ok() && line.value().help) {
    out << help_text(who);
    return loaded;
  }
  if (line.ok() && line.value().version) {
    out << build_version() << "\n";
    return loaded;
  }
  Result<Config> config = line.ok() ? read_all(who, line.value()) : Result<Config>(line.status());
  if (!config.ok()) {
    err << config.status().message() << "\n";
    loaded.exit_code = 2;
    return loaded;
  }
  loaded.config = std::move(config).value();
  return loaded;
}

Loaded load_config(Program who, int argc, const char* const* argv) {
  return load_config(who, argc, argv, std::cout, std::cerr);
}

}  // namespace baton
