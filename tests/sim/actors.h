// The processes of the simulation: what each thin shell does around its real core.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "frontend/core/request_table.h"
#include "scheduler/apply/apply_event.h"
#include "scheduler/plan/plan_step.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "tests/sim/plan_checks.h"
#include "tests/sim/share_checks.h"
#include "workers/protocol/worker_core.h"

namespace baton::sim {

class World;

/// What happens at a point in time, and to whom (`who`: a process unless said otherwise).
enum class What : std::uint8_t {
  scheduler_turn,
  scheduler_tick,
  process_gone,  // arg: link id of the dead process
  worker_tick,
  worker_start,
  pool_allocated,
  step_part,          // arg: number of the step run
  pull_part,          // arg: its id
  lease_lost,         // the memory process has died
  mapping_closed,     // arg: allocation
  exporter_gone,      // arg: allocation
  grammar_compiled,   // arg: key
  grammar_forgotten,  // arg: key
  frontend_tick,
  client_cancel,  // arg: request counter
  // Of the world: they reach frozen processes, too.
  deliver_up,    // who: link
  deliver_down,  // who: link
  connect,
  thaw,
  start_scheduler,
  start_memory,
  start_worker,     // who: name
  start_frontend,   // who: name
  start_successor,  // who: process of the front end before
  kill_replaced,    // who: process
  submit,
  blow,
  check_hang,  // who: process
};

class Process {
 public:
  Process(World& world, std::string name) : label(std::move(name)), world_(world) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  virtual void receive(ToPeer message) = 0;
  virtual void happen(What what, std::uint64_t arg) = 0;

  std::uint32_t id = 0;
  std::string label;
  bool alive = true;
  bool frozen = false;
  bool spoiled = false;      // it died of a fault, and has left the mark that shells look for
  LinkId watched = kNoLink;  // link under which this scheduler life watches its pid
  TimeNs watched_since = 0;

 protected:
  World& world_;
};

class SimScheduler final : public Process {
 public:
  explicit SimScheduler(World& world);
  void receive(LinkId link, ToScheduler message);
  void receive(ToPeer /*message*/) override {}
  void happen(What what, std::uint64_t arg) override;
  void inject(Event event);

  State state;

 private:
  void turn();
  void want_turn();
  void apply_now(Event&& event);
  void flush();
  bool strikes_by_submit(const Event& event);
  bool strikes_by_tokens(FrontendIndex frontend, const Events& events);
  void check_audit(const char* after);
  void check_caches();
  void check_calm();
  void check_faulted(std::size_t from);
  void look_for_faults();
  void note_pull(const Pull& pull);
  void note_shared_pools(bool taken_away);
  void check_refusals(FrontendIndex frontend, const Events& events);
  void check_prefix_nodes();
  struct Before;
  Before look(const Event& event);
  void check_succession(const Before& before, const Event& event);
  void watch(LinkId link, const Process& peer);

  Outbox out_;
  std::vector<Event> from_workers_;
  std::vector<Event> from_frontends_;
  std::vector<Event> injected_;
  std::vector<LinkId> failed_sends_;
  PlanChecks checks_;
  ShareChecks shares_;
  // What a router knows of each worker's pool, by the events alone: contents, and in which part.
  std::vector<std::set<std::pair<ContentHash, bool>>> told_;
  std::set<AllocationId> faulted_;  // pools whose processes have left marks that were seen
  std::map<RequestId, std::uint64_t> seeds_;
  std::set<std::pair<RequestId, std::uint32_t>> refused_;  // attempts
  std::uint32_t shared_tokens_ = 0;  // that workers with shared pools have held together
  std::uint64_t audits_ = 0;
  bool turn_wanted_ = false;
  TimeNs last_tick_ = 0;
  TimeNs next_tick_ = 0;
};

class SimWorker final : public Process {
 public:
  SimWorker(World& world, std::uint32_t name, std::string label);
  void receive(ToPeer message) override;
  void happen(What what, std::uint64_t arg) override;

  void terminate();
  bool maps(AllocationId allocation) const { return mappings_.count(allocation) != 0; }
  const std::map<AllocationId, TimeNs>& mappings() const { return mappings_; }
  /// It maps that pool and looks at the process that exports it.
  bool watches(AllocationId allocation) const { return watched_.contains(allocation); }
  AllocationId allocation() const { return pool_ == nullptr ? 0 : pool_->id; }
  /// A pull of this worker's term reads that block.
  bool reads(AllocationId allocation, BlockId block) const;

  const std::uint32_t name;

 private:
  const WorkerCoreOptions options_;

 public:
  WorkerCore core;
  const TimeNs since;               // start of the process; its incarnation
  const std::uint32_t layout;       // how it reads a pool's bytes
  TimeNs allowed = 0;               // when a scheduler let it allocate
  std::uint32_t hung_by = kNobody;  // spec

