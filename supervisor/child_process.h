#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ipc/log_line.h"
#include "ipc/process.h"
#include "ipc/process_record.h"
#include "supervisor/liveness.h"
#include "supervisor/terminal.h"

namespace baton {

/// When a process is stopped: front ends first, so that open streams can end; then the workers,
/// which say goodbye to the scheduler; it last.
enum class StopStage : int { kFrontEnds = 0, kWorkers = 1, kScheduler = 2 };

/// One process to keep alive.
struct ProcessSpec {
  std::string name;  ///< unique; names the log, the pid file and the heartbeat file
  /// argv[0] is looked up in PATH when it has no slash. Empty: a process that an earlier supervisor
  /// left running and that nobody asks for any more; it is ended and not started again.
  std::vector<std::string> argv;
  StopStage stage = StopStage::kWorkers;
  /// Exit statuses that mean: the next one would end the same way.
  std::vector<int> final_statuses = {};
  /// Of a process that was never up, so many deaths in a row end the start; 0: it is restarted for
  /// ever.
  int early_deaths = 0;
  std::string kind = "process";  ///< as in ProcessRecord
  bool tells_up = false;         ///< likewise
  std::string admin_socket = {};  ///< likewise
  /// The one of several models that it belongs to: where it cannot run, it is tried again, and the
  /// others are served. Empty: without it nothing is.
  std::string model = {};
};

/// How logs are written. The terminal belongs to the supervisor.
struct LogOutput {
  Terminal& terminal;
  LogFormat format = LogFormat::text;
  std::size_t name_width = 5;  ///< columns for the names in front of lines of text
};

/// Where the output of a process goes: RUN_DIR/logs/NAME.log, and standard output, as text with the
/// name in front. The file is moved to NAME.log.1 at 16 MiB. Lines that standard output did not
/// take are counted. Beside a live line only warnings and worse are shown, if `all` is not set. In
/// JSON, what a process wrote past its log is put into an object, too.
class LogSink {
 public:
  LogSink(const std::filesystem::path& run_dir, std::string name, const LogOutput& output,
          bool all = false);
  ~LogSink();
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;

  /// Takes raw output; whole lines are written, an unfinished one is kept (up to 4,000 bytes).
  void write(std::string_view bytes);
  /// Writes what is left of an unfinished line.
  void finish();
  const std::string& last_line() const { return last_; }

 private:
  void line(std::string_view text);
  void store(std::string_view line);
  void open_file();
  void echo(std::string_view text);

  std::filesystem::path path_;
  std::string name_;
  LogOutput output_;
  bool all_;
  std::string prefix_;
  std::string partial_;
  std::string last_;
  int fd_ = -1;
  std::size_t written_ = 0;
  std::size_t dropped_ = 0;
};

/// A supervised process and what is known of it. Owns the reading end of its output (the FIFO
/// RUN_DIR/NAME.output, which the next supervisor can open too) and a lock on
/// RUN_DIR/NAME.supervised, which keeps a second supervisor away from the same name.
class ChildProcess {
 public:
  /// Adopts the process that an earlier supervisor left running, if there is one.
  /// Throws std::runtime_error if another supervisor holds the name.
  ChildProcess(ProcessSpec spec, const std::filesystem::path& run_dir, const LogOutput& output,
               Seconds frozen_after, Seconds now);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const ProcessSpec& spec() const { return spec_; }
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  int output_fd() const { return output_; }
  /// Becomes readable when an adopted process ends; -1 of one that this supervisor started.
  int exit_fd() const { return running() ? exit_.get() : -1; }
  /// What the supervisor before wrote down, if anything.
  const std::optional<ProcessRecord>& found() const { return found_; }
  bool wanted() const { return !spec_.argv.empty(); }
  /// Whether it was started by another command than the one that would start it now.
  bool outdated() const { return running() && life_.pid != 0 && outdated_; }
  /// Whether it is an adopted process whose parent is somebody else and that is no more: waitpid
  /// tells nothing of it.
  bool ended_unseen() const;
  /// Time of the next start; meaningful while not running.
  Seconds due() const { return due_; }
  /// SIGTERM; SIGKILL when `limit` has passed (expired()).
  void ask_to_end(Seconds now, Seconds limit);
  bool expired(Seconds now) const { return running() && end_by_ && now >= *end_by_; }
  /// Removes what tells the next supervisor of it.
  void forget();
  /// Writes RUN_DIR/NAME.process with this supervisor's identity. Call it before run() and whenever
  /// that has changed.
  void record(const ProcessLife& supervisor);

  /// Starts it. A failure to fork or exec shows as an exit with status 127.
  void start(Seconds now);
  /// Reads what the process wrote.
  void drain_output();
  /// Whether this end (waitpid status) shows that it never will run: it was not up yet (it leaves
  /// RUN_DIR/NAME.up when it is), and ended with a final status or so for the last time allowed.
  /// Call it once for every end, before ended().
  /// Without a status (of an adopted process that is not our child) it counts as a death, not as a
  /// final one.
  bool hopeless(std::optional<int> status);
  /// Of a process of one of several models, instead of hopeless(): whether this end shows that it
  /// cannot run as things are, which its record then says until one of its lives comes up.
  bool cannot_run(std::optional<int> status);
  /// Why it cannot run; empty: nothing is known against it.
  const std::string& refused() const { return refused_; }
  bool been_up() const { return been_up_; }
  /// True once when one that could not run is up after all.
  bool recovered();
  /// Why it ended: what it left in RUN_DIR/NAME.failed, or else the last line that it wrote.
  std::string last_words() const;
  /// Notes its end (waitpid status), says so in one line, and sets when it is due again. One that
  /// is not to start again leaves no record.
  std::string ended(std::optional<int> status, Seconds now, bool will_restart);
  /// Looks at /proc and the heartbeat file; a reason if the process is frozen.
  std::optional<std::string> look(Seconds now);
  /// Starts all time-outs of the freeze judgement anew.
  void forgive() { watch_.reset(); }

 private:
  std::filesystem::path mark(const char* suffix) const;
  void adopt(Seconds now);
  bool open_output(int& writing_end);
  void write_record();
  void write_pid();        // NAME.pid, for people and scripts
  bool up() const;         // this life of it is, or was when it ended
  bool is_final(int status) const;
  /// Counts a death of one that was not up; true: it shows that it cannot run.
  bool died_before_up(std::optional<int> status);
  void came_up();

  ProcessSpec spec_;
  std::filesystem::path run_dir_;
  LogSink log_;
  FreezeWatch watch_;
  Backoff backoff_;
  int lock_ = -1;
  int output_ = -1;
  pid_t pid_ = 0;
  UniqueFd exit_;
  ProcessLife life_;
  ProcessLife supervisor_;
  std::optional<ProcessRecord> found_;
  std::optional<Seconds> end_by_;
  bool outdated_ = false;
  bool foreign_ = false;  // no child of ours: waitpid tells nothing of it
  bool ever_started_ = false;
  Seconds started_{};
  Seconds due_{};
  bool been_up_ = false;
  int deaths_ = 0;  // while it was not up
  std::string refused_;
};

}  // namespace baton
