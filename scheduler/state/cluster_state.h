// Everything the scheduler knows, as plain values: requests, sequences, workers, pools, pulls.
// `apply()` (apply_event.h) changes it by events, `plan()` (plan_step.h) decides from it. No
// sockets, no threads, no clock: time is passed in.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "configs/config.h"
#include "ipc/codec.h"
#include "ipc/kv_groups.h"
#include "ipc/messages.h"
#include "ipc/types.h"
#include "scheduler/apply/beam_search.h"
#include "scheduler/state/block_pool.h"
#include "scheduler/state/deaths.h"
#include "scheduler/state/grammar_key.h"
#include "scheduler/state/outstanding.h"
#include "scheduler/state/prompt_cost.h"
#include "scheduler/state/request_times.h"
#include "scheduler/state/role_watch.h"
#include "scheduler/state/slab.h"
#include "scheduler/state/tenants.h"
#include "scheduler/state/trust.h"

namespace baton {

/// A connection of the shell; the core never sees an address.
using LinkId = std::uint32_t;
constexpr LinkId kNoLink = 0;
using WorkerIndex = std::uint32_t;
using StoreIndex = WorkerIndex;  // a store is that of the worker with its index
using FrontendIndex = std::uint32_t;
constexpr std::uint32_t kNobody = 0xFFFFFFFF;
constexpr std::uint32_t kNoLimit = 0xFFFFFFFF;

/// The settings as the core uses them; configs/config.h has their meaning, defaults and bounds.
struct Settings {
  Batching batching = Batching::continuous;
  TimeNs priority_age = 5 * kSecond;
  std::uint32_t static_batch_size = 4;  // beams
  bool static_same_config = false;
  TimeNs static_interval = 3 * kSecond;
  std::uint32_t max_waiting = 20000;
  std::uint32_t max_running = 256;
  TokenBudget token_budget;
  std::uint32_t prompt_chunk = 256;
  std::vector<std::uint32_t> prefill_batch_size;  // ascending; empty: no limit
  std::vector<std::uint32_t> decode_batch_size;   // likewise
  bool prompts_pause_decode = false;
  double delay_factor = 0;
  QueueOrder queue_order = QueueOrder::arrival;
  TimeNs input_age = 10 * kMillisecond;
  double fair_output_cost = 2;
  Preempted preempted = Preempted::automatic;
  Victim victim = Victim::last;
  Admission admission = Admission::watermark;
  double watermark = 0;
  double pull_watermark = 1;
  struct {
    std::uint32_t tokens = 0;
    double cached = 0;
    TimeNs wait = 0;
  } local_prefill;
  NoDecode no_decode = NoDecode::run;
  Roles roles = Roles::fixed;
  TimeNs role_queue = kSecond / 2;
  TimeNs role_dwell = 10 * kSecond;
  bool elastic = false;
  bool elastic_gather = true;
  std::uint32_t elastic_degree = 8;
  std::uint32_t elastic_prompt_tokens = 4096;
  TimeNs worker_timeout = 3 * kSecond;
  TimeNs frontend_timeout = 15 * kSecond;
  TimeNs successor_wait = 10 * kSecond;
  std::uint32_t max_deaths = 3;
  TimeNs drain = 4 * kSecond;
  TimeNs close_timeout = 12 * kSecond;
  TimeNs kept_wait = 5 * kSecond;
  std::uint32_t steps_in_flight = 2;
  bool prefix_cache = true;
  std::uint32_t prefix_pull_tokens = 64;
  Swap swap = Swap::automatic;
  std::uint32_t swap_step_blocks = 8;
  bool kv_events = false;
  /// No message is larger. What grows with the load is split (message_size.h); smaller in tests
  /// alone.
  std::size_t message_bytes = kMaxMessageBytes;
};
Settings make_settings(const SchedulerConfig& config);

/// Where a request stands. `ended` waits for the front end's acknowledgement.
enum class Phase : std::uint8_t {
  waiting,     // in the queue, names no block
  pull,        // `source` has its blocks; those that another pool knows are being pulled into them
  prefill,     // `source` runs prompt chunks; `target` may already be pulling them
  handoff,     // the first token is out; `target`'s pulls are running or still to be started
  decode,      // `source` (and what beams there are beside it) takes one token a step
  preempting,  // its blocks are released; results of steps in flight still count
  ended,
};

inline const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::waiting:
      return "waiting";
    case Phase::pull:
      return "pull";
    case Phase::prefill:
      return "prefill";
    case Phase::handoff:
      return "handoff";
    case Phase::decode:
      return "decode";
    case Phase::preempting:
      return "preempting";
    case Phase::ended:
      return "ended";
  }
  return "unknown";
}

