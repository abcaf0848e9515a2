// What a supervisor writes down of each of its processes: RUN_DIR/NAME.process. The next supervisor
// adopts living processes by it, and baton-ctl shows and restarts them by it. Several supervisors
// may work in one folder (a container each): every process has a file of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"

namespace baton {

/// One life of a process. A pid alone may have been given to somebody else since.
struct ProcessLife {
  std::int32_t pid = 0;     ///< 0: it does not run
  std::uint64_t start = 0;  ///< pid_start_time()
  double since = 0;         ///< unix seconds of its start; without a pid, of its end
  std::uint64_t restarts = 0;

  bool operator==(const ProcessLife&) const = default;
};

struct ProcessRecord {
  std::string name;
  /// scheduler, frontend, memory, worker, rank (of a worker: all but its first); process: any other
  std::string kind;
  ProcessLife life;
  bool tells_up = false;      ///< it leaves NAME.up when it does its work
  std::uint64_t command = 0;  ///< fingerprint of the binary's path and of its arguments
  /// Who wrote this. `restarts` counts those that took over from one before.
  ProcessLife supervisor;
  std::string admin_socket = {};  ///< of a scheduler: where it is asked; empty: its record is older
  /// Of a process of one of several models: why it cannot run, as it said when it ended last. It is
  /// tried again all the same. Empty: nothing is known against it.
  std::string refused = {};

  bool operator==(const ProcessRecord&) const = default;
};

std::uint64_t command_fingerprint(const std::vector<std::string>& argv);

/// A reason as a record can hold it: one line of at most 1,000 bytes.
std::string reason_line(std::string_view text);

/// "key value" lines, the last one "end": half a file is no record. Nor is one that was written
/// before the machine was started again: there, pid and start time may come back by chance.
std::string encode_process_record(const ProcessRecord& record);
std::optional<ProcessRecord> parse_process_record(std::string_view text);

/// RUN_DIR/NAME.process, replaced in one step.
Status write_process_record(const std::string& run_dir, const ProcessRecord& record);
/// Nothing if there is no such file, or none that can be believed.
std::optional<ProcessRecord> read_process_record(const std::string& run_dir,
                                                 const std::string& name);
/// All of a folder (at most 1,000), by name.
std::vector<ProcessRecord> read_process_records(const std::string& run_dir);
/// A front end's twin, as RUN_DIR/NAME.twin.pid says; nothing if none lives.
std::optional<ProcessLife> read_twin(const std::string& run_dir, const std::string& name);
void remove_process_record(const std::string& run_dir, const std::string& name);

/// Whether this life of the process has come to its work: NAME.up holds its pid, or it tells
/// nothing and runs.
bool is_up(const std::string& run_dir, const ProcessRecord& record);
/// The version of the protocol that it speaks, as NAME.up says; 0 if it says none or is not up.
std::uint32_t spoken_protocol(const std::string& run_dir, const ProcessRecord& record);
/// starting; up; frozen (stopped by a signal); waiting (ended, and about to be started again);
/// gone (ended, and its supervisor does not know).
std::string process_state(const std::string& run_dir, const ProcessRecord& record);
/// Why this process cannot run, while it is not up; empty: nothing is known against it.
std::string refused_now(const std::string& run_dir, const ProcessRecord& record);
std::string refused_now(const std::string& run_dir, const std::string& name);
/// "NAME: why" if none of these processes is up and each of them cannot run (its record says so),
/// by the first of them; else, and of no processes, nothing.
std::string refused_by_all(const std::string& run_dir, const std::vector<std::string>& names);

}  // namespace baton
