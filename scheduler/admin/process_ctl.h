// What baton-ctl knows of the processes of a run directory by their records (ipc/process_record.h),
// whether or not a scheduler runs: it shows them, and has them replaced by their supervisors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ipc/types.h"
#include "scheduler/admin/model_ctl.h"

namespace baton {

struct ProcessCommands {
  std::string run_dir;
  std::vector<ModelSocket> schedulers;  ///< asked whether workers are ready; one or more
  std::string model;                    ///< restart: only this one's processes; empty: all
  bool rolling = false;           ///< restart: one after the other
  TimeNs within = 600 * kSecond;  ///< what each process has to be up again
};

/// The schedulers of a run directory by their records, in the order of their names: of one model,
/// or of several. Empty: there is no record of any.
std::vector<ModelSocket> recorded_schedulers(const std::string& run_dir);

/// Those that a restart asks: where the records name models, the records' own, since a socket that
/// the caller knows (--socket) may be that of a configuration without `models`.
std::vector<ModelSocket> restart_schedulers(const ProcessCommands& options);

/// Whether a process, or a worker, of that name belongs to a model; "" has all.
bool belongs_to_model(const std::string& process, const std::string& model);

/// Carries out "show processes [json]" and "restart NAME|all" and says what it does. Returns the
/// exit code; nothing: these words are no business of it.
std::optional<int> process_command(const std::vector<std::string>& words,
                                   const ProcessCommands& options);

}  // namespace baton
