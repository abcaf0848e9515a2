// The front end's state machine: which requests are open, what each client already has, what the
// scheduler still has to say. Pure: messages and times go in as values, messages and deliveries
// come out as values. No socket, no thread, no clock; the scheduler's simulation runs it as its
// front end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc/messages.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// What a model was loaded from, for people.
struct ModelSources {
  std::string tokenizer;
  std::string chat_template;
  std::string task;
};

/// Who this front end is; goes into every FrontendHello.
struct FrontendIdentity {
  std::string build;
  std::string name;
  Incarnation incarnation = 0;
  std::int32_t pid = 0;
  std::uint64_t pid_start = 0;
  ModelSources model = {};
  bool has_successor = false;    // another process may go on with this incarnation
  std::uint32_t generation = 0;  // processes that had this incarnation before
};

struct RequestTableLimits {
  std::size_t max_open = 4096;  // streams that clients wait on
  TimeNs heartbeat_interval = 500 * kMillisecond;
  TimeNs hello_interval = 50 * kMillisecond;  // of a FrontendHello without an answer
  TimeNs stale_after = 1 * kSecond;           // no news for this long: ask about the request
  /// A new scheduler's smaller max_context is believed after this: the workers with larger pools
  /// may not have joined it yet.
  TimeNs pools_settle = 10 * kSecond;
  std::size_t max_asked = 256;            // requests named by one heartbeat
  TimeNs deadline_grace = 2 * kSecond;    // the scheduler judges a deadline first
  TimeNs closing_timeout = 60 * kSecond;  // a Finish or Cancel nobody answers is given up
  TimeNs trial = 2 * kSecond;  // so long a scheduler must live with new requests or suspects ...
  TimeNs lone_trial = 10 * kSecond;  // ... or with one that is tried alone
};

/// What a caller asks for; `deadline` is absolute.
struct NewRequest {
  std::string cache_salt;
  std::int32_t priority = 0;  // lower is earlier
  bool lifetime = false;      // its end shall tell when its phases began and ended
  bool progress = false;      // how far its prompt is shall be told
  std::vector<Token> prompt;
  SamplingParams sampling;
  TimeNs deadline = 0;
  TenantShare share;
};

/// What a predecessor left of one request.
struct AdoptedRequest {
  std::uint64_t counter = 0;
  std::uint32_t attempt = 0;  // the last that was sent; 0: none was
  TimeNs arrival = 0;
  NewRequest request;
  std::vector<Token> generated;  // that its client has; of a beam search nothing
};

/// What is told of a request with its first token.
struct Beginning {
  std::uint32_t cached_tokens = 0;  // of the prompt, that were in a prefix cache
  TimeNs at = 0;                    // its first prompt chunk was planned (monotonic); 0: not known
};

/// New tokens of one stream: `count` tokens of TableOutput::tokens from `begin` on.
struct Delivery {
  std::uint64_t counter = 0;
  std::uint32_t first_index = 0;  // index in the reply of the first of them
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
  std::int32_t prompt_logprobs = -1;  // which of TableOutput::prompt_logprobs; with token 0 only
  std::uint32_t choice = 0;  // which sequence of a beam search; they come whole, at its end
  Beginning beginning = {};  // with token 0 only
};

/// How far the prompt of a stream is that has no token yet.
struct ProgressTold {
  std::uint64_t counter = 0;
  std::uint32_t done = 0;    // tokens, never more than it has
  std::uint32_t cached = 0;  // of these, found in a prefix cache
  TimeNs took = 0;           // since the first of them was computed
};

/// How one sequence of a beam search ended.
struct ChoiceEnd {
  FinishReason reason = FinishReason::none;
  float score = 0;
};

