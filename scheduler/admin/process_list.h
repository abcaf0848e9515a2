// The processes of a run directory, as their supervisors' records tell of them.
#pragma once

#include <string>
#include <vector>

#include "ipc/process_record.h"
#include "scheduler/admin/restart_plan.h"

namespace baton {

struct ListedProcess {
  RunningProcess process;
  ProcessLife life;
  std::string state;
  std::string refused;  ///< why it cannot run; empty: it is up, or nothing is known against it
};

inline bool same_life(const ProcessLife& a, const ProcessLife& b) {
  return a.pid == b.pid && a.start == b.start;
}

/// A worker of several ranks is processes NAME.0, NAME.1, ...; every other process is its own rank
/// 0.
struct RankName {
  explicit RankName(const std::string& process);
  std::string worker;
  int rank = 0;
};

/// Each supervisor once, then the processes.
std::vector<ListedProcess> list_processes(const std::string& run_dir);

/// To standard output: one array, or a table and below it what cannot run.
void print_processes_json(const std::vector<ListedProcess>& all);
void print_processes(const std::vector<ListedProcess>& all);

}  // namespace baton
