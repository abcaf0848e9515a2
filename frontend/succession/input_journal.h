// What clients have sent and nobody has answered yet, in memory that outlives its reader: bytes go
// from the socket straight into it, so none can be read and then be lost with the process.
//
// Layout (little endian, as the host is): a head; one slot for each connection; extents, which hold
// a connection's bytes one after another.
//
//   head:    magic, version, geometry
//   slot:    the connection's cookie; how many of its bytes are answered, and how many are here;
//            its first extent; how many front ends died at work on it
//   extent:  the next extent, where in the connection's bytes it begins, the bytes
//
// Every word of a slot is stored alone, and each order in which a death can leave them reads as
// something that was true: bytes behind `end` count if the kernel says that they were read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "frontend/succession/free_extents.h"
#include "ipc/status.h"

namespace baton {

struct InputGeometry {
  std::uint32_t slots = 8448;              // connections at once
  std::uint32_t extents = 24'576;          // of all connections together
  std::uint32_t extent_bytes = 16 * 1024;  // a multiple of 8, its head included

  std::size_t bytes() const;
  /// An error names what is out of bounds.
  Status check() const;
};

/// Front ends that died while they worked on a connection's request.
struct FrontendDeaths {
  std::uint32_t row = 0;  // since it last got on
  std::uint32_t all = 0;  // since it last got on by kEventsThatAcquit events
  bool operator==(const FrontendDeaths&) const = default;
};
inline constexpr std::uint32_t kMostDeathsInARow = 3;
inline constexpr std::uint32_t kMostDeathsInAll = 6;
inline constexpr std::uint32_t kEventsThatAcquit = 64;

/// Where a connection's bytes stand when it gets its slot.
struct InputStart {
  std::uint64_t cookie = 0;   // SO_COOKIE, not 0
  std::uint64_t base = 0;     // bytes of the client that are answered
  std::uint64_t written = 0;  // bytes that the client had been sent when the last of them was
  FrontendDeaths deaths = {};
};

class InputJournal;

/// One connection's part of the journal; gives it back when it goes. One without a journal keeps
/// nothing. One thread at a time calls it, but for what says otherwise.
class InputSlot {
 public:
  InputSlot() = default;
  ~InputSlot();
  InputSlot(InputSlot&& other) noexcept { swap(other); }
  InputSlot& operator=(InputSlot&& other) noexcept {
    swap(other);
    return *this;
  }

  explicit operator bool() const { return journal_ != nullptr; }
  /// Where the client's next bytes go; empty: nothing is kept, or all memory is in use.
  std::span<char> room();
  /// So many bytes are there now.
  void took(std::size_t bytes);
  /// The first of the bytes that are kept are answered. `written` as in InputStart.
  void answered(std::size_t bytes, std::uint64_t written);
  /// They want no answer.
  void skip(std::size_t bytes);
  /// Bytes that are kept.
  std::size_t size() const { return static_cast<std::size_t>(end_ - base_); }
  /// Bytes of the client were read that are not here: nobody can go on behind them.
  void lose();
  /// The same, and what is here is given up too: its memory is needed.
  void drop();
  /// The reply that begins now stands in no journal: a successor could not tell its bytes.
  void reply_unkept();
  /// Any thread.
  std::uint64_t base() const;
  std::uint64_t cookie() const { return cookie_; }

  /// A request of it is worked on; see AtWork. Any thread.
  void begin_work();
  void end_work();
  /// Its reply got on by one event: what was counted against it begins anew. The loop's thread.
  void got_on();
  FrontendDeaths deaths() const;
  /// A further death while it is worked on would end it: nobody else works beside it.
  bool suspected() const;

 private:
  friend class InputJournal;
  friend class AtWork;
  void swap(InputSlot& other) noexcept;
  bool add_extent();

  InputJournal* journal_ = nullptr;
  std::uint32_t index_ = 0;
  std::uint64_t cookie_ = 0;
  std::uint64_t base_ = 0, end_ = 0;
  std::vector<std::uint32_t> extents_;
  std::uint32_t events_ = 0;
  bool lost_ = false;
};

/// Hands out slots and extents. Thread-safe; outlives its slots.
class InputJournal {
 public:
  /// Makes an empty journal of `memory`, which is geometry.bytes() long, all zero, and outlives it.
  InputJournal(std::span<std::byte> memory, const InputGeometry& geometry);

  /// A slot for a connection; without room one that keeps nothing.
  InputSlot open(const InputStart& start);
  /// Extents in use.
  std::size_t used() const;
  /// Gives memory back that was not needed since the last call. Every ten seconds or so.
  void shrink();

 private:
  friend class InputSlot;
  friend class AtWork;
  std::uint32_t take_extent();
  void give_back(std::span<const std::uint32_t> extents);
  std::byte* slot(std::uint32_t index) const;
  std::byte* extent(std::uint32_t index) const;

  std::span<std::byte> memory_;
  const InputGeometry geometry_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::uint32_t> free_slots_;
  FreeExtents free_extents_;
  std::shared_mutex beside_;  // held by all who work, alone by who works on a suspect
};

/// While it lives, a request of the connection is worked on: a death of the process is counted
/// against it. Not to be nested.
class AtWork {
 public:
  explicit AtWork(InputSlot& slot);
  ~AtWork();
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

 private:
  InputSlot* slot_ = nullptr;  // null: it keeps nothing
  bool alone_ = false;
};

/// What a dead process left of one connection.
struct InheritedInput {
  std::uint32_t slot = 0;
  std::uint64_t cookie = 0;
  std::uint64_t base = 0;
  std::uint64_t written = 0;
  std::string bytes;        // from `base` on: those that counted, and those behind them
  std::size_t counted = 0;  // of `bytes`
  bool lost = false;       // as lose() says
  bool unkept = false;     // as reply_unkept() says, of the request at `base`
  bool at_work = false;
  FrontendDeaths deaths;
  std::string fault;  // why it cannot be gone on with; empty: it can

  /// The kernel says that `consumed` bytes were read from the connection: keeps those. False: it
  /// says something that cannot be. With `lost` there may be a gap behind `bytes`.
  bool settle(std::uint64_t consumed);
};

/// Reads what another process wrote, whatever it wrote. An error if it is no such journal.
Result<std::vector<InheritedInput>> read_inputs(std::span<const std::byte> memory);

/// Counts the death of the process that wrote `inputs` against the requests that it was at work on,
/// in `inputs` and in `memory`: a successor that dies at the same one is counted as well. Beside
/// others at work nobody's count gets to kMostDeathsInARow: only who was alone with it is to blame.
void count_deaths(std::span<std::byte> memory, std::vector<InheritedInput>& inputs);
/// This process is at work on an inherited request, or no more.
void mark_at_work(std::span<std::byte> memory, const InheritedInput& input, bool at_work);

}  // namespace baton
