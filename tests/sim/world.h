// A cluster in virtual time: real cores, simulated processes, network, memory and devices.
// Everything that happens comes out of one queue ordered by (time, order of creation), so a seed is
// one run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/leases.h"
#include "tests/sim/actors.h"
#include "tests/sim/memory.h"
#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "tests/sim/random.h"
#include "tests/sim/role_checks.h"
#include "tests/sim/scenario.h"

namespace baton::sim {

/// A broken promise: thrown at the event that showed it.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct RunOptions {
  std::uint32_t events =
      300;  // messages and deaths that the scheduler hears of while faults are on
  TimeNs patience = 45 * kSecond;  // virtual, for everything to end after the faults; shorter than
                                   // the time after which the scheduler gives up whatever hangs
  std::function<void(const std::string&)> trace;  // empty: no trace
};

struct Report {
  std::string violation;  // empty: none
  std::uint64_t events = 0;
  std::uint64_t deaths = 0;  // processes killed
  std::uint64_t freezes = 0;
  std::uint64_t successors = 0;  // of front ends
  std::uint64_t inherited = 0;   // requests that they have gone on with
  std::uint64_t requests = 0;
  std::uint64_t tokens = 0;  // that reached clients
  Counters counters;         // of all schedulers together
  TimeNs quiet_after = 0;    // from the end of the faults until everything had ended
};

/// Plays one scenario to its end.
Report run_scenario(const Scenario& scenario, const RunOptions& options);

class World {
 public:
  World(const Scenario& scenario, const RunOptions& options);
  Report run();

  const Scenario& scenario() const { return scenario_; }
  TimeNs now() const { return now_; }
  Random& random() { return random_; }
  Memory& memory() { return memory_; }
  Network& network() { return network_; }
  Report& report() { return report_; }
  RoleChecks& role_checks() { return role_checks_; }
  bool faults_on() const { return faults_on_; }
  bool tracing() const { return static_cast<bool>(options_.trace); }
  void trace(const std::string& line) const;
  [[noreturn]] void fail(const std::string& what);

  void at(TimeNs when, What what, std::uint32_t who, std::uint64_t arg = 0);
  void after(TimeNs delay, What what, std::uint32_t who, std::uint64_t arg = 0) {
    at(now_ + delay, what, who, arg);
  }

  // Processes. Lives never end up in the same place again: an index names one life.
  SimScheduler* scheduler() { return scheduler_.get(); }
  std::vector<std::unique_ptr<SimWorker>>& workers() { return workers_; }
  std::vector<std::unique_ptr<SimFrontend>>& frontends() { return frontends_; }
  Process& process(std::uint32_t id) { return *processes_[id]; }
  SimWorker* current_worker(std::uint32_t name) { return current_worker_[name]; }
  bool is_current(const SimWorker& worker) const { return current_worker_[worker.name] == &worker; }
  std::size_t next_process() const { return processes_.size(); }

  // The memory process: real rules, and what the kernel tells it is told at once.
  bool memory_lives() const { return memory_lives_; }
  LeaseAnswer lease(const Lease& lease);
  void kill_memory();
  std::uint32_t layout_of(std::uint32_t name);

  void start_scheduler();
  void start_worker(std::uint32_t name);
  void start_frontend(std::uint32_t name);
  void start_successor(std::uint32_t predecessor);
  void kill(std::uint32_t process);
  void freeze(std::uint32_t process, TimeNs how_long);
  /// The process has ended: its links break, whoever watches it is told.
  void ended(Process& process);
  /// Something that a request which was open may blame on its worker.
  void note_blow();
  /// A blow (an even number) or a strike meets the grammars of all who are open.
  void note_death(std::uint64_t number);
  /// The ledger of deaths: this one is `striker`'s, and nobody else's.
  void strike(RequestSpec& striker, Process& victim);
  /// Its work there never ends from now on. Somebody must end the worker for that in time.
  void hang(RequestSpec& striker, SimWorker& victim, What what, TimeNs longest);
  /// Every client that waits has waited for less than what is due to it. Only where nothing but
  /// strikers does harm.
  void check_waits(const SimFrontend& frontend);
  /// Front ends take turns with their trials of suspects.
  void share_turns(SimFrontend& frontend);
  /// Every worker has been in a term: nobody has to guess how large the pools are.
  /// Some worker hangs by a request, or has.
  bool hangs() const { return hangs_ != 0; }
  bool all_joined_before(TimeNs when) const { return all_joined_at_ != 0 && when > all_joined_at_; }
  void joined(std::uint32_t name);
  /// All that strike by the same grammar and have no end yet; `striker` itself if none has. A row
  /// or a pull is one request's, whatever KV it shares: each of those who share that has deaths of
  /// its own.
  std::vector<RequestSpec*> owners_of(RequestSpec& striker);
  /// Another request has struck by the same grammar: all that have it end together, those that came
  /// after the strike, too.
  bool cause_struck(const RequestSpec& spec) const;
  /// Deaths that its grammar has met, with whomever had it: they count for all who have it, those
  /// that came after them, too. 0 without a grammar.
  std::uint32_t met_by_grammar(const RequestSpec& spec) const;
  /// Whose grammar or pull that is, if it is a striker's that strikes there; null: nobody's.
  RequestSpec* striker_of_grammar(std::uint64_t key);
  RequestSpec* striker_of_pull(const Pull& pull);
  /// A pull leaves the scheduler for the request of that seed.
  void note_pull(const Pull& pull, std::uint64_t seed) {
    pull_owners_[{pull.term, pull.pull_id}] = seed;
  }