/// A beam search and its sequences (beams.cpp). They live and die together, on one worker: whatever
/// takes the request off it begins the search again from the prompt.
struct Beams {
  std::unique_ptr<BeamSearch>
      search;  // from the start of the prompt's prefill to the request's end
  std::vector<SequenceId>
      lines;         // of the search's beams, 0: runs no further; empty: the prompt's alone
  bool due = false;  // the search's children wait for their step
  std::uint32_t furthest = 0;  // most tokens that the search has had, over all tries
  // Once found: tokens, reason and score of each sequence told; their tokens are in `generated`.
  std::vector<std::uint32_t> lengths;
  std::vector<std::uint32_t> reasons;
  std::vector<float> scores;
};

/// Where a preempted request's blocks are, as long as it waits.
struct Kept {
  WorkerIndex worker = kNobody;
  Term term = 0;
  StepId seen = 0;    // plans that the worker had been sent when this was last looked at
  bool whole = true;  // all of it but a few tokens
};

struct Request {
  std::uint64_t id = 0;  // slab id
  RequestId name;
  FrontendIndex frontend = kNobody;
  TenantIndex tenant = kSharedTenant;
  std::uint32_t attempt = 0;
  TimeNs arrival = 0;
  TimeNs place = 0;  // in every queue: queue_place(), place_after_preemption()
  TimeNs deadline = 0;
  std::string cache_salt;  // requests share cached blocks only with those of the same salt
  std::vector<Token> prompt;
  std::vector<Token> generated;  // every token sampled; all of them were sent to the front end
  SamplingParams sampling;
  std::uint64_t grammar = 0;  // key of the one in `sampling`; 0: none
  Logprobs logprobs;          // of `generated`, if asked for; items are indexes into it
  Logprobs prompt_logprobs;   // likewise of the prompt; leaves with the first token
  Phase phase = Phase::waiting;
  SequenceId source = 0;  // of a beam search: one of its lines
  SequenceId target = 0;
  std::unique_ptr<Beams> beams;  // null: no beam search
  Deaths deaths;                 // workers lost under it
  std::uint32_t handoff_failures = 0;
  std::uint32_t damaged_pulls = 0;
  std::uint32_t grammar_failures = 0;  // rows that drew nothing: their grammar was not compiled
  std::uint32_t spread_failures = 0;   // that a worker waited for another one's chunk in vain
  TimeNs handoff_not_before = 0;       // after a failed pull: not at once again
  bool again = false;                  // an earlier scheduler, or attempt, had accepted it
  TimeNs submitted = 0;                // to this scheduler
  bool local = false;                  // prefill where it decodes: its pulls failed too often
  bool prefix_pull_failed = false;     // it computes what only other pools know
  std::uint32_t cached_tokens = 0;     // of the prompt, found or pulled; told with the first token
  std::uint32_t pulled_tokens = 0;     // ... of these, pulled
  TimeNs begun = 0;                    // its first prompt chunk was planned; likewise
  // What its tenant has been charged for: the prompt up to there, and so many tokens (of a beam
  // search: its length). Nothing is charged again when it is computed again.
  std::uint32_t charged_prompt = 0;
  std::uint32_t charged_output = 0;
  bool progress = false;     // its front end is told how far its prompt is
  TimeNs progress_told = 0;  // last time; 0: not yet
  RequestTimes times;        // where its time went
  Kept kept;
  const char* passed_over = nullptr;  // the rule that passed it over last (admission_rules.h)
  bool grouped = false;               // static batching: member of the running group
  std::uint32_t client_tokens =
      kNoLimit;  // ... its own limit: what the group makes beyond is not sent
  // Once ended:
  FinishReason reason = FinishReason::none;
  ErrorCode code = ErrorCode::ok;
  std::string message;
  std::vector<TimeNs> lifetime;  // by LifetimeMoment; empty: not asked for
  bool terminal_sent = false;
  bool terminal_due = false;  // sent a while ago and not acknowledged: it is sent again

