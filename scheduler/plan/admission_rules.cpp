#include "scheduler/plan/admission_rules.h"

#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/grammars.h"
#include "scheduler/plan/admission.h"
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/plan/policy.h"
#include "scheduler/plan/queue_order.h"
#include "scheduler/plan/spread.h"
#include "scheduler/plan/static_batching.h"
#include "scheduler/plan/swap.h"
#include "scheduler/prefix/prefix_cache.h"

namespace baton {

bool wants_prompt_logprobs(const Request& request) {
  return request.sampling.prompt_logprobs >= 0 && request.generated.empty();
}

bool may_draw(const Worker& worker, const Request& request) {
  return grammar_ready(worker, request) || fault(Fault::grammar_not_awaited);
}

// Cheap ones first; what a rule finds out (Candidate) is there for those behind it.
const AdmissionRules::Rule AdmissionRules::kRules[] = {
    {"its group's members come later", &AdmissionRules::waits_for_its_group},
    {"it was preempted elsewhere and goes back there", &AdmissionRules::its_blocks_are_elsewhere},
    {"enough prompts wait here for grammars", &AdmissionRules::enough_wait_for_grammars},
    {"nobody looks further down the queue", &AdmissionRules::looked_far_enough},
    {"another prompt has the step's lines of logits", &AdmissionRules::logits_are_taken},
    {"another role prefills it", &AdmissionRules::others_prefill_it},
    {"the pool or the model is too small for it", &AdmissionRules::too_long},
    {"its beams do not fit", &AdmissionRules::beams_do_not_fit},
    {"as many run here as may", &AdmissionRules::enough_run},
    {"no blocks are left", &AdmissionRules::no_room},
    {"another worker knows more of it", &AdmissionRules::better_placed_elsewhere},
    {"another worker has less to do", &AdmissionRules::less_to_do_elsewhere},
    {"its beginning is being pulled for somebody else", &AdmissionRules::prefix_is_on_its_way},
    {"no pull may begin here", &AdmissionRules::pull_may_not_begin},
    {"it is a suspect's turn, or the others'", &AdmissionRules::not_its_turn},
};

AdmissionRules::AdmissionRules(State& state, WorkerIndex worker, TimeNs now, Outbox& out,
                               bool suspects, const std::uint32_t& logprob_budget,
                               std::uint32_t reserved)
    : state_(state),
      w_(state.workers[worker]),
      index_(worker),
      now_(now),
      out_(out),
      suspects_(suspects),
      logprob_budget_(logprob_budget),
      reserved_(fault(Fault::growth_not_reserved) ? 0 : reserved),
      most_held_(std::clamp<std::uint32_t>(most_running(state, w_) / 2, 1, kMostHeld)) {
  for (const SequenceId id : w_.compute.prefills) {
    held_ += may_draw(w_, *state.request_of(*state.sequences.find(id))) ? 0 : 1;
  }
}

QueueRuling AdmissionRules::judge(Candidate& candidate) {
  candidate.unready = !may_draw(w_, candidate.request);
  for (const Rule& rule : kRules) {
    const QueueRuling answer = (this->*rule.judge)(candidate);
    if (answer == QueueRuling::start) continue;
    candidate.request.passed_over = rule.name;
    // Of a worker that would not have it anyway, nobody waits for the rule.
    if (rule.judge != &AdmissionRules::others_prefill_it)
      candidate.request.times.waits_for(rule.name, now_);
    return answer;
  }
  return QueueRuling::start;
}

namespace {

QueueRuling pass_over_if(bool condition) {
  return condition ? QueueRuling::pass_over : QueueRuling::start;
}

/// Over so many of a kind, and no further: a long queue of them must not make every plan slow.
QueueRuling pass_over_some(int& passed) {
  return ++passed > kAsideLook ? QueueRuling::stop : QueueRuling::pass_over;
}

}  // namespace

QueueRuling AdmissionRules::waits_for_its_group(Candidate& candidate) {
  return pass_over_if(!static_batch_allows(state_, candidate.request));
}

QueueRuling AdmissionRules::its_blocks_are_elsewhere(Candidate& candidate) {
  const Request& request = candidate.request;
  if (request.kept.worker == index_ || !goes_back(state_, request, now_)) return QueueRuling::start;
  return pass_over_some(elsewhere_kept_);
}

QueueRuling AdmissionRules::enough_wait_for_grammars(Candidate& candidate) {
  if (!candidate.unready || held_ < most_held_) return QueueRuling::start;
  return pass_over_some(without_grammar_);
}

QueueRuling AdmissionRules::looked_far_enough(Candidate& /*candidate*/) {
  return ++looked_ > kQueueLook ? QueueRuling::stop : QueueRuling::start;
}

QueueRuling AdmissionRules::logits_are_taken(Candidate& candidate) {
  return pass_over_if(logprob_budget_ == 0 && wants_prompt_logprobs(candidate.request));
}

QueueRuling AdmissionRules::others_prefill_it(Candidate& candidate) {
  return pass_over_if(!may_prefill(state_, candidate.request, w_, now_));
}

QueueRuling AdmissionRules::too_long(Candidate& candidate) {
  return pass_over_if(refuse_too_long(state_, w_, candidate.request, now_, out_));
}

QueueRuling AdmissionRules::beams_do_not_fit(Candidate& candidate) {
  return pass_over_if(!beams_fit(state_, w_, candidate.request, now_, out_));
}

/// has_room() says no to it, too, but not why.
QueueRuling AdmissionRules::enough_run(Candidate& candidate) {
  const std::uint32_t width = decodes_here(state_, w_) ? candidate.request.sampling.num_beams : 1;
  const std::uint32_t running = w_.compute.sequences + w_.compute.expected;
  const bool full = running != 0 && running + width > most_running(state_, w_);
  return full ? QueueRuling::stop : QueueRuling::start;
}

QueueRuling AdmissionRules::no_room(Candidate& candidate) {
  const Request& request = candidate.request;
  // The last token is always computed: its logits are wanted, and they are nowhere.
  candidate.prefix = cached_prefix(state_, request, w_, request.length() - 1);
  if (state_.settings.elastic && spreads(candidate)) return QueueRuling::start;
  if (!w_.store.holds(request.length() + 1)) return no_room_around(candidate);
  candidate.span = {candidate.prefix.columns * w_.store.tokens_per_block(), request.length() + 1};
  return fits(candidate) ? QueueRuling::start : QueueRuling::stop;
}

/// Over several workers at once, if it is long and enough of them are idle.
bool AdmissionRules::spreads(Candidate& candidate) const {
  const Request& request = candidate.request;
  const std::uint32_t known = candidate.prefix.columns * w_.store.tokens_per_block();
  if (!may_spread(state_, request, known)) return false;
  const auto found = static_cast<std::uint32_t>(candidate.prefix.blocks.size());
  const std::uint32_t taken = found - std::min(found, candidate.prefix.shared) + reserved_;
  const std::uint32_t room = elastic_room(state_, w_, now_);
  if (room <= taken) return false;
  candidate.spread = spread_out(state_, index_, request, known, room - taken, now_);
  if (candidate.spread.chunks.empty()) return false;
  candidate.span = {known, known + candidate.spread.chunks.front().tokens};
  return true;
}

bool AdmissionRules::fits(const Candidate& candidate) const {
  return has_room(state_, w_, candidate.request,
                  blocks_to_take(w_.store, candidate.span, candidate.prefix) + reserved_);
}

/// As much of it here as there is room for, the rest at others.
QueueRuling AdmissionRules::no_room_around(Candidate& candidate) {
  const std::uint32_t per_block = w_.store.tokens_per_block();
  const std::uint32_t needed = w_.store.shape.columns(candidate.request.length() + 1);
  const std::uint32_t available = w_.store.pool.available_blocks();
  const std::uint32_t kept =
      reserved_ + (w_.compute.sequences + w_.compute.expected == 0
                       ? 0
                       : std::max(watermark(state_.settings, w_), w_.compute.expected));
  if (w_.compute.short_of_blocks || available <= kept) return QueueRuling::stop;
  std::uint32_t own = available - kept + candidate.prefix.shared;
  if (candidate.prefix.blocks.size() > own) {
    candidate.prefix = {};
    own = available - kept;
  }
  own = std::min(own, needed);
  const auto ahead = share_out(state_, index_, needed - own, now_);
  if (!ahead) return QueueRuling::stop;
  candidate.span = {candidate.prefix.columns * per_block, own * per_block};
  candidate.ahead = *ahead;
  return QueueRuling::start;
}

QueueRuling AdmissionRules::better_placed_elsewhere(Candidate& candidate) {
  if (!candidate.ahead.empty()) return QueueRuling::start;
  return pass_over_if(better_placed(state_, candidate.request, w_, candidate.prefix.columns, now_));
}

QueueRuling AdmissionRules::less_to_do_elsewhere(Candidate& candidate) {
  if (!candidate.ahead.empty()) return QueueRuling::start;
  // Those that it would be spread over have nothing to do (spread.cpp): one of them begins it.
  if (!candidate.spread.chunks.empty() && w_.compute.sequences != 0 &&
      now_ - candidate.request.arrival < kWaitForBalance)
    return QueueRuling::pass_over;
  return pass_over_if(lighter_elsewhere(state_, candidate.request, w_, now_));
}

QueueRuling AdmissionRules::prefix_is_on_its_way(Candidate& candidate) {
  if (candidate.shared_out()) return QueueRuling::start;  // nothing is pulled for it
  candidate.elsewhere = find_prefix(state_, candidate.request, index_, candidate.prefix.columns);
  if (is_being_pulled(state_, candidate.elsewhere, index_)) return QueueRuling::pass_over;
  if (w_.store.shape.plain() || candidate.elsewhere.worker == kNobody) return QueueRuling::start;
  // What is pulled lies where the windows look from behind it: that may take more blocks.
  const StartSpan alone = candidate.span;
  candidate.span.from = candidate.elsewhere.columns * w_.store.tokens_per_block();
  if (fits(candidate)) return QueueRuling::start;
  candidate.span = alone;
  candidate.elsewhere = {};
  return QueueRuling::start;
}

QueueRuling AdmissionRules::pull_may_not_begin(Candidate& candidate) {
  return pass_over_if(candidate.elsewhere.worker != kNobody && !w_.may_begin());
}

QueueRuling AdmissionRules::not_its_turn(Candidate& candidate) {
  if (suspects_ == is_suspect(state_, candidate.request)) return QueueRuling::start;
  if (suspects_ || w_.compute.makes_way) return QueueRuling::pass_over;
  w_.compute.makes_way = true;
  return QueueRuling::stop;
}

}  // namespace baton
