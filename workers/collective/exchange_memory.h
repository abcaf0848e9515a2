// The memory through which the ranks of a worker speak: one mapping that all of them share. Its
// head says who has got how far and whether the group is over; behind it each rank has two buffers
// that it alone writes and all others read. It has no name (memfd_create), so that nothing of it is
// left when its processes end, however they end.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ipc/max_ranks.h"
#include "ipc/process.h"
#include "ipc/sealed_memory.h"
#include "ipc/status.h"

namespace baton {

/// How far a rank has got in joining its group.
enum class RankState : std::uint32_t { absent = 0, joined, loaded, mapped, failed };

/// One line a rank, written by that rank alone but for `sleepers`.
struct alignas(64) RankCell {
  std::atomic<std::uint32_t> posted{0};    // rounds that it has given its part of; a futex
  std::atomic<std::uint32_t> sleepers{0};  // who waits for `posted` in the kernel
  std::atomic<std::uint32_t> state{0};     // RankState
  std::atomic<std::int32_t> percent{0};    // of its weights
};

/// Grows while a rank computes between two exchanges, written by its threads: who waits for it sees
/// a long step from one that has stopped. On a line apart from `posted`, which waiters look at all
/// the time.
struct alignas(64) RankProgress {
  std::atomic<std::uint32_t> count{0};
};

/// In `aborted`, beside a rank: it lives, as far as is known, and did not come.
constexpr std::uint32_t kSilentRank = 1U << 16U;

/// What rank 0 tells the others of the pool, once `round` has grown.
struct alignas(64) PoolNotice {
  std::atomic<std::uint32_t> round{0};
  std::uint32_t blocks = 0;
  std::uint64_t allocation = 0;
  char handle[256] = {};
};

struct ExchangeHead {
  std::uint64_t magic = 0;
  std::uint32_t ranks = 0;
  std::uint32_t buffer_bytes = 0;
  /// 0, or the number of the rank that was lost first plus one, or'ed with kSilentRank: every wait
  /// ends. Never changes again.
  alignas(64) std::atomic<std::uint32_t> aborted{0};
  std::atomic<std::uint32_t> leaving{0};  // rank 0 ends, and so shall the others
  std::array<RankCell, kMaxRanks> cells{};
  std::array<RankProgress, kMaxRanks> progress{};
  PoolNotice pool;
  /// Why a rank failed, for people; it writes this before its state.
  char reasons[kMaxRanks][512] = {};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

class ExchangeMemory {
 public:
  /// `ranks` is 2 to kMaxRanks; a rank's buffers hold `buffer_bytes` each, a multiple of 64.
  static Result<ExchangeMemory> create(int ranks, std::uint32_t buffer_bytes = 256U << 10U);
  /// What another process has created. An error if it is something else.
  static Result<ExchangeMemory> map(UniqueFd fd);

  ExchangeHead& head() const { return *reinterpret_cast<ExchangeHead*>(mapped_.data()); }
  int ranks() const { return static_cast<int>(head().ranks); }
  std::size_t buffer_bytes() const { return head().buffer_bytes; }
  /// The buffer of a rank for a round; rounds take turns.
  std::byte* buffer(int rank, std::uint32_t round) const;
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  Mapped mapped_;
};

}  // namespace baton