 private:
  void carry_out();
  void send(WorkerMessage message);
  void start_step(const RunStep& step);
  void tell_term(Term term);
  void run_next_step();
  Token token_of(const BatchRow& row, std::size_t i) const;
  void copy_blocks(const RunStep& step);
  void step_part();
  bool waits();
  enum class Written { yes, not_yet, never };
  Written written(const RowWait& wait, TimeNs began) const;
  void run_cells(std::size_t limit);
  void finish_step();
  void check_tables(const char* when);
  void check_grammars(const RunStep& step);
  void prepare(std::uint64_t key, bool awaited);
  void compile_next();
  bool strikes(const BatchRow& row, const RequestSpec& spec) const;
  void check_orphans(const RunStep& step);
  void allocate();
  void start_pull(Pull pull);
  void pull_part(PullId id);
  void schedule_tick();
  std::pair<Segment*, std::uint64_t*> cell_at(const BatchRow& row, std::uint32_t group,
                                              std::uint32_t position);
  bool believed(const BatchRow& row) const;
  std::uint64_t check_prefix(const BatchRow& row, std::uint32_t end, const char* when);

  struct Job {
    Pull pull;
    Segment* source = nullptr;  // null: cannot be mapped
    std::size_t copied = 0;     // cells
    std::uint32_t parts = 1;
    std::uint32_t part = 0;
    bool fails = false;
  };

  WorkerActions actions_;
  bool carrying_out_ = false;
  Segment* pool_ = nullptr;
  const RunStep* step_ = nullptr;        // on the device
  std::deque<const RunStep*> launched_;  // behind it
  std::vector<Token> sampled_;           // by the step before
  std::uint64_t step_runs_ = 0;
  std::uint32_t step_parts_ = 0;
  std::uint32_t step_at_ = 0;
  TimeNs step_began_ = 0;
  std::size_t cells_ = 0;  // to be written by the running step
  std::size_t cell_ = 0;   // written
  std::size_t row_ = 0;
  std::uint32_t row_done_ = 0;
  std::uint64_t row_prefix_ = 0;
  std::set<SequenceId> spoiled_;  // that have had such rows: what follows is void, too
  std::set<std::size_t> vain_;    // rows of the running step that have waited in vain
  bool waited_ = false;           // the running step needs to wait no more
  // What others are told of its steps: of that term, the last one that is written, and the last one
  // that has not written all of its rows.
  Term told_term_ = 0;
  StepId told_written_ = 0;
  StepId told_failed_ = 0;
  std::map<PullId, Job> pulls_;
  std::uint64_t compiling_ = 0;                             // key; 0: none
  std::vector<std::pair<std::uint64_t, bool>> to_compile_;  // key, somebody waits for it
  std::set<std::uint64_t> grammars_;         // compiled by this process, forgotten ones too
  std::map<AllocationId, TimeNs> mappings_;  // since when
  std::set<AllocationId> watched_;           // of these, those that end with their exporter
  TimeNs tick_at_ = 0;
  std::vector<SequenceId> users_;  // scratch of check_tables: block -> who writes to it
};

class SimFrontend final : public Process {
 public:
  SimFrontend(World& world, std::uint32_t name, std::string label);
  /// Goes on with what the journal of another one holds, and with its clients.
  SimFrontend(World& world, std::string label, SimFrontend& predecessor);
  void receive(ToPeer message) override;
  void happen(What what, std::uint64_t arg) override;
  /// One more client asks.
  void submit(std::uint32_t spec);
  void begin();
  /// SIGTERM: takes no more clients, goes when the last stream has ended.
  void leave();

  /// It dies at one of its next instructions that anybody notices.
  void doom(std::uint32_t instructions) { fuse_ = instructions; }

  Incarnation incarnation() const { return incarnation_; }
  std::uint32_t generation() const { return generation_; }
  /// Counters below were given by its predecessors.
  std::uint64_t first_counter() const { return first_counter_; }
  bool leaving() const { return leaving_; }
  std::size_t clients_waiting() const { return waiting_; }

  const std::uint32_t name;
  RequestTable table;
  std::map<std::uint64_t, std::uint32_t> clients;  // counter -> spec, of streams that are open

 private:
  /// What the journal has of it: all that it has got, and more.
  struct Client {
    std::uint32_t spec = 0;
    std::uint32_t attempt = 0;  // noted before it is sent
    TimeNs arrival = 0;
    TimeNs cancel_at = 0;  // 0: never
    std::vector<Token> got;
    std::uint64_t prefix = 0;
    TimeNs deadline = 0;
    bool cancelled = false;
    bool ended = false;
  };

  void take(TableOutput& out);
  NewRequest request_of(const Client& client);
  void restart(Client& client);
  bool dies_here();
  void deliver(const Delivery& delivery, const TableOutput& out);
  void end(const StreamEnd& ending);
  void check_answer(const RequestSpec& spec, const Client& client, const StreamEnd& ending);
  template <typename Expect>
  void check_blame(const RequestSpec& spec, const Expect& expect) const;
  void check_vector(const RequestSpec& spec, const Client& client, const Delivery& delivery,
                    const TableOutput& out);
  void check_token(const RequestSpec& spec, const Client& client, Token token);
  void schedule_tick();

  const Incarnation incarnation_;
  const std::uint32_t generation_ = 0;
  std::vector<Client> by_counter_;  // counters are 1, 2, 3, ...
  std::uint64_t first_counter_ = 1;
  Epoch epoch_ = 0;        // of the scheduler, noted
  bool replaced_ = false;  // it lives, but another one has its journal and its clients
  std::uint32_t fuse_ = 0;
  std::size_t waiting_ = 0;
  bool leaving_ = false;
  TimeNs tick_at_ = 0;
};

}  // namespace baton::sim