  std::uint32_t length() const {
    return static_cast<std::uint32_t>(prompt.size() + generated.size());
  }
  /// Tokens, over all tries.
  std::size_t furthest() const { return beams ? beams->furthest : generated.size(); }
};

/// Consecutive tokens of a sequence's KV, in blocks of one store: each full but perhaps the last
/// one.
struct Extent {
  StoreIndex store = kNobody;
  std::uint32_t first_token = 0;
  std::vector<BlockId> blocks;  // columns of the store's groups (TableShape)
};

/// A part of a spread prompt: whole blocks, all in one extent, that one worker computes.
struct SpreadChunk {
  WorkerIndex worker = kNobody;
  std::uint32_t first = 0;
  std::uint32_t tokens = 0;
  std::uint32_t sent = 0;  // in rows of steps that were sent
  std::uint32_t done = 0;  // of these, in steps whose results are in
  StepId step = 0;         // of its last row

  bool all_sent() const { return sent == tokens; }
  bool all_done() const { return done == tokens; }
};

/// A worker that computes chunks of a spread prompt.
struct SpreadLane {
  WorkerIndex worker = kNobody;
  std::uint32_t inflight = 0;  // steps in flight there that name the sequence
  std::size_t told = 0;        // of the extents, those in the worker's table
  bool on_worker = false;      // likewise, as in Sequence
};

/// A prompt that several workers compute at the same time (plan/spread.h), while they do. Chunk i
/// is in extent i; behind the last one follows the extent of what its worker computes alone.
struct Spread {
  std::vector<SpreadChunk> chunks;
  std::size_t next = 0;           // the first one of which not all is sent
  std::size_t counted = 0;        // those before it are computed, and so is all before them
  std::vector<SpreadLane> lanes;  // the first one is that of Sequence::worker
  double predicted_us = 0;        // 0: not known
  TimeNs began = 0;

  SpreadLane* lane_of(WorkerIndex worker) {
    const auto it = std::find_if(lanes.begin(), lanes.end(),
                                 [&](const SpreadLane& lane) { return lane.worker == worker; });
    return it == lanes.end() ? nullptr : &*it;
  }
};

/// Blocks in its worker's pool for all that a sequence has in others', in the order of its tokens,
/// while they are pulled there (plan/gather.h).
struct Gather {
  std::vector<BlockId> blocks;
  bool failed = false;  // one of its pulls has; the others are still awaited
};

/// One request's place on one worker.
struct Sequence {
  SequenceId id = 0;
  std::uint64_t request = 0;
  WorkerIndex worker = kNobody;
  std::uint64_t order = 0;  // of all placements; beams have their search's
  std::uint32_t width =
      1;  // rows that it stands for in max_running: all beams' for one of them, else 0
  /// By first token; the last one in the store of `worker`, the others, if there are any, wherever
  /// they were computed (plan/elastic.h).
  std::vector<Extent> extents;
  std::vector<Extent> ahead;  // reserved in other stores, for its next extents; no first tokens yet
  std::uint32_t gather_failures = 0;  // pulls that were to gather it
  std::unique_ptr<Gather> gather;     // null: what it has in other stores stays there
  bool outgrown = false;  // when its steps have ended, it goes on at the store of `ahead`, or with
                          // what was gathered
  /// Columns of its table that each group has, or has had, a block for. With one group without a
  /// window the table says it itself.
  std::array<std::uint32_t, kMaxKvGroups> filled{};
  std::uint32_t prefill_length = 0;  // tokens to compute before the first one is sampled here
  std::uint32_t scheduled = 0;       // tokens whose KV is written by sent steps (or was pulled)
  std::uint32_t computed = 0;        // of these, by steps that have ended
  std::uint32_t inflight = 0;        // steps in flight that name it
  std::uint32_t sampling = 0;        // tokens that steps in flight will sample for it
  // Of its columns, those that the pool's prefix index knows as this sequence's beginning.
  std::uint32_t remembered = 0;
  PrefixIndex::Node prefix_node = PrefixIndex::kRoot;  // ... and the last one's place in it
  std::uint32_t decode_slot = kNobody;                 // index in the worker's decode set
  bool on_worker = false;  // the worker has been sent it and not yet told to drop it
  bool retiring = false;   // preempted; kept until the steps that name it have ended
  bool stays = false;      // a suspect's prompt that will decode here, which no row has said
  bool is_target = false;  // being pulled into; not yet on its worker
  bool parked = false;     // its worker is away; it goes on once that is back with its pool
  // On the target of a hand-off, or while its prefix is pulled: columns [0, pulled) are there or
  // have been asked for. `open_pulls` are unanswered, those that gather it among them.
  std::uint32_t pulled = 0;
  std::uint32_t open_pulls = 0;
  std::unique_ptr<Spread> spread;  // null: `worker` alone computes it
  std::size_t untold = 0;  // of its extents, the last ones that its worker does not know yet