/// The one end of a stream. `n` tokens were delivered before it.
struct StreamEnd {
  std::uint64_t counter = 0;
  FinishReason reason = FinishReason::none;
  std::uint32_t n = 0;
  ErrorCode code = ErrorCode::ok;
  std::string message;
  std::uint32_t retry_after_s = 0;
  std::vector<ChoiceEnd> choices = {};  // of a beam search that has ended by itself, best first
  std::vector<TimeNs> lifetime = {};    // as in Terminal
  std::optional<RequestTiming> timing = {};  // the scheduler's last word of it so far
  TimeNs submitted = 0;                      // its last attempt was sent; 0: not by this process
  std::uint32_t attempts = 0;                // ... which was the so manieth; 0: none was sent
  bool told = true;  // nothing more will come of it: else TableOutput::timings may have it later
};

/// What a call wants done, in this order: send `messages`, tell `progress`, hand out `deliveries`,
/// then `endings`.
/// Calls append; the caller clears between them.
struct TableOutput {
  std::vector<FrontendMessage> messages;
  std::vector<Token> tokens;
  Logprobs logprobs;  // items: indexes into `tokens`, of requests that asked for it
  std::vector<Logprobs> prompt_logprobs;  // items: positions in the prompt
  std::vector<ProgressTold> progress;
  std::vector<Delivery> deliveries;
  std::vector<StreamEnd> endings;
  std::vector<RequestTiming> timings;  // of requests whose StreamEnd came before the scheduler's
  std::vector<std::string> notices;    // for the log: protocol faults, a scheduler that is new
  std::optional<std::string> refused;  // the scheduler will never serve this process: log and exit

  void clear();
};

/// The link to the scheduler as the last messages showed it.
struct SchedulerView {
  bool welcomed = false;
  Epoch epoch = 0;
  std::string build;
  std::uint32_t workers_ready = 0;
  std::uint32_t max_context = 0;  // of the largest pool
  TimeNs epoch_at = 0;            // first Welcome of this epoch
  std::uint64_t progress = 0;
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  std::uint64_t host_blocks = 0;
  std::uint64_t host_blocks_used = 0;
  std::uint64_t blocks_out = 0;
  std::uint64_t blocks_in = 0;
  std::uint64_t damaged_blocks = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t resumed = 0;
  std::uint64_t role_changes = 0;
  std::uint64_t handoffs = 0;
  std::uint64_t growths = 0;
  std::uint64_t terms_ended = 0;
  std::uint64_t worker_deaths = 0;
  std::uint32_t tokens_per_block = 0;
  std::vector<PoolUse> pools;
  TimeNs heard_at = 0;     // last message of any kind
  TimeNs progress_at = 0;  // last time that `progress` grew, or nothing was running
};

/// Counts since the start, for metrics and tests.
struct TableCounters {
  std::uint64_t opened = 0;
  std::uint64_t adopted = 0;
  std::uint64_t tokens = 0;       // delivered
  std::uint64_t duplicates = 0;   // tokens dropped: below the next index
  std::uint64_t stale = 0;        // tokens or terminals dropped: another attempt or epoch
  std::uint64_t gaps = 0;         // resends asked for at once
  std::uint64_t resubmitted = 0;  // attempts after the first
  std::uint64_t malformed = 0;    // messages that contradict themselves
};

/// One entry lives through: open (the client waits) -> [closing: a Finish or Cancel is repeated
/// until the scheduler's terminal answers it] -> gone. Exactly one StreamEnd an entry; it comes
/// when the entry stops being open.
///
/// Guarantees, whatever is lost, late, doubled or reordered between epochs:
/// - a client gets token i once, after token i-1, and only from its current attempt; what comes
///   with a token (log probabilities) likewise;
/// - a stream ends only when every token counted by its terminal was delivered (or by its own
///   Finish, Cancel or deadline);
/// - while a scheduler answers, every entry ends, and every terminal is acknowledged.
///
/// A request may be what kills the scheduler; nobody is left then to judge it but the front ends.
/// - Each request counts the schedulers that died while they had it, since its last token and in
///   all.
/// - After two without a token between them (or eight in all) it is a suspect. A new scheduler gets
///   everybody else at once, and suspects only when it has lived for `trial` with those: in trials
///   of 1, 2, 4, ... suspects, each begun when the scheduler has outlived the one before.
/// - After four (or eight in all) it is tried alone: this front end gives nothing else to the
///   scheduler for as long.
/// - Three schedulers that die in its lone trials end it with worker_crashes. One request that is
///   not yet a suspect kills two at most, so it alone never ends another.
/// Trials take turns among the front ends of a host (wants_turn).
class RequestTable {
 public:
  RequestTable(FrontendIdentity identity, RequestTableLimits limits);

