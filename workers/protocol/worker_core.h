// The worker's side of the protocol as a state machine: values in, actions out. No sockets,
// threads, clock, device or logging. docs/PROTOCOL.md tells the same from outside.
//
//   registering --Registered--> registered --pool_ready--> hello --Welcome--> in_term
//        ^                                                   ^                   |
//        | another epoch                                     | nothing runs      | gap, violation,
//        +---------------------------------------------------+--- ending <-------+ Fenced, other
//        epoch
//
// A plan is applied when its step starts, never on arrival: its decode rows take the tokens that
// the step before sampled. The core runs as many steps at a time as the device takes
// (steps_at_once), one where the host must know a token first (BatchRow::holds_next_step()),
// and keeps a bounded number of plans and pulls.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"
#include "workers/protocol/pull_table.h"
#include "workers/protocol/sequence_table.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// What this process is. `pid_start`: /proc/self/stat field 22.
struct WorkerIdentity {
  std::string build;
  std::string name;
  Incarnation incarnation = 0;
  Role role = Role::mixed;  // when it starts
  std::int32_t pid = 0;
  std::uint64_t pid_start = 0;
  std::string device = "cpu";
};

struct WorkerCoreOptions {
  TimeNs repeat_every = 500 * kMillisecond;     // Register and Hello, until answered
  TimeNs retry_unsent = 20 * kMillisecond;      // the same when it could not even leave
  TimeNs heartbeat_every = 250 * kMillisecond;  // from Registered on
  TimeNs hello_patience = 5 * kSecond;          // an unanswered Hello: Register again
  TimeNs drain = 8 * kSecond;                   // after terminate(): leave at the latest
  TimeNs ending_patience =
      60 * kSecond;           // for steps and pulls of an ended term: then the process ends
  std::size_t max_plans = 8;  // received and not finished; more ends the term
  std::size_t max_open_pulls = 16384;  // more are answered PullFailed
  std::size_t pulls_at_once = 2;       // handed out: one runs, one is ready to follow
  std::size_t steps_at_once = 1;       // started and not finished, see Executor
  bool tells_sums = false;             // results tell the checksums of what they wrote
};

/// More could make a row wait for a token that no open step names (sequence_table.h).
constexpr std::size_t kMaxStepsAtOnce = 2;

/// Longer than any step: a process whose device hangs must not look alive.
constexpr TimeNs kStuckStep = 60 * kSecond;

/// Process exit codes of a worker, beside kExitUsage (2); also in docs/PROTOCOL.md. What kExitUsage
/// and kExitRefused say is true of the next process, too.
enum WorkerExit : int {
  kExitOk = 0,          // Leave, or the drain bound passed
  kExitFault = 1,       // model, pool or device failed
  kExitRefused = 3,     // the scheduler will never take this worker (build, geometry, unknown name)
  kExitSuperseded = 4,  // a younger process has this name
  kExitRankLost = 5,    // another rank of the worker has ended; the pool is as good as before
};

namespace worker_action {

struct Send {
  WorkerMessage message;
};
/// Load what is not loaded yet and allocate the pool, then call pool_ready() or pool_failed().
struct AllocatePool {};
/// Launch it, and call step_finished() or step_failed() when it has ended, in order of the starts.
/// Valid until then. At most `steps_at_once` are out.
struct StartStep {
  const RunStep* step = nullptr;
};
/// Rows of that step are not run, though others may wait for what they were to write: these are to
/// hear that it never comes. Before the step is started, if it has anything to run at all.
struct LackRows {
  Term term = 0;
  StepId step = 0;
};
/// Map the source if it is not mapped yet and copy the blocks, then call pull_finished(). At most
/// `pulls_at_once` are out at a time; they may run in any order.
struct StartPull {
  Pull pull;
};
/// Unmap, then call mapping_closed(). No pull from it is out.
struct CloseMapping {
  AllocationId allocation = 0;
};
/// Compile it, beside everything else, then call grammar_state().
struct PrepareGrammar {
  std::uint64_t key = 0;
  GrammarKind kind = GrammarKind::none;
  std::string text;
  bool awaited = false;
};
struct Exit {
  int code = 0;
  std::string reason;
};
struct Log {
  enum class Level { info, warning, error };
  Level level = Level::info;
  std::string text;
};

}  // namespace worker_action

using WorkerAction =
    std::variant<worker_action::Send, worker_action::AllocatePool, worker_action::StartStep,
                 worker_action::LackRows, worker_action::StartPull, worker_action::CloseMapping,
                 worker_action::PrepareGrammar, worker_action::Exit, worker_action::Log>;
/// Every input appends to it; the caller carries them out in order and clears it.
using WorkerActions = std::vector<WorkerAction>;

/// See the head of this file. Inputs may come in any order; `now` never runs backwards. After an
/// Exit action every input is ignored.
class WorkerCore {
 public:
  enum class State { registering, registered, hello, in_term, ending, exited };

  explicit WorkerCore(WorkerIdentity identity, WorkerCoreOptions options = {});

  /// The first input: sends Register.
  void start(TimeNs now, WorkerActions& out);
  /// A message of the scheduler. Its vectors are moved out of it.
  void message(ToWorker&& message, TimeNs now, WorkerActions& out);

  /// AllocatePool succeeded. `pool` holds the geometry, allocation and ranks; name, incarnation and
  /// hello_id are filled in here.
  void pool_ready(Hello pool, TimeNs now, WorkerActions& out);
  /// `final`: another process of this configuration would meet the same.
  void pool_failed(const std::string& reason, bool final, WorkerActions& out);
  /// 0..100, shown in heartbeats until pool_ready().
  void loading(std::uint32_t percent) { loading_percent_ = percent; }

