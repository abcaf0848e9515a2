// Every struct that crosses a queue, and nothing else does. docs/PROTOCOL.md tells who sends what
// when.
//
// A struct lists its fields once, in `fields()`; the codec packs them as one msgpack array in that
// order. Vectors of integers are packed as little-endian binary: 4 bytes a token whatever its
// value. A change of any struct is a change of kProtocolVersion and of the golden bytes under
// tests/golden.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "ipc/kv_groups.h"
#include "ipc/status.h"
#include "ipc/timing.h"
#include "ipc/types.h"

namespace baton {

constexpr std::uint32_t kProtocolVersion = 22;

// NOLINTBEGIN(bugprone-macro-parentheses)
#define BATON_FIELDS(...)                         \
  auto fields() { return std::tie(__VA_ARGS__); } \
  auto fields() const { return std::tie(__VA_ARGS__); }
// NOLINTEND(bugprone-macro-parentheses)

/// Log probabilities of some tokens, by columns: entry i is about the token items[i] (its holder
/// says which), which has logprobs[i]; the next counts[i] of `top_tokens` and `top_logprobs` are
/// the most probable ones in its place, best first. Natural logarithms of the model's own
/// distribution: no sampling setting has touched it. Masked tokens have kLowestLogprob.
struct Logprobs {
  std::vector<std::uint32_t> items;
  std::vector<float> logprobs;
  std::vector<std::uint32_t> counts;
  std::vector<Token> top_tokens;
  std::vector<float> top_logprobs;
  // Where nothing is drawn (SamplingParams::pooling) an entry has a vector instead: its values are
  // the next vector_sizes[i] of `vectors`. No sizes: no entry has one.
  std::vector<std::uint32_t> vector_sizes;
  std::vector<float> vectors;
  BATON_FIELDS(items, logprobs, counts, top_tokens, top_logprobs, vector_sizes, vectors)

  bool operator==(const Logprobs&) const = default;
  void clear();
  /// The columns are equally long, the sizes add up, `items` ascends, and no vector is longer than
  /// SamplingParams::kMaxPooled.
  bool agrees() const;
  void push(std::uint32_t item, float logprob, std::span<const Token> tops,
            std::span<const float> top_values, std::span<const float> vector = {});
  void append(const Logprobs& other);
};

/// Walks over the entries in order. `agrees()` holds for what it walks over.
class LogprobReader {
 public:
  struct Entry {
    float logprob = 0;
    std::span<const Token> top_tokens;
    std::span<const float> top_logprobs;
    std::span<const float> vector;  // empty: none
  };
  explicit LogprobReader(const Logprobs& values) : values_(&values) {}
  bool done() const { return entry_ == values_->items.size(); }
  std::uint32_t item() const { return values_->items[entry_]; }
  /// Takes the next entry if it is about `item`.
  bool take(std::uint32_t item, Entry& entry);

 private:
  const Logprobs* values_;
  std::size_t entry_ = 0;
  std::size_t top_ = 0;
  std::size_t value_ = 0;
};

constexpr float kLowestLogprob = -9999.0F;

/// Of the tokens of one prompt; items are their positions, from 1 on. What is more than a message
/// holds comes in parts.
struct PromptLogprobs {
  std::uint64_t owner = 0;  // StepResult: the sequence; Events: the request's counter
  Logprobs values;
  std::uint32_t first = 0;  // Events: entries of the prompt before these
  bool more = false;        // Events: others follow, when they are asked for
  BATON_FIELDS(owner, values, first, more)
};

// ---------------------------------------------------------------- front end -> scheduler

/// First message of a front end, and again whenever it meets a scheduler that does not know it. A
/// successor says its predecessor's incarnation, with a higher generation.
struct FrontendHello {
  std::uint32_t protocol = kProtocolVersion;
  std::string build;  // --version of the sender; two that differ are both logged and shown
  std::string name;
  Incarnation incarnation = 0;
  std::int32_t pid = 0;
  std::uint64_t pid_start = 0;  // /proc/PID/stat field 22: tells a reused pid apart
  std::string tokenizer;        // where these two come from, for people
  std::string chat_template;
  bool has_successor = false;    // another process may go on with this incarnation's requests
  std::uint32_t generation = 0;  // processes that had this incarnation before
  // Of a successor: the counters of its predecessors' requests that it goes on with, ascending; no
  // more than a front end has open. What is not among them, nobody waits for.
  std::vector<std::uint64_t> inherited;
  std::string task;  // what it asks of the model, for people: "generate", "embed", "rerank"
  BATON_FIELDS(protocol, build, name, incarnation, pid, pid_start, tokenizer, chat_template,
               has_successor, generation, inherited, task)
};

constexpr std::int32_t kMaxPriority = 100;

constexpr std::size_t kMaxTenantName = 64;
constexpr float kLeastTenantWeight = 0.001F;
constexpr float kMostTenantWeight = 1000.0F;

/// Whose request it is, and what that one is due beside others (`queue_order: fair`).
struct TenantShare {
  std::string tenant;         // an API key's name; empty: it has none, and shares with all of those
  float weight = 1;           // tenants of equal priority are served in proportion to it
  std::int32_t priority = 0;  // lower is served before others; within kMaxPriority of 0
  BATON_FIELDS(tenant, weight, priority)