  /// Takes a request on; Submit goes out now, or when a scheduler has said Welcome. Errors:
  /// queue_full when max_open clients wait already.
  Result<RequestId> open(NewRequest request, TimeNs now, TableOutput& out);

  /// A successor, before anything else: the scheduler that its predecessor knew (0: none), and the
  /// first counter that it never used. Both, and each attempt, must have been noted before a
  /// message left that had them.
  void succeed(Epoch epoch, std::uint64_t next_counter);

  /// Goes on with a request, after succeed() and before the first tick(). Its tokens so far are not
  /// delivered again; the scheduler is asked for the next ones, or given it again if it does not
  /// know it. What a predecessor had open and is not adopted, the scheduler cancels. Twice the same
  /// counter: no-op.
  void adopt(AdoptedRequest request, TimeNs now);

  /// A stop string matched: the stream ends with its first `n` tokens, now. Unknown or ended:
  /// no-op.
  void finish(std::uint64_t counter, std::uint32_t n, TimeNs now, TableOutput& out);

  /// Nobody waits for this stream any more. Unknown or ended: no-op.
  void cancel(std::uint64_t counter, TimeNs now, TableOutput& out);

  /// One message of the scheduler.
  void apply(const ToFrontend& message, TimeNs now, TableOutput& out);

  /// The model has been loaded meanwhile: the scheduler is told what is said of it to people.
  void describe(ModelSources sources, TableOutput& out);
  /// Heartbeats, hellos and deadlines. Call at next_tick() or more often.
  void tick(TimeNs now, TableOutput& out);
  /// When tick() has something to do next; never more than heartbeat_interval away.
  TimeNs next_tick() const { return next_beat_; }

  const SchedulerView& scheduler() const { return view_; }
  const TableCounters& counters() const { return counters_; }
  std::size_t open_count() const { return open_; }
  /// That of the next request that open() takes.
  std::uint64_t next_counter() const { return next_counter_; }
  /// Counters below are other tables': of several models' requests no two have the same.
  void pass_over(std::uint64_t next) { next_counter_ = std::max(next_counter_, next); }
  /// How many requests open() would take now.
  std::size_t room() const;
  std::size_t entry_count() const { return entries_.size(); }
  /// Only one front end of a host tries suspects at a time. True: this one waits for its turn, or
  /// has it; false again when it is over. give_turn() is called by whoever sees that no other has
  /// it.
  bool wants_turn() const { return turn_of_trials_ != Turn::unwanted; }
  void give_turn() { turn_of_trials_ = Turn::given; }
  /// Tokens delivered so far; nullptr if the request is not open.
  const std::vector<Token>* delivered(std::uint64_t counter) const;

 private:
  enum class State : std::uint8_t { open, finishing, cancelling };

  struct Entry {
    State state = State::open;
    bool sent = false;       // under the present welcome
    bool ever_sent = false;  // a scheduler may know it
    bool adopted = false;    // sent by a predecessor, and not asked about yet
    std::uint32_t attempt = 1;
    std::uint32_t next = 0;                  // closing: tokens that the ended stream had
    std::uint32_t schedulers_lost = 0;       // under it, since its last token
    std::uint32_t schedulers_lost_ever = 0;  // ... or since it was last tried alone and acquitted
    std::uint32_t lost_alone = 0;            // of these, in its lone trials
    bool on_trial = false;                   // in trial_
    TimeNs arrival = 0;
    TimeNs news = 0;   // last sign of the scheduler about it, or time of the last sending
    TimeNs asked = 0;  // last resend asked for at once
    TimeNs closing_since = 0;
    NewRequest request;  // prompt and generated ids are given up when the entry stops being open
    std::vector<Token> generated;  // of a beam search nothing is delivered before its end
    Logprobs prompt_logprobs;      // its parts so far, until the first token takes them along
    bool prompt_whole = false;     // all of them are here
    Beginning beginning;
    TimeNs submitted = 0;  // last time, by this process
    std::optional<RequestTiming> timing;
    std::optional<Terminal> terminal;  // came before the tokens that it counts
  };
  using Entries = std::unordered_map<std::uint64_t, Entry>;