  /// Its blocks are in more than one place, or will be.
  bool spans() const { return extents.size() > 1 || !ahead.empty(); }
  bool lies_in(StoreIndex store) const {
    const auto here = [&](const Extent& extent) { return extent.store == store; };
    return std::any_of(extents.begin(), extents.end(), here) ||
           std::any_of(ahead.begin(), ahead.end(), here);
  }
  /// Tokens that its blocks hold, the reserved ones left out.
  std::uint32_t capacity(std::uint32_t tokens_per_block) const {
    return tail().first_token + static_cast<std::uint32_t>(tail().blocks.size()) * tokens_per_block;
  }

  /// The one that grows.
  Extent& tail() { return extents.back(); }
  const Extent& tail() const { return extents.back(); }
};

/// One Pull, until PullDone, PullFailed, or the end of the target's term. Without blocks it is a
/// probe: it belongs to no request (reachability.cpp).
struct OpenPull {
  PullId id = 0;
  std::uint64_t request = 0;
  SequenceId target = 0;
  WorkerIndex from_worker = kNobody;
  AllocationId from_allocation = 0;
  WorkerIndex to_worker = kNobody;
  std::vector<BlockId> from;
  std::vector<BlockId> to;
  std::vector<std::uint64_t> sums;  // as in Pull
  std::uint64_t number = 0;         // of its record in the target's OutstandingWork
  bool doubted = false;             // the source's process died of a fault: nothing is used

  bool is_probe() const { return from.empty(); }
};

/// A plan that was sent and whose result is not in.
struct InFlightStep {
  StepId step = 0;
  std::vector<SequenceId> decode;                          // one token each
  std::vector<std::pair<SequenceId, std::uint32_t>> rows;  // prompt rows: tokens computed
  std::vector<SequenceId> beams;                           // one token each; candidates come back
  std::vector<CopyOp> copies;  // between the pool and its host part; their pins go with the result
  std::vector<SlotWrite> writes;  // everything that it writes, copies included
  std::size_t samples = 0;        // rows that the result must answer
  double pairs = 0;               // attended_pairs() of its prompt rows
  TimeNs sent = 0;
  bool alone = false;  // of a suspect: no other step is in flight
};

/// Blocks of another store that steps of a worker read, which were released meanwhile: pinned there
/// as a pull's sources are, until those steps have ended, or the term.
struct ForeignRead {
  StepId last_sent = 0;
  StoreIndex store = kNobody;
  std::vector<BlockId> blocks;
};

/// What the worker's device took for its steps of late, copies of blocks left out (swap.cpp).
struct StepCosts {
  double decode_us = 0;      // a step without prompt tokens
  double prompt_us = 0;      // of the steps with some, beyond that; older ones count less and less
  double prompt_tokens = 0;  // in them
  double prompt_total_us = 0;  // what steps took beyond decoding, since the worker began
  double least_decode_us = 0;  // least that decode_us has been; 0: not known
  PromptCost prompts;          // of the steps with prompt tokens, decoding left out

  /// `pairs`: attended_pairs() of the prompt rows.
  void take(double step_us, std::uint32_t tokens, bool decodes, double pairs = 0);
  /// 0: not known.
  double token_us() const { return prompt_tokens > 0 ? prompt_us / prompt_tokens : 0; }
};

/// A request that was at work when a term ended which nobody was blamed for.
struct Unblamed {
  std::uint64_t request = 0;
  Stage stage = Stage::prefill;
  std::uint32_t progress = 0;  // Deaths::times() of that stage then
  std::uint64_t grammar = 0;   // as in Suspicion
};

