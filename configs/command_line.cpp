#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "configs/assignment.h"
#include "configs/options.h"
#include "ipc/option_spelling.h"

namespace baton {
namespace {

/// Adds one string option a table row; what was given ends up in `into`, in table order.
class Declarer {
 public:
  Declarer(CLI::App& app, std::vector<Assignment>& into, std::vector<std::string>& names)
      : app_(app), into_(into), names_(names) {
    std::error_code error;
    base_ = std::filesystem::current_path(error).string();
  }

  template <typename Section>
  void add(const Option<Section>& option, const std::string& section, const std::string& prefix) {
    const std::string flag = "--" + prefix + option.name;
    names_.push_back(flag);
    const std::string key = option.name;
    const bool is_switch = std::holds_alternative<bool Section::*>(option.member);
    CLI::Option* added = app_.add_option_function<std::string>(
        flag, [this, section, key, flag, is_switch](const std::string& text) {
          into_.push_back({.section = section,
                           .entry = -1,
                           .key = key,
                           .text = is_switch && text.empty() ? "true" : text,
                           .quoted = false,
                           .where = "command line",
                           .label = flag,
                           .base = base_});
        });
    if (is_switch) {
      added->expected(0, 1);  // --fake alone means true
    }
  }

  template <typename Section>
  void add_all(const std::vector<Option<Section>>& options, const std::string& section,
               const std::string& prefix) {
    for (const Option<Section>& option : options) {
      add(option, section, prefix);
    }
  }

 private:
  CLI::App& app_;
  std::vector<Assignment>& into_;
  std::vector<std::string>& names_;
  std::string base_;
};

void declare(Declarer& declarer, Program who) {
  declarer.add_all(top_options(), "", "");
  declarer.add_all(scheduler_options(), "scheduler", "scheduler.");
  declarer.add_all(frontend_options(), "frontend", "frontend.");
  declarer.add_all(telemetry_options(), "telemetry", "telemetry.");
  declarer.add_all(worker_options(), "worker", "worker.");
  if (who == Program::scheduler) {
    declarer.add_all(scheduler_options(), "scheduler", "");
  } else if (who == Program::frontend) {
    declarer.add_all(frontend_options(), "frontend", "");
  } else if (who == Program::worker) {
    declarer.add(worker_name_option(), "self", "");
    declarer.add_all(worker_options(), "self", "");
  }
}

/// "[HOST:]PORT[=DIALECT,DIALECT]" as the entry of frontend.listen that it stands for.
void add_listen(const std::string& text, CommandLine& line) {
  const int entry = static_cast<int>(line.listen.size());
  line.listen.push_back({"command line"});
  const auto add = [&](const char* key, const std::string& value) {
    line.assignments.push_back({.section = "listen",
                                .entry = entry,
                                .key = key,
                                .text = value,
                                .quoted = false,
                                .where = "command line",
                                .label = "--listen " + text.substr(0, 100),
                                .base = {}});
  };
  const std::size_t equals = std::min(text.find('='), text.size());
  std::string address = text.substr(0, equals);
  const std::size_t colon = address.rfind(':');
  if (colon != std::string::npos) add("host", address.substr(0, colon));
  add("port", colon == std::string::npos ? address : address.substr(colon + 1));
  if (equals < text.size()) add("dialects", text.substr(equals + 1));
}

Status unexpected(const std::string& argument, const std::vector<std::string>& names) {
  const std::string flag = argument.substr(0, argument.find('='));
  if (flag.compare(0, 2, "--") != 0) {
    return invalid("command line: '" + argument + "' is not an option");
  }
  const std::string prefix =
      flag.substr(0, flag.rfind('.') == std::string::npos ? 2 : flag.rfind('.') + 1);
  if (std::string now = successor(flag.substr(prefix.size())); !now.empty()) {
    now.erase(now.find(':'), 1);
    return invalid("command line: " + flag + ": no such option any more; it is " + prefix + now);
  }
  const std::string near = nearest(flag, names);
  return invalid("command line: " + flag + ": no such option" +
                 (near.empty() ? "; see --help" : "; did you mean " + near + "?"));
}

}  // namespace

std::string own_section(Program who) {
  switch (who) {
    case Program::scheduler:
      return "scheduler";
    case Program::frontend:
      return "frontend";
    case Program::worker:
      return "worker";
    case Program::tool:
      return "";
  }
  return "";
}

Result<CommandLine> read_command_line(Program who, int argc, const char* const* argv) {
  CommandLine result;
  CLI::App app;
  app.set_help_flag();  // --help is written from the table, see config.cpp
  app.allow_extras();
  app.add_flag("-h,--help", result.help);
  app.add_flag("--version", result.version);
  app.add_option("--config", result.config_file);
  app.add_option("--for", result.entry);
  std::vector<std::string> names = {"--help", "--version", "--config", "--for"};
  Declarer declarer(app, result.assignments, names);
  declare(declarer, who);
  std::vector<std::string> listen;
  const std::string listen_flag =
      who == Program::frontend ? "--listen,--frontend.listen" : "--frontend.listen";
  app.add_option(listen_flag, listen)->allow_extra_args(false);
  names.emplace_back("--frontend.listen");
  const SpelledArguments spelled(argc, argv, '-', '_');  // as keys of YAML are spelled
  try {
    app.parse(spelled.argc(), spelled.argv());
  } catch (const CLI::Error& error) {
    return invalid(std::string("command line: ") + error.what());
  }
  for (const std::string& text : listen) {
    add_listen(text, result);
  }
  if (!result.help && !result.version && !app.remaining().empty()) {
    return unexpected(app.remaining().front(), names);
  }
  return result;
}

}  // namespace baton
