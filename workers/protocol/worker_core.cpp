#include "workers/protocol/worker_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ipc/codec.h"
#include "ipc/exit_status.h"
#include "ipc/fault_points.h"
#include "workers/protocol/block_sums.h"

namespace baton {

using worker_action::Log;
using worker_action::Send;

namespace {

/// Blocks of one Tables: a quarter of a message.
constexpr std::size_t kTableBlocks = kMaxMessageBytes / 4 / sizeof(BlockId);

}  // namespace

WorkerCore::WorkerCore(WorkerIdentity identity, WorkerCoreOptions options)
    : identity_(std::move(identity)),
      role_(identity_.role),
      options_(options),
      open_(std::clamp<std::size_t>(options.steps_at_once, 1, kMaxStepsAtOnce)) {}

// ---------------------------------------------------------------- joining

void WorkerCore::start(TimeNs now, WorkerActions& out) { send_register(now, out); }

void WorkerCore::send_register(TimeNs now, WorkerActions& out) {
  state_ = State::registering;
  repeat_at_ = now + options_.repeat_every;
  Register m;
  m.build = identity_.build;
  m.name = identity_.name;
  m.incarnation = identity_.incarnation;
  m.role = role_;
  m.home = identity_.role;
  m.held = held_;
  m.pid = identity_.pid;
  m.pid_start = identity_.pid_start;
  m.device = identity_.device;
  m.mapped = pulls_.mapped();
  out.emplace_back(Send{std::move(m)});
}

void WorkerCore::say_hello(bool at_once, TimeNs now, WorkerActions& out) {
  state_ = State::hello;
  hello_.hello_id = ++hello_id_;
  hello_since_ = now;
  repeat_at_ = now + options_.repeat_every;
  if (at_once) out.emplace_back(Send{hello_});
}

void WorkerCore::on(Registered& m, TimeNs now, WorkerActions& out) {
  if (m.incarnation != identity_.incarnation) return;
  if (state_ != State::registering) {
    if (m.epoch != epoch_) another_epoch(now, out);
    return;
  }
  epoch_ = m.epoch;
  heartbeat_at_ = now + options_.heartbeat_every;
  if (pool_ == PoolState::ready) return say_hello(true, now, out);
  state_ = State::registered;
  if (pool_ == PoolState::none) {
    pool_ = PoolState::allocating;
    out.emplace_back(worker_action::AllocatePool{});
  }
}

void WorkerCore::pool_ready(Hello pool, TimeNs now, WorkerActions& out) {
  if (state_ == State::exited || pool_ != PoolState::allocating) return;
  pool_ = PoolState::ready;
  loading_percent_ = 100;
  hello_ = std::move(pool);
  hello_.name = identity_.name;
  hello_.incarnation = identity_.incarnation;
  hello_.tells_sums = options_.tells_sums;
  sequences_.set_limits({hello_.blocks, hello_.tokens_per_block, hello_.max_context,
                         hello_.vocab_size, hello_.host_blocks, hello_.max_step_tokens,
                         hello_.allocation, groups_of(hello_)});
  sequences_.set_readable([this](AllocationId other) { return pulls_.readable(other); });
  if (state_ == State::registered) say_hello(true, now, out);
}

void WorkerCore::pool_failed(const std::string& reason, bool final, WorkerActions& out) {
  exit(final ? kExitUsage : kExitFault, reason, out);
}

void WorkerCore::on(Welcome& m, TimeNs now, WorkerActions& out) {
  if (state_ == State::registering) return;
  if (m.epoch != epoch_) return another_epoch(now, out);
  if (m.term == 0 || m.hello_id != hello_id_) return;
  if (state_ == State::in_term && m.term != term_) {
    return end_term("the scheduler granted another term", false, now, out);
  }
  if (state_ != State::hello) return;
  state_ = State::in_term;
  term_ = m.term;
  term_since_ = now;
  plans_received_ = 0;
  steps_done_ = 0;
  pulls_received_ = 0;
  pulls_done_ = 0;
  out.emplace_back(Log{Log::Level::info, "term " + std::to_string(term_) + " begins"});
  send_heartbeat(now, out);
}

// ---------------------------------------------------------------- the end of a term

void WorkerCore::on(Fenced& m, TimeNs now, WorkerActions& out) {
  if (state_ == State::registering) return;
  if (m.epoch != epoch_) return another_epoch(now, out);
  if (m.hung && (state_ == State::in_term || state_ == State::ending) && m.term == term_) {
    return exit(kExitFault, "the scheduler has waited too long for an answer", out);
  }
  if (state_ == State::in_term && m.term == term_) return end_term("fenced", false, now, out);
  // No term named: the scheduler does not know this link, and answers no Hello on it.
  const bool joining = state_ == State::registered || state_ == State::hello;
  if (m.term == 0 && joining) send_register(now, out);
}

void WorkerCore::another_epoch(TimeNs now, WorkerActions& out) {
  switch (state_) {
    case State::in_term:
      register_again_ = true;
      return end_term("another scheduler answers", false, now, out);
    case State::ending:
      register_again_ = true;
      return;
    case State::registered:
    case State::hello:
      return send_register(now, out);
    case State::registering:
    case State::exited:
      return;
  }
}

void WorkerCore::end_term(const std::string& why, bool fault, TimeNs now, WorkerActions& out) {
  out.emplace_back(Log{fault ? Log::Level::error : Log::Level::warning,
                       "term " + std::to_string(term_) + " ends: " + why});
  state_ = State::ending;
  ending_since_ = now;
  // A scheduler that repeats a violation is not answered at full speed.
  hello_waits_ = fault && now - term_since_ < kSecond;
  plans_.clear();
  pulls_.forget_waiting();
  audit_wanted_ = false;
  start_closes(out);
  finish_ending(now, out);
}

/// Nothing of a term survives it: a step or pull that still writes must have retired before Hello
/// says that every block is free.
void WorkerCore::finish_ending(TimeNs now, WorkerActions& out) {
  if (state_ != State::ending || n_open_ > 0 || pulls_.out() > 0) return;
  sequences_.clear();
  start_closes(out);
  if (draining_) return bye("the term ended while draining", out);
  if (!register_again_) return say_hello(!hello_waits_, now, out);
  register_again_ = false;
  send_register(now, out);
}

void WorkerCore::send_failed(TimeNs now, WorkerActions& out) {
  if (state_ == State::in_term) return end_term("a message could not be sent", false, now, out);
  repeat_at_ = std::min(repeat_at_, now + options_.retry_unsent);
}

void WorkerCore::message_lost(const std::string& why, TimeNs now, WorkerActions& out) {
  if (state_ == State::in_term) return end_term("an unreadable message: " + why, true, now, out);
  if (state_ != State::exited) {
    out.emplace_back(Log{Log::Level::error, "an unreadable message: " + why});
  }
}

/// Messages of another term are dropped silently.
bool WorkerCore::stale(Term term) const {
  return state_ != State::in_term || (term != term_ && !fault(Fault::no_term_check));
}

// ---------------------------------------------------------------- steps

void WorkerCore::on(StepPlan& m, TimeNs now, WorkerActions& out) {
  if (stale(m.term)) return;
  if (m.step != plans_received_ + 1 && !fault(Fault::lost_plan_unnoticed)) {
    return end_term(
        "plan " + std::to_string(m.step) + " came after " + std::to_string(plans_received_), false,
        now, out);
  }
  if (plans_.size() + n_open_ >= options_.max_plans) {
    return end_term("more than " + std::to_string(options_.max_plans) + " plans at once", true, now,
                    out);
  }
  plans_received_ = m.step;
  plans_.push_back(std::move(m));
  start_steps(now, out);
}

void WorkerCore::start_steps(TimeNs now, WorkerActions& out) {
  // Tables are compared at rest: nothing new begins until they are told.
  while (state_ == State::in_term && n_open_ < open_.size() && !plans_.empty() && !audit_wanted_ &&
         !open_step_holds()) {
    StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    OpenStep& step = open_[(first_open_ + n_open_) % open_.size()];
    if (auto problem = sequences_.begin_step(plan, step)) {
      return end_term("plan " + std::to_string(plan.step) + ": " + *problem, true, now, out);
    }
    ++n_open_;
    if (options_.tells_sums)
      step.run.summed =
          written_blocks(step.run, hello_.tokens_per_block, sequences_.limits().groups.count);
    if (step.lacks_rows) out.emplace_back(worker_action::LackRows{term_, step.run.step});
    if (on_device(step)) {
      out.emplace_back(worker_action::StartStep{&step.run});
    } else {
      complete_empty_steps(out);
    }
  }
  start_closes(out);  // of what sequences that are gone now have read
}

/// A token that an open step draws must be known here before the next step can begin.
bool WorkerCore::open_step_holds() const {
  for (std::size_t i = 0; i < n_open_; ++i) {
    if (open_[(first_open_ + i) % open_.size()].run.holds_next_step()) return true;
  }
  return false;
}

bool WorkerCore::on_device(const OpenStep& step) {
  return !step.run.rows.empty() || !step.run.copies.empty();
}

/// Steps with nothing for the device end when those before them have.
void WorkerCore::complete_empty_steps(WorkerActions& out) {
  while (n_open_ > 0 && !on_device(open_[first_open_])) complete_step(StepOutput{}, out);
}

void WorkerCore::step_finished(const StepOutput& output, TimeNs now, WorkerActions& out) {
  if (state_ == State::exited || n_open_ == 0) return;
  if (state_ != State::in_term) {
    retire_step();
    while (n_open_ > 0 && !on_device(open_[first_open_])) retire_step();
    return finish_ending(now, out);
  }
  complete_step(output, out);
  complete_empty_steps(out);
  if (audit_wanted_ && n_open_ == 0) send_tables(out);
  start_steps(now, out);
}

void WorkerCore::complete_step(const StepOutput& output, WorkerActions& out) {
  OpenStep& step = open_[first_open_];
  StepResult result;
  result.term = term_;
  result.step = step.run.step;
  result.duration_us = output.duration_us;
  result.waited_us = output.waited_us;
  result.failed = std::move(step.refused);
  sequences_.end_step(step, output, result);
  if (output.sums.size() == step.run.summed.size()) {
    result.summed = std::move(step.run.summed);
    result.sums = output.sums;
  }
  steps_done_ = step.run.step;
  retire_step();
  out.emplace_back(Send{std::move(result)});
}

void WorkerCore::retire_step() {
  open_[first_open_].owners.clear();
  first_open_ = (first_open_ + 1) % open_.size();
  --n_open_;
}

void WorkerCore::step_failed(const std::string& reason, WorkerActions& out) {
  const StepId step = n_open_ > 0 ? open_[first_open_].run.step : 0;
  exit(kExitFault, "step " + std::to_string(step) + " failed: " + reason, out);
}

// ---------------------------------------------------------------- pulls and mappings

void WorkerCore::on(Pull& m, TimeNs now, WorkerActions& out) {
  if (stale(m.term)) return;
  const PullId pull_id = m.pull_id;
  if (pulls_.knows(pull_id)) {
    return end_term("pull " + std::to_string(pull_id) + " named twice", true, now, out);
  }
  ++pulls_received_;
  if (auto problem = pulls_.add(std::move(m), hello_.blocks, options_.max_open_pulls)) {
    ++pulls_done_;
    out.emplace_back(Send{PullFailed{term_, pull_id, *problem, {}}});
    return;
  }
  start_pulls(out);
}

void WorkerCore::start_pulls(WorkerActions& out) {
  while (auto pull = pulls_.next(options_.pulls_at_once)) {
    out.emplace_back(worker_action::StartPull{std::move(*pull)});
  }
}

void WorkerCore::pull_finished(PullId pull_id, const std::optional<std::string>& failure,
                               std::uint32_t duration_us, TimeNs now, WorkerActions& out,
                               std::vector<BlockId> damaged) {
  if (state_ == State::exited || !pulls_.finished(pull_id, !failure)) return;
  if (state_ == State::in_term) {
    ++pulls_done_;
    if (failure) {
      out.emplace_back(Send{PullFailed{term_, pull_id, *failure, std::move(damaged)}});
    } else {
      out.emplace_back(Send{PullDone{term_, pull_id, duration_us}});
    }
  }
  start_pulls(out);
  start_closes(out);
  finish_ending(now, out);
}

void WorkerCore::on(Close& m, TimeNs /*now*/, WorkerActions& out) {
  if (!pulls_.mapped(m.allocation)) {
    out.emplace_back(Send{Closed{m.allocation}});
    return;
  }
  pulls_.want_close(m.allocation);
  start_closes(out);
}

void WorkerCore::exporter_gone(AllocationId allocation, TimeNs /*now*/, WorkerActions& out) {
  if (state_ == State::exited) return;
  pulls_.want_close(allocation);
  start_closes(out);
}

/// A step that began keeps what it reads, also of a sequence that has been dropped since.
bool WorkerCore::reads(AllocationId allocation) const {
  for (std::size_t i = 0; i < n_open_; ++i) {
    for (const auto& owner : open_[(first_open_ + i) % open_.size()].owners) {
      if (SequenceTable::reads(*owner, allocation)) return true;
    }
  }
  return sequences_.reads(allocation);
}

void WorkerCore::start_closes(WorkerActions& out) {
  if (!pulls_.wants_closes()) return;
  for (const AllocationId allocation :
       pulls_.begin_closes([this](AllocationId pool) { return reads(pool); })) {
    out.emplace_back(worker_action::CloseMapping{allocation});
  }
}

void WorkerCore::mapping_closed(AllocationId allocation, TimeNs /*now*/, WorkerActions& out) {
  if (state_ == State::exited || !pulls_.mapped(allocation)) return;
  pulls_.closed(allocation);
  out.emplace_back(Send{Closed{allocation}});
}

// ---------------------------------------------------------------- reports

void WorkerCore::send_heartbeat(TimeNs now, WorkerActions& out) {
  heartbeat_at_ = now + options_.heartbeat_every;
  WorkerHeartbeat m;
  m.term = term();
  m.incarnation = identity_.incarnation;
  m.plans_received = plans_received_;
  m.steps_done = steps_done_;
  m.pulls_received = pulls_received_;
  m.pulls_done = pulls_done_;
  m.loading_percent = loading_percent_;
  m.draining = draining_;
  m.leased = hello_.leased;
  out.emplace_back(Send{std::move(m)});
}

void WorkerCore::on(AuditTables& m, TimeNs /*now*/, WorkerActions& out) {
  if (stale(m.term)) return;
  // Tables go with steps_done: while a step runs they already hold what its plan changed.
  audit_wanted_ = true;
  if (n_open_ == 0) send_tables(out);
}

void WorkerCore::on(PrepareGrammar& m, TimeNs /*now*/, WorkerActions& out) {
  if (stale(m.term) || m.grammar.size() > SamplingParams::kMaxGrammarBytes) return;
  out.push_back(worker_action::PrepareGrammar{m.key, m.kind, std::move(m.grammar), m.awaited});
}

void WorkerCore::grammar_state(std::uint64_t key, bool ready, WorkerActions& out) {
  if (state_ == State::in_term) out.emplace_back(Send{GrammarState{term_, key, ready}});
}

void WorkerCore::send_tables(WorkerActions& out) {
  audit_wanted_ = false;
  Tables m;
  m.term = term_;
  m.steps_done = steps_done_;
  sequences_.list(m);
  for (Tables& part : split_tables(std::move(m), kTableBlocks))
    out.emplace_back(Send{std::move(part)});
}

// ---------------------------------------------------------------- leaving

void WorkerCore::on(Superseded& m, TimeNs /*now*/, WorkerActions& out) {
  if (m.incarnation < identity_.incarnation) return;
  exit(kExitSuperseded, "a younger process has the name " + identity_.name, out);
}

void WorkerCore::on(Refused& m, TimeNs /*now*/, WorkerActions& out) {
  exit(kExitRefused, "the scheduler refused this worker: " + m.reason, out);
}

void WorkerCore::on(Leave& m, TimeNs /*now*/, WorkerActions& out) {
  if (m.incarnation == identity_.incarnation) bye("the scheduler let it go", out);
}

void WorkerCore::on(TakeRole& m, TimeNs /*now*/, WorkerActions& /*out*/) {
  if (m.incarnation != identity_.incarnation) return;
  role_ = m.role;
  held_ = m.held;
}

void WorkerCore::terminate(TimeNs now, WorkerActions& out) {
  if (state_ == State::exited || draining_) return;
  draining_ = true;
  drain_until_ = now + options_.drain;
  if (state_ == State::in_term) return send_heartbeat(now, out);
  if (state_ != State::ending) bye("asked to stop", out);  // nobody has work here
}

void WorkerCore::bye(const char* reason, WorkerActions& out) {
  out.emplace_back(Send{WorkerBye{identity_.incarnation}});
  exit(kExitOk, reason, out);
}

void WorkerCore::exit(int code, std::string reason, WorkerActions& out) {
  if (state_ == State::exited) return;
  state_ = State::exited;
  out.emplace_back(worker_action::Exit{code, std::move(reason)});
}

// ---------------------------------------------------------------- inputs

void WorkerCore::message(ToWorker&& message, TimeNs now, WorkerActions& out) {
  if (state_ == State::exited) return;
  std::visit([&](auto& m) { on(m, now, out); }, message);
}

void WorkerCore::tick(TimeNs now, WorkerActions& out) {
  if (state_ == State::exited) return;
  if (draining_ && now >= drain_until_) return bye("the drain bound passed", out);
  if (state_ == State::ending && now - ending_since_ >= options_.ending_patience) {
    return exit(kExitFault, "a step or a pull of the ended term does not end", out);
  }
  if (state_ == State::registering && now >= repeat_at_) send_register(now, out);
  if (state_ == State::hello && now >= repeat_at_) {
    if (now - hello_since_ >= options_.hello_patience) {
      send_register(now, out);
    } else {
      repeat_at_ = now + options_.repeat_every;
      out.emplace_back(Send{hello_});
    }
  }
  if (state_ != State::registering && now >= heartbeat_at_) send_heartbeat(now, out);
}

TimeNs WorkerCore::next_tick() const {
  if (state_ == State::exited) return std::numeric_limits<TimeNs>::max();
  TimeNs at = state_ == State::registering ? repeat_at_ : heartbeat_at_;
  if (state_ == State::hello) at = std::min(at, repeat_at_);
  if (draining_) at = std::min(at, drain_until_);
  if (state_ == State::ending) at = std::min(at, ending_since_ + options_.ending_patience);
  return at;
}

}  // namespace baton
