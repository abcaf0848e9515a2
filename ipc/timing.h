// Where a request's time went. The scheduler tells its part (RequestTiming, in Events), the front
// end adds its own and keeps the whole (ExplainedRequest, timing_ring.h). All processes are on one
// host: their times are of one monotonic clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "ipc/types.h"

namespace baton {

// NOLINTBEGIN(bugprone-macro-parentheses)
#define BATON_FIELDS(...)                         \
  auto fields() { return std::tie(__VA_ARGS__); } \
  auto fields() const { return std::tie(__VA_ARGS__); }
// NOLINTEND(bugprone-macro-parentheses)

/// A request is in exactly one of these at any time from its first byte to its last one, so that
/// their times add up to what the client waited.
enum class Part : std::uint8_t {
  // the front end
  read,      // from its first byte on the socket to its last one
  tokenise,  // parsed, rendered, tokenised, and handed to the loop
  unsent,    // no scheduler had it, or one that died had
  submit,    // on its way to the scheduler
  // the scheduler
  queue,        // waits for its first place on a worker
  prefix_pull,  // the beginning of its prompt is pulled from another worker
  prefill,      // its prompt is computed, or waits for its turn on its worker
  grammar,      // waits for its grammar to be compiled
  handoff,      // its blocks are pulled by the worker that decodes
  decode_wait,  // waits for room on a worker that decodes, or for that one's next step
  decode,
  requeue,    // waits for a place once more: preempted, or its worker died
  recompute,  // its prompt and tokens are computed, or pulled, once more
  away,       // its worker died and is awaited with its pool
  // the front end
  deliver,  // from the scheduler to the front end's loop
  write,    // to the client's socket
};
constexpr std::size_t kParts = 16;
using PartTimes = std::array<TimeNs, kParts>;
const char* to_string(Part part);

/// Something that happened to a request in the scheduler's hands.
enum class MomentKind : std::uint8_t {
  chunk,      // `count` chunks of its prompt, `tokens` in all, ran on `worker`
  pull,       // `worker` pulled `tokens` blocks of it
  decodes,    // from here on `worker` decodes it
  gap,        // between two tokens: well above the median
  died,       // `worker` ended its term under it
  preempted,  // `worker` needed its blocks for others
  moved,      // its place was given up for another reason
};
constexpr std::uint32_t kMomentKinds = 7;
const char* to_string(MomentKind kind);

/// What ran in a gap.
enum class GapCause : std::uint8_t {
  unknown,  // none of these: messages, or processors, were waited for
  step,     // the step itself took so long
  prompt,   // `tokens` of the prompt of `other` ran beside it
  pull,     // the worker pulled blocks of `other`
  suspect,  // a step of its own for a request that has killed workers
};
constexpr std::uint32_t kGapCauses = 5;
const char* to_string(GapCause cause);

struct Moment {
  std::uint32_t kind = 0;    // MomentKind
  std::uint32_t cause = 0;   // GapCause
  std::uint32_t worker = 0;  // in RequestTiming::workers
  TimeNs at = 0;             // it began; since RequestTiming::begin
  TimeNs took = 0;
  std::uint32_t tokens = 0;
  std::uint32_t count = 0;
  RequestId other;  // counter 0: nobody's
  BATON_FIELDS(kind, cause, worker, at, took, tokens, count, other)
};

/// Why a request went from one worker to another.
enum class MoveCause : std::uint8_t {
  handoff,    // prefilled on the one, it decodes on the other
  died,       // the first one's process, or its term, ended
  preempted,  // the first one needed its blocks for others
  drained,    // the first one was told to leave
  pull,       // blocks did not come across as they should
  grew,       // the first one had no block left for it, and keeps those that it has
  grammar,    // the first one no longer had its compiled grammar
};
constexpr std::uint32_t kMoveCauses = 7;
const char* to_string(MoveCause cause);

/// A request goes on in another place; `from` and `to` may be the same worker, which then began
/// with it anew.
struct Move {
  std::uint32_t cause = 0;  // MoveCause
  std::uint32_t from = 0;   // in RequestTiming::workers
  std::uint32_t to = 0;     // likewise
  TimeNs at = 0;            // `to` began; since RequestTiming::begin
  TimeNs away = 0;          // it had had no place for so long
  BATON_FIELDS(cause, from, to, at, away)
};

/// What one rule of admission had a request wait for.
struct QueueReason {
  std::string why;
  TimeNs took = 0;
  BATON_FIELDS(why, took)
};

/// One attempt at a request as the scheduler has it: `spent` adds up to `until` - `begin`.
struct RequestTiming {
  std::uint64_t counter = 0;
  std::uint32_t attempt = 0;
  TimeNs begin = 0;                   // it came
  TimeNs until = 0;                   // so far this tells
  std::uint32_t part = 0;             // the one that it was in then
  bool ended = false;                 // that was its end
  std::vector<TimeNs> spent;          // by Part
  std::uint32_t ahead = 0;            // requests that were waiting when it came
  RequestId behind;                   // the first of them; counter 0: none
  std::uint32_t cached_tokens = 0;    // of its prompt, found where it was prefilled
  std::uint32_t pulled_tokens = 0;    // ... found elsewhere, and pulled
  std::uint32_t computed_tokens = 0;  // in prompt rows, over all tries
  std::uint32_t decode_steps = 0;     // tokens that decoding made
  TimeNs median_gap = 0;              // between two of them; 0: not known
  std::uint32_t preemptions = 0;
  std::uint32_t deaths = 0;  // of workers under it
  // Only once it has ended:
  std::vector<QueueReason> reasons;
  std::vector<std::string> workers;  // that moments and moves name
  std::vector<Moment> moments;
  std::vector<Move> moves;      // the first and the last ones
  std::uint32_t all_moves = 0;  // ... of so many
  BATON_FIELDS(counter, attempt, begin, until, part, ended, spent, ahead, behind, cached_tokens,
               pulled_tokens, computed_tokens, decode_steps, median_gap, preemptions, deaths,
               reasons, workers, moments, moves, all_moves)
};

/// A request of a client, from its first byte to its last one: `spent` adds up to `total`. Of
/// several choices it is the way of the one that ended last.
struct ExplainedRequest {
  std::string request_id;  // the client's
  std::string asked;       // "POST /v1/completions"
  std::string front_end;
  std::uint64_t generation = 0;  // processes that had the front end's clients before
  std::uint64_t at = 0;          // unix nanoseconds of the first byte
  std::string end;               // why it ended, "client left" included
  std::uint32_t status = 0;      // of HTTP; 0: none was told
  std::uint32_t choices = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t tokens = 0;
  std::uint32_t attempts = 0;  // at schedulers
  TimeNs first_token = 0;      // since the first byte; 0: none came
  TimeNs total = 0;
  bool told = false;          // by the scheduler: else `timing` is empty
  std::vector<TimeNs> spent;  // by Part
  RequestId name;             // the scheduler's of that choice
  RequestTiming timing;
  BATON_FIELDS(request_id, asked, front_end, generation, at, end, status, choices, prompt_tokens,
               tokens, attempts, first_token, total, told, spent, name, timing)
};

#undef BATON_FIELDS

/// When a front end saw what of a request (monotonic; 0: it was not this process).
struct FrontendMarks {
  TimeNs first_byte = 0;
  TimeNs whole = 0;      // its last byte was read
  TimeNs opened = 0;     // it came to the loop, tokenised
  TimeNs submitted = 0;  // its last attempt was sent
  TimeNs ended = 0;      // its end came to the loop
  TimeNs written = 0;    // its last byte was given to the socket
};

/// The parts of a request, which add up to `written` - `first_byte` exactly. `timing` may be null,
/// end before the request did (what follows counts as its last part), or after it.
PartTimes split_time(const FrontendMarks& marks, const RequestTiming* timing);

}  // namespace baton
