// How the ranks of a worker find each other, and what they know of each other's lives. Rank 0
// leads: it speaks with the scheduler, and the others serve it (docs/adr/0024-ranks.md). They come
// to its socket, get the exchange memory from it, and watch its process as it watches theirs.
//
// A group is for one life: when a rank's process ends, or does not come to an exchange in time, all
// of them end, and the next processes make the next group. It begins only when every process of the
// group before has ended as the kernel sees it, for one that was frozen in a step would write into
// the pool when it wakes.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/process.h"
#include "ipc/status.h"
#include "ipc/types.h"
#include "workers/collective/collective.h"
#include "workers/collective/exchange_memory.h"
#include "workers/collective/watchdog.h"

namespace baton {

/// The most that a rank's share of a pull may take: what it reads may lie in slow memory, and it
/// shows no progress meanwhile. Well below what the scheduler gives a pull: else that would take
/// this worker for one that hangs, its pool for spoiled, and a request for the cause, where all
/// that happened is that a rank stands still.
constexpr TimeNs kPullPatience = 20 * kSecond;

struct RankGroupOptions {
  std::string run_dir;
  std::string worker;
  int rank = 0;
  int ranks = 2;
  CollectiveOptions collective = {};
  TimeNs pull_patience = kPullPatience;  // in pulls, as collective.patience is in steps
  TimeNs patience = 60 * kSecond;  // for all ranks to come
  TimeNs old_ones = 12 * kSecond;  // for those of the group before to end
};

/// The pool that all ranks of a worker on CPUs map; each touches its own heads of it alone.
struct PoolOffer {
  std::string handle;
  std::uint32_t blocks = 0;
  AllocationId allocation = 0;
};

class RankGroup {
 public:
  /// A rank's process has ended; told before any exchange says so, on the watchdog's thread. It
  /// names the rank for which the group ends, where this one has left because of another.
  using OnLost = std::function<void(int rank)>;

  /// As rank 0: waits until all have come.
  static Result<std::unique_ptr<RankGroup>> lead(const RankGroupOptions& options, OnLost on_lost);
  /// As another rank: waits for rank 0, and is one of its group on return.
  static Result<std::unique_ptr<RankGroup>> join(const RankGroupOptions& options, OnLost on_lost);

  Collective& collective() { return *collective_; }
  /// The same ranks again, for a second thread of each: the one that reads other workers' pools.
  Collective& pulls() { return *pulls_; }
  const ExchangeMemory& memory() const { return memory_; }
  int ranks() const { return memory_.ranks(); }
  /// Of rank r's process; of the others' groups, rank 0's alone is known.
  std::int32_t pid_of(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  // ---- rank 0
  /// For all others to come so far. The error names the one that has failed, and why.
  Status wait_for(RankState state, TimeNs patience);
  /// How that rank was lost, for people: with its own reason where it has told one.
  std::string words_of_loss(int rank) const;
  void offer_pool(const PoolOffer& offer);
  /// What follows is no loss: the others end as this process does.
  void leave() { memory_.head().leaving.store(1); }
  /// SIGKILL for whoever is left. A frozen rank would else live on, and write when it wakes.
  void end_others();

  // ---- the others
  void tell(RankState state, int percent = 100);
  void fail(const std::string& reason);
  /// Nothing: not in that time.
  std::optional<PoolOffer> wait_for_pool(TimeNs patience);
  /// SIGTERM for rank 0: it drains, and then all ranks end.
  void stop_leader() { watchdog_->signal(0, SIGTERM); }
  bool leaving() const { return memory_.head().leaving.load() != 0; }

 private:
  /// Both of their memories.
  struct Memories {
    ExchangeMemory steps;
    ExchangeMemory pulls;
  };
  RankGroup(const RankGroupOptions& options, Memories memories, OnLost on_lost);
  bool has_failed(int rank) const;
  Status failure_of(int rank) const;
  RankCell& cell(int rank) const { return memory_.head().cells[static_cast<std::size_t>(rank)]; }
  Status gather(int listening);
  bool admit(const std::string& asked, std::int32_t pid, int link);

  RankGroupOptions options_;
  ExchangeMemory memory_;
  ExchangeMemory pulls_memory_;   // its head says nothing but who has posted, and that all is over
  std::optional<LockFile> name_;  // rank 0: of the group's socket
  UniqueFd listening_;            // rank 0
  UniqueFd presence_;             // the others: see wait_for_old_ranks()
  std::vector<std::int32_t> pids_;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Collective> pulls_;
  std::unique_ptr<Watchdog> watchdog_;  // last: its thread uses the rest
};

}  // namespace baton
