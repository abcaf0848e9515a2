// Which of the waiting requests may begin on a worker in the step that is being planned: a list of
// rules, each with a name, asked in order. The first one that speaks against a request decides.
#pragma once

#include <cstdint>

#include "scheduler/apply/events.h"
#include "scheduler/apply/tables.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/plan/spread.h"
#include "scheduler/prefix/prefix_pull.h"
#include "scheduler/state/block_pool.h"

namespace baton {

enum class QueueRuling : std::uint8_t {
  start,
  pass_over,  // this one cannot begin here now; those behind it may
  stop,       // nobody behind it may either
};

/// A request of the queue, and what the rules found out about it.
struct Candidate {
  Request& request;
  bool unready = false;          // its grammar is not compiled here
  StartSpan span = {};           // that it needs blocks for at once
  BlockPool::Match prefix = {};  // of these, found on this worker
  PrefixSource elsewhere = {};   // ... and worth pulling from another one
  std::vector<PoolShare> ahead =
      {};                  // of one that no single pool holds: its places behind `blocks`
  SpreadPlan spread = {};  // of one that several workers compute at the same time

  /// Others have a part in it: nothing is pulled for it.
  bool shared_out() const { return !ahead.empty() || !spread.chunks.empty(); }
};

/// One look through the queue for one worker. `logprob_budget` is that of the step; `reserved` are
/// the free blocks that those who run here grow into with their next tokens.
class AdmissionRules {
 public:
  AdmissionRules(State& state, WorkerIndex worker, TimeNs now, Outbox& out, bool suspects,
                 const std::uint32_t& logprob_budget, std::uint32_t reserved);

  /// May end the request (it fits nobody, or its beams do not), and may ask for a suspect's turn
  /// (Compute::makes_way).
  QueueRuling judge(Candidate& candidate);
  /// It begins here.
  void admitted(const Candidate& candidate) { held_ += candidate.unready ? 1 : 0; }

 private:
  struct Rule {
    const char* name;
    QueueRuling (AdmissionRules::*judge)(Candidate&);
  };
  static const Rule kRules[];

  QueueRuling waits_for_its_group(Candidate& candidate);
  QueueRuling its_blocks_are_elsewhere(Candidate& candidate);
  QueueRuling enough_wait_for_grammars(Candidate& candidate);
  QueueRuling looked_far_enough(Candidate& candidate);
  QueueRuling logits_are_taken(Candidate& candidate);
  QueueRuling others_prefill_it(Candidate& candidate);
  QueueRuling too_long(Candidate& candidate);
  QueueRuling beams_do_not_fit(Candidate& candidate);
  QueueRuling enough_run(Candidate& candidate);
  QueueRuling no_room(Candidate& candidate);
  QueueRuling no_room_around(Candidate& candidate);
  bool spreads(Candidate& candidate) const;
  bool fits(const Candidate& candidate) const;
  QueueRuling better_placed_elsewhere(Candidate& candidate);
  QueueRuling less_to_do_elsewhere(Candidate& candidate);
  QueueRuling prefix_is_on_its_way(Candidate& candidate);
  QueueRuling pull_may_not_begin(Candidate& candidate);
  QueueRuling not_its_turn(Candidate& candidate);

  State& state_;
  Worker& w_;
  WorkerIndex index_;
  TimeNs now_;
  Outbox& out_;
  bool suspects_;  // one suspect is looked for; otherwise the others, up to the first suspect that
                   // could come
  const std::uint32_t& logprob_budget_;
  const std::uint32_t reserved_;
  std::uint32_t held_ = 0;  // prompts that are here and wait, or will, for their grammars
  std::uint32_t most_held_ = 0;
  int looked_ = 0;
  int elsewhere_kept_ = 0;
  int without_grammar_ = 0;
};

/// Tokens of a step's rows with LogitsWanted::all: each costs its worker a whole line of logits.
constexpr std::uint32_t kLogprobBudget = 64;
bool wants_prompt_logprobs(const Request& request);
/// A row of the request need not wait for the compiler of its grammar.
bool may_draw(const Worker& worker, const Request& request);

}  // namespace baton