  /// The oldest step started has ended; `output.tokens` has one entry a row of it.
  void step_finished(const StepOutput& output, TimeNs now, WorkerActions& out);
  /// The device threw: what the pool holds is unknown, so the process ends.
  void step_failed(const std::string& reason, WorkerActions& out);
  /// A rank of this worker is gone: nothing can be computed any more, so the process ends.
  void rank_lost(const std::string& reason, WorkerActions& out) {
    exit(kExitRankLost, reason, out);
  }
  /// No `failure`: every block was copied and is visible. `damaged`: as in PullFailed.
  void pull_finished(PullId pull_id, const std::optional<std::string>& failure,
                     std::uint32_t duration_us, TimeNs now, WorkerActions& out,
                     std::vector<BlockId> damaged = {});
  void mapping_closed(AllocationId allocation, TimeNs now, WorkerActions& out);
  /// Rows that draw by this grammar, which PrepareGrammar named, will not wait; or it has been
  /// forgotten.
  void grammar_state(std::uint64_t key, bool ready, WorkerActions& out);
  /// The process that exported this allocation is gone: closed by itself after our pulls from it.
  void exporter_gone(AllocationId allocation, TimeNs now, WorkerActions& out);
  /// The memory process that kept the pool has died: the pool ends with this process.
  void lease_lost() { hello_.leased = false; }
  /// A Send of anything but a heartbeat did not leave. In a term nothing may be lost silently, so
  /// it ends; before one, Register or Hello is tried again soon.
  void send_failed(TimeNs now, WorkerActions& out);
  /// Something came that nobody can read: what it was is lost, so the term ends.
  void message_lost(const std::string& why, TimeNs now, WorkerActions& out);

  /// SIGTERM: says so at once, goes on with plans until Leave or the bound.
  void terminate(TimeNs now, WorkerActions& out);
  /// Whatever is due: repeats, heartbeats, the drain bound.
  void tick(TimeNs now, WorkerActions& out);
  /// When tick() has something to do; any time in the past means now.
  TimeNs next_tick() const;

  State state() const { return state_; }
  Term term() const { return state_ == State::in_term ? term_ : 0; }
  bool step_running() const { return n_open_ > 0; }
  bool draining() const { return draining_; }
  const SequenceTable& sequences() const { return sequences_; }
  const PullTable& pulls() const { return pulls_; }

 private:
  void on(Registered& m, TimeNs now, WorkerActions& out);
  void on(Welcome& m, TimeNs now, WorkerActions& out);
  void on(StepPlan& m, TimeNs now, WorkerActions& out);
  void on(Pull& m, TimeNs now, WorkerActions& out);
  void on(Close& m, TimeNs now, WorkerActions& out);
  void on(Fenced& m, TimeNs now, WorkerActions& out);
  void on(Superseded& m, TimeNs now, WorkerActions& out);
  void on(AuditTables& m, TimeNs now, WorkerActions& out);
  void on(PrepareGrammar& m, TimeNs now, WorkerActions& out);
  void on(Leave& m, TimeNs now, WorkerActions& out);
  void on(TakeRole& m, TimeNs now, WorkerActions& out);
  void on(Refused& m, TimeNs now, WorkerActions& out);

  bool stale(Term term) const;
  void send_register(TimeNs now, WorkerActions& out);
  void say_hello(bool at_once, TimeNs now, WorkerActions& out);
  void send_heartbeat(TimeNs now, WorkerActions& out);
  void send_tables(WorkerActions& out);
  void bye(const char* reason, WorkerActions& out);
  void exit(int code, std::string reason, WorkerActions& out);
  void another_epoch(TimeNs now, WorkerActions& out);
  void end_term(const std::string& why, bool fault, TimeNs now, WorkerActions& out);
  void finish_ending(TimeNs now, WorkerActions& out);
  void start_steps(TimeNs now, WorkerActions& out);
  bool open_step_holds() const;
  static bool on_device(const OpenStep& step);
  void complete_step(const StepOutput& output, WorkerActions& out);
  void complete_empty_steps(WorkerActions& out);
  void retire_step();
  void start_pulls(WorkerActions& out);
  void start_closes(WorkerActions& out);
  bool reads(AllocationId allocation) const;

  WorkerIdentity identity_;
  Role role_;          // the one that it has now
  bool held_ = false;  // ... from an operator
  WorkerCoreOptions options_;
  State state_ = State::registering;

  Epoch epoch_ = 0;              // of the last Registered
  bool register_again_ = false;  // in `ending`: another epoch was seen
  std::uint64_t hello_id_ = 0;   // of the last Hello; grows
  TimeNs hello_since_ = 0;
  TimeNs term_since_ = 0;
  TimeNs ending_since_ = 0;
  bool hello_waits_ = false;  // a violation ended a young term: Hello waits a little
  TimeNs repeat_at_ = 0;
  TimeNs heartbeat_at_ = 0;

  enum class PoolState { none, allocating, ready };
  PoolState pool_ = PoolState::none;
  Hello hello_;  // repeated as it is; its geometry bounds every block id and position
  std::uint32_t loading_percent_ = 0;

  Term term_ = 0;
  StepId plans_received_ = 0;
  StepId steps_done_ = 0;
  std::deque<StepPlan> plans_;  // received, not started
  std::uint64_t pulls_received_ = 0;
  std::uint64_t pulls_done_ = 0;
  // Steps begun and not ended, oldest first: a ring, so that their buffers are reused.
  std::vector<OpenStep> open_;
  std::size_t first_open_ = 0;
  std::size_t n_open_ = 0;
  bool audit_wanted_ = false;
  SequenceTable sequences_;
  PullTable pulls_;

  bool draining_ = false;
  TimeNs drain_until_ = 0;
};

}  // namespace baton
