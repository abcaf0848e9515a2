// What the ranks of a worker do together: gather, add up, wait for one another. One object a rank;
// all ranks make the same calls in the same order, from one thread each. Works between processes,
// and (tests) between threads of one.
//
// A round: a rank fills its buffer, posts it, and reads those of the others once they have posted
// theirs. Two buffers take turns: whoever posts round n + 1 has read round n, and nobody fills
// round n + 2 before all have posted n + 1. Calls that do not fit one buffer take several rounds.
//
// Every wait ends: when the others have come, when the group is aborted (a watchdog does that when
// a rank's process ends), or when the one that is awaited has not got on for `patience`. The last
// two throw RankLost. A rank that computes gets on as long as it adds to progress().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ipc/types.h"
#include "workers/collective/exchange_memory.h"

namespace baton {

/// The group is over. Nobody can go on with it: its other calls throw, too.
class RankLost : public std::runtime_error {
 public:
  RankLost(int rank, bool silent);
  int rank() const { return rank_; }
  /// It may live, but did not come in time.
  bool silent() const { return silent_; }

 private:
  int rank_;
  bool silent_;
};

/// The ranks of a group do not agree: one of them has computed something else.
struct RanksDiffer : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Columns [first, first + count) of a matrix.
struct ColumnRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t end() const { return first + count; }
  bool operator==(const ColumnRange&) const = default;
};

struct CollectiveOptions {
  TimeNs patience = 5 * kSecond;  // for a rank that lives, does not come, and does not get on
  TimeNs spin = 30'000;           // looked for so long before the kernel is asked to wait
};

/// What has been done so far, of this rank.
struct CollectiveFigures {
  std::uint64_t rounds = 0;
  std::uint64_t bytes = 0;  // that it has given to the others
};

class Collective {
 public:
  /// `memory` outlives it.
  Collective(const ExchangeMemory& memory, int rank, CollectiveOptions options = {});

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const CollectiveFigures& figures() const { return figures_; }

  /// Of this rank: what it computes between two exchanges adds to it, from any thread.
  std::atomic<std::uint32_t>& progress() const {
    return head_.progress[static_cast<std::size_t>(rank_)].count;
  }

  /// Returns when all have called it; what they wrote to any memory before is visible.
  void barrier();

  /// `data` is [rows, stride], of which rank r has columns ranges[r]: afterwards everybody has all
  /// of them. Ranges of several ranks may overlap if what is in them is equal. `root` >= 0: only
  /// that rank gets them.
  void gather_columns(float* data, int rows, std::int64_t stride,
                      std::span<const ColumnRange> ranges, int root = -1);

  /// `data` is [rows, columns]; row r is there on rank owner(r), afterwards on all.
  void gather_rows(float* data, int rows, std::int64_t columns,
                   const std::function<int(int)>& owner);

  /// data[i] = the sum over all ranks, in their order: the same bits everywhere.
  void all_reduce(float* data, std::int64_t count);

  /// Every rank's number, in their order.
  std::vector<std::uint64_t> all_gather(std::uint64_t value);
  /// Every rank's text, in their order; what is longer than a buffer is cut.
  std::vector<std::string> all_gather(const std::string& text);

  /// Rank 0's bytes become everybody's. The others wait for them without an end, but for an abort.
  /// The error (of the others): what came is longer than `most`.
  void broadcast(std::string& bytes, std::size_t most);

  /// By one thread beside that of the exchanges, again and again: throws RankLost as an exchange
  /// would if another rank has not come to the next one and does not get on for patience(rank,
  /// late). How long it has stood still is counted only while it is looked for. If several are
  /// late, the lowest is named.
  void look_for_late(const std::function<TimeNs(int rank, TimeNs late)>& patience);

  /// From now on, for a rank that lives and does not come.
  void set_patience(TimeNs patience) { options_.patience = patience; }
  TimeNs patience() const { return options_.patience; }
  /// Called every 50 ms while this rank waits in the kernel; what it throws ends the wait.
  void set_look(std::function<void()> look) { look_ = std::move(look); }

  /// Ends every wait of the group, now and later. From any thread, and of any rank. The first loss
  /// is the one that everybody is told: who leaves because of it is lost later.
  static void abort(const ExchangeMemory& memory, int lost_rank, bool silent = false);
  /// That first loss.
  static std::optional<RankLost> loss(const ExchangeMemory& memory);

 private:
  enum class Patience : std::uint8_t { bounded, endless };
  std::byte* own() const { return memory_.buffer(rank_, round_); }
  void post(std::size_t bytes);
  void await(int peer, Patience patience = Patience::bounded) const;
  void await_all() const;
  [[noreturn]] void lose_silent(int peer) const;

  /// How far a peer was when it was last seen to get on.
  struct Seen {
    std::uint32_t progress = 0;
    TimeNs moved = 0;
  };

  const ExchangeMemory& memory_;
  ExchangeHead& head_;
  const int rank_;
  const int ranks_;
  CollectiveOptions options_;
  std::function<void()> look_;
  std::uint32_t round_ = 0;  // the one that is being filled
  std::vector<Seen> seen_;   // look_for_late()'s
  TimeNs looked_ = 0;
  CollectiveFigures figures_;
};

}  // namespace baton
