// The journal of a front end: for each reply that is owed, records in the order in which they came,
// in memory that outlives the process. Its writer may die at any instruction: a record counts once
// the word with its length is stored, which is the last thing that is stored of it. Its reader
// believes nothing.
//
// Layout (little endian, as the host is): a head; one slot for each open reply; extents, which a
// slot's records fill one after another. A record is one fragment or several, since it may go on in
// the next extent:
//
//   head:     magic, version, geometry, the build that wrote it; who it is to its one scheduler
//   slot:     state, first extent, the connection's cookie
//   extent:   the next extent, then fragments until a word that is 0, or its end
//   places:   behind the last extent, so that a build for one model reads the rest: the schedulers
//             of several models, each with its model's identity
//   fragment: a word (bytes, and whether more of the record follows), the bytes, padded to words
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "frontend/succession/free_extents.h"
#include "ipc/status.h"

namespace baton {

struct JournalGeometry {
  std::uint32_t slots = 4096;              // replies at once
  std::uint32_t extents = 16'384;          // of all replies together
  std::uint32_t extent_bytes = 16 * 1024;  // a multiple of 8
  std::uint32_t max_extents = 4096;        // of one reply

  std::size_t bytes() const;
  /// An error names what is out of bounds.
  Status check() const;
};

/// What a front end knew of a scheduler.
struct SchedulerPlace {
  std::uint64_t model = 0;        // ServedModel::identity; 0: of the only one
  std::uint64_t epoch = 0;        // of the one that it knew last; 0: none
  std::uint64_t max_context = 0;  // tokens that requests were checked against last; 0: none
  bool operator==(const SchedulerPlace&) const = default;
};

/// Who a front end is to its schedulers, as its successor will be.
struct FrontendPlace {
  std::uint64_t incarnation = 0;
  std::uint64_t epoch = 0;         // this and max_context: as in SchedulerPlace, of the only model
  std::uint64_t next_counter = 1;  // the first that it gave to no request
  std::uint64_t generation = 0;    // processes that had this incarnation before
  std::uint64_t max_context = 0;
  std::vector<SchedulerPlace> several = {};  // of several models

  /// By the model's identity: their order may change. Nothing is known of one that is not there.
  SchedulerPlace of(std::uint64_t model) const {
    if (model == 0) return {0, epoch, max_context};
    for (const SchedulerPlace& one : several) {
      if (one.model == model) return one;
    }
    return {model};
  }
  bool operator==(const FrontendPlace&) const = default;
};

/// Writes. One thread. What finds no room costs its own reply the successor, and nobody else: the
/// reply is then marked as lost, its extents are given back, and its connection cannot be taken
/// over.
class Journal {
 public:
  /// Makes an empty journal of `memory`, which is geometry.bytes() long, all zero, and outlives it.
  Journal(std::span<std::byte> memory, const JournalGeometry& geometry, std::string_view build);

  /// A reply to the connection `cookie` (SO_COOKIE, not 0) begins with `opening`. False: it is not
  /// kept (no slot, or no room), or the connection has an open one already.
  bool open(std::uint64_t cookie, std::string_view opening);
  /// One more record, not empty. Unknown or lost replies: ignored.
  void append(std::uint64_t cookie, std::string_view record);
  /// Its last byte is out, or nobody wants it. Unknown: ignored.
  void close(std::uint64_t cookie);

  /// Note a request's counter before the scheduler hears of it.
  void note(const FrontendPlace& place);

  std::size_t open_count() const { return open_.size(); }
  /// Replies that found no room, since the start.
  std::uint64_t lost() const { return lost_; }
  /// Extents in use.
  std::size_t used() const { return geometry_.extents - free_extents_.size(); }
  /// As InputJournal::shrink().
  void shrink();

 private:
  struct Open {
    std::uint32_t slot = 0;
    std::vector<std::uint32_t> extents;  // none: it is lost
    std::uint32_t offset = 0;            // in the last one, of the next fragment
  };

  bool write(Open& open, std::string_view record);
  bool add_extent(Open& open);
  void lose(Open& open);
  void give_back(Open& open);
  std::byte* extent(std::uint32_t index) const;
  std::byte* slot(std::uint32_t index) const;

  std::span<std::byte> memory_;
  const JournalGeometry geometry_;
  std::unordered_map<std::uint64_t, Open> open_;
  std::vector<std::uint32_t> free_slots_;
  FreeExtents free_extents_;
  std::uint64_t lost_ = 0;
};

/// One reply as a dead writer left it.
struct JournaledReply {
  std::uint64_t cookie = 0;
  std::vector<std::string> records;  // whole ones; the first is the opening
  std::string fault;  // why it cannot be rebuilt (records are then empty); empty: it can
};

struct JournalContents {
  std::string build;
  FrontendPlace place;
  std::vector<JournaledReply> replies;  // in the order of slots
};

/// Reads what another process wrote, whatever it wrote; copies no more than `memory` holds. An
/// error if it is no journal; a fault of one reply costs that reply alone.
Result<JournalContents> read_journal(std::span<const std::byte> memory);

}  // namespace baton
