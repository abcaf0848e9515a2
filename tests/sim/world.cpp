#include "tests/sim/world.h"

#include <algorithm>

#include "scheduler/apply/grammars.h"

namespace baton::sim {

World::World(const Scenario& scenario, const RunOptions& options)
    : scenario_(scenario),
      options_(options),
      random_(mix(scenario.seed) ^ 0x0DDBA11ULL),
      heirs_(mix(scenario.seed) ^ 0x4E125ULL),
      faults_(mix(scenario.seed) ^ 0xFA017ULL) {}

void World::trace(const std::string& line) const {
  if (!options_.trace) return;
  const auto us = static_cast<std::uint64_t>(now_ / 1000);
  std::string fraction = std::to_string(us % 1'000'000);
  fraction.insert(0, 6 - fraction.size(), '0');
  options_.trace(std::to_string(us / 1'000'000) + "." + fraction + "  " + line);
}

void World::fail(const std::string& what) { throw Violation(what); }

void World::at(TimeNs when, What what, std::uint32_t who, std::uint64_t arg) {
  queue_.push({std::max(when, now_), ++order_, what, who, arg});
}

Report World::run() {
  try {
    memory_lives_ = scenario_.leases;
    layouts_.assign(scenario_.workers.size(), 1);
    start_scheduler();
    for (std::uint32_t i = 0; i < scenario_.workers.size(); ++i) start_worker(i);
    for (std::uint32_t i = 0; i < scenario_.frontends; ++i) start_frontend(i);
    after(0, What::submit, 0);
    if (scenario_.blows.total() != 0) after(random_.time(0, scenario_.blows.gap), What::blow, 0);
    const TimeNs faults_until = now_ + 300 * kSecond;
    while (report_.events < options_.events && now_ < faults_until) {
      const Event event = queue_.top();
      queue_.pop();
      handle(event);
    }
    run_to_quiet();
  } catch (const Violation& violation) {
    report_.violation = violation.what();
    trace(std::string("VIOLATION: ") + violation.what());
    tell_requests();
  }
  if (scheduler_) add_counters(scheduler_->state.counters);
  return report_;
}

/// What the scheduler holds, for whoever asks why a request stands.
void World::tell_requests() const {
  if (!tracing() || !scheduler_) return;
  const State& state = scheduler_->state;
  state.requests.each([&](const Request& r) {
    trace("  " + std::to_string(r.name.counter) + ": " + to_string(r.phase) + ", sequences " +
          std::to_string(r.source) + " and " + std::to_string(r.target) + ", prompt " +
          std::to_string(r.prompt.size()) + ", generated " + std::to_string(r.generated.size()) +
          ", deaths " + std::to_string(r.deaths.total) + (r.beams ? ", beams" : "") +
          (r.grammar != 0 ? ", grammar" : "") +
          (r.passed_over != nullptr ? std::string(", passed over: ") + r.passed_over : ""));
  });
  for (const Worker& w : state.workers) {
    trace("  " + w.name() + ": " + std::to_string(w.store.pool.owned_blocks()) + " of " +
          std::to_string(w.store.pool.total()) + " blocks owned, " +
          std::to_string(w.compute.sequences) + " sequences" + (w.ready() ? "" : ", not ready"));
  }
}

void World::run_to_quiet() {
  stop_faults();
  const TimeNs stopped = now_;
  const std::uint64_t deaths = report_.deaths;
  const TimeNs look_every = 100 * kMillisecond;
  TimeNs look = now_ + look_every;
  for (;;) {
    const Event event = queue_.top();
    queue_.pop();
    handle(event);
    if (now_ < look) continue;
    look = now_ + look_every;
    std::string why;
    const bool late = now_ - stopped > patience(report_.deaths - deaths);
    if (quiet(late ? &why : nullptr)) break;
    if (late) fail("starvation: " + why);
  }
  report_.quiet_after = now_ - stopped;
  check_end();
}

/// Requests that kill workers do so as long as they are tried: each time all wait for the
/// successor, which waits for the closes of the pool before it, in vain if an importer stays dead.
TimeNs World::patience(std::uint64_t deaths) const {
  const auto killers = std::count_if(specs_.begin(), specs_.end(), [](const RequestSpec& spec) {
    return spec.killer_at != kNever;
  });
  const auto strikers = std::count_if(specs_.begin(), specs_.end(), [](const RequestSpec& spec) {
    return spec.strike != Strike::none;
  });
  const Settings& s = scenario_.settings;
  const std::uint64_t most = static_cast<std::uint64_t>(killers) * s.max_deaths +
                             static_cast<std::uint64_t>(strikers) * (2 * s.max_deaths + 7);
  const TimeNs each = s.worker_timeout + scenario_.pace.restart + s.close_timeout +
                      scenario_.pace.load +
                      (scenario_.load.strike == Strike::scheduler ? 12 * kSecond : 0) +
                      (scenario_.load.strikers_hang ? 64 * kSecond : 0);
  const auto hanging = std::count_if(processes_.begin(), processes_.end(), [](const auto& process) {
    const auto* worker = dynamic_cast<const SimWorker*>(process);
    return worker != nullptr && worker->alive && worker->hung_by != kNobody;
  });
  const TimeNs away = scenario_.successors ? s.successor_wait + 4 * kSecond : 0;
  return options_.patience + away + 2 * all_work() + static_cast<TimeNs>(hanging) * 64 * kSecond +
         static_cast<TimeNs>(std::min(deaths, most)) * each;
}

void World::handle(const Event& event) {
  now_ = event.at;
  if (event.what >= What::deliver_up) {
    handle_world_event(event);
    return;
  }
  to_process(event);
}

/// The dead do nothing; the frozen do it when they thaw.
void World::to_process(const Event& event) {
  Process& process = *processes_[event.who];
  if (!process.alive) return;
  if (process.frozen) {
    held_[event.who].push_back(event);
    return;
  }
  process.happen(event.what, event.arg);
}

void World::handle_world_event(const Event& event) {
  switch (event.what) {
    case What::deliver_up: {
      const std::uint32_t receiver = network_.receiver_up(event.who);
      if (processes_[receiver]->frozen) {
        held_[receiver].push_back(event);
      } else {
        network_.deliver_up(event.who);
      }
      break;
    }
    case What::deliver_down: {
      const std::uint32_t receiver = network_.receiver_down(event.who);
      if (processes_[receiver]->frozen) {
        held_[receiver].push_back(event);
      } else {
        network_.deliver_down(event.who);
      }
      break;
    }
    case What::connect:
      network_.connect(event.who);
      break;
    case What::thaw:
      thaw(event.who);
      break;
    case What::start_scheduler:
      start_scheduler();
      break;
    case What::start_memory:
      memory_lives_ = true;
      trace("the memory process starts");
      break;
    case What::start_worker:
      start_worker(event.who);
      break;
    case What::start_frontend:
      start_frontend(event.who);
      break;
    case What::start_successor:
      start_successor(event.who);
      break;
    case What::kill_replaced:
      kill(event.who);
      break;
    case What::submit:
      submit_burst();
      break;
    case What::blow:
      blow();
      break;
    case What::check_hang:
      check_hang(event.who, event.arg);
      break;
    default:
      fail("unknown event");
  }
}

// ---------------------------------------------------------------- processes

void World::adopt(Process& process) {
  process.id = static_cast<std::uint32_t>(processes_.size());
  processes_.push_back(&process);
  held_.emplace_back();
  if (tracing()) trace(process.label + " starts as process " + std::to_string(process.id));
}

void World::start_scheduler() {
  if (scheduler_ && scheduler_->alive) return;
  if (scheduler_) {
    add_counters(scheduler_->state.counters);
    dead_schedulers_.push_back(std::move(scheduler_));
  }
  scheduler_ = std::make_unique<SimScheduler>(*this);
  adopt(*scheduler_);
  after(0, What::scheduler_tick, scheduler_->id);
}

/// Now and then a worker's next process is of another build, which reads a pool's bytes in another
/// way.
std::uint32_t World::layout_of(std::uint32_t name) {
  if (scenario_.blows.other_layout != 0 && random_.permille(scenario_.blows.other_layout))
    ++layouts_[name];
  return layouts_[name];
}

LeaseAnswer World::lease(const Lease& lease) {
  for (const KeptPool& pool : leases_.expire(now_)) memory_.find(pool.allocation)->unlinked = true;
  LeaseAnswer answer = leases_.ask(lease, now_);
  if (answer.ruling == Ruling::lease && answer.pool.kept &&
      spoiled_.contains(answer.pool.allocation))
    fail("a pool is kept whose writer has died of a fault");
  if (tracing()) {
    trace("lease for " + lease.worker + ": " +
          (answer.ruling == Ruling::lease    ? answer.pool.kept ? "kept" : "fresh"
           : answer.ruling == Ruling::refuse ? "refused"
                                             : "wait") +
          (answer.why.empty() ? "" : ", " + answer.why));
  }
  return answer;
}

void World::kill_memory() {
  if (!memory_lives_) return;
  trace("KILL the memory process");
  memory_lives_ = false;
  leases_ = Leases();
  for (const auto& worker : workers_) {
    if (worker->alive && worker->allocation() != 0)
      after(random_.time(0, 20 * kMillisecond), What::lease_lost, worker->id);
  }
  after(random_.time(kMillisecond, scenario_.pace.restart), What::start_memory, 0);
}

void World::start_worker(std::uint32_t name) {
  now_ += 1;  // incarnations differ
  workers_.push_back(std::make_unique<SimWorker>(
      *this, name, scenario_.workers[name].name + "/" + std::to_string(processes_.size())));
  SimWorker& worker = *workers_.back();
  adopt(worker);
  if (current_worker_.size() <= name) current_worker_.resize(name + 1);
  current_worker_[name] = &worker;
  network_.connect(worker.id);
  after(random_.time(0, 20 * kMillisecond), What::worker_start, worker.id);
}

void World::start_frontend(std::uint32_t name) {
  if (current_frontend_.size() <= name) current_frontend_.resize(name + 1);
  if (current_frontend_[name] != nullptr && current_frontend_[name]->alive) return;
  now_ += 1;
  begin_frontend(std::make_unique<SimFrontend>(
      *this, name, "frontend" + std::to_string(name) + "/" + std::to_string(processes_.size())));
}

void World::start_successor(std::uint32_t process) {
  auto& predecessor = dynamic_cast<SimFrontend&>(*processes_[process]);
  if (current_frontend_[predecessor.name] != &predecessor) return;  // another one has come
  now_ += 1;
  if (predecessor.alive) after(heirs_.time(0, 8 * kSecond), What::kill_replaced, process);
  begin_frontend(std::make_unique<SimFrontend>(*this,
                                               "frontend" + std::to_string(predecessor.name) + "/" +
                                                   std::to_string(processes_.size()) + " (of " +
                                                   std::to_string(process) + ")",
                                               predecessor));
  ++report_.successors;
  report_.inherited += current_frontend_[predecessor.name]->table.counters().adopted;
}

void World::begin_frontend(std::unique_ptr<SimFrontend> starting) {
  frontends_.push_back(std::move(starting));
  SimFrontend& frontend = *frontends_.back();
  adopt(frontend);
  current_frontend_[frontend.name] = &frontend;
  network_.connect(frontend.id);
  frontend.begin();
}

/// Some come before their predecessor's death is known, some after it was given up.
TimeNs World::successor_delay() {
  if (heirs_.permille(250)) return heirs_.time(kMillisecond, 100 * kMillisecond);
  if (heirs_.permille(850)) return heirs_.time(50 * kMillisecond, 3 * kSecond);
  return scenario_.settings.successor_wait + heirs_.time(0, 3 * kSecond);
}

void World::kill(std::uint32_t id) {
  Process& process = *processes_[id];
  if (!process.alive) return;
  ++report_.deaths;
  if (tracing()) trace("KILL " + process.label);
  blown_ = true;
  ended(process);
  blown_ = false;
}

void World::ended(Process& process) {
  process.alive = false;
  process.frozen = false;
  held_[process.id].clear();
  network_.ended(process.id);
  if (&process == scheduler_.get()) {
    if (!striking_) {
      for (const auto& frontend : frontends_) {
        for (const auto& [counter, spec] : frontend->clients) ++specs_[spec].schedulers_killed;
      }
    }
    for (Process* peer : processes_) peer->watched = kNoLink;
    after(random_.time(kMillisecond, scenario_.pace.restart), What::start_scheduler, 0);
    return;
  }
  const bool told =
      process.watched != kNoLink && scenario_.blows.told_of_death && scheduler_->alive;
  const TimeNs told_in = told ? random_.time(0, 100 * kMillisecond) : 0;
  const auto tell = [&] {
    if (told) after(told_in, What::process_gone, scheduler_->id, process.watched);
  };
  const TimeNs restart = random_.time(kMillisecond, scenario_.pace.restart);
  if (auto* worker = dynamic_cast<SimWorker*>(&process)) {
    if (!striking_) note_blow();
    // Some of those who are killed by a request die of a fault that may have written anywhere.
    const bool spoiled =
        scenario_.leases && (striking_ ? random_.permille(300) : blown_ && faults_.permille(200));
    worker->spoiled = spoiled;
    if (spoiled && worker->allocation() != 0) spoiled_.insert(worker->allocation());
    leases_.ended(scenario_.workers[worker->name].name, static_cast<Incarnation>(worker->since),
                  spoiled, now_);
    tell();
    tell_importers(*worker);
    if (!is_current(*worker)) return;
    if (worker->name == scenario_.blows.stays_dead && report_.events > options_.events / 2) {
      lost_worker_ = worker->name;
      trace(worker->label + " stays dead");
    } else {
      after(restart, What::start_worker, worker->name);
    }
  } else if (auto* frontend = dynamic_cast<SimFrontend*>(&process)) {
    tell();
    if (current_frontend_[frontend->name] != frontend) return;
    if (scenario_.successors && !frontend->leaving() && heirs_.permille(850)) {
      after(successor_delay(), What::start_successor, frontend->id);
    } else {
      after(restart, What::start_frontend, frontend->name);
    }
  }
}

/// Importers watch the exporter's process.
void World::tell_importers(const SimWorker& exporter) {
  if (exporter.allocation() == 0 || !scenario_.blows.told_of_death) return;
  for (const auto& worker : workers_) {
    if (!worker->alive || !worker->watches(exporter.allocation())) continue;
    after(random_.time(0, 300 * kMillisecond), What::exporter_gone, worker->id,
          exporter.allocation());
  }
}

void World::freeze(std::uint32_t id, TimeNs how_long) {
  Process& process = *processes_[id];
  if (!process.alive || process.frozen) return;
  ++report_.freezes;
  process.frozen = true;
  if (tracing()) {
    trace("FREEZE " + process.label + " for " + std::to_string(how_long / kMillisecond) + " ms");
  }
  if (dynamic_cast<SimWorker*>(&process) != nullptr) note_blow();
  after(how_long, What::thaw, id);
}

void World::thaw(std::uint32_t id) {
  Process& process = *processes_[id];
  if (!process.alive || !process.frozen) return;
  process.frozen = false;
  if (tracing()) trace("THAW " + process.label);
  std::vector<Event> held;
  held.swap(held_[id]);
  for (const Event& event : held) at(now_, event.what, event.who, event.arg);
}

void World::note_blow() {
  blows_at_.push_back(now_);
  for (const auto& frontend : frontends_) {
    for (const auto& [counter, spec] : frontend->clients) ++specs_[spec].blows;
  }
  note_death(2 * (blows_at_.size() - 1));
}

void World::note_death(std::uint64_t number) {
  for (const auto& frontend : frontends_) {
    for (const auto& [counter, spec] : frontend->clients) {
      const std::uint64_t key = grammar_key(specs_[spec].sampling);
      if (key != 0) grammar_deaths_[key].insert(number);
    }
  }
}

std::uint32_t World::met_by_grammar(const RequestSpec& spec) const {
  const auto met = grammar_deaths_.find(grammar_key(spec.sampling));
  return met == grammar_deaths_.end() ? 0 : static_cast<std::uint32_t>(met->second.size());
}

// ---------------------------------------------------------------- strikers

namespace {

/// Deaths that end a request for sure. In one stage: three, and one more if others are suspected
/// with it. One who gets on in between: six in all. In a kept pool anybody may who decodes: beside
/// others the step before its own blow is lost with its result, alone that one is heard. And one
/// for each worker: it may get there before a death is known. If deaths are known only when a
/// successor comes: once before it is suspected, and once more before its lone deaths are known. A
/// grammar: once more for each worker that was told of it before its requests ended. Of schedulers:
/// those of the front end's rules.
std::uint32_t most_struck(const Scenario& s, const RequestSpec& spec) {
  if (spec.strike == Strike::scheduler) return spec.strike_every == 1 ? 7 : 11;
  const bool gets_on = spec.strike == Strike::decode && (spec.strike_every > 1 || s.leases);
  const std::uint32_t most = s.settings.max_deaths;
  const auto unknown = static_cast<std::uint32_t>(s.workers.size());
  const std::uint32_t told = spec.strike == Strike::compile ? unknown : 0;
  return (gets_on ? 2 * most : most) + 1 + (s.blows.told_of_death ? unknown : 2 * unknown) + told;
}

}  // namespace

std::vector<RequestSpec*> World::owners_of(RequestSpec& striker) {
  std::vector<RequestSpec*> owners;
  const bool shared = scenario_.load.strikers_share && striker.strike == Strike::compile;
  for (RequestSpec& spec : specs_) {
    if (shared && spec.strike == striker.strike && spec.strikes_by == striker.strikes_by &&
        spec.ended == 0)
      owners.push_back(&spec);
  }
  if (owners.empty()) owners.push_back(&striker);
  return owners;
}

bool World::cause_struck(const RequestSpec& spec) const {
  return spec.strike == Strike::compile &&
         std::any_of(specs_.begin(), specs_.end(), [&](const RequestSpec& other) {
           return other.strikes_by == spec.strikes_by && (other.struck > 0 || other.hangs);
         });
}

void World::strike(RequestSpec& striker, Process& victim) {
  ++strikes_;
  const std::vector<RequestSpec*> owners = owners_of(striker);
  for (RequestSpec* owner : owners) ++owner->struck;
  for (const auto& frontend : frontends_) {
    for (const auto& [counter, spec] : frontend->clients) ++specs_[spec].strikes_met;
  }
  note_death(2 * strikes_ + 1);
  if (tracing()) {
    trace(victim.label + " dies of request " + std::to_string(striker.sampling.seed - kFirstSeed));
  }
  for (const RequestSpec* owner : owners) {
    if (!scenario_.calm || owner->struck <= most_struck(scenario_, *owner)) continue;
    fail("request " + std::to_string(owner->sampling.seed - kFirstSeed) + " kills its " +
         std::to_string(owner->struck) + "th process" +
         (owners.size() > 1 ? ", with others that share its cause" : ""));
  }
  striking_ = true;
  kill(victim.id);
  striking_ = false;
}

void World::hang(RequestSpec& striker, SimWorker& victim, What what, TimeNs longest) {
  for (RequestSpec* owner : owners_of(striker)) owner->hangs = true;
  if (victim.hung_by == kNobody) {
    victim.hung_by = static_cast<std::uint32_t>(striker.sampling.seed - kFirstSeed);
    ++hangs_;
  }
  if (tracing()) {
    trace(victim.label + " hangs by request " + std::to_string(striker.sampling.seed - kFirstSeed) +
          (what == What::pull_part   ? " in a pull"
           : what == What::step_part ? " in a step"
                                     : " in a grammar"));
  }
  at(now_ + longest, What::check_hang, victim.id, 0);
}

void World::check_hang(std::uint32_t who, std::uint64_t /*spec*/) {
  if (processes_[who]->alive) fail(processes_[who]->label + " hangs, and nobody ends it");
}

/// All that was asked for, one thing after another.
TimeNs World::all_work() const {
  const TokenBudget& budget = scenario_.settings.token_budget;
  const Pace& pace = scenario_.pace;
  TimeNs work = 0;
  for (const RequestSpec& spec : specs_) {
    const std::uint32_t chunk =
        std::max(1U, std::min({scenario_.settings.prompt_chunk, budget.prefill, budget.mixed}));
    const auto steps =
        static_cast<TimeNs>(spec.prompt.size() / chunk + spec.sampling.max_tokens + 2);
    work += steps * (pace.step + 2 * scenario_.network.delay) + 2 * pace.pull + 2 * pace.compile;
  }
  return work;
}

/// What is due: the work of all, done one after another; each death's recovery; each hang's
/// judgement; and less than the shortest time after which something is given up unasked.
void World::check_waits(const SimFrontend& frontend) {
  if (!scenario_.calm) return;
  const Pace& pace = scenario_.pace;
  const Settings& s = scenario_.settings;
  const TimeNs work = all_work();
  const TimeNs death = s.worker_timeout + pace.restart + s.close_timeout + pace.load + kSecond +
                       (scenario_.load.strike == Strike::scheduler ? 12 * kSecond : 0);
  const TimeNs due = 25 * kSecond + 2 * work + static_cast<TimeNs>(strikes_) * (death + work / 4) +
                     static_cast<TimeNs>(hangs_) * (64 * kSecond + death);
  for (const auto& [counter, index] : frontend.clients) {
    const TimeNs waited = now_ - specs_[index].asked;
    if (waited > due) {
      fail("request " + std::to_string(index) + " waits for " +
           std::to_string(waited / kMillisecond) + " ms; " + std::to_string(due / kMillisecond) +
           " were due");
    }
  }
}

void World::share_turns(SimFrontend& frontend) {
  const bool free = turn_of_ == kNobody || !processes_[turn_of_]->alive;
  if (!frontend.table.wants_turn()) {
    if (turn_of_ == frontend.id) turn_of_ = kNobody;
  } else if ((free || turn_of_ == frontend.id) && frontend.alive) {
    turn_of_ = frontend.id;
    frontend.table.give_turn();
  }
}

RequestSpec* World::striker_of_grammar(std::uint64_t key) {
  for (RequestSpec& spec : specs_) {
    if (spec.strike == Strike::compile && grammar_key(spec.sampling) == key) return &spec;
  }
  return nullptr;
}

RequestSpec* World::striker_of_pull(const Pull& pull) {
  const auto owner = pull_owners_.find({pull.term, pull.pull_id});
  if (owner == pull_owners_.end() || pull.from.empty()) return nullptr;
  RequestSpec& spec = spec_of(owner->second);
  return spec.strike == Strike::pull ? &spec : nullptr;
}

void World::joined(std::uint32_t name) {
  has_joined_.resize(scenario_.workers.size());
  has_joined_[name] = true;
  const bool all = std::count(has_joined_.begin(), has_joined_.end(), true) ==
                   static_cast<std::ptrdiff_t>(has_joined_.size());
  if (all && all_joined_at_ == 0) all_joined_at_ = now_ + kSecond;  // its Hello is heard by then
}

const SimWorker* World::mapper_of(const SimWorker& worker, bool its_own) {
  for (const SimWorker* importer : current_worker_) {
    if (importer->name == worker.name || !importer->alive || importer->watched == kNoLink) continue;
    for (const auto& [mapped, since] : importer->mappings()) {
      const Segment& segment = *memory_.find(mapped);
      // Also a pull of the last scheduler may have arrived after this one's start.
      if (since < importer->watched_since || segment.worker != worker.name) continue;
      if (segment.leased && !its_own) continue;  // nobody's successor waits for that
      if (its_own ? segment.exporter == worker.id : segment.exporter < worker.id) return importer;
    }
  }
  return nullptr;
}

/// Nobody may still map what an earlier process of its name has exported, unless the time-out has
/// passed. (What an earlier scheduler has allowed, this one does not know.)
void World::check_predecessors_closed(const SimWorker& worker) {
  if (now_ - worker.since >= scenario_.settings.close_timeout) return;
  if (worker.watched == kNoLink || worker.allowed < worker.watched_since) return;
  const std::vector<Worker>& known = scheduler_->state.workers;
  const bool asks = std::any_of(known.begin(), known.end(), [&](const Worker& w) {
    return w.peer.identity.pid == static_cast<std::int32_t>(worker.id) &&
           w.peer.state == WorkerState::registering;
  });
  if (asks) return;  // a frozen worker that now hears the last scheduler's permission
  if (const SimWorker* importer = mapper_of(worker, /*its_own=*/false)) {
    fail(worker.label + " allocates while " + importer->label + " maps its predecessor's pool");
  }
}

/// It was let go: nobody maps its pool any more.
void World::check_leave(const SimWorker& worker) {
  if (const SimWorker* importer = mapper_of(worker, /*its_own=*/true)) {
    fail(worker.label + " was let go while " + importer->label + " maps its pool");
  }
}

// ---------------------------------------------------------------- requests

RequestSpec& World::spec_of(std::uint64_t seed) {
  if (seed < kFirstSeed || seed - kFirstSeed >= specs_.size())
    fail("a seed was changed on its way");
  return specs_[seed - kFirstSeed];
}

void World::submit_burst() {
  if (!faults_on_ && specs_.size() >= 4) return;
  const std::uint32_t n = random_.between(1, scenario_.load.burst);
  for (std::uint32_t i = 0; i < n && specs_.size() < scenario_.load.requests; ++i) {
    SimFrontend* frontend = some_frontend();
    if (frontend == nullptr || frontend->frozen || frontend->leaving()) break;
    const auto index = static_cast<std::uint32_t>(specs_.size());
    specs_.push_back(draw_request(scenario_, specs_, random_));
    specs_.back().asked = now_;
    // The scheduler may still learn of earlier ones while this request runs.
    const std::uint64_t key = grammar_key(specs_.back().sampling);
    for (std::size_t blow = 0; blow < blows_at_.size(); ++blow) {
      if (blows_at_[blow] + 12 * kSecond <= now_) continue;
      ++specs_.back().blows;
      if (key != 0) grammar_deaths_[key].insert(2 * blow);
    }
    ++report_.requests;
    if (tracing()) {
      const RequestSpec& spec = specs_.back();
      trace("client " + std::to_string(index) + " asks " + frontend->label + ": prompt " +
            std::to_string(spec.prompt.size()) + ", answer " + std::to_string(spec.answer.size()) +
            " of " + std::to_string(spec.sampling.max_tokens));
    }
    frontend->submit(index);
  }
  if (specs_.size() < scenario_.load.requests) {
    after(random_.time(0, scenario_.load.gap), What::submit, 0);
  }
}

SimFrontend* World::some_frontend() {
  SimFrontend* frontend = current_frontend_[random_.below(current_frontend_.size())];
  return frontend->alive ? frontend : nullptr;
}

SimWorker* World::some_worker() {
  SimWorker* worker = current_worker_[random_.below(current_worker_.size())];
  return worker->alive ? worker : nullptr;
}

Report run_scenario(const Scenario& scenario, const RunOptions& options) {
  return World(scenario, options).run();
}

}  // namespace baton::sim