enum class WorkerState : std::uint8_t {
  registering,  // older incarnation's pool is being closed by its importers
  loading,      // may allocate; Hello awaited
  ready,        // in term
  fenced,       // out of term; Hello awaited
  gone,         // its process ended; the entry stays for its name
};

inline const char* to_string(WorkerState state) {
  switch (state) {
    case WorkerState::registering:
      return "registering";
    case WorkerState::loading:
      return "loading";
    case WorkerState::ready:
      return "ready";
    case WorkerState::fenced:
      return "fenced";
    case WorkerState::gone:
      return "gone";
  }
  return "unknown";
}

/// A grammar that a worker was told of.
struct ToldGrammar {
  GrammarKind kind = GrammarKind::none;
  std::string text;      // while it is not answered: told again, also when nobody wants it any more
  bool ready = false;    // compiled, it says
  bool awaited = false;  // somebody who is placed there waits for it
  TimeNs told = 0;       // last time
  std::uint64_t number = 0;  // of its record in the worker's OutstandingWork
};

/// A worker's process: who it is, whether it lives, which of its messages count, and what it was
/// asked.
struct Peer {
  Register identity;
  LinkId link = kNoLink;
  WorkerState state = WorkerState::registering;
  Term term = 0;
  OutstandingWork work;  // everything that it was asked and has not answered
  WorkerHeartbeat heartbeat;
  TimeNs heard = 0;
  TimeNs registered = 0;
  bool draining = false;  // SIGTERM, or set by an operator
  bool leaving = false;   // SIGTERM: Leave once empty
  TimeNs drain_since = 0;
  bool leave_sent = false;
  std::vector<Unblamed> unblamed;  // of the last term, until the process shows that it lives
  Term fenced_term = 0;            // last stale term answered, and when
  TimeNs fenced_at = 0;
  // Stores of others, by allocation.
  std::set<AllocationId> imports;  // those that it was asked to pull from in this process life
  std::map<AllocationId, TimeNs>
      unreachable;                  // those that it could not map, and when it is asked again
  std::set<AllocationId> readable;  // those that its rows can read in place: it has said so
  TimeNs closes_repeated = 0;       // last time that closes were told again

  bool ready() const { return state == WorkerState::ready; }
  bool takes_work() const { return ready() && !draining; }
};

/// What a worker computes: its plans, who is in them, and what they cost. All but the costs and
/// totals begins anew with each term.
struct Compute {
  StepId sent = 0;
  StepId done = 0;
  std::deque<InFlightStep> steps;
  std::vector<SequenceId> decode_set;
  std::vector<SequenceId>
      singles;  // suspects that decode, each in steps of its own, outside the decode set
  std::vector<SequenceId> prefills;  // sequences with prompt tokens still to schedule, oldest first
  std::vector<SequenceId> spreads;   // prompts that it computes together with others, likewise
  std::vector<SequenceId>
      adds;  // go into the next plan, or the first one after their grammar is ready
  std::vector<SequenceId> joins;  // on the worker already; join the decode set with the next plan
  std::vector<SequenceId> drops;  // go into the next plan
  std::vector<std::uint64_t> beams;  // requests that run beams here
  std::deque<ForeignRead> reads;     // last_sent ascending
  std::uint32_t sequences = 0;       // sequences placed here (their widths), targets included
  std::uint32_t expected = 0;    // that run elsewhere and have blocks reserved here to go on, or
                                 // chunks of their prompts computed here
  bool short_of_blocks = false;  // its decode set waits for blocks: nobody else may take any
  // A suspect's turn comes: no pull and no grammar begins here any more, and once those that have
  // begun are answered, no step.
  bool makes_way = false;
  bool compiles_alone = false;  // the one grammar that is outstanding is a suspect's
  std::uint64_t pulls_answered = 0;
  std::unordered_map<std::uint64_t, ToldGrammar> grammars;  // by key
  TimeNs answered = 0;                                      // last step result
  TimeNs prompt_latency = 0;  // of the last step that computed prompt tokens
  // What its last answers were about, for whoever waited for a token meanwhile.
  struct {
    RequestId prompt;  // the largest one of the last step that had some, and when that had ended
    std::uint32_t prompt_tokens = 0;
    TimeNs prompt_at = 0;
    RequestId pull;
    TimeNs pull_at = 0;
  } lately;
  StepCosts costs;
  std::uint64_t steps_total = 0;  // over all terms
  std::uint64_t tokens_total = 0;

