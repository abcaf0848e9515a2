#include <sstream>

#include "configs/assignment.h"
#include "configs/config.h"
#include "configs/dialects.h"
#include "configs/options.h"
#include "configs/several_models.h"
#include "ipc/joined.h"

namespace baton {
namespace {

template <typename Section>
void line(std::ostream& out, const Option<Section>& option, const std::string& prefix,
          bool required = false) {
  std::string value =
      option.default_note != nullptr ? option.default_note : value_text(option, Section());
  const std::string bounds = bounds_text(option);
  out << "  --" << prefix << option.name << "\n      " << option.meaning << " (";
  out << (required ? "required" : value.empty() ? "no default" : "default " + value);
  out << (bounds.empty() ? "" : "; " + bounds) << ")\n";
}

template <typename Section>
void table(std::ostream& out, const std::vector<Option<Section>>& options,
           const std::string& prefix) {
  for (const Option<Section>& option : options) {
    line(out, option, prefix);
  }
}

/// The list of ports; on the command line an entry is one word.
void listen(std::ostream& out, const std::string& prefix) {
  out << "  --" << prefix << "listen [HOST:]PORT=DIALECT,DIALECT\n"
      << "      once for each port, instead of port and dialects; in the file a list, each entry "
         "with:\n";
  for (const Option<ListenConfig>& option : listen_options()) {
    const std::string value =
        option.default_note != nullptr ? option.default_note : value_text(option, ListenConfig());
    const bool required = std::string_view(option.name) == "port";
    out << "      " << option.name << ": " << option.meaning << " ("
        << (required ? "required" : "default " + value);
    const std::string bounds = bounds_text(option);
    out << (bounds.empty() ? "" : "; " + bounds) << ")\n";
  }
}

void own_options(std::ostream& out, Program who) {
  if (who == Program::tool) {
    return;
  }
  out << "\nOptions of this process (its section of the file: " << own_section(who) << "):\n";
  if (who == Program::scheduler) {
    table(out, scheduler_options(), "");
  } else if (who == Program::frontend) {
    table(out, frontend_options(), "");
    listen(out, "");
  } else {
    line(out, worker_name_option(), "", true);
    table(out, worker_options(), "");
  }
}

const char* summary(Program who) {
  switch (who) {
    case Program::scheduler:
      return "baton-scheduler: owns every request and every KV block; plans every step.\n"
             "Usage: baton-scheduler --config FILE [options]\n";
    case Program::frontend:
      return "baton-frontend: serves HTTP; turns text into tokens and back.\n"
             "Usage: baton-frontend --config FILE [--name NAME] [options]\n";
    case Program::worker:
      return "baton-worker: owns one KV pool and runs the model on it.\n"
             "Usage: baton-worker --config FILE --name NAME [options]\n";
    case Program::tool:
      return "Options of every Baton program:\n";
  }
  return "";
}

}  // namespace

std::string help_text(Program who) {
  std::ostringstream out;
  out << summary(who)
      << "\n  --config FILE\n      YAML file with the keys below; the command line wins over it\n"
         "  --for NAME\n      of a scheduler and of workers: the entry of `models` that they "
         "belong to\n"
         "  --version\n      version and commit of this build\n"
         "  --help\n      this text\n";
  own_options(out, who);
  out << "\nOptions of all processes (top level of the file):\n";
  table(out, top_options(), "");
  out << "\nSection scheduler:\n";
  table(out, scheduler_options(), "scheduler.");
  out << "\nSection frontend:\n";
  table(out, frontend_options(), "frontend.");
  listen(out, "frontend.");
  out << "\nDialects:\n";
  for (const DialectFacts& facts : dialect_facts()) {
    out << "  " << facts.name << "\n      " << facts.summary << ":";
    for (const DialectPath& path : facts.paths) out << " " << path.path;
    out << "\n";
  }
  out << "\nSection telemetry:\n";
  table(out, telemetry_options(), "telemetry.");
  out << "\nSection worker (defaults; each entry of the list `workers` has a name and may set any "
         "of these):\n";
  table(out, worker_options(), "worker.");
  out << "\nList models (several models in one Baton), each entry with:\n"
         "      name: of its processes, NAME.scheduler and NAME.WORKER (required; 1 to 32 "
         "characters "
         "out of a-z 0-9 _ -)\n"
         "      "
      << joined(entry_top_keys())
      << ", sections scheduler and worker, workers, and of section frontend "
      << joined(entry_frontend_keys())
      << "\n      as at the top level, which says what an entry leaves out\n";
  return out.str();
}

}  // namespace baton