  // Requests.
  RequestSpec& spec_of(std::uint64_t seed);
  bool was_cancelled(const RequestId& request) const;
  /// Who maps the worker's pool, or an earlier one of its name, as far as this scheduler knows (one
  /// that started later has not been told); null: nobody.
  const SimWorker* mapper_of(const SimWorker& worker, bool its_own);
  void check_predecessors_closed(const SimWorker& worker);
  void check_leave(const SimWorker& worker);

 private:
  struct Event {
    TimeNs at;
    std::uint64_t order;
    What what;
    std::uint32_t who;
    std::uint64_t arg;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  void handle(const Event& event);
  void handle_world_event(const Event& event);
  void to_process(const Event& event);
  void tell_requests() const;
  void run_to_quiet();
  TimeNs patience(std::uint64_t deaths) const;
  void adopt(Process& process);
  void tell_importers(const SimWorker& exporter);
  void begin_frontend(std::unique_ptr<SimFrontend> frontend);
  TimeNs successor_delay();
  void thaw(std::uint32_t process);
  void relink(Process* peer);
  void admin_cancel();
  void add_counters(const Counters& counters);
  void stop_faults();
  bool quiet(std::string* why);
  void check_end();
  TimeNs all_work() const;
  void check_hang(std::uint32_t who, std::uint64_t spec);
  void blow();
  SimWorker* some_worker();
  SimFrontend* some_frontend();
  void submit_burst();

  const Scenario& scenario_;
  const RunOptions& options_;
  Random random_;
  Random heirs_;   // for all about successors: nothing else depends on it
  Random faults_;  // of those killed by blows, who dies of a fault
  TimeNs now_ = kSecond;
  std::uint64_t order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  bool faults_on_ = true;
  Memory memory_;
  bool memory_lives_ = false;
  Leases leases_;
  std::set<AllocationId> spoiled_;      // pools whose writers have died of a fault
  std::vector<std::uint32_t> layouts_;  // of workers' newest processes, by name
  Network network_{*this};
  Report report_;
  RoleChecks role_checks_;  // over all schedulers' lives
  std::vector<Process*> processes_;
  std::unique_ptr<SimScheduler> scheduler_;
  std::vector<std::unique_ptr<SimScheduler>> dead_schedulers_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<std::unique_ptr<SimFrontend>> frontends_;
  std::vector<SimWorker*> current_worker_;
  std::vector<SimFrontend*> current_frontend_;
  std::deque<RequestSpec> specs_;
  std::vector<RequestId> admin_cancelled_;
  std::vector<TimeNs> blows_at_;
  std::map<std::uint64_t, std::set<std::uint64_t>>
      grammar_deaths_;  // by key; numbers of note_death()
  TimeNs relinked_at_ = 0;
  bool striking_ = false;
  bool blown_ = false;  // it is killed, and does not end by itself
  std::map<std::pair<Term, PullId>, std::uint64_t> pull_owners_;  // seeds
  std::uint64_t strikes_ = 0;                                     // deaths by strikers
  std::uint64_t hangs_ = 0;                                       // of these, or to come
  std::uint32_t turn_of_ = kNobody;                               // process id
  std::vector<bool> has_joined_;
  TimeNs all_joined_at_ = 0;
  std::uint32_t lost_worker_ = kNobody;   // name that died for good
  bool draining_ends_ = false;            // operators' drains are still to be undone
  std::vector<std::vector<Event>> held_;  // by process: what a frozen process does when it thaws
};

}  // namespace baton::sim