  /// A suspect's work is outstanding: nothing else may be.
  bool runs_alone() const { return compiles_alone || (!steps.empty() && steps.back().alone); }
  /// A pull or a grammar may begin here.
  bool may_begin() const { return !makes_way && !runs_alone(); }
};

/// A worker's KV memory. Everything in it is lost when the term ends, but what its owner said of
/// it; unless a memory process keeps it (kept_pool.h).
struct Store {
  Hello offer;  // allocation, geometry, handles; allocation 0: there is none
  BlockPool pool;
  /// If the worker tells them: the checksums that its blocks had behind the last step, or checked
  /// pull, that wrote to them.
  std::unordered_map<BlockId, std::uint64_t> sums;
  std::vector<CopyOp> copies;  // between the pool and its host part; go into the next plan
  /// What the pool has come to hold and lost; null: nobody asks. The same for all processes of the
  /// worker's name.
  std::unique_ptr<CacheLog> log;
  std::set<AllocationId>
      predecessors;                // pools of this name's earlier processes, perhaps still mapped
  std::uint32_t last_context = 0;  // context() of its last term, also while its next process loads
  std::uint32_t last_positions = 0;  // likewise what its model allows
  /// Its worker is out of term, and perhaps dead, and the books go on: parked sequences own blocks,
  /// others' pulls read, and what it caches will be found again.
  bool kept = false;
  TimeNs kept_since = 0;  // first tick of that; 0: not yet
  bool faulted = false;   // its worker dies of a fault: nothing in it is trusted

  TableShape shape;  // of its sequences' tables; follows from the offer

  AllocationId allocation() const { return offer.allocation; }
  std::uint32_t tokens_per_block() const { return offer.tokens_per_block; }
  /// Columns of a table of so many tokens: blocks, where layers have one group.
  std::uint32_t columns_for(std::uint32_t tokens) const { return shape.columns(tokens); }
  /// Tokens of the longest sequence that the pool holds, if it is alone.
  std::uint64_t pool_tokens() const { return shape.longest(offer.blocks); }
  /// ... and that the model allows.
  std::uint32_t context() const {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(pool_tokens(), offer.max_context));
  }
  bool holds(std::uint32_t tokens) const { return tokens <= context(); }
};

/// One worker of the cluster. What is said of all three parts at once is said here.
struct Worker {
  Peer peer;
  Compute compute;
  Store store;
  std::optional<Role> given_role;  // in place of the one that it was started with
  bool held = false;               // an operator's: `roles: auto` leaves it alone
  bool role_set_here = false;      // an operator has set or released it at this scheduler
  TimeNs role_since = 0;           // its last change, or the start of its process

  const std::string& name() const { return peer.identity.name; }
  Role role() const { return given_role.value_or(peer.identity.role); }
  /// The one that it was started with.
  Role home() const { return peer.identity.home; }
  bool ready() const { return peer.ready(); }
  bool takes_work() const { return peer.takes_work(); }
  bool decodes() const { return role() != Role::prefill; }
  bool may_begin() const { return compute.may_begin(); }
  /// Tokens of one step that it has room for.
  std::uint32_t step_room() const {
    return store.offer.max_step_tokens == 0 ? kNoLimit : store.offer.max_step_tokens;
  }
  /// Nothing but steps is outstanding.
  bool only_steps() const {
    return peer.work.open(Work::pull) == 0 && peer.work.open(Work::compile) == 0;
  }
};

struct Frontend {
  FrontendHello identity;
  LinkId link = kNoLink;
  TimeNs heard = 0;
  bool alive = false;
  /// Since then its process is gone, and its requests wait for its successor; 0: it is here.
  TimeNs away = 0;
  std::uint32_t told_context = 0;  // the max_context() that it was told last
  bool reachable() const { return alive && away == 0; }
};