  enum class Turn : std::uint8_t { unwanted, wanted, given };

  /// The suspects that the scheduler has been given last.
  struct Trial {
    std::vector<std::uint64_t> members;  // empty: none runs
    bool alone = false;
    TimeNs until = 0;
  };

  void apply_welcome(const FrontendWelcome& message, TimeNs now, TableOutput& out);
  void apply_unknown(TimeNs now, TableOutput& out);
  void apply_events(const Events& message, TimeNs now, TableOutput& out);
  void apply_gone(const Gone& message, TimeNs now, TableOutput& out);
  void apply_terminal(const Terminal& terminal, TimeNs now, TableOutput& out);
  struct TokenRow;
  void take_timing(const RequestTiming& timing, TableOutput& out);
  void take_progress(const Events& message, TimeNs now, TableOutput& out);
  void take_tokens(const TokenRow& row, LogprobReader& logprobs, TimeNs now, TableOutput& out);
  bool take_prompt(const TokenRow& row, Entry& entry, TimeNs now);
  void append(const TokenRow& row, Entry& entry, std::uint32_t known, LogprobReader& logprobs,
              TableOutput& out);
  bool settle(Entries::iterator at, TableOutput& out);
  StreamEnd found_beams(std::uint64_t counter, const Entry& entry, TableOutput& out);
  void want_resend(std::uint64_t counter, Entry& entry, TimeNs now);
  void ask_for_gaps(TableOutput& out);
  void submit(std::uint64_t counter, Entry& entry, TimeNs now, TableOutput& out);
  void submit_all(bool new_scheduler, TimeNs now, TableOutput& out);
  // Trials (request_table_trials.cpp).
  void scheduler_lost(TimeNs now, TableOutput& out);
  void go_on_with_trials(TimeNs now, TableOutput& out);
  bool trial_is_over(TimeNs now) const;
  void acquit(TimeNs now, TableOutput& out);
  void begin_trial(TimeNs now, TableOutput& out);
  static bool suspected(const Entry& entry);
  static bool tried_alone(const Entry& entry);
  bool must_wait(const Entry& entry) const;
  void say_hello(TableOutput& out);
  void heartbeat(const std::vector<std::uint64_t>& about, TableOutput& out);
  void repeat_closing(std::uint64_t counter, Entry& entry, TimeNs now, TableOutput& out);
  std::vector<std::uint64_t> stale_entries(TimeNs now);
  void check_deadlines(TimeNs now, TableOutput& out);
  void end(std::uint64_t counter, Entry& entry, StreamEnd ending, TableOutput& out);
  void close(Entries::iterator at, State state, TimeNs now, TableOutput& out);
  RequestId id_of(std::uint64_t counter) const { return {identity_.incarnation, counter}; }

  FrontendIdentity identity_;
  RequestTableLimits limits_;
  SchedulerView view_;
  TableCounters counters_;
  Entries entries_;
  std::size_t open_ = 0;
  std::uint64_t next_counter_ = 1;
  std::uint64_t inherited_below_ = 0;  // counters that predecessors have used
  Epoch inherited_epoch_ = 0;          // the scheduler that the last one knew
  std::uint64_t turn_ = 0;             // the last request that a heartbeat asked about
  TimeNs next_beat_ = 0;
  Trial trial_;
  std::size_t trial_size_ = 1;  // suspects of the next trial
  TimeNs trials_begin_ = 0;     // the scheduler must have lived so long with everybody else
  Turn turn_of_trials_ = Turn::unwanted;
  std::vector<std::uint64_t> gaps_;  // found while applying one message
  std::vector<std::uint64_t> scratch_;
};

}  // namespace baton