  bool operator==(const TenantShare&) const = default;
};

/// Between two words of how far one prompt is.
constexpr TimeNs kProgressInterval = 100 * kMillisecond;

/// One request, or one more attempt at it. A higher attempt replaces a lower one.
struct Submit {
  Epoch epoch = 0;  // a stale one is dropped: the front end will have been told to say hello
  RequestId request;
  std::uint32_t attempt = 1;
  TimeNs arrival = 0;         // first arrival; orders the queue, also across a scheduler's death
  TimeNs deadline = 0;        // absolute
  std::int32_t priority = 0;  // lower is earlier; within kMaxPriority of 0
  bool lifetime = false;      // its Terminal shall tell when its phases began and ended
  bool again = false;         // was accepted before: past the admission limits
  std::string cache_salt;
  std::vector<Token> prompt;
  std::vector<Token> generated;  // tokens that the client has
  SamplingParams sampling;
  TenantShare share;
  bool progress = false;  // while its prompt is computed, Events shall tell how far that is
  BATON_FIELDS(epoch, request, attempt, arrival, deadline, priority, lifetime, again, cache_salt,
               prompt, generated, sampling, share, progress)
};

/// The client left, or its front end gave up.
struct Cancel {
  RequestId request;
  BATON_FIELDS(request)
};

/// A stop string matched: the request ends after `n` tokens, whatever was sampled since.
struct Finish {
  RequestId request;
  std::uint32_t attempt = 0;
  std::uint32_t n = 0;
  BATON_FIELDS(request, attempt, n)
};

/// The terminal message arrived: the scheduler may forget the request.
struct Ack {
  RequestId request;
  BATON_FIELDS(request)
};

/// Sent twice a second and whenever a gap shows. `counters/attempts/next` name requests without
/// news for a while (a bounded number, taken in turns); the scheduler answers each with the tokens
/// from
/// `next`, its terminal, or Gone. This heals every lost message between the two.
struct FrontendHeartbeat {
  Epoch epoch = 0;
  std::vector<std::uint64_t> counters;
  std::vector<std::uint32_t> attempts;
  std::vector<std::uint32_t> next;  // index of the next token wanted
  // Where that is 0: entries of the prompt's log probabilities that are here. Empty: none of any.
  std::vector<std::uint32_t> prompt_entries = {};
  BATON_FIELDS(epoch, counters, attempts, next, prompt_entries)
};

/// The front end leaves on purpose; what it still has open is cancelled.
struct FrontendBye {
  Incarnation incarnation = 0;
  BATON_FIELDS(incarnation)
};

using FrontendMessage =
    std::variant<FrontendHello, Submit, Cancel, Finish, Ack, FrontendHeartbeat, FrontendBye>;

// ---------------------------------------------------------------- scheduler -> front end

/// What the blocks of one worker's pool are used for; what is left of `blocks` is free.
struct PoolUse {
  std::string worker;
  Role role = Role::mixed;
  std::uint32_t blocks = 0;
  std::uint32_t owned = 0;   // named by running requests
  std::uint32_t fenced = 0;  // released, but a step or a pull in flight names them
  std::uint32_t cached = 0;  // kept for later prompts, given away when nothing is free
  BATON_FIELDS(worker, role, blocks, owned, fenced, cached)
};

struct FrontendWelcome {
  std::uint32_t protocol = kProtocolVersion;
  std::string build;
  Epoch epoch = 0;
  std::uint32_t workers_ready = 0;  // workers that can take work now
  std::uint32_t max_context = 0;    // prompt + output tokens that fit every pool; 0 = not known yet
  std::uint64_t progress = 0;       // steps done by all workers: /health is judged by it
  std::uint32_t running = 0;        // requests admitted and not ended
  std::uint32_t waiting = 0;        // of these, without a place on a worker
  std::uint64_t host_blocks = 0;    // in the host parts of all pools
  std::uint64_t host_blocks_used = 0;  // of these, blocks that keep something
  std::uint64_t blocks_out = 0;        // copied from pools to their host parts
  std::uint64_t blocks_in = 0;         // ... and back
  std::uint64_t damaged_blocks = 0;  // pulled, and not what had been computed (worker.check_pulls)
  std::uint64_t preemptions = 0;
  std::uint64_t computed_tokens = 0;  // of prompts, in rows that were sent to workers
  std::uint64_t resumed = 0;          // sequences that went on in a pool that outlived their worker
  std::uint64_t role_changes = 0;     // of workers, by an operator or by themselves
  std::uint64_t handoffs = 0;         // from one worker to another
  std::uint64_t terms_ended = 0;      // of workers, for whatever reason
  std::uint64_t worker_deaths = 0;    // processes that ended without a goodbye
  std::uint32_t tokens_per_block = 0;  // 0: no pool yet
  std::vector<PoolUse> pools;          // of the workers in term
  std::uint64_t growths =
      0;  // sequences that went on at another worker, their blocks left in place
  BATON_FIELDS(protocol, build, epoch, workers_ready, max_context, progress, running, waiting,
               host_blocks, host_blocks_used, blocks_out, blocks_in, damaged_blocks, preemptions,
               computed_tokens, resumed, role_changes, handoffs, terms_ended, worker_deaths,
               tokens_per_block, pools, growths)
};

/// The one last message of an accepted request (or the refusal of a new one).
struct Terminal {
  std::uint64_t counter = 0;
  std::uint32_t attempt = 0;
  // Tokens and FinishReason of each sequence: one, or the num_return_sequences of a beam search,
  // best first. A search's tokens come at its end, those of all its sequences one after another.
  std::vector<std::uint32_t> n;
  std::vector<std::uint32_t> reason;
  std::vector<float> scores;  // of a beam search
  ErrorCode code = ErrorCode::ok;
  std::string message;
  std::uint32_t retry_after_s = 0;  // with queue_full
  std::vector<TimeNs> lifetime;     // by LifetimeMoment, 0: it never came; empty: nobody asked
  BATON_FIELDS(counter, attempt, n, reason, scores, code, message, retry_after_s, lifetime)
};

/// Tokens of one step for one front end, by columns: row i is (counters[i], attempts[i]), its
/// tokens are the next counts[i] of `tokens`, the first of them at index first_index[i].
struct Events {
  Epoch epoch = 0;
  std::vector<std::uint64_t> counters;
  std::vector<std::uint32_t> attempts;
  std::vector<std::uint32_t> first_index;
  std::vector<std::uint32_t> counts;
  std::vector<Token> tokens;
  std::vector<Terminal> terminals;
  Logprobs logprobs;  // items: indexes into `tokens`; only of requests that asked for it
  // Beside the row with the request's first token; before that, where a message does not hold them
  // all, beside rows without a token.
  std::vector<PromptLogprobs> prompt_logprobs;
  // Likewise, of every request whose first token is here: the first begun_cached[i] tokens of its
  // prompt were found in a prefix cache, and its first chunk was planned at begun_at[i].
  std::vector<std::uint64_t> begun_counters;
  std::vector<std::uint32_t> begun_cached;
  std::vector<TimeNs> begun_at;
  // Of requests whose first token is here, or their first one in another place, or their terminal
  // (then with all that happened to them).
  std::vector<RequestTiming> timings;
  // Of requests that asked (Submit::progress) and have no token yet, no more often than
  // kProgressInterval, but for the last one: progress_done[i] tokens of the prompt are there, of
  // which progress_cached[i] were found in a prefix cache, progress_took[i] after the first chunk
  // was planned. One that is lost is not told again.
  std::vector<std::uint64_t> progress_counters;
  std::vector<std::uint32_t> progress_attempts;
  std::vector<std::uint32_t> progress_done;
  std::vector<std::uint32_t> progress_cached;
  std::vector<TimeNs> progress_took;
  BATON_FIELDS(epoch, counters, attempts, first_index, counts, tokens, terminals, logprobs,
               prompt_logprobs, begun_counters, begun_cached, begun_at, timings, progress_counters,
               progress_attempts, progress_done, progress_cached, progress_took)
};

/// The scheduler does not know these requests: submit them again with the next attempt.
struct Gone {
  Epoch epoch = 0;
  std::vector<std::uint64_t> counters;
  BATON_FIELDS(epoch, counters)
};

/// The scheduler does not know this front end (it restarted): say hello, then submit again.
struct FrontendUnknown {
  Epoch epoch = 0;
  BATON_FIELDS(epoch)
};

/// The peer cannot be served; it logs the reason and exits (protocol mismatch, different model).
struct Refused {
  std::string reason;
  BATON_FIELDS(reason)
};

using ToFrontend = std::variant<FrontendWelcome, Events, Gone, FrontendUnknown, Refused>;

// ---------------------------------------------------------------- worker -> scheduler

/// Phase one of joining: fences the older incarnation of the name and makes importers close its
/// pool.
struct Register {
  std::uint32_t protocol = kProtocolVersion;
  std::string build;
  std::string name;
  Incarnation incarnation = 0;
  Role role = Role::mixed;
  Role home = Role::mixed;  // the one that it was started with
  bool held = false;        // an operator gave it `role`: it keeps that
  std::int32_t pid = 0;
  std::uint64_t pid_start = 0;
  std::string device;                // "cpu", or the GPU's UUID
  std::vector<AllocationId> mapped;  // pools that it maps: a new scheduler cannot know
  BATON_FIELDS(protocol, build, name, incarnation, role, home, held, pid, pid_start, device, mapped)
};

/// One rank's pool. `handle`: the segment's name on CPUs, the 64 bytes of a cudaIpcMemHandle on
/// GPUs.
struct PoolRank {
  std::string device;
  std::string handle;
  BATON_FIELDS(device, handle)
};

/// What a worker chose or found, for people: `baton ctl show setup`.
struct WorkerFacts {
  std::string weights;  // their type in memory: "bf16", "f32 (stored as gptq)"
  std::uint64_t weight_bytes = 0;
  std::uint64_t free_bytes = 0;   // memory that was free when the pool was planned; 0: not known
  std::uint32_t threads = 0;      // of a step; 0 on GPUs
  std::uint64_t weight_copy = 0;  // equal for workers that map the same weights; 0: its own
  BATON_FIELDS(weights, weight_bytes, free_bytes, threads, weight_copy)
};

/// Phase two: the pool exists. Sent with a new `hello_id` for every term asked for, repeated with
/// the same one until Welcome comes.
///
/// A pool has up to two parts with one range of block ids: [0, blocks) lie on the device, [blocks,
/// blocks + host_blocks) in host memory, where blocks are kept that nobody computes with. Tables of
/// sequences name device blocks alone.
struct Hello {
  std::string name;
  Incarnation incarnation = 0;
  std::uint64_t hello_id = 0;
  AllocationId allocation = 0;
  std::vector<PoolRank> ranks;
  // Geometry (ipc/kv_layout.h). Pools that differ in anything but `blocks` are never connected.
  std::uint64_t model_fingerprint = 0;
  std::uint32_t dtype = 0;
  std::uint32_t layers = 0;  // in one block: those of one group
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t tokens_per_block = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t blocks = 0;
  std::string host_handle;  // the segment's name; empty: no host part
  std::uint32_t host_blocks = 0;
  /// Microseconds that one block takes from the device to the host part, or back: half of both, as
  /// measured at the start.
  float host_block_us = 0;
  std::uint32_t max_context = 0;  // positions that the model allows
  std::uint32_t vocab_size = 0;
  std::uint32_t max_step_tokens =
      0;  // tokens of one step that it has room for; 0: as many as are planned
  WorkerFacts facts;
  bool tells_sums = false;      // its StepResults tell the checksums of what they wrote
  bool leased = false;          // a memory process keeps the pool: it outlives this process
  bool reads_in_place = false;  // its rows may name blocks of pools that it has mapped
  // Layers that share blocks (kv_groups.h): how far each group sees, 0 for everything, and the
  // group of each layer, for people. Both empty: one group of all layers, which see everything.
  std::vector<std::uint32_t> windows;
  std::vector<std::uint32_t> layer_groups;
  /// Where it tells how far its steps are, layer by layer (a segment's name): rows of others may
  /// wait for it there. Empty: nowhere, and its rows wait for nobody.
  std::string progress_handle;
  BATON_FIELDS(name, incarnation, hello_id, allocation, ranks, model_fingerprint, dtype, layers,
               kv_heads, head_dim, tokens_per_block, block_bytes, blocks, host_handle, host_blocks,
               host_block_us, max_context, vocab_size, max_step_tokens, facts, tells_sums, leased,
               reads_in_place, windows, layer_groups, progress_handle)
};

/// As a Hello that has at most kMaxKvGroups says it.
KvGroups groups_of(const Hello& hello);

/// A row of the step could not be served (non-finite logits, say); the others are unaffected.
/// `unmapped`: nothing is wrong with the request, but a pool that holds some of its blocks is not
/// mapped here (any more). `waited`: nor is it then, but who was to write what it reads has not
/// (StepWait). `grammar_missing`: nor is it then, but its grammar is not compiled here.
struct RowFailure {
  SequenceId sequence = 0;
  std::string reason;
  bool unmapped = false;
  bool waited = false;
  bool grammar_missing = false;
  BATON_FIELDS(sequence, reason, unmapped, waited, grammar_missing)
};

/// The step has ended and its writes are visible. sequences[i] got tokens[i]; rows that sample
/// nothing are not listed.
struct StepResult {
  Term term = 0;
  StepId step = 0;
  std::vector<std::uint64_t> sequences;
  std::vector<Token> tokens;
  std::vector<RowFailure> failed;
  std::uint32_t duration_us = 0;
  std::uint32_t waited_us = 0;                  // of these, for other workers (StepWait)
  Logprobs logprobs;                            // items: indexes into `tokens`
  std::vector<PromptLogprobs> prompt_logprobs;  // of rows with LogitsWanted::all
  std::vector<std::uint64_t> beam_sequences;    // rows of beam searches, which sample nothing
  /// What may follow each of beam_sequences (items: indexes into it), best first: its num_beams
  /// most probable tokens, and as many of those that do not stop it. Masks, bias and penalties have
  /// acted on the log probabilities.
  Logprobs candidates;
  /// With Hello::tells_sums: the blocks that the step wrote to, of either part, and sums[i], the
  /// checksum that summed[i] had when it ended.
  std::vector<BlockId> summed;
  std::vector<std::uint64_t> sums;
  BATON_FIELDS(term, step, sequences, tokens, failed, duration_us, waited_us, logprobs,
               prompt_logprobs, beam_sequences, candidates, summed, sums)
};

struct PullDone {
  Term term = 0;
  PullId pull_id = 0;
  std::uint32_t duration_us = 0;
  BATON_FIELDS(term, pull_id, duration_us)
};

/// `damaged`: everything was copied, but of these source blocks the copies do not have the
/// checksums that the Pull names.
struct PullFailed {
  Term term = 0;
  PullId pull_id = 0;
  std::string reason;
  std::vector<BlockId> damaged;
  BATON_FIELDS(term, pull_id, reason, damaged)
};

/// The importer has no mapping of that allocation (any more).
struct Closed {
  AllocationId allocation = 0;
  BATON_FIELDS(allocation)
};

/// Liveness is progress: counters, not the sender's pulse. Sent every 250 ms and after a drain
/// begins.
struct WorkerHeartbeat {
  Term term = 0;  // 0 while out of term
  Incarnation incarnation = 0;
  StepId plans_received = 0;
  StepId steps_done = 0;
  std::uint64_t pulls_received = 0;  // in this term
  std::uint64_t pulls_done = 0;      // done or failed, in this term
  std::uint32_t loading_percent = 100;
  bool draining = false;  // SIGTERM: hand the sequences over
  bool leased = false;    // as in Hello; no more once the memory process has died
  BATON_FIELDS(term, incarnation, plans_received, steps_done, pulls_received, pulls_done,
               loading_percent, draining, leased)
};

/// Answer to AuditTables: which blocks each sequence names, flattened. In several messages where
/// one does not hold them; all but the last one have `more`.
struct Tables {
  Term term = 0;
  StepId steps_done = 0;
  std::vector<std::uint64_t> sequences;
  std::vector<std::uint32_t> counts;
  std::vector<BlockId> blocks;
  bool more = false;
  BATON_FIELDS(term, steps_done, sequences, counts, blocks, more)
};

/// Answer to PrepareGrammar: rows that draw by it will not wait for it. It may be one that cannot
/// be compiled: such a row fails. Or, later, not `ready`: the worker has forgotten it, and must be
/// told of it again.
struct GrammarState {
  Term term = 0;
  std::uint64_t key = 0;
  bool ready = true;
  BATON_FIELDS(term, key, ready)
};

/// The worker leaves on purpose: its sequences were handed over or its bound has passed.
struct WorkerBye {
  Incarnation incarnation = 0;
  BATON_FIELDS(incarnation)
};

using WorkerMessage = std::variant<Register, Hello, StepResult, PullDone, PullFailed, Closed,
                                   WorkerHeartbeat, Tables, GrammarState, WorkerBye>;

// ---------------------------------------------------------------- scheduler -> worker

/// Answer to Register: nobody holds the older incarnation's memory any more; allocate.
struct Registered {
  Epoch epoch = 0;
  Incarnation incarnation = 0;
  BATON_FIELDS(epoch, incarnation)
};

/// Answer to Hello: a new term, with no sequences and every block free.
struct Welcome {
  Epoch epoch = 0;
  Term term = 0;
  std::uint64_t hello_id = 0;
  BATON_FIELDS(epoch, term, hello_id)
};

/// Copies one block onto another inside the worker's own pool, from either part of it to either,
/// before the step's rows run.
struct CopyOp {
  BlockId from = 0;
  BlockId to = 0;
  BATON_FIELDS(from, to)
};

/// Blocks in one pool that a sequence reads and does not write: all full and computed. The worker
/// has mapped that pool for it (Pull::in_place), or it is its own.
struct PoolBlocks {
  AllocationId allocation = 0;
  std::vector<BlockId> blocks;
  BATON_FIELDS(allocation, blocks)
};

/// A sequence, whole. `computed` tokens of prompt + generated already have their KV in `blocks` (a
/// finished hand-off: all but the last; of a beam search: all). With `decode` it joins the decode
/// set at once. Its first tokens may lie in other pools (`before`, in order), and `blocks` are
/// those behind them. Where layers have several groups, `blocks` has as many entries side by side
/// for each tokens_per_block tokens. kNoBlock: a window has left the place behind, or growth will
/// fill it.
struct AddSequence {
  SequenceId sequence = 0;
  std::vector<Token> prompt;
  std::vector<Token> generated;
  SamplingParams sampling;
  std::vector<BlockId> blocks;
  std::uint32_t computed = 0;
  bool decode = false;
  std::vector<PoolBlocks> before;
  BATON_FIELDS(sequence, prompt, generated, sampling, blocks, computed, decode, before)
};

/// The next tokens of a sequence are computed by another worker: their blocks, all of them full
/// then, follow those that its table has. This worker goes on behind them.
struct BlocksElsewhere {
  SequenceId sequence = 0;
  PoolBlocks part;
  BATON_FIELDS(sequence, part)
};

/// A row of this plan reads blocks that another worker may still be writing, in its step `step` of
/// term `term`: before each layer's attention it waits until that one has written that layer, which
/// it tells at `handle` (Hello::progress_handle). If it never will, the row fails (`waited`).
struct StepWait {
  SequenceId sequence = 0;
  std::string handle;
  Term term = 0;
  StepId step = 0;
  BATON_FIELDS(sequence, handle, term, step)
};

/// A new sequence that begins as `parent` stands before this plan's rows: the same tokens, the same
/// full blocks (shared: nobody writes to them any more), and `blocks`, one a group, behind them.
/// Where the parent has written into the block in that place, a CopyOp of the same plan brings it
/// over.
struct ForkSequence {
  SequenceId sequence = 0;
  SequenceId parent = 0;
  std::vector<BlockId> blocks;
  BATON_FIELDS(sequence, parent, blocks)
};

/// A running beam: `token` follows its sequence and is computed; candidates come back.
struct BeamRow {
  SequenceId sequence = 0;
  Token token = 0;
  BATON_FIELDS(sequence, token)
};

/// The next `n_tokens` of a sequence's prompt + generated tokens. `then_decode`: from the next step
/// on the sequence belongs to the decode set. With logits `all` the result also has the log
/// probabilities of the known tokens that follow each of them.
struct PromptRow {
  SequenceId sequence = 0;
  std::uint32_t n_tokens = 0;
  LogitsWanted logits = LogitsWanted::none;
  bool then_decode = false;
  BATON_FIELDS(sequence, n_tokens, logits, then_decode)
};

/// One step, as a difference to the state that the worker remembers. Applied in this order: drop,
/// add, fork, elsewhere, grow, ops, then the rows run: the prompt rows, the beams, one token for
/// each of `singles`, and (with `decode`) one for every sequence of the decode set. `singles` are
/// sequences outside that set. Sequences that a row of this very plan moves into the decode set
/// start with the next.
///
/// Of `ops`, those from the device part to the host part run first, whatever their place, the
/// others after them in their order: a plan can save a block and give it away. No two of them write
/// one block.
struct StepPlan {
  Term term = 0;
  StepId step = 0;
  bool decode = false;
  std::vector<std::uint64_t> drop;
  std::vector<AddSequence> add;
  std::vector<ForkSequence> fork;
  std::vector<std::uint64_t> grow_sequences;  // grow_blocks[i] is appended to grow_sequences[i]
  std::vector<BlockId> grow_blocks;
  std::vector<std::uint32_t> grow_groups;  // ... for the layers of that group; empty: of group 0
  std::vector<CopyOp> ops;
  std::vector<PromptRow> rows;
  std::vector<BeamRow> beams;
  std::vector<std::uint64_t> singles;
  std::vector<BlocksElsewhere> elsewhere;
  std::vector<StepWait> waits;  // at most one a sequence
  BATON_FIELDS(term, step, decode, drop, add, fork, grow_sequences, grow_blocks, grow_groups, ops,
               rows, beams, singles, elsewhere, waits)
};

/// Read source blocks out of a mapped pool, from either part of it, into own device blocks. Ends in
/// one PullDone or PullFailed.
struct Pull {
  Term term = 0;
  PullId pull_id = 0;
  AllocationId allocation = 0;
  std::vector<PoolRank> ranks;
  std::int32_t exporter_pid = 0;  // 0: the pool outlives its worker, and Close says when it ends
  std::uint64_t exporter_pid_start = 0;
  std::uint32_t exporter_blocks = 0;  // size of its pool, in blocks
  /// Its host part, as its Hello has it: in every pull, since the first one maps both.
  std::string exporter_host_handle;
  std::uint32_t exporter_host_blocks = 0;
  std::vector<BlockId> from;
  std::vector<BlockId> to;
  std::vector<std::uint64_t> sums;  // empty, or the checksum that each copy must have; 0: not known
  /// Rows shall be able to name its blocks, too, as long as it is mapped (PoolBlocks).
  bool in_place = false;
  BATON_FIELDS(term, pull_id, allocation, ranks, exporter_pid, exporter_pid_start, exporter_blocks,
               exporter_host_handle, exporter_host_blocks, from, to, sums, in_place)
};

/// Unmap that allocation when your pulls from it have ended, then say Closed.
struct Close {
  AllocationId allocation = 0;
  BATON_FIELDS(allocation)
};

/// The named term is over: drain, drop everything, say Hello. With another epoch: Register first.
/// `hung`: something that was asked is not answered for so long that draining would not end: exit.
struct Fenced {
  Epoch epoch = 0;
  Term term = 0;
  bool hung = false;
  BATON_FIELDS(epoch, term, hung)
};

/// A younger process has this name: exit without freeing.
struct Superseded {
  Incarnation incarnation = 0;
  BATON_FIELDS(incarnation)
};

struct AuditTables {
  Term term = 0;
  BATON_FIELDS(term)
};

/// Rows that draw by this grammar will come as soon as the worker answers that it is ready. `key`
/// is what the scheduler calls it; the same kind and text have the same one. `awaited`: a sequence
/// that is placed on the worker waits for it, so it goes before others; where too many are, one
/// that is not awaited is passed over in silence.
struct PrepareGrammar {
  Term term = 0;
  std::uint64_t key = 0;
  GrammarKind kind = GrammarKind::none;
  std::string grammar;
  bool awaited = false;
  BATON_FIELDS(term, key, kind, grammar, awaited)
};

/// A draining worker has nothing left that anybody needs: exit.
struct Leave {
  Incarnation incarnation = 0;
  BATON_FIELDS(incarnation)
};

/// The worker has this role from now on. It registers with it at the next scheduler; its next
/// process has its own again. `held`: an operator says so, and `roles: auto` leaves it alone.
struct TakeRole {
  Incarnation incarnation = 0;
  Role role = Role::mixed;
  bool held = false;
  BATON_FIELDS(incarnation, role, held)
};

using ToWorker = std::variant<Registered, Welcome, StepPlan, Pull, Close, Fenced, Superseded,
                              AuditTables, PrepareGrammar, Leave, Refused, TakeRole>;

// ---------------------------------------------------------------- worker <-> memory process

/// What a pool's bytes mean. A kept pool is given to whoever asks with an equal key, and given up
/// for any other one.
struct PoolKey {
  std::uint64_t model_fingerprint = 0;
  std::string weights;  // their type in memory: other weights compute other keys and values
  std::uint32_t dtype = 0;
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t tokens_per_block = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t layout = 0;  // kKvLayoutVersion
  BATON_FIELDS(model_fingerprint, weights, dtype, layers, kv_heads, head_dim, tokens_per_block,
               block_bytes, layout)
};

/// A worker's process asks for its pool, both parts of it, once its model is loaded. The memory
/// process takes the pid from the kernel.
struct Lease {
  std::string worker;
  Incarnation incarnation = 0;
  AllocationId allocation = 0;  // what a fresh pool is to be called
  PoolKey key;
  std::uint32_t blocks = 0;
  std::uint32_t host_blocks = 0;
  /// Nobody has configured `blocks`: a kept pool of any size will do.
  bool planned = false;
  BATON_FIELDS(worker, incarnation, allocation, key, blocks, host_blocks, planned)
};

/// The answer, once no older process of the name lives. Segments have the names that are given here
/// and the size of so many blocks; the bytes of a fresh one are all zero.
struct Leased {
  AllocationId allocation = 0;  // 0: refused
  /// A segment; of a GPU a cudaIpcMemHandle_t in hex, "@", and the memory process's name.
  std::string device_handle;
  std::string host_handle;  // empty: no host part
  std::uint32_t blocks = 0;
  std::uint32_t host_blocks = 0;
  bool kept = false;  // it holds what an earlier process has written
  std::string why;    // not kept: what spoke against the pool that there was, if there was one
  BATON_FIELDS(allocation, device_handle, host_handle, blocks, host_blocks, kept, why)
};

/// Before a worker maps a GPU's pool that is not its own: the memory at the handle is not used for
/// anything else as long as this link lives. Answered by Leased, of which `allocation` is 0 if
/// there is no such pool any more.
struct PoolMapped {
  std::string handle;  // Leased::device_handle
  BATON_FIELDS(handle)
};

/// What packed weights follow from: two workers with equal keys would pack the same bytes.
struct WeightsKey {
  std::uint64_t model_fingerprint = 0;
  std::uint64_t files = 0;   // names, sizes and times of the checkpoint's files
  std::string format;        // "stored", "bf16", "f32"
  std::uint32_t layout = 0;  // kWeightLayoutVersion
  BATON_FIELDS(model_fingerprint, files, format, layout)
};

/// A worker asks for packed weights, on a link of their own: it uses them for as long as that
/// lives.
struct WeightsAsk {
  std::string worker;
  WeightsKey key;
  std::uint64_t bytes = 0;  // of device memory that they take; 0: whoever packs brings the memory
  std::string damaged;      // a handle: what lies there is not what was sealed
  BATON_FIELDS(worker, key, bytes, damaged)
};

/// The answer, once nobody else is packing them. With `sealed` their memory comes along (a
/// descriptor beside the packet; of a GPU the handle). With `fill` the asker packs them, on a GPU
/// into the memory at `handle`, whose bytes are all zero, and says WeightsSealed. Neither: refused.
struct WeightsGiven {
  bool sealed = false;
  bool fill = false;
  std::string why;          // refused
  std::string handle;       // a cudaIpcMemHandle_t in hex
  std::uint64_t bytes = 0;  // of the memory at `handle`
  std::uint64_t sum = 0;    // as in WeightsSealed
  BATON_FIELDS(sealed, fill, why, handle, bytes, sum)
};

/// They are packed: the sealed memory comes along, or lies at the handle. Answered by WeightsGiven
/// without a descriptor.
struct WeightsSealed {
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;  // of a GPU's memory: whoever maps it compares
  BATON_FIELDS(bytes, sum)
};

/// Of baton-ctl. `drop` empty: only the report.
struct MemoryCommand {
  std::string drop;  // MemoryEntry::what
  BATON_FIELDS(drop)
};

/// Something that the memory process keeps.
struct MemoryEntry {
  std::string what;   // "pool:decode0", "weights:5f0c"
  std::string state;  // "held", "waits" for its worker or for anybody, "filling", "spoiled"
  std::vector<std::string> workers;  // that hold it; of a pool that waits: whose it is
  std::vector<std::int32_t> pids;    // their processes, in the same order
  std::uint64_t bytes = 0;           // of memory that it takes
  TimeNs since_ns = 0;               // for how long the state has been so
  BATON_FIELDS(what, state, workers, pids, bytes, since_ns)
};

struct MemoryReport {
  std::string error;  // why nothing was dropped
  std::int32_t pid = 0;
  std::vector<MemoryEntry> entries;
  std::uint32_t left_out = 0;  // more entries than a packet holds
  BATON_FIELDS(error, pid, entries, left_out)
};

using ToMemory = std::variant<Lease, WeightsAsk, WeightsSealed, MemoryCommand, PoolMapped>;
using FromMemory = std::variant<Leased, WeightsGiven, MemoryReport>;

// ---------------------------------------------------------------- front end -> its own file

/// A record of RUN_DIR/NAME.timing (timing_ring.h).
using TimingRecord = std::variant<ExplainedRequest>;

#undef BATON_FIELDS

}  // namespace baton
