// In which order processes are replaced, and whether one after the other can be. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace baton {

struct RunningProcess {
  std::string name;
  std::string kind;            ///< as in ProcessRecord, and supervisor
  std::uint32_t protocol = 0;  ///< 0: it does not say
};

/// Supervisors first: what they start from then on is started by the new program. Workers lease
/// their pools from the memory process that lives when they start, so it goes before them. Front
/// ends last: what they serve from then on is all new.
inline int restart_rank(const std::string& kind) {
  constexpr const char* kOrder[] = {"supervisor", "memory", "scheduler",
                                    "worker",     "rank",   "process"};
  int rank = 0;
  for (const char* each : kOrder) {
    if (kind == each) return rank;
    ++rank;
  }
  return rank;
}

/// Whether nobody waits for a process that is known to be unable to run: a restart of all is about
/// what serves. Who names one wants it to run, since he has mended something.
inline bool passed_over(bool restart_of_all, bool cannot_run) {
  return restart_of_all && cannot_run;
}

/// Whether what runs and what is to be started refuse each other. Then nothing can be replaced
/// one after the other: the streams end first, and all is replaced at once.
inline bool crosses_versions(const std::vector<RunningProcess>& processes, std::uint32_t next) {
  return std::any_of(processes.begin(), processes.end(),
                     [&](const auto& p) { return p.protocol != 0 && p.protocol != next; });
}

}  // namespace baton