struct Counters {
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::uint64_t finished = 0;
  std::uint64_t errors = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t tokens = 0;
  std::uint64_t prefill_tokens = 0;        // of admitted sequences, whether computed or found
  std::uint64_t cached_tokens = 0;         // of these, found in the prefix cache of the worker
  std::uint64_t computed_tokens = 0;       // in rows of prompts that were sent to workers
  std::uint64_t pulled_prefix_tokens = 0;  // of these, pulled from the cache of another one
  std::uint64_t prefix_pulls = 0;
  std::uint64_t pulls_saved = 0;  // blocks that a hand-off found at its target
  std::uint64_t preemptions = 0;
  std::uint64_t blocks_out = 0;  // copied from a pool to its host part
  std::uint64_t blocks_in = 0;   // ... and back
  std::uint64_t handoffs = 0;
  std::uint64_t local_prefills = 0;
  std::uint64_t remote_prefills = 0;
  std::uint64_t pull_failures = 0;
  std::uint64_t damaged_blocks = 0;  // pulled, and not what had been computed
  std::uint64_t terms_ended = 0;
  std::uint64_t worker_deaths = 0;  // processes that ended without a goodbye
  std::uint64_t requeued = 0;
  std::uint64_t resumed = 0;        // sequences that went on in a pool that outlived their worker
  std::uint64_t role_changes = 0;   // by an operator or by `roles: auto`
  std::uint64_t growths = 0;        // sequences that went on at another worker
  std::uint64_t spreads = 0;        // prompts that several workers computed at the same time
  std::uint64_t spread_chunks = 0;  // ... in so many chunks
  std::uint64_t spread_predicted_us = 0;  // ... which were to take so long, where that was known
  std::uint64_t spread_measured_us = 0;   // ... and took so long
  std::uint64_t spread_failures = 0;      // ... that were given up for a chunk that never came
  std::uint64_t gathers = 0;              // sequences whose blocks were pulled together again
  std::uint64_t gathered_blocks = 0;      // ... and how many came from other pools
  std::uint64_t growth_blocks_moved = 0;  // ... and blocks that were pulled for such: none ever
};

struct State {
  Epoch epoch = 0;
  TimeNs now = 0;                // of the event, or plan, at hand
  TimeNs started = -kNever / 2;  // when this scheduler began; long ago unless its shell says
  Settings settings;
  std::string build;
  Term last_term = 0;
  GrammarSecret grammar_secret{};  // zeros unless the shell draws it

  Slab<Request> requests;
  Slab<Sequence> sequences;
  Slab<OpenPull> pulls;
  std::unordered_map<RequestId, std::uint64_t> by_name;
  std::vector<Worker> workers;      // indexes are stable; an entry is reused by its name only
  std::vector<Frontend> frontends;  // likewise by incarnation
  std::unordered_map<LinkId, WorkerIndex> worker_links;
  std::unordered_map<LinkId, FrontendIndex> frontend_links;

  // Ordered by (place, id): the queue, hand-offs without a target, and every open request's
  // deadline. Who is next in the queue says QueueWalk (queue_order.h).
  std::set<std::pair<TimeNs, std::uint64_t>> waiting;
  std::set<std::pair<TimeNs, std::uint64_t>> handoffs;
  std::set<std::pair<TimeNs, std::uint64_t>> deadlines;

  // With `elastic: auto`: tokens of the longest request that pools have held together, as their
  // workers have shown, and since when max_context() is smaller (0: it is not). One of them may
  // come back; what an operator takes away is forgotten.
  std::uint32_t proven_context = 0;
  TimeNs context_lost = 0;

  // Grammars under whose compilation workers died, by key, since they last compiled (blame.h).
  std::unordered_map<std::uint64_t, GrammarDeaths> grammar_deaths;

  TimeNs terminals_repeated = 0;  // last time
  std::size_t queued = 0;        // requests without a place (for decoding) when planning last began
  std::uint64_t placements = 0;  // sequences that were given a place
  std::uint64_t evictions = 0;   // requests that were preempted

  std::vector<SequenceId> outgrown;  // that go on at another worker, or at home; or are gone
  std::vector<SequenceId> spanning;  // that may be gathered, or are gone
  std::vector<std::uint64_t>
      held_pulls;  // requests whose next pull waits for a suspect's turn to pass

  RoleWatch role_watch;
  Tenants tenants;  // whose requests they are, and what each has been given

  // Static batching: the running group, and how many of it have not ended.
  std::vector<std::uint64_t> group;

  Counters counters;
  std::shared_ptr<PartLog> part_log;  // null where nobody ever wants to know

  Store& store(StoreIndex index) { return workers[index].store; }
  const Store& store(StoreIndex index) const { return workers[index].store; }
  Request* request_of(const Sequence& sequence) { return requests.find(sequence.request); }
};

}  // namespace baton
