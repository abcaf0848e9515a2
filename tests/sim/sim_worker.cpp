// A worker's shell in virtual time: its core is real; its device, pull thread and pool are
// simulated. Writes of a step and copies of a pull are spread over their time, so that whoever
// touches a block too early or too late is seen.
#include <algorithm>
#include <span>

#include "scheduler/apply/grammars.h"
#include "scheduler/apply/membership.h"
#include "tests/sim/describe.h"
#include "tests/sim/world.h"

namespace baton::sim {

namespace {

WorkerIdentity identity_of(World& world, std::uint32_t name, std::uint32_t process) {
  WorkerIdentity identity;
  identity.build = "sim";
  identity.name = world.scenario().workers[name].name;
  identity.incarnation = static_cast<Incarnation>(world.now());
  identity.role = world.scenario().workers[name].role;
  identity.pid = static_cast<std::int32_t>(process);
  identity.pid_start = static_cast<std::uint64_t>(world.now());
  return identity;
}

/// How long a worker waits for an older process of its name to end, before it makes a pool of its
/// own.
constexpr TimeNs kLeasePatience = 10 * kSecond;

/// Some workers take a step before the one ahead of it has ended, as those on GPUs do.
WorkerCoreOptions options_of(World& world) {
  WorkerCoreOptions options;
  options.steps_at_once = world.random().permille(500) ? 2 : 1;
  return options;
}

/// Of the messages that a worker may only believe in their term; 0 for the others.
Term term_of(const ToWorker& message) {
  if (const auto* plan = std::get_if<StepPlan>(&message)) return plan->term;
  if (const auto* pull = std::get_if<Pull>(&message)) return pull->term;
  return 0;
}

}  // namespace

SimWorker::SimWorker(World& world, std::uint32_t name_, std::string label_)
    : Process(world, std::move(label_)),
      name(name_),
      options_(options_of(world)),
      core(identity_of(world, name_, static_cast<std::uint32_t>(world.next_process())), options_),
      since(world.now()),
      layout(world.layout_of(name_)) {}

void SimWorker::receive(ToPeer message) {
  ToWorker& m = std::get<ToWorker>(message);
  const Term term = term_of(m);
  const bool stale = core.term() != 0 && term != 0 && term != core.term();
  core.message(std::move(m), world_.now(), actions_);
  if (stale && (!actions_.empty() || core.state() != WorkerCore::State::in_term)) {
    world_.fail(label + " believes a message of term " + std::to_string(term));
  }
  carry_out();
}

void SimWorker::happen(What what, std::uint64_t arg) {
  const TimeNs now = world_.now();
  switch (what) {
    case What::worker_start:
      core.start(now, actions_);
      break;
    case What::worker_tick:
      if (static_cast<TimeNs>(arg) != tick_at_) return;  // another one was set
      tick_at_ = 0;
      core.tick(now, actions_);
      break;
    case What::pool_allocated:
      allocate();
      break;
    case What::step_part:
      if (step_ == nullptr || arg != step_runs_) return;
      step_part();
      break;
    case What::pull_part:
      pull_part(arg);
      break;
    case What::lease_lost:
      core.lease_lost();
      break;
    case What::mapping_closed:
      mappings_.erase(arg);
      watched_.erase(arg);
      core.mapping_closed(arg, now, actions_);
      break;
    case What::exporter_gone:
      if (maps(arg)) core.exporter_gone(arg, now, actions_);
      break;
    case What::grammar_compiled:
      if (RequestSpec* striker = world_.striker_of_grammar(arg)) {
        if (world_.scenario().load.strikers_hang)
          return world_.hang(*striker, *this, what, 70 * kSecond);
        return world_.strike(*striker, *this);
      }
      grammars_.insert(arg);
      compiling_ = 0;
      core.grammar_state(arg, /*ready=*/true, actions_);
      compile_next();
      if (world_.random().permille(300))
        world_.after(world_.random().time(0, kSecond), What::grammar_forgotten, id, arg);
      break;
    case What::grammar_forgotten:
      core.grammar_state(arg, /*ready=*/false, actions_);
      break;
    default:
      world_.fail("worker: unexpected event");
  }
  carry_out();
}

void SimWorker::terminate() {
  core.terminate(world_.now(), actions_);
  carry_out();
}

void SimWorker::schedule_tick() {
  if (!alive) return;
  const TimeNs next = std::max(core.next_tick(), world_.now() + 1);
  if (tick_at_ != 0 && tick_at_ <= next) return;
  tick_at_ = next;
  world_.at(next, What::worker_tick, id, static_cast<std::uint64_t>(next));
}

void SimWorker::carry_out() {
  if (carrying_out_) return;  // the loop below sees what is added
  carrying_out_ = true;
  for (std::size_t i = 0; i < actions_.size() && alive; ++i) {
    WorkerAction action = std::move(actions_[i]);
    if (auto* send_action = std::get_if<worker_action::Send>(&action)) {
      send(std::move(send_action->message));
    } else if (auto* start = std::get_if<worker_action::StartStep>(&action)) {
      start_step(*start->step);
    } else if (auto* lacks = std::get_if<worker_action::LackRows>(&action)) {
      tell_term(lacks->term);
      told_failed_ = std::max(told_failed_, lacks->step);
    } else if (auto* pull = std::get_if<worker_action::StartPull>(&action)) {
      start_pull(std::move(pull->pull));
    } else if (auto* close = std::get_if<worker_action::CloseMapping>(&action)) {
      world_.after(world_.random().time(0, 3 * kMillisecond), What::mapping_closed, id,
                   close->allocation);
    } else if (auto* grammar = std::get_if<worker_action::PrepareGrammar>(&action)) {
      prepare(grammar->key, grammar->awaited);
    } else if (std::holds_alternative<worker_action::AllocatePool>(action)) {
      allowed = world_.now();
      world_.after(world_.random().time(0, world_.scenario().pace.load), What::pool_allocated, id);
    } else if (auto* exit = std::get_if<worker_action::Exit>(&action)) {
      if (world_.tracing()) world_.trace(label + " exits: " + exit->reason);
      if (hung_by != kNobody && exit->reason.find("waited too long") != std::string::npos) {
        return world_.strike(world_.spec_of(kFirstSeed + hung_by), *this);
      }
      if (exit->code != kExitOk && exit->code != kExitSuperseded) {
        world_.fail(label + " gave up: " + exit->reason);
      }
      if (exit->reason == "the scheduler let it go") world_.check_leave(*this);
      world_.ended(*this);
    } else if (auto* log = std::get_if<worker_action::Log>(&action)) {
      if (world_.tracing()) world_.trace(label + " says: " + log->text);
      if (log->level == worker_action::Log::Level::error) {
        world_.fail(label + " was sent nonsense: " + log->text);
      }
    }
  }
  actions_.clear();
  carrying_out_ = false;
  schedule_tick();
}

void SimWorker::prepare(std::uint64_t key, bool awaited) {
  const auto known = std::find_if(to_compile_.begin(), to_compile_.end(),
                                  [&](const auto& g) { return g.first == key; });
  if (known != to_compile_.end()) {
    known->second = known->second || awaited;
  } else if (key != compiling_) {
    to_compile_.emplace_back(key, awaited);
  }
  compile_next();
}

/// One at a time, those first that somebody waits for.
void SimWorker::compile_next() {
  if (compiling_ != 0 || to_compile_.empty()) return;
  auto next =
      std::find_if(to_compile_.begin(), to_compile_.end(), [](const auto& g) { return g.second; });
  if (next == to_compile_.end()) next = to_compile_.begin();
  compiling_ = next->first;
  to_compile_.erase(next);
  const TimeNs time =
      grammars_.contains(compiling_) ? 0 : world_.random().time(0, world_.scenario().pace.compile);
  world_.after(time, What::grammar_compiled, id, compiling_);
}

void SimWorker::send(WorkerMessage message) {
  const bool matters =
      std::holds_alternative<StepResult>(message) || std::holds_alternative<PullDone>(message) ||
      std::holds_alternative<PullFailed>(message) || std::holds_alternative<Tables>(message) ||
      std::holds_alternative<GrammarState>(message);
  if (!world_.network().send_up(id, std::move(message)) && matters) {
    core.send_failed(world_.now(), actions_);
  }
}

void SimWorker::allocate() {
  const Scenario& s = world_.scenario();
  const WorkerSpec& spec = s.workers[name];
  LeaseAnswer answer;
  if (world_.memory_lives()) {
    Lease lease;
    lease.worker = spec.name;
    lease.incarnation = static_cast<Incarnation>(since);
    lease.allocation = world_.memory().next_id();
    lease.key.layout = layout;
    lease.blocks = spec.blocks;
    lease.host_blocks = spec.host_blocks;
    answer = world_.lease(lease);
    if (answer.ruling == Ruling::wait && world_.now() - allowed < kLeasePatience)
      return world_.after(20 * kMillisecond, What::pool_allocated, id);
  }
  const bool leased = answer.ruling == Ruling::lease;
  world_.check_predecessors_closed(*this);
  if (leased && answer.pool.kept) {
    pool_ = world_.memory().find(answer.pool.allocation);
    pool_->take_over(id, layout);
  } else {
    pool_ = &world_.memory().create(id, name, spec.blocks + spec.host_blocks, s.tokens_per_block);
    pool_->layout = layout;
    pool_->leased = leased;
  }
  world_.memory().unlink(name, id);
  Hello hello;
  hello.leased = leased;
  hello.allocation = pool_->id;
  hello.ranks = {{"cpu", "sim"}};
  hello.model_fingerprint = 7;
  hello.layers = 1;
  hello.kv_heads = 1;
  hello.head_dim = 1;
  hello.tokens_per_block = s.tokens_per_block;
  hello.block_bytes = std::uint64_t{s.tokens_per_block} * sizeof(std::uint64_t);
  hello.blocks = spec.blocks;
  hello.host_blocks = spec.host_blocks;
  if (spec.host_blocks != 0) hello.host_handle = "sim host";
  hello.host_block_us = static_cast<float>(s.pace.host_block_us);
  hello.windows = s.windows;
  hello.max_context = s.max_context;
  hello.reads_in_place = s.settings.elastic;
  if (s.settings.elastic) hello.progress_handle = std::to_string(id);
  hello.vocab_size = s.vocab;
  // As workers on GPUs do: the tables refuse a plan that has more.
  hello.max_step_tokens =
      s.step_room != 0 ? s.step_room
                       : std::max(s.settings.token_budget.of(spec.role), s.settings.max_running);
  core.pool_ready(std::move(hello), world_.now(), actions_);
  world_.joined(name);
}

// ---------------------------------------------------------------- steps

void SimWorker::start_step(const RunStep& step) {
  launched_.push_back(&step);
  if (step_ == nullptr) run_next_step();
}

/// Others are told of the steps of one term at a time.
void SimWorker::tell_term(Term term) {
  if (std::exchange(told_term_, term) == term) return;
  told_written_ = told_failed_ = 0;
  spoiled_.clear();
}

void SimWorker::run_next_step() {
  const RunStep& step = *launched_.front();
  launched_.pop_front();
  step_ = &step;
  step_began_ = world_.now();
  check_tables("at the start of a step");
  check_grammars(step);
  check_orphans(step);
  copy_blocks(step);
  ++step_runs_;
  vain_.clear();
  waited_ = step.waits.empty();
  tell_term(step.term);
  // Launched before the failure was told: its own chunk before this one was not computed.
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    if (spoiled_.contains(step.rows[i].sequence)) vain_.insert(i);
  }
  cells_ = 0;
  for (const BatchRow& row : step.rows) cells_ += row.tokens.size();
  cell_ = row_ = 0;
  row_done_ = 0;
  step_parts_ = world_.random().between(1, 3);
  step_at_ = 0;
  const TimeNs whole = world_.random().time(20'000, world_.scenario().pace.step);
  TimeNs when = 0;
  for (std::uint32_t part = 0; part < step_parts_; ++part) {
    when = part + 1 == step_parts_ ? whole : world_.random().time(when, whole);
    world_.after(when, What::step_part, id, step_runs_);
  }
}

/// No step waits for a compiler. (A grammar that was forgotten while a plan was on its way is
/// another matter.)
void SimWorker::check_grammars(const RunStep& step) {
  for (const BatchRow& row : step.rows) {
    const std::uint64_t key = row.samples() ? grammar_key(*row.sampling) : 0;
    if (key != 0 && !grammars_.contains(key))
      world_.fail(label + " draws by a grammar that it has not compiled");
  }
}

/// Nothing is computed for a client that has its end: some seconds for whoever tells the scheduler
/// are enough.
void SimWorker::check_orphans(const RunStep& step) {
  if (!world_.scenario().calm) return;
  for (const BatchRow& row : step.rows) {
    const RequestSpec& spec = world_.spec_of(row.sampling->seed);
    const TimeNs late = 4 * kSecond + 3 * world_.scenario().pace.step;
    if (spec.ended == 0 || world_.now() - spec.ended < late) continue;
    world_.fail(label + " computes for request " + std::to_string(row.sampling->seed - kFirstSeed) +
                ", which has ended");
  }
}

void SimWorker::copy_blocks(const RunStep& step) {
  for (const CopyOp& op : step.copies) {
    for (const auto& worker : world_.workers()) {
      if (!worker->alive || !worker->reads(pool_->id, op.to)) continue;
      world_.fail(label + " copies onto block " + std::to_string(op.to) + " while " +
                  worker->label + " reads it");
    }
    for (std::uint32_t i = 0; i < pool_->tokens_per_block; ++i) {
      pool_->cell(op.to, i) = pool_->cell(op.from, i);
    }
  }
}

bool SimWorker::reads(AllocationId allocation, BlockId block) const {
  // Only what somebody may believe: a worker whose term has ended, a superseded one for instance,
  // may still copy what has been given to others since. It copies that to blocks that nobody names,
  // and its answer is stale.
  const std::vector<Worker>& books = world_.scheduler()->state.workers;
  const auto in_term = [&](const Pull& pull) {
    return std::any_of(books.begin(), books.end(),
                       [&](const Worker& w) { return w.ready() && w.peer.term == pull.term; });
  };
  // While it waits for what others write, and copy, it reads nothing yet.
  const bool row_reads =
      step_ != nullptr && waited_ &&
      std::any_of(step_->rows.begin(), step_->rows.end(), [&](const BatchRow& row) {
        std::size_t at = 0;
        for (const TablePart& part : row.before) {
          const auto blocks =
              row.blocks.subspan(at, std::min<std::size_t>(part.blocks, row.blocks.size() - at));
          at += blocks.size();
          if (part.allocation == allocation && part.allocation != pool_->id && believed(row) &&
              std::find(blocks.begin(), blocks.end(), block) != blocks.end())
            return true;
        }
        return false;
      });
  if (row_reads) return true;
  return std::any_of(pulls_.begin(), pulls_.end(), [&](const auto& entry) {
    const Pull& pull = entry.second.pull;
    return in_term(pull) && pull.allocation == allocation &&
           std::find(pull.from.begin(), pull.from.end(), block) != pull.from.end();
  });
}

SimWorker::Written SimWorker::written(const RowWait& wait, TimeNs began) const {
  const auto& peer = dynamic_cast<const SimWorker&>(
      world_.process(static_cast<std::uint32_t>(std::stoul(wait.handle))));
  if (peer.core.term() != wait.term && peer.alive) return Written::never;
  if (peer.told_term_ == wait.term) {
    if (peer.told_failed_ >= wait.step) return Written::never;
    if (peer.told_written_ >= wait.step) return Written::yes;
  }
  if (!peer.alive || (peer.frozen && world_.now() - began > kSecond / 2)) return Written::never;
  return world_.now() - began > 10 * kSecond ? Written::never : Written::not_yet;
}

/// True: what its rows read is still being written by others, and it looks again later.
bool SimWorker::waits() {
  if (waited_) return false;
  for (const RowWait& wait : step_->waits) {
    const Written state = written(wait, step_began_);
    if (state == Written::not_yet) {
      world_.after(world_.random().time(10'000, 2 * kMillisecond), What::step_part, id, step_runs_);
      return true;
    }
    if (state == Written::never) vain_.insert(wait.row);
  }
  waited_ = true;
  return false;
}

void SimWorker::step_part() {
  if (waits()) return;
  ++step_at_;
  const bool last = step_at_ == step_parts_;
  for (const BatchRow& row : step_->rows) {
    RequestSpec& spec = world_.spec_of(row.sampling->seed);
    if (strikes(row, spec)) {
      if (world_.scenario().load.strikers_hang) {
        ++step_runs_;  // its parts to come are nobody's
        return world_.hang(spec, *this, What::step_part, 70 * kSecond);
      }
      return world_.strike(spec, *this);
    }
    const bool known = row.samples() || row.ranks;
    if (!known || row.n_generated != spec.killer_at) continue;
    return world_.strike(spec, *this);
  }
  run_cells(last ? cells_ : cells_ * step_at_ / step_parts_);
  if (last) finish_step();
}

bool SimWorker::strikes(const BatchRow& row, const RequestSpec& spec) const {
  if (step_at_ != 1) return false;
  if (spec.strike == Strike::prefill) return !row.decode;
  return spec.strike == Strike::decode && row.decode && row.n_generated >= spec.strike_at &&
         (row.n_generated - spec.strike_at) % spec.strike_every == 0;
}

/// Runs the step's rows in order up to the `limit`-th written cell: reads what a row attends to
/// when it begins, writes one cell a token.
void SimWorker::run_cells(std::size_t limit) {
  while (cell_ < limit) {
    const BatchRow& row = step_->rows[row_];
    const auto position = static_cast<std::uint32_t>(row.position);
    if (vain_.contains(row_)) {  // what it leaves is nothing
      ++cell_;
      if (++row_done_ == row.tokens.size()) {
        row_done_ = 0;
        ++row_;
      }
      continue;
    }
    if (row_done_ == 0) row_prefix_ = check_prefix(row, position, "attends to");
    row_prefix_ = extend_prefix(row_prefix_, token_of(row, row_done_));
    for (std::uint32_t g = 0; g < world_.scenario().groups(); ++g) {
      const auto [segment, cell] = cell_at(row, g, position + row_done_);
      if (segment != pool_) world_.fail(label + " writes to another worker's pool");
      *cell = cell_of(row_prefix_, g);
    }
    ++cell_;
    if (++row_done_ == row.tokens.size()) {
      row_done_ = 0;
      ++row_;
    }
  }
}

/// What the device takes for the i-th token of the row: perhaps one that no host knows yet.
Token SimWorker::token_of(const BatchRow& row, std::size_t i) const {
  const bool awaited = row.from_row >= 0 && i + 1 == row.tokens.size();
  return awaited ? sampled_.at(static_cast<std::size_t>(row.from_row)) : row.tokens[i];
}

/// The cell of a row's position, and the segment that it is in: perhaps another worker's.
std::pair<Segment*, std::uint64_t*> SimWorker::cell_at(const BatchRow& row, std::uint32_t group,
                                                       std::uint32_t position) {
  const std::size_t column = position / pool_->tokens_per_block;
  Segment* segment = pool_;
  std::size_t first = 0;
  for (const TablePart& part : row.before) {
    if (column < first + part.blocks) {
      segment = world_.memory().find(part.allocation);
      break;
    }
    first += part.blocks;
  }
  if (segment == nullptr) world_.fail(label + " reads a pool that never was");
  if (segment != pool_ && !maps(segment->id) && believed(row))
    world_.fail(label + " reads a pool that it has not mapped");
  const BlockId block = row.blocks[column * world_.scenario().groups() + group];
  return {segment, &segment->cell(block, position % pool_->tokens_per_block)};
}

/// Its result still counts. Another worker's blocks are not kept for a row of an ended term, or of
/// a sequence that has been given up.
bool SimWorker::believed(const BatchRow& row) const {
  const State& state = world_.scheduler()->state;
  const bool in_term = std::any_of(
      state.workers.begin(), state.workers.end(),
      [&](const Worker& w) { return w.ready() && w.peer.term == core.term() && core.term() != 0; });
  return in_term && state.sequences.find(row.sequence) != nullptr;
}

/// Compares the first `end` cells of the row's sequence, those that its first query sees, with what
/// they must hold; returns their hash.
std::uint64_t SimWorker::check_prefix(const BatchRow& row, std::uint32_t end, const char* when) {
  const WorkerSequence* sequence = core.sequences().find(row.sequence);
  if (sequence == nullptr) {
    // Dropped by a plan that was applied since this row was launched: nobody knows its tokens any
    // more, and nobody wants its result.
    if (options_.steps_at_once == 1) {
      world_.fail(label + " runs a sequence that it does not know");
    }
    return end == 0 ? world_.spec_of(row.sampling->seed).root : *cell_at(row, 0, end - 1).second;
  }
  const Scenario& scenario = world_.scenario();
  const auto position = static_cast<std::uint32_t>(row.position);
  std::uint64_t prefix = world_.spec_of(row.sampling->seed).root;
  for (std::uint32_t i = 0; i < end; ++i) {
    const Token token = i >= position ? token_of(row, i - position) : sequence->tokens[i];
    prefix = extend_prefix(prefix, token);
    for (std::uint32_t g = 0; g < scenario.groups(); ++g) {
      if (i < scenario.first_seen(g, position)) continue;
      const auto [segment, cell] = cell_at(row, g, i);
      if (*cell == cell_of(prefix, g) || (segment != pool_ && !believed(row))) continue;
      world_.fail(label + " " + when + " foreign KV: sequence " + std::to_string(row.sequence) +
                  ", position " + std::to_string(i) + " of " + std::to_string(end) + ", group " +
                  std::to_string(g));
    }
  }
  return prefix;
}

void SimWorker::finish_step() {
  StepOutput output;
  const RunStep& step = *step_;
  output.tokens.assign(step.rows.size(), kNoToken);
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (vain_.contains(i)) {
      spoiled_.insert(row.sequence);
      output.failed.push_back({static_cast<std::uint32_t>(i), "it has waited in vain", true});
      continue;
    }
    const auto end =
        static_cast<std::uint32_t>(row.position) + static_cast<std::uint32_t>(row.tokens.size());
    const std::uint64_t prefix = check_prefix(row, end, "finds after its step");
    if (!row.samples() && !row.ranks) continue;
    if (world_.spec_of(row.sampling->seed).bad_row == row.n_generated) {
      output.failed.push_back({static_cast<std::uint32_t>(i), "bad row"});
      continue;
    }
    if (row.ranks) {
      const Ranking found = rank(prefix, row.n_generated, *row.sampling, world_.scenario().vocab);
      output.candidates.push(static_cast<std::uint32_t>(i), found.logprobs.front(), found.tokens,
                             found.logprobs);
      continue;
    }
    if (row.sampling->pools()) {
      output.tokens[i] = 0;
      output.logprobs.push(static_cast<std::uint32_t>(i), 0, {}, {}, pooled_vector(prefix));
      continue;
    }
    output.tokens[i] = sample(prefix, row.n_generated, *row.sampling, world_.scenario().vocab);
  }
  output.duration_us = static_cast<std::uint32_t>((world_.now() - step_began_) / 1000);
  told_written_ = step.step;
  if (!vain_.empty()) told_failed_ = std::max(told_failed_, step.step);
  step_ = nullptr;
  sampled_ = output.tokens;
  if (!launched_.empty()) run_next_step();
  core.step_finished(output, world_.now(), actions_);
}

/// Nobody else names a block that a row, a pull or a sequence that goes on writes: only what is
/// full and computed is shared. (A sequence that has ended stays in its table, unused, until the
/// next plan drops it.)
void SimWorker::check_tables(const char* when) {
  users_.assign(pool_->cells.size() / pool_->tokens_per_block, 0);
  const auto look = [&](BlockId block, SequenceId user, bool writes) {
    if (users_[block] != 0 && users_[block] != user) {
      world_.fail(label + ": block " + std::to_string(block) + " is another's to write " + when);
    }
    if (writes) users_[block] = user;
  };
  const Scenario& scenario = world_.scenario();
  const std::uint32_t groups = scenario.groups();
  // The blocks of a table: those from `written` on, or those before it that are still seen.
  const auto look_at = [&](auto blocks, SequenceId user, std::uint64_t written, bool writes) {
    const auto position = static_cast<std::uint32_t>(written);
    const std::uint32_t border = position / pool_->tokens_per_block;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto column = static_cast<std::uint32_t>(i / groups);
      const std::uint32_t seen =
          scenario.first_seen(static_cast<std::uint32_t>(i % groups), position);
      const bool unseen = (column + 1) * pool_->tokens_per_block <= seen;
      if (blocks[i] == kNoBlock || unseen || (column >= border) != writes) continue;
      look(blocks[i], user, writes);
    }
  };
  for (const auto& [pull_id, job] : pulls_) {
    for (const BlockId block : job.pull.to) look(block, ~pull_id, true);
  }
  if (step_ == nullptr) return;
  // What lies in other pools is only read, and nobody's here.
  const auto look_behind = [&](auto blocks, std::span<const TablePart> before, SequenceId user,
                               std::uint64_t written, bool writes) {
    std::size_t others = 0;
    for (const TablePart& part : before) others += part.blocks;
    look_at(blocks.subspan(std::min(others, blocks.size())), user,
            written - std::min<std::uint64_t>(written, others * pool_->tokens_per_block), writes);
  };
  for (const bool writes : {true, false}) {
    for (const BatchRow& row : step_->rows) {
      look_behind(row.blocks, row.before, row.sequence, static_cast<std::uint64_t>(row.position),
                  writes);
    }
  }
  users_.assign(users_.size(), 0);
  Tables tables;
  core.sequences().list(tables);
  for (const bool writes : {true, false}) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < tables.sequences.size(); ++i) {
      const SequenceId sequence = tables.sequences[i];
      const auto blocks = std::span<const BlockId>(tables.blocks).subspan(at, tables.counts[i]);
      const WorkerSequence& known = *core.sequences().find(sequence);
      look_behind(blocks, known.before, sequence, known.computed, writes);
      at += tables.counts[i];
    }
  }
}

// ---------------------------------------------------------------- pulls

void SimWorker::start_pull(Pull pull) {
  Random& random = world_.random();
  Job job;
  Segment* segment = world_.memory().find(pull.allocation);
  if (segment == nullptr) world_.fail("a pull from an allocation that never was");
  const Process& exporter = world_.process(segment->exporter);
  const bool mappable =
      maps(pull.allocation) ||
      (!segment->unlinked && (segment->leased || exporter.alive || random.permille(500)));
  job.fails =
      !mappable || random.permille(world_.faults_on() ? world_.scenario().blows.pull_fails : 0);
  if (mappable) {
    job.source = segment;
    const bool fresh = mappings_.emplace(pull.allocation, world_.now()).second;
    if (fresh && pull.exporter_pid != 0) watched_.insert(pull.allocation);
    if (fresh && pull.exporter_pid != 0 && !exporter.alive) {
      world_.after(random.time(0, 250 * kMillisecond), What::exporter_gone, id, pull.allocation);
    }
  }
  job.parts = random.between(1, 3);
  const PullId pull_id = pull.pull_id;
  const TimeNs whole = random.time(20'000, world_.scenario().pace.pull);
  TimeNs when = 0;
  for (std::uint32_t part = 0; part < job.parts; ++part) {
    when = part + 1 == job.parts ? whole : random.time(when, whole);
    world_.after(when, What::pull_part, id, pull_id);
  }
  job.pull = std::move(pull);
  if (!pulls_.emplace(pull_id, std::move(job)).second) world_.fail("a pull runs twice");
  check_tables("at the start of a pull");
}

void SimWorker::pull_part(PullId pull_id) {
  Job& job = pulls_.at(pull_id);
  if (job.part == 0 && job.source != nullptr && world_.scenario().load.strike == Strike::pull) {
    if (RequestSpec* striker = world_.striker_of_pull(job.pull)) {
      if (world_.scenario().load.strikers_hang) {
        job.part = 1'000'000;  // its parts to come do nothing
        return world_.hang(*striker, *this, What::pull_part, 40 * kSecond);
      }
      return world_.strike(*striker, *this);
    }
  }
  if (job.part >= 1'000'000) return;
  ++job.part;
  const bool last = job.part == job.parts;
  const std::size_t per_block = pool_->tokens_per_block;
  const std::size_t cells = job.pull.to.size() * per_block;
  const std::size_t limit = last ? cells : cells * job.part / job.parts;
  for (; job.source != nullptr && job.copied < limit; ++job.copied) {
    const auto offset = static_cast<std::uint32_t>(job.copied % per_block);
    const std::size_t i = job.copied / per_block;
    pool_->cell(job.pull.to[i], offset) = job.source->cell(job.pull.from[i], offset);
  }
  if (!last) return;
  std::optional<std::string> failure;
  if (job.fails) failure = job.source == nullptr ? "no such segment" : "a copy failed";
  pulls_.erase(pull_id);
  core.pull_finished(pull_id, failure, 1, world_.now(), actions_);
}

}  // namespace baton::sim
